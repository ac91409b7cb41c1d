"""How a running pod and its job end: whoever ends one of them, the other follows, and in the right order."""

from __future__ import annotations

from datetime import datetime

import pytest

from tests.e2e import kube as k
from tests.e2e.kube import Object
from tests.e2e.scene import Scene
from tests.e2e.stages import in_both_modes
from tests.e2e.waiting import eventually, throughout

pytestmark = pytest.mark.real


@in_both_modes
def test_cancelling_the_job_of_a_running_pod_deletes_the_pod_and_says_so(scene: Scene) -> None:
    uid = scene.create(k.pod("victim"))
    job = scene.job_of(scene.running("victim"))
    scene.slurm.scancel(job.id)
    scene.gone("victim")
    assert f"job {job.id} was cancelled in Slurm" in scene.told("victim", "JobEnded")
    _disrupted(scene.last_of(uid))


@in_both_modes
def test_a_persons_mass_cancel_ends_every_pod(scene: Scene) -> None:
    for i in range(20):
        scene.create(k.pod(f"many-{i}"))
    pods = scene.all_running(20)
    scene.stack.run("scancel", *(str(k.job_label(pod)) for pod in pods))
    eventually("all pods are gone", lambda: not scene.pods())


@in_both_modes
def test_the_job_of_a_deleted_pod_stays_until_its_containers_are_dead(scene: Scene) -> None:
    uid = scene.create(k.pod("slow", gpus=1, grace=30, dies_after=4))
    job = scene.job_of(scene.running("slow"))
    scene.delete("slow")

    def dying() -> bool:
        pod = scene.find("slow")
        return pod is not None and k.phase(pod) == "Running"

    held = 0
    while dying():
        now = scene.slurm.job(job.id)
        assert now is not None
        # The containers may have died between the two questions; then the answer says nothing.
        assert now.running or not dying(), "the job ended before the containers did"
        held += 1
    assert held
    ended = scene.job_becomes(job.id, "CANCELLED", "COMPLETED", "FAILED")
    scene.gone("slow")
    died = scene.last_of(uid)["status"]["containerStatuses"][0]["state"]["terminated"]["finishedAt"]
    assert ended.ended >= _seconds(died)


@in_both_modes
def test_a_job_that_ignores_disruptions_replaces_a_cancelled_pod_under_a_new_job(scene: Scene) -> None:
    pod = k.pod("worker")
    rules = [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
    scene.kube.must(
        "POST",
        scene.jobs_path,
        {
            "metadata": {"name": "keeps-going"},
            "spec": {
                "backoffLimit": 0,  # one failure that counts would end it
                "podFailurePolicy": {"rules": rules},
                "template": {"metadata": {"annotations": {}}, "spec": pod["spec"]},
            },
        },
    )
    first = scene.all_running(1)[0]
    scene.slurm.scancel(k.job_label(first))

    def replaced() -> Object | None:
        others = [p for p in scene.pods() if k.uid(p) != k.uid(first) and k.phase(p) == "Running"]
        return others[0] if others else None

    second = eventually("another pod runs", replaced)
    assert second is not None
    assert k.job_label(second) != k.job_label(first)

    def counted() -> Object | None:
        """Once the Job's controller has written what it did."""
        status: Object = scene.kube.must("GET", f"{scene.jobs_path}/keeps-going")["status"]
        return status if status.get("active") == 1 and not status.get("terminating") else None

    status = eventually("the Job counts its pod", counted)
    assert status is not None
    assert status.get("failed", 0) == 0


@in_both_modes
def test_a_pod_created_again_under_its_old_name_gets_a_job_of_its_own(scene: Scene) -> None:
    scene.create(k.pod("w-0", run=1))
    first = scene.ended("w-0")
    scene.job_becomes(k.job_label(first), "COMPLETED")
    scene.delete("w-0")
    scene.gone("w-0")
    scene.create(k.pod("w-0"))
    second = scene.running("w-0")
    assert k.job_label(second) != k.job_label(first)
    assert scene.job_of(second).uids == {k.uid(second)}


def test_a_pod_whose_job_is_suspended_lives_on(scene: Scene) -> None:
    scene.create(k.pod("paused", options=scene.only("n1", "n2")))
    pod = scene.running("paused")
    number = str(k.job_label(pod))
    seen = scene.stack.metric("slurm_bridge_decisions_total", reason="Suspended")
    scene.stack.run("scontrol", "suspend", number)
    eventually(
        "the bridge has seen it",
        lambda: scene.stack.metric("slurm_bridge_decisions_total", reason="Suspended") > seen,
    )
    assert "deletionTimestamp" not in scene.get("paused")["metadata"]
    scene.stack.run("scontrol", "resume", number)
    scene.job_becomes(int(number), "RUNNING")
    assert k.uid(scene.get("paused")) == k.uid(pod)


def test_a_container_that_cannot_start_fails_its_job(scene: Scene) -> None:
    pod = k.pod("unstartable")
    pod["metadata"]["annotations"]["bench/fail-start"] = "true"
    scene.create(pod)
    number = k.job_label(scene.ended("unstartable"))
    assert scene.job_becomes(number, "FAILED").exit_code == 128


def test_a_pod_deleted_by_force_keeps_its_job_while_its_containers_may_live(scene: Scene) -> None:
    scene.create(k.pod("forced", gpus=1, grace=1))
    job = scene.job_of(scene.running("forced"))
    scene.delete("forced", gracePeriodSeconds=0)
    scene.gone("forced")

    def holds() -> bool:
        now = scene.slurm.job(job.id)
        return now is not None and now.running

    throughout("the job of a force-deleted pod holds its GPU", 10, holds)
    # Its grace of one second and the bridge's margin of sixty.
    scene.job_becomes(job.id, "CANCELLED", "COMPLETED", "FAILED", within=120)


@in_both_modes
def test_a_preempted_pod_is_deleted_as_a_disruption(scene: Scene) -> None:
    uid = scene.create(k.pod("yields", options=scene.only("n1")))
    number = k.job_label(scene.running("yields"))
    scene.slurm.sbatch("--partition=hi", "--exclusive", "--nodelist=n1", "--mem=1000")
    scene.gone("yields")
    scene.job_becomes(number, "PREEMPTED")
    _disrupted(scene.last_of(uid))


def test_a_pod_is_ended_at_its_own_time_limit_before_slurm_ends_its_job(scene: Scene) -> None:
    uid = scene.create(k.pod("limited", options={"timelimit": "1"}))
    job = scene.job_of(scene.running("limited"))
    assert job.time_limit > 1, "Slurm would free the GPUs before the containers are dead"
    scene.gone("limited", within=120)
    ended = scene.job_becomes(job.id, "CANCELLED", "COMPLETED", "FAILED")
    assert ended.ended - ended.started >= 60
    _disrupted(scene.last_of(uid))
    assert "its time limit of 1 min" in scene.told("limited", "TimeLimit")


def test_the_finalizer_of_the_go_project_never_holds_up_a_delete(scene: Scene) -> None:
    pod = k.pod("inherited")
    pod["metadata"]["finalizers"] = ["scheduler.slinky.slurm.net/finalizer"]
    scene.create(pod)
    number = k.job_label(scene.running("inherited"))
    scene.delete("inherited")
    scene.gone("inherited")
    assert not scene.job_becomes(number, "CANCELLED", "COMPLETED", "FAILED").live


def _disrupted(pod: Object) -> None:
    assert k.shown(pod, "DisruptionTarget")["status"] == "True"


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
