"""One truth about nodes, on the real daemons: what Kubernetes says of a machine reaches Slurm in a second, and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bridge.names import EXTERNAL_NODE_LABEL, SLURM_NODE_CONDITION, UNAVAILABLE_TAINT
from tests.e2e import kube as k
from tests.e2e.kube import Object
from tests.e2e.scene import Scene
from tests.e2e.waiting import eventually, throughout

pytestmark = pytest.mark.real
NODE, HYBRID, COMING = "k0003", "n4", "e2e-coming"
PROMISED = 1.0  # seconds
CORDONED = "slurm-bridge: cordoned in Kubernetes"
SIZE = {"cpu": "8", "memory": "16Gi", "nvidia.com/gpu": "2", "pods": "110"}


def in_slurm(scene: Scene, name: str) -> dict[str, Any]:
    nodes = scene.slurm.ask("GET", "nodes/").json()["nodes"]
    return next((node for node in nodes if node["name"] == name), {})


def in_kubernetes(scene: Scene, name: str) -> Object:
    return scene.kube.must("GET", f"/api/v1/nodes/{name}")


def drained(scene: Scene, name: str) -> bool:
    return "DRAIN" in in_slurm(scene, name)["state"]


def condition(scene: Scene, name: str) -> str:
    """The reason of ours."""
    found = k.condition(in_kubernetes(scene, name), SLURM_NODE_CONDITION)
    return str(found["reason"]) if found is not None else ""


def unavailable(scene: Scene, name: str) -> bool:
    return any(t["key"] == UNAVAILABLE_TAINT for t in in_kubernetes(scene, name)["spec"].get("taints", ()))


def label(scene: Scene, name: str, value: str | None) -> None:
    body = {"metadata": {"labels": {EXTERNAL_NODE_LABEL: value}}}
    scene.kube.must("PATCH", f"/api/v1/nodes/{name}", body, kind=k.MERGE)


def say(scene: Scene, name: str, state: str, reason: str = "") -> None:
    words = [f"nodename={name}", f"state={state}", *([f"reason={reason}"] if reason else [])]
    scene.stack.run("scontrol", "update", *words)


@pytest.fixture
def node(scene: Scene) -> Iterator[str]:
    """An external node that this bridge knows as its own; registered anew afterwards, as others have it."""
    label(scene, NODE, "")
    eventually("the node has our mark", lambda: '"bridge"' in in_slurm(scene, NODE)["comment"], within=10)
    yield NODE
    scene.kube.cordon(NODE, False)
    if drained(scene, NODE):
        say(scene, NODE, "undrain")
    eventually("the node takes jobs again", lambda: not drained(scene, NODE))
    label(scene, NODE, None)
    # Without the label it would be drained, and deleted five minutes later: as it came to the stack, it has no mark.
    eventually("the node is drained", lambda: drained(scene, NODE))
    scene.slurm.ask("POST", f"node/{NODE}", {"comment": "", "state": ["UNDRAIN"]})
    eventually("the node takes jobs again", lambda: not drained(scene, NODE))


def test_a_cordon_is_a_drain_in_slurm_and_goes_with_it(scene: Scene, node: str) -> None:
    scene.create(k.pod("stays", options=scene.only(node)))
    scene.running("stays")
    scene.kube.cordon(node, True)
    eventually("it is drained", lambda: drained(scene, node), within=PROMISED, promised=True)
    assert in_slurm(scene, node)["reason"] == CORDONED
    assert k.phase(scene.get("stays")) == "Running"
    scene.kube.cordon(node, False)
    eventually("it is not", lambda: not drained(scene, node), within=2 * PROMISED, promised=True)
    assert in_slurm(scene, node)["reason"] == ""
    assert k.phase(scene.get("stays")) == "Running"


def test_a_drain_of_an_admins_stays_and_shows_on_the_node_until_it_is_lifted(scene: Scene, node: str) -> None:
    say(scene, node, "drain", "fan broken")
    eventually("it shows", lambda: condition(scene, node) == "Drained", within=PROMISED, promised=True)
    eventually("it is tainted", lambda: unavailable(scene, node), within=PROMISED, promised=True)
    for on in (True, False):
        scene.kube.cordon(node, on)
        throughout("the reason stays", 2.0, lambda: in_slurm(scene, node)["reason"] == "fan broken")
    assert drained(scene, node)
    say(scene, node, "resume")
    eventually("it is usable", lambda: condition(scene, node) == "Usable", within=PROMISED, promised=True)
    eventually("the taint is gone", lambda: not unavailable(scene, node), within=PROMISED, promised=True)
    assert not in_kubernetes(scene, node)["spec"].get("unschedulable")


def test_a_node_with_slurmd_shows_what_slurm_says_and_its_cordon_is_not_ours_to_mirror(scene: Scene) -> None:
    scene.kube.cordon(HYBRID, True)
    throughout("it is not drained", 2.0, lambda: not drained(scene, HYBRID))
    scene.kube.cordon(HYBRID, False)
    say(scene, HYBRID, "down", "power")
    eventually("it shows", lambda: condition(scene, HYBRID) == "Down", within=PROMISED, promised=True)
    say(scene, HYBRID, "resume")
    eventually("it is usable", lambda: condition(scene, HYBRID) == "Usable", within=10)
    eventually("the taint is gone", lambda: not unavailable(scene, HYBRID))


def test_a_machine_that_comes_is_registered_and_one_that_goes_is_drained_at_once(scene: Scene) -> None:
    path = "/api/v1/nodes"
    meta = {"name": COMING, "labels": {EXTERNAL_NODE_LABEL: "", "type": "kwok"}}
    scene.kube.must("POST", path, {"metadata": meta, "status": {"allocatable": SIZE, "capacity": SIZE}})
    try:
        eventually("Slurm has it", lambda: in_slurm(scene, COMING), within=30)
        eventually("it is usable", lambda: condition(scene, COMING) == "Usable", within=10)
        made = in_slurm(scene, COMING)
        assert (made["cpus"], made["real_memory"], made["gres"]) == (8, 16384, "gpu:2")
        assert "EXTERNAL" in made["state"]
    finally:
        scene.kube.must("DELETE", f"{path}/{COMING}")
    eventually("it is drained", lambda: drained(scene, COMING), within=PROMISED, promised=True)
    assert in_slurm(scene, COMING)["reason"].startswith("slurm-bridge: no node of Kubernetes")
    assert scene.slurm.ask("DELETE", f"node/{COMING}").is_success  # five minutes later the bridge would


def test_a_node_that_rejects_three_pods_is_drained_until_it_boots_anew(scene: Scene, node: str) -> None:
    def told(**status: Any) -> None:
        scene.kube.must("PATCH", f"/api/v1/nodes/{node}/status", {"status": status}, kind=k.MERGE)

    def boots(name: str) -> None:
        told(nodeInfo={"bootID": name})

    names = ("bad-1", "bad-2", "bad-3")
    with unplayed(scene, node):
        told(conditions=[{"type": "Ready", "status": "True", "reason": "Test"}])
        boots("first")
        for name in names:
            assert not drained(scene, node), "fewer than three"
            scene.create(k.pod(name, options=scene.only(node)))
            scene.when(name, "bound", lambda pod: k.node_of(pod) == node)
            rejected = {"phase": "Failed", "reason": "UnexpectedAdmissionError"}
            scene.patch(name, {"status": rejected}, subresource="/status")
        eventually("it is drained", lambda: drained(scene, node), within=10)
        why = in_slurm(scene, node)["reason"]
        assert why.startswith("slurm-bridge: pods do not start: ")
        assert all(f"{scene.namespace}/{name}" in why for name in names)
        boots("second")
        eventually("it is not", lambda: not drained(scene, node))
        assert in_slurm(scene, node)["reason"] == ""


@contextmanager
def unplayed(scene: Scene, name: str) -> Iterator[None]:
    """Nobody plays its kubelet: the test does."""
    path = f"/api/v1/nodes/{name}"
    scene.kube.must("PATCH", path, {"metadata": {"labels": {"type": None}}}, kind=k.MERGE)
    try:
        yield
    finally:
        scene.kube.must("PATCH", path, {"metadata": {"labels": {"type": "kwok"}}}, kind=k.MERGE)
