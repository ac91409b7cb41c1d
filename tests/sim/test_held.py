"""The whole bridge in virtual time with a token that may not choose job ids: submitted held, named, then released."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bridge import names
from bridge.core.model import JobId, is_ended
from bridge.core.orphans import Listing
from tests.sim import test_story as story
from tests.sim.simulation import Simulation
from tests.sim.test_story import running
from tests.sim.test_vanished import node_of
from tests.worlds.slurm_faults import Fault, Kind
from tests.worlds.slurm_jobs import WorldJob

Scene = Callable[[Simulation], Awaitable[None]]
SUBMIT = "POST job/submit"


def play(tmp_path: Path, scene: Scene, asker: str = "alice", **options: Any) -> None:
    async def asked(sim: Simulation) -> None:
        sim.slurm.asker = asker
        await scene(sim)

    story.play(tmp_path, asked, **{"jobIds": "held", **options})


def only(jobs: list[WorldJob]) -> WorldJob:
    (job,) = jobs
    return job


def jobs_ever(sim: Simulation, uid: str) -> list[WorldJob]:
    return sim.jobs_of(uid, live=False)


def test_a_pod_runs_on_a_job_that_slurm_numbered_and_that_ends_with_its_exit_code(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        uid = sim.create("p", gpus=2)
        await sim.until(lambda: running(sim, "p"), 5.0)
        job = only(sim.jobs_of(uid))
        assert (job.id, job.user, job.nodes) == (1, "alice", (node_of(sim, "p"),))
        assert sim.slurm.count("POST job/allocate") == 0
        assert sum(sim.kube.writes.values()) == 4, dict(sim.kube.writes)
        sim.kubelet.finish("p", 3)
        await sim.until(lambda: is_ended(sim.slurm.jobs[job.id].states), 2.0)
        assert sim.slurm.jobs[job.id].exit_code == 3

    play(tmp_path, scene)


def test_a_job_never_runs_before_its_pod_names_it(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        seen: list[JobId] = []

        def look() -> None:
            for job in sim.slurm.jobs.values():
                if "RUNNING" in job.states and job.id not in seen:
                    assert sim.job_of("p") == job.id
                    seen.append(job.id)
            witness()

        witness, sim.slurm.on_change = sim.slurm.on_change, look
        sim.start()
        sim.create("p")
        await sim.until(lambda: running(sim, "p"), 5.0)
        assert seen == [1]

    play(tmp_path, scene)


@pytest.mark.parametrize("kind", [Kind.DROP_AFTER, Kind.TRUNCATE, Kind.HTML])
def test_a_lost_reply_to_a_submit_makes_no_second_job(tmp_path: Path, kind: Kind) -> None:
    async def scene(sim: Simulation) -> None:
        for _ in range(20):
            sim.slurm.native()
        sim.slurm.faults.add(Fault(pattern=SUBMIT, kind=kind))
        sim.start()
        uid = sim.create("p")
        await sim.until(lambda: running(sim, "p"), 20.0)
        assert len(jobs_ever(sim, uid)) == 1

    play(tmp_path, scene)


def test_a_lost_reply_is_waited_for_however_many_others_are_read_before_it(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        await sim.settle(1.0)
        for _ in range(150):
            sim.slurm.native(cpus=0)
        sim.slurm.faults.add(Fault(pattern=SUBMIT, kind=Kind.DROP_AFTER))
        uid = sim.create("p")
        await sim.until(lambda: running(sim, "p"), 20.0)
        assert len(jobs_ever(sim, uid)) == 1

    play(tmp_path, scene)


def test_a_submit_that_a_hung_slurmctld_carries_out_late_is_found_or_ended(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        fault = sim.slurm.faults.add(Fault(pattern=SUBMIT, kind=Kind.HANG))
        sim.start()
        uid = sim.create("p")
        await sim.until(lambda: running(sim, "p"), 60.0)
        sim.slurm.faults.remove(fault)
        await sim.until(lambda: len(jobs_ever(sim, uid)) == 2, 5.0)
        await sim.until(lambda: len(sim.jobs_of(uid)) == 1, 5.0)
        assert only(sim.jobs_of(uid)).id == sim.job_of("p")
        assert running(sim, "p")

    play(tmp_path, scene)


@pytest.mark.parametrize("write", range(1, 8))
def test_a_crash_at_any_write_leaves_one_job_and_a_running_pod(tmp_path: Path, write: int) -> None:
    async def scene(sim: Simulation) -> None:
        sim.kill_at_write = write
        sim.start()
        uid = sim.create("p")
        await sim.until(lambda: not sim.up() or running(sim, "p"), 10.0)
        if not sim.up():
            sim.start()
        await sim.until(lambda: running(sim, "p"), 20.0)
        assert len(sim.jobs_of(uid)) == 1
        assert len(jobs_ever(sim, uid)) == 1

    play(tmp_path, scene)


def test_two_that_believe_they_lead_run_one_job_a_pod_and_end_what_is_too_much(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start("a")
        sim.start("b")
        uids = {f"p{i}": sim.create(f"p{i}", gpus=1) for i in range(10)}
        await sim.until(lambda: all(running(sim, name) for name in uids), 30.0)
        await sim.settle(30.0)
        for name, uid in uids.items():
            assert only(sim.jobs_of(uid)).id == sim.job_of(name)
            assert sum(bool(job.nodes) for job in jobs_ever(sim, uid)) == 1, "a double held a node"

    play(tmp_path, scene)


def test_native_jobs_are_read_once_and_never_touched(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        natives = [sim.slurm.native().id for _ in range(30)]
        sim.start()
        sim.create("p")
        await sim.until(lambda: running(sim, "p"), 10.0)
        reads = sim.slurm.count("GET job/{id}")
        assert reads >= 30
        await sim.settle(60.0)
        assert sim.slurm.count("GET job/{id}") == reads
        assert all("RUNNING" in sim.slurm.jobs[job].states for job in natives)

    play(tmp_path, scene)


def test_nothing_is_submitted_before_every_listed_job_has_been_read(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        for _ in range(100):
            sim.slurm.native(cpus=1)
        sim.start()
        sim.create("p")
        await sim.until(lambda: sim.slurm.count(SUBMIT), 10.0)
        assert sim.slurm.count("GET job/{id}") >= 100

    play(tmp_path, scene)


def test_a_held_job_that_nobody_named_is_named_after_a_restart(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.kill_at_write = 1  # the submit itself
        sim.start()
        uid = sim.create("p")
        await sim.until(lambda: not sim.up(), 5.0)
        held = only(sim.jobs_of(uid))
        assert held.on_hold
        sim.start()
        await sim.until(lambda: running(sim, "p"), 10.0)
        assert only(jobs_ever(sim, uid)).id == held.id

    play(tmp_path, scene)


def test_a_held_job_whose_pod_went_while_nobody_looked_is_ended(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.kill_at_write = 1
        sim.start()
        uid = sim.create("p")
        await sim.until(lambda: not sim.up(), 5.0)
        sim.delete("p")
        sim.start()
        await sim.until(lambda: not sim.jobs_of(uid), 60.0)

    play(tmp_path, scene)


def test_a_person_who_cancels_the_waiting_job_takes_the_pod_along(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.held = True
        sim.start()
        uid = sim.create("p")
        await sim.until(lambda: sim.jobs_of(uid) and not only(sim.jobs_of(uid)).on_hold, 5.0)
        sim.slurm.end(only(sim.jobs_of(uid)).id, "CANCELLED")
        await sim.until(lambda: sim.pod("p") is None, 10.0)

    play(tmp_path, scene)


def test_a_job_that_an_admin_holds_stays_held(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.held = True
        sim.start()
        uid = sim.create("p")
        await sim.until(lambda: sim.jobs_of(uid) and not only(sim.jobs_of(uid)).on_hold, 5.0)
        job = only(sim.jobs_of(uid)).id
        sim.slurm.hold(job, "JobHeldAdmin")
        sim.slurm.held = False
        await sim.settle(90.0)
        assert sim.slurm.jobs[job].on_hold

    play(tmp_path, scene)


def test_a_lost_grant_is_asked_for_again_under_another_number(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.held = True
        sim.start()
        uid = sim.create("p")
        await sim.until(lambda: sim.jobs_of(uid), 5.0)
        sim.slurm.end(only(sim.jobs_of(uid)).id, "FAILED")
        sim.slurm.held = False
        await sim.until(lambda: running(sim, "p"), 20.0)
        assert only(sim.jobs_of(uid)).id == sim.job_of("p") == 2

    play(tmp_path, scene)


def test_a_priority_is_given_when_the_job_is_released(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.held = True
        sim.start()
        uid = sim.create("p", annotations={"slurmjob.slinky.slurm.net/priority": "77"})
        await sim.until(lambda: sim.jobs_of(uid) and only(sim.jobs_of(uid)).priority == 77, 10.0)

    play(tmp_path, scene)


def test_an_administrator_may_change_the_priority_of_a_job_that_waits(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.held = True
        sim.start()
        uid = sim.create("p", annotations={"slurmjob.slinky.slurm.net/priority": "77"})
        await sim.settle(660.0)
        job = only(sim.jobs_of(uid))
        sim.slurm.set_priority(job.id, 5)
        await sim.crash()
        sim.start()
        await sim.settle(120.0)
        assert only(sim.jobs_of(uid)).priority == 5

    play(tmp_path, scene)


def test_a_plain_users_token_submits_nothing_and_says_what_is_missing(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        uid = sim.create("p")
        await sim.settle(30.0)
        assert not jobs_ever(sim, uid)
        pod = sim.pod("p")
        assert pod is not None
        (said,) = [c["message"] for c in pod["status"]["conditions"] if c["type"] == names.JOB_CONDITION]
        assert "AdminLevel=Administrator" in said

    play(tmp_path, scene, asker="bob")


def test_the_tokens_user_decides_who_numbers_the_jobs(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.token = _token("alice")
        (tmp_path / "token").write_text(sim.slurm.token)
        sim.start()
        sim.create("p")
        await sim.until(lambda: running(sim, "p"), 5.0)
        assert sim.job_of("p") == 1

    play(tmp_path, scene, jobIds="auto")


def test_with_slurm_users_token_again_running_pods_stay_and_new_ones_get_chosen_ids(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        token = tmp_path / "token"
        sim.slurm.token = _token("alice")
        token.write_text(sim.slurm.token)
        sim.start()
        old = sim.create("old")
        await sim.until(lambda: running(sim, "old"), 5.0)
        sim.slurm.asker, sim.slurm.token = "slurm", _token("slurm")
        token.write_text(sim.slurm.token)
        await sim.settle(10.0)
        sim.create("new")
        await sim.until(lambda: running(sim, "new"), 10.0)
        assert sim.job_of("new") >= sim.settings.jobs.jobIdFirst
        sim.kubelet.finish("old")
        await sim.until(lambda: not sim.jobs_of(old), 5.0)

    play(tmp_path, scene, jobIds="auto")


def _token(user: str) -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"sun": user, "exp": 2**40}).encode()).rstrip(b"=").decode()
    return f"e30.{claims}.x"


@pytest.mark.parametrize("owner", ["alice", "bob"])
def test_a_running_job_whose_mark_was_overwritten_while_no_bridge_ran_is_marked_again_if_it_is_the_tokens_users(
    tmp_path: Path, owner: str
) -> None:
    """Who may edit a pod may make it name anybody's job."""

    async def scene(sim: Simulation) -> None:
        sim.slurm.token = _token("alice")
        (tmp_path / "token").write_text(sim.slurm.token)
        sim.start()
        uid = sim.create("p")
        await sim.until(lambda: running(sim, "p"), 10.0)
        job = sim.job_of("p")
        await sim.crash()
        sim.slurm.jobs[job] = replace(sim.slurm.jobs[job], admin_comment="by somebody", user=owner)
        sim.start()
        await sim.settle(60.0)
        assert (uid in sim.slurm.jobs[job].admin_comment) is (owner == "alice")

    play(tmp_path, scene)


def test_a_number_that_slurm_gives_to_another_while_the_sweep_looks_costs_nobody_his_job(
    tmp_path: Path,
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.kill_at_write = 1
        sim.start()
        uid = sim.create("p")
        await sim.until(lambda: not sim.up(), 5.0)
        orphan = only(sim.jobs_of(uid))
        sim.delete("p")
        await asyncio.sleep(7.0)
        sim.start()
        sweep = sim._replicas["a"].bridge._sweep
        looks = sweep._listing
        natives: list[JobId] = []

        async def listing() -> Listing:
            found = await looks()
            if not natives:
                sim.slurm.lose(orphan.id)
                sim.slurm._next_native = orphan.id
                natives.append(sim.slurm.native().id)
            return found

        sweep._listing = listing  # type: ignore[method-assign]
        await sim.until(lambda: bool(natives), 60.0)
        await sim.settle(60.0)
        assert natives == [orphan.id]
        assert not is_ended(sim.slurm.jobs[orphan.id].states)

    play(tmp_path, scene, nodes=1, sweepInterval=5.0)
