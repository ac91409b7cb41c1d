"""Which node is whose, and what is concluded from what could not be read: nothing."""

from __future__ import annotations

import pytest

from bridge.core.constraints import Taint
from bridge.core.model import KubeNode, SlurmNode
from bridge.core.nodes import Kind
from bridge.core.steps import (
    DeleteNode,
    RegisterNode,
    SetNodeCondition,
    SetNodeTaints,
    UpdateNode,
)
from bridge.core.verdict import Reason
from bridge.names import EXTERNAL_NODE_LABEL, MANAGED_NODE_TAINT, SLURM_NODENAME_LABEL
from tests.core.nodeworld import World, by_hand, kube, operated, record, tainted

N1, K1 = SlurmNode("n1"), KubeNode("n1")


@pytest.fixture
def world() -> World:
    """One external node, settled."""
    world = World.of(kube("n1"), record("n1"))
    world.settle()
    return world


def drained(world: World) -> str:
    found = world.records[N1]
    return found.reason if found.drained else ""


# --- whose nodes ------------------------------------------------------------------------------------


def test_a_node_of_another_clusters_bridge_is_never_touched() -> None:
    world = World.of(
        kube("n1", cordoned=True),
        record("n1", cluster="cluster-2"),
        record("n2", "NOT_RESPONDING", cluster="cluster-2"),
        record("n3", comment=""),
    )
    assert world.look() == []
    told = [v.reason for one in world.see().values() for v in one.verdicts]
    assert told == [Reason.FOREIGN] * 3


def test_a_node_is_registered_whatever_another_clusters_bridge_calls_its_own() -> None:
    """Two clusters may each have a node of one name."""
    world = World.of(kube("n1"), record("other-n1", node="n1", cluster="cluster-2"))
    world.settle()
    assert N1 in world.records


def test_an_external_node_without_a_mark_is_taken_over_with_its_drain() -> None:
    """As the Go project leaves it."""
    reason = "slurm-bridge: Corresponding Kubernetes node (n1) is unschedulable"
    world = World.of(kube("n1", cordoned=True), record("n1", "DRAIN", comment="rack 7", reason=reason))
    world.settle()
    assert drained(world) == reason
    assert '"comment":"rack 7"' in world.records[N1].comment
    world.kubernetes(K1, cordoned=False)
    world.settle()
    assert not drained(world)


def test_two_nodes_that_claim_one_name_are_both_refused_by_name() -> None:
    label = {EXTERNAL_NODE_LABEL: "", SLURM_NODENAME_LABEL: "n1"}
    world = World.of(kube("n1", cordoned=True), kube("n2", labels=label), record("n1"))
    assert world.look() == []
    (one,) = world.see().values()
    assert "n1 and n2 both claim the Slurm name n1" in one.verdicts[0].text


@pytest.mark.parametrize(
    ("node", "found", "kind"),
    [
        (kube("k9", labels={SLURM_NODENAME_LABEL: "n1"}), by_hand("n1"), Kind.SLURMD),
        (kube("k9", labels={}), operated("n1", node="k9"), Kind.OPERATOR),
        (kube("n1.example.com", labels={}), by_hand("n1"), Kind.SLURMD),
        (kube("n1", labels={}), by_hand("n1"), Kind.SLURMD),
    ],
    ids=["label", "operator", "cut-at-the-dot", "same"],
)
def test_each_way_to_name_a_node_finds_its_record(node: object, found: object, kind: Kind) -> None:
    world = World.of(node, found)  # type: ignore[arg-type]
    (pair,) = world.pairs()
    assert pair.node is node
    assert pair.record is found
    assert pair.record is not None
    assert pair.record.kind is kind


def test_an_external_node_keeps_its_full_name() -> None:
    world = World.of(kube("n1.example.com"), record("n1"))
    assert {pair.name for pair in world.pairs()} == {"n1", "n1.example.com"}


# --- what could not be read -------------------------------------------------------------------------


@pytest.mark.parametrize("age", ["kube_age", "slurm_age"])
def test_an_old_picture_decides_nothing(age: str) -> None:
    world = World.of(kube("n1", cordoned=True), record("n1"), kube("n2"))
    assert world.look(**{age: 60.0}) == []
    assert world.look()


def test_a_list_from_before_slurmctld_started_decides_nothing() -> None:
    world = World.of(kube("n1", cordoned=True), record("n1"), kube("n2"))
    assert world.look(slurm_age=2.0, boot_age=1.0) == []
    assert world.look(slurm_age=1.0, boot_age=2.0)


def test_taints_stay_where_slurms_list_is_empty_or_slurmctld_has_just_come_up() -> None:
    names = [f"n{i}" for i in range(20)]
    world = World.of(*(kube(n, labels={}) for n in names), *(by_hand(n) for n in names))
    world.settle()
    lists = world.records
    world.records = {}
    assert world.look() == []
    world.records = {SlurmNode(n): lists[SlurmNode(n)] for n in names[:10]}
    assert world.look() == []
    world.records = {SlurmNode(n): lists[SlurmNode(n)] for n in names[:19]}
    world.booted = world.now
    assert world.look() == []
    world.booted -= 10_000
    assert {type(s) for s in world.look()} == {SetNodeTaints, SetNodeCondition}
    assert world.nodes[KubeNode("n19")] == kube("n19", labels={})


def test_a_taint_that_kubelet_brought_keeps_its_effect_and_is_never_taken_from_a_node_that_slurm_never_had() -> (
    None
):
    taint = Taint(MANAGED_NODE_TAINT, "slurm-bridge-scheduler", "NoExecute")
    world = World.of(kube("n1", labels={}, taints=(taint,)))
    assert world.look() == []
    world.records[N1] = by_hand("n1")
    world.settle()
    assert world.nodes[K1].taints == (taint,)


def test_with_its_switch_off_each_direction_is_still() -> None:
    world = World.of(tainted(kube("n1")), record("n1"))
    quiet = {"nodeStateToSlurm": False, "nodeStateToKubernetes": False, "externalNodes": False}
    world.settings = world.settings.model_copy(update={**quiet, "taintUnavailable": False})
    world.kubernetes(K1, cordoned=True, labels={})
    world.drain(N1, "bad disk")
    assert world.look() == []


def test_a_drain_of_ours_stays_where_nobody_looks_for_its_cause_any_more(world: World) -> None:
    world.kubernetes(K1, cordoned=True)
    world.settle()
    world.settings = world.settings.model_copy(update={"nodeStateToSlurm": False})
    world.kubernetes(K1, cordoned=False)
    world.settle()
    assert drained(world)


def test_only_what_is_new_is_written() -> None:
    world = World.of(kube("n1"), record("n1"))
    assert [type(s) for s in world.look()] == [SetNodeTaints, SetNodeCondition]
    assert world.look() == []
    assert not [s for s in world.settle() if isinstance(s, (RegisterNode, DeleteNode, UpdateNode))]
