"""Slurm → Kubernetes: what a node shows of its twin, and whom its taints must not hurt."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge.core.constraints import Taint
from bridge.core.mirror import mirror
from bridge.core.model import KubeNode, SlurmNode
from bridge.core.nodes import Room
from bridge.core.reflection import evicted
from bridge.names import EXTERNAL_NODE_LABEL, MANAGED_NODE_TAINT, UNAVAILABLE_TAINT
from tests.core.nodeworld import World, by_hand, kube, operated, other, record, slurmd

N1, K1 = SlurmNode("n1"), KubeNode("n1")


@pytest.fixture
def world() -> World:
    """One external node, settled."""
    world = World.of(kube("n1"), record("n1"))
    world.settle()
    return world


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
