"""How large a node is for Slurm: tolerance, settling, re-creation; and what nodes with a slurmd should set."""

from __future__ import annotations

import pytest

from bridge.core import registration
from bridge.core.mirror import mirror
from bridge.core.model import KubeNode, SlurmNode
from bridge.core.nodes import Room
from bridge.core.nodesize import Size, counts, difference, wanted
from bridge.core.steps import DeleteNode, DrainNode, NodeStep, RegisterNode, SetNodeTaints
from bridge.errors import UserError
from bridge.names import (
    EXTERNAL_NODE_LABEL,
)
from tests.core.nodeworld import GIB, SETTINGS, World, by_hand, kube, operated, other, record

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


# --- size -------------------------------------------------------------------------------------------


def test_a_difference_within_the_tolerance_changes_nothing(world: World) -> None:
    world.others[K1] = (other("agent", "n1", requests={"cpu": "3", "memory": "10Gi"}),)
    world.look()
    world.now += 10_000
    assert world.settle() == []


def test_another_size_that_lasts_drains_waits_for_the_jobs_and_makes_the_record_anew(world: World) -> None:
    world.run(N1, True)
    world.others[K1] = (other("agent", "n1", requests=AGENT),)
    assert world.settle() == []
    assert "CPUs 64 → 58, MiB 262144 → 241664" in texts(world)
    assert world.see()[N1].again == 600.0
    world.now += 600
    assert DrainNode in kinds(world.settle())
    assert world.records[N1].reason.startswith("slurm-bridge: another size, to be re-created: CPUs 64 → 58")
    assert "jobs or pods are there" in texts(world)
    world.run(N1, False)
    assert world.settle() == []
    assert "slurmctld remembers a job" in texts(world)
    world.now += 301
    done = kinds(world.settle())
    assert done.index(DeleteNode) < done.index(RegisterNode)
    assert (world.records[N1].cpus, world.records[N1].memory_mib) == (58, 241664)
    assert not world.records[N1].drained
    assert world.look() == []


def test_a_size_that_flips_back_starts_nothing_and_undoes_what_has_begun(world: World) -> None:
    agent = (other("agent", "n1", requests=AGENT),)
    world.others[K1] = agent
    world.look()
    world.now += 599
    world.others[K1] = ()
    world.look()
    world.now += 2
    world.others[K1] = agent
    assert world.settle() == []
    world.now += 600
    world.run(N1, True)
    world.settle()
    assert world.records[N1].drained
    world.others[K1] = ()
    world.settle()
    assert not world.records[N1].drained


def test_a_drain_of_ours_for_something_else_does_not_shorten_the_settling(world: World) -> None:
    world.kubernetes(K1, cordoned=True)
    world.settle()
    world.others[K1] = (other("agent", "n1", requests=AGENT),)
    world.settle()
    world.kubernetes(K1, cordoned=False)
    world.settle()
    assert not world.records[N1].drained
    assert world.records[N1].cpus == 64


def test_a_re_creation_stops_where_it_is_when_it_is_switched_off(world: World) -> None:
    world.others[K1] = (other("agent", "n1", requests=AGENT),)
    world.look()
    world.now += 600
    world.run(N1, True)
    world.settle()
    world.settings = world.settings.model_copy(update={"externalNodes": False})
    world.run(N1, False)
    world.now += 301
    assert world.settle() == []
    assert world.records[N1].drained


def test_a_re_creation_that_a_restart_interrupts_goes_on(world: World) -> None:
    world.others[K1] = (other("agent", "n1", requests=AGENT),)
    world.look()
    world.now += 600
    world.run(N1, True)
    world.settle()
    world.restart()
    assert world.settle() == []
    world.run(N1, False)
    world.now += 301
    assert DeleteNode in kinds(world.settle())


def test_the_roll_out_of_a_daemonset_over_a_thousand_nodes_drains_fifty_at_a_time() -> None:
    names = [f"n{i}" for i in range(1000)]
    world = World.of(*(kube(n) for n in names), *(record(n) for n in names))
    world.settle()
    for name in world.nodes:
        world.others[name] = (other("agent", name, requests=AGENT),)
        world.run(SlurmNode(name), True)
    for _ in range(2):
        world.look()
        world.now += 600
        world.look()
        assert sum(r.drained for r in world.records.values()) == 50
        world.restart()


def test_a_record_that_a_person_drained_is_not_made_anew_and_not_deleted(world: World) -> None:
    """Their word would be lost with it."""
    world.drain(N1, "bad disk")
    world.others[K1] = (other("agent", "n1", requests=AGENT),)
    world.settle()
    world.now += 10_000
    world.settle()
    del world.nodes[K1]
    world.now += 10_000
    world.settle()
    assert world.records[N1].reason == "bad disk"
    assert "root took it out of service: bad disk" in texts(world)


def test_a_device_less_is_a_difference_whatever_the_tolerance() -> None:
    size = Size(cpus=64, memory_mib=256 * GIB, gres={"gpu:h100": 7})
    assert difference(record("n1", gres="gpu:h100:8(S:0-1)"), size, 0.05) == "gpu:h100 8 → 7"
    assert counts("gpu:h100:8(S:0-1),nic:2,shard:0") == {"gpu:h100": 8, "nic": 2}


# --- what is not external ---------------------------------------------------------------------------


@pytest.mark.parametrize("make", [by_hand, operated])
def test_the_label_on_a_node_with_slurmd_is_refused(make: type) -> None:
    world = World.of(kube("n1"), make("n1"))
    assert f"label {EXTERNAL_NODE_LABEL} is ignored" in texts(world)
    assert not [s for s in world.look() if not isinstance(s, SetNodeTaints) and "Slurm" in type(s).__name__]


def test_a_node_with_slurmd_says_what_to_set_so_that_kubelet_can_hold_what_slurm_gives() -> None:
    world = World.of(kube("n1", labels={}), by_hand("n1", threads=2))
    world.others[K1] = (other("agent", "n1", requests={"cpu": "3", "memory": "4Gi"}),)
    hint = world.see()[N1].hint
    assert hint == "set CoreSpecCount=2 MemSpecLimit=4096 for n1: n1 has 61 CPUs, 258048 MiB, gpu:h100:8 left"
    world.change(N1, reserved_cores=2, reserved_mib=4096)
    assert world.see()[N1].hint == ""


def test_a_node_with_slurmd_says_how_many_devices_kubelet_has_where_slurm_gives_more() -> None:
    world = World.of(kube("n1", labels={}), by_hand("n1", gres="gpu:a:2,gpu:b:6,nic:4"))
    around = world.around(gres_by_resource={"nvidia.com/gpu": "gpu", "amd.com/gpu": "gpu", "site/nic": "nic"})
    (pair,) = world.pairs()
    room = Room(drains=2, recreations=1)
    assert mirror(pair, around, room, world.settings).hint == ""
    world.kubernetes(K1, allocatable={**world.nodes[K1].allocatable, "nvidia.com/gpu": "7"})
    (pair,) = world.pairs()
    assert mirror(pair, around, room, world.settings).hint.startswith("set Gres=gpu:7 for n1: ")


def test_several_slurmds_that_offer_more_than_their_machine_has_are_refused_together() -> None:
    world = World.of(kube("k1", labels={}), operated("w-0", node="k1"), operated("w-1", node="k1"))
    for one in world.see().values():
        names = "w-0 and w-1" if one.name == "w-0" else "w-1 and w-0"
        assert one.overcommitted
        assert one.hint.startswith(
            f"{names} offer 128 CPUs, 524288 MiB, gpu:h100:16 together, and k1 has 64 CPUs"
        )
    for name in list(world.records):
        world.change(name, cpus=32, memory_mib=128 * GIB)
        world.change(name, gres="gpu:h100:4")
    assert not any(one.overcommitted for one in world.see().values())


def test_amounts_that_cannot_be_read_conclude_nothing(world: World) -> None:
    world.kubernetes(K1, allocatable={"cpu": "x"})
    world.now += 10_000
    assert world.settle() == []
    with pytest.raises(UserError, match="n1: cpu"):
        registration.conf(N1, kube("n1"), _size({"cpu": "x"}), SETTINGS, None)


def _size(allocatable: dict[str, str]) -> Size:
    return wanted(kube("n1", allocatable=allocatable), {}, SETTINGS, {})
