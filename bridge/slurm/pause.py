"""The pause between two polls, which word from outside may cut short.

In: how long, and how long at least. Out: when it is time for the next poll. What must stay true: however many hints
come, no pause is shorter than its least length.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

HURRY: Final = 0.5  # seconds: a hint may come before the change that it tells of


class Pause:
    def __init__(self, monotonic: Callable[[], float], sleep: Callable[[float], Awaitable[None]]) -> None:
        self._now, self._sleep = monotonic, sleep
        self._until = 0.0
        self._hinted = False
        self._sleeping: asyncio.Timeout | None = None

    def hint(self) -> None:
        """Something changes about now: for a moment every pause is as short as it may be."""
        self._until = self._now() + HURRY
        self._hinted = True
        if self._sleeping is not None:
            self._sleeping.reschedule(asyncio.get_running_loop().time())
            self._sleeping = None

    async def take(self, usual: float, least: float) -> None:
        began = self._now()
        if began >= self._until:
            self._hinted = False
            await self._slept_or_hinted(usual)
        if self._hinted:
            await self._sleep(max(began + least - self._now(), 0.0))

    async def _slept_or_hinted(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(None) as self._sleeping:
                await self._sleep(seconds)
        except TimeoutError:
            pass  # hinted
        finally:
            self._sleeping = None
