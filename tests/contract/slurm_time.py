"""A clock that stands still until a test moves it, for code that takes `monotonic` and `sleep` as arguments."""

from __future__ import annotations

import asyncio
import heapq
import itertools


class VirtualTime:
    """Hand out `now` and `sleep`; move with `advance`. Nothing here waits for real time."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def now(self) -> float:
        return self._now

    def jump(self, seconds: float) -> None:
        """Time passes inside a request: nobody is woken."""
        self._now += seconds

    async def sleep(self, seconds: float) -> None:
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + max(seconds, 0.0), next(self._order), future))
        await future

    async def advance(self, seconds: float) -> None:
        """Wake every sleeper whose time comes, in order, letting each finish what it does in between."""
        end = self._now + seconds
        await settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            due, _, future = heapq.heappop(self._sleepers)
            self._now = max(self._now, due)
            if not future.done():
                future.set_result(None)
            await settle()
        self._now = max(self._now, end)


async def settle() -> None:
    """Let every task run until it waits for something that isn't there yet; in-process requests need many turns."""
    for _ in range(100):
        await asyncio.sleep(0)
