"""What the real controllers make of a manifest is placed by Slurm, and what stands above a pod counts for it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from tests.e2e import kube as k
from tests.e2e.kube import Object
from tests.e2e.scene import Scene
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.real
JOBSETS = ("jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets")
LEADER_WORKER_SETS = ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "leaderworkersets")
DEPLOYMENTS = ("apps/v1", "Deployment", "deployments")
POD_GROUPS = ("scheduling.x-k8s.io/v1alpha1", "PodGroup", "podgroups")
GROUPS = ("scheduling.k8s.io/v1alpha2", "PodGroup", "podgroups")
WORKLOADS = ("scheduling.k8s.io/v1alpha2", "Workload", "workloads")


@contextmanager
def applied(
    scene: Scene, what: tuple[str, str, str], name: str, spec: Object, options: Mapping[str, str]
) -> Iterator[str]:
    """`kubectl apply`; yields the object's path. Deleted afterwards, as its controller would make new pods for ever."""
    version, kind, plural = what
    annotations = {k.OPTION + key: value for key, value in options.items()}
    manifest = {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, "annotations": annotations},
        "spec": spec,
    }
    scene.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
    path = f"/apis/{version}/namespaces/{scene.namespace}/{plural}/{name}"
    try:
        yield path
    finally:
        scene.kube.must("DELETE", path, {"propagationPolicy": "Background"})


def template(options: Mapping[str, str] | None = None, *, labels: Mapping[str, str] | None = None) -> Object:
    made = k.pod("x", options=options)
    meta = {"annotations": made["metadata"]["annotations"], "labels": dict(labels or {})}
    return {"metadata": meta, "spec": made["spec"]}


def one_of(name: str, replicas: int, pods: int, options: Mapping[str, str] | None = None) -> Object:
    """A ReplicatedJob."""
    spec = {"parallelism": pods, "completions": pods, "template": template(options)}
    return {"name": name, "replicas": replicas, "template": {"spec": spec}}


def comments(scene: Scene, pods: list[Object]) -> set[str]:
    return {scene.job_of(pod).comment for pod in pods}


def test_a_jobset_makes_pods_that_slurm_places_and_what_it_says_counts_for_them(scene: Scene) -> None:
    spec = {"replicatedJobs": [one_of("driver", 1, 1), one_of("workers", 2, 2)]}
    with applied(scene, JOBSETS, "train", spec, {"comment": "from the JobSet"}) as path:
        pods = scene.all_running(5)
        assert comments(scene, pods) == {"from the JobSet"}
        for pod in pods:
            scene.finish(pod["metadata"]["name"])
        eventually(
            "the JobSet is complete",
            lambda: scene.kube.must("GET", path).get("status", {}).get("terminalState") == "Completed",
        )


def test_a_pod_template_of_a_jobset_says_it_louder_than_the_jobset(scene: Scene) -> None:
    spec = {"replicatedJobs": [one_of("a", 1, 1, {"comment": "from the template"})]}
    with applied(scene, JOBSETS, "train", spec, {"comment": "from the JobSet", "nice": "7"}):
        assert comments(scene, scene.all_running(1)) == {"from the template"}


def test_the_leaders_and_the_workers_of_a_set_run_and_what_it_says_counts_for_all_of_them(
    scene: Scene,
) -> None:
    long = template()
    long["spec"]["restartPolicy"] = "Always"
    spec = {"replicas": 2, "leaderWorkerTemplate": {"size": 2, "workerTemplate": long}}
    with applied(scene, LEADER_WORKER_SETS, "serve", spec, {"comment": "from the set"}) as path:
        pods = scene.all_running(4)
        assert comments(scene, pods) == {"from the set"}
        places = {
            tuple(
                pod["metadata"]["labels"][f"leaderworkerset.sigs.k8s.io/{key}-index"]
                for key in ("group", "worker")
            )
            for pod in pods
        }
        assert places == {("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")}
        eventually(
            "both groups are ready", lambda: scene.kube.must("GET", path)["status"].get("readyReplicas") == 2
        )


def test_what_a_deployment_says_counts_for_its_pods(scene: Scene) -> None:
    labels = {"app": "served"}
    long = template(labels=labels)
    long["spec"]["restartPolicy"] = "Always"
    spec = {"replicas": 2, "selector": {"matchLabels": labels}, "template": long}
    with applied(scene, DEPLOYMENTS, "serve", spec, {"comment": "from the Deployment"}):
        assert comments(scene, scene.all_running(2)) == {"from the Deployment"}


def test_what_a_pod_group_says_counts_for_the_pods_that_name_it(scene: Scene) -> None:
    with applied(scene, POD_GROUPS, "group", {"minMember": 2}, {"comment": "from the group"}):
        for name in ("a", "b"):
            pod = k.pod(name)
            pod["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "group"}
            scene.create(pod)
        assert comments(scene, scene.all_running(2)) == {"from the group"}


def test_the_bridge_may_read_every_kind_that_the_cluster_has(scene: Scene) -> None:
    assert "optional kinds" not in scene.stack.bridge.get("/readyz").text
    assert "bridge-rights.yaml" not in scene.stack.bridge.get("/readyz").text


def test_what_a_built_in_pod_group_and_its_workload_say_counts_for_the_pods_that_name_it(
    scene: Scene,
) -> None:
    gang = {"schedulingPolicy": {"gang": {"minCount": 2}}}
    plan = {"podGroupTemplates": [{"name": "w", **gang}]}
    ref = {"workload": {"workloadName": "plan", "podGroupTemplateName": "w"}}
    with (
        applied(scene, WORKLOADS, "plan", plan, {"comment": "from the Workload"}),
        applied(
            scene,
            GROUPS,
            "group",
            {"podGroupTemplateRef": ref, **gang},
            {"comment": "from the group", "nice": "7"},
        ),
    ):
        for name in ("a", "b"):
            pod = k.pod(name)
            pod["spec"]["schedulingGroup"] = {"podGroupName": "group"}
            scene.create(pod)
        pods = scene.all_running(2)
        assert comments(scene, pods) == {"from the Workload"}
