"""What the mirror says of all nodes, asked anew only of those for which something may have changed.

In: all pairs of a look. Out: their outlooks, the same as `core.mirror.mirror_all` would give. A thousand nodes take
half a second to judge, and nearly all of them are as they were: those of which nothing was to be said or done are asked
again only now and then. Nobody else waits for long meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bridge.config import NodeSettings
from bridge.core import rooms
from bridge.core.mirror import FRESH, mirror
from bridge.core.model import SlurmNode
from bridge.core.nodes import Around, Outlook, Pair

REFRESH = 30.0  # seconds: what only time changes
SLICE = 0.02  # seconds of judging before others on the event loop have their turn


@dataclass(frozen=True, slots=True)
class _Judged:
    pair: Pair
    outlook: Outlook
    at: float


class Steady:
    def __init__(self, settings: NodeSettings, clock: Callable[[], float]) -> None:
        self._settings, self._now = settings, clock
        self._judged: dict[SlurmNode, _Judged] = {}
        self._circumstances: object = None

    async def outlooks(self, pairs: Sequence[Pair], around: Around) -> tuple[Outlook, ...]:
        """In the same order."""
        stale = around.age > FRESH
        circumstances = (around.young, around.many_lost, around.partitions, stale)
        if circumstances != self._circumstances:
            self._judged.clear()
            self._circumstances = circumstances
        room = rooms.room(pairs, around, self._settings)
        found: list[Outlook] = []
        judged: dict[SlurmNode, _Judged] = {}
        began = self._now()
        for pair in pairs:
            now = self._now()
            known = self._judged.get(pair.name)
            if known is None or now - known.at > REFRESH or not _same(known.pair, pair):
                known = _Judged(pair, mirror(pair, around, room, self._settings), now)
                room = rooms.left(room, known.outlook.steps)
            found.append(known.outlook)
            if not known.outlook.steps and not known.outlook.verdicts and known.outlook.again is None:
                judged[pair.name] = known
            if now - began > SLICE:
                await asyncio.sleep(0)
                began = self._now()
        self._judged = judged
        return tuple(found)


def _same(one: Pair, other: Pair) -> bool:
    """But for how long something has been so."""
    if one.node is not other.node or one.record is not other.record:
        return False
    return _rest(one) == _rest(other)


def _rest(pair: Pair) -> tuple[object, ...]:
    return (
        pair.siblings, pair.former, pair.refused, pair.others, pair.failures, pair.unfree, pair.named
    )  # fmt: skip
