"""How many nodes may be taken out of service at a time, counted from what the records themselves say.

In: all pairs. Out: `Room`, and what is left of it after some steps. What must stay true: a restart of the bridge makes
no new room.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from bridge.config import NodeSettings
from bridge.core.drains import LIMITED, RECREATING, cause_of, standing
from bridge.core.nodes import Around, Pair, Room, mark
from bridge.core.steps import DrainNode, NodeStep
from bridge.names import EXTERNAL_NODE_LABEL

WINDOW = 300.0  # seconds in which drains count as new
LEAST = 2  # nodes that may always be drained in it


def room(pairs: Sequence[Pair], around: Around, settings: NodeSettings) -> Room:
    """Nodes of other clusters' bridges are no part of it."""
    records = [pair.record for pair in pairs if pair.record is not None and _counts(pair, around)]
    external = sum(record.external for record in records)
    drained = [(cause, record) for record in records if (cause := standing(record)) is not None]
    new = sum(cause in LIMITED and around.slurm_now - record.reason_at < WINDOW for cause, record in drained)
    new += sum(map(_hidden, pairs))
    under_way = sum(cause in RECREATING for cause, _ in drained) + sum(map(_missing, pairs))
    return Room(
        drains=max(LEAST, math.floor(settings.drainShare * len(records))) - new,
        recreations=max(1, math.floor(settings.recreationShare * external)) - under_way,
    )


def left(before: Room, steps: Iterable[NodeStep]) -> Room:
    """After these steps of one node."""
    drained = [(cause_of(step.reason), step.over) for step in steps if isinstance(step, DrainNode)]
    return Room(
        drains=before.drains - sum(cause in LIMITED and not over for cause, over in drained),
        recreations=before.recreations - sum(cause in RECREATING for cause, _ in drained),
    )


def _counts(pair: Pair, around: Around) -> bool:
    known = mark(pair.record.comment) if pair.record is not None and pair.record.external else None
    return known.cluster == around.cluster if known is not None else pair.node is not None


def _hidden(pair: Pair) -> bool:
    """It may have been drained a moment ago: a list that lacks its record may be wrong."""
    node = pair.node
    return pair.record is None and node is not None and node.mirrored is not None and not node.ready


def _missing(pair: Pair) -> bool:
    """It was registered, and is to be again."""
    node = pair.node
    return (
        pair.record is None
        and node is not None
        and node.mirrored is not None
        and EXTERNAL_NODE_LABEL in node.labels
    )
