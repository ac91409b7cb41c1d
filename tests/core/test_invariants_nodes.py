"""The invariants about nodes, each with a change that violates it and one that nearly does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bridge.core import nodeinvariants
from bridge.core.constraints import Taint
from bridge.core.model import Condition, JobRecord, Node, SlurmNode
from bridge.core.nodeinvariants import (
    drains_are_true,
    few_at_once,
    holders_kept,
    nodes_agree,
    strangers_kept,
    taint_stays,
    words_stand,
)
from bridge.core.nodes import NodeRecord
from bridge.core.picture import Change, Picture
from bridge.core.violation import Predicate
from bridge.names import GPUS_ANNOTATION, MANAGED_NODE_TAINT, SLURM_NODE_CONDITION, UNAVAILABLE_TAINT
from tests.core import nodeworld
from tests.core.nodeworld import EXTERNAL, by_hand, kube, tainted
from tests.core.pictures import change, job, picture, running

PRESSURE = Taint("node.kubernetes.io/disk-pressure", "", "NoSchedule")
FAN = "fan broken"
CORDONED = "slurm-bridge: cordoned in Kubernetes"
SILENT = "slurm-bridge: not Ready in Kubernetes"
RESIZED = "slurm-bridge: another size, to be re-created: CPUs 64 → 32"
DEVICES = "slurm-bridge: node not Ready; containers of default/a may still run"
GONE = "slurm-bridge: no node of Kubernetes has this name any more"
N1 = SlurmNode("n1")


def record(name: str = "n1", *flags: str, reason: str = "", by: str = "slurm", **changes: Any) -> NodeRecord:
    return nodeworld.record(name, *flags, reason=reason, reason_user=by, **changes)


def drained(reason: str, *flags: str, by: str = "slurm", **changes: Any) -> NodeRecord:
    return record("n1", "DRAIN", *flags, reason=reason, by=by, **changes)


def sees(
    *records: NodeRecord,
    nodes: tuple[Node, ...] = (kube("n1"),),
    jobs: tuple[JobRecord, ...] = (),
    **changes: Any,
) -> Picture:
    known: dict[str, Any] = {
        "records": {one.name: one for one in records},
        "nodes": {SlurmNode(node.name): node for node in nodes},
        "author": "slurm",
        "drain_taints": (PRESSURE.key,),
    }
    return picture(*jobs, **known | changes)


def by_us(before: Picture, after: Picture) -> Change:
    """The bridge did it."""
    names = {*before.records, *after.records}
    altered = (name for name in names if before.records.get(name) != after.records.get(name))
    shown = (node.name for name, node in after.nodes.items() if before.nodes.get(name) != node)
    return change(before, after, altered=frozenset(altered), shown=frozenset(shown))


def moved(before: NodeRecord, after: NodeRecord | None, **seen: Any) -> Change:
    return by_us(sees(before, **seen), sees(*([after] if after is not None else []), **seen))


FOREIGN = nodeworld.record("n1", cluster="another")
HELD = running(annotations={GPUS_ANNOTATION: "0"})
OVER = job("TIMEOUT")


def many(reason: str, count: int) -> Change:
    """The last of so many is drained, of thirty."""
    others = [record(f"e{i}") for i in range(30 - count)]
    out = [record(f"o{i}", "DRAIN", reason=reason, reason_at=100.0 + i) for i in range(count)]
    before = sees(*others, *out[:-1], record(out[-1].name))
    return by_us(before, sees(*others, *out))


def without(node: Node, *keys: str) -> Node:
    return replace(node, taints=tuple(t for t in node.taints if t.key not in keys))


def shows(before: Node, after: Node, *records: NodeRecord) -> Change:
    return by_us(sees(*records, nodes=(before,)), sees(*records, nodes=(after,)))


MARKED = tainted(kube("n1"))
CASES: list[tuple[Predicate[Change], Change, Change]] = [
    # predicate, a change that violates it, and one that is right
    (words_stand, moved(drained(FAN, by="root"), record()), moved(drained(CORDONED), record())),
    (words_stand, moved(drained(CORDONED, by="root"), record()), moved(drained(SILENT), record())),
    (
        words_stand,
        moved(drained(FAN, by="root"), drained(SILENT)),
        moved(drained(CORDONED), drained(DEVICES)),
    ),
    (
        words_stand,
        moved(drained("", by="root"), record()),
        moved(drained("", by="root"), drained("", by="root")),
    ),
    (words_stand, moved(drained(FAN, by="root"), None), moved(drained(GONE), None, nodes=())),
    (words_stand, moved(drained(DEVICES), record()), moved(drained(CORDONED), drained(DEVICES))),
    (
        words_stand,
        moved(record("n1", "DOWN", reason=FAN, by="root"), drained(DEVICES, "DOWN")),
        moved(record("n1", "DOWN", reason=FAN, by="root"), drained(FAN, "DOWN", by="root")),
    ),
    (
        drains_are_true,
        moved(record(), drained(CORDONED)),
        moved(record(), drained(CORDONED), nodes=(kube("n1", cordoned=True),)),
    ),
    (drains_are_true, moved(record(), drained(GONE)), moved(record(), drained(GONE), nodes=())),
    (
        drains_are_true,
        moved(drained(CORDONED), record(), nodes=(kube("n1", taints=(PRESSURE,)),)),
        moved(drained(CORDONED), record()),
    ),
    (
        holders_kept,
        moved(drained(CORDONED), record(), pods=(HELD,), jobs=(OVER,)),
        moved(drained(CORDONED), record(), pods=(HELD,), jobs=(job(),)),
    ),
    (
        holders_kept,
        moved(drained(GONE), None, pods=(HELD,), jobs=(job(),)),
        moved(drained(GONE), None, pods=(HELD,), jobs=(job(),), dead=frozenset({HELD.uid}), nodes=()),
    ),
    (few_at_once, many(SILENT, 4), many(SILENT, 3)),
    (few_at_once, many(RESIZED, 2), many(RESIZED, 1)),
    (few_at_once, many(SILENT, 4), many(CORDONED, 12)),
    (
        strangers_kept,
        moved(FOREIGN, replace(FOREIGN, features=("x",))),
        moved(record(), record(features=("x",))),
    ),
    (
        strangers_kept,
        moved(by_hand("n1"), by_hand("n1", features=("x",))),
        moved(by_hand("n1"), by_hand("n1", "DRAIN", reason="slurm-bridge: pods do not start")),
    ),
    (strangers_kept, moved(by_hand("n1", "DRAIN"), None), moved(drained(GONE), None)),
    (
        strangers_kept,
        shows(kube("n1", cordoned=True), kube("n1"), record()),
        shows(kube("n1", cordoned=True), tainted(kube("n1", cordoned=True)), record()),
    ),
    (
        strangers_kept,
        shows(kube("n1", taints=(PRESSURE,)), kube("n1"), record()),
        shows(MARKED, without(MARKED, MANAGED_NODE_TAINT), record()),
    ),
    (
        taint_stays,
        shows(MARKED, without(MARKED, MANAGED_NODE_TAINT), record()),
        shows(MARKED, without(MARKED, MANAGED_NODE_TAINT)),
    ),
]


@pytest.mark.parametrize(("holds", "wrong", "right"), CASES)
def test_what_the_bridge_may_not_do_to_a_node_is_named(
    holds: Predicate[Change], wrong: Change, right: Change
) -> None:
    (found,) = holds(wrong)
    assert "n1" in found.text or "o" in found.text
    assert holds(right) == ()


@pytest.mark.parametrize(("holds", "wrong"), [(holds, wrong) for holds, wrong, _ in CASES])
def test_others_may_do_with_nodes_what_they_like(holds: Predicate[Change], wrong: Change) -> None:
    assert holds(replace(wrong, altered=frozenset(), shown=frozenset())) == ()


def test_every_predicate_about_nodes_is_tried() -> None:
    assert {holds for holds, _, _ in CASES} == set(nodeinvariants.MOVING)


def test_a_pod_whose_job_was_forgotten_may_have_its_node_back() -> None:
    assert holders_kept(moved(drained(CORDONED), record(), pods=(HELD,))) == ()
    going = replace(HELD, deleted=1.0)
    assert len(holders_kept(moved(drained(CORDONED), record(), pods=(going,)))) == 1


# --- at the end -----------------------------------------------------------------------------------


def shown(status: str, *more: str, **changes: Any) -> Node:
    node = tainted(kube("n1", **changes))
    extra = tuple(Taint(key, "", "NoSchedule") for key in more)
    return replace(
        node, mirrored=Condition(type=SLURM_NODE_CONDITION, status=status), taints=(*node.taints, *extra)
    )


GOOD = shown("True")
OUT = shown("False")
THEIRS = shown("False", UNAVAILABLE_TAINT)
IDLE = EXTERNAL
ENDS: list[tuple[Picture, Picture]] = [
    (sees(drained(CORDONED), nodes=(OUT,)), sees(drained(CORDONED), nodes=(replace(OUT, cordoned=True),))),
    (sees(record(), nodes=(replace(GOOD, cordoned=True),)), sees(record(), nodes=(GOOD,))),
    (sees(record(reason=SILENT), nodes=(GOOD,)), sees(record("n1", "MIXED", reason=SILENT), nodes=(GOOD,))),
    (sees(drained(FAN, by="root"), nodes=(OUT,)), sees(drained(FAN, by="root"), nodes=(THEIRS,))),
    (sees(record(), nodes=(THEIRS,)), sees(record(), nodes=(replace(GOOD, ready=False),))),
    (sees(record(), nodes=(kube("n1"),)), sees(FOREIGN, nodes=())),
    (sees(nodes=(GOOD,)), sees(nodes=(replace(GOOD, cordoned=True),))),
    (sees(drained(GONE), nodes=()), sees(drained(GONE, "MIXED"), nodes=())),
    (sees(drained(RESIZED), nodes=(OUT,)), sees(drained(RESIZED, "MIXED"), nodes=(OUT,))),
]


@pytest.mark.parametrize(("wrong", "right"), ENDS)
def test_what_is_left_to_be_told_is_named(wrong: Picture, right: Picture) -> None:
    assert nodes_agree(wrong)
    assert nodes_agree(right) == ()
