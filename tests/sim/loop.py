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


class _Jump(selectors.SelectSelector):
    """Instead of waiting for `timeout`, moves the clock by it. Nothing in a simulation has a socket."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("deadlock: nothing can run and no timer is set")
        if timeout > 0:
            self.now += timeout
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
