"""Pods that start together or not at all, made by the real Job controller, on the real daemons."""

from __future__ import annotations

import pytest

from bridge.core.quantity import parse
from tests.e2e import kube as k
from tests.e2e.kube import Object
from tests.e2e.scene import HAUNTED, Scene
from tests.e2e.slurm import Job, parse_indices
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.real

INDEX = "batch.kubernetes.io/job-completion-index"


def _gang(
    scene: Scene,
    name: str,
    size: int,
    *,
    gpus: int = 0,
    port: int = 0,
    memory: str = "500Mi",
    on: tuple[str, ...] = (),
    **wishes: str,
) -> None:
    """An indexed Job of so many pods at once that asks for a gang."""
    options = (
        {"gang": "true"}
        | (scene.only(*on) if on else {})
        | {w.replace("_", "-"): t for w, t in wishes.items()}
    )
    pod = k.pod("worker", gpus=gpus, memory=memory)
    if port:
        pod["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": port}]
    scene.kube.must(
        "POST",
        scene.jobs_path,
        {
            "metadata": {
                "name": name,
                "annotations": {k.OPTION + key: text for key, text in options.items()},
            },
            "spec": {
                "completionMode": "Indexed",
                "parallelism": size,
                "completions": size,
                "backoffLimit": 20,
                "template": {"metadata": {"annotations": {}}, "spec": pod["spec"]},
            },
        },
    )


def _pods(scene: Scene, name: str) -> list[Object]:
    """In the order of their indices; those that have ended are left out."""
    mine = [pod for pod in scene.pods() if pod["metadata"].get("labels", {}).get("job-name") == name]
    alive = [pod for pod in mine if k.phase(pod) in ("Pending", "Running")]
    return sorted(alive, key=lambda pod: int(pod["metadata"]["annotations"][INDEX]))


def _running(scene: Scene, name: str, size: int) -> list[Object]:
    def look() -> list[Object]:
        pods = _pods(scene, name)
        return pods if len(pods) == size and all(k.phase(pod) == "Running" for pod in pods) else []

    return eventually(f"all {size} pods of {name} are Running", look, HAUNTED, every=0.2)


def _places(pods: list[Object]) -> list[tuple[str, str]]:
    return [(k.node_of(pod), k.annotation(pod, k.GPUS)) for pod in pods]


def _one_job(scene: Scene, pods: list[Object]) -> Job:
    (number,) = {k.job_label(pod) for pod in pods}
    job = scene.slurm.job(number)
    assert job is not None
    return job


def test_the_pods_of_a_gang_are_the_tasks_of_one_job_in_the_order_of_slurms_nodes(scene: Scene) -> None:
    _gang(scene, "train", 5, gpus=3, on=("n1", "n2", "n3"))
    pods = _running(scene, "train", 5)
    job = _one_job(scene, pods)
    assert job.uids == {k.uid(pod) for pod in pods}
    assert _places(pods) == [("n1", "0-2"), ("n1", "3-5"), ("n2", "0-2"), ("n2", "3-5"), ("n3", "0-2")]
    assert len(scene.real_jobs_of([k.uid(pod) for pod in pods])) == 1


def test_gpus_that_are_asked_for_by_the_node_are_spread_evenly_over_its_pods(scene: Scene) -> None:
    _gang(scene, "spread", 2, gpus=2, on=("n1",), gres="gres/gpu=4", max_nodes="1")
    assert _places(_running(scene, "spread", 2)) == [("n1", "0-1"), ("n1", "2-3")]


def test_gpus_by_the_node_that_do_not_divide_are_enough_for_every_pod_there(scene: Scene) -> None:
    _gang(scene, "odd", 3, gpus=2, on=("n1", "n2"), gres="gres/gpu=5")
    pods = _running(scene, "odd", 3)
    job = _one_job(scene, pods)
    per_node: dict[str, list[set[int]]] = {}
    for node, gpus in _places(pods):
        per_node.setdefault(node, []).append(parse_indices(gpus))
    assert all(len(gpus) >= 2 for all_of in per_node.values() for gpus in all_of)
    assert sorted(len(all_of) for all_of in per_node.values()) == [1, 2]
    assert not any(first & second for first, second in (v for v in per_node.values() if len(v) == 2))
    assert len(scene.real_jobs_of(job.uids)) == 1


def test_pods_of_a_gang_that_use_one_host_port_are_one_on_each_node(scene: Scene) -> None:
    _gang(scene, "served", 3, port=18090)
    pods = _running(scene, "served", 3)
    assert len({k.node_of(pod) for pod in pods}) == 3
    assert len(scene.real_jobs_of(_one_job(scene, pods).uids)) == 1


def test_two_gangs_that_need_more_than_half_each_start_one_after_the_other(scene: Scene) -> None:
    _gang(scene, "one", 3, gpus=4, on=("n1", "n2"))  # room for four such pods
    _gang(scene, "two", 3, gpus=4, on=("n1", "n2"))

    def look() -> str:
        all_of = {name: [k.phase(pod) for pod in _pods(scene, name)] for name in ("one", "two")}
        return next((name for name, phases in all_of.items() if phases == ["Running"] * 3), "")

    first = eventually("one of the two runs", look, HAUNTED)
    second = "two" if first == "one" else "one"
    for pod in _pods(scene, second):
        scene.says(pod["metadata"]["name"], "Resources")
        assert not k.node_of(pod)
    for pod in _pods(scene, first):
        scene.finish(pod["metadata"]["name"])
    _running(scene, second, 3)


def test_who_comes_for_a_lost_pod_gets_its_place_in_the_job_that_runs(scene: Scene) -> None:
    _gang(scene, "elastic", 4, gpus=2, on=("n1",))
    pods = _running(scene, "elastic", 4)
    job, places = _one_job(scene, pods), _places(pods)
    scene.finish(pods[2]["metadata"]["name"], exit_code=1)

    def look() -> list[Object]:
        now = _pods(scene, "elastic")
        well = len(now) == 4 and all(k.phase(pod) == "Running" for pod in now)
        return now if well and k.uid(now[2]) != k.uid(pods[2]) else []

    again = eventually("another pod runs in its place", look, HAUNTED)
    assert _places(again) == places
    assert _one_job(scene, again).id == job.id


def test_half_a_gang_holds_its_nodes_no_longer_than_its_timeout_and_begins_anew_without_the_one_it_did_not_get(
    scene: Scene,
) -> None:
    """A pod of others on n2 wants none of the gang beside it, which neither Slurm nor the bridge knows."""
    theirs = k.pod("theirs", scheduler="default-scheduler")
    theirs["spec"]["nodeName"] = "n2"
    away = {
        "labelSelector": {"matchLabels": {"job-name": "half"}},
        "topologyKey": "kubernetes.io/hostname",
    }
    theirs["spec"]["affinity"] = {
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [away]}
    }
    scene.create(theirs)
    scene.running("theirs")
    _gang(scene, "half", 2, on=("n1", "n2", "n3"), min_nodes="2", gang_timeout="25")

    def half() -> tuple[Object, Object] | None:
        pods = _pods(scene, "half")
        seated, late = ([p for p in pods if bool(k.node_of(p)) is bound] for bound in (True, False))
        return (seated[0], late[0]) if len(seated) == len(late) == 1 else None

    found = eventually("one of the two has its node", half)
    assert found is not None
    first, late = found
    said = scene.says(late["metadata"]["name"], "kube-scheduler says", within=24)
    assert "anti-affinity" in said
    gone = scene.last_of(k.uid(first), within=60)
    assert k.shown(gone, "DisruptionTarget")["status"] == "True"
    pods = _running(scene, "half", 2)
    assert _one_job(scene, pods).uids == {k.uid(pod) for pod in pods}
    assert {k.node_of(pod) for pod in pods} == {"n1", "n3"}
    scene.no_live_jobs([k.uid(first)])


def test_no_pod_of_a_gang_starts_where_kubelet_has_room_for_some_of_those_that_slurm_would_put_there(
    scene: Scene,
) -> None:
    room = scene.kube.must("GET", "/api/v1/nodes/n1")["status"]["allocatable"]["cpu"]
    taken = sum(
        float(parse(c["resources"]["requests"].get("cpu", "0")))
        for pod in scene.kube.items("/api/v1/pods", fieldSelector="spec.nodeName=n1")
        for c in pod["spec"]["containers"]
        if c["resources"].get("requests") and k.phase(pod) == "Running"
    )
    theirs = k.pod("theirs", scheduler="default-scheduler", cpus=f"{float(parse(room)) - taken - 1.5:.2f}")
    theirs["spec"]["nodeName"] = "n1"
    scene.create(theirs)
    scene.running("theirs")
    filler = scene.slurm.sbatch("--exclusive", "--nodelist=n2")
    scene.job_becomes(filler, "RUNNING")
    _gang(scene, "packed", 2, on=("n1", "n2"), max_nodes="1")
    (first, second) = eventually(
        "both pods are there", lambda: found if len(found := _pods(scene, "packed")) == 2 else []
    )
    for pod in (first, second):
        given = scene.when(
            pod["metadata"]["name"], "avoids n1", lambda one: "n1" in k.annotation(one, k.ATTEMPT)
        )
        assert not k.node_of(given)
    scene.slurm.scancel(filler)
    pods = _running(scene, "packed", 2)
    assert {k.uid(pod) for pod in pods} == {k.uid(first), k.uid(second)}, "none had to go"
    assert {k.node_of(pod) for pod in pods} == {"n2"}


def test_a_gang_restarts_as_a_whole_where_it_wants_that(scene: Scene) -> None:
    _gang(scene, "strict", 3, on_member_failure="restart-gang")
    pods = _running(scene, "strict", 3)
    job = _one_job(scene, pods)
    scene.finish(pods[0]["metadata"]["name"], exit_code=1)

    def look() -> list[Object]:
        now = _pods(scene, "strict")
        new = {k.uid(pod) for pod in now}.isdisjoint(k.uid(pod) for pod in pods)
        return now if new and len(now) == 3 and all(k.phase(pod) == "Running" for pod in now) else []

    again = eventually("three other pods run", look, HAUNTED)
    assert _one_job(scene, again).id != job.id
    scene.job_becomes(job.id, "FAILED")


def test_a_gang_whose_job_is_cancelled_while_it_waits_goes_with_it(scene: Scene) -> None:
    filler = scene.slurm.sbatch("--exclusive", "--nodelist=n4")
    scene.job_becomes(filler, "RUNNING")
    _gang(scene, "late", 2, gpus=2, on=("n4",))
    pods = eventually("both pods are there", lambda: found if len(found := _pods(scene, "late")) == 2 else [])
    job = scene.waiting_job(k.uid(pods[0]))
    assert job.uids == {k.uid(pod) for pod in pods}
    scene.slurm.scancel(job.id)
    for pod in pods:
        scene.gone(pod["metadata"]["name"])


def test_a_gang_goes_on_through_a_restart_of_the_bridge_and_of_slurmctld(scene: Scene) -> None:
    _gang(scene, "steady", 4, gpus=3, on=("n1", "n2"))
    pods = _running(scene, "steady", 4)
    job, places = _one_job(scene, pods), _places(pods)
    scene.stack.restart("bridge")
    scene.stack.restart("slurmctld")
    scene.finish(pods[0]["metadata"]["name"])
    for pod in pods[1:]:
        scene.finish(pod["metadata"]["name"])
    ended = scene.job_becomes(job.id, "COMPLETED")
    assert places == _places(pods)
    assert ended.uids == job.uids


def test_where_slurm_gives_more_cpus_for_the_memory_a_node_gets_no_more_pods_than_that_allows(
    scene: Scene,
) -> None:
    """MaxMemPerCPU: Slurm raises the CPUs of each task, and counts tasks by them."""
    blockers = [
        scene.slurm.sbatch("-p", "all", "-w", node, f"-c{cpus}", "--mem=100")
        for node, cpus in (("n1", 28), ("n2", 24))
    ]
    for blocker in blockers:
        scene.job_becomes(blocker, "RUNNING")
    scene.stack.run("scontrol", "update", "partitionname=slurm-bridge", "MaxMemPerCPU=2000")
    try:
        _gang(scene, "fat", 3, on=("n1", "n2"), memory="8000Mi")
        pods = _running(scene, "fat", 3)
        assert [k.node_of(pod) for pod in pods] == ["n1", "n2", "n2"]
    finally:
        scene.stack.run("scontrol", "update", "partitionname=slurm-bridge", "MaxMemPerCPU=0")
