"""Every cell of the table of docs/nodes.md, on an external node, one of slurm-operator's and one of the site's."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bridge.core.constraints import Taint
from bridge.core.model import KubeNode, Node, SlurmNode, Uid
from bridge.core.nodes import NodeRecord, StartFailure
from bridge.core.steps import DrainNode
from bridge.names import (
    EXTERNAL_NODE_LABEL,
    NODE_PARTITIONS_ANNOTATION,
    SLURM_NODENAME_LABEL,
    TOPOLOGY_ANNOTATION,
)
from tests.core.nodeworld import World, by_hand, kube, operated, other, record, slurmd

FACTS: list[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("nodes.toml").read_text())["facts"]
N1, K1 = SlurmNode("n1"), KubeNode("n1")
Make = Callable[[World], None]


def node(**changes: Any) -> Make:
    return lambda world: world.kubernetes(K1, **changes)


def states(*words: str, reason: str = "") -> Make:
    return lambda world: world.change(N1, states=world.records[N1].states | set(words), reason=reason)


def taint(key: str) -> Make:
    def make(world: World) -> None:
        world.kubernetes(K1, taints=(*world.nodes[K1].taints, Taint(key, "", "NoSchedule")))

    return make


def drain(reason: str) -> Make:
    return lambda world: world.drain(N1, reason)


def smaller(world: World) -> None:
    world.others[K1] = (*world.others[K1], other("agent", "n1", requests={"cpu": "20"}))


def renamed(world: World) -> None:
    """Of a node with slurmd: to the name that it has."""
    name = "m1" if world.records[N1].external else "n1"
    world.kubernetes(K1, labels={**world.nodes[K1].labels, SLURM_NODENAME_LABEL: name})


def rejects(world: World) -> None:
    world.failures[K1] = tuple(StartFailure(pod=Uid(p), ref=f"default/{p}", at=world.now) for p in "abc")


def text_left(world: World) -> None:
    world.change(N1, reason="slurm-bridge: pods do not start: default/a, boot boot-1")


def uncommented(world: World) -> None:
    world.change(N1, comment="rack 8")


DEVICES = "slurm-bridge: node not Ready; containers of default/a may still run"
SITUATIONS: dict[str, Make] = {
    "cordoned": node(cordoned=True),
    "not ready": node(ready=False),
    "unknown": node(ready=False, unknown=True),
    "pressure": taint("node.kubernetes.io/disk-pressure"),
    "other taint": taint("example.com/theirs"),
    "being deleted": node(deleted=1.0),
    "gone": lambda world: world.nodes.clear(),
    "label gone": node(labels={}),
    "renamed": renamed,
    "smaller": smaller,
    "features": node(annotations={NODE_PARTITIONS_ANNOTATION: "bridge,big"}),
    "topology": node(annotations={TOPOLOGY_ANNOTATION: "default:leaf1"}),
    "unregistered": lambda world: world.records.clear(),
    "drained with a reason": drain("bad disk"),
    "drained without a reason": drain(""),
    "drained by the operator": drain("slurm-operator: pod gpu-0 is cordoned"),
    "stopped": states("DOWN", reason="fan"),
    "reserved": states("RESERVED", "MAINTENANCE"),
    "deaf": states("NOT_RESPONDING"),
    "busy": lambda world: world.run(N1, True),
    "rejects pods": rejects,
    "drained for devices": drain(DEVICES),
    "text left": text_left,
    "comment": uncommented,
    "untainted": node(taints=()),
    "condition lost": node(mirrored=None),
}
KINDS: dict[str, tuple[str, Callable[[str], NodeRecord]]] = {
    "external": ("external", record),
    "operator": ("slurmd", operated),
    "by hand": ("slurmd", by_hand),
}


def cells() -> Iterator[Any]:
    for fact in FACTS:
        for kind, (column, _) in KINDS.items():
            yield pytest.param(fact["is"], fact[column], kind, id=f"{fact['is']}-{kind}")


def settled(kind: str) -> World:
    labels = {EXTERNAL_NODE_LABEL: ""} if kind == "external" else {}
    world = World.of(kube("n1", labels=labels), KINDS[kind][1]("n1"))
    world.others[K1] = (slurmd("gpu-0", "n1"),) if kind == "operator" else ()
    world.settle()
    world.now += 10
    return world


@pytest.mark.parametrize(("situation", "cell", "kind"), list(cells()))
def test_each_cell_of_the_owner_table(situation: str, cell: dict[str, Any], kind: str) -> None:
    world = settled(kind)
    before: tuple[dict[KubeNode, Node], dict[SlurmNode, NodeRecord]] = (
        dict(world.nodes),
        dict(world.records),
    )
    SITUATIONS[situation](world)
    if kind == "external":  # so that what would go at once stays to be looked at
        world.named.add(N1)
    steps = world.look()
    assert [type(step).__name__ for step in steps] == cell["does"]
    if "reason" in cell:
        drains = [step.reason for step in steps if isinstance(step, DrainNode)]
        assert drains == [f"slurm-bridge: {cell['reason']}"]
    world.settle()
    if "undone" in cell:
        _undo(world, *before)
        steps = world.look()
        assert [type(step).__name__ for step in steps] == cell["undone"]
        world.settle()
        assert shape(world.nodes[K1], world.records[N1]) == shape(before[0][K1], before[1][N1])


def shape(node: Node, found: NodeRecord) -> tuple[Any, ...]:
    """Without times and the users who wrote something."""
    shown = node.mirrored
    told = (shown.status, shown.reason, shown.message) if shown is not None else None
    return set(node.taints), told, found.states, found.reason, found.features, found.topology


def _undo(world: World, nodes: dict[KubeNode, Node], records: dict[SlurmNode, NodeRecord]) -> None:
    """What others own is as it was; what we wrote meanwhile stays to be put right."""
    now, was = world.nodes.get(K1), nodes[K1]
    written = replace(was, mirrored=now.mirrored, taints=_ours(now, was)) if now is not None else was
    world.nodes[K1] = written
    found, old = world.records[N1], records[N1]
    if (found.drained and not found.reason.startswith("slurm-bridge:")) or found.reason == DEVICES:
        world.resume(N1)
    elif not found.drained:
        world.change(N1, reason=old.reason)
    keep = found.states & {"DRAIN"} if world.records[N1].drained else frozenset()
    world.change(N1, states=old.states | keep)


def _ours(now: Node, was: Node) -> tuple[Taint, ...]:
    return tuple(t for t in now.taints if t in was.taints or t.key.startswith("slinky.slurm.net/"))


def test_every_fact_of_the_table_is_brought_about() -> None:
    assert [fact["is"] for fact in FACTS] == list(SITUATIONS)
