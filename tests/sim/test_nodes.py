"""What Kubernetes says of a machine, and Slurm's word about it, with the whole bridge at work."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bridge.core.model import is_ended
from bridge.names import (
    EXTERNAL_NODE_LABEL,
    MANAGED_NODE_TAINT,
    SLURM_NODENAME_LABEL,
)
from tests.sim import accidents
from tests.sim.nodes import (
    FAN,
    PROMISED,
    SIZE,
    alter,
    kube,
    marked,
    shown,
    slurm,
    stage,
)
from tests.sim.simulation import Simulation
from tests.sim.test_story import running
from tests.worlds.slurm_faults import Fault, Kind

# --- Kubernetes → Slurm ------------------------------------------------------------------------------


def cordon(sim: Simulation, on: bool) -> None:
    sim.cordon("n1", on)


def silence(sim: Simulation, on: bool) -> None:
    sim.set_ready("n1", not on)


def pressure(sim: Simulation, on: bool) -> None:
    others = [t for t in kube(sim, "n1")["spec"].get("taints", ()) if t["key"] == MANAGED_NODE_TAINT]
    mine = [{"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}] if on else []
    sim.kube.storage.patch("nodes", "", "n1", {"spec": {"taints": others + mine}})


@pytest.mark.parametrize(
    ("happens", "said"),
    [
        (cordon, "cordoned in Kubernetes"),
        (silence, "not Ready in Kubernetes"),
        (pressure, "tainted in Kubernetes"),
    ],
)
def test_what_kubernetes_says_of_a_machine_is_a_drain_in_slurm_within_a_second_and_goes_with_it(
    tmp_path: Path, happens: Callable[[Simulation, bool], None], said: str
) -> None:
    async def scene(sim: Simulation) -> None:
        for _ in range(2):
            happens(sim, True)
            await sim.until(lambda: slurm(sim, "n1").drained, PROMISED)
            assert slurm(sim, "n1").reason.startswith(f"slurm-bridge: {said}")
            assert not slurm(sim, "n2").drained
            await asyncio.sleep(30.0)
            happens(sim, False)
            await sim.until(lambda: not slurm(sim, "n1").drained, PROMISED)
            assert slurm(sim, "n1").reason == ""
            await asyncio.sleep(30.0)

    stage(tmp_path, scene)


def test_a_cordon_is_lifted_in_slurm_also_after_a_restart_of_either_side(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.cordon("n1", True)
        await sim.until(lambda: slurm(sim, "n1").drained, PROMISED)
        await sim.crash()
        sim.cordon("n1", False)
        sim.start()
        await sim.until(lambda: not slurm(sim, "n1").drained, 10.0)
        sim.cordon("n1", True)
        await sim.until(lambda: slurm(sim, "n1").drained, PROMISED)
        sim.slurm.restart()
        await asyncio.sleep(5.0)
        sim.cordon("n1", False)
        await sim.until(lambda: not slurm(sim, "n1").drained, 2.0)

    stage(tmp_path, scene)


@pytest.mark.parametrize(
    "theirs", [FAN, "", "see slurm-bridge: cordoned in Kubernetes", "slurm-operator: maintenance"]
)
def test_a_drain_of_somebody_elses_stays_whatever_becomes_of_the_cordon(tmp_path: Path, theirs: str) -> None:
    async def scene(sim: Simulation) -> None:
        alter(sim, "n1", drained=True, reason=theirs, reason_by="root")
        for on in (True, False, True, False):
            sim.cordon("n1", on)
            await asyncio.sleep(5.0)
        await sim.crash()
        sim.start()
        sim.slurm.restart()
        await asyncio.sleep(600.0)
        assert slurm(sim, "n1").drained
        assert slurm(sim, "n1").reason == theirs

    stage(tmp_path, scene)


def test_what_an_admin_says_over_our_drain_is_the_last_word(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.cordon("n1", True)
        await sim.until(lambda: slurm(sim, "n1").drained, PROMISED)
        alter(sim, "n1", reason=FAN, reason_by="root")
        await asyncio.sleep(5.0)
        sim.cordon("n1", False)
        await asyncio.sleep(60.0)
        assert (slurm(sim, "n1").drained, slurm(sim, "n1").reason) == (True, FAN)

    stage(tmp_path, scene)


def test_a_drain_that_keeps_the_devices_of_a_pod_is_not_lifted_by_the_mirror(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.create("p", asks={"tolerations": [{"operator": "Exists"}]})
        await sim.until(lambda: running(sim, "p"), 10.0)
        pod = sim.pod("p")
        assert pod is not None
        node = pod["spec"]["nodeName"]
        reason = "slurm-bridge: pod default/p uses GPUs 0 and its job is gone"
        alter(sim, node, drained=True, reason=reason, reason_by="slurm")
        sim.cordon(node, True)
        await asyncio.sleep(10.0)
        sim.cordon(node, False)
        await asyncio.sleep(60.0)
        assert (slurm(sim, node).drained, slurm(sim, node).reason) == (True, reason)

    stage(tmp_path, scene)


def test_a_machine_that_died_under_a_pod_is_not_given_back_when_it_is_ready_again(tmp_path: Path) -> None:
    """The mirror drained it first, and would lift that."""

    async def scene(sim: Simulation) -> None:
        sim.create("p", asks={"tolerations": [{"operator": "Exists"}]})
        await sim.until(lambda: running(sim, "p"), 10.0)
        pod = sim.pod("p")
        assert pod is not None
        node, number = pod["spec"]["nodeName"], sim.job_of("p")
        sim.set_ready(node, False)
        await sim.until(lambda: slurm(sim, node).drained, PROMISED)
        assert slurm(sim, node).reason.startswith("slurm-bridge: not Ready")
        sim.delete("p")
        await sim.until(lambda: is_ended(sim.slurm.jobs[number].states), 200.0)
        assert slurm(sim, node).reason.startswith("slurm-bridge: node not Ready")
        await sim.crash()
        sim.start()
        sim.set_ready(node, True)
        await asyncio.sleep(900.0)
        assert slurm(sim, node).drained

    stage(tmp_path, scene)


def test_kubelets_that_fall_silent_all_at_once_drain_a_few_nodes_only(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        for name in list(sim.slurm.nodes):
            sim.set_ready(name, False)
        await asyncio.sleep(60.0)
        assert sum(node.drained for node in sim.slurm.nodes.values()) == 3
        for name in list(sim.slurm.nodes):
            sim.set_ready(name, True)
        await sim.until(lambda: not any(node.drained for node in sim.slurm.nodes.values()), 5.0)

    stage(tmp_path, scene, nodes=30)


# --- nodes that go -----------------------------------------------------------------------------------


def test_a_machine_that_left_kubernetes_is_drained_at_once_and_leaves_slurm_when_no_job_is_remembered_there(
    tmp_path: Path,
) -> None:
    async def scene(sim: Simulation) -> None:
        job = sim.slurm.native(gpus=1)
        (where,) = sim.slurm.jobs[job.id].nodes
        sim.kube.storage.delete("nodes", "", where, {})
        await sim.until(lambda: slurm(sim, where).drained, PROMISED)
        await asyncio.sleep(600.0)
        assert where in sim.slurm.nodes
        sim.slurm.end(job.id, "COMPLETED")
        await asyncio.sleep(290.0)
        assert where in sim.slurm.nodes, "slurmctld remembers the job for 300 s"
        await sim.until(lambda: where not in sim.slurm.nodes, 60.0)
        await asyncio.sleep(60.0)
        assert len(sim.slurm.nodes) == 1

    stage(tmp_path, scene)


def relisted(sim: Simulation) -> None:
    """The watch of nodes ends, and history has no room for where it stood."""
    sim.kube.cut_watches("nodes")
    sim.kube.namespace(f"later-{sim.kube.storage.version}")
    sim.kube.compact()


def test_a_machine_that_gets_another_name_in_slurm_moves_there(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.kube.storage.patch("nodes", "", "n1", {"metadata": {"labels": {SLURM_NODENAME_LABEL: "m1"}}})
        await sim.until(lambda: "m1" in sim.slurm.nodes, 600.0)
        assert "n1" not in sim.slurm.nodes

    stage(tmp_path, scene)


def test_a_node_list_that_lacks_nodes_drains_none_of_them(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        whole = sim.kube.storage.all

        def short(resource: str, namespace: str = "") -> Any:
            return iter(()) if resource == "nodes" else whole(resource, namespace)

        sim.kube.storage.all = short  # type: ignore[method-assign]
        relisted(sim)
        await asyncio.sleep(120.0)
        sim.kube.storage.all = whole  # type: ignore[method-assign]
        relisted(sim)
        await asyncio.sleep(60.0)
        assert not any(node.drained for node in sim.slurm.nodes.values())
        assert sim.slurm.count("POST node/n1") == 1, "its mark, at the beginning"

    stage(tmp_path, scene)


def test_a_first_list_without_nodes_costs_a_drained_node_nothing(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        pressure(sim, True)
        await sim.until(lambda: slurm(sim, "n1").drained, PROMISED)
        before = slurm(sim, "n1")
        await sim.crash()
        sim.kube.faults.plan(accidents.kube("empty-nodes"), verb="list", resource="nodes", times=1)
        sim.start()
        await asyncio.sleep(120.0)
        assert slurm(sim, "n1") == before

    stage(tmp_path, scene)


def test_a_machine_is_given_back_only_when_the_pods_of_ended_jobs_have_ended(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.create("p", grace=20)
        await sim.until(lambda: running(sim, "p"), 10.0)
        node = sim.slurm.jobs[sim.job_of("p")].nodes[0]
        sim.cordon(node, True)
        await sim.until(lambda: slurm(sim, node).drained, PROMISED)
        sim.slurm.end(sim.job_of("p"), "TIMEOUT")
        sim.cordon(node, False)
        await asyncio.sleep(10.0)
        assert slurm(sim, node).drained
        assert sim.kubelet.containers
        await sim.until(lambda: not slurm(sim, node).drained, 30.0)
        assert not sim.kubelet.containers

    stage(tmp_path, scene, dying=1.0)


def test_many_machines_that_go_at_once_are_drained_only_after_two_more_looks(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        for name in list(sim.slurm.nodes):
            alter(sim, name, last_busy=sim.wall())
            sim.kube.storage.delete("nodes", "", name, {})
        await asyncio.sleep(8.0)
        assert sum(node.drained for node in sim.slurm.nodes.values()) == 10
        await sim.until(lambda: all(node.drained for node in sim.slurm.nodes.values()), 60.0)
        await sim.until(lambda: not sim.slurm.nodes, 400.0)

    stage(tmp_path, scene, nodes=30)


def test_a_node_that_slurm_does_not_have_any_more_is_asked_for_no_more(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.kube.storage.delete("nodes", "", "n1", {})
        await sim.until(lambda: "n1" not in sim.slurm.nodes, 10.0)
        asked = sim.slurm.count("GET node/n1")
        await asyncio.sleep(60.0)
        assert sim.slurm.count("GET node/n1") == asked

    stage(tmp_path, scene)


def test_one_list_of_slurms_that_lacks_a_node_registers_nothing(tmp_path: Path) -> None:
    def shortened(raw: bytes) -> bytes:
        body = json.loads(raw)
        body["nodes"] = body["nodes"][1:]
        return json.dumps(body).encode()

    async def scene(sim: Simulation) -> None:
        sim.slurm.nodes_changed = sim.slurm.clock() + 3600.0  # each poll gets a list
        await asyncio.sleep(2.0)
        sim.slurm.faults.add(Fault(pattern="^GET nodes/", kind=Kind.EDIT, edit=shortened))
        await asyncio.sleep(5.0)
        assert sim.slurm.count("POST new/node/") == 0

    stage(tmp_path, scene)


def test_a_node_that_slurm_has_all_the_same_keeps_what_others_wrote_there(tmp_path: Path) -> None:
    def shortened(raw: bytes) -> bytes:
        body = json.loads(raw) if raw else {}
        body["nodes"] = [node for node in body.get("nodes", ()) if node["name"] != "n1"]
        return json.dumps(body).encode() if raw else raw

    async def scene(sim: Simulation) -> None:
        mine = json.loads(slurm(sim, "n1").comment)
        alter(sim, "n1", comment=json.dumps(mine | {"rack": "7"}))
        fault = sim.slurm.faults.add(Fault(pattern="^GET nodes/", kind=Kind.EDIT, edit=shortened, times=0))
        await sim.until(lambda: sim.slurm.count("POST new/node/"), 20.0)
        await asyncio.sleep(5.0)
        sim.slurm.faults.remove(fault)
        await asyncio.sleep(5.0)
        assert json.loads(slurm(sim, "n1").comment)["rack"] == "7"

    stage(tmp_path, scene, nodes=4)


def test_a_machine_is_given_back_only_when_no_container_of_a_pod_that_went_may_run_there(
    tmp_path: Path,
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.create("p", asks={"tolerations": [{"operator": "Exists"}]}, grace=60)
        await sim.until(lambda: running(sim, "p"), 10.0)
        pod = sim.pod("p")
        assert pod is not None
        node = pod["spec"]["nodeName"]
        sim.cordon(node, True)
        await sim.until(lambda: slurm(sim, node).drained, PROMISED)
        sim.delete("p", force=True)
        await asyncio.sleep(5.0)
        sim.cordon(node, False)
        await asyncio.sleep(50.0)
        assert slurm(sim, node).drained
        await sim.until(lambda: not slurm(sim, node).drained, 120.0)

    stage(tmp_path, scene)


def test_a_machine_that_comes_is_registered_with_what_kubelet_can_hold_and_runs_pods(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        daemon = {
            "nodeName": "n3",
            "schedulerName": "default-scheduler",
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "1500m", "memory": "1Gi"}}}],
        }
        sim.kube.add("pods", {"metadata": {"name": "daemon", "namespace": "default"}, "spec": daemon})
        ready = [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-30T12:00:00Z"}]
        status = {
            "allocatable": SIZE,
            "conditions": ready,
            "addresses": [{"type": "InternalIP", "address": "10.0.0.3"}],
        }
        sim.kube.add(
            "nodes", {"metadata": {"name": "n3", "labels": {EXTERNAL_NODE_LABEL: ""}}, "status": status}
        )
        await sim.until(lambda: "n3" in sim.slurm.nodes and marked(sim, "n3"), 5.0)
        made = slurm(sim, "n3")
        assert (made.cpus, made.memory, made.gpus, made.gpu_type) == (62, 510976, 8, "h100")
        assert made.address == "10.0.0.3"
        await sim.until(lambda: shown(sim, "n3")[0] == "Usable", 5.0)
        requests = sim.slurm.count("POST new/node/")
        await sim.crash()
        sim.start()
        await asyncio.sleep(30.0)
        assert sim.slurm.count("POST new/node/") == requests

    stage(tmp_path, scene)
