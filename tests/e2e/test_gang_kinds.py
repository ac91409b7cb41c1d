"""JobSets, LeaderWorkerSets and PodGroups, made by their real controllers, are one job of Slurm's each."""

from __future__ import annotations

import json
import re

import pytest

from bridge.core.hostlist import expand
from bridge.names import RANK_ANNOTATION
from tests.e2e import kube as k
from tests.e2e.kube import Object
from tests.e2e.scene import Scene
from tests.e2e.slurm import Job
from tests.e2e.test_kinds import (
    GROUPS,
    JOBSETS,
    LEADER_WORKER_SETS,
    POD_GROUPS,
    WORKLOADS,
    applied,
    one_of,
    template,
)
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.real

TRAIN_JOBS = ("trainer.kubeflow.org/v1alpha1", "TrainJob", "trainjobs")
RAY_CLUSTERS = ("ray.io/v1", "RayCluster", "rayclusters")
LWS = "leaderworkerset.sigs.k8s.io/"


def _jobs(scene: Scene, pods: list[Object]) -> list[Job]:
    numbers = {k.job_label(pod) for pod in pods}
    found = [scene.slurm.job(number) for number in sorted(filter(None, numbers))]
    return [job for job in found if job is not None]


def _one_job(scene: Scene, pods: list[Object]) -> Job:
    (job,) = _jobs(scene, pods)
    assert job.uids == {k.uid(pod) for pod in pods}
    return job


def test_all_pods_of_a_jobset_that_asks_for_it_are_one_job(scene: Scene) -> None:
    spec = {"replicatedJobs": [one_of("driver", 1, 1), one_of("workers", 2, 2)]}
    with applied(scene, JOBSETS, "train", spec, {"gang": "true"}) as path:
        pods = scene.all_running(5)
        job = _one_job(scene, pods)
        for pod in pods:
            scene.finish(pod["metadata"]["name"])
        scene.job_becomes(job.id, "COMPLETED")
        eventually(
            "the JobSet is complete",
            lambda: scene.kube.must("GET", path).get("status", {}).get("terminalState") == "Completed",
        )


def _sized(pods: Object, *, gpus: int) -> Object:
    """The same template with so many GPUs for each of its pods."""
    for container in pods["spec"]["containers"]:
        for amounts in container["resources"].values():
            amounts["nvidia.com/gpu"] = str(gpus)
    return pods


def _parts(scene: Scene, job: Job) -> list[tuple[int, str, int]]:
    """Of each component: tasks, nodes, GPUs."""
    found = scene.slurm.ask("GET", f"job/{job.id}").json()["jobs"]
    counted = [(one["tasks"]["number"], one["nodes"], ",".join(one["gres_detail"])) for one in found]
    return [(tasks, nodes, sum(map(int, re.findall(r"h100:(\d+)", gres)))) for tasks, nodes, gres in counted]


def test_a_jobset_of_pods_of_different_sizes_is_one_job_with_a_component_for_each_size(scene: Scene) -> None:
    workers = one_of("workers", 1, 2)
    _sized(workers["template"]["spec"]["template"], gpus=2)
    with applied(
        scene, JOBSETS, "train", {"replicatedJobs": [one_of("driver", 1, 1), workers]}, {"gang": "true"}
    ):
        pods = scene.all_running(3)
        job = _one_job(scene, pods)
        (one, small, none), (two, large, four) = _parts(scene, job)
        assert ((one, none), (two, four)) == ((1, 0), (2, 4))
        assert small not in expand(large)
        for pod in pods:
            driver = "driver" in pod["metadata"]["name"]
            assert (k.node_of(pod) == small) is driver
        for pod in pods:
            scene.finish(pod["metadata"]["name"], 0 if "driver" in pod["metadata"]["name"] else 3)
        scene.job_becomes(job.id, "FAILED")


def test_a_person_who_cancels_one_component_ends_the_whole_gang(scene: Scene) -> None:
    workers = one_of("workers", 1, 1)
    _sized(workers["template"]["spec"]["template"], gpus=1)
    with applied(
        scene, JOBSETS, "train", {"replicatedJobs": [one_of("driver", 1, 1), workers]}, {"gang": "true"}
    ):
        pods = scene.all_running(2)
        job = _one_job(scene, pods)
        scene.slurm.scancel(job.id + 1)
        eventually(
            "its pods are gone",
            lambda: {k.uid(p) for p in scene.pods()}.isdisjoint(k.uid(p) for p in pods),
            60,
        )
        eventually("the rest of the job ends", lambda: not scene.slurm.live_jobs_of(*map(k.uid, pods)), 60)


def test_a_leader_that_asks_for_less_than_its_workers_has_a_component_of_its_own(scene: Scene) -> None:
    leader, workers = template(), _sized(template(), gpus=1)
    for one in (leader, workers):
        one["spec"]["restartPolicy"] = "Always"
    spec = {
        "replicas": 1,
        "leaderWorkerTemplate": {"size": 3, "leaderTemplate": leader, "workerTemplate": workers},
    }
    with applied(scene, LEADER_WORKER_SETS, "serve", spec, {}):
        pods = scene.all_running(3)
        job = _one_job(scene, pods)
        assert [(tasks, gpus) for tasks, _, gpus in _parts(scene, job)] == [(1, 0), (2, 2)]


def test_a_gang_does_not_wait_for_pods_whose_template_says_that_they_are_of_none(scene: Scene) -> None:
    spec = {"replicatedJobs": [one_of("log", 1, 1, {"gang": "false"}), one_of("workers", 1, 2)]}
    with applied(scene, JOBSETS, "train", spec, {"gang": "true"}):
        jobs = _jobs(scene, scene.all_running(3))
        assert sorted(len(job.uids) for job in jobs) == [1, 2]


def test_each_group_of_a_leader_worker_set_is_one_job_and_is_made_again_as_one(scene: Scene) -> None:
    long = template()
    long["spec"]["restartPolicy"] = "Always"
    spec = {"replicas": 2, "leaderWorkerTemplate": {"size": 3, "workerTemplate": long}}
    with applied(scene, LEADER_WORKER_SETS, "serve", spec, {}):
        pods = scene.all_running(6)
        groups = [[p for p in pods if p["metadata"]["labels"][f"{LWS}group-index"] == i] for i in ("0", "1")]
        first, second = (_one_job(scene, group) for group in groups)
        assert first.id != second.id
        lost = next(p for p in groups[0] if p["metadata"]["labels"][f"{LWS}worker-index"] == "1")
        scene.delete(lost["metadata"]["name"])

        def anew() -> list[Object]:
            mine = [p for p in scene.pods() if p["metadata"]["labels"].get(f"{LWS}group-index") == "0"]
            new = {k.uid(p) for p in mine}.isdisjoint(k.uid(p) for p in groups[0])
            return mine if new and len(mine) == 3 and all(k.phase(p) == "Running" for p in mine) else []

        again = eventually("the whole group runs anew", anew, 90, every=0.2)
        assert _one_job(scene, again).id != first.id
        assert scene.job_becomes(second.id, "RUNNING").uids == {k.uid(p) for p in groups[1]}


def test_a_leader_worker_set_of_another_size_and_memory_is_another_job_for_each_group(scene: Scene) -> None:
    def spec(size: int, memory: str) -> Object:
        long = template()
        long["spec"]["restartPolicy"] = "Always"
        long["spec"]["containers"][0]["resources"] = {"limits": {"cpu": "1", "memory": memory}}
        return {"replicas": 1, "leaderWorkerTemplate": {"size": size, "workerTemplate": long}}

    with applied(scene, LEADER_WORKER_SETS, "serve", spec(2, "500Mi"), {}) as path:
        before = _one_job(scene, scene.all_running(2))
        for size, memory in ((3, "500Mi"), (3, "900Mi")):
            scene.kube.must("PATCH", path, {"spec": spec(size, memory)}, kind="application/merge-patch+json")

            def anew(size: int = size, memory: str = memory) -> list[Object]:
                pods = [p for p in scene.pods() if not p["metadata"].get("deletionTimestamp")]
                asked = {p["spec"]["containers"][0]["resources"]["limits"]["memory"] for p in pods}
                done = len(pods) == size and all(k.phase(p) == "Running" for p in pods)
                return pods if done and asked == {memory} else []

            job = _one_job(scene, eventually(f"{size} pods of {memory} run", anew, 120, every=0.2))
            assert job.id != before.id
            before = job


def test_workers_that_are_made_when_their_leader_is_ready_have_jobs_of_their_own(scene: Scene) -> None:
    long = template()
    long["spec"]["restartPolicy"] = "Always"
    spec = {
        "replicas": 1,
        "startupPolicy": "LeaderReady",
        "leaderWorkerTemplate": {"size": 3, "workerTemplate": long},
    }
    with applied(scene, LEADER_WORKER_SETS, "serve", spec, {}):
        assert len(_jobs(scene, scene.all_running(3))) == 3


def test_a_jobset_whose_jobs_are_made_in_order_is_told_that_it_can_be_no_gang(scene: Scene) -> None:
    spec = {
        "startupPolicy": {"startupPolicyOrder": "InOrder"},
        "replicatedJobs": [one_of("driver", 1, 1), one_of("workers", 1, 2)],
    }
    with applied(scene, JOBSETS, "train", spec, {"gang": "true"}):
        (pod,) = eventually("the driver is there", scene.pods)
        scene.says(pod["metadata"]["name"], "startupPolicyOrder: InOrder")


def test_pods_that_name_a_pod_group_start_when_there_are_enough(scene: Scene) -> None:
    def pod(name: str) -> Object:
        made = k.pod(name)
        made["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "group"}
        return made

    with applied(scene, POD_GROUPS, "group", {"minMember": 3}, {}):
        uids = [scene.create(pod(name)) for name in ("a", "b")]
        scene.says("a", "of 3 are there")
        assert not scene.slurm.jobs_of(*uids)
        scene.create(pod("c"))
        pods = scene.all_running(3)
        job = _one_job(scene, pods)
        scene.create(pod("d"))
        late = scene.running("d")
        assert k.job_label(late) != job.id


def test_more_pods_than_a_pod_group_needs_start_beside_them_and_do_not_hold_them_up(scene: Scene) -> None:
    with applied(scene, POD_GROUPS, "group", {"minMember": 2}, {}):
        for name in ("w-0", "w-1", "w-2"):
            made = k.pod(name, gpus=8, options=scene.only("n1", "n2"))
            made["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "group"}
            scene.create(made)
        first = [scene.running(name) for name in ("w-0", "w-1")]
        job = _one_job(scene, first)
        alone = scene.waiting_job(k.uid(scene.get("w-2")))
        assert alone.id != job.id
        for name in ("w-0", "w-1"):
            scene.finish(name)
        scene.running("w-2")


def test_a_pod_that_names_a_pod_group_that_is_not_there_waits_for_it(scene: Scene) -> None:
    made = k.pod("early")
    made["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "group"}
    uid = scene.create(made)
    scene.says("early", f"PodGroup {scene.namespace}/group, which does not exist")
    assert not scene.slurm.jobs_of(uid)
    with applied(scene, POD_GROUPS, "group", {"minMember": 1}, {}):
        scene.running("early")


@pytest.mark.parametrize("gpus", [0, 1], ids=["alike", "each with a GPU"])
def test_who_comes_for_one_of_several_lost_pods_gets_its_rank_whoever_comes_first(
    scene: Scene, gpus: int
) -> None:
    def create(index: int) -> None:
        made = k.pod(f"w-{index}", gpus=gpus, options={"inject-env": "true", **scene.only("n1")})
        made["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "group"}
        scene.create(made)

    def ranks() -> list[str]:
        pods = [scene.running(f"w-{index}") for index in range(4)]
        return [k.annotation(pod, RANK_ANNOTATION) for pod in pods]

    with applied(scene, POD_GROUPS, "group", {"minMember": 4}, {}):
        for index in range(4):
            create(index)
        job = _one_job(scene, scene.all_running(4))
        assert ranks() == ["0", "1", "2", "3"]
        for first, last in ((2, 1), (3, 0)):
            for index in (first, last):
                scene.delete(f"w-{index}")
                scene.gone(f"w-{index}")
            create(first)
            scene.running(f"w-{first}")
            create(last)
            assert ranks() == ["0", "1", "2", "3"]
        assert [one.id for one in _jobs(scene, scene.all_running(4))] == [job.id]


def test_pods_of_a_built_in_pod_group_are_one_job(scene: Scene) -> None:
    gang = {"schedulingPolicy": {"gang": {"minCount": 3}}}
    plan = {"podGroupTemplates": [{"name": "w", **gang}]}
    ref = {"workload": {"workloadName": "plan", "podGroupTemplateName": "w"}}
    with (
        applied(scene, WORKLOADS, "plan", plan, {}),
        applied(scene, GROUPS, "group", {"podGroupTemplateRef": ref, **gang}, {}),
    ):
        for name in ("a", "b", "c"):
            made = k.pod(name)
            made["spec"]["schedulingGroup"] = {"podGroupName": "group"}
            scene.create(made)
        _one_job(scene, scene.all_running(3))


def test_what_a_trainjob_says_counts_for_the_pods_of_the_jobset_that_it_made(scene: Scene) -> None:
    with applied(scene, TRAIN_JOBS, "tune", {}, {"gang": "true", "comment": "from the TrainJob"}) as path:
        made = _made_by(scene, path, "tune", JOBSETS)
        made["spec"] = {"replicatedJobs": [one_of("node", 1, 3)]}
        scene.kubectl("create", "-f", "-", stdin=json.dumps(made))
        assert _one_job(scene, scene.all_running(3)).comment == "from the TrainJob"


def test_the_pods_of_a_ray_cluster_that_name_its_pod_group_are_one_job_as_the_cluster_says(
    scene: Scene,
) -> None:
    with applied(scene, RAY_CLUSTERS, "ray", {}, {"comment": "from the RayCluster"}) as path:
        group = _made_by(scene, path, "ray", POD_GROUPS)
        scene.kubectl("create", "-f", "-", stdin=json.dumps(group | {"spec": {"minMember": 3}}))
        for name in ("ray-head", "ray-worker-1", "ray-worker-2"):
            pod = k.pod(name)
            pod["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "ray"}
            pod["metadata"]["ownerReferences"] = group["metadata"]["ownerReferences"]
            scene.create(pod)
        assert _one_job(scene, scene.all_running(3)).comment == "from the RayCluster"


def _made_by(scene: Scene, path: str, name: str, what: tuple[str, str, str]) -> Object:
    """An object that the one at that path controls, as its controller would make it."""
    above = scene.kube.must("GET", path)
    owner = {part: above[part] for part in ("apiVersion", "kind")}
    owner |= {"name": name, "uid": k.uid(above), "controller": True}
    return {"apiVersion": what[0], "kind": what[1], "metadata": {"name": name, "ownerReferences": [owner]}}
