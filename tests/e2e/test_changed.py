"""Pods that are changed while their job waits: what starts in the end is what they ask for then."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from bridge.core import hostlist
from tests.e2e import kube as k
from tests.e2e.kube import Object
from tests.e2e.scene import Scene
from tests.e2e.slurm import Job
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.real


@pytest.fixture
def filler(scene: Scene) -> int:
    """A native job that has n1 for itself until the test cancels it."""
    number = scene.slurm.sbatch("--exclusive", "--nodelist=n1")
    scene.job_becomes(number, "RUNNING")
    return number


@pytest.fixture
def key(scene: Scene) -> Iterator[str]:
    """A label of this test's own, on no node afterwards."""
    found = f"{scene.namespace}/role"
    yield found
    for node in scene.kube.items("/api/v1/nodes"):
        if found in node["metadata"]["labels"]:
            _label(scene, node["metadata"]["name"], found, None)


def _label(scene: Scene, node: str, key: str, value: str | None) -> None:
    scene.kube.must("PATCH", f"/api/v1/nodes/{node}", {"metadata": {"labels": {key: value}}}, kind=k.MERGE)


def _options(scene: Scene, name: str, **options: str) -> None:
    """As `kubectl annotate --overwrite` does."""
    said = {k.OPTION + option: value for option, value in options.items()}
    scene.patch(name, {"metadata": {"annotations": said}})


def _gang(scene: Scene, name: str, size: int) -> str:
    """Of bare pods: the path of the Job that makes them, on n1 alone."""
    pod = k.pod("worker")
    annotations = {k.OPTION + key: text for key, text in (scene.only("n1") | {"gang": "true"}).items()}
    scene.kube.must(
        "POST",
        scene.jobs_path,
        {
            "metadata": {"name": name, "annotations": annotations},
            "spec": {
                "completionMode": "Indexed",
                "parallelism": size,
                "completions": size,
                "template": {"metadata": {}, "spec": pod["spec"]},
            },
        },
    )
    return f"{scene.jobs_path}/{name}"


def _another(scene: Scene, uid: str, before: Job, true: Callable[[Job], object]) -> Job:
    """The job that waits in the place of the one before."""

    def look() -> Job | None:
        live = scene.slurm.live_jobs_of(uid)
        return live[0] if len(live) == 1 and live[0].id != before.id and true(live[0]) else None

    found = eventually("one other job waits in its place", look)
    assert found is not None
    return found


def test_a_pod_whose_options_are_edited_while_it_waits_starts_with_the_new_ones(
    scene: Scene, filler: int
) -> None:
    uid = scene.create(k.pod("edited", options=scene.only("n1") | {"timelimit": "10"}))
    first = scene.waiting_job(uid)
    _options(scene, "edited", timelimit="30", comment="longer")
    second = _another(scene, uid, first, lambda job: job.comment == "longer")
    assert second.time_limit - first.time_limit == 20
    scene.slurm.scancel(filler)
    assert k.job_label(scene.running("edited")) == second.id


def test_a_pod_that_is_edited_into_nonsense_while_it_waits_holds_no_nodes(scene: Scene, filler: int) -> None:
    uid = scene.create(k.pod("edited", options=scene.only("n1")))
    scene.waiting_job(uid)
    _options(scene, "edited", timelimit="soon")
    scene.says("edited", "timelimit")
    scene.no_live_jobs([uid])
    _options(scene, "edited", timelimit="10")
    scene.waiting_job(uid)
    scene.slurm.scancel(filler)
    scene.running("edited")


def test_a_gang_whose_jobs_options_are_edited_while_it_waits_starts_with_the_new_ones(
    scene: Scene, filler: int
) -> None:
    path = _gang(scene, "train", 2)
    pods = eventually("both pods are there", lambda: found if len(found := scene.pods()) == 2 else [])
    first = scene.waiting_job(k.uid(pods[0]))
    said = {k.OPTION + "timelimit": "30"}
    scene.kube.must("PATCH", path, {"metadata": {"annotations": said}}, kind=k.MERGE)
    second = _another(scene, k.uid(pods[0]), first, lambda job: job.time_limit > first.time_limit)
    scene.slurm.scancel(filler)
    assert {k.job_label(pod) for pod in scene.all_running(2)} == {second.id}


def test_a_selector_that_is_narrowed_while_the_job_waits_leads_elsewhere(
    scene: Scene, key: str, filler: int
) -> None:
    _label(scene, "n2", key, "chosen")
    other = scene.slurm.sbatch("--exclusive", "--nodelist=n2")
    scene.job_becomes(other, "RUNNING")
    uid = scene.create(k.pod("picky", options=scene.only("n1", "n2")))
    job = scene.waiting_job(uid)
    scene.patch("picky", {"spec": {"nodeSelector": {key: "chosen"}}})
    eventually("its job avoids n1", lambda: "n1" in hostlist.expand(scene.waiting_job(uid).excluded))
    scene.slurm.scancel(filler)
    scene.slurm.scancel(other)
    pod = scene.running("picky")
    assert (k.node_of(pod), k.job_label(pod)) == ("n2", job.id)


def test_a_toleration_that_is_added_while_no_node_can_take_the_pod_lets_it_start(scene: Scene) -> None:
    taint = {"key": f"{scene.namespace}/shut", "effect": "NoSchedule"}
    before: list[Object] = scene.kube.must("GET", "/api/v1/nodes/n1")["spec"].get("taints", [])
    path = "/api/v1/nodes/n1"
    scene.kube.must("PATCH", path, {"spec": {"taints": [*before, taint]}}, kind=k.MERGE)
    try:
        scene.create(k.pod("shy", options=scene.only("n1")))
        scene.says("shy", "can take the pod")
        more = [*scene.get("shy")["spec"]["tolerations"], {"key": taint["key"], "operator": "Exists"}]
        scene.patch("shy", {"spec": {"tolerations": more}})
        assert k.node_of(scene.running("shy")) == "n1"
    finally:
        scene.kube.must("PATCH", path, {"spec": {"taints": before or None}}, kind=k.MERGE)


def test_a_pod_that_is_resized_while_it_waits_starts_with_as_much_as_it_asks_for_then(
    scene: Scene, filler: int
) -> None:
    uid = scene.create(k.pod("grown", options=scene.only("n1")))
    first = scene.waiting_job(uid)
    more = {"requests": {"cpu": "3"}, "limits": {"cpu": "3"}}
    size = {"spec": {"containers": [{"name": "train", "resources": more}]}}
    scene.patch("grown", size, subresource="/resize")
    second = _another(scene, uid, first, lambda job: job.cpus == 3)
    scene.slurm.scancel(filler)
    assert k.job_label(scene.running("grown")) == second.id


def test_kubernetes_lets_nobody_add_a_gate_to_a_pod_that_waits(scene: Scene, filler: int) -> None:
    uid = scene.create(k.pod("waits", options=scene.only("n1")))
    scene.waiting_job(uid)
    gate = {"spec": {"schedulingGates": [{"name": "example.com/late"}]}}
    assert scene.kube.ask("PATCH", f"{scene.pods_path}/waits", gate, kind=k.MERGE).status_code == 422
