"""`slurm-bridge nodes`: what stands in the table of both sides' nodes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from bridge.core import nodetable
from bridge.core.constraints import Taint
from bridge.core.model import Condition, KubeNode, SlurmNode
from bridge.core.nodetable import Row, Sides, body, judged, text
from bridge.names import EXTERNAL_NODE_LABEL, MANAGED_NODE_TAINT, SCHEDULER_NAME, SLURM_NODENAME_LABEL
from tests.core.nodeworld import GIB, World, by_hand, kube, operated, other, record, slurmd

OURS = frozenset({SCHEDULER_NAME})
K1, N1 = KubeNode("n1"), SlurmNode("n1")


def sides(world: World, **changes: Any) -> Sides:
    found = Sides(
        nodes=tuple(world.nodes.values()),
        pods=tuple(pod for pods in world.others.values() for pod in pods),
        records=tuple(world.records.values()),
    )
    return replace(found, **changes)


def rows(world: World, **changes: Any) -> list[Row]:
    seen = sides(world, **changes)
    around = world.around()
    return list(nodetable.rows(seen, judged(seen, around, world.settings, OURS), around, world.settings))


def row(world: World, name: str = "n1") -> Row:
    (found,) = [one for one in rows(world) if one.name == name]
    return found


def shown(world: World, *, wide: bool = False, **changes: Any) -> list[dict[str, str]]:
    """The text, by column."""
    seen = sides(world, **changes)
    head, *lines = (line.split("   ") for line in text(rows(world, **changes), seen, wide=wide).splitlines())
    names = [cell.strip() for cell in head if cell.strip()]
    return [dict(zip(names, (c.strip() for c in line if c.strip()), strict=True)) for line in lines]


@pytest.fixture
def world() -> World:
    """One external node, settled."""
    world = World.of(kube("n1"), record("n1"))
    world.settle()
    return world


# --- what the bridge would do -----------------------------------------------------------------------


def test_what_is_said_of_each_node_is_what_the_bridge_would_do_and_nothing_of_its_own() -> None:
    world = World.of(
        *(kube("n1", cordoned=True), record("n1")),
        *(kube("n2", labels={}), operated("n2")),
        *(kube("n3"), kube("n4", labels={}), by_hand("n4", "DOWN", reason="power")),
        *(kube("n5", ready=False), record("n5"), record("n6"), record("n7", cluster="another")),
        *(
            kube("n8", labels={SLURM_NODENAME_LABEL: "n1"}),
            kube("n9", allocatable={"cpu": "x"}),
            record("n9"),
        ),
    )
    world.others[KubeNode("n2")] = (slurmd("gpu-0", "n2", tolerates=False),)
    seen = judged(sides(world), world.around(), world.settings, OURS)
    assert {pair.name: outlook for pair, outlook in seen} == world.see()
    assert any(outlook is not None and outlook.steps for _, outlook in seen)


def test_a_slurmd_that_is_silent_is_taken_to_have_been_so_for_long() -> None:
    """As each is for a moment after an undrain; who looks once can't tell."""
    world = World.of(kube("n1", labels={}), by_hand("n1"))
    world.settle()
    world.change(N1, states=world.records[N1].states | {"NOT_RESPONDING"})
    assert "condition NotResponding" in row(world).next


def test_a_list_of_slurms_that_is_empty_is_rather_wrong() -> None:
    names = [f"n{i}" for i in range(4)]
    world = World.of(*(kube(n, labels={}) for n in names), *(by_hand(n) for n in names))
    world.settle()
    world.records = {}
    assert [one.next for one in rows(world)] == [()] * 4
    assert "its list may be wrong" in row(world).says[0].text


def test_a_settled_node_says_nothing_and_is_no_difference(world: World) -> None:
    found = row(world)
    assert (found.next, found.says, found.differs, found.set, found.amiss) == ((), (), "", "", False)
    (line,) = shown(world)
    assert line["NEXT"] == "-"
    assert line["DRAINED BY"] == "-"


def test_each_step_is_told_in_words(world: World) -> None:
    world.kubernetes(K1, cordoned=True)
    assert row(world).next == ("drain: cordoned in Kubernetes",)
    world.settle()
    world.kubernetes(K1, cordoned=False)
    assert row(world).next == ("undrain",)
    world.settle()
    world.kubernetes(K1, taints=())
    assert row(world).next == (f"add taint {MANAGED_NODE_TAINT}=slurm-bridge:NoSchedule",)
    world.change(N1, features=("else",), comment="")
    assert row(world).next[0] == "write features bridge, mark"
    del world.records[N1]
    assert row(world).next == ("register", "write mark")
    world.settle()
    del world.nodes[K1]
    world.look()
    assert row(world).next == ("delete in Slurm",)


def test_who_drained_a_node_and_why_stands_beside_it(world: World) -> None:
    said = {}
    for user, reason in (
        ("root", "fan broken"),
        ("slurm", "slurm-operator: Node (n1) was cordoned"),
        ("ann", ""),
    ):
        world.drain(N1, reason, user)
        (line,) = shown(world)
        assert line["STATE"] == "IDLE+DRAIN"
        said[user] = line["DRAINED BY"]
        world.resume(N1)
    assert said["root"] == "root: fan broken"
    assert said["slurm"] == "operator: Node (n1) was cordoned"
    assert said["ann"].endswith(", without a reason")
    world.kubernetes(K1, cordoned=True)
    world.settle()
    (line,) = shown(world)
    assert (line["STATUS"], line["DRAINED BY"]) == (
        "Ready,SchedulingDisabled",
        "bridge: cordoned in Kubernetes",
    )


# --- sizes ------------------------------------------------------------------------------------------


def test_sizes_of_both_sides_stand_together_and_an_external_node_says_what_would_change(world: World) -> None:
    world.others[K1] = (other("agent", "n1", requests={"cpu": "6", "memory": f"{20 * GIB}Mi"}),)
    (line,) = shown(world)
    assert (line["CPUS(K/S)"], line["MIB(K/S)"], line["DEVICES(K/S)"]) == ("58/64", "241664/262144", "8/8")
    assert line["NEXT"] == "CPUs 64 → 58, MiB 262144 → 241664: re-created if that lasts 600 s"
    assert row(world).differs == "CPUs 64 → 58, MiB 262144 → 241664"


def test_a_node_with_slurmd_says_what_to_set_in_slurm_conf() -> None:
    world = World.of(kube("n1", labels={}), by_hand("n1", reserved_cores=2))
    world.others[K1] = (other("agent", "n1", requests={"cpu": "3", "nvidia.com/gpu": "2"}),)
    world.settle()
    (line,) = shown(world)
    assert (line["CPUS(K/S)"], line["DEVICES(K/S)"]) == ("61/62", "6/8")
    assert line["NEXT"].startswith("set CoreSpecCount=3 Gres=gpu:h100:6 for n1")


def test_a_size_that_cannot_be_read_is_not_guessed(world: World) -> None:
    world.kubernetes(K1, allocatable={"cpu": "x"})
    (line,) = shown(world)
    assert line["CPUS(K/S)"] == "?/64"
    assert "n1: cpu" in line["NEXT"]


# --- which node is which ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "found", "by"),
    [
        (kube("k9", labels={SLURM_NODENAME_LABEL: "n1"}), by_hand("n1"), f"label {SLURM_NODENAME_LABEL}"),
        (kube("k9", labels={}), operated("n1", node="k9"), "comment of slurm-operator"),
        (kube("n1.example.com", labels={}), by_hand("n1"), "cut at the first dot"),
        (kube("n1", labels={}), by_hand("n1"), ""),
    ],
)
def test_what_says_that_two_names_are_one_node_is_told(node: Any, found: Any, by: str) -> None:
    world = World.of(node, found)
    (one,) = rows(world)
    assert one.kubernetes is not None
    assert (one.kubernetes.name, one.name, one.named_by) == (node.name, "n1", by)
    (line,) = shown(world, wide=True)
    assert line["NAMED BY"] == (by or "-")


def test_nodes_that_claim_one_name_have_a_line_each_with_both_names() -> None:
    world = World.of(kube("n1"), kube("n2", labels={SLURM_NODENAME_LABEL: "n1"}), record("n1"))
    lines = shown(world)
    assert [(line["NODE"], line["SLURM"]) for line in lines] == [("n1", "n1"), ("n2", "n1")]
    for line in lines:
        assert line["NEXT"] == "n1 and n2 both claim the Slurm name n1; nothing is done to any of them"


def test_a_node_of_one_side_is_told_and_a_host_name_that_fits_says_which_label_is_missing() -> None:
    world = World.of(
        kube("k1.example.com", labels={}),
        by_hand("n1", hostname="k1"),
        by_hand("n2", hostname="n2"),
        kube("k2", labels={}),
    )
    told = {one.name: one.differs for one in rows(world)}
    assert told == {
        "k1.example.com": "only in Kubernetes",
        "k2": "only in Kubernetes",
        "n1": f"only in Slurm; its NodeHostName is k1: label node k1.example.com {SLURM_NODENAME_LABEL}=n1",
        "n2": "only in Slurm",
    }
    by_name = {line["NODE"] + line["SLURM"]: line for line in shown(world)}
    assert by_name["-n2"]["CPUS(K/S)"] == "-/64"
    assert by_name["k2-"]["CPUS(K/S)"] == "64/-"
    assert by_name["k2-"]["KIND"] == "-"


def test_a_node_of_another_clusters_bridge_is_no_difference() -> None:
    world = World.of(record("n1", cluster="another"))
    found = replace(row(world), differs="")
    assert not found.amiss
    assert "belongs to the bridge of cluster another" in shown(world)[0]["NEXT"]


# --- what could not be read -------------------------------------------------------------------------


def test_of_a_side_that_could_not_be_read_nothing_is_said() -> None:
    world = World.of(
        kube("n1", cordoned=True), record("n1", "DRAIN", reason="fan", reason_user="root"), kube("n2")
    )
    (one, two) = shown(world, records=None)
    assert (one["STATUS"], one["STATE"], one["CPUS(K/S)"], one["NEXT"]) == (
        "Ready,SchedulingDisabled",
        "?",
        "64/?",
        "?",
    )
    assert two["SLURM"] == "?"
    (one,) = shown(world, nodes=None, pods=None)
    assert (one["NODE"], one["STATUS"], one["STATE"], one["NEXT"]) == ("?", "?", "IDLE+DRAIN", "?")
    assert one["DRAINED BY"] == "root: fan"
    (one, two) = shown(world, pods=None)
    assert (one["STATUS"], one["STATE"]) == ("Ready,SchedulingDisabled", "IDLE+DRAIN")
    assert (one["CPUS(K/S)"], one["NEXT"]) == ("?/64", "?")
    assert not any(one.amiss for one in rows(world, pods=None))


# --- columns ----------------------------------------------------------------------------------------


def test_what_the_operator_shows_on_its_pod_stands_in_the_wide_table() -> None:
    world = World.of(kube("n1", labels={}, taints=(Taint("gpu", "", "NoSchedule"),)), operated("n1"))
    states = [("SlurmNodeStateIdle", "True"), ("SlurmNodeStateDrain", "True"), ("Ready", "True")]
    said = tuple(Condition(type=kind, status=status) for kind, status in states)
    world.others[K1] = (replace(slurmd("gpu-0", "n1"), conditions=said), other("dcgm", "n1"))
    (line,) = shown(world, wide=True)
    assert line["OPERATOR SEES"] == "Idle,Drain"
    assert (line["KIND"], line["TAINTS"], line["PARTITIONS"]) == ("operator", "gpu:NoSchedule", "bridge")


def test_a_machine_reads_every_field(world: World) -> None:
    world.drain(N1, "fan broken")
    found = json.loads(json.dumps(body(rows(world), ["Slurm could not be read"], "here")))
    assert (found["cluster"], found["unread"]) == ("here", ["Slurm could not be read"])
    (one,) = found["nodes"]
    assert one["slurm"]["states"] == ["IDLE", "DRAIN", "DYNAMIC_NORM", "EXTERNAL"]
    assert one["slurm"]["size"] == {"cpus": 64, "memory_mib": 256 * GIB, "gres": {"gpu:h100": 8}}
    assert one["kubernetes"]["status"] == "Ready"
    assert one["says"][0]["reason"] == "NodeDrained"
    assert EXTERNAL_NODE_LABEL not in str(found)
