"""Pods and jobs exactly as SlinkyProject/slurm-bridge 1.2 leaves them, and what this bridge does with each of them.

The bridge is away while they are made, as in a switch from one to the other (docs/takeover.md). Such a job has Slurm's
own numbering and lists its pods by name; its pods have the label, the annotation and the finalizer, and no gate.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e import kube as k
from tests.e2e.kube import Object
from tests.e2e.scene import ORPHANED, Scene
from tests.e2e.slurm import Job
from tests.e2e.waiting import eventually, throughout

pytestmark = pytest.mark.real

FINALIZER = "scheduler.slinky.slurm.net/finalizer"
HELD = {"set": True, "number": 0}  # a priority


class Upstream:
    """Does what the Go project does: one job for all pods of a workload, made after them."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def create(self, name: str, **options: Any) -> str:
        uid = self._scene.create(k.pod(name, scheduler=k.ALIAS, **options))
        self._scene.ungate(name)
        return uid

    def submit(self, *names: str, nodes: list[str], **more: Any) -> Job:
        """A job of one node a pod. `nodes`: where it may run."""
        listed = [f"{self._scene.namespace}/{name}" for name in names]
        number = self._scene.slurm.submit(
            name="",
            nodes=str(len(names)),
            required_nodes=nodes,
            tasks_per_node=1,
            cpus_per_task=1,
            memory_per_node={"set": True, "number": 500},
            shared=["none"],
            mcs_label="",
            current_working_directory="/tmp",
            admin_comment=json.dumps({"pods": listed}, separators=(",", ":")),
            **more,
        )
        for name in names:
            meta = {"labels": {k.JOB_LABEL: str(number)}, "finalizers": [FINALIZER]}
            self._scene.patch(name, {"metadata": meta})
        job = self._scene.slurm.job(number)
        assert job is not None
        return job

    def bind(self, name: str, node: str) -> None:
        self._scene.patch(name, {"metadata": {"annotations": {k.NODE: node}}})
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        self._scene.kube.must(
            "POST", f"{self._scene.pods_path}/{name}/binding", {"metadata": {"name": name}, "target": target}
        )

    def running(self, *names: str, nodes: list[str] | None = None) -> Job:
        """Pods of these names on the nodes of one running job."""
        places = nodes or self._scene.stack.hybrid[: len(names)]
        job = self.submit(*names, nodes=places)
        job = self._scene.job_becomes(job.id, "RUNNING")
        for name, node in zip(names, places, strict=True):
            self.bind(name, node)
        for name in names:
            self._scene.running(name)
        return job


@pytest.fixture
def upstream(scene: Scene) -> Upstream:
    return Upstream(scene)


def adopted(scene: Scene, job: int, *uids: str) -> Job:
    """The job, once it carries our mark for these pods. It may be ended by the bridge from now on."""
    scene.slurm.disown(job)

    def look() -> Job | None:
        found = scene.slurm.job(job)
        return found if found is not None and found.uids == set(uids) else None

    found = eventually(f"job {job} is adopted for {uids}", look)
    assert found is not None
    return found


def finalizers(pod: Object) -> list[str]:
    return list(pod["metadata"].get("finalizers", []))


def test_a_running_pod_and_its_job_are_adopted_and_end_with_the_pods_exit_code(
    scene: Scene, upstream: Upstream
) -> None:
    with scene.stack.without("bridge"):
        uid = upstream.create("train")
        job = upstream.running("train")
    found = adopted(scene, job.id, uid)
    raw = scene.slurm.ask("GET", f"job/{job.id}").json()["jobs"][0]
    assert json.loads(raw["admin_comment"])["pods"] == [f"{scene.namespace}/train"]
    pod = scene.get("train")
    assert (k.uid(pod), k.phase(pod), finalizers(pod)) == (uid, "Running", [FINALIZER])
    assert [j.id for j in scene.real_jobs_of([uid])] == [found.id]
    scene.finish("train", exit_code=3)
    ended = scene.job_becomes(job.id, "FAILED")
    assert ended.exit_code == 3
    scene.when("train", "may go", lambda pod: not finalizers(pod))


def test_two_pods_of_a_job_share_theirs_until_the_last_has_ended(scene: Scene, upstream: Upstream) -> None:
    with scene.stack.without("bridge"):
        names = _pods_of_a_job(scene)
        job = upstream.running(*names)
    uids = [k.uid(scene.get(name)) for name in names]
    adopted(scene, job.id, *uids)
    scene.finish(names[0])
    throughout("the job runs as long as one of its pods", 4.0, lambda: _runs(scene, job.id))
    scene.finish(names[1])
    scene.job_becomes(job.id, "COMPLETED")
    for name in names:
        scene.when(name, "may go", lambda pod: not finalizers(pod))


def test_scancel_of_an_adopted_job_deletes_both_its_pods_with_the_reason(
    scene: Scene, upstream: Upstream
) -> None:
    with scene.stack.without("bridge"):
        uids = [upstream.create(name) for name in ("a", "b")]
        job = upstream.running("a", "b")
    adopted(scene, job.id, *uids)
    scene.slurm.scancel(job.id)
    for name in ("a", "b"):
        scene.gone(name)
    for uid in uids:
        shown = k.shown(scene.last_of(uid), "DisruptionTarget")
        assert f"job {job.id} was cancelled in Slurm" in shown["message"]


def test_a_deleted_pod_goes_although_it_has_a_finalizer(scene: Scene, upstream: Upstream) -> None:
    with scene.stack.without("bridge"):
        uid = upstream.create("train")
        job = upstream.running("train")
        scene.delete("train")  # and its object stays, as the finalizer wants
    scene.slurm.disown(job.id)
    scene.gone("train")
    scene.job_becomes(job.id, "CANCELLED")
    assert not scene.slurm.live_jobs_of(uid)


def test_a_job_that_was_cancelled_during_the_switch_ends_its_pod(scene: Scene, upstream: Upstream) -> None:
    with scene.stack.without("bridge"):
        uid = upstream.create("train")
        job = upstream.running("train")
        scene.slurm.scancel(job.id)
        scene.job_becomes(job.id, "CANCELLED")
    scene.gone("train")
    assert f"job {job.id} was cancelled" in k.shown(scene.last_of(uid), "DisruptionTarget")["message"]
    _unmarked(scene, uid)


# --- waiting --------------------------------------------------------------------------------------


def test_a_waiting_pod_keeps_its_job_and_its_place_in_the_queue(scene: Scene, upstream: Upstream) -> None:
    nodes = scene.stack.hybrid[1:3]
    with scene.stack.without("bridge"):
        uid = upstream.create("train")
        job = upstream.submit("train", nodes=nodes, priority=HELD)
    assert "PENDING" in adopted(scene, job.id, uid).states
    scene.says("train", f"job {job.id} is PENDING")
    scene.stack.run("scontrol", "release", str(job.id))
    pod = scene.running("train")
    assert k.node_of(pod) in nodes
    assert [found.id for found in scene.real_jobs_of([uid])] == [job.id]


def test_a_waiting_pod_that_is_deleted_takes_its_job_along(scene: Scene, upstream: Upstream) -> None:
    with scene.stack.without("bridge"):
        upstream.create("train")
        job = upstream.submit("train", nodes=scene.stack.hybrid, priority=HELD)
        scene.delete("train")
    scene.slurm.disown(job.id)
    scene.gone("train")
    scene.job_becomes(job.id, "CANCELLED")


def test_two_pods_that_wait_for_one_job_get_one_each(scene: Scene, upstream: Upstream) -> None:
    with scene.stack.without("bridge"):
        uids = [upstream.create(name) for name in ("a", "b")]
        job = upstream.submit("a", "b", nodes=scene.stack.hybrid, priority=HELD)
    scene.slurm.disown(job.id)
    assert "get a job each" in scene.job_becomes(job.id, "CANCELLED").comment
    pods = scene.all_running(2)
    assert len({k.job_label(pod) for pod in pods}) == 2
    assert {k.uid(pod) for pod in pods} == set(uids)
    assert len(scene.real_jobs_of(uids)) == 2


# --- what an edited label gains -------------------------------------------------------------------


@pytest.mark.parametrize("whose", ["native", "another cluster"])
def test_a_label_that_names_somebody_elses_job_gains_nothing(
    scene: Scene, upstream: Upstream, whose: str
) -> None:
    if whose == "native":
        victim = scene.slurm.sbatch("--mem=100")
        eventually("it runs", lambda: (j := scene.slurm.job(victim)) is not None and j.states == {"RUNNING"})
    else:  # whose Go project has a pod of the same name
        victim = _of_another_cluster(scene, "greedy")
        scene.job_becomes(victim, "PENDING")
    before = scene.slurm.job(victim)
    with scene.stack.without("bridge"):
        uid = upstream.create("greedy")
        meta = {"labels": {k.JOB_LABEL: str(victim)}, "finalizers": [FINALIZER]}
        scene.patch("greedy", {"metadata": meta})
        upstream.bind("greedy", scene.stack.hybrid[0])
    scene.says("greedy", f"job {victim} is not this bridge's, and is left alone")
    assert scene.slurm.job(victim) == before
    scene.slurm.scancel(victim)
    throughout("its end is no evidence", 4.0, lambda: k.phase(scene.get("greedy")) == "Running")
    scene.delete("greedy")
    scene.gone("greedy")
    _unmarked(scene, uid)


# --- an hour away ---------------------------------------------------------------------------------


def test_a_bridge_that_was_away_catches_up(scene: Scene) -> None:
    names = ("finished", "lost", "cancelled", "stays")
    for name in names:
        scene.create(k.pod(name))
    jobs = {name: k.job_label(scene.running(name)) for name in names}
    stays = k.uid(scene.get("stays"))
    with scene.stack.without("bridge"):
        scene.finish("finished", exit_code=7)
        scene.delete("lost", gracePeriodSeconds=0)
        scene.gone("lost")
        scene.slurm.scancel(jobs["cancelled"])
        scene.job_becomes(jobs["cancelled"], "CANCELLED")
        scene.create(k.pod("new"))
    assert scene.job_becomes(jobs["finished"], "FAILED").exit_code == 7
    scene.gone("cancelled")
    scene.running("new")
    # Its grace and a margin, counted from the first look: nobody saw it go.
    lost = scene.job_becomes(jobs["lost"], "CANCELLED", within=ORPHANED)
    assert "exit unknown" in lost.comment
    assert k.uid(scene.running("stays")) == stays
    assert _runs(scene, jobs["stays"])


# --- what the tests need --------------------------------------------------------------------------


def _of_another_cluster(scene: Scene, name: str) -> int:
    """A waiting job that is marked like one of this very namespace, and asks for no node of this cluster."""
    return scene.slurm.submit(
        name="", nodes="1", priority=HELD, admin_comment=json.dumps({"pods": [f"{scene.namespace}/{name}"]})
    )


def _unmarked(scene: Scene, uid: str) -> None:
    """The invariants know a pod's job by our mark: a job that isn't adopted is no business of theirs."""
    scene.last_of(uid)
    del scene.witness.last[uid], scene.witness.bindings[uid]


def _runs(scene: Scene, number: int) -> bool:
    job = scene.slurm.job(number)
    return job is not None and job.running


def _pods_of_a_job(scene: Scene) -> list[str]:
    template = k.pod("unused", scheduler=k.ALIAS)
    scene.kube.must(
        "POST",
        scene.jobs_path,
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "pair"},
            "spec": {
                "completions": 2,
                "parallelism": 2,
                "completionMode": "Indexed",
                "backoffLimit": 0,
                "template": {"metadata": {}, "spec": template["spec"]},
            },
        },
    )
    pods = eventually("both pods are there", lambda: found if len(found := scene.pods()) == 2 else [])
    names = sorted(pod["metadata"]["name"] for pod in pods)
    for name in names:
        scene.ungate(name)
    return names
