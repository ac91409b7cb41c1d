"""A pod that Slurm has no room for yet: what its owner sees, and what ends the wait."""

from __future__ import annotations

import time

import pytest

from tests.e2e import kube as k
from tests.e2e.scene import ORPHANED, Scene
from tests.e2e.slurm import Job
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.real
PROMPT = 10.0  # seconds; promised is one, and the sweep would take a minute


@pytest.fixture
def filler(scene: Scene) -> int:
    """A native job that has all of n1."""
    number = scene.slurm.sbatch("--exclusive", "--nodelist=n1")
    scene.job_becomes(number, "RUNNING")
    return number


def _wait_for_n1(scene: Scene) -> tuple[str, Job]:
    """A pod that only n1 can take, and its job in Slurm's queue."""
    uid = scene.create(k.pod("waits", options=scene.only("n1")))
    return uid, scene.waiting_job(uid)


def _agrees(scene: Scene, uid: str) -> bool:
    return f"({scene.waiting_job(uid).reason})" in k.shown(scene.get("waits"), k.CONDITION)["message"]


def test_a_waiting_pod_says_what_slurm_says_and_runs_when_there_is_room(scene: Scene, filler: int) -> None:
    uid, job = _wait_for_n1(scene)
    assert str(job.id) in scene.says("waits", "PENDING (")
    # It is written at most once a minute.
    eventually("its condition has Slurm's reason", lambda: _agrees(scene, uid), within=120)
    shown = k.shown(scene.get("waits"), k.CONDITION)
    assert (shown["status"], shown["reason"]) == ("False", "Pending")
    assert k.gates(scene.get("waits")) == {k.GATE}

    scene.slurm.scancel(filler)
    pod = scene.running("waits")
    assert (k.job_label(pod), k.node_of(pod)) == (job.id, "n1")
    assert k.shown(pod, k.CONDITION)["status"] == "True"


def test_deleting_a_waiting_pod_ends_its_job_promptly(scene: Scene, filler: int) -> None:
    _, job = _wait_for_n1(scene)
    scene.delete("waits")
    scene.job_becomes(job.id, "CANCELLED", within=PROMPT)


def test_pods_deleted_while_their_jobs_are_asked_for_leave_none(scene: Scene) -> None:
    uids = []
    for i in range(10):
        uids.append(scene.create(k.pod(f"brief-{i}", gpus=1)))
        scene.delete(f"brief-{i}")
    eventually("the pods are gone", lambda: not scene.pods())
    bound = [
        uid for uid in uids if scene.last_of(uid)["spec"].get("nodeName")
    ]  # just in time; they have their grace
    scene.no_live_jobs([uid for uid in uids if uid not in bound], within=PROMPT)
    scene.no_live_jobs(bound, within=ORPHANED)


def test_cancelling_the_job_of_a_waiting_pod_deletes_the_pod(scene: Scene, filler: int) -> None:
    uid, job = _wait_for_n1(scene)
    scene.slurm.scancel(job.id)
    scene.gone("waits")
    assert [j.id for j in scene.slurm.jobs_of(uid) if j.id != job.id and j.live] == []
    assert str(job.id) in scene.told("waits", "Cancelled")


def test_a_waiting_pod_that_can_no_longer_meet_its_deadline_goes_with_its_job(
    scene: Scene, filler: int
) -> None:
    # Slurm gives it up when the limit that it was sent (a minute, grace, margin) no longer fits in.
    late = {"timelimit": "1", "deadline": str(int(time.time()) + 240)}
    uid = scene.create(k.pod("late", options=scene.only("n1") | late))
    job = scene.waiting_job(uid)
    scene.gone("late", within=240)
    assert "DEADLINE" in scene.job_becomes(job.id, "DEADLINE").states
    assert "could no longer end before its deadline" in scene.told("late", "JobEnded")
    assert [j.id for j in scene.real_jobs_of([uid])] == [job.id]


def test_a_pod_without_our_gate_is_bound_only_after_the_grant(scene: Scene, filler: int) -> None:
    uid = scene.create(k.pod("open", options=scene.only("n1")))
    scene.ungate("open")
    job = scene.waiting_job(uid)
    scene.is_refused("open")

    scene.slurm.scancel(filler)
    assert k.job_label(scene.running("open")) == job.id


def test_nothing_is_submitted_while_another_gate_is_on_the_pod(scene: Scene) -> None:
    other = "example.com/quota"
    held = scene.create(k.pod("held", gates=(other,)))
    # A pod created later is through while the first has not even a job: it was looked at and left alone.
    scene.create(k.pod("later"))
    scene.running("later")
    assert scene.slurm.jobs_of(held) == []
    scene.patch("held", {"spec": {"schedulingGates": [{"name": other, "$patch": "delete"}]}})
    scene.running("held")


def test_a_mistyped_option_is_told_with_the_nearest_known_one(scene: Scene) -> None:
    uid = scene.create(k.pod("typo", options={"timelimt": "5"}))
    assert "timelimit" in scene.says("typo", "timelimt")
    assert scene.slurm.jobs_of(uid) == []


def test_what_slurm_can_never_give_is_told_in_its_own_words(scene: Scene) -> None:
    uid = scene.create(k.pod("greedy", options={"gres": "gres/gpu:99"}))
    scene.says("greedy", "Requested node configuration is not available")
    assert k.gates(scene.get("greedy")) == {k.GATE}
    assert scene.slurm.live_jobs_of(uid) == []
