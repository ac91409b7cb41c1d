"""slurmctld is killed before it has saved its last seconds, or starts with other nodes: each kind of loss is set right.

What it forgets is put back by the bridge, what it brings back to life is ended, and only what has another place costs a
pod; nothing is concluded in the grace after its start, which is short on the stack of these tests.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from bridge.core.hostlist import expand
from bridge.names import GPUS_ANNOTATION
from tests.e2e import kube as k
from tests.e2e.kube import Object
from tests.e2e.scene import ORPHANED, Scene
from tests.e2e.slurm import Job
from tests.e2e.stack import Stack
from tests.e2e.stages import BOOT_GRACE, in_both_modes, own
from tests.e2e.test_kinds import POD_GROUPS, applied
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with own("rollback", "--set", f"bootGrace={BOOT_GRACE}") as found:
        yield found


@contextmanager
def forgotten(scene: Scene) -> Iterator[None]:
    """slurmctld can't write down what happens in the block; killed at its end, it has never heard of it."""
    scene.slurm.saves()
    scene.slurm.state.chmod(0o555)
    try:
        yield
        scene.stack.kill("slurmctld")
    finally:
        scene.slurm.state.chmod(0o755)
        scene.stack.start("slurmctld")


@in_both_modes
def test_a_pod_whose_job_vanished_keeps_its_place_under_a_job_of_its_own(scene: Scene) -> None:
    steady = _steady(scene)
    with forgotten(scene):
        uid = scene.create(k.pod("vanished", gpus=2, options=scene.only("n1")))
        lost = scene.job_of(scene.running("vanished"))
    found = scene.slurm.job(lost.id)
    assert found is None or found.submitted > lost.submitted  # the claim may have got its number

    def claimed() -> Job | None:
        jobs = scene.slurm.live_jobs_of(uid)
        return jobs[0] if len(jobs) == 1 and jobs[0].running else None

    job = eventually("its place is claimed again", claimed, within=BOOT_GRACE + 60)
    assert job is not None
    assert (job.nodes, len(job.gpus)) == ("n1", 2)
    after = scene.when("vanished", "names the job", lambda pod: k.job_label(pod) == job.id)
    assert k.uid(after) == uid
    assert "deletionTimestamp" not in after["metadata"]
    _undisturbed(scene, steady)


def _places(pods: list[Object]) -> dict[str, tuple[str, str]]:
    """UID → node and GPUs."""
    told = ((pod, pod["metadata"]["annotations"].get(GPUS_ANNOTATION, "")) for pod in pods)
    return {k.uid(pod): (k.node_of(pod), gpus) for pod, gpus in told}


def test_a_gang_of_different_sizes_whose_job_vanished_keeps_its_places(scene: Scene) -> None:
    sizes = {"a": 0, "b": 1, "c": 1}
    with applied(scene, POD_GROUPS, "group", {"minMember": 3}, {"sizes": "own"}):
        with forgotten(scene):
            for name, gpus in sizes.items():
                made = k.pod(name, gpus=gpus)
                made["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "group"}
                scene.create(made)
            pods = scene.all_running(3)
            number = k.job_label(pods[0])
            before = _places(pods)
        assert scene.slurm.job(number) is None

        def claimed() -> bool:
            live = scene.slurm.live_jobs_of(*before)
            return len(live) == 2 and all(job.running for job in live)

        eventually("its places are claimed again", claimed, within=BOOT_GRACE + 90)
        parts = scene.slurm.live_jobs_of(*before)
        assert {node for job in parts for node in expand(job.nodes)} == {node for node, _ in before.values()}
        scene.slurm.saves()
        again = scene.all_running(3)
        assert _places(again) == before


@in_both_modes
def test_a_cancelled_job_that_runs_again_is_ended_again(scene: Scene) -> None:
    steady = _steady(scene)
    uid = scene.create(k.pod("resurrected", grace=1))
    scene.running("resurrected")
    with forgotten(scene):
        scene.delete("resurrected")
        scene.gone("resurrected")
        scene.no_live_jobs([uid])
    assert scene.slurm.live_jobs_of(uid)
    # For all the bridge knows a pod may have run there.
    scene.no_live_jobs([uid], within=BOOT_GRACE + ORPHANED)
    _undisturbed(scene, steady)


@in_both_modes
def test_a_pod_whose_job_was_placed_anew_elsewhere_is_ended(scene: Scene) -> None:
    steady = _steady(scene)
    first, second = (_blocker(scene, node) for node in ("n1", "n2"))
    uid = scene.create(k.pod("moved", options=scene.only("n1", "n2")))
    job = scene.waiting_job(uid)
    with forgotten(scene):
        scene.slurm.scancel(first)
        assert k.node_of(scene.running("moved")) == "n1"
    scene.job_becomes(job.id, "PENDING")
    scene.slurm.scancel(second)
    assert scene.job_becomes(job.id, "RUNNING").nodes == "n2"

    scene.gone("moved", within=BOOT_GRACE + 90)
    assert "now holds n2, not the pod's node n1" in scene.told("moved", "JobEnded")
    _ended_after_the_grace(scene, uid)
    _undisturbed(scene, steady)


def test_a_pod_that_ends_while_its_job_waits_again_leaves_its_exit_code_there(scene: Scene) -> None:
    """slurmctld takes no status of a job that is PENDING."""
    first, _ = (_blocker(scene, node) for node in ("n1", "n2"))
    uid = scene.create(k.pod("moved", options=scene.only("n1", "n2")))
    job = scene.waiting_job(uid)
    with forgotten(scene):
        scene.slurm.scancel(first)
        scene.running("moved")
        seen = scene.stack.metric("slurm_bridge_decisions_total", reason="Bound")
    scene.job_becomes(job.id, "PENDING")
    eventually(
        "the bridge has seen it",
        lambda: scene.stack.metric("slurm_bridge_decisions_total", reason="Bound") > seen,
    )
    scene.finish("moved", 3)
    assert "exit code 3" in scene.job_becomes(job.id, "CANCELLED", within=60).comment


def _blocker(scene: Scene, node: str) -> int:
    """A job of others that has the whole node."""
    number = scene.slurm.submit(required_nodes=[node], minimum_nodes=1, shared=["none"])
    scene.job_becomes(number, "RUNNING")
    return number


def _steady(scene: Scene) -> dict[str, int]:
    for i in range(5):
        scene.create(k.pod(f"steady-{i}", options=scene.only(*scene.stack.facts["nodes"]["external"])))
    return {k.uid(pod): k.job_label(pod) for pod in scene.all_running(5)}


def _undisturbed(scene: Scene, steady: dict[str, int]) -> None:
    now: dict[str, Object] = {k.uid(pod): pod for pod in scene.pods()}
    for uid, number in steady.items():
        assert "deletionTimestamp" not in now[uid]["metadata"]
        assert k.job_label(now[uid]) == number
        job = scene.slurm.job(number)
        assert job is not None
        assert job.running


def test_a_node_that_slurm_conf_has_lost_costs_its_own_pods_only_and_not_at_once(scene: Scene) -> None:
    steady = _steady(scene)
    scene.create(k.pod("there", options=scene.only("n4")))
    pod = scene.running("there")
    with _without_last_node(scene):
        scene.gone("there", within=BOOT_GRACE + 90)
        _ended_after_the_grace(scene, k.uid(pod))
        scene.job_becomes(k.job_label(pod), "NODE_FAIL")
        _undisturbed(scene, steady)


def _ended_after_the_grace(scene: Scene, uid: str) -> None:
    """Nothing is concluded just after a boot. Both times are whole seconds."""
    conf = scene.slurm.ask("GET", "conf").json()
    booted = conf["slurm_conf_meta"]["BOOT_TIME"]
    ended = k.shown(scene.last_of(uid), "DisruptionTarget")["lastTransitionTime"]
    assert datetime.fromisoformat(ended).timestamp() - booted >= BOOT_GRACE


@contextmanager
def _without_last_node(scene: Scene) -> Iterator[None]:
    conf = Path(scene.stack.facts["slurm_conf"])
    whole = conf.read_text()
    count = len(scene.stack.hybrid)
    found = re.search(rf"NodeName=n\[1-{count}\] .* Port=(\d+)-(\d+) ", whole)
    assert found is not None
    fewer = (
        found[0]
        .replace(f"n[1-{count}]", f"n[1-{count - 1}]")
        .replace(f"-{found[2]} ", f"-{int(found[2]) - 1} ")
    )
    conf.write_text(whole.replace(found[0], fewer))
    try:
        scene.stack.restart("slurmctld")
        yield
    finally:
        conf.write_text(whole)
        scene.stack.restart("slurmctld")
