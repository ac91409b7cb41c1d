"""LIST, then WATCH from the list's version, for as long as the process lives.

Goes in: a kind and a client. Comes out: calls of a Sink (`bridge.kube.table`), in the API server's order.
What must stay true: no change is lost. A watch that ends, silently or not, is opened again at the last
version seen; where the history has expired (410) everything is listed again and what is missing is gone. What was lost
without a sign is found by a list every few minutes.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from bridge.errors import BridgeError, Busy, Gone, ProtocolError, UnknownOutcome
from bridge.kube.client import CHUNK, KubeClient
from bridge.kube.kinds import Kind
from bridge.kube.table import Sink
from bridge.kube.view import Event

log = logging.getLogger(__name__)
T = TypeVar("T")

WATCH_SECONDS = (
    90.0  # long enough for a bookmark, which comes after about 60 s; short enough to notice silence
)
SILENCE_MARGIN = 10.0  # seconds beyond the server's own end of the watch
BACKOFF_FIRST, BACKOFF_MAX = 0.2, 10.0  # seconds
RELIST = 300.0  # seconds after a list: an event that was lost without a sign must not be lost for ever
MUTE = 80.0  # seconds; a bookmark comes every minute, so a watch that stays silent for longer watches nothing of ours
SHORT_WATCH = 1.0  # seconds; one that ends sooner and says nothing counts as a failure
EVENTS_A_BREATH, BYTES_A_BREATH = 64, 262_144  # then the loop gets its turn: about 5 ms


class Informer(Generic[T]):
    """`run()` never returns; it raises only what a callback of the sink raises. `jitter` is uniform in [0,
    1).
    """

    def __init__(
        self,
        client: KubeClient,
        kind: Kind[T],
        sink: Sink[T],
        *,
        chunk: int = CHUNK,
        watch_seconds: float = WATCH_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._client = client
        self._kind = kind
        self._sink = sink
        self._chunk = chunk
        self._watch_seconds = watch_seconds
        self._clock = clock
        self._sleep = sleep
        self._jitter = jitter
        self._version = ""  # where the next watch resumes
        self._failures = 0
        self._fresh = float("-inf")
        self._synced = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._list_wanted = True
        self._begun = self._completed = 0  # lists, by the order in which they began
        self._list_done = asyncio.Event()
        self.lists = 0  # complete ones
        self.list_started = float("-inf")  # monotonic, of the last complete list
        self.list_finished = float("-inf")
        self.last_error: BridgeError | None = None  # None once things work again

    def age(self) -> float:
        """Seconds since we last knew that we were current; infinite before the first list."""
        return self._clock() - self._fresh

    def notes(self) -> list[str]:
        """For /readyz, once two tries in a row have failed: it is blind."""
        if self._failures < 2 or self.last_error is None or not self.lists:
            return []
        text = f"{self._kind.name} are as they were {self.age():.0f} s ago; nothing that runs is touched"
        return [f"Kubernetes: {text}: {self.last_error}"]

    async def wait_synced(self) -> None:
        """Until the first complete list."""
        await self._synced.wait()

    async def relist(self) -> None:
        """Leave the watch for a list that begins after this call; returns when it is complete."""
        wanted = self._begun + 1
        self._list_wanted = True
        if self._watching is not None:
            self._watching.cancel()
        while self._completed < wanted:
            await self._list_done.wait()

    async def run(self) -> None:
        while True:
            try:
                if self._list_wanted:
                    await self._list()
                else:
                    await self._watch_until_list_wanted()
            except Gone as error:
                self._failed(error)
                self._list_wanted = True
                if self._failures > 1:  # one 410 is ordinary; a chain of them must not become a list storm
                    await self._sleep(self._pause())
            except ProtocolError as error:
                self._failed(error)
                self._list_wanted = True  # we can't know what we failed to read
                await self._sleep(self._pause())
            except Busy as error:
                self._failed(error)
                await self._sleep(max(error.retry_after, self._pause()))
            except BridgeError as error:
                self._failed(error)
                await self._sleep(self._pause())

    async def _list(self) -> None:
        started = self._clock()
        self._begun += 1
        begun, version = self._begun, ""
        self._list_wanted = False
        try:
            self._sink.begin()
            async for page in self._client.pages(self._kind, self._chunk):
                await asyncio.sleep(0)  # decoding took its time
                for item in page.items:
                    self._sink.put(item)
                version = page.version
                await asyncio.sleep(0)
        except BaseException:
            self._list_wanted = True  # half a list says nothing about what is missing
            raise
        self._sink.end()
        self._version = version
        self.list_started, self.list_finished = started, self._clock()
        self.lists += 1
        self._completed = begun
        self._current(started)
        self._synced.set()
        self._list_done.set()
        self._list_done = asyncio.Event()

    async def _watch_until_list_wanted(self) -> None:
        self._watching = asyncio.ensure_future(self._watch())
        try:
            await self._watching
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if not self._list_wanted or (me is not None and me.cancelling()):
                raise  # it was us who were cancelled, not the watch by `relist`
        finally:
            self._watching = None

    async def _watch(self) -> None:
        opened = self._clock()
        heard = False
        # Spread, so that replicas and kinds don't beat together.
        seconds = self._watch_seconds * (1 + self._jitter() / 3)
        silence = seconds + SILENCE_MARGIN
        async with self._client.watch(self._kind, self._version, seconds=seconds, silence=silence) as lines:
            self._current(self._clock())
            self._sink.watching(True)
            count = size = 0
            try:
                async for line in lines:
                    heard = True
                    self._apply(self._kind.event(line))
                    count, size = count + 1, size + len(line)
                    if count >= EVENTS_A_BREATH or size >= BYTES_A_BREATH:
                        count = size = 0
                        await asyncio.sleep(0)
            finally:
                self._sink.watching(False)
        lasted = self._clock() - opened
        if not heard and lasted < SHORT_WATCH:
            raise UnknownOutcome(f"the watch of {self._kind.name} ended at once")
        if self._clock() - self.list_finished > RELIST or (not heard and lasted > MUTE):
            self._list_wanted = True

    def _apply(self, event: Event[T]) -> None:
        if event.type == "ERROR":
            text = f"watch {self._kind.name}: {event.code} {event.reason}: {event.message}"
            if event.code == 410:
                raise Gone(text, status=410, code=event.reason)
            raise UnknownOutcome(text, status=event.code, code=event.reason)
        if _older(event.version, self._version):
            raise Gone(f"watch {self._kind.name}: history went back to {event.version}", status=410)
        if event.object is not None:
            if event.type == "DELETED":
                self._sink.drop(event.object)
            else:
                self._sink.put(event.object)
        self._version = event.version or self._version
        self._failures = 0
        self._current(self._clock())

    def _current(self, at: float) -> None:
        self._fresh = at
        self.last_error = None
        self._sink.fresh(at)

    def _failed(self, error: BridgeError) -> None:
        self._failures += 1
        self.last_error = error
        again = self._failures & (
            self._failures - 1
        )  # 0 at every doubling: a right that is missing may stay so
        level = logging.DEBUG if again else logging.INFO if self._failures == 1 else logging.WARNING
        log.log(level, "watching %s: %s: %s", self._kind.name, type(error).__name__, error)

    def _pause(self) -> float:
        """Full range [half, whole] of a doubling time: replicas that lost the same API server spread out."""
        whole = min(BACKOFF_MAX, BACKOFF_FIRST * 2.0 ** min(self._failures - 1, 16))
        return whole * (0.5 + self._jitter() / 2)


def _older(one: str, other: str) -> bool:
    """A version below the one we resumed from: etcd was restored, and later events would be hidden."""
    return one.isdigit() and other.isdigit() and int(one) < int(other)
