"""A queue of keys: each at most once in it, never two workers on one key, delays, back-off.

`add(key)` while a worker has the key makes it come again afterwards, so no event is lost. Urgent keys come first: what
Slurm has granted holds GPUs, what is new can wait. In: hashable keys; out: keys.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

FIRST_RETRY = 0.2  # seconds
LONGEST_RETRY = 30.0
SHORTEST = 0.01  # seconds: time must pass between two looks that only wait for it


class KeyedQueue(Generic[K]):
    def __init__(self) -> None:
        self._urgent: deque[K] = deque()
        self._ready: deque[K] = deque()
        self._waiting: set[K] = set()  # in one of the two
        self._busy: set[K] = set()  # with a worker
        self._again: dict[K, bool] = {}  # added while busy → urgent
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._work = asyncio.Semaphore(0)  # one for each that waits: it wakes one worker, not all

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: K, *, urgent: bool = False) -> None:
        if key in self._busy:
            self._again[key] = urgent or self._again.get(key, False)
        elif key not in self._waiting:
            self._waiting.add(key)
            (self._urgent if urgent else self._ready).append(key)
            self._work.release()
        elif urgent and key not in self._urgent:
            self._urgent.append(key)  # its place in the other line is skipped when it comes up

    def add_after(self, key: K, delay: float) -> None:
        """Come again in `delay` seconds at the latest: the nearest of several wishes counts."""
        delay = max(delay, SHORTEST)
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= loop.time() + delay:
                return
            timer.cancel()
        self._timers[key] = loop.call_later(delay, self._ring, key)

    def _ring(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def retry(self, key: K, at_least: float = 0.0) -> float:
        """Back-off after a failure: 0.2 s, doubling to 30 s. Returns the delay."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay = max(at_least, min(LONGEST_RETRY, FIRST_RETRY * 2.0 ** min(failures, 10)))
        self.add_after(key, delay)
        return delay

    def succeeded(self, key: K) -> None:
        self._failures.pop(key, None)

    async def get(self) -> K:
        """The next key; the caller must call done(key)."""
        await self._work.acquire()
        while True:
            key = self._urgent.popleft() if self._urgent else self._ready.popleft()
            if key in self._waiting:
                self._waiting.discard(key)
                self._busy.add(key)
                return key

    def done(self, key: K) -> None:
        self._busy.discard(key)
        urgent = self._again.pop(key, None)
        if urgent is not None:
            self.add(key, urgent=urgent)

    def forget(self, key: K) -> None:
        """Nothing is left to remember about this key."""
        self._failures.pop(key, None)
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
