"""Kubernetes → Slurm: whose a drain is, and what lifts it."""

from __future__ import annotations

import pytest

from bridge.core.drains import Cause, cause_of
from bridge.core.model import KubeNode, SlurmNode
from bridge.core.steps import (
    DrainNode,
    NotifyNode,
    UndrainNode,
)
from bridge.core.verdict import Reason
from bridge.names import EXTERNAL_NODE_LABEL, MANAGED_NODE_TAINT, UNAVAILABLE_TAINT
from tests.core.nodeworld import World, by_hand, kube, operated, record, slurmd

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
