"""One truth about a node: Kubernetes says whether the machine can run pods, Slurm says who has it.

In: both records of a node and what is around them (`core.nodes`). Out: frozen steps in a safe order, and sentences.
docs/nodes.md has the table of who owns which fact. What must stay true: each owner's last word stands; there is no
memory but what both records carry, and so after any crash the next look goes on from there; with nothing changed there
are no steps; what could not be read, or is another bridge's, is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bridge.config import NodeSettings
from bridge.core import causes, drains, external, nodesize, reflection, registration, rooms
from bridge.core.causes import Circumstances
from bridge.core.external import Found, said
from bridge.core.model import Node
from bridge.core.nodes import Around, Kind, Outlook, Pair, Room, mark
from bridge.core.verdict import Reason
from bridge.errors import UserError
from bridge.names import EXTERNAL_NODE_LABEL

LASTING = 60.0  # seconds in which a whole list is asked for twice: one that lacks a node may be wrong
FRESH = 15.0  # seconds: an older picture of either side decides nothing


def mirror_all(pairs: Sequence[Pair], around: Around, settings: NodeSettings) -> tuple[Outlook, ...]:
    """Of all nodes, in the order given; no more of them out of service than the settings allow."""
    room = rooms.room(pairs, around, settings)
    found: list[Outlook] = []
    for pair in pairs:
        outlook = mirror(pair, around, room, settings)
        room = rooms.left(room, outlook.steps)
        found.append(outlook)
    return tuple(found)


def mirror(pair: Pair, around: Around, room: Room, settings: NodeSettings) -> Outlook:
    """Of one node."""
    record = pair.record
    outlook = Outlook(
        name=pair.name,
        kind=record.kind if record is not None else Kind.NONE,
        drained_by=drains.drained_by(record) if record is not None else "",
    )
    if pair.refused:
        return _with(outlook, said(Reason.NODE_REFUSED, f"{pair.refused}; nothing is done to any of them"))
    if around.age > FRESH:
        return _with(outlook, said(Reason.STALE, "what is known of both sides is too old to act on it"))
    if record is None:
        return _with(outlook, _absent(pair, around, settings)) if pair.node is not None else outlook
    found = Circumstances(pair=pair, record=record, around=around, room=room, settings=settings)
    if record.external:
        if stranger := _stranger(found):
            return _with(outlook, said(Reason.FOREIGN, stranger))
        text, waits = external.differs(found)
        decided = waits + external.decide(replace(found, differs=text))
        outlook = replace(outlook, differs=text)
    else:
        outlook, decided = _with_slurmd(outlook, found)
    if pair.node is not None and (not record.external or external.labelled(pair) is not None):
        outlook = replace(outlook, shown=True)
        decided += _shown(found, pair.node)
    return _with(outlook, decided)


def _with(outlook: Outlook, found: Found) -> Outlook:
    return replace(outlook, steps=found.steps, verdicts=found.verdicts, again=found.again)


def _stranger(found: Circumstances) -> str:
    """Why an external record is none of ours."""
    known, name = mark(found.record.comment), found.pair.name
    if known is None:
        ours = external.labelled(found.pair) is not None and found.settings.externalNodes
        return "" if ours else f"{name} is external and has no bridge's mark: it is left alone"
    if known.cluster != found.around.cluster:
        return f"{name} belongs to the bridge of cluster {known.cluster}"
    return ""


def _with_slurmd(outlook: Outlook, found: Circumstances) -> tuple[Outlook, Found]:
    """Whoever runs its slurmd owns the record; ours is only the drain with our prefix."""
    pair = found.pair
    decided = external.drained(found, tuple(causes.with_slurmd(found)), None)
    if pair.node is None:
        return outlook, decided
    if EXTERNAL_NODE_LABEL in pair.node.labels:
        text = f"label {EXTERNAL_NODE_LABEL} is ignored: a slurmd runs as {pair.name}; remove one of both"
        decided += said(Reason.NODE_REFUSED, text)
    together = (found.record, *pair.siblings)
    try:
        hint = nodesize.hint(together, pair.node, pair.taken, found.around.gres_by_resource)
    except UserError as error:
        decided += said(Reason.NODE_REFUSED, str(error))
        hint = ""
    return replace(outlook, hint=hint, overcommitted=bool(hint) and len(together) > 1), decided


def _absent(pair: Pair, around: Around, settings: NodeSettings) -> Found:
    """Slurm's list is complete, and this node is not in it."""
    node = pair.node
    if node is None:
        return Found()
    if external.labelled(pair) is not None and settings.externalNodes:
        return _registration(node, pair, around, settings)
    if node.mirrored is None:
        return Found()
    if around.young:
        return said(Reason.NODE_WAITS, "Slurm does not list it, and has just come up")
    if around.many_lost:
        return said(Reason.HELD_BACK, "Slurm lists so few nodes that its list may be wrong; taints stay")
    if (rest := LASTING - pair.absent_for) > 0:
        text = f"Slurm does not list it; its taints stay until that has lasted for {LASTING:.0f} s"
        return said(Reason.NODE_WAITS, text, rest)
    return Found(reflection.parting(node))


def _registration(node: Node, pair: Pair, around: Around, settings: NodeSettings) -> Found:
    if waits := external.missing(node, pair, around, settings):
        return said(Reason.NODE_WAITS, waits)
    try:
        size = nodesize.wanted(node, pair.taken, settings, around.gres_by_resource)
        conf = registration.conf(pair.name, node, size, settings, around.partitions)
        return external.registered(size, node, pair, around, conf)
    except UserError as error:
        return said(Reason.NODE_REFUSED, str(error))


def _shown(found: Circumstances, node: Node) -> Found:
    """On the Kubernetes node."""
    pair, record, settings = found.pair, found.record, found.settings
    steps, trouble = reflection.taints(node, record, pair, found.around, settings)
    again = (
        reflection.BLINK if "NOT_RESPONDING" in record.states and pair.silent_for < reflection.BLINK else None
    )
    result = Found(steps + reflection.shown(node, record, pair, settings), again=again)
    return result + said(Reason.NODE_REFUSED, trouble) if trouble else result
