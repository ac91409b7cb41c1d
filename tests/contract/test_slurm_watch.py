"""The watcher's news: what is polled, read and told, and how often."""

from __future__ import annotations

import asyncio
import math

import pytest

from bridge.core.model import JobId, JobRecord, is_granted
from bridge.slurm.watch import CATCH_UP
from tests.contract.slurm_watched import IDS, A, B, Watched, watched_fixture
from tests.worlds.slurm_faults import Fault, Kind
from tests.worlds.slurm_jobs import WorldNode

__all__ = ["watched_fixture"]


async def test_before_the_first_poll_everything_is_unknown(watched: Watched) -> None:
    watcher = watched.watcher
    assert (watcher.age(), watcher.boot_age(), watcher.polls, watcher.healthy) == (
        math.inf,
        math.inf,
        0,
        False,
    )
    assert watcher.problem
    assert watcher.poll_started(1) == math.inf


async def test_the_first_poll_tells_of_all_jobs_of_ours_and_never_reads_native_ones(watched: Watched) -> None:
    native = watched.world.native()
    await watched.submit(A)
    await watched.submit(B, priority=0)
    heard = watched.told
    await watched.start()
    watched.told = heard
    await watched.pass_time(0.5)
    assert set(watched.watcher.states) == {A, B}
    assert set(watched.watcher.records) == {A, B}
    assert native.id not in watched.watcher.states
    assert watched.healthy()
    assert watched.watcher.problem == ""
    assert watched.watcher.boot_time == int(watched.world.booted)
    assert watched.watcher.boot_age() == math.inf


async def test_after_a_start_jobs_that_ended_before_are_read_by_turns_with_live_ones(
    watched: Watched,
) -> None:
    live, ended = ([JobId(IDS.first + first + i) for i in range(20)] for first in (0, 20))
    for job in (*live, *ended):
        await watched.submit(job)
    for job in ended:
        watched.world.end(job, "CANCELLED")
    await watched.start()
    assert watched.watcher.catching_up()
    await watched.pass_time(0.2)
    assert watched.watcher.records.keys() & set(live)
    assert watched.watcher.records.keys() & set(ended)
    await watched.pass_time(1.0)
    assert watched.watcher.records.keys() == {*live, *ended}
    assert not watched.watcher.catching_up()


async def test_for_jobs_that_cannot_be_read_after_a_start_nobody_waits_for_long(watched: Watched) -> None:
    await watched.submit(A)
    watched.world.faults.add(Fault(pattern="GET job/{id}", kind=Kind.STATUS, times=0))
    await watched.start()
    await watched.pass_time(CATCH_UP - 1.0)
    assert watched.watcher.catching_up()
    await watched.pass_time(2.0)
    assert not watched.watcher.catching_up()
    await watched.submit(B)
    await watched.pass_time(0.2)
    assert not watched.watcher.catching_up()


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("asked", [False, True])
async def test_a_job_that_slurm_loses_is_missed_also_before_any_poll_has_shown_it_and_read_anew_when_it_is_back(
    watched: Watched, asked: bool, listed: bool
) -> None:
    """Another leader may have claimed its place, under the same id and with other devices."""
    watched.world.nodes = {"k0": WorldNode("k0", gpus=8)}
    await watched.start()
    await watched.submit(A)
    watched.watcher.want(A)
    await watched.pass_time(0.01)
    first = watched.watcher.records[A]
    assert is_granted(first.states)
    if listed:
        await watched.pass_time(2.0)
    watched.told.clear()
    watched.world.lose(A)
    watched.world.native(gpus=2)
    await watched.pass_time(1.0)
    assert A in watched.told
    assert watched.watcher.newest(A) is None
    if asked:
        watched.watcher.want(A)
        await watched.pass_time(0.1)
        assert watched.watcher.denied([A])
    await watched.submit(A)
    await watched.pass_time(2.0)
    assert watched.watcher.records[A].gres != first.gres
    assert watched.watcher.newest(A) == first.states


async def test_a_quiet_cluster_is_polled_and_nothing_else(watched: Watched) -> None:
    for i in range(20):
        await watched.submit(JobId(IDS.first + i))
    await watched.start()
    await watched.pass_time(5.0)
    reads, boots = watched.reads(), watched.world.count("GET conf")
    assert reads == 20
    watched.told.clear()
    polls = watched.polls()
    await watched.pass_time(10.0)
    assert watched.reads() == reads
    assert watched.told == []
    assert watched.polls() - polls == pytest.approx(100, abs=2)
    assert watched.world.count("GET conf") - boots == pytest.approx(10, abs=2)


async def test_a_grant_is_read_and_told_within_a_poll(watched: Watched) -> None:
    watched.world.held = True
    await watched.submit(A)
    await watched.start()
    await watched.pass_time(3.0)
    watched.told.clear()
    watched.world.start(A, "k7")
    reads = watched.reads()
    await watched.pass_time(0.11)
    assert set(watched.told) == {A}
    assert is_granted(watched.watcher.states[A])
    assert watched.watcher.records[A].nodes == ("k7",)
    assert watched.reads() == reads + 1
    told = list(watched.told)
    await watched.pass_time(0.5)
    assert watched.told == told


@pytest.mark.parametrize(
    "states",
    [("SUSPENDED",), ("RUNNING", "CONFIGURING"), ("CANCELLED", "COMPLETING"), ("PREEMPTED",), ("NODE_FAIL",)],
)
async def test_every_change_of_state_is_told_with_its_record(
    watched: Watched, states: tuple[str, ...]
) -> None:
    await watched.submit(A)
    await watched.start()
    await watched.pass_time(1.0)
    watched.told.clear()
    watched.world.set_states(A, *states)
    await watched.pass_time(0.2)
    assert watched.told == [A]
    assert watched.watcher.states[A] == watched.watcher.records[A].states == set(states)


async def test_a_noted_record_saves_the_read_but_the_poll_still_tells(watched: Watched) -> None:
    await watched.start()
    await watched.submit(A)
    watched.watcher.note(await watched.client.job(A))
    assert A in watched.watcher.records
    reads = watched.reads()
    await watched.pass_time(0.2)
    assert watched.reads() == reads
    assert watched.told == [A]
    assert A in watched.watcher.states


async def test_a_noted_record_with_another_state_is_read(watched: Watched) -> None:
    watched.world.held = True
    await watched.submit(A)
    record = await watched.client.job(A)
    watched.world.start(A)
    watched.watcher.note(record)
    await watched.start()
    await watched.pass_time(0.2)
    assert is_granted(watched.watcher.records[A].states)


async def test_a_vanished_job_is_told_and_its_record_stays_until_forgotten(watched: Watched) -> None:
    await watched.submit(A)
    await watched.start()
    await watched.pass_time(0.5)
    watched.told.clear()
    watched.world.lose(A)
    await watched.pass_time(0.2)
    assert watched.told == [A]
    assert A not in watched.watcher.states
    assert A in watched.watcher.records
    watched.watcher.forget(A)
    assert A not in watched.watcher.records


async def test_records_of_vanished_jobs_do_not_pile_up(watched: Watched) -> None:
    watched.settings = watched.settings.model_copy(update={"pollInterval": 1.0})
    await watched.submit(A)
    await watched.start()
    await watched.pass_time(0.5)
    watched.watcher.pace = 100.0  # the test needs no fine polls
    watched.world.lose(A)
    await watched.pass_time(899.0)
    assert A in watched.watcher.records
    await watched.pass_time(30.0)
    assert A not in watched.watcher.records


async def test_an_empty_list_is_believed_and_every_job_told(watched: Watched) -> None:
    await watched.submit(A)
    await watched.submit(B)
    await watched.start()
    await watched.pass_time(0.5)
    watched.told.clear()
    boots = watched.world.count("GET conf")
    watched.world.lose(A)
    watched.world.lose(B)
    await watched.pass_time(0.11)
    assert sorted(watched.told) == [A, B]
    assert watched.watcher.states == {}
    assert watched.world.count("GET conf") > boots  # and only after a look at the boot time


async def test_unknown_jobs_are_read_at_fifty_a_second_and_wanted_ones_first(watched: Watched) -> None:
    watched.world.nodes["k0"] = WorldNode("k0", cpus=1000, gpus=1000)
    for i in range(300):
        await watched.submit(JobId(IDS.first + i))
    await watched.start()
    wanted = JobId(IDS.first + 299)
    watched.watcher.want(wanted)
    watched.watcher.want(wanted)
    await watched.pass_time(0.0)
    assert wanted in watched.watcher.records
    await watched.pass_time(2.0)
    assert 90 <= watched.reads() <= 110
    await watched.pass_time(6.0)
    assert len(watched.watcher.records) == 300


async def test_waiting_jobs_are_looked_at_in_turn_five_times_a_second_in_all(watched: Watched) -> None:
    watched.world.held = True
    for i in range(20):
        await watched.submit(JobId(IDS.first + i))
    await watched.start()
    await watched.pass_time(4.0)
    reads = watched.reads()
    for i in range(20):
        watched.world.set_states(JobId(IDS.first + i), "PENDING", reason="Resources")
    watched.told.clear()
    await watched.pass_time(4.2)
    assert 19 <= watched.reads() - reads <= 22
    assert {r.reason for r in watched.watcher.records.values()} == {"Resources"}
    assert sorted(watched.told) == [JobId(IDS.first + i) for i in range(20)]


async def test_a_read_that_fails_is_tried_again(watched: Watched) -> None:
    watched.world.held = True
    await watched.submit(A)
    await watched.start()
    await watched.pass_time(2.0)
    watched.told.clear()
    watched.world.faults.add(Fault(pattern="GET job/{id}", kind=Kind.HTML, times=2))
    watched.world.start(A)
    await watched.pass_time(0.3)
    assert watched.told == []
    assert watched.healthy()
    await watched.pass_time(3.0)
    assert watched.told == [A]
    assert is_granted(watched.watcher.records[A].states)


async def test_a_change_during_a_read_is_read_once_more(watched: Watched) -> None:
    watched.world.held = True
    await watched.submit(A)
    await watched.start()
    await watched.pass_time(2.0)
    late = watched.world.faults.add(
        Fault(pattern="GET job/{id}", kind=Kind.STATUS, status=200, body=b"", times=1)
    )
    late.body = (
        b'{"jobs":[{"job_id":%d,"job_state":["RUNNING","CONFIGURING"],"nodes":"k1"}],"errors":[],"warnings":[]}'
        % A
    )
    watched.world.start(A)
    watched.world.set_states(A, "RUNNING", "CONFIGURING")
    await watched.pass_time(0.11)
    watched.world.set_states(A, "RUNNING")
    await watched.pass_time(0.3)
    assert watched.watcher.records[A].states == {"RUNNING"}


async def test_the_age_counts_from_the_question_and_polls_are_numbered(watched: Watched) -> None:
    await watched.start()
    assert watched.watcher.polls == 1
    assert watched.watcher.poll_started(1) == watched.time.now()
    assert watched.watcher.age() == 0.0
    assert watched.watcher.poll_started(2) == math.inf
    await watched.pass_time(0.15)
    assert watched.watcher.polls == 2
    assert watched.watcher.poll_started(2) == pytest.approx(1000.1)
    assert watched.watcher.age() == pytest.approx(0.05)
    await watched.pass_time(60.0)
    assert watched.watcher.poll_started(1) == -math.inf


async def test_a_followed_job_is_watched_like_ours_and_no_other_native_one_is(watched: Watched) -> None:
    await watched.start()
    followed, other = watched.world.native(), watched.world.native()
    watched.watcher.follow(followed.id)
    watched.watcher.follow(followed.id)
    await watched.pass_time(0.2)
    assert set(watched.watcher.states) == set(watched.watcher.records) == {followed.id}
    assert watched.told == [followed.id]
    watched.world.end(followed.id, "CANCELLED")
    watched.world.end(other.id, "CANCELLED")
    await watched.pass_time(0.2)
    assert watched.told == [followed.id] * 2
    assert watched.watcher.records[followed.id].states == {"CANCELLED"}


async def test_jobs_that_are_followed_before_the_first_poll_are_told_with_it(watched: Watched) -> None:
    native = watched.world.native()
    watched.watcher.follow(native.id)
    await watched.start()
    await watched.pass_time(0.2)
    assert watched.watcher.records[native.id].states == {"RUNNING"}


async def test_nothing_is_said_about_a_followed_job_before_a_poll_has_looked_for_it(watched: Watched) -> None:
    native = watched.world.native()
    await watched.start()
    await watched.pass_time(0.05)
    assert watched.watcher.covers(A)
    assert not watched.watcher.covers(native.id)
    watched.watcher.follow(native.id)
    assert not watched.watcher.covers(native.id)
    await watched.pass_time(0.1)
    assert watched.watcher.covers(native.id)
    watched.watcher.unfollow(native.id)
    assert not watched.watcher.covers(native.id)


async def test_a_job_that_is_followed_again_within_one_poll_is_read_again(watched: Watched) -> None:
    """Anybody who may edit a pod makes it name a job, another, and the first again."""
    native = watched.world.native()
    watched.watcher.follow(native.id)
    await watched.start()
    await watched.pass_time(0.2)
    watched.watcher.unfollow(native.id)
    watched.watcher.follow(native.id)
    await watched.pass_time(1.0)
    assert native.id in watched.watcher.records


async def test_a_job_that_is_no_longer_followed_is_no_news(watched: Watched) -> None:
    native = watched.world.native()
    watched.watcher.follow(native.id)
    await watched.start()
    await watched.pass_time(0.2)
    watched.told.clear()
    boots = watched.world.count("GET conf")
    watched.watcher.unfollow(native.id)
    watched.watcher.unfollow(A)
    assert native.id not in watched.watcher.states
    assert native.id not in watched.watcher.records
    await watched.pass_time(0.3)
    watched.world.end(native.id, "CANCELLED")
    await watched.pass_time(0.3)
    assert watched.told == []
    assert watched.world.count("GET conf") == boots  # nor does it look as if Slurm had lost it
    watched.watcher.follow(native.id)
    await watched.pass_time(0.2)
    assert watched.watcher.records[native.id].states == {"CANCELLED"}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("taken", ["noted", "forgotten"])
async def test_a_read_that_is_no_longer_needed_leaves_nobody_spinning(watched: Watched, taken: str) -> None:
    """The reader wakes to an empty queue: it must wait again, and the loop must go on turning."""
    reads = watched.watcher._reads
    tasks = [asyncio.ensure_future(task) for task in reads.tasks()]
    try:
        reads.resume()
        await asyncio.sleep(0)
        reads.polled({A: frozenset({"RUNNING"})}, (), first=False, booted=False)
        if taken == "noted":
            reads.note(JobRecord(id=A, states=frozenset({"RUNNING"})))
        else:
            reads.forget(A)
        for _ in range(20):
            await asyncio.sleep(0)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
