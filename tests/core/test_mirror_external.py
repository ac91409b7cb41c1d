"""External nodes: registered, changed in place, moved and deleted, and what is refused with a sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge.core import registration
from bridge.core.drains import Cause, cause_of
from bridge.core.model import KubeNode, SlurmNode
from bridge.core.nodes import mark
from bridge.core.nodesize import Size
from bridge.core.steps import DeleteNode, DrainNode, NodeStep, RegisterNode, UpdateNode
from bridge.core.verdict import Reason
from bridge.names import (
    EXTERNAL_NODE_LABEL,
    NODE_PARTITIONS_ANNOTATION,
    SLURM_NODENAME_LABEL,
    TOPOLOGY_ANNOTATION,
)
from tests.core.nodeworld import CLUSTER, GIB, SETTINGS, World, kube, other, record

N1, K1 = SlurmNode("n1"), KubeNode("n1")
AGENT = {"cpu": "6", "memory": f"{20 * GIB}Mi"}


@pytest.fixture
def world() -> World:
    world = World.of(kube("n1"), record("n1"))
    world.settle()
    return world


def texts(world: World, name: SlurmNode = N1) -> str:
    return "; ".join(v.text for v in world.see()[name].verdicts)


def kinds(steps: list[NodeStep]) -> list[type]:
    return [type(step) for step in steps]


# --- registration -----------------------------------------------------------------------------------


def test_a_labelled_node_is_registered_with_what_kubelet_has_left_and_gets_our_mark() -> None:
    world = World.of(kube("n1", annotations={TOPOLOGY_ANNOTATION: "default:leaf1, blk:b1"}))
    world.others[K1] = (other("agent", "n1", requests={"cpu": "1500m", "memory": "1Gi"}),)
    register, update = world.look()
    assert isinstance(register, RegisterNode)
    assert register.conf == (
        "NodeName=n1 NodeAddr=10.0.0.1 State=EXTERNAL Sockets=1 CoresPerSocket=62 ThreadsPerCore=1 CPUs=62 "
        "RealMemory=261120 Feature=bridge Topology=default:leaf1,blk:b1 Gres=gpu:h100:8 "
        "GresConf=count=8,name=gpu,type=h100,file=gpu-[0-7]"
    )
    assert isinstance(update, UpdateNode)
    known = mark(update.comment or "")
    assert known is not None
    assert (known.cluster, known.node, known.topology) == (CLUSTER, "n1", "default:leaf1,blk:b1")
    world.settle()
    assert world.look() == []


def test_a_registration_that_was_cut_short_is_marked_by_the_next_look() -> None:
    world = World.of(kube("n1"))
    world.apply(world.see()[N1].steps[0])
    assert kinds(world.look())[0] is UpdateNode
    world.settle()
    assert mark(world.records[N1].comment) is not None


def test_a_restart_of_the_bridge_registers_nothing_again(world: World) -> None:
    world.restart()
    assert world.look() == []


@pytest.mark.parametrize("changes", [{"cordoned": True}, {"ready": False}, {"deleted": 1.0}])
def test_a_node_that_would_be_drained_at_once_is_registered_later(changes: dict[str, object]) -> None:
    world = World.of(kube("n1", **changes))
    assert world.settle() == []
    assert "registered once" in texts(world)
    world.kubernetes(K1, cordoned=False, ready=True, deleted=0.0)
    assert kinds(world.look())[0] is RegisterNode


def test_what_slurm_forgot_is_registered_again_after_the_grace_of_its_boot(world: World) -> None:
    del world.records[N1]
    world.booted = world.now
    assert world.look() == []
    world.now += 400
    assert kinds(world.look()) == [RegisterNode, UpdateNode]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"annotations": {TOPOLOGY_ANNOTATION: "leaf1"}}, "is no topology; write TOPOLOGY:UNIT"),
        ({"annotations": {TOPOLOGY_ANNOTATION: "default:leaf1 Gres=gpu:99"}}, "is no topology"),
        ({"annotations": {NODE_PARTITIONS_ANNOTATION: "bridge, gone"}}, "no partition 'gone'"),
        ({"annotations": {NODE_PARTITIONS_ANNOTATION: "a b"}}, "no partition 'a b'"),
        ({"addresses": ("node-1.example.com",)}, "set externalNodeAddress"),
        ({"allocatable": {"cpu": "500m", "memory": "1Gi"}}, "0 CPUs"),
        ({"allocatable": {"cpu": "many", "memory": "1Gi"}}, "n1: cpu"),
        ({"labels": {EXTERNAL_NODE_LABEL: "", SLURM_NODENAME_LABEL: "-n1"}}, "is no name"),
    ],
)
def test_a_node_that_cannot_be_registered_says_what_to_mend(changes: dict[str, object], words: str) -> None:
    world = World.of(kube("n1", **changes), partitions=frozenset({"bridge"}))
    (one,) = world.see().values()
    assert one.steps == ()
    assert one.verdicts[0].reason is Reason.NODE_REFUSED
    assert words in one.verdicts[0].text


def test_a_partition_that_slurm_lacks_is_blamed_on_who_named_it() -> None:
    world = World.of(kube("n1"), partitions=frozenset({"bridge"}))
    world.settings = SETTINGS.model_copy(update={"externalNodePartitions": ("gone",)})
    (one,) = world.see().values()
    assert "setting externalNodePartitions: Slurm has no partition 'gone'" in one.verdicts[0].text


def test_a_topology_that_is_none_stops_nothing_else(world: World) -> None:
    world.kubernetes(K1, annotations={TOPOLOGY_ANNOTATION: "leaf1"}, cordoned=True)
    assert "is no topology" in texts(world)
    world.settle()
    assert world.records[N1].drained


def test_all_external_nodes_may_have_the_address_of_one_living_slurmd() -> None:
    settings = SETTINGS.model_copy(update={"externalNodeAddress": "10.9.9.9"})
    assert registration.address(kube("n1"), settings) == "10.9.9.9"


def test_several_devices_are_told_one_by_one() -> None:
    size = Size(cpus=4, memory_mib=GIB, gres={"gpu": 1, "nic:cx7": 2})
    text = registration.conf(N1, kube("n1"), size, SETTINGS, None)
    assert text.endswith(
        "Gres=gpu:1,nic:cx7:2 GresConf=count=1,name=gpu,file=gpu-0+count=2,name=nic,type=cx7,file=nic-[0-1]"
    )
    assert "Gres" not in registration.conf(N1, kube("n1"), replace(size, gres={}), SETTINGS, None)


# --- in place ---------------------------------------------------------------------------------------


def test_features_and_topology_change_in_place_and_once(world: World) -> None:
    notes = {NODE_PARTITIONS_ANNOTATION: "bridge,big", TOPOLOGY_ANNOTATION: "default:spine:leaf1"}
    world.kubernetes(K1, annotations=notes)
    (update,) = world.look()
    assert isinstance(update, UpdateNode)
    assert (update.features, update.topology) == (("bridge", "big"), "default:spine:leaf1")
    world.change(N1, features=("big", "bridge"), topology="default:leaf1")  # as Slurm tells it
    assert world.look() == []
    world.kubernetes(K1, annotations={})
    world.settle()
    assert world.records[N1].topology == ""


def test_a_partition_that_slurm_has_not_given_the_node_yet_is_told(world: World) -> None:
    """Slurm looks at NodeSets only when a node comes or goes."""
    world.kubernetes(K1, annotations={NODE_PARTITIONS_ANNOTATION: "bridge,big"})
    world.settle()
    assert "not in partition big yet" in texts(world)
    world.change(N1, partitions=("big", "bridge"))
    assert texts(world) == ""


def test_a_topology_that_only_slurm_knows_stays(world: World) -> None:
    world.change(N1, topology="default:leaf7")
    assert world.look() == []


# --- the end ----------------------------------------------------------------------------------------


def test_a_node_that_left_kubernetes_is_drained_at_once_and_deleted_when_no_job_names_it(
    world: World,
) -> None:
    world.run(N1, True)
    del world.nodes[K1]
    (drain,) = world.look()
    assert isinstance(drain, DrainNode)
    assert drain.reason == "slurm-bridge: no node of Kubernetes has this name any more"
    assert world.settle() == []
    world.run(N1, False)
    assert world.settle() == []
    world.now += 299
    assert world.settle() == []
    world.now += 2
    world.named.add(N1)
    assert world.settle() == []
    world.named.clear()
    world.unfree[N1] = "containers may live"
    assert world.settle() == []
    world.unfree.clear()
    world.booted = world.now
    assert world.settle() == []
    world.booted -= 10_000
    assert kinds(world.settle()) == [DeleteNode]


def test_a_node_that_loses_its_label_leaves_slurm_and_loses_what_we_put_on_it(world: World) -> None:
    world.kubernetes(K1, labels={})
    world.settle()
    assert not world.records
    assert world.nodes[K1] == kube("n1", labels={})


def test_a_node_that_comes_back_before_it_was_deleted_goes_on(world: World) -> None:
    node = world.nodes.pop(K1)
    world.run(N1, True)
    world.settle()
    world.nodes[K1] = node
    world.settle()
    assert not world.records[N1].drained
    assert world.look() == []


def test_a_node_that_is_being_deleted_is_drained_and_its_record_goes_with_it(world: World) -> None:
    world.kubernetes(K1, deleted=1.0)
    world.settle()
    assert cause_of(world.records[N1].reason) is Cause.DELETED
    del world.nodes[K1]
    (step,) = world.look()
    assert isinstance(step, DrainNode)
    assert step.over == "slurm-bridge: being deleted in Kubernetes"
    world.settle()
    assert not world.records


def test_a_reservation_keeps_its_node(world: World) -> None:
    """Slurm would take it out of the reservation without a word."""
    world.change(N1, states=world.records[N1].states | {"RESERVED"}, reservation="maintenance-7")
    del world.nodes[K1]
    world.settle()
    assert world.records[N1].drained
    assert "reservation maintenance-7 would lose it" in texts(world)


def test_a_node_in_slurm_conf_is_not_deleted(world: World) -> None:
    world.change(N1, states=world.records[N1].states - {"DYNAMIC_NORM"})
    del world.nodes[K1]
    world.settle()
    assert world.records[N1].drained
    assert "slurm.conf names it" in texts(world)


def test_a_node_with_another_slurm_name_moves_and_is_never_there_twice(world: World) -> None:
    world.run(N1, True)
    world.kubernetes(K1, labels={EXTERNAL_NODE_LABEL: "", SLURM_NODENAME_LABEL: "m1"})
    world.settle()
    assert world.records[N1].drained
    assert set(world.records) == {N1}
    assert "its former name, n1" in texts(world, SlurmNode("m1"))
    world.run(N1, False)
    world.now += 301
    world.settle()
    assert set(world.records) == {"m1"}


def test_a_node_that_slurm_does_not_reach_is_made_anew_when_it_is_empty(world: World) -> None:
    world.run(N1, True)
    world.change(N1, states=world.records[N1].states | {"NOT_RESPONDING"})
    world.booted = world.now
    assert DrainNode not in kinds(world.settle())
    world.booted -= 10_000
    world.settle()
    assert cause_of(world.records[N1].reason) is Cause.DEAF
    assert "jobs or pods are there" in texts(world)
    world.run(N1, False)
    world.now += 301
    assert DeleteNode in kinds(world.settle())
    assert "NOT_RESPONDING" not in world.records[N1].states
