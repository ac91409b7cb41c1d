"""The watcher in trouble: bad answers, daemons that are down, slow, new or rolled back, and our own mistakes."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.core.model import JobId
from tests.contract.slurm_fixture import eventually
from tests.contract.slurm_watched import A, B, C, Watched, watched_fixture
from tests.worlds.slurm_faults import Fault, Kind

__all__ = ["watched_fixture"]


@pytest.mark.parametrize(
    "fault",
    [
        Fault(pattern="jobs/state", kind=Kind.HTML, times=0),
        Fault(pattern="jobs/state", kind=Kind.TRUNCATE, times=0),
        Fault(pattern="jobs/state", kind=Kind.DROP_BEFORE, times=0),
        Fault(pattern="jobs/state", kind=Kind.STATUS, times=0, status=404, content_type="text/plain"),
        Fault(pattern="jobs/state", kind=Kind.STATUS, times=0, status=401, content_type="text/plain"),
        Fault(pattern="jobs/state", kind=Kind.STATUS, times=0, status=200, body=b"{}"),
        Fault(pattern="jobs/state", kind=Kind.STATUS, times=0, status=200, body=b'{"jobs":[],"errors":[{}]}'),
        Fault(pattern="conf", kind=Kind.STATUS, times=0, status=500),
    ],
    ids=lambda fault: f"{fault.pattern} {fault.kind.name} {fault.status} {fault.body.decode()}",
)
async def test_a_bad_answer_changes_nothing_but_the_age_and_is_over_within_two_seconds(
    watched: Watched, fault: Fault
) -> None:
    await watched.submit(A)
    await watched.start()
    await watched.pass_time(1.0)
    watched.told.clear()
    before = dict(watched.watcher.states)
    watched.world.faults.add(replace(fault, hits=0, released=asyncio.Event()))
    if fault.pattern == "conf":
        watched.world.lose(A)  # an absence that can't be checked against the boot time isn't published
    await watched.pass_time(30.0)
    assert watched.watcher.states == before
    assert watched.told == []
    assert watched.watcher.age() > 25.0
    assert not watched.healthy()
    assert watched.watcher.problem
    watched.world.faults.clear()
    await watched.pass_time(2.1)
    assert watched.healthy()
    assert watched.watcher.age() < 2.1


async def test_while_slurmctld_is_down_only_pings_go_out(watched: Watched) -> None:
    await watched.submit(A)
    await watched.start()
    await watched.pass_time(1.0)
    watched.world.down = True
    await watched.pass_time(1.0)
    polls, pings, reads = watched.polls(), watched.world.count("GET ping/"), watched.reads()
    watched.watcher.want(A)
    await watched.pass_time(60.0)
    assert (watched.polls(), watched.reads()) == (polls, reads)
    assert 25 <= watched.world.count("GET ping/") - pings <= 35
    watched.world.down = False
    await watched.pass_time(2.1)
    assert watched.healthy()
    assert watched.reads() > reads  # what was wanted meanwhile


async def test_a_hanging_poll_costs_its_deadline_and_the_loop_goes_on(tmp_path: Path) -> None:
    watched = Watched(tmp_path, patience=1.0)
    await watched.start()
    hang = watched.world.faults.add(Fault(pattern="jobs/state", kind=Kind.HANG, times=0))
    await watched.pass_time(0.2)
    await eventually(lambda: not watched.healthy())
    assert hang.hits == 1
    watched.world.faults.clear()
    await watched.pass_time(2.1)
    assert watched.healthy()
    await watched.stop()


async def test_a_new_boot_is_seen_and_every_live_record_read_again(watched: Watched) -> None:
    for job in (A, B, C):
        await watched.submit(job)
    await watched.client.cancel(C)
    await watched.start()
    await watched.pass_time(1.0)
    reads = watched.reads()
    watched.world.restart()
    await watched.pass_time(2.0)
    assert watched.watcher.boot_time == int(watched.world.booted)
    assert 0 <= watched.watcher.boot_age() <= 2.0
    assert watched.reads() - reads == 2
    await watched.pass_time(100.0)
    assert watched.watcher.boot_age() == pytest.approx(101.0, abs=1.0)


@pytest.mark.parametrize("step", [-86400.0, 86400.0])
async def test_a_clock_of_slurmctld_that_is_set_is_followed_after_a_minute_and_till_then_the_earlier_counts(
    watched: Watched, step: float
) -> None:
    await watched.start()
    await watched.pass_time(5.0)
    watched.world.clock = lambda: watched.time.now() + step
    await watched.pass_time(50.0)
    assert watched.watcher.slurm_now() - watched.time.now() == pytest.approx(min(step, 0.0), abs=1.0)
    await watched.pass_time(15.0)
    assert watched.watcher.slurm_now() - watched.time.now() == pytest.approx(step, abs=1.0)


async def test_the_wall_clock_of_our_machine_counts_only_where_it_is_earlier_and_no_longer_than_a_minute(
    watched: Watched,
) -> None:
    watched.behind = 3600.0
    await watched.start()
    await watched.pass_time(50.0)
    assert watched.watcher.slurm_now() == pytest.approx(watched.time.now() - 3600.0, abs=1.0)
    await watched.pass_time(15.0)
    assert watched.watcher.slurm_now() == pytest.approx(watched.time.now(), abs=1.0)


@pytest.mark.parametrize("version", [45, 42])
async def test_what_a_crash_takes_back_is_never_told_before_the_new_boot(
    tmp_path: Path, version: int
) -> None:
    watched = Watched(tmp_path, version=version)
    watched.world.held = True
    await watched.submit(A)
    await watched.submit(B)
    await watched.start()
    await watched.pass_time(5.0)
    watched.world.start(A)
    await watched.submit(C)
    await watched.client.cancel(B)
    await watched.pass_time(0.3)
    watched.told.clear()
    watched.boot_ages.clear()
    watched.world.crash(1.0)
    await watched.pass_time(0.11)
    assert set(watched.told) == {A, B, C}
    assert all(age < 1.0 for age in watched.boot_ages)
    assert watched.watcher.states == {A: {"PENDING"}, B: {"PENDING"}}
    await watched.stop()


async def test_an_end_that_a_new_boot_must_discount_is_not_told_before_it_even_of_a_job_no_poll_has_seen(
    watched: Watched,
) -> None:
    await watched.start()
    await watched.pass_time(1.01)  # a look at the boot time is a second away
    await watched.submit(A)
    watched.watcher.note(await watched.client.job(A))
    assert A not in watched.watcher.states
    watched.world.restart()
    watched.world.end(A, "NODE_FAIL")
    watched.told.clear()
    watched.boot_ages.clear()
    await watched.pass_time(0.5)
    assert A in watched.told
    assert all(age < 1.0 for age in watched.boot_ages)


async def test_a_job_with_the_same_id_and_another_submit_time_replaces_the_record(watched: Watched) -> None:
    await watched.submit(A)
    await watched.start()
    await watched.pass_time(1.0)
    first = watched.watcher.records[A]
    watched.told.clear()
    watched.world.crash(60.0)
    await watched.pass_time(1.0)
    await watched.submit(A, name="another")
    await watched.pass_time(1.0)
    assert A in watched.told
    second = watched.watcher.records[A]
    assert second.name == "another"
    assert second.submitted > first.submitted


@pytest.mark.parametrize(
    ("cost", "polls_a_second"),
    [
        (0.1, 2.0),  # a fifth of 0.5 s
        (0.5, 0.5),  # the pause is bounded: a view older than two seconds is good for nothing
        (1.5, 1 / 3),  # and still never more than half of the time
    ],
)
async def test_the_poll_slows_down_with_its_own_cost(
    watched: Watched, cost: float, polls_a_second: float
) -> None:
    states = watched.client.states

    async def slow() -> object:
        watched.time.jump(cost)
        return await states()

    watched.client.states = slow  # type: ignore[assignment,method-assign]
    await watched.start()
    assert watched.watcher.age() == pytest.approx(cost)  # counted from the question, not from the answer
    await watched.pass_time(10.0)
    before = watched.watcher.polls
    began = watched.time.now()
    await watched.pass_time(60.0)
    rate = (watched.watcher.polls - before) / (watched.time.now() - began)
    assert rate == pytest.approx(polls_a_second, rel=0.1)


async def test_one_slow_answer_does_not_blind_the_watcher(watched: Watched) -> None:
    await watched.start()
    states = watched.client.states

    async def slow_once() -> object:
        watched.time.jump(8.0)
        watched.client.states = states  # type: ignore[method-assign]
        return await states()

    watched.client.states = slow_once  # type: ignore[assignment,method-assign]
    await watched.pass_time(0.15)
    before = watched.watcher.polls
    await watched.pass_time(1.0)
    assert watched.watcher.polls - before >= 9


async def test_a_follower_polls_at_a_tenth_of_the_rate(watched: Watched) -> None:
    watched.watcher.pace = 10.0
    await watched.start()
    await watched.pass_time(10.0)
    assert watched.polls() == pytest.approx(11, abs=1)


async def test_a_listener_that_fails_stops_neither_the_loop_nor_the_others(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    await watched.start()

    def fail(job: JobId) -> None:
        watched.told.append(job)
        raise RuntimeError("a mistake")

    watched.watcher._changed = fail
    await watched.submit(A)
    await watched.submit(B)
    with caplog.at_level(logging.ERROR, "bridge.slurm"):
        await watched.pass_time(0.3)
    assert sorted(watched.told) == [A, B]
    assert "a listener failed" in caplog.text
    assert watched.healthy()


async def test_an_unexpected_exception_is_logged_and_the_loop_goes_on(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    await watched.start()
    states = watched.client.states

    async def broken() -> object:
        watched.client.states = states  # type: ignore[method-assign]
        raise KeyError("a bug")

    watched.client.states = broken  # type: ignore[assignment,method-assign]
    with caplog.at_level(logging.ERROR, "bridge.slurm"):
        await watched.pass_time(0.15)
    assert not watched.healthy()
    assert "a bug" in caplog.text
    await watched.pass_time(2.0)
    assert watched.healthy()


async def test_after_slurmrestd_was_replaced_the_version_is_negotiated_anew(watched: Watched) -> None:
    await watched.start()
    assert watched.client.version == "v0.0.45"
    watched.world.version = 44
    await watched.pass_time(3.0)
    assert watched.client.version == "v0.0.44"
    assert watched.healthy()
