"""Each arrow between the two records of a node, on real daemons: what one side says the other shows, and no more."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from bridge.core.model import KubeNode
from bridge.core.nodes import NodeMark, marked
from bridge.names import (
    EXTERNAL_NODE_LABEL,
    MANAGED_NODE_TAINT,
    NODE_PARTITIONS_ANNOTATION,
    SLURM_NODENAME_LABEL,
    TOPOLOGY_ANNOTATION,
)
from tests.e2e import kube as k
from tests.e2e.kube import Object
from tests.e2e.scene import Scene
from tests.e2e.stack import Stack
from tests.e2e.stages import BOOT_GRACE, own, staged
from tests.e2e.test_nodes import condition, drained, in_kubernetes, in_slurm, say, unavailable
from tests.e2e.waiting import eventually, throughout

pytestmark = pytest.mark.real
NODE, HYBRID = "x1", "n2"
SIZE = {"cpu": "8", "memory": "16Gi", "nvidia.com/gpu": "2", "pods": "110"}
SETTLING = 4  # seconds
MIN_JOB_AGE = 5  # seconds
SETTINGS = {"nodeSettling": SETTLING, "bootGrace": BOOT_GRACE, "taintNodes": "true"}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    settings = (word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}"))
    options = ("--nodes", "1", "--hybrid", "2", "--no-workloads", "--min-job-age", str(MIN_JOB_AGE))
    with own("arrows", *options, *settings) as found:
        yield found


@pytest.fixture
def scene(stack: Stack) -> Iterator[Scene]:
    with staged(stack) as found:
        yield found


@pytest.fixture
def node(scene: Scene) -> Iterator[str]:
    """An external node that the bridge has registered, and that takes jobs."""
    create(scene, NODE)
    eventually("Slurm has it", lambda: condition(scene, NODE) == "Usable" and not drained(scene, NODE))
    yield NODE
    scene.kube.ask("DELETE", f"/api/v1/nodes/{NODE}")
    leaves(scene, NODE)


def leaves(scene: Scene, name: str) -> None:
    def gone() -> bool:
        record = in_slurm(scene, name)
        if record and "DRAIN" in record["state"] and not record["reason"].startswith("slurm-bridge: no "):
            say(scene, name, "resume")  # a person's word, or devices: the bridge waits for a person
        return not record

    eventually("its record is deleted", gone, within=60, every=1.0)


def create(scene: Scene, name: str, **labels: str) -> None:
    meta = {"name": name, "labels": {EXTERNAL_NODE_LABEL: "", "type": "kwok", **labels}}
    status = {"allocatable": SIZE, "capacity": SIZE}
    scene.kube.must("POST", "/api/v1/nodes", {"metadata": meta, "status": status})


def change(scene: Scene, body: Object, *, status: bool = False) -> None:
    where = "/status" if status else ""
    scene.kube.must("PATCH", f"/api/v1/nodes/{NODE}{where}", body, kind=k.MERGE)


def kubelet(scene: Scene, lives: bool) -> None:
    change(scene, {"metadata": {"labels": {"type": "kwok" if lives else None}}})


def shows(scene: Scene, kind: str, status: str) -> None:
    """Said by its kubelet, or by who has not heard of it."""
    change(
        scene, {"status": {"conditions": [{"type": kind, "status": status, "reason": "Test"}]}}, status=True
    )


def reason(scene: Scene) -> str:
    record = in_slurm(scene, NODE)
    return str(record["reason"]) if "DRAIN" in record["state"] else ""


def reason_is(scene: Scene, text: str) -> None:
    eventually(f"Slurm has it drained: {text}", lambda: reason(scene) == text, within=5)


def is_free(scene: Scene) -> None:
    eventually("it takes jobs again", lambda: not drained(scene, NODE))
    assert in_slurm(scene, NODE)["reason"] == ""


# --- Kubernetes → Slurm ---------------------------------------------------------------------------


@pytest.mark.parametrize(("status", "text"), [("False", ""), ("Unknown", ": its kubelet is silent")])
def test_a_machine_that_is_not_ready_is_drained_until_it_is(
    scene: Scene, node: str, status: str, text: str
) -> None:
    kubelet(scene, False)
    shows(scene, "Ready", status)
    reason_is(scene, f"slurm-bridge: not Ready in Kubernetes{text}")
    kubelet(scene, True)
    is_free(scene)


def test_pressure_on_a_machine_drains_it_until_it_is_over(scene: Scene, node: str) -> None:
    kubelet(scene, False)  # the one that plays it would say that all is well
    shows(scene, "Ready", "True")
    shows(scene, "DiskPressure", "True")
    reason_is(scene, "slurm-bridge: tainted in Kubernetes: node.kubernetes.io/disk-pressure")
    kubelet(scene, True)
    shows(scene, "DiskPressure", "False")
    is_free(scene)


def test_a_machine_out_of_service_is_drained_until_the_taint_goes(scene: Scene, node: str) -> None:
    taints = in_kubernetes(scene, node)["spec"].get("taints", [])
    assert any(taint["key"] == MANAGED_NODE_TAINT for taint in taints)
    out = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
    change(scene, {"spec": {"taints": [*taints, out]}})
    reason_is(scene, "slurm-bridge: tainted in Kubernetes: node.kubernetes.io/out-of-service")
    change(scene, {"spec": {"taints": taints}})
    is_free(scene)


def test_a_machine_that_loses_its_label_leaves_slurm_and_keeps_nothing_of_it(scene: Scene, node: str) -> None:
    change(scene, {"metadata": {"labels": {EXTERNAL_NODE_LABEL: None}}})
    reason_is(scene, "slurm-bridge: no external node any more")
    leaves(scene, node)
    eventually("it has no condition of ours", lambda: condition(scene, node) == "", within=90)
    keys = {taint["key"] for taint in in_kubernetes(scene, node)["spec"].get("taints", [])}
    assert MANAGED_NODE_TAINT not in keys


def test_another_name_in_slurm_is_a_move_of_the_record(scene: Scene, node: str) -> None:
    change(scene, {"metadata": {"labels": {SLURM_NODENAME_LABEL: "x2"}}})
    eventually("it is there under the other name", lambda: in_slurm(scene, "x2"), within=60)
    assert not in_slurm(scene, node), "one machine was in Slurm twice"
    change(scene, {"metadata": {"labels": {SLURM_NODENAME_LABEL: None}}})
    eventually("it is back under its own", lambda: in_slurm(scene, node), within=60)
    assert not in_slurm(scene, "x2")


def test_features_and_topology_change_in_place(scene: Scene, node: str) -> None:
    boot = in_slurm(scene, node)["boot_time"]
    change(scene, {"metadata": {"annotations": {NODE_PARTITIONS_ANNOTATION: "all,slurm-bridge"}}})
    eventually(
        "features", lambda: {"all", "slurm-bridge"} <= set(in_slurm(scene, node)["features"]), within=5
    )
    change(scene, {"metadata": {"annotations": {TOPOLOGY_ANNOTATION: "no topology"}}})
    throughout("a topology that is none changes nothing", 2.0, lambda: not drained(scene, node))
    annotations = {NODE_PARTITIONS_ANNOTATION: "slurm-bridge", TOPOLOGY_ANNOTATION: None}
    change(scene, {"metadata": {"annotations": annotations}})
    eventually("one feature", lambda: "all" not in in_slurm(scene, node)["features"], within=5)
    assert in_slurm(scene, node)["boot_time"] == boot


def test_another_size_is_registered_once_it_lasts_and_one_that_flips_back_is_not(
    scene: Scene, node: str
) -> None:
    def sized(cpus: str) -> None:
        amounts = {"cpu": cpus}
        change(scene, {"status": {"allocatable": amounts, "capacity": amounts}}, status=True)

    sized("4")
    time.sleep(SETTLING / 2)  # what this is about: shorter than the settling time
    sized("8")
    throughout("it stays", 2.0 * SETTLING, lambda: not drained(scene, node))
    sized("4")
    eventually("it has its new size", lambda: in_slurm(scene, node).get("cpus") == 4, within=60)
    is_free(scene)


# --- Slurm → Kubernetes ---------------------------------------------------------------------------

STATES = {"DOWN": "Down", "FAIL": "Failed", "DRAIN": "Drained"}


@pytest.mark.parametrize("name", [NODE, HYBRID])
def test_what_slurm_says_shows_on_the_node_until_it_is_over(scene: Scene, node: str, name: str) -> None:
    for state, shown in STATES.items():
        say(scene, name, state, "fan broken")
        eventually(f"{state} shows", lambda shown=shown: condition(scene, name) == shown, within=5)  # type: ignore[misc]
        eventually("it is tainted", lambda: unavailable(scene, name), within=5)
        say(scene, name, "resume")
        eventually("it is usable", lambda: condition(scene, name) == "Usable", within=15)
        eventually("the taint is gone", lambda: not unavailable(scene, name), within=5)


@pytest.mark.parametrize(("flags", "shown"), [("", "Reserved"), ("maint,ignore_jobs", "Maintenance")])
def test_a_reservation_shows_while_it_lasts(scene: Scene, flags: str, shown: str) -> None:
    words = ["reservationname=e2e", "users=root", f"nodes={HYBRID}", "starttime=now", "duration=60"]
    scene.stack.run("scontrol", "create", *words, *([f"flags={flags}"] if flags else []))
    try:
        eventually(f"{shown} shows", lambda: condition(scene, HYBRID) == shown, within=10)
        assert unavailable(scene, HYBRID)
    finally:
        scene.stack.run("scontrol", "delete", "reservationname=e2e")
    eventually("it is usable", lambda: condition(scene, HYBRID) == "Usable", within=10)
    eventually("the taint is gone", lambda: not unavailable(scene, HYBRID), within=5)


def test_a_node_that_slurm_does_not_reach_is_made_anew_when_it_is_empty(scene: Scene, node: str) -> None:
    scene.stack.run("scontrol", "update", f"nodename={node}", "state=noresp")
    eventually("it shows", lambda: condition(scene, node) == "NotResponding", within=10)
    eventually("it is usable", lambda: condition(scene, node) == "Usable", within=60)
    assert "NOT_RESPONDING" not in in_slurm(scene, node)["state"]
    is_free(scene)


# --- whose word it is -----------------------------------------------------------------------------


@pytest.mark.parametrize("theirs", ["fan broken", "see slurm-bridge: cordoned in Kubernetes", "Not healthy"])
def test_a_drain_over_ours_outlasts_the_cause_and_every_restart(scene: Scene, node: str, theirs: str) -> None:
    scene.kube.cordon(node, True)
    reason_is(scene, "slurm-bridge: cordoned in Kubernetes")
    say(scene, node, "drain", theirs)
    scene.kube.cordon(node, False)
    throughout("it is theirs", 2.0, lambda: reason(scene) == theirs)
    scene.stack.restart("bridge")
    scene.stack.wait_leading()
    scene.slurm.saves()
    scene.stack.restart("slurmctld")
    eventually("Slurm answers", lambda: in_slurm(scene, node))
    for on in (True, False) * 5:
        scene.kube.cordon(node, on)
        throughout("it is theirs", 0.5, lambda: reason(scene) == theirs)
    say(scene, node, "resume")
    is_free(scene)


def test_a_drain_without_a_reason_is_nobodys_to_lift(scene: Scene, node: str) -> None:
    assert scene.slurm.ask("POST", f"node/{node}", {"state": ["DRAIN"]}).is_success
    for on in (True, False):
        scene.kube.cordon(node, on)
        throughout(
            "it is drained", 1.5, lambda: drained(scene, node) and in_slurm(scene, node)["reason"] == ""
        )
    say(scene, node, "resume")
    is_free(scene)


def test_a_node_of_another_bridge_is_left_alone(scene: Scene) -> None:
    conf = "NodeName=y1 NodeAddr=127.0.0.1 State=EXTERNAL CPUs=4 RealMemory=1000"
    made = scene.slurm.ask("POST", "new/node/", {"node_conf": conf})
    assert made.is_success, made.text
    mark = marked("", NodeMark(cluster="another", node=KubeNode("y1")))
    said = scene.slurm.ask("POST", "node/y1", {"comment": mark})
    assert said.is_success, said.text
    before = steady(in_slurm(scene, "y1"))
    create(scene, "y1")
    try:
        scene.kube.cordon("y1", True)
        throughout("it is as it was", 3.0, lambda: steady(in_slurm(scene, "y1")) == before)
    finally:
        scene.kube.must("DELETE", "/api/v1/nodes/y1")
    throughout("it is as it was", 3.0, lambda: steady(in_slurm(scene, "y1")) == before)
    say(scene, "y1", "drain", "e2e")
    gone = scene.slurm.ask("DELETE", "node/y1")
    assert gone.is_success, gone.text


def steady(record: Mapping[str, Any]) -> tuple[object, ...]:
    return tuple(record.get(key) for key in ("state", "reason", "comment", "cpus", "features"))
