"""Jobs of several sizes (Slurm: heterogeneous jobs), on the world and on the daemons."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge.core import devices
from bridge.core.claims import pinned
from bridge.core.model import JobId, JobRecord, JobSpec, is_ended, is_granted, torn
from bridge.errors import Conflict
from tests.contract.slurm_fixture import MARK, Slurm, eventually, slurm_fixture, spec
from tests.contract.test_slurm_claims import undrain

__all__ = ["slurm_fixture"]


@pytest.fixture(autouse=True)
def _only_where_slurm_has_them(slurm: Slurm) -> None:
    if slurm.world is not None and slurm.world.version < 45:
        pytest.skip("Slurm before 26.05 takes no external job of several sizes")


def several(**changes: object) -> JobSpec:
    """A task without a GPU, and two with one each."""
    mark = replace(MARK, sizes=("small", "large"))
    small = spec(mark=mark, gres="", **changes)
    large = spec(
        mark=mark,
        tasks=2,
        nodes_max=2,
        memory_mib=None,
        memory_per_cpu=100,
        gres="",
        gres_per_task="gres/gpu=1",
        **changes,
    )
    return replace(small, others=(large,))


def ids(slurm: Slurm) -> tuple[JobId, JobId]:
    return slurm.id(), slurm.id()


async def submitted(slurm: Slurm, asked: JobSpec) -> tuple[JobId, JobId]:
    job, other = ids(slurm)
    await slurm.client.submit(job, asked)
    return job, other


async def granted(slurm: Slurm) -> tuple[JobRecord, JobId]:
    job, other = await submitted(slurm, several())

    async def runs() -> bool:
        return is_granted((await slurm.client.job(job)).states)

    await eventually(runs)
    return await slurm.client.job(job), other


async def agreed(slurm: Slurm, job: JobId) -> JobRecord:
    """The list tells of it what its record does, or it would be read for ever."""

    async def settled() -> bool:
        return not any("COMPLETING" in state for state in (await slurm.client.job(job)).states)

    await eventually(settled)
    record = await slurm.client.job(job)
    assert (await slurm.client.states())[job] == record.states
    return record


async def test_it_is_one_job_with_the_places_of_all_its_components(slurm: Slurm) -> None:
    record, other = await granted(slurm)
    small, large = record.parts
    assert set(small.nodes).isdisjoint(large.nodes), "components share no node"
    assert record.nodes == small.nodes + large.nodes
    assert [len(devices.indices(text)) for text in record.gres] == [
        0,
        *(2 // len(large.nodes) for _ in large.nodes),
    ]
    assert len(record.cpus_by_node) == len(record.nodes)
    assert (record.tasks, small.tasks, large.tasks) == (3, 1, 2)
    assert record.mark is not None
    assert record.mark.sizes == ("small", "large")
    assert await agreed(slurm, record.id) == record
    alone = await slurm.client.job(other)
    assert alone.mark is None, "a component by itself is nobody's job"


async def test_none_of_its_ids_is_given_twice(slurm: Slurm) -> None:
    record, _ = await granted(slurm)
    with pytest.raises(Conflict):
        await slurm.client.submit(record.id, several())
    assert is_granted((await slurm.client.job(record.id)).states)


async def test_what_is_left_where_another_has_the_second_id_is_no_end_of_a_job(slurm: Slurm) -> None:
    job, other = ids(slurm)
    await slurm.client.submit(other, spec())
    with pytest.raises(Conflict):
        await slurm.client.submit(job, several())
    left = await agreed(slurm, job)
    assert "CANCELLED" in left.states
    assert left.stillborn
    assert not is_ended((await slurm.client.job(other)).states)


async def test_a_person_who_ends_one_component_tears_the_job(slurm: Slurm) -> None:
    record, other = await granted(slurm)
    await slurm.client.cancel(other)
    left = await agreed(slurm, record.id)
    assert torn(left.states) == {"CANCELLED"}
    assert not is_granted(left.states)
    assert not is_ended(left.states)
    assert left.nodes == record.nodes
    assert await slurm.completion.complete(record.id, 0)
    over = await agreed(slurm, record.id)
    assert is_ended(over.states)
    assert not torn(over.states)


async def test_one_that_is_torn_before_its_start_never_starts(slurm: Slurm) -> None:
    node = slurm.nodes[0]
    job, other = await submitted(slurm, several(excluded_nodes=slurm.only(node)))
    await slurm.client.cancel(other)
    left = await agreed(slurm, job)
    assert torn(left.states) == {"CANCELLED"}
    assert "PENDING" in left.states
    await slurm.client.cancel(job)
    assert is_ended((await agreed(slurm, job)).states)


async def test_its_exit_code_is_that_of_every_component(slurm: Slurm) -> None:
    record, other = await granted(slurm)
    assert await slurm.completion.complete(record.id, 3 << 8)
    for one in (await agreed(slurm, record.id), await slurm.client.job(other)):
        assert one.states == {"FAILED"}
        assert one.exit_code == 3


async def test_cancelling_the_job_cancels_every_component(slurm: Slurm) -> None:
    record, other = await granted(slurm)
    await slurm.client.cancel(record.id)
    assert (await agreed(slurm, record.id)).states == {"CANCELLED"}
    assert is_ended((await slurm.client.job(other)).states)


async def test_a_waiting_one_is_told_component_by_component_which_nodes_to_avoid(slurm: Slurm) -> None:
    only = slurm.only(slurm.nodes[0])
    job, other = await submitted(slurm, several(excluded_nodes=only))

    async def waits() -> bool:
        return (await slurm.client.job(job)).reason == "Resources"

    await eventually(waits)  # two components never share the one node
    await slurm.client.update_excluded(other, slurm.nodes[:1])
    small, large = (await slurm.client.job(job)).parts
    assert (set(small.excluded), large.excluded) == (set(only), slurm.nodes[:1])

    async def runs() -> bool:
        return is_granted((await slurm.client.job(job)).states)

    await eventually(runs)


async def test_its_places_are_claimed_component_by_component(slurm: Slurm) -> None:
    first, second, third = slurm.nodes[0], slurm.nodes[1], slurm.nodes[2]
    asked = several()
    claim = replace(pinned(asked, (second,)), others=(pinned(asked.others[0], (third, first)),))
    job, _ = await submitted(slurm, claim)

    async def runs() -> bool:
        return is_granted((await slurm.client.job(job)).states)

    await eventually(runs)
    record = await slurm.client.job(job)
    small, large = record.parts
    assert (small.nodes, set(large.nodes)) == ((second,), {first, third})
    assert set(record.required) == {first, second, third}


async def test_a_claim_of_which_one_node_is_drained_does_not_say_that_others_hold_it(slurm: Slurm) -> None:
    first, second = slurm.nodes[0], slurm.nodes[1]
    assert await slurm.client.nodes.drain(second, "slurm-bridge: a test")
    try:
        asked = several()
        one = replace(asked.others[0], tasks=1, nodes_max=1)
        claim = replace(pinned(asked, (first,)), others=(pinned(one, (second,)),))
        job, _ = await submitted(slurm, claim)

        async def told() -> bool:
            return (await slurm.client.job(job)).reason not in ("None", "", "Priority")

        await eventually(told)
        assert (await slurm.client.job(job)).reason.startswith("ReqNodeNotAvail")
    finally:
        await undrain(slurm, second)
