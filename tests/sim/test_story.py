"""The whole bridge in virtual time: one pod's life, and the same under random accidents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from bridge import names
from bridge.core.model import is_ended
from bridge.errors import Invalid
from tests.sim.loop import run
from tests.sim.simulation import Simulation
from tests.worlds.kube_faults import Answer as KubeAnswer
from tests.worlds.slurm_completion import WorldCompletion
from tests.worlds.slurm_faults import Fault, Kind

Scene = Callable[[Simulation], Awaitable[None]]
in_both_modes = pytest.mark.parametrize("ids", ["chosen", "held"])


def play(tmp_path: Path, scene: Scene, **options: Any) -> None:
    async def main() -> None:
        sim = Simulation(tmp_path, **options)
        sim.slurm.asker = "alice" if options.get("jobIds") == "held" else "slurm"
        try:
            await scene(sim)
        finally:
            await sim.close()

    run(main())


def running(sim: Simulation, name: str) -> bool:
    pod = sim.pod(name)
    return pod is not None and pod["status"].get("phase") == "Running"


def test_a_pod_runs_where_slurm_says_and_its_job_ends_with_its_exit_code(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        for name in ("good", "bad"):
            sim.create(name, gpus=2)
        await sim.until(lambda: running(sim, "good") and running(sim, "bad"), 5.0)
        jobs = {name: sim.job_of(name) for name in ("good", "bad")}
        sim.kubelet.finish("good")
        sim.kubelet.finish("bad", 3)
        await sim.until(lambda: all(is_ended(sim.slurm.jobs[job].states) for job in jobs.values()), 2.0)
        assert "COMPLETED" in sim.slurm.jobs[jobs["good"]].states
        assert "FAILED" in sim.slurm.jobs[jobs["bad"]].states
        assert sim.slurm.jobs[jobs["bad"]].exit_code == 3

    play(tmp_path, scene)


@pytest.mark.parametrize("answer", [False, Invalid("slurmctld refuses to end the job (2070)", code=2070)])
def test_a_job_that_nobody_lets_end_with_its_exit_code_ends_all_the_same_and_tells_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bool | Invalid
) -> None:
    async def complete(_: object, job: int, wait_status: int) -> bool:
        if isinstance(answer, Invalid):
            raise answer
        return answer

    async def scene(sim: Simulation) -> None:
        sim.start()
        sim.create("p", gpus=2)
        await sim.until(lambda: running(sim, "p"), 5.0)
        job = sim.job_of("p")
        sim.kubelet.finish("p", 3)
        await sim.until(lambda: is_ended(sim.slurm.jobs[job].states), 2.0)
        assert "CANCELLED" in sim.slurm.jobs[job].states
        assert "exit code 3" in sim.slurm.jobs[job].comment

    monkeypatch.setattr(WorldCompletion, "complete", complete)
    play(tmp_path, scene)


def test_three_writes_bind_a_pod_and_nothing_is_written_afterwards(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        sim.create("p")
        await sim.until(lambda: running(sim, "p"), 5.0)
        assert sum(sim.kube.writes.values()) == 3, dict(sim.kube.writes)
        before, asked = dict(sim.kube.writes), len(sim.slurm.requests)
        await sim.settle(600)
        assert dict(sim.kube.writes) == before
        later = sim.slurm.requests[asked:]
        assert not [request for request in later if not request.startswith("GET ")]

    play(tmp_path, scene)


def test_a_waiting_pod_tells_why_and_its_deletion_ends_its_job_within_a_second(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.native(cpus=1, gpus=8)
        sim.start()
        uid = sim.create("p", gpus=8)

        def told() -> bool:
            conditions = (sim.pod("p") or {}).get("status", {}).get("conditions", [])
            return any(c["type"] == names.JOB_CONDITION and "Resources" in c["message"] for c in conditions)

        await sim.until(told, 10.0)
        assert len(sim.jobs_of(uid)) == 1
        sim.delete("p")
        await sim.until(lambda: not sim.jobs_of(uid), 1.0)

    play(tmp_path, scene, nodes=1)


@in_both_modes
def test_a_cancelled_job_takes_its_pod_along_waiting_or_running(tmp_path: Path, ids: str) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        sim.create("runs", gpus=8)
        await sim.until(lambda: running(sim, "runs"), 5.0)
        waits = sim.create("waits", gpus=8)
        await sim.until(lambda: sim.jobs_of(waits), 5.0)
        sim.slurm.end(sim.jobs_of(waits)[0].id, "CANCELLED")
        await sim.until(lambda: sim.pod("waits") is None, 2.0)
        sim.slurm.end(sim.job_of("runs"), "CANCELLED")
        await sim.until(lambda: sim.pod("runs") is None, 2.0)

    play(tmp_path, scene, nodes=1, jobIds=ids)


@in_both_modes
def test_a_pod_with_the_name_of_a_dead_one_gets_a_job_of_its_own(tmp_path: Path, ids: str) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        sim.create("w-0")
        await sim.until(lambda: running(sim, "w-0"), 5.0)
        first = sim.job_of("w-0")
        sim.kubelet.finish("w-0")
        sim.delete("w-0")
        await sim.until(lambda: sim.pod("w-0") is None, 5.0)
        sim.create("w-0")
        await sim.until(lambda: running(sim, "w-0"), 5.0)
        assert sim.job_of("w-0") != first
        assert is_ended(sim.slurm.jobs[first].states)

    play(tmp_path, scene, jobIds=ids)


@in_both_modes
@pytest.mark.parametrize("set_back", [0.0, 86400.0])
def test_an_orphan_of_ours_is_ended_and_everybody_elses_jobs_live(
    tmp_path: Path, set_back: float, ids: str
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        uid = sim.create("p")
        await sim.until(lambda: running(sim, "p"), 5.0)
        native = sim.slurm.native()
        await sim.crash()
        sim.slurm.clock = lambda: sim.wall() - set_back
        sim.kube.storage.delete("pods", "default", "p", {"gracePeriodSeconds": 0})
        sim.start()
        await sim.settle(20.0)
        assert sim.jobs_of(uid), "its containers may still run: grace and margin are not over"
        await sim.until(lambda: not sim.jobs_of(uid), 120.0)
        assert not is_ended(sim.slurm.jobs[native.id].states)

    play(tmp_path, scene, jobIds=ids)


@in_both_modes
def test_a_pod_missing_from_one_list_loses_nothing(tmp_path: Path, ids: str) -> None:
    """The API server answers one re-list short; its watch history is gone too."""

    async def scene(sim: Simulation) -> None:
        sim.start()
        uids = [sim.create(f"p{i}") for i in range(3)]
        await sim.until(lambda: all(running(sim, f"p{i}") for i in range(3)), 5.0)
        short = b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"99999"},"items":[]}'
        sim.kube.faults.plan(KubeAnswer(200, short), verb="list", resource="pods", times=1)
        sim.kube.compact()
        sim.kube.cut_watches("pods")
        await sim.settle(300.0)
        assert all(sim.jobs_of(uid) for uid in uids)
        assert all(running(sim, f"p{i}") for i in range(3))

    play(tmp_path, scene, jobIds=ids)


@pytest.mark.parametrize("kind", [Kind.HANG, Kind.DROP_AFTER, Kind.TRUNCATE, None])
@pytest.mark.parametrize("route", ["job/allocate", "job/submit"])
def test_a_pod_deleted_while_its_submit_is_under_way_leaves_no_job(
    tmp_path: Path, kind: Kind | None, route: str
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        fault = sim.slurm.faults.add(Fault(pattern=route, kind=kind)) if kind else None
        uid = sim.create("p")
        await sim.until(lambda: sim.slurm.count(f"POST {route}"), 5.0)
        sim.delete("p")
        await sim.settle(1.0)
        if fault is not None:
            fault.released.set()
        await sim.settle(8.0)
        assert not sim.jobs_of(uid)

    play(tmp_path, scene, fastPath=route == "job/allocate")


@in_both_modes
@pytest.mark.parametrize("seconds", [3.0, 120.0])
def test_slurm_that_is_away_costs_nobody_anything(tmp_path: Path, seconds: float, ids: str) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        uids = [sim.create(f"p{i}") for i in range(6)]
        await sim.until(lambda: all(running(sim, f"p{i}") for i in range(6)), 10.0)
        sim.slurm.down = True
        sim.create("late")
        await sim.settle(seconds)
        assert not running(sim, "late")
        sim.slurm.down = False
        sim.slurm.restart()
        await sim.until(lambda: running(sim, "late"), 10.0)
        assert all(len(sim.jobs_of(uid)) == 1 for uid in uids)

    play(tmp_path, scene, jobIds=ids)


@in_both_modes
def test_a_slurmctld_that_forgot_its_last_seconds_costs_no_running_pod(tmp_path: Path, ids: str) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        uids = [sim.create(f"p{i}") for i in range(4)]
        await sim.until(lambda: all(running(sim, f"p{i}") for i in range(4)), 10.0)
        sim.slurm.crash(5.0)  # every job is younger: all are forgotten
        await sim.settle(200.0)  # within the grace of the boot, and beyond any poll
        assert all(running(sim, f"p{i}") for i in range(4))
        assert len(uids) == 4

    play(tmp_path, scene, jobIds=ids)


def test_a_node_that_is_cordoned_costs_later_pods_no_grant(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        sim.create("first")
        await sim.until(lambda: running(sim, "first"), 5.0)
        pod = sim.pod("first")
        assert pod is not None
        node = pod["spec"]["nodeName"]
        sim.kube.storage.patch("nodes", "", node, {"spec": {"unschedulable": True}})
        await sim.settle(1.0)
        sim.create("second")
        await sim.until(lambda: running(sim, "second"), 5.0)
        second = sim.pod("second")
        assert second is not None
        assert second["spec"]["nodeName"] != node
        assert names.ATTEMPT_ANNOTATION not in second["metadata"].get("annotations", {})

    play(tmp_path, scene)


@in_both_modes
def test_an_accident_that_ends_every_job_is_held_back_until_further_reads_agree(
    tmp_path: Path, ids: str
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        uids = {f"p{i}": sim.create(f"p{i}", gpus=0) for i in range(30)}
        await sim.until(lambda: all(running(sim, name) for name in uids), 20.0)
        for name in uids:
            sim.slurm.end(sim.job_of(name), "NODE_FAIL")
        await sim.settle(8.0)
        alive = [name for name in uids if running(sim, name)]
        assert len(alive) == 20, "ten go at once, the rest is held back"
        await sim.until(lambda: not any(running(sim, name) for name in uids), 60.0)

    play(tmp_path, scene, bootGrace=0.0, jobIds=ids)


@in_both_modes
def test_a_person_who_cancels_everything_is_obeyed_at_once(tmp_path: Path, ids: str) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        uids = {f"p{i}": sim.create(f"p{i}", gpus=0) for i in range(30)}
        await sim.until(lambda: all(running(sim, name) for name in uids), 20.0)
        for name in uids:
            sim.slurm.end(sim.job_of(name), "CANCELLED")
        await sim.until(lambda: not any(running(sim, name) for name in uids), 5.0)

    play(tmp_path, scene, jobIds=ids)


@in_both_modes
def test_an_accident_that_turns_out_to_be_none_deletes_no_more_than_ten(tmp_path: Path, ids: str) -> None:
    """slurmctld says NODE_FAIL of every job, and a moment later has them running again."""

    async def scene(sim: Simulation) -> None:
        sim.start()
        uids = {f"p{i}": sim.create(f"p{i}", gpus=0) for i in range(30)}
        await sim.until(lambda: all(running(sim, name) for name in uids), 20.0)
        jobs = [sim.job_of(name) for name in uids]
        before = {job: sim.slurm.jobs[job] for job in jobs}
        for job in jobs:
            sim.slurm.end(job, "NODE_FAIL")
        await sim.settle(5.0)
        for job, was in before.items():
            sim.slurm.jobs[job] = was
        await sim.settle(120.0)
        assert sum(running(sim, name) for name in uids) >= 20

    play(tmp_path, scene, bootGrace=0.0, jobIds=ids)


def test_a_waiting_job_follows_when_a_closed_node_opens_again(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.native(cpus=1, gpus=8)  # one node is full
        sim.start()
        sim.create("first", gpus=8)  # and so is the other: the bridge learns its name
        await sim.until(lambda: running(sim, "first"), 5.0)
        pod = sim.pod("first")
        assert pod is not None
        node = pod["spec"]["nodeName"]
        sim.kube.storage.patch("nodes", "", node, {"spec": {"unschedulable": True}})
        await sim.settle(1.0)
        uid = sim.create("second", gpus=8)
        await sim.until(lambda: [job for job in sim.jobs_of(uid) if node in job.excluded], 10.0)
        sim.kube.storage.patch("nodes", "", node, {"spec": {"unschedulable": False}})
        sim.kubelet.finish("first")
        await sim.until(lambda: running(sim, "second"), 90.0)

    play(tmp_path, scene, nodes=2)
