"""Nodes that Kubernetes would not give to a pod: Slurm never chooses them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from bridge.core import hostlist
from tests.e2e import kube as k
from tests.e2e.kube import Object
from tests.e2e.scene import Scene
from tests.e2e.slurm import Job
from tests.e2e.test_kinds import JOBSETS, applied, one_of
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.real
PROMPT = 10.0  # seconds; the looks that come by themselves are a minute apart


def _node(scene: Scene, name: str, body: Object, subresource: str = "") -> None:
    scene.kube.must("PATCH", f"/api/v1/nodes/{name}{subresource}", body, kind=k.MERGE)


@pytest.fixture
def key(scene: Scene) -> Iterator[str]:
    """A label and taint key of this test's own, on no node afterwards."""
    found = f"{scene.namespace}/role"
    yield found
    for node in scene.kube.items("/api/v1/nodes"):
        name = node["metadata"]["name"]
        if found in node["metadata"]["labels"]:
            _label(scene, name, found, None)
        _untaint(scene, name, found)


def _label(scene: Scene, node: str, key: str, value: str | None) -> None:
    _node(scene, node, {"metadata": {"labels": {key: value}}})


def _taints(scene: Scene, node: str, key: str) -> list[Object]:
    """All but those of this key: the list is patched as a whole."""
    found: list[Object] = scene.kube.must("GET", f"/api/v1/nodes/{node}")["spec"].get("taints", [])
    return [taint for taint in found if taint["key"] != key]


def _taint(scene: Scene, node: str, key: str) -> None:
    taints = [*_taints(scene, node, key), {"key": key, "effect": "NoSchedule"}]
    _node(scene, node, {"spec": {"taints": taints}})


def _untaint(scene: Scene, node: str, key: str) -> None:
    _node(scene, node, {"spec": {"taints": _taints(scene, node, key) or None}})


def _excluded(job: Job) -> set[str]:
    return set(hostlist.expand(job.excluded))


def _placed(scene: Scene, name: str, within: float = 0.0) -> tuple[str, str]:
    """Where the pod runs, and what it gave back before."""
    pod = scene.running(name, within)
    return k.node_of(pod), k.annotation(pod, k.ATTEMPT)


def test_a_selector_leads_to_its_node_with_the_first_grant(scene: Scene, key: str) -> None:
    _label(scene, "n2", key, "chosen")
    scene.create(k.pod("picky", node_selector={key: "chosen"}))
    assert _placed(scene, "picky") == ("n2", "")
    job = scene.job_of(scene.get("picky"))
    assert _excluded(job) == set(scene.stack.nodes) - {"n2"}


def test_required_affinity_means_to_slurm_what_it_means_to_kubernetes(scene: Scene, key: str) -> None:
    for node, value in (("n1", "5"), ("n2", "50"), ("n3", "500")):
        _label(scene, node, key, value)
    pod = k.pod("picky")
    expressions = [
        {"key": key, "operator": "Gt", "values": ["9"]},
        {"key": key, "operator": "Lt", "values": ["99"]},
    ]
    required = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    pod["spec"]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    scene.create(pod)
    assert _placed(scene, "picky") == ("n2", "")


def test_a_taint_keeps_away_who_does_not_tolerate_it_and_nobody_else(scene: Scene, key: str) -> None:
    _taint(scene, "n1", key)
    scene.create(k.pod("plain", options=scene.only("n1", "n2")))
    bold = k.pod("bold", options=scene.only("n1"))
    bold["spec"]["tolerations"] = [{"key": key, "operator": "Exists"}]
    scene.create(bold)
    assert _placed(scene, "plain") == ("n2", "")
    assert _placed(scene, "bold") == ("n1", "")


def test_a_host_port_that_a_pod_of_others_has_leads_elsewhere_and_is_used_when_it_is_free(
    scene: Scene,
) -> None:
    ports = [{"containerPort": 8080, "hostPort": 18080}]

    def wants(pod: Object) -> Object:
        pod["spec"]["containers"][0]["ports"] = ports
        return pod

    theirs = wants(k.pod("theirs", scheduler="default-scheduler"))
    theirs["spec"]["nodeName"] = "n1"
    scene.create(theirs)
    scene.running("theirs")
    scene.create(wants(k.pod("first", options=scene.only("n1", "n2"))))
    assert _placed(scene, "first") == ("n2", "")
    uid = scene.create(wants(k.pod("second", options=scene.only("n1", "n2"))))
    scene.says("second", "2 nodes have host port 18080/TCP in use by another pod")
    assert scene.slurm.jobs_of(uid) == []
    scene.delete("theirs")
    assert _placed(scene, "second", within=PROMPT) == ("n1", "")


def test_a_pod_that_no_node_can_take_has_no_job_and_starts_when_one_gets_the_label(
    scene: Scene, key: str
) -> None:
    _taint(scene, "n3", key)
    uid = scene.create(k.pod("hopeless", node_selector={key: "chosen"}))
    said = scene.says("hopeless", "can take the pod")
    others = len(scene.stack.nodes) - 1
    assert f"{others} nodes do not match the pod's nodeSelector ({key}=chosen)" in said
    assert f"1 node has a taint that the pod does not tolerate ({key}:NoSchedule)" in said
    assert scene.told("hopeless", "Refused")
    assert scene.slurm.jobs_of(uid) == []
    _label(scene, "n2", key, "chosen")
    assert _placed(scene, "hopeless", within=PROMPT) == ("n2", "")


def test_a_waiting_job_follows_a_label_that_comes_and_goes(scene: Scene, key: str) -> None:
    filler = scene.slurm.sbatch("--exclusive", "--nodelist=n1")
    scene.job_becomes(filler, "RUNNING")
    _label(scene, "n1", key, "chosen")
    uid = scene.create(k.pod("waits", node_selector={key: "chosen"}))
    job = scene.waiting_job(uid)
    assert _excluded(job) == set(scene.stack.nodes) - {"n1"}
    _label(scene, "n2", key, "chosen")
    assert _placed(scene, "waits", within=PROMPT) == ("n2", "")
    assert k.job_label(scene.get("waits")) == job.id


def test_a_label_that_goes_before_the_binding_takes_the_grant_back(scene: Scene, key: str) -> None:
    for node in ("n1", "n2"):
        _label(scene, node, key, "chosen")
    filler = scene.slurm.sbatch("--exclusive", "--nodelist=n2")
    scene.job_becomes(filler, "RUNNING")
    with scene.stack.stopped("scheduler"):
        scene.create(k.pod("moves", node_selector={key: "chosen"}))
        scene.when("moves", "is handed over", lambda pod: k.annotation(pod, k.NODE) == "n1")
        _label(scene, "n1", key, None)
        scene.when("moves", "has lost its grant", lambda pod: k.annotation(pod, k.ATTEMPT), PROMPT)
        scene.slurm.scancel(filler)
        scene.when("moves", "is granted n2", lambda pod: k.annotation(pod, k.NODE) == "n2")
    node, attempt = _placed(scene, "moves")
    assert (node, json.loads(attempt)["closed"]) == ("n2", ["n1"])


@contextmanager
def _shrunk(scene: Scene, node: str, **amounts: str) -> Iterator[None]:
    """kubelet offers less than Slurm has: system daemons, or a smaller maximum of pods."""
    found = scene.kube.must("GET", f"/api/v1/nodes/{node}")["status"]["allocatable"]
    _node(scene, node, {"status": {"allocatable": amounts}}, "/status")
    try:
        yield
    finally:
        _node(scene, node, {"status": {"allocatable": {name: found[name] for name in amounts}}}, "/status")


@pytest.mark.parametrize(
    ("amounts", "why"),
    [
        ({"cpu": "1"}, "is too small for what the pod requests (cpu)"),
        ({"pods": "0"}, "has as many pods as it can have"),
    ],
)
def test_a_hybrid_node_that_slurm_thinks_larger_than_kubelet_does_is_no_place_for_the_pod(
    scene: Scene, amounts: Mapping[str, str], why: str
) -> None:
    with _shrunk(scene, "n1", **amounts):
        scene.create(k.pod("fits", cpus="2", options=scene.only("n1", "n2")))
        assert _placed(scene, "fits") == ("n2", "")
        for node in scene.stack.nodes:
            if node != "n1":
                scene.kube.cordon(node, True)
        try:
            scene.create(k.pod("large", cpus="2"))
            assert f"1 node {why}" in scene.says("large", "can take the pod")
        finally:
            for node in scene.stack.nodes:
                scene.kube.cordon(node, False)
        scene.running("large", within=PROMPT)


def test_what_pods_of_another_scheduler_take_on_a_hybrid_node_is_not_asked_of_slurm(scene: Scene) -> None:
    """As DaemonSets do; Slurm counts only its own."""
    has = int(scene.kube.must("GET", "/api/v1/nodes/n1")["status"]["allocatable"]["cpu"])
    other = k.pod(
        "other",
        cpus=str(has - 1),
        scheduler="default-scheduler",
        node_selector={"kubernetes.io/hostname": "n1"},
    )
    scene.create(other)
    scene.when("other", "it runs", lambda pod: k.phase(pod) == "Running")
    scene.create(k.pod("fits", cpus="2", options=scene.only("n1", "n2")))
    assert _placed(scene, "fits") == ("n2", "")
    scene.create(k.pod("waits", cpus="2", options=scene.only("n1")))
    assert "too little left beside the pods that Slurm does not count (cpu)" in scene.says(
        "waits", "can take the pod"
    )
    scene.delete("other", gracePeriodSeconds=0)
    scene.running("waits")


@pytest.fixture
def volume(scene: Scene) -> Iterator[str]:
    """A claim that is bound to a volume which only n2 can mount."""
    name = f"on-n2-{scene.namespace}"
    claims = f"/api/v1/namespaces/{scene.namespace}/persistentvolumeclaims"
    storage = {"storage": "1Gi"}
    modes = ["ReadWriteOnce"]
    here = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n2"]}]}]
    claim = {
        "metadata": {"name": "data", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {
            "accessModes": modes, "resources": {"requests": storage}, "volumeName": name, "storageClassName": "",
        },
    }  # fmt: skip
    made = scene.kube.must("POST", claims, claim)
    volume = {
        "metadata": {"name": name},
        "spec": {
            "accessModes": modes, "capacity": storage, "hostPath": {"path": "/tmp"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": here}},
            "claimRef": {
                "kind": "PersistentVolumeClaim", "namespace": scene.namespace, "name": "data", "uid": k.uid(made),
            },
        },
    }  # fmt: skip
    scene.kube.must("POST", "/api/v1/persistentvolumes", volume)
    yield "data"
    for path in (f"{claims}/data", f"/api/v1/persistentvolumes/{name}"):  # nobody here lifts their finalizers
        scene.kube.must("PATCH", path, {"metadata": {"finalizers": None}}, kind=k.MERGE)
        scene.kube.ask("DELETE", path)


def test_a_pod_goes_where_its_volume_is(scene: Scene, volume: str) -> None:
    pod = k.pod("reads")
    pod["spec"]["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": volume}}]
    scene.create(pod)
    assert _placed(scene, "reads") == ("n2", "")


def test_a_pod_that_mounts_what_does_not_exist_holds_no_node(
    scene: Scene, request: pytest.FixtureRequest
) -> None:
    pod = k.pod("early", gpus=8)
    pod["spec"]["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]
    uid = scene.create(pod)
    scene.says("early", f"PersistentVolumeClaim {scene.namespace}/data, which does not exist")
    assert not scene.slurm.jobs_of(uid)
    request.getfixturevalue("volume")
    assert _placed(scene, "early") == ("n2", "")


def _replicated(name: str, pods: int, selector: Mapping[str, str], gpus: int = 0) -> Object:
    one = one_of(name, 1, pods)
    spec = one["template"]["spec"]["template"]["spec"]
    spec["nodeSelector"] = dict(selector)
    for amounts in spec["containers"][0]["resources"].values() if gpus else ():
        amounts["nvidia.com/gpu"] = str(gpus)
    return one


def test_driver_and_workers_of_a_jobset_that_need_different_nodes_get_them_and_the_job_that_waits_follows(
    scene: Scene, key: str
) -> None:
    driver, workers = (
        _replicated("driver", 1, {key: "cpu"}),
        _replicated("workers", 2, {key: "gpu"}, gpus=2),
    )
    nodes, cpu = set(scene.stack.nodes), scene.stack.nodes[-1]
    _label(scene, cpu, key, "cpu")
    with applied(scene, JOBSETS, "train", {"replicatedJobs": [driver, workers]}, {"gang": "true"}):
        pods = eventually("3 pods are there", lambda: found if len(found := scene.pods()) == 3 else [])
        names = {"driver" in (name := pod["metadata"]["name"]): name for pod in pods}
        said = scene.says(names[True], "can take pod")
        assert "workers" in said
        assert "driver" not in said
        filler = scene.slurm.sbatch("--exclusive", "--nodelist=n1")
        scene.job_becomes(filler, "RUNNING")
        _label(scene, "n1", key, "gpu")
        uid = next(k.uid(pod) for pod in pods if "driver" in pod["metadata"]["name"])
        job = eventually("its job waits", lambda: next(iter(scene.slurm.live_jobs_of(uid)), None), 90)
        assert job is not None

        def lists() -> list[set[str]]:
            found = scene.slurm.ask("GET", f"job/{job.id}").json()["jobs"]
            return [set(hostlist.expand(one["excluded_nodes"])) for one in found]

        assert lists() == [nodes - {cpu}, nodes - {"n1"}]
        _label(scene, "n2", key, "gpu")
        eventually("the workers may have n2", lambda: lists() == [nodes - {cpu}, nodes - {"n1", "n2"}], 60)
        pods = scene.all_running(3)
        assert {k.job_label(pod) for pod in pods} == {job.id}
        at = sorted((k.node_of(pod), "driver" in pod["metadata"]["name"]) for pod in pods)
        assert at == sorted([(cpu, True), ("n2", False), ("n2", False)])


def test_pods_of_one_size_that_need_different_nodes_are_told_that_they_share_one_list(
    scene: Scene, key: str
) -> None:
    _label(scene, "n1", key, "cpu")
    _label(scene, "n2", key, "gpu")
    driver, workers = _replicated("driver", 1, {key: "cpu"}), _replicated("workers", 1, {key: "gpu"})
    with applied(scene, JOBSETS, "train", {"replicatedJobs": [driver, workers]}, {"gang": "true"}):
        for pod in eventually("2 pods are there", lambda: found if len(found := scene.pods()) == 2 else []):
            said = scene.says(pod["metadata"]["name"], "share one list of excluded nodes")
            assert f"({key}=cpu)" in said
            assert f"({key}=gpu)" in said
        assert not scene.slurm.jobs_of(*map(k.uid, scene.pods()))


def test_a_node_that_slurm_does_not_know_changes_nothing_for_waiting_pods(scene: Scene, key: str) -> None:
    """It can take the pod, and Slurm has no job to give it."""
    name = f"stranger-{scene.namespace}"
    node = {"metadata": {"name": name, "labels": {key: "chosen"}}}
    uid = scene.create(k.pod("waits", node_selector={key: "chosen"}))
    scene.says("waits", "can take the pod")
    scene.kube.must("POST", "/api/v1/nodes", node)
    try:
        ready = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
        _node(scene, name, ready, "/status")
        _label(scene, "n2", key, "chosen")
        job = scene.job_of(scene.running("waits", within=PROMPT))
        assert eventually("its job is on n2", lambda: job.nodes == "n2")
        assert name not in job.excluded
        assert [j.id for j in scene.slurm.jobs_of(uid)] == [job.id]
    finally:
        scene.kube.must("DELETE", f"/api/v1/nodes/{name}")
