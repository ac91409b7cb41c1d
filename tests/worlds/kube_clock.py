"""Time that only a test moves."""

from __future__ import annotations

import asyncio
import heapq
import itertools

SETTLE = 60  # turns of the loop after which everything that could run has run


class VirtualClock:
    """`time()` is both the monotonic and (plus `epoch`) the Unix clock; `sleep` wakes when `advance` gets there."""

    def __init__(self, start: float = 1000.0, epoch: float = 1_700_000_000.0) -> None:
        self._time = start
        self._epoch = epoch
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def time(self) -> float:
        return self._time

    def unix(self) -> float:
        return self._epoch + self._time

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._time + seconds, next(self._order), woken))
        await woken

    async def settle(self) -> None:
        """Let everything run that doesn't wait for time."""
        for _ in range(SETTLE):
            await asyncio.sleep(0)

    async def advance(self, seconds: float) -> None:
        """Move on, waking each sleeper at its own moment."""
        end = self._time + seconds
        await self.settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            when, _, woken = heapq.heappop(self._sleepers)
            if woken.done():
                continue
            self._time = max(self._time, when)
            woken.set_result(None)
            await self.settle()
        self._time = end
        await self.settle()
