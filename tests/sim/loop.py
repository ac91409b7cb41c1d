"""An event loop whose time is virtual: when nothing can run, the clock jumps to the next timer.

Hours take milliseconds. Everything that waits with asyncio (sleeps, time-outs, pools) follows, and a schedule with one
seed repeats exactly.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
START = 1_000.0  # seconds
ROUNDS = 20_000  # of the loop without a moment passing: far more than the busiest moment takes


class Stuck(Exception):
    """Nothing will ever happen any more, or everything happens at once."""


class _Jump(selectors.SelectSelector):
    """Instead of waiting for `timeout`, moves the clock by it. Nothing in a simulation has a socket."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self._rounds = 0  # at this moment

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stuck("nothing can run and no timer is set")
        self._rounds += 1
        if timeout > 0:
            self.now += timeout
            self._rounds = 0
        if self._rounds > ROUNDS:
            raise Stuck(f"something goes round in circles at {self.now:.2f} s")
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now


def run(main: Coroutine[Any, Any, T]) -> T:
    """Like asyncio.run, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
