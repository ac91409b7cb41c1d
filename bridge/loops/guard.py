"""The breaker at work: asked before pods are deleted, orphans ended and nodes drained.

Who looks at /readyz, the metrics, the log or the Events of the Lease sees that it is open, what it holds back, how it
closes by itself, and the command that closes it. Whoever may annotate the Lease may give that command.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Protocol

from prometheus_client import Gauge

from bridge.core.breaker import MOST, SHARE, Breaker, Key, admit, commanded, prune, release, relent
from bridge.core.lease import LeaseRecord
from bridge.kube.client import KubeClient
from bridge.kube.view import stamp
from bridge.log import logger
from bridge.metrics import BREAKER, BREAKER_NODES
from bridge.names import CLOSE_BREAKER_ANNOTATION, COMPONENT

log = logger("breaker")
OPENED, CLOSED = "BreakerOpen", "BreakerClosed"  # reasons of Events
TICK = 1.0  # seconds between Events: one about the opening tells again when more are held back
NAMED = 5  # jobs or nodes in an Event
UNTOLD = 16  # Events that wait for their turn; more than that are a flutter that nobody would read


class Tell(Protocol):
    """An Event on the bridge's Lease; no failure of one ever reaches the caller."""

    def __call__(self, reason: str, text: str, *, warning: bool) -> Awaitable[None]: ...


@dataclass(slots=True)
class _Kind:
    """Jobs, or nodes: a breaker of their own, and of how many."""

    what: str  # "job" or "node", in sentences
    done: str  # what is not done while it is open
    population: Callable[[], int]
    gauge: Gauge
    breaker: Breaker = field(default_factory=Breaker)
    worst: int = 0  # held back at the same time since it opened
    told: int = 0  # of them in the last Event
    first: tuple[Key, ...] = ()


class Guard:
    """`jobs` says how many have pods on nodes, `nodes` how many there are in all.

    `clock` is monotonic, `wall` Unix seconds. `command` is what people type to close the breaker, "" where nobody would
    read it.
    """

    def __init__(
        self,
        *,
        jobs: Callable[[], int],
        nodes: Callable[[], int],
        tell: Tell,
        command: str,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._jobs = _Kind("job", "their pods are not deleted, nor orphans ended", jobs, BREAKER)
        self._nodes = _Kind("node", "they are not drained", nodes, BREAKER_NODES)
        self._tell = tell
        self._command = command
        self._clock = clock
        self._started = wall()
        self._asked: str | None = (
            None  # the annotation at the last reading of the Lease; None before the first
        )
        self._untold: deque[Callable[[], Awaitable[None]]] = deque(maxlen=UNTOLD)
        self._closed: Callable[[], None] = lambda: None

    def on_closed(self, closed: Callable[[], None]) -> None:
        """Who is to look again as soon as the breaker lets through what it held back."""
        self._closed = closed

    # --- questions --------------------------------------------------------------------------------

    def admit(self, key: Key, evidence: object = None) -> bool:
        """May this node be drained, this job's pods deleted, or this orphan ended, now? See `core.breaker`."""
        kind = self._kind(key)
        breaker, through = admit(kind.breaker, key, kind.population(), self._clock(), evidence)
        self._settle(kind, breaker, "two further looks at each say the same; it is done now")
        return through

    def relent(self, key: Key) -> None:
        """Nothing is to be done about this job or node any more."""
        kind = self._kind(key)
        self._settle(kind, relent(kind.breaker, key), "the reasons are gone; nothing was done")

    def notes(self) -> list[str]:
        """For /readyz."""
        self._prune()
        return [
            f"breaker open: {_count(len(kind.breaker.held), kind)} held back and looked at again"
            + (f"; if it is right that all of it happens: {self._command}" if self._command else "")
            for kind in (self._jobs, self._nodes)
            if kind.breaker.open
        ]

    # --- the command ------------------------------------------------------------------------------

    def lease_seen(self, record: LeaseRecord) -> None:
        """A reading of the Lease, whoever holds it."""
        value = record.annotations.get(CLOSE_BREAKER_ANNOTATION, "")
        before, self._asked = self._asked, value
        if commanded(value, before, self._started):
            self._close(value)
        elif before is not None and value not in ("", before):
            log.warning("the command to close the breaker is older than this process: ignored", value=value)

    def _close(self, value: str) -> None:
        held = len(self._jobs.breaker.held) + len(self._nodes.breaker.held)
        log.info("commanded to close the breaker", value=value, held=held)
        for kind in (self._jobs, self._nodes):
            self._settle(
                kind, release(kind.breaker, self._clock()), "an operator said so; it is done at the next look"
            )

    # --- telling ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Sends the Events; for ever."""
        while True:
            await asyncio.sleep(TICK)
            self._prune()
            for kind in (self._jobs, self._nodes):
                if kind.breaker.open and 0 < kind.told < kind.worst:
                    self._untold.append(partial(self._tell_opened, kind))
            while self._untold:
                await self._untold.popleft()()

    async def _tell_opened(self, kind: _Kind) -> None:
        kind.told = kind.worst
        await self._tell(OPENED, self._opened(kind), warning=True)

    def _kind(self, key: Key) -> _Kind:
        return self._nodes if isinstance(key, str) else self._jobs

    def _prune(self) -> None:
        for kind in (self._jobs, self._nodes):
            self._settle(kind, prune(kind.breaker, self._clock()), "nobody asks about them any more")

    def _settle(self, kind: _Kind, after: Breaker, why: str) -> None:
        before, kind.breaker = kind.breaker, after
        held = len(after.held)
        kind.gauge.set(held)
        if after.open and not before.open:
            kind.worst = kind.told = 0
            log.error(
                "the breaker opens",
                why=f"too many {kind.what}s at once; {kind.done}",
                first=next(iter(after.held)),
            )
            self._untold.append(partial(self._tell_opened, kind))
        if held > kind.worst:
            kind.worst, kind.first = held, tuple(islice(after.held, NAMED))
        if before.open and not after.open:
            text = f"{_count(len(before.held), kind)} no longer held back: {why}"
            log.warning("the breaker closes", why=text)
            self._untold.append(lambda: self._tell(CLOSED, text, warning=False))
            self._closed()

    def _opened(self, kind: _Kind) -> str:
        named = ", ".join(str(key) for key in kind.first) + (", …" if kind.worst > len(kind.first) else "")
        text = (
            f"{_count(kind.worst, kind)} held back ({named}): more than {MOST} and {SHARE:.0%} of "
            f"{kind.population()} at once may be an accident. Until two further looks at each say the same, {kind.done}"
        )
        return f"{text}. If it is right that all of it happens: {self._command}" if self._command else text


def _count(number: int, kind: _Kind) -> str:
    return f"{number} {kind.what}s are" if number != 1 else f"1 {kind.what} is"


# --- the other end of the command -------------------------------------------------------------------


def command(namespace: str) -> str:
    """What people type."""
    word = f"{CLOSE_BREAKER_ANNOTATION}=$(date -u +%FT%TZ)"
    return f"kubectl -n {namespace} annotate lease {COMPONENT} --overwrite {word}"


async def ask_to_close(kube: KubeClient, namespace: str, now: float) -> str:
    """Writes the annotation that the leader looks for. Returns what happens next, for people."""
    when = stamp(now)
    await kube.annotate_lease(namespace, COMPONENT, {CLOSE_BREAKER_ANNOTATION: when})
    return (
        f"Lease {namespace}/{COMPONENT} is annotated {CLOSE_BREAKER_ANNOTATION}={when}.\n"
        "The leader reads it within seconds. What its breaker holds back now is looked at once more, and happens if "
        "the reasons still hold.\nThe breaker stays armed for what comes later. What came of it: "
        f"kubectl -n {namespace} get events --field-selector involvedObject.kind=Lease"
    )
