"""The switch from the Go project, and a bridge that was away for an hour: the whole bridge in virtual time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bridge import names
from bridge.core.identity import parse
from bridge.core.model import GroupKey, JobId, is_ended
from tests.sim.simulation import Simulation
from tests.sim.test_story import play, running
from tests.worlds.slurm_jobs import WorldJob

HOUR = 3600.0


def inherit(sim: Simulation, *pods: str, gpus: int = 1, bound: bool = True, cpus: int = 1) -> JobId:
    """Pods of these names and their one job, a node a pod, as the Go project leaves them."""
    for pod in pods:
        sim.create(pod, gpus=gpus, gated=False)
    body = {
        "partition": "slurm-bridge",
        "flags": ["EXTERNAL_JOB"],
        "minimum_nodes": len(pods),
        "tasks": len(pods),
        "cpus_per_task": cpus,
        "memory_per_node": {"set": True, "number": 500},
        "tres_per_node": f"gres/gpu={gpus}",
        "required_nodes": list(sim.slurm.nodes),
        "admin_comment": json.dumps({"pods": [f"default/{pod}" for pod in pods]}),
    }
    job, _ = sim.slurm.submit(body, immediate=False)
    for pod in pods:
        meta = {"labels": {names.JOB_ID_LABEL: str(job.id)}, "finalizers": [names.UPSTREAM_FINALIZER]}
        sim.kube.storage.patch("pods", "default", pod, {"metadata": meta})
    if bound:
        for pod, node in zip(pods, sim.slurm.start(job.id).nodes, strict=True):
            sim.kube.storage.bind("default", pod, {"target": {"name": node}})
    return job.id


def job_of(sim: Simulation, job: JobId) -> WorldJob:
    return sim.slurm.jobs[job]


def uid_of(sim: Simulation, name: str) -> str:
    pod = sim.pod(name)
    assert pod is not None
    return str(pod["metadata"]["uid"])


def adopted(sim: Simulation, job: JobId, *pods: str) -> bool:
    mark = parse(job_of(sim, job).admin_comment)
    return mark is not None and set(mark.uids) == {uid_of(sim, pod) for pod in pods}


def may_go(sim: Simulation, name: str) -> bool:
    pod = sim.pod(name)
    return pod is None or not pod["metadata"].get("finalizers")


# --- the switch -----------------------------------------------------------------------------------


def test_a_pair_is_adopted_and_its_job_ends_with_the_last_of_them_whoever_restarts(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        job = inherit(sim, "a", "b", gpus=2)
        await sim.until(lambda: running(sim, "a") and running(sim, "b"), 5.0)
        sim.start()
        await sim.until(lambda: adopted(sim, job, "a", "b"), 5.0)
        mark = parse(job_of(sim, job).admin_comment)
        assert mark is not None
        assert mark.group == GroupKey("default", "SlurmJob", str(job), uid_of(sim, "a"))
        assert mark.pods == ("default/a", "default/b")
        await sim.crash()
        sim.kubelet.finish("b", 7)
        sim.start()
        await sim.settle(60.0)
        assert not is_ended(job_of(sim, job).states)
        sim.kubelet.finish("a")
        await sim.until(lambda: is_ended(job_of(sim, job).states), 60.0)
        assert "FAILED" in job_of(sim, job).states
        assert job_of(sim, job).exit_code == 7
        await sim.until(lambda: may_go(sim, "a") and may_go(sim, "b"), 5.0)

    play(tmp_path, scene)


@pytest.mark.parametrize("write", range(1, 7))
@pytest.mark.parametrize("bound", [True, False])
def test_a_bridge_that_dies_at_any_write_of_a_takeover_leaves_nothing_wrong(
    tmp_path: Path, write: int, bound: bool
) -> None:
    async def scene(sim: Simulation) -> None:
        pairs = inherit(sim, "a", "b", bound=bound)
        alone = inherit(sim, "c", bound=bound)
        uids = {name: uid_of(sim, name) for name in ("a", "b", "c")}
        sim.kill_at_write = write
        sim.start()
        await sim.settle(5.0)
        if not sim.up():
            sim.start()
        await sim.until(lambda: all(running(sim, name) and sim.jobs_of(uids[name]) for name in uids), 60.0)
        assert {name: uid_of(sim, name) for name in uids} == uids
        for name, uid in uids.items():
            (job,) = sim.jobs_of(uid)
            mine = alone if name == "c" else pairs
            assert (job.id == mine) is (bound or name == "c")
        for name in uids:
            sim.kubelet.finish(name)
        await sim.until(lambda: all(is_ended(job.states) for job in sim.slurm.jobs.values()), 60.0)
        await sim.until(lambda: all(may_go(sim, name) for name in uids), 5.0)

    play(tmp_path, scene)


def test_the_gpus_of_an_adopted_pod_are_not_given_away_while_it_dies(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        job = inherit(sim, "old", gpus=8)
        await sim.until(lambda: running(sim, "old"), 5.0)
        sim.start()
        await sim.until(lambda: adopted(sim, job, "old"), 5.0)
        sim.create("new", gpus=8)
        await sim.settle(5.0)
        sim.slurm.end(job, "CANCELLED")
        await sim.until(lambda: sim.pod("old") is None, 60.0)
        await sim.until(lambda: running(sim, "new"), 90.0)

    play(tmp_path, scene, nodes=1, dying=1.0)


def test_pods_that_wait_and_are_deleted_leave_no_job_and_no_finalizer(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.held = True
        jobs = [inherit(sim, "a", "b", bound=False), inherit(sim, "c", bound=False)]
        for name in ("a", "b", "c"):
            sim.delete(name)
        sim.start()
        await sim.until(lambda: not sim.pods(), 30.0)
        assert [sorted(job_of(sim, job).states) for job in jobs] == [["CANCELLED"], ["CANCELLED"]]

    play(tmp_path, scene)


def test_a_job_of_a_pod_that_is_not_here_is_left_alone_whatever_happens_to_the_others(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        job = inherit(sim, "a", "b")
        await sim.until(lambda: running(sim, "a") and running(sim, "b"), 5.0)
        drop = {"$deleteFromPrimitiveList/finalizers": [names.UPSTREAM_FINALIZER]}
        sim.kube.storage.patch("pods", "default", "b", {"metadata": drop})
        sim.delete("b", force=True)
        before = job_of(sim, job)
        sim.start()
        await sim.settle(30.0)
        sim.kubelet.finish("a")
        await sim.until(lambda: may_go(sim, "a"), 10.0)
        await sim.settle(120.0)
        assert job_of(sim, job) == before

    play(tmp_path, scene)


def test_a_label_changed_by_a_tenant_neither_frees_nor_ends_an_adopted_pod(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        native = sim.slurm.native().id
        job = inherit(sim, "a", "b")
        await sim.until(lambda: running(sim, "a") and running(sim, "b"), 5.0)
        sim.start()
        await sim.until(lambda: adopted(sim, job, "a", "b"), 5.0)
        label = {"metadata": {"labels": {names.JOB_ID_LABEL: str(native)}}}
        sim.kube.storage.patch("pods", "default", "b", label)
        await sim.until(lambda: sim.job_of("b") == job, 10.0)  # repaired
        sim.kube.storage.patch("pods", "default", "b", label)
        sim.slurm.end(native, "CANCELLED")
        await sim.settle(10.0)
        assert running(sim, "b")
        sim.slurm.end(job, "CANCELLED")
        await sim.until(lambda: not sim.pods(), 30.0)

    play(tmp_path, scene)


def test_an_adopted_job_that_slurmctld_forgets_is_claimed_again(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        jobs = [inherit(sim, "a", "b"), inherit(sim, "c")]
        await sim.until(lambda: all(running(sim, name) for name in ("a", "b", "c")), 5.0)
        sim.start()
        await sim.until(lambda: adopted(sim, jobs[0], "a", "b") and adopted(sim, jobs[1], "c"), 5.0)
        sim.slurm.restart()
        for job in jobs:
            sim.slurm.lose(job)
        await sim.until(
            lambda: all(len(sim.jobs_of(uid_of(sim, name))) == 1 for name in ("a", "b", "c")), 60.0
        )
        await sim.settle(400.0)
        for name in ("a", "b", "c"):
            assert running(sim, name)
            (claimed,) = sim.jobs_of(uid_of(sim, name))
            pod = sim.pod(name)
            assert pod is not None
            assert claimed.nodes == (pod["spec"]["nodeName"],)

    play(tmp_path, scene)


# --- an hour away ---------------------------------------------------------------------------------


@pytest.mark.parametrize("theirs", [False, True])
def test_after_an_hour_away_everything_that_happened_meanwhile_is_put_right(
    tmp_path: Path, theirs: bool
) -> None:
    """`theirs`: the pods and jobs are the Go project's."""

    async def scene(sim: Simulation) -> None:
        pods = ("finished", "lost", "cancelled", "forgotten", "stays")
        if theirs:
            for name in pods:
                inherit(sim, name)
            await sim.until(lambda: all(running(sim, name) for name in pods), 5.0)
        else:
            sim.start()
            for name in pods:
                sim.create(name)
            await sim.until(lambda: all(running(sim, name) for name in pods), 10.0)
            await sim.crash()
        jobs = {name: sim.job_of(name) for name in pods}
        uids = {name: uid_of(sim, name) for name in pods}
        await sim.settle(600.0)
        sim.kubelet.finish("finished", 7)
        sim.delete("lost", force=True)
        await sim.settle(HOUR - 660.0)
        sim.slurm.end(jobs["cancelled"], "CANCELLED")
        sim.create("new")
        await sim.settle(60.0)
        sim.slurm.restart()
        sim.slurm.lose(jobs["forgotten"])
        await sim.settle(2.0)
        sim.start()
        await sim.until(lambda: job_of(sim, jobs["finished"]).states == {"FAILED"}, 30.0)
        assert job_of(sim, jobs["finished"]).exit_code == 7
        await sim.until(lambda: sim.pod("cancelled") is None, 30.0)
        await sim.until(lambda: running(sim, "new"), 30.0)
        await sim.until(lambda: is_ended(job_of(sim, jobs["lost"]).states), 120.0)
        assert job_of(sim, jobs["lost"]).states == {"CANCELLED"}
        # The finalizer kept the Go project's pod: nobody has to guess how it ended.
        assert job_of(sim, jobs["lost"]).comment.startswith("exit unknown") is not theirs
        await sim.until(lambda: sim.jobs_of(uids["forgotten"]), 30.0)
        (claimed,) = sim.jobs_of(uids["forgotten"])
        assert claimed.nodes == job_of(sim, jobs["stays"]).nodes
        assert [job.id for job in sim.jobs_of(uids["stays"])] == [jobs["stays"]]
        assert all(running(sim, name) for name in ("forgotten", "stays"))

    play(tmp_path, scene, nodes=5)


def test_an_end_that_slurm_has_forgotten_holds_no_finalizer(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        job = inherit(sim, "a")
        await sim.until(lambda: running(sim, "a"), 5.0)
        sim.kubelet.finish("a")
        sim.slurm.end(job, "CANCELLED")
        await sim.settle(HOUR)
        sim.slurm.tick()
        assert job not in sim.slurm.jobs
        sim.start()
        await sim.until(lambda: may_go(sim, "a"), 10.0)

    play(tmp_path, scene)
