"""Slurm is away, or hangs: nothing is deleted, nothing is made twice, and the bridge recovers by itself."""

from __future__ import annotations

import pytest

from tests.e2e import kube as k
from tests.e2e.scene import ORPHANED, Scene
from tests.e2e.waiting import eventually, throughout

pytestmark = pytest.mark.real
PODS = 50
DOWN = 20.0  # seconds
RECOVERY = 60.0  # seconds


@pytest.mark.parametrize("part", ["slurmctld", "slurmrestd"])
def test_fifty_running_pods_outlive_twenty_seconds_without(part: str, scene: Scene) -> None:
    for i in range(PODS):
        scene.create(k.pod(f"steady-{i}"))
    pods = scene.all_running(PODS)
    uids = {k.uid(pod) for pod in pods}
    scene.slurm.saves()  # a kill takes back what is younger (tested elsewhere)
    bridge = scene.stack.pid("bridge")

    def all_there() -> bool:
        now = scene.pods()
        unharmed = {
            k.uid(p) for p in now if k.phase(p) == "Running" and "deletionTimestamp" not in p["metadata"]
        }
        return uids <= unharmed

    with scene.stack.without(part):
        throughout(f"no pod is touched while {part} is down", DOWN, all_there, every=1.0)
        eventually("the bridge knows", lambda: "note: Slurm" in _readyz(scene))
    scene.create(k.pod("afterwards"))
    scene.running("afterwards", within=RECOVERY)
    assert scene.stack.pid("bridge") == bridge
    assert scene.stack.runs("bridge")
    assert all_there()
    assert all(scene.job_of(pod).running for pod in pods)


@pytest.mark.parametrize("crash", [False, True], ids=["", "and-the-bridge-is-killed"])
def test_jobs_asked_for_while_slurmctld_hangs_are_made_once(crash: bool, scene: Scene) -> None:
    asked = scene.stack.metric("slurm_bridge_decisions_total", reason="Ready")
    with scene.stack.stopped("slurmctld"):
        uids = [scene.create(k.pod(f"late-{i}", options=_queued(i))) for i in range(6)]
        eventually(
            "the bridge asks for their jobs",
            lambda: scene.stack.metric("slurm_bridge_decisions_total", reason="Ready") >= asked + 6,
        )
        if crash:
            scene.stack.kill("bridge")
        throughout(
            "nothing is bound on what slurmctld doesn't answer", 15.0,
            lambda: not any(k.node_of(pod) for pod in scene.pods()), every=0.5,
        )  # fmt: skip
    if crash:
        scene.stack.start("bridge")
    pods = scene.all_running(6, within=RECOVERY)
    jobs = scene.real_jobs_of(uids)
    assert sorted(job.id for job in jobs) == sorted(k.job_label(pod) for pod in pods)


def test_jobs_made_late_for_pods_that_are_gone_by_then_are_ended(scene: Scene) -> None:
    asked = scene.stack.metric("slurm_bridge_decisions_total", reason="Ready")
    with scene.stack.stopped("slurmctld"):
        uids = [scene.create(k.pod(f"brief-{i}", options=_queued(i))) for i in range(4)]
        eventually(
            "the bridge asks for their jobs",
            lambda: scene.stack.metric("slurm_bridge_decisions_total", reason="Ready") >= asked + 4,
        )
        eventually("the bridge has given up on an answer", lambda: "note: Slurm" in _readyz(scene))
        scene.kube.must("DELETE", scene.pods_path)
        eventually("the pods are gone", lambda: not scene.pods())
    eventually("slurmctld has made jobs", lambda: scene.slurm.jobs_of(*uids))
    # If only the sweep finds them: pods may have run there, for all it knows.
    scene.no_live_jobs(uids, within=ORPHANED)


def test_pods_on_their_way_survive_a_crash_of_the_api_server(scene: Scene) -> None:
    for i in range(10):
        scene.create(k.pod(f"before-{i}"))
    scene.all_running(10)
    uids = {scene.create(k.pod(f"under-way-{i}")) for i in range(10)}
    with scene.stack.without("apiserver"):
        pass
    pods = scene.all_running(20, within=RECOVERY)
    assert uids <= {k.uid(pod) for pod in pods}
    jobs = scene.real_jobs_of(uids)
    assert sorted(j.id for j in jobs) == sorted(k.job_label(p) for p in pods if k.uid(p) in uids)
    scene.create(k.pod("afterwards"))
    scene.running("afterwards")


def _readyz(scene: Scene) -> str:
    return scene.stack.bridge.get("/readyz").text


def _queued(number: int) -> dict[str, str]:
    """Every second pod goes through Slurm's queue: only a job without a priority of its own may start at once."""
    return {"priority": "1000"} if number % 2 else {}
