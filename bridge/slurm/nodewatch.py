"""The one watcher of Slurm's nodes: a poll of all of them, which costs nothing while nothing changes.

In: a client. Out: the nodes as the last complete list has them, and one call of `changed(names)` for each list that
brings news. What must stay true:

- `nodes` is always one whole list of one Slurm cluster; `age` counts from when the last question was asked that this
  list, or word that nothing has changed since, came back for.
- A node that a list lacks is not gone: it is `missing`, and since when, until it comes back or is forgotten. The next
  question is then for the whole list, whatever slurmctld says has changed.
- Nothing is asked while Slurm can't be polled: a hung daemon's threads are few.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from bridge.core.model import SlurmNode
from bridge.core.nodes import NodeRecord
from bridge.core.twins import Naming, naming
from bridge.errors import BridgeError, ProtocolError, trim
from bridge.slurm.client import SlurmClient
from bridge.slurm.nodes import NodeList
from bridge.slurm.pause import Pause

INTERVAL: Final = 0.5  # seconds between two polls: what somebody drains shows in Kubernetes within a second
HURRIED: Final = 0.05  # the same after a hint
MAX_INTERVAL: Final = 2.0  # seconds: the longest pause of a leader, and the longest back-off
SHARE: Final = 0.1  # of the time of one slurmrestd thread, at most, as long as that is no longer pause
HURRIED_SHARE: Final = 0.5  # the same after a hint: that comes only with what is done to nodes
WHOLE: Final = 30.0  # seconds: a clock that was set back must not hide what has changed since

log = logging.getLogger("bridge.slurm")


@dataclass(frozen=True, slots=True)
class Missing:
    record: NodeRecord  # as it was last listed
    since: float  # monotonic, when the first list without it was asked for
    lists: int = 1  # whole ones without it, in a row


class NodeWatch:
    """Run `run()` as one task; everything else is synchronous and belongs to the same event loop.

    `pace`: followers set it to 10 and poll at a tenth of the rate. `open`: Slurm can be polled, as far as others know.
    """

    def __init__(
        self,
        client: SlurmClient,
        changed: Callable[[frozenset[SlurmNode]], None],
        *,
        open: Callable[[], bool] = lambda: True,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.pace = 1.0
        self.polls = 0  # complete ones so far
        self.healthy = False  # the last one succeeded
        self.problem = "Slurm's nodes have not been read yet"  # "" while healthy
        self.nodes: Mapping[SlurmNode, NodeRecord] = {}  # never changed in place
        self.naming: Naming | None = None  # what they say of names, the same object until that changes
        self.missing: Mapping[SlurmNode, Missing] = {}  # listed by an earlier list, and not by the last one
        self._client, self._changed, self._open = client, changed, open
        self._now, self._sleep = monotonic, sleep
        self._forgotten: dict[SlurmNode, float] = {}  # and when
        self._cluster = ""
        self._asked = -math.inf  # when the question of the last good answer was sent
        self._whole = -math.inf  # the same of the last whole list
        self._written = 0  # when that was written, by slurmctld's clock; 0: ask for the whole list
        self._costs: deque[float] = deque((0.0, 0.0), maxlen=2)
        self._failures = 0
        self._rest = Pause(monotonic, sleep)

    def age(self) -> float:
        """Seconds since the question was sent that told of these nodes; inf before the first answer."""
        return self._now() - self._asked

    @property
    def failing(self) -> bool:
        """The last question was asked in vain."""
        return self._failures > 0

    @property
    def doubtful(self) -> bool:
        """The last list lacks nodes that the one before had. Another one is asked for: that one is believed."""
        return any(missing.lists < 2 for missing in self.missing.values())

    def hint(self) -> None:
        """Some node changes about now: a poll follows."""
        self._rest.hint()

    def forget(self, name: SlurmNode) -> None:
        """It is gone for good, by our own hand: not missing. A list that was asked for before still has it."""
        self._forgotten[name] = self._now()
        self.nodes = {known: record for known, record in self.nodes.items() if known != name}
        self.missing = {known: missing for known, missing in self.missing.items() if known != name}

    async def run(self) -> None:
        """For ever; ends only by cancellation."""
        while True:
            began = self._now()
            if not self._open():
                await self._sleep(INTERVAL)
                continue
            try:
                await self._look()
            except BridgeError as error:
                await self._sleep(self._failed(error))
            except Exception as error:
                log.exception("the watcher of Slurm's nodes failed; it goes on")
                await self._sleep(self._failed(error))
            else:
                self.healthy, self.problem, self._failures = True, "", 0
                taken = self._now() - began
                hurried = self._pause(taken, HURRIED, HURRIED_SHARE)
                await self._rest.take(self._pause(taken, INTERVAL, SHARE), hurried)

    async def _look(self) -> None:
        asked = self._now()
        due = asked - self._whole >= WHOLE or self.doubtful
        known = 0 if due else self._written
        listed = await (self._client.nodes.changed(known) if known else self._client.nodes.list())
        if listed is not None:
            self._publish(listed, asked)
            self._costs.append(self._now() - asked)
        self._asked = asked
        self.polls += 1

    def _publish(self, listed: NodeList, asked: float) -> None:
        """No await in here: nobody sees half of it."""
        if self._cluster and listed.cluster != self._cluster:
            raise ProtocolError(
                f"the nodes are those of Slurm cluster {listed.cluster!r}, and not of {self._cluster!r} any more; "
                "restart the bridge if the cluster has a new name"
            )
        self._cluster = listed.cluster
        before = self.nodes
        self._forgotten = {name: when for name, when in self._forgotten.items() if when >= asked}
        self.nodes = {record.name: record for record in listed.nodes if record.name not in self._forgotten}
        self._whole, self._written = asked, listed.written
        lost = {name: Missing(before[name], asked) for name in before.keys() - self.nodes.keys()}
        still = {
            name: replace(missing, lists=missing.lists + 1)
            for name, missing in self.missing.items()
            if name not in self.nodes
        }
        self.missing = still | lost
        absent = (missing.record for missing in self.missing.values())
        said = naming((*absent, *self.nodes.values()), self.naming)
        if said.known and said != self.naming:  # an empty list says nothing
            self.naming = said
        news = {name for name, record in self.nodes.items() if before.get(name) != record} | lost.keys()
        if news:
            try:
                self._changed(frozenset(news))
            except Exception:  # a listener's mistake must not cost the others their news
                log.exception("a listener failed on nodes of Slurm")

    def _pause(self, taken: float, usual: float, share: float) -> float:
        """Seconds until the next poll. The cheaper of two lists counts: one slow answer must not blind us."""
        cost = min(self._costs)
        interval = max(usual * self.pace, min(cost / share, MAX_INTERVAL))
        return max(interval - taken, min(cost, MAX_INTERVAL))  # never more than half of the time

    def _failed(self, error: Exception) -> float:
        """Seconds to wait."""
        if self.healthy or not self._failures:
            log.warning("Slurm's nodes cannot be read: %s", error)
        self.healthy = False
        self.problem = trim(str(error)) or type(error).__name__
        self._failures += 1
        self._written = 0
        return min(MAX_INTERVAL, INTERVAL * 2.0 ** min(self._failures, 4))
