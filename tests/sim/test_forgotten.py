"""Jobs that ended while no bridge ran, and that slurmctld has forgotten since: Slurm's accounting remembers them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bridge.core.model import JobId
from bridge.names import JOB_CONDITION
from bridge.slurm.archive import PATIENCE
from bridge.watched import SEEN_TO
from tests.sim.simulation import Simulation
from tests.sim.test_breaker_open import ELECTED
from tests.sim.test_story import play, running
from tests.sim.test_vanished import alone, condition, forget
from tests.worlds.slurm_faults import Fault, Kind

HOUR = 3600.0
MINUTE = 60.0


async def away(sim: Simulation, *ends: tuple[JobId, str]) -> None:
    """An hour without a bridge, and what Slurm did to jobs in its second minute. The witness minds: nobody mends it."""
    await sim.crash()
    await asyncio.sleep(MINUTE)
    for job, state in ends:
        sim.slurm.end(job, state)
    await asyncio.sleep(HOUR - MINUTE)
    sim.slurm.tick()
    assert not {job for job, _ in ends} & sim.slurm.jobs.keys()


@pytest.mark.parametrize(
    "state", ["CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "DEADLINE"]
)
def test_what_slurm_ended_during_an_hour_without_a_bridge_is_ended_right(tmp_path: Path, state: str) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.books.open = True
        sim.start()
        await alone(sim)
        await away(sim, (sim.job_of("p"), state))
        submits = sim.slurm.count("POST job/allocate")
        sim.start()
        await asyncio.sleep(3.0)
        assert condition(sim, "p", "DisruptionTarget")["message"].endswith("slurmctld has forgotten it since")
        await asyncio.sleep(30.0)
        assert sim.pod("p") is None
        assert sim.slurm.count("POST job/allocate") == submits, "no place is asked for"
        assert sim.slurm.count("GET slurmdb/job/{id}") == 1

    play(tmp_path, scene, dying=1.0)


@pytest.mark.parametrize(("state", "goes"), [("CANCELLED", True), ("DEADLINE", True), ("NODE_FAIL", False)])
def test_who_waited_goes_with_its_job_if_a_person_or_its_deadline_ended_that_meanwhile(
    tmp_path: Path, state: str, *, goes: bool
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.books.open = True
        sim.slurm.native(gpus=8)
        sim.start()
        uid = sim.create("p", gpus=8)
        await sim.until(lambda: bool(sim.jobs_of(uid)), 10.0)
        await sim.settle(30.0)
        (waits,) = sim.jobs_of(uid)
        await away(sim, (waits.id, state))
        sim.start()
        await sim.settle(30.0)
        assert (sim.pod("p") is None) is goes
        assert bool(sim.jobs_of(uid)) is not goes

    play(tmp_path, scene, nodes=1)


@pytest.mark.parametrize("says", ["absent", "tidied", "runs"])
def test_where_accounting_tells_no_end_the_place_is_claimed_as_ever(tmp_path: Path, says: str) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.books.open = True
        sim.start()
        _, node = await alone(sim)
        job = sim.job_of("p")
        row = next(iter(sim.slurm.books.of(job)))
        await away(sim, (job, "COMPLETED" if says == "tidied" else "CANCELLED"))
        if says == "absent":
            sim.slurm.books.rows.clear()
        if says == "runs":
            sim.slurm.books.note(row)
        sim.start()
        await asyncio.sleep(10.0)
        assert running(sim, "p")
        assert (sim.slurm.jobs[job].nodes, "RUNNING" in sim.slurm.jobs[job].states) == ((node,), True)
        await asyncio.sleep(600.0)
        assert sim.slurm.count("GET slurmdb/job/{id}") == (2 if says == "runs" else 1)

    play(tmp_path, scene)


@pytest.mark.parametrize("fails", ["refuses", "hangs"])
def test_while_accounting_does_not_answer_a_pod_waits_says_so_and_claims_its_place_in_the_end(
    tmp_path: Path, fails: str
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.books.open = True
        sim.start()
        _, node = await alone(sim)
        job = sim.job_of("p")
        await away(sim, (job, "CANCELLED"))
        sim.slurm.books.answers = fails != "refuses"
        if fails == "hangs":
            sim.slurm.faults.add(Fault(pattern="slurmdb/job", kind=Kind.HANG, times=0))
        sim.start()
        await asyncio.sleep(PATIENCE - 10.0)
        assert running(sim, "p")
        assert job not in sim.slurm.jobs
        assert "accounting has not answered" in condition(sim, "p", JOB_CONDITION)["message"]
        assert [note for note in sim.notes() if note.startswith("accounting: 1 ")]
        await asyncio.sleep(60.0)
        assert running(sim, "p")
        assert (sim.slurm.jobs[job].nodes, "RUNNING" in sim.slurm.jobs[job].states) == ((node,), True)
        assert not [note for note in sim.notes() if note.startswith("accounting")]
        asked = sim.slurm.count("GET slurmdb/job/{id}")
        await asyncio.sleep(600.0)
        assert sim.slurm.count("GET slurmdb/job/{id}") == asked < 40

    play(tmp_path, scene)


async def slowly(sim: Simulation) -> None:
    """Accounting takes up to four seconds for each answer."""
    while True:
        fault = sim.slurm.faults.add(Fault(pattern="slurmdb/job", kind=Kind.HANG))
        await asyncio.sleep(4.0)
        sim.slurm.faults.remove(fault)


@pytest.mark.parametrize("trouble", ["an error", "silence", "slow", "a minute away"])
def test_trouble_with_accounting_brings_no_job_back_to_life_that_a_person_cancelled(
    tmp_path: Path, trouble: str
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.books.open = True
        sim.start()
        names = [f"p{i}" for i in range(20)]
        for name in names:
            sim.create(name)
        await sim.until(lambda: all(running(sim, name) for name in names), 30.0)
        await away(sim, *((sim.job_of(name), "CANCELLED") for name in names))
        submits = sim.slurm.count("POST job/allocate")
        if trouble == "an error":
            sim.slurm.faults.add(Fault(pattern="slurmdb/job", kind=Kind.STATUS, status=502, times=1))
        if trouble == "silence":
            sim.slurm.faults.add(Fault(pattern="slurmdb/job", kind=Kind.HANG, times=1))
        slow = asyncio.ensure_future(slowly(sim)) if trouble == "slow" else None
        sim.slurm.books.answers = trouble != "a minute away"
        sim.start()
        await asyncio.sleep(60.0)
        sim.slurm.books.answers = True
        await asyncio.sleep(120.0)
        if slow is not None:
            slow.cancel()
        assert not sim.pods()
        assert sim.slurm.count("POST job/allocate") == submits

    play(tmp_path, scene)


def test_an_end_that_slurmctld_tells_the_accounting_late_counts_all_the_same(tmp_path: Path) -> None:
    """slurmdbd was away, and is back before slurmctld has sent it what happened."""

    async def scene(sim: Simulation) -> None:
        sim.slurm.books.open = True
        sim.start()
        await alone(sim)
        job = sim.job_of("p")
        sim.slurm.books.late = True
        await away(sim, (job, "CANCELLED"))
        sim.start()
        await asyncio.sleep(30.0)
        assert running(sim, "p")
        assert job not in sim.slurm.jobs, "its place is not asked for"
        sim.slurm.books.catch_up()
        await asyncio.sleep(60.0)
        assert sim.pod("p") is None

    play(tmp_path, scene)


def test_a_wiped_slurmctld_costs_nobody_anything_whatever_the_books_say_of_live_jobs(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.books.open = True
        sim.start()
        await alone(sim)
        job = sim.job_of("p")
        forget(sim, job)
        await sim.until(lambda: job in sim.slurm.jobs, 5.0)
        assert sim.slurm.count("GET slurmdb/job/{id}") == 0, "it vanished before our eyes"
        await sim.crash()
        forget(sim, job)
        sim.start()
        await sim.until(lambda: job in sim.slurm.jobs, 10.0)
        assert sim.slurm.count("GET slurmdb/job/{id}") == 2
        await sim.settle(400.0)
        assert running(sim, "p")

    play(tmp_path, scene)


def test_without_a_failure_nobody_is_asked(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.books.open = True
        sim.start()
        await alone(sim)
        sim.slurm.end(sim.job_of("p"), "CANCELLED")
        await sim.until(lambda: sim.pod("p") is None, 10.0)
        await sim.settle(400.0)
        assert sim.slurm.count("GET slurmdb/job/{id}") == 0

    play(tmp_path, scene)


@pytest.mark.parametrize("restarts", [False, True], ids=["", "and the bridge restarts"])
def test_an_end_that_a_crash_undid_stays_on_the_books_and_ends_nobody(tmp_path: Path, restarts: bool) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.books.open = True
        sim.start()
        await alone(sim)
        job = sim.job_of("p")
        await sim.settle(60.0)
        await sim.crash()
        sim.slurm.end(job, "CANCELLED")
        await sim.settle(1.0)
        sim.slurm.crash(5.0)
        assert "RUNNING" in sim.slurm.jobs[job].states
        assert "CANCELLED" in sim.slurm.books.of(job)[0].states
        sim.start()
        await sim.settle(SEEN_TO + MINUTE)
        assert running(sim, "p")
        if restarts:
            await sim.crash()
        forget(sim, job)
        if restarts:
            sim.start()
        await sim.until(lambda: job in sim.slurm.jobs, 10.0)
        await sim.settle(400.0)
        assert running(sim, "p")

    play(tmp_path, scene, **ELECTED)


def test_many_that_a_person_cancelled_meanwhile_all_go_each_asked_for_once(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.books.open = True
        sim.start()
        names = [f"p{i}" for i in range(20)]
        for name in names:
            sim.create(name)
        await sim.until(lambda: all(running(sim, name) for name in names), 30.0)
        jobs = [sim.job_of(name) for name in names]
        await away(sim, *((job, "CANCELLED") for job in jobs))
        submits = sim.slurm.count("POST job/allocate")
        sim.start()
        await asyncio.sleep(60.0)
        assert not sim.pods()
        assert sim.slurm.count("POST job/allocate") == submits
        assert sim.slurm.count("GET slurmdb/job/{id}") == len(jobs)

    play(tmp_path, scene)


@pytest.mark.parametrize("before", [1.0, 30.0, 90.0])
def test_a_scancel_shortly_before_slurmctld_is_restarted_counts(tmp_path: Path, before: float) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.books.open = True
        sim.start()
        await alone(sim)
        job = sim.job_of("p")
        await sim.crash()
        await asyncio.sleep(MINUTE)
        sim.slurm.end(job, "CANCELLED")
        await asyncio.sleep(before)
        sim.slurm.restart()
        await asyncio.sleep(HOUR)
        sim.slurm.tick()
        assert job not in sim.slurm.jobs
        sim.start()
        await sim.until(lambda: sim.pod("p") is None, 60.0)

    play(tmp_path, scene)


@pytest.mark.parametrize("hides", ["accounting", "Slurm"])
def test_a_bridge_that_dies_before_it_has_seen_to_everybody_takes_no_end_along(
    tmp_path: Path, hides: str
) -> None:
    """It led for long before, and leads again, but has not heard how the job ended."""

    async def scene(sim: Simulation) -> None:
        sim.slurm.books.open = True
        sim.start()
        await alone(sim)
        await sim.settle(SEEN_TO + MINUTE)
        job = sim.job_of("p")
        sim.slurm.books.answers = False
        if hides == "accounting":
            await away(sim, (job, "CANCELLED"))
            sim.start()
            await asyncio.sleep(4 * MINUTE)
        else:
            unseen = sim.slurm.faults.add(
                Fault(pattern="slurm/|jobs|job/|conf|ping", kind=Kind.STATUS, times=0)
            )
            await asyncio.sleep(MINUTE)
            sim.slurm.end(job, "CANCELLED")
            await asyncio.sleep(HOUR)
            sim.slurm.faults.remove(unseen)
            await asyncio.sleep(4 * MINUTE)
        assert running(sim, "p")
        await sim.crash()
        sim.slurm.books.answers = True
        sim.start()
        await sim.until(lambda: sim.pod("p") is None, 60.0)

    play(tmp_path, scene, **ELECTED)
