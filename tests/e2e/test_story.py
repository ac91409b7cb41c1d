"""The story that the README tells: pods and sbatch jobs share the same nodes, and Slurm decides who gets what."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e import kube as k
from tests.e2e.scene import Scene
from tests.e2e.slurm import parse_indices
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.real
HYBRID = {"constraints": "slurmd"}  # the nodes that run sbatch jobs, too


def test_a_pod_a_job_and_an_sbatch_job_share_the_nodes_and_complete_on_both_sides(
    either_scene: Scene,
) -> None:
    scene = either_scene
    over = Path(scene.stack.facts["slurm_tmp_dir"]) / f"over-{scene.namespace}"
    batch = scene.slurm.sbatch(
        "--mem=1000",
        "--gres=gpu:2",
        "--constraint=slurmd",
        script=f"echo GPUs=$CUDA_VISIBLE_DEVICES; until [ -e /tmp/{over.name} ]; do sleep 0.2; done",
    )
    scene.create(k.pod("alone", gpus=1, options=HYBRID))
    _create_job(scene, "train", pods=2, gpus=1)

    pods = scene.all_running(3)
    native = scene.job_becomes(batch, "RUNNING")
    queue = dict(line.split() for line in scene.stack.run("squeue", "-h", "-o", "%i %N").splitlines())
    for pod in pods:
        job = scene.job_of(pod)
        assert queue[str(job.id)] == job.nodes == k.node_of(pod)
        assert k.node_of(pod) in scene.stack.hybrid
        assert len(job.gpus) == len(parse_indices(k.annotation(pod, k.GPUS))) == 1
        assert k.uid(pod) in job.uids
    devices = [device for pod in pods for device in scene.job_of(pod).gpus]
    assert len(set(devices) | native.gpus) == len(devices) + len(native.gpus) == 5

    over.touch()
    for pod in pods:
        scene.finish(pod["metadata"]["name"])
        done = scene.job_becomes(k.job_label(pod), "COMPLETED")
        assert done.exit_code == 0
    scene.job_becomes(batch, "COMPLETED")
    controller = f"{scene.jobs_path}/train"
    eventually(
        "the Job is complete", lambda: scene.kube.must("GET", controller)["status"].get("succeeded") == 2
    )


def test_a_pod_that_fails_gives_its_exit_code_to_its_job(either_scene: Scene) -> None:
    either_scene.create(k.pod("broken", run=1, exit_code=3))
    assert k.phase(either_scene.ended("broken")) == "Failed"
    job = either_scene.job_becomes(k.job_label(either_scene.get("broken")), "FAILED")
    assert job.exit_code == 3


def test_pods_that_ask_for_nothing_share_a_node_and_one_that_asks_for_all_has_it_alone(
    either_scene: Scene,
) -> None:
    scene = either_scene
    first = scene.stack.hybrid[0]
    for name in ("small-1", "small-2"):
        pod = k.pod(name, options=scene.only(first))
        del pod["spec"]["containers"][0]["resources"]
        scene.create(pod)
    for name in ("small-1", "small-2"):
        assert scene.job_of(scene.running(name)).memory == 256
    scene.create(k.pod("whole", options={"exclusive": "true", **HYBRID}))
    alone = scene.job_of(scene.running("whole"))
    assert alone.nodes != first
    assert [job.id for job in scene.slurm.jobs() if job.running and job.nodes == alone.nodes] == [alone.id]


def test_what_a_job_annotates_counts_for_its_pods(scene: Scene) -> None:
    _create_job(scene, "noted", pods=1, gpus=0, options={"comment": "from the Job"})
    pod = scene.all_running(1)[0]
    assert scene.job_of(pod).comment == "from the Job"


def test_the_scheduler_name_of_the_go_project_works_too(scene: Scene) -> None:
    scene.create(k.pod("alias", scheduler=k.ALIAS))
    scene.running("alias")


def test_admission_gates_only_our_pods_and_keeps_what_they_bring(scene: Scene) -> None:
    scene.create(k.pod("ours", gates=("example.com/quota",)))
    ours = scene.get("ours")
    assert k.gates(ours) == {k.GATE, "example.com/quota"}
    assert any(t.get("key") == k.TAINT and t["operator"] == "Exists" for t in ours["spec"]["tolerations"])

    scene.create(k.pod("theirs", scheduler="default-scheduler"))
    theirs = scene.running("theirs")
    assert not any(t.get("key") == k.TAINT for t in theirs["spec"].get("tolerations", []))


def _create_job(
    scene: Scene, name: str, *, pods: int, gpus: int, options: dict[str, str] | None = None
) -> None:
    """What `kubectl create job` makes, with the lines that a user adds to have it placed by Slurm."""
    made = scene.kubectl(
        "create", "job", name, "--image=busybox", "--dry-run=client", "-o", "json", "--", "train"
    )
    job = json.loads(made)
    ours = k.pod(name, gpus=gpus, options=HYBRID)
    template = job["spec"]["template"]
    template["metadata"] = {"annotations": ours["metadata"]["annotations"]}
    template["spec"]["schedulerName"] = k.SCHEDULER
    template["spec"]["containers"][0]["resources"] = ours["spec"]["containers"][0]["resources"]
    job["spec"] |= {"parallelism": pods, "completions": pods}
    job["metadata"]["annotations"] = {k.OPTION + key: value for key, value in (options or {}).items()}
    scene.kubectl("apply", "-f", "-", stdin=json.dumps(job))
