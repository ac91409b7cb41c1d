"""What claims of vanished jobs' places, drains and the ends of failed pods rest on, on the world and on the daemons."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest

from bridge.core.claims import pinned
from bridge.core.ends import OUT_OF_MEMORY
from bridge.core.model import JobId, SlurmNode, is_granted
from bridge.errors import Conflict, Invalid, NotFound, ProtocolError
from tests.contract.slurm_fixture import Slurm, eventually, slurm_fixture, spec

__all__ = ["slurm_fixture"]
BUSY, NOT_AVAILABLE = 2016, 2068


async def undrain(slurm: Slurm, node: SlurmNode) -> None:
    if slurm.world is not None:
        slurm.world.set_node(replace(slurm.world.nodes[node], drained=False, reason=""))
        return
    async with _admin(slurm) as admin:
        (await admin.post(f"node/{node}", json={"state": ["UNDRAIN"]})).raise_for_status()


async def reason(slurm: Slurm, node: SlurmNode) -> str:
    if slurm.world is not None:
        return slurm.world.nodes[node].reason
    async with _admin(slurm) as admin:
        return str((await admin.get(f"node/{node}")).json()["nodes"][0]["reason"])


def _admin(slurm: Slurm) -> httpx.AsyncClient:
    token = slurm.settings.slurmTokenFile.read_text().strip()
    url = f"{slurm.settings.slurmRestApi}/slurm/{slurm.client.version}/"
    return httpx.AsyncClient(base_url=url, headers={"X-SLURM-USER-TOKEN": token})


async def test_a_place_is_claimed_on_exactly_that_node_ahead_of_waiting_jobs(slurm: Slurm) -> None:
    node = slurm.nodes[0]
    full = slurm.id()
    await slurm.client.allocate(full, pinned(spec(gres="gres/gpu=8"), slurm.nodes[1:2]))
    waits = slurm.id()
    await slurm.client.submit(waits, spec(required_nodes=slurm.nodes[1:2]))
    claimed = slurm.id()
    await slurm.client.allocate(claimed, pinned(spec(), (node,)))
    record = await slurm.client.job(claimed)
    assert is_granted(record.states)
    assert record.nodes == (node,)


async def test_a_place_that_others_hold_is_told_from_one_that_nobody_can_have(slurm: Slurm) -> None:
    node = slurm.nodes[0]
    await slurm.client.allocate(slurm.id(), pinned(spec(gres="gres/gpu=8"), (node,)))
    with pytest.raises(Invalid) as busy:
        await slurm.client.allocate(slurm.id(), pinned(spec(), (node,)))
    assert busy.value.code == BUSY
    assert await slurm.client.nodes.drain(node, "slurm-bridge: a test")
    try:
        with pytest.raises(Invalid) as drained:
            await slurm.client.allocate(slurm.id(), pinned(spec(), (node,)))
        assert drained.value.code == NOT_AVAILABLE
    finally:
        await undrain(slurm, node)


async def test_a_drained_node_keeps_the_first_reason(slurm: Slurm) -> None:
    node = slurm.nodes[1]
    assert await slurm.client.nodes.drain(node, "slurm-bridge: first")
    try:
        assert not await slurm.client.nodes.drain(node, "slurm-bridge: second")
        assert await reason(slurm, node) == "slurm-bridge: first"
    finally:
        await undrain(slurm, node)


async def test_a_node_that_slurm_does_not_know_is_not_drained(slurm: Slurm) -> None:
    with pytest.raises(ProtocolError):
        await slurm.client.nodes.drain(SlurmNode("no-such-node"), "slurm-bridge: a test")


async def test_the_id_of_a_job_that_slurm_never_had_is_free_and_that_of_a_live_one_is_not(
    slurm: Slurm,
) -> None:
    job = slurm.id()
    with pytest.raises(NotFound):
        await slurm.client.job(job)
    await slurm.client.allocate(job, pinned(spec(), slurm.nodes[:1]))
    with pytest.raises(Conflict):
        await slurm.client.allocate(job, pinned(spec(), slurm.nodes[:1]))


async def test_the_partitions_say_what_preemption_leaves_how_long_jobs_may_run_and_where(
    slurm: Slurm,
) -> None:
    found = (await slurm.client.partitions())["slurm-bridge"]
    assert (found.grace, found.longest) == (0.0, None)
    assert found.nodes is not None
    assert found.nodes >= set(slurm.nodes)


async def test_a_job_that_ran_out_of_memory_says_so(slurm: Slurm) -> None:
    job = slurm.id()
    await slurm.client.allocate(job, spec())
    await slurm.client.update_comment(job, "container c was OOMKilled")
    await slurm.completion.complete(job, OUT_OF_MEMORY)

    async def ended() -> bool:
        return "OUT_OF_MEMORY" in (await slurm.client.job(JobId(job))).states

    await eventually(ended)


def test_a_claim_asks_for_nothing_that_would_make_it_wait() -> None:
    asked = replace(spec(), begin="now+1hour", dependency="afterok:1", nice=100)
    claimed = pinned(asked, ())
    assert (claimed.begin, claimed.dependency, claimed.nice) == ("", "", None)
