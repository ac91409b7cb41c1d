"""Every request that the client makes, on the world and on the real daemons."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from bridge.core.model import JobId, SlurmNode, is_ended, is_granted
from bridge.errors import (
    BridgeError,
    Conflict,
    Denied,
    Invalid,
    NotFound,
    ProtocolError,
    UnknownOutcome,
    Unreachable,
)
from bridge.slurm.client import SlurmClient
from tests.contract.slurm_fixture import MARK, Slurm, eventually, slurm_fixture, spec, states_are

__all__ = ["slurm_fixture"]


async def granted(slurm: Slurm, job: JobId) -> bool:
    return is_granted((await slurm.client.job(job)).states)


async def test_slurmctld_answers_and_says_when_it_started(slurm: Slurm) -> None:
    assert await slurm.client.ping()
    boot = await slurm.client.boot_time()
    assert 0 < boot <= time.time()
    assert await slurm.client.boot_time() == boot
    assert slurm.client.version in ("v0.0.45", "v0.0.44", "v0.0.43", "v0.0.42")
    assert slurm.client.release >= (24, 11)


async def test_a_job_gets_the_id_that_we_choose_and_keeps_our_mark(slurm: Slurm) -> None:
    job = slurm.id()
    submitted = await slurm.client.submit(job, spec())
    assert submitted.job_id == job
    await eventually(lambda: granted(slurm, job))
    record = await slurm.client.job(job)
    assert record.id == job
    assert record.mark == MARK
    assert record.name == "web"
    assert record.partition == "slurm-bridge"
    assert record.time_limit == 10
    assert record.user == "slurm"
    assert abs(record.submitted - time.time()) < 60
    assert record.started >= record.submitted
    assert len(record.nodes) == 1
    assert len(record.gres) == 1
    assert record.gres[0].startswith("gpu:h100:1(IDX:")


async def test_the_state_list_shows_the_job_from_submit_to_end(slurm: Slurm) -> None:
    job = slurm.id()
    assert job not in await slurm.client.states()
    await slurm.client.submit(job, spec(priority=0))
    assert (await slurm.client.states())[job] == {"PENDING"}
    await slurm.client.cancel(job)

    async def cancelled() -> bool:
        return (await slurm.client.states())[job] == {"CANCELLED"}

    await eventually(cancelled)


async def test_a_waiting_job_says_why_it_waits(slurm: Slurm) -> None:
    job = slurm.id()
    await slurm.client.submit(job, spec(priority=0))
    record = await slurm.client.job(job)
    assert record.states == {"PENDING"}
    assert record.reason == "JobHeldUser"
    assert record.nodes == ()
    assert record.gres == ()


async def test_the_same_id_twice_is_a_conflict_and_the_first_job_lives(slurm: Slurm) -> None:
    job = slurm.id()
    await slurm.client.submit(job, spec(priority=0))
    with pytest.raises(Conflict) as refusal:
        await slurm.client.submit(job, spec())
    assert refusal.value.code == 2011
    assert (await slurm.client.job(job)).states == {"PENDING"}


async def test_an_ended_job_still_holds_its_id(slurm: Slurm) -> None:
    job = slurm.id()
    await slurm.client.submit(job, spec(priority=0))
    await slurm.client.cancel(job)
    with pytest.raises(Conflict):
        await slurm.client.submit(job, spec())


async def test_of_two_submitters_at_once_one_wins(slurm: Slurm) -> None:
    job = slurm.id()
    other = slurm.connect()
    results = await asyncio.gather(
        slurm.client.submit(job, spec()), other.submit(job, spec()), return_exceptions=True
    )
    await other.close()
    assert sorted(type(r).__name__ for r in results) == ["Conflict", "Submitted"]


async def test_a_lost_reply_is_an_unknown_outcome_and_the_retry_makes_no_second_job(slurm: Slurm) -> None:
    job = slurm.id()
    async with slurm.losing_the_reply() as client:
        with pytest.raises(UnknownOutcome):
            await client.submit(job, spec(priority=0))
        await eventually(lambda: states_are(slurm, job, "PENDING"))
        with pytest.raises(Conflict) as refusal:
            await client.submit(job, spec(priority=0))
    assert refusal.value.code == 2011
    assert (await slurm.client.job(job)).mark == MARK
    ours = [j for j in await slurm.client.states() if slurm.base <= j < slurm.base + 256]
    assert ours == [job]


async def test_an_immediate_allocation_runs_when_the_call_returns(slurm: Slurm) -> None:
    job = slurm.id()
    await slurm.client.allocate(job, spec())
    record = await slurm.client.job(job)
    assert is_granted(record.states)
    assert len(record.nodes) == 1


async def test_an_allocation_without_room_is_refused_and_its_failed_record_keeps_the_id(slurm: Slurm) -> None:
    only = slurm.only(slurm.nodes[-1])
    first, second = slurm.id(), slurm.id()
    await slurm.client.allocate(first, spec(exclusive=True, gres="", excluded_nodes=only))
    with pytest.raises(Invalid) as refusal:
        await slurm.client.allocate(second, spec(excluded_nodes=only))
    assert refusal.value.code == 2016
    record = await slurm.client.job(second)
    assert record.states == {"FAILED"}
    assert record.mark == MARK
    with pytest.raises(Conflict):
        await slurm.client.submit(second, spec())


async def test_a_whole_node_comes_with_all_its_devices(slurm: Slurm) -> None:
    job = slurm.id()
    await slurm.client.submit(job, spec(exclusive=True))
    await eventually(lambda: granted(slurm, job))
    assert (await slurm.client.job(job)).gres == ("gpu:h100:8(IDX:0-7)",)


async def test_two_jobs_on_one_node_have_different_devices(slurm: Slurm) -> None:
    only = slurm.only(slurm.nodes[0])
    jobs = [slurm.id(), slurm.id()]
    for job in jobs:
        await slurm.client.allocate(job, spec(excluded_nodes=only))
    records = [await slurm.client.job(job) for job in jobs]
    assert [r.nodes for r in records] == [(slurm.nodes[0],)] * 2
    assert records[0].gres != records[1].gres


async def test_a_refused_submit_leaves_a_failed_record_without_a_node_that_keeps_its_id(slurm: Slurm) -> None:
    job = slurm.id()
    with pytest.raises(Invalid) as caught:
        await slurm.client.submit(job, spec(gres="gres/gpu=99"))
    assert caught.value.code == 2014
    left = await slurm.client.job(job)
    assert (left.states, left.nodes) == (frozenset({"FAILED"}), ())
    with pytest.raises(Conflict):
        await slurm.client.submit(job, spec())


async def test_the_exclusions_of_a_waiting_job_change_and_go(slurm: Slurm) -> None:
    job = slurm.id()
    first, second = (SlurmNode(name) for name in slurm.nodes[:2])
    await slurm.client.submit(job, spec(excluded_nodes=(first,), priority=0))
    assert (await slurm.client.job(job)).excluded == (first,)
    await slurm.client.update_excluded(job, (first, second))
    assert set((await slurm.client.job(job)).excluded) == {first, second}
    await slurm.client.update_excluded(job, ())
    assert (await slurm.client.job(job)).excluded == ()


async def test_a_gang_gets_two_nodes_with_devices_on_each(slurm: Slurm) -> None:
    job = slurm.id()
    await slurm.client.submit(job, spec(nodes_min=2, nodes_max=2, tasks=2, tasks_per_node=1))
    await eventually(lambda: granted(slurm, job))
    record = await slurm.client.job(job)
    assert len(record.nodes) == len(record.gres) == 2
    assert len(set(record.nodes)) == 2


async def test_ending_a_running_job_frees_its_devices(slurm: Slurm) -> None:
    job = slurm.id()
    await slurm.client.allocate(job, spec())
    await slurm.client.cancel(job, "the pod went away")
    await eventually(lambda: states_are(slurm, job, "CANCELLED"))
    record = await slurm.client.job(job)
    assert is_ended(record.states)
    assert record.ended > 0
    assert record.mark == MARK


async def test_what_is_known_of_the_containers_is_written_before_the_end(slurm: Slurm) -> None:
    job, over = slurm.id(), replace(MARK, over=True)
    await slurm.client.allocate(job, spec())
    await slurm.client.cancel(job, "the pod went away", over)
    await eventually(lambda: states_are(slurm, job, "CANCELLED"))
    assert (await slurm.client.job(job)).mark == over


async def test_ending_what_has_ended_or_never_was_is_done(slurm: Slurm) -> None:
    job = slurm.id()
    await slurm.client.submit(job, spec(priority=0))
    await slurm.client.cancel(job)
    await slurm.client.cancel(job)
    await slurm.client.cancel(job, "twice, with a comment")
    await slurm.client.cancel(slurm.id())


async def test_a_comment_leaves_the_mark_alone(slurm: Slurm) -> None:
    job = slurm.id()
    await slurm.client.submit(job, spec(priority=0))
    await slurm.client.update_comment(job, "x" * 5000)
    assert (await slurm.client.job(job)).mark == MARK
    with pytest.raises(NotFound):
        await slurm.client.update_comment(slurm.id(), "nobody")


@pytest.mark.parametrize(
    ("wait_status", "state", "code", "signal"),
    [(0, "COMPLETED", 0, 0), (3 << 8, "FAILED", 3, 0), (9, "FAILED", 0, 9)],
)
async def test_a_job_ends_with_its_pods_exit_code(
    slurm: Slurm, wait_status: int, state: str, code: int, signal: int
) -> None:
    job = slurm.id()
    await slurm.client.allocate(job, spec())
    await slurm.completion.complete(job, wait_status)
    await eventually(lambda: states_are(slurm, job, state))
    record = await slurm.client.job(job)
    assert (record.exit_code, record.exit_signal) == (code, signal)


async def test_completing_what_has_ended_or_never_was_is_done(slurm: Slurm) -> None:
    job = slurm.id()
    await slurm.client.allocate(job, spec())
    await slurm.completion.complete(job, 0)
    await slurm.completion.complete(job, 3 << 8)
    assert (await slurm.client.job(job)).states - {"COMPLETING"} == {"COMPLETED"}
    await slurm.completion.complete(slurm.id(), 0)


async def test_an_unknown_job_is_not_found(slurm: Slurm) -> None:
    with pytest.raises(NotFound) as refusal:
        await slurm.client.job(slurm.id())
    assert (refusal.value.status, refusal.value.code) == (404, 2017)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"partition": "nowhere"}, 2000),
        ({"cpus_per_task": 100}, 2014),
        ({"gres": "gres/gpu=99"}, 2014),
        ({"temporary_disk_mib": 1}, 2014),
        ({"gres": "gres/banana=1"}, 2072),
        ({"excluded_nodes": ("nosuchnode",)}, 2018),
        ({"user": "nosuchuser"}, 2166),
    ],
)
async def test_what_slurm_can_never_take_is_invalid_with_slurms_number(
    slurm: Slurm, change: dict[str, object], code: int
) -> None:
    with pytest.raises(Invalid) as refusal:
        await slurm.client.submit(slurm.id(), spec(**change))
    assert refusal.value.code == code
    assert len(str(refusal.value)) > len("POST job/submit: 422: ")  # Slurm's own sentence is in it


async def test_more_than_the_partition_has_now_waits_and_the_warning_says_so(slurm: Slurm) -> None:
    if slurm.client.version == "v0.0.42":
        pytest.skip("Slurm 24.11 refuses it")
    job = slurm.id()
    submitted = await slurm.client.submit(job, spec(cpus_per_task=5000))
    assert "Requested partition configuration not available now" in submitted.warnings
    assert (await slurm.client.job(job)).states == {"PENDING"}


async def test_a_200_without_a_job_is_a_refusal_that_says_why(slurm: Slurm) -> None:
    job = slurm.id()
    with pytest.raises(Invalid) as refusal:
        await slurm.client.submit(job, spec(cpus_per_task="many"))
    assert refusal.value.code == 0
    assert "cpus_per_task" in str(refusal.value) or "many" in str(refusal.value)
    with pytest.raises(NotFound):
        await slurm.client.job(job)


async def test_a_group_named_for_the_job_does_not_hurt(slurm: Slurm) -> None:
    job = slurm.id()
    await slurm.client.submit(job, spec(priority=0, user="alice", group="alice"))
    assert (await slurm.client.job(job)).user == "alice"
    assert await slurm.client.ping()


async def test_an_unserved_route_is_a_protocol_error_and_never_not_found(slurm: Slurm) -> None:
    slurm.client._version = 99
    for call in (slurm.client.job(slurm.id()), slurm.client.states()):
        with pytest.raises(ProtocolError) as refusal:
            await call
        assert refusal.value.status == 404
    await slurm.client.connect()
    await slurm.client.states()


@pytest.mark.parametrize("token", ["garbage", "eyJhbGciOiJIUzI1NiJ9.eyJzdW4iOiJzbHVybSJ9.AAAA"])
async def test_a_bad_token_is_denied_for_reads_and_writes(
    slurm: Slurm, token: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("bad") / "token"
    file.write_text(token)
    client = slurm.connect(slurmTokenFile=file)
    job = slurm.id()
    await refused(client, job)
    await client.close()
    with pytest.raises(NotFound):
        await slurm.client.job(job)


async def refused(client: SlurmClient, job: JobId) -> None:
    for call in (client.states(), client.job(job), client.submit(job, spec())):
        with pytest.raises(Denied) as refusal:
            await call
        assert refusal.value.status in (401, 511, 500)


async def test_nobody_there_is_unreachable(slurm: Slurm) -> None:
    nobody = SlurmClient(slurm.settings.model_copy(update={"slurmRestApi": "http://127.0.0.1:9"}))
    with pytest.raises(Unreachable):
        await nobody.states()
    with pytest.raises(Unreachable):
        await nobody.submit(slurm.id(), spec())
    await nobody.close()


async def test_every_request_is_observed_under_its_route(slurm: Slurm) -> None:
    seen: list[tuple[str, int]] = []
    client = slurm.connect()
    client._observe = lambda route, status, seconds, size: seen.append((route, status))
    job = slurm.id()
    await client.submit(job, spec(priority=0))
    with pytest.raises(BridgeError):
        await client.submit(job, spec(priority=0))
    await client.job(job)
    await client.close()
    refusal = 500 if client.version == "v0.0.42" else 422
    assert seen[0] == ("GET /openapi/v3", 200)
    assert seen[1:] == [("POST job/submit", 200), ("POST job/submit", refusal), ("GET job/{id}", 200)]
