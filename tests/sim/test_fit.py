"""Nodes that cannot take a pod: its job never gets them, and follows when they change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bridge import names
from tests.sim.simulation import Simulation
from tests.sim.test_story import play, running

SSD: dict[str, Any] = {"nodeSelector": {"disk": "ssd"}}


def where(sim: Simulation, name: str) -> str:
    pod = sim.pod(name)
    assert pod is not None
    return str(pod["spec"].get("nodeName", ""))


def attempts(sim: Simulation, name: str) -> str:
    pod = sim.pod(name)
    assert pod is not None
    return str(pod["metadata"].get("annotations", {}).get(names.ATTEMPT_ANNOTATION, ""))


def says(sim: Simulation, name: str) -> str:
    conditions = (sim.pod(name) or {}).get("status", {}).get("conditions", [])
    return next((str(c["message"]) for c in conditions if c["type"] == names.JOB_CONDITION), "")


def test_a_pod_gets_a_node_that_its_selector_allows_with_the_first_grant(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.label("n3", disk="ssd")
        sim.start()
        await sim.settle(1.0)
        sim.create("p", asks=SSD)
        await sim.until(lambda: running(sim, "p"), 5.0)
        assert (where(sim, "p"), attempts(sim, "p")) == ("n3", "")

    play(tmp_path, scene)


def test_a_pod_that_no_node_can_take_says_why_has_no_job_and_goes_on_when_one_can(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.taint("n1", "gpu")
        sim.start()
        uid = sim.create("p", asks=SSD)
        await sim.until(lambda: says(sim, "p"), 5.0)
        assert "1 node has a taint that the pod does not tolerate (gpu:NoSchedule)" in says(sim, "p")
        assert "2 nodes do not match the pod's nodeSelector (disk=ssd)" in says(sim, "p")
        await sim.settle(100.0)
        assert sim.jobs_of(uid, live=False) == []
        sim.label("n2", disk="ssd")
        await sim.until(lambda: running(sim, "p"), 5.0)
        assert where(sim, "p") == "n2"

    play(tmp_path, scene)


def test_a_waiting_job_may_have_a_node_within_seconds_after_it_gets_the_label(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.native(cpus=1, gpus=8)  # one node is full
        sim.start()
        await sim.settle(1.0)
        full = next(iter(sim.slurm.jobs.values())).nodes[0]
        sim.label(full, disk="ssd")
        free, other = sorted({"n1", "n2", "n3"} - {full})
        uid = sim.create("p", gpus=8, asks=SSD)
        await sim.until(lambda: sim.jobs_of(uid) and "PENDING" in sim.jobs_of(uid)[0].states, 5.0)
        job = sim.jobs_of(uid)[0].id
        assert sim.slurm.jobs[job].excluded == {free, other}
        await sim.settle(70.0)
        sim.label(free, disk="ssd")
        await sim.until(lambda: running(sim, "p"), 5.0)
        assert (where(sim, "p"), sim.job_of("p")) == (free, job)

    play(tmp_path, scene)


def test_a_node_that_changes_in_what_nobody_asks_for_changes_no_job(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.native(cpus=1, gpus=8)
        sim.start()
        uid = sim.create("p", gpus=8)
        await sim.until(lambda: sim.jobs_of(uid), 5.0)
        await sim.settle(60.0)
        asked, wrote = len(sim.slurm.requests), dict(sim.kube.writes)
        sim.label("n1", colour="red")
        await sim.settle(30.0)
        assert not [r for r in sim.slurm.requests[asked:] if not r.startswith("GET ")]
        assert dict(sim.kube.writes) == wrote

    play(tmp_path, scene, nodes=1)


def test_a_grant_on_a_node_that_cannot_take_the_pod_any_more_goes_back_at_once(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        for node in ("n1", "n2"):
            sim.label(node, disk="ssd")
        sim.start()
        await sim.settle(1.0)
        uid = sim.create("p", asks=SSD)
        await sim.until(lambda: sim.jobs_of(uid) and sim.jobs_of(uid)[0].nodes, 5.0)
        granted = sim.jobs_of(uid)[0].nodes[0]
        sim.label(granted, disk=None)
        await sim.until(lambda: running(sim, "p"), 15.0)
        assert where(sim, "p") == ({"n1", "n2"} - {granted}).pop()
        assert f'"closed":["{granted}"]' in attempts(sim, "p")

    play(tmp_path, scene, thinking=3.0)


def test_when_no_node_is_left_the_waiting_job_stands_and_is_used_when_one_is_back(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        native = sim.slurm.native(cpus=1, gpus=8)
        sim.start()
        uid = sim.create("p", gpus=8)
        await sim.until(lambda: sim.jobs_of(uid), 5.0)
        job = sim.jobs_of(uid)[0].id
        sim.cordon("n1", True)
        await sim.until(lambda: "1 node is cordoned in Kubernetes" in says(sim, "p"), 90.0)
        assert sim.slurm.jobs[job].excluded == frozenset(), "a job that may run nowhere loses its priority"
        sim.cordon("n1", False)
        await sim.settle(1.0)
        sim.slurm.end(native.id, "COMPLETED")
        await sim.until(lambda: running(sim, "p"), 5.0)
        assert sim.job_of("p") == job

    play(tmp_path, scene, nodes=1)


def test_pods_that_want_one_host_port_come_to_nodes_of_their_own(tmp_path: Path) -> None:
    web = {"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]}

    async def scene(sim: Simulation) -> None:
        sim.start()
        await sim.settle(1.0)
        for i in range(3):
            sim.create(f"p{i}", asks=web)
        await sim.until(lambda: all(running(sim, f"p{i}") for i in range(3)), 30.0)
        assert {where(sim, f"p{i}") for i in range(3)} == {"n1", "n2", "n3"}

    play(tmp_path, scene)


def test_without_the_right_to_read_storage_pods_with_volumes_start_all_the_same(tmp_path: Path) -> None:
    volumes = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}

    async def scene(sim: Simulation) -> None:
        for kind in ("persistentvolumeclaims", "persistentvolumes", "storageclasses"):
            sim.kube.denied.add(("list", kind))
        sim.start()
        await sim.settle(1.0)
        sim.create("p", asks=volumes)
        await sim.until(lambda: running(sim, "p"), 5.0)

    play(tmp_path, scene)


def test_a_pod_follows_its_volume(tmp_path: Path) -> None:
    volumes = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}

    async def scene(sim: Simulation) -> None:
        sim.label("n2", zone="a")
        terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
        spec = {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}
        sim.kube.add("persistentvolumes", {"metadata": {"name": "pv"}, "spec": spec})
        sim.kube.add("persistentvolumeclaims", {"metadata": {"name": "data"}, "spec": {"volumeName": "pv"}})
        sim.create("p", asks=volumes)
        sim.start()
        await sim.until(lambda: running(sim, "p"), 5.0)
        assert (where(sim, "p"), attempts(sim, "p")) == ("n2", "")

    play(tmp_path, scene)
