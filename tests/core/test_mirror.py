"""Both directions on one node, and what is never done to it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge.core.constraints import Taint
from bridge.core.drains import Cause, cause_of
from bridge.core.mirror import mirror
from bridge.core.model import KubeNode, SlurmNode
from bridge.core.nodes import Kind, Room
from bridge.core.reflection import evicted
from bridge.core.steps import (
    DeleteNode,
    DrainNode,
    NotifyNode,
    RegisterNode,
    SetNodeCondition,
    SetNodeTaints,
    UndrainNode,
    UpdateNode,
)
from bridge.core.verdict import Reason
from bridge.names import EXTERNAL_NODE_LABEL, MANAGED_NODE_TAINT, SLURM_NODENAME_LABEL, UNAVAILABLE_TAINT
from tests.core.nodeworld import World, by_hand, kube, operated, other, record, slurmd, tainted

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


# --- Kubernetes → Slurm -----------------------------------------------------------------------------


def test_a_cordon_drains_with_our_reason_in_one_look_and_an_uncordon_lifts_it(world: World) -> None:
    world.kubernetes(K1, cordoned=True)
    (drain, event) = [s for s in world.look() if isinstance(s, (DrainNode, NotifyNode))]
    assert isinstance(drain, DrainNode)
    assert drain.reason == "slurm-bridge: cordoned in Kubernetes"
    assert isinstance(event, NotifyNode)
    world.settle()
    assert not any(t.key == UNAVAILABLE_TAINT for t in world.nodes[K1].taints), "others may go there"
    world.kubernetes(K1, cordoned=False)
    assert [type(s) for s in world.look()] == [UndrainNode]
    world.settle()
    assert not world.records[N1].drained
    assert not world.records[N1].reason


def test_the_reason_follows_the_cause_that_is_left(world: World) -> None:
    world.kubernetes(K1, cordoned=True, ready=False, unknown=True)
    world.settle()
    assert cause_of(drained(world)) is Cause.CORDONED
    world.kubernetes(K1, cordoned=False)
    world.settle()
    assert drained(world) == "slurm-bridge: not Ready in Kubernetes: its kubelet is silent"
    world.kubernetes(K1, ready=True, unknown=False)
    world.settle()
    assert not drained(world)


MIDDLE = "GPU 3 broken; was slurm-bridge: cordoned in Kubernetes"


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ("theirs over ours", "bad disk"),
        ("theirs over ours", MIDDLE),
        ("ours over theirs", "bad disk"),
        ("ours over theirs", MIDDLE),
        ("ours over theirs", ""),
        ("ours over theirs", "slurm-operator: pod gpu-0 is cordoned"),
    ],
)
def test_what_others_drain_stays_drained_and_keeps_its_reason(world: World, order: str, reason: str) -> None:
    """Over ten looks, a restart of the bridge and one of slurmctld."""
    if order == "theirs over ours":
        world.kubernetes(K1, cordoned=True)
        world.settle()
        world.drain(N1, reason)
    else:
        world.drain(N1, reason)
        world.kubernetes(K1, cordoned=True)
    for _ in range(5):
        world.settle()
    world.restart()
    world.booted = world.now
    world.kubernetes(K1, cordoned=False)
    for _ in range(5):
        world.settle()
    assert world.records[N1].drained
    assert world.records[N1].reason == reason


def test_a_drain_without_a_reason_over_a_text_that_we_left_behind_is_somebody_elses(world: World) -> None:
    """Older Slurms keep the reason of a busy node."""
    world.old = True
    world.run(N1, True)
    world.kubernetes(K1, cordoned=True)
    world.settle()
    world.kubernetes(K1, cordoned=False)
    world.settle()
    assert world.records[N1].reason == "slurm-bridge: cordoned in Kubernetes"
    assert not world.records[N1].drained
    world.drain(N1, "")
    world.settle()
    assert world.records[N1].drained


def test_the_drain_of_a_person_who_resumes_while_the_cause_lasts_gives_way_to_ours_again(
    world: World,
) -> None:
    world.kubernetes(K1, cordoned=True)
    world.settle()
    world.drain(N1, "bad disk")
    world.settle()
    world.resume(N1)
    world.settle()
    assert drained(world) == "slurm-bridge: cordoned in Kubernetes"


@pytest.mark.parametrize("states", [{"FAIL"}, {"DOWN"}, {"DOWN", "DRAIN"}])
def test_the_reason_of_a_node_that_somebody_stopped_is_not_written_over(
    world: World, states: set[str]
) -> None:
    world.change(N1, states=world.records[N1].states - {"IDLE"} | states, reason="power supply")
    world.kubernetes(K1, cordoned=True)
    world.settle()
    world.kubernetes(K1, cordoned=False)
    world.settle()
    assert world.records[N1].reason == "power supply"
    assert world.records[N1].states >= states


def test_a_failed_node_is_not_undrained_as_slurm_would_take_that_for_its_repair(world: World) -> None:
    world.kubernetes(K1, cordoned=True)
    world.settle()
    world.change(N1, states=world.records[N1].states | {"FAIL"})
    world.kubernetes(K1, cordoned=False)
    assert not [s for s in world.settle() if isinstance(s, UndrainNode)]


@pytest.mark.parametrize("make", [record, by_hand, operated])
def test_a_drain_that_keeps_devices_from_a_second_user_waits_for_a_person(make: type) -> None:
    world = World.of(kube("n1", labels={EXTERNAL_NODE_LABEL: ""} if make is record else {}), make("n1"))
    world.settle()
    reason = "slurm-bridge: node not Ready; containers of default/train-0 may still run"
    world.drain(N1, reason, user="slurm")
    world.kubernetes(K1, cordoned=True)
    world.settle()
    world.kubernetes(K1, cordoned=False)
    world.settle()
    assert drained(world) == reason


def test_no_drain_is_lifted_while_a_former_user_of_the_devices_may_live(world: World) -> None:
    world.kubernetes(K1, ready=False)
    world.settle()
    world.kubernetes(K1, ready=True)
    world.unfree[N1] = "containers of default/train-0 are not known dead"
    world.settle()
    assert cause_of(drained(world)) is Cause.NOT_READY
    world.unfree.clear()
    world.settle()
    assert not drained(world)


def test_of_a_whole_cluster_that_is_silent_only_as_many_nodes_as_may_are_drained() -> None:
    world = World.of(*(kube(f"n{i}") for i in range(60)), *(record(f"n{i}") for i in range(60)))
    world.settle()
    for name in world.nodes:
        world.kubernetes(name, ready=False, unknown=True)
    world.settle()
    world.restart()
    world.settle()
    assert sum(r.drained for r in world.records.values()) == 6
    told = {v.reason for one in world.see().values() for v in one.verdicts}
    assert Reason.HELD_BACK in told
    for name in world.nodes:
        world.kubernetes(name, ready=True, unknown=False)
    world.settle()
    assert not any(r.drained for r in world.records.values())


def test_two_nodes_of_a_small_cluster_may_always_be_drained() -> None:
    world = World.of(*(kube(f"n{i}", ready=False) for i in range(3)), *(record(f"n{i}") for i in range(3)))
    world.settle()
    assert sum(r.drained for r in world.records.values()) == 2


def test_taints_of_ours_are_no_cause_of_a_drain(world: World) -> None:
    keys = (UNAVAILABLE_TAINT, MANAGED_NODE_TAINT)
    world.settings = world.settings.model_copy(update={"drainTaints": keys})
    world.drain(N1, "bad disk")
    world.settle()
    assert any(t.key == UNAVAILABLE_TAINT for t in world.nodes[K1].taints)
    world.resume(N1)
    world.settle()
    assert not world.records[N1].drained


# --- Slurm → Kubernetes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("DRAIN", "Drained"),
        ("DOWN", "Down"),
        ("FAIL", "Failed"),
        ("MAINTENANCE", "Maintenance"),
        ("RESERVED", "Reserved"),
        ("POWERED_DOWN", "PoweredDown"),
        ("NOT_RESPONDING", "NotResponding"),
    ],
)
@pytest.mark.parametrize("make", [record, by_hand, operated])
def test_what_slurm_cannot_use_shows_on_the_node_and_keeps_other_pods_away(
    state: str, reason: str, make: type
) -> None:
    world = World.of(kube("n1", labels={EXTERNAL_NODE_LABEL: ""} if make is record else {}), make("n1"))
    world.others[K1] = (slurmd("gpu-0", "n1"),) if make is operated else ()
    world.booted = world.now  # so that nothing is re-created
    world.settle()
    before = world.nodes[K1]
    world.change(N1, states=world.records[N1].states | {state}, reason="bad disk", reason_user="root")
    world.settle()
    shown = world.nodes[K1].mirrored
    assert shown is not None
    assert (shown.status, shown.reason) == ("False", reason)
    assert shown.message == f"{state}: bad disk [root]"
    assert Taint(UNAVAILABLE_TAINT, "", "NoSchedule") in world.nodes[K1].taints
    world.change(N1, states=world.records[N1].states - {state}, reason="")
    world.settle()
    assert world.nodes[K1].taints == before.taints
    assert world.nodes[K1].mirrored == before.mirrored


def test_between_free_and_allocated_nothing_is_written(world: World) -> None:
    world.run(N1, True)
    assert world.look() == []


def test_nothing_is_shown_of_a_slurmd_that_is_silent_for_a_moment() -> None:
    """As each slurmd is after an undrain."""
    world = World.of(kube("n1", labels={}), by_hand("n1"))
    world.settle()
    world.change(N1, states=world.records[N1].states | {"NOT_RESPONDING"})
    (pair,) = world.pairs()
    look = mirror(
        replace(pair, silent_for=0.5), world.around(), Room(drains=2, recreations=1), world.settings
    )
    assert look.steps == ()
    assert look.again is not None
    assert world.look()


def test_a_cordon_is_never_undone_and_taints_of_others_stay(world: World) -> None:
    gpu = Taint("nvidia.com/gpu", "present", "NoSchedule")
    world.kubernetes(K1, cordoned=True, taints=(*world.nodes[K1].taints, gpu))
    world.drain(N1, "bad disk")
    world.settle()
    world.resume(N1)
    world.settle()
    assert world.nodes[K1].cordoned
    assert gpu in world.nodes[K1].taints


# --- nodes with a slurmd ----------------------------------------------------------------------------


@pytest.mark.parametrize("make", [by_hand, operated])
@pytest.mark.parametrize("label", [{}, {EXTERNAL_NODE_LABEL: ""}])
def test_the_record_of_a_node_with_slurmd_is_never_written(make: type, label: dict[str, str]) -> None:
    world = World.of(
        kube("n1", labels=label), make("n1", "NOT_RESPONDING", cpus=128, reason="slurm-operator: x")
    )
    world.others[K1] = (slurmd("gpu-0", "n1"),)
    before = world.records[N1]
    for changes in ({"cordoned": True}, {"ready": False}, {"deleted": 1.0}, {"annotations": {"a": "b"}}):
        world.kubernetes(K1, **changes)
        world.settle()
    del world.nodes[K1]
    world.now += 10_000
    world.settle()
    assert world.records[N1] == before


def test_a_drain_of_ours_on_an_operators_node_leaves_no_text_behind() -> None:
    """slurm-operator takes a node with a foreign reason for somebody else's, drained or not."""
    world = World.of(
        kube("n1", labels={}), operated("n1", reason="slurm-bridge: pods do not start: a/b, boot x")
    )
    world.run(N1, True)
    world.settle()
    assert world.records[N1].reason
    world.run(N1, False)
    assert [type(s) for s in world.look()][:2] == [DrainNode, UndrainNode]
    world.settle()
    assert world.records[N1].reason == ""
    assert not world.records[N1].drained


def test_the_clearing_of_a_text_that_is_cut_short_is_ended_by_the_next_look() -> None:
    world = World.of(
        kube("n1", labels={}), operated("n1", reason="slurm-bridge: pods do not start: a/b, boot x")
    )
    drain = next(s for one in world.see().values() for s in one.steps if isinstance(s, DrainNode))
    world.apply(drain)
    world.settle()
    assert not world.records[N1].drained


def test_a_node_whose_slurmd_pod_does_not_tolerate_a_taint_gets_none() -> None:
    world = World.of(kube("n1", labels={}), operated("n1"))
    world.others[K1] = (slurmd("gpu-0", "n1", tolerates=False),)
    world.drain(N1, "bad disk")
    world.settle()
    assert world.nodes[K1].taints == ()
    world.others[K1] = ()  # between two slurmd pods nobody knows
    world.settle()
    assert world.nodes[K1].taints == ()
    world.others[K1] = (slurmd("gpu-0", "n1"),)
    world.settle()
    assert {t.key for t in world.nodes[K1].taints} == {MANAGED_NODE_TAINT, UNAVAILABLE_TAINT}


@pytest.mark.parametrize(
    "changes", [{"namespace": "kube-system"}, {"priority_class": "system-node-critical"}]
)
def test_a_taint_that_would_evict_a_pod_of_the_system_is_not_set(changes: dict[str, str]) -> None:
    world = World.of(kube("n1"), record("n1"))
    world.settings = world.settings.model_copy(update={"taintEffect": "NoExecute"})
    world.others[K1] = (other("cni", "n1", tolerates=False, **changes), other("dcgm", "n1"))
    world.settle()
    assert world.nodes[K1].taints == ()
    assert f"it would evict {world.others[K1][0].ref}" in world.see()[N1].verdicts[0].text
    world.others[K1] = (other("web", "n1", tolerates=False),)
    taint = Taint(MANAGED_NODE_TAINT, "slurm-bridge", "NoExecute")
    assert evicted(taint, world.others[K1]) == world.others[K1]
    world.settle()
    assert world.nodes[K1].taints == (taint,)


def test_a_taint_that_lets_running_pods_be_evicts_nobody() -> None:
    assert evicted(Taint(MANAGED_NODE_TAINT, "", "NoSchedule"), (other("web", "n1", tolerates=False),)) == ()


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
