"""Between Slurm's grant and the binding: what was granted in vain goes back, what was lost on the way is repaired."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bridge.core import hostlist
from tests.e2e import kube as k
from tests.e2e.kube import Object
from tests.e2e.scene import Scene
from tests.e2e.slurm import Job
from tests.e2e.stages import in_both_modes
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.real


@contextmanager
def _cordoned(scene: Scene, node: str) -> Iterator[None]:
    scene.kube.cordon(node, True)
    try:
        yield
    finally:
        scene.kube.cordon(node, False)


def _avoids(job: Job, node: str) -> Job | None:
    return job if node in hostlist.expand(job.excluded) else None


def test_a_cordoned_node_is_not_even_asked_for(scene: Scene) -> None:
    fillers = [scene.slurm.sbatch("--exclusive", f"--nodelist={node}") for node in ("n1", "n2")]
    for filler in fillers:
        scene.job_becomes(filler, "RUNNING")
    with _cordoned(scene, "n1"):
        uid = scene.create(k.pod("avoids", options=scene.only("n1", "n2")))
        job = eventually("its job avoids n1", lambda: _avoids(scene.waiting_job(uid), "n1"))
        for filler in fillers:
            scene.slurm.scancel(filler)
        pod = scene.running("avoids")
    assert job is not None
    assert (k.node_of(pod), k.job_label(pod)) == ("n2", job.id)
    assert not k.annotation(pod, k.ATTEMPT)


@in_both_modes
def test_a_grant_whose_node_is_cordoned_before_the_binding_goes_back(scene: Scene) -> None:
    filler = scene.slurm.sbatch("--exclusive", "--nodelist=n2")
    scene.job_becomes(filler, "RUNNING")
    with scene.stack.stopped("scheduler"):
        uid = scene.create(k.pod("moves", options=scene.only("n1", "n2")))
        granted = scene.when("moves", "is handed over", lambda pod: k.annotation(pod, k.NODE) == "n1")
        with _cordoned(scene, "n1"):
            scene.when("moves", "has lost its grant", lambda pod: k.annotation(pod, k.ATTEMPT))
            job = scene.waiting_job(uid)
            scene.slurm.scancel(filler)
            scene.when("moves", "is granted n2", lambda pod: k.annotation(pod, k.NODE) == "n2")
    pod = scene.running("moves")
    assert (k.node_of(pod), k.job_label(pod), job.mark["attempt"]) == ("n2", job.id, 1)
    attempt = json.loads(k.annotation(pod, k.ATTEMPT))
    assert (attempt["attempt"], attempt["closed"]) == (1, ["n1"])
    first = scene.slurm.job(k.job_label(granted))
    assert first is not None
    assert (first.nodes, first.live) == ("n1", False)
    assert [j.id for j in scene.slurm.live_jobs_of(uid)] == [job.id]


def test_a_grant_that_kube_scheduler_cannot_use_goes_back_and_the_pod_gets_another(scene: Scene) -> None:
    """Slurm isn't told about affinity to other pods; the pod is moved on after the time that a binding may take."""
    blocker = scene.slurm.submit(required_nodes=["k0001"], minimum_nodes=1, shared=["none"])
    scene.job_becomes(blocker, "RUNNING")
    friend = k.pod("friend", scheduler="default-scheduler")
    friend["metadata"]["labels"] = {"app": "friend"}
    friend["spec"]["nodeName"] = "k0001"
    scene.create(friend)
    picky = k.pod("picky", options=scene.only("n1", "k0001"))
    near = {"labelSelector": {"matchLabels": {"app": "friend"}}, "topologyKey": "kubernetes.io/hostname"}
    picky["spec"]["affinity"] = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near]}}
    uid = scene.create(picky)
    scene.when("picky", "is granted n1", lambda pod: k.annotation(pod, k.NODE) == "n1")
    scene.slurm.scancel(blocker)
    pod = scene.running("picky", within=90)
    assert k.node_of(pod) == "k0001"
    assert json.loads(k.annotation(pod, k.ATTEMPT))["excluded"] == ["n1"]
    assert [j.id for j in scene.slurm.live_jobs_of(uid)] == [k.job_label(pod)]


@in_both_modes
def test_a_lost_nomination_is_made_again(scene: Scene) -> None:
    with scene.stack.stopped("scheduler"):
        uid = scene.create(k.pod("named"))
        pod = scene.when("named", "is handed over", lambda pod: k.job_label(pod) and not k.gates(pod))
        node = pod["status"]["nominatedNodeName"]
        assert node == k.annotation(pod, k.NODE)
        scene.patch("named", {"status": {"nominatedNodeName": None}}, subresource="/status")
        scene.when(
            "named", "is nominated again",
            lambda pod: pod["status"].get("nominatedNodeName") == node, within=20,
        )  # fmt: skip
        assert not k.node_of(scene.get("named"))
    assert k.node_of(scene.running("named")) == node
    assert len(scene.slurm.live_jobs_of(uid)) == 1


@in_both_modes
def test_a_job_cancelled_between_grant_and_binding_takes_its_pod_along(scene: Scene) -> None:
    with scene.stack.stopped("scheduler"):
        scene.create(k.pod("almost"))
        pod = scene.when("almost", "is handed over", lambda pod: k.job_label(pod) and not k.gates(pod))
        scene.slurm.scancel(k.job_label(pod))
        scene.gone("almost")
    eventually("the scheduler is back", lambda: scene.stack.runs("scheduler"))


@in_both_modes
def test_a_pod_deleted_between_grant_and_binding_gives_its_nodes_back(scene: Scene) -> None:
    with scene.stack.stopped("scheduler"):
        uid = scene.create(k.pod("leaves"))
        scene.when("leaves", "is handed over", lambda pod: k.job_label(pod) and not k.gates(pod))
        scene.delete("leaves")
        scene.no_live_jobs([uid], within=20, promised=True)  # less than a binding may take


def test_a_bound_pod_that_is_called_unscheduled_is_set_right(scene: Scene) -> None:
    """What kube-scheduler writes when the answer to a binding comes too late."""
    scene.create(k.pod("maligned"))
    scene.running("maligned")
    wrong = {"type": "PodScheduled", "status": "False", "reason": "SchedulerError"}
    scene.patch("maligned", {"status": {"conditions": [wrong]}}, subresource="/status")

    def right(pod: Object) -> bool:
        shown = k.condition(pod, "PodScheduled")
        return shown is not None and shown["status"] == "True"

    scene.when("maligned", "is called scheduled again", right)
