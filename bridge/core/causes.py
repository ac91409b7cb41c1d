"""For what a node should be drained at this moment, by what both sides say.

In: one pair. Out: the causes that are there, the strongest first. What must stay true: a cause is read off the two
records and the ages alone, so that after any restart the same causes are found, and a drain of ours is lifted exactly
when its cause has gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bridge.config import NodeSettings
from bridge.core import startfailures
from bridge.core.drains import Cause, Present, detail_of, standing
from bridge.core.model import Node
from bridge.core.nodes import Around, NodeRecord, Pair, Room
from bridge.names import EXTERNAL_NODE_LABEL, MANAGED_NODE_TAINT, UNAVAILABLE_TAINT

_OURS = (MANAGED_NODE_TAINT, UNAVAILABLE_TAINT)  # never a cause: they follow from what Slurm says


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """One pair with all that its causes depend on. `differs`: its sizes, "" = they agree."""

    pair: Pair
    record: NodeRecord
    around: Around
    room: Room
    settings: NodeSettings
    differs: str = ""


def external(found: Circumstances) -> Iterator[Present]:
    """Of an external node of ours."""
    yield from _unregistered(found)
    node = found.pair.node
    if node is None:
        return
    if found.settings.nodeStateToSlurm:
        yield from _kubernetes(node, found.settings, found.room)
        yield from unstartable(node, found)
    if found.settings.externalNodes and EXTERNAL_NODE_LABEL in node.labels:
        yield from _recreation(found)


def with_slurmd(found: Circumstances) -> Iterator[Present]:
    """Whoever runs its slurmd mirrors the rest. What the Go project drained there stays until its cause has gone."""
    node = found.pair.node
    if node is None or not found.settings.nodeStateToSlurm:
        return
    ours = standing(found.record)
    yield from (one for one in _kubernetes(node, found.settings, found.room) if one.cause is ours)
    yield from unstartable(node, found)


def _unregistered(found: Circumstances) -> Iterator[Present]:
    if not found.settings.externalNodes:
        return
    node = found.pair.node
    if node is None:
        yield Present(Cause.GONE)
    elif EXTERNAL_NODE_LABEL not in node.labels:
        yield Present(Cause.UNREGISTERED)


def blocking(node: Node, settings: NodeSettings) -> str:
    """The first cause for which it would be drained at once; "" = none."""
    return next((one.cause for one in _kubernetes(node, settings, Room(drains=1, recreations=1))), "")


def _kubernetes(node: Node, settings: NodeSettings, room: Room) -> Iterator[Present]:
    if node.deleted:
        yield Present(Cause.DELETED)
    if node.cordoned:
        yield Present(Cause.CORDONED)
    watched = (t for t in node.taints if t.key in settings.drainTaints and t.key not in _OURS)
    if (taint := next(watched, None)) is not None:
        yield Present(Cause.TAINTED, taint.key)
    if not node.ready:
        detail = "its kubelet is silent" if node.unknown else ""
        yield Present(Cause.NOT_READY, detail, allowed=room.drains > 0)


def unstartable(node: Node, found: Circumstances) -> Iterator[Present]:
    if standing(found.record) is Cause.UNSTARTABLE:
        boot = startfailures.boot_of(detail_of(found.record.reason))
        if boot in (node.boot_id, "unknown") or not node.boot_id:
            yield Present(Cause.UNSTARTABLE, detail_of(found.record.reason))
        return
    failed = startfailures.counted(
        found.pair.failures,
        node.mirrored,
        now=found.around.now,
        window=found.settings.startFailureWindow,
    )
    if len(failed) >= found.settings.startFailures:
        detail = startfailures.told(failed, node.boot_id)
        yield Present(Cause.UNSTARTABLE, detail, allowed=found.room.drains > 0)


def _recreation(found: Circumstances) -> Iterator[Present]:
    """What only a new record can mend. Somebody else's drain would be lost with the old one: it waits."""
    room = found.room.recreations > 0 and "DYNAMIC_NORM" in found.record.states
    if "NOT_RESPONDING" in found.record.states:
        yield Present(Cause.DEAF, allowed=room and not found.around.young)
    if found.differs:
        settled = found.pair.differs_for >= found.settings.nodeSettling
        yield Present(Cause.RESIZED, found.differs, allowed=room and settled and not found.around.young)
