"""What people type at the jobs of running pods: a cancel is obeyed, whatever the number; all else leaves pods alone."""

from __future__ import annotations

import pytest

from tests.e2e import kube as k
from tests.e2e.scene import Scene
from tests.e2e.waiting import eventually, throughout

pytestmark = pytest.mark.real
CROWD = 30
TYPED = {
    "hold": "scontrol hold JOB",
    "requeue": "scontrol requeue JOB",  # refused: external jobs have nothing that could run again
    "requeuehold": "scontrol requeuehold JOB",
    "limit": "scontrol update jobid=JOB timelimit=600",
    "priority": "scontrol update jobid=JOB priority=7",
    "comment": "scontrol update jobid=JOB comment=hello",
    "term": "scancel --signal=TERM JOB",
    "stop": "scancel --signal=STOP JOB",
    "usr1": "scancel --signal=USR1 JOB",
}


def test_whatever_else_people_type_at_a_running_job_leaves_its_pod_alone(scene: Scene) -> None:
    for name in TYPED:
        scene.create(k.pod(name, options=scene.only("n1", "n2")))
    pods = {pod["metadata"]["name"]: pod for pod in scene.all_running(len(TYPED))}
    jobs = {k.uid(pod): k.job_label(pod) for pod in pods.values()}
    for name, typed in TYPED.items():
        scene.stack.run(*typed.replace("JOB", str(k.job_label(pods[name]))).split(), check=False)

    def unharmed() -> bool:
        now = {k.uid(p): k.job_label(p) for p in scene.pods() if "deletionTimestamp" not in p["metadata"]}
        return now == jobs

    throughout("every pod lives on under its job", 5.0, unharmed)
    assert all(scene.job_of(pod).running for pod in pods.values())


def test_all_jobs_of_a_user_cancelled_at_once_take_their_pods_along(scene: Scene) -> None:
    for i in range(CROWD):
        scene.create(k.pod(f"many-{i}"))
    pods = scene.all_running(CROWD)
    scene.stack.run("scancel", "--user=slurm", "--state=RUNNING")
    eventually("all pods are gone", lambda: not scene.pods())
    assert "breaker open" not in scene.stack.bridge.get("/readyz").text
    for pod in pods:
        assert k.shown(scene.last_of(k.uid(pod)), "DisruptionTarget")["status"] == "True"


def test_a_binding_asked_for_again_is_a_success_and_never_another_place(scene: Scene) -> None:
    """What kube-scheduler does when the answer was lost."""
    scene.create(k.pod("bound"))
    pod = scene.running("bound")
    elsewhere = next(node for node in scene.stack.nodes if node != k.node_of(pod))
    asked = {"PodName": "bound", "PodNamespace": scene.namespace, "PodUID": k.uid(pod)}
    for node, well in ((k.node_of(pod), True), (elsewhere, False)):
        answer = scene.stack.bridge.post("/scheduler/bind", json=asked | {"Node": node}).json()
        assert (not answer["Error"]) == well, answer
    assert scene.job_of(scene.get("bound")).running
    assert [job.id for job in scene.real_jobs_of([k.uid(pod)])] == [k.job_label(pod)]


def test_a_mark_that_somebody_overwrites_is_written_again_and_its_job_ends_with_its_pod(scene: Scene) -> None:
    uid = scene.create(k.pod("noted", gpus=1))
    job = k.job_label(scene.running("noted"))
    with scene.stack.without("bridge"):
        scene.stack.run("scontrol", "update", f"jobid={job}", "AdminComment=looked at by bob")
        assert not scene.slurm.jobs_of(uid)
    eventually("the job says whose it is", lambda: [found.id for found in scene.slurm.jobs_of(uid)] == [job])
    scene.finish("noted", 3)
    assert scene.job_becomes(job, "FAILED").exit_code == 3
