"""Leader election on one Lease; the decisions are `core.lease`, here are only the calls and the clock.

What must stay true: `leading` is False at the latest `renew_deadline` seconds after the last renewal that
succeeded was *sent*, whatever the API server does; others wait for `duration` seconds without a change. And it is
False as soon as a reading shows a generation that isn't ours.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from bridge.core.lease import (
    DURATION,
    LOOK,
    RENEW_DEADLINE,
    RETRY,
    Generation,
    LeaseRecord,
    LeaseRef,
    acquired,
    decide,
    released,
    renewed,
)
from bridge.errors import BridgeError, Conflict, NotFound
from bridge.kube.client import KubeClient
from bridge.log import logger
from bridge.metrics import OFFICE

log = logger("leader")
CALL_TIMEOUT = (
    2.5  # seconds, of one call: after one that hung, a reading and a write still fit into the deadline
)
RELEASE_TIMEOUT = 2.0  # seconds that each of two calls of a clean shutdown may take


class Leader:
    """`identity` names this process and survives its restart: a Lease of its former life is taken over at once.

    `run()` competes until it is cancelled, then releases. `clock` is monotonic, `now` Unix seconds. `seen` is told of
    every reading of the Lease; `tell` has the annotations of a renewal, by the seconds for which we have led.
    """

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        name: str,
        identity: str,
        *,
        duration: float = DURATION,
        renew_deadline: float = RENEW_DEADLINE,
        retry: float = RETRY,
        look: float = LOOK,
        seen: Callable[[LeaseRecord], None] = lambda _: None,
        tell: Callable[[float], Mapping[str, str]] = lambda _: {},
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if not retry < renew_deadline < duration:
            raise ValueError("needs retry < renew_deadline < duration")
        self._client = client
        self._namespace, self._name = namespace, name
        self._duration = max(1, round(duration))
        self._renew_deadline = renew_deadline
        self._retry, self._look = retry, look
        self._seen, self._tell = seen, tell
        self._clock = clock
        self._now = now
        self._sleep = sleep
        self._record: LeaseRecord | None = None
        self._seen_changed_at = float("-inf")
        self._known = False  # the record is what the API server has, as far as we know
        self._ours: frozenset[Generation] | None = None  # see `core.lease.decide`; None = nothing read yet
        self._contested = False  # the last write met a conflict
        self._alone_from = float("-inf")  # until then a twin whose Lease we took at once may lead on
        self._until = float("-inf")
        self._in_office = False  # as log and metric have told it
        self._elected_at = float("-inf")
        self.identity = identity

    @property
    def leading(self) -> bool:
        return self._clock() < self._until

    @property
    def holder(self) -> str:
        """Who leads, as far as we have seen; "" = nobody."""
        return self._record.holder if self._record else ""

    @property
    def lease(self) -> LeaseRef:
        uid = self._record.uid if self._record else ""
        return LeaseRef(namespace=self._namespace, name=self._name, uid=uid)

    async def run(self) -> None:
        try:
            while True:
                try:
                    pause = await self._turn()
                except BridgeError as error:
                    log.warning(
                        "the Lease can't be read or written; tried again",
                        lease=f"{self._namespace}/{self._name}", error=f"{type(error).__name__}: {error}",
                    )  # fmt: skip
                    self._known = False
                    pause = self._look if self.leading else self._retry
                self._settle("lapsed")
                if self._until > self._clock():
                    pause = min(pause, self._until - self._clock())
                await self._sleep(pause)
        finally:
            await self._release()

    async def _turn(self) -> float:
        """One look and at most one write. Returns the seconds until the next."""
        if not self._known:
            await self._read()
        ours = self._ours or frozenset()
        decision = decide(self._record, self._clock(), self._seen_changed_at, leading=self.leading, ours=ours)
        match decision.action:
            case "lost":
                self._until = float("-inf")
                self._settle("ousted")
                self._known = False
                return self._look
            case "wait":
                self._known = self._contested = False  # only a fresh reading can tell whether it was renewed
                return min(decision.seconds, self._look)
            case "acquire":
                wanted = acquired(self._record, self.identity, self._now(), self._duration)
                former = ours & {self._record.generation} if self._record else frozenset()
                if former:
                    self._alone_from = self._clock() + self._duration
                self._ours = former | {wanted.generation}
            case "renew":
                assert self._record is not None
                told = self._tell(self._clock() - self._elected_at)
                wanted = renewed(self._record, self._now(), self._duration, told)
        sent = self._clock()
        try:
            confirmed = await self._write(wanted)
        except Conflict:
            # Somebody wrote since we read; the next reading says who, and is due at once while we lead.
            pause = 0.0 if self.leading and not self._contested else self._retry / 10
            self._contested = True
            return pause
        except NotFound:  # the namespace: nothing that a hurry would help
            return self._retry
        self._contested = False
        self._until = sent + self._renew_deadline
        if decision.action == "acquire":
            self._ours = frozenset({confirmed.generation})
            self._take_office(confirmed)
        return self._retry

    async def _read(self) -> None:
        found: LeaseRecord | None
        try:
            found = await self._client.lease(self._namespace, self._name, timeout=self._timeout())
        except NotFound:
            found = None
        # None: deleted, if we have ever seen one.
        if self._record is not None if found is None else not found.same_renewal(self._record):
            self._seen_changed_at = self._clock()
        if self._ours is None:
            former = found is not None and found.holder == self.identity
            self._ours = frozenset({found.generation} if found and former else ())
        self._learn(found)

    async def _write(self, record: LeaseRecord) -> LeaseRecord:
        call = self._client.update_lease if record.version else self._client.create_lease
        self._known = False  # until it is answered
        written = await call(self._namespace, self._name, record, timeout=self._timeout())
        self._seen_changed_at = self._clock()
        self._learn(written)
        return written

    def _learn(self, record: LeaseRecord | None) -> None:
        self._record, self._known = record, True
        if record is not None:
            self._seen(record)

    def _timeout(self) -> float:
        return min(CALL_TIMEOUT, self._renew_deadline / 2)

    def _take_office(self, record: LeaseRecord) -> None:
        log.info("leading", identity=self.identity, generation=record.generation)
        OFFICE.labels("won").inc()
        self._in_office, self._elected_at = True, self._clock()

    def _settle(self, how: str) -> None:
        """Let log and metric say what `leading` says."""
        if self.leading or not self._in_office:
            return
        now = self._record.generation if self._record else "none"
        log.warning("no longer leading", why=how, holder=self.holder or "nobody", generation=now)
        OFFICE.labels(how).inc()
        self._in_office = False

    async def _release(self) -> None:
        was, self._until = self.leading, float("-inf")
        self._settle("released")
        if not was or self._clock() < self._alone_from:
            return
        try:
            if not self._known:  # stopped while a renewal was under way: was it carried out?
                self._learn(await self._client.lease(self._namespace, self._name, timeout=RELEASE_TIMEOUT))
            if self._record is None or self._record.generation not in (self._ours or ()):
                return
            await self._client.update_lease(
                self._namespace, self._name, released(self._record, self._now()), timeout=RELEASE_TIMEOUT
            )
        except BridgeError as error:
            log.info("the Lease is not released, a successor waits it out", error=str(error))
