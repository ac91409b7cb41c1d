"""The node mirror at work: looks at all nodes of both sides when one changes, and once a second, and acts.

What must stay true: nobody acts but the leader; after a write nobody looks before it can be seen, as what was done
counts for what may be done, nor while Slurm's list may be wrong; a node whose steps fail is left alone for a while, and
the others go on.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bridge.apply import WriteDoor
from bridge.config import NodeSettings
from bridge.core.drains import Cause, cause_of
from bridge.core.mirror import FRESH
from bridge.core.model import KubeNode, SlurmNode
from bridge.core.nodes import Outlook, Pair
from bridge.core.pairs import home
from bridge.core.steps import DeleteNode, DrainNode, NodeStep, NotifyNode, UndrainNode
from bridge.core.twins import names, naming
from bridge.errors import BridgeError, Conflict, NotFound, TransientError
from bridge.kube.client import KubeClient
from bridge.log import logger
from bridge.loops.guard import Guard
from bridge.loops.steady import Steady
from bridge.metrics import NODES
from bridge.mirror import Mirror
from bridge.slurm.nodewatch import NodeWatch

log = logger("nodes")
TICK = 1.0  # seconds between looks when nobody tells of news
PAUSE = 0.05  # seconds between looks however much news there is
BATCH = 0.5  # seconds that the steps of one look may take: what is new then is more urgent than what is left
LONGEST = 60.0  # seconds of back-off
AT_ONCE = 8  # nodes that are written to
URGENT = DrainNode | UndrainNode
# A person's word about this very node; all others may be an accident where they concern many.
WORDS = frozenset({Cause.CORDONED, Cause.DELETED})


@dataclass(slots=True)
class _Trouble:
    until: float  # monotonic
    pause: float  # seconds


class NodesLoop:
    def __init__(
        self,
        mirror: Mirror,
        watch: NodeWatch,
        door: WriteDoor,
        kube: KubeClient,
        guard: Guard,
        settings: NodeSettings,
        *,
        overcommitted: Callable[[frozenset[SlurmNode]], None],
        tight: Callable[[frozenset[KubeNode]], None],
        leading: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mirror, self._watch, self._door = mirror, watch, door
        self._kube, self._guard = kube, guard
        self._tight = tight
        self._overcommitted, self._leading, self._now = overcommitted, leading, clock
        self._steady = Steady(settings, clock)
        self._news = asyncio.Event()
        self._written = -math.inf  # when something was last written
        self._trouble: dict[SlurmNode, _Trouble] = {}
        self._said: dict[SlurmNode, tuple[str, ...]] = {}
        self._held: set[SlurmNode] = set()  # by the guard
        self._lane = asyncio.Semaphore(AT_ONCE)
        self.outlooks: tuple[Outlook, ...] = ()  # of the last look

    def wake(self) -> None:
        """Something has changed on either side."""
        self._news.set()

    def notes(self) -> list[str]:
        """For /readyz."""
        return [f"nodes: {self._watch.problem}"] if self._watch.failing else []

    async def run(self) -> None:
        """For ever."""
        while True:
            try:
                async with asyncio.timeout(TICK):
                    await self._news.wait()
            except TimeoutError:
                pass
            self._news.clear()
            seen = self._now() - self._watch.age() > self._written and not self._watch.doubtful
            if seen and self._leading() and self._mirror.ready():
                try:
                    await self.look()
                except Exception:
                    log.exception("the look at the nodes failed; it is repeated")
            elif not seen:
                self._watch.hint()
                self._news.set()
            await asyncio.sleep(PAUSE)

    async def look(self) -> None:
        """Once at every node."""
        pairs, around = self._mirror.look()
        self.outlooks = await self._steady.outlooks(pairs, around)
        self._mirror.looked(self.outlooks)
        if around.age <= FRESH:
            self._overcommitted(frozenset(one.name for one in self.outlooks if one.overcommitted))
            tight = (home(pair) for pair, one in zip(pairs, self.outlooks, strict=True) if one.hint)
            self._tight(frozenset(tight))
        self._tell(self.outlooks)
        due = [
            (pair, outlook.steps)
            for pair, outlook in zip(pairs, self.outlooks, strict=True)
            if outlook.steps and self._may_act(pair.name)
        ]
        due.sort(key=lambda one: not isinstance(one[1][0], URGENT))
        began = self._now()
        await asyncio.gather(*(self._act(pair, steps, began + BATCH) for pair, steps in due))
        if self._written >= began:
            self._news.set()

    def _may_act(self, name: SlurmNode) -> bool:
        trouble = self._trouble.get(name)
        return trouble is None or self._now() >= trouble.until

    async def _act(self, pair: Pair, steps: Iterable[NodeStep], until: float) -> None:
        name = pair.name
        async with self._lane:
            if self._now() > until:
                return
            try:
                for step in steps:
                    if isinstance(step, DrainNode) and not await self._allowed(pair, step):
                        return
                    if (node := await self._door.apply_to_node(step)) is not None:
                        self._mirror.learn(node)
                    if not isinstance(step, NotifyNode):
                        self._written = self._now()
                    if isinstance(step, DeleteNode):
                        self._watch.forget(name)
            except (TransientError, Conflict) as error:
                self._put_off(name, error, longest=TICK)
            except BridgeError as error:
                self._put_off(name, error)
            except Exception as error:
                log.exception("a step to a node failed", node=name)
                self._put_off(name, error)
            else:
                self._trouble.pop(name, None)

    async def _allowed(self, pair: Pair, step: DrainNode) -> bool:
        """Asked by its name: lists may lack a node. Many at once may be an accident: the breaker is asked."""
        cause = cause_of(step.reason)
        if cause is Cause.GONE and await self._there(pair):
            log.warning("a node that no list shows is there", node=pair.name)
            return False
        if cause in WORDS or step.over:
            return True
        if self._guard.admit(pair.name):
            self._held.discard(pair.name)
            return True
        self._held.add(pair.name)
        return False

    async def _there(self, pair: Pair) -> bool:
        """Kubernetes has the machine, and it is still called so in Slurm."""
        try:
            node = await self._kube.node(home(pair))
        except NotFound:
            return False
        return pair.name in names(node, naming(self._watch.nodes.values()))

    def _put_off(self, name: SlurmNode, error: Exception, longest: float = LONGEST) -> None:
        before = self._trouble.get(name)
        pause = min(longest, 2 * before.pause if before is not None else TICK)
        self._written = self._now()  # perhaps
        self._trouble[name] = _Trouble(self._now() + pause, pause)
        log.warning("a node is looked at again", node=name, error=str(error), seconds=pause)

    def _tell(self, outlooks: Iterable[Outlook]) -> None:
        """What is new goes to the log; how many there are of each, to the metrics."""
        said: dict[SlurmNode, tuple[str, ...]] = {}
        counts: Counter[str] = Counter()
        drains: set[SlurmNode] = set()
        for one in outlooks:
            if any(isinstance(step, DrainNode) for step in one.steps):
                drains.add(one.name)
            counts.update(verdict.reason.value for verdict in one.verdicts)
            said[one.name] = tuple(verdict.reason.value for verdict in one.verdicts)
            before = self._said.get(one.name, ())
            for verdict in one.verdicts:
                if verdict.reason.value not in before:
                    log.info(verdict.text, node=one.name, reason=verdict.reason.value)
        for name in self._held - drains:
            self._guard.relent(name)
            self._held.discard(name)
        for reason in {*counts, *(r for reasons in self._said.values() for r in reasons)}:
            NODES.labels(reason).set(counts[reason])
        self._said = said
