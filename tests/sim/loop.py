"""An event loop whose time is virtual: when nothing can run, the clock jumps to the next timer.

Hours take milliseconds. Everything that waits with asyncio (sleeps, time-outs, pools) follows, and a schedule with one
seed repeats exactly. No selector, no sockets, no debug mode, and timers that compare as the numbers they are: asyncio's
own loop takes a quarter of the time of a schedule.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
START = 1_000.0  # seconds
SAME = 1e-9  # seconds between two timers that are due together
ROUNDS = 20_000  # of the loop without a moment passing: far more than the busiest moment takes


class Stuck(Exception):
    """Nothing will ever happen any more, or everything happens at once."""


class _Callback(float):
    """As asyncio.TimerHandle; the number is its time, on the loop's clock."""

    __slots__ = ("args", "call", "context")
    call: Callable[..., object] | None
    args: tuple[Any, ...]
    context: contextvars.Context

    def cancel(self) -> None:
        self.call, self.args = None, ()

    def cancelled(self) -> bool:
        return self.call is None

    def when(self) -> float:
        return float(self)


class VirtualLoop(asyncio.BaseEventLoop):
    """Of BaseEventLoop's own machinery only what creates tasks and shuts down is used."""

    def __init__(self) -> None:
        super().__init__()
        self._now = START
        self._rounds = 0  # at this moment
        self._due: deque[_Callback] = deque()
        self._timers: list[_Callback] = []  # a heap

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> _Callback:
        handle = _Callback()
        handle.call, handle.args = callback, args
        handle.context = contextvars.copy_context() if context is None else context
        self._due.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there is one thread

    def call_at(  # type: ignore[override]
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> _Callback:
        handle = _Callback(when)
        handle.call, handle.args = callback, args
        handle.context = contextvars.copy_context() if context is None else context
        heapq.heappush(self._timers, handle)
        return handle

    def call_later(  # type: ignore[override]
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> _Callback:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def _run_once(self) -> None:
        """All that is due now, after a jump to the next timer where nothing is."""
        due, timers = self._due, self._timers
        while timers and timers[0].call is None:
            heapq.heappop(timers)
        self._rounds += 1
        if not due and not self._stopping:  # type: ignore[attr-defined]
            if not timers:
                raise Stuck("nothing can run and no timer is set")
            if timers[0] > self._now:
                self._now, self._rounds = float(timers[0]), 0
        if self._rounds > ROUNDS:
            raise Stuck(f"something goes round in circles at {self._now:.2f} s")
        while timers and timers[0] < self._now + SAME:
            due.append(heapq.heappop(timers))
        for _ in range(len(due)):
            handle = due.popleft()
            if handle.call is None:
                continue
            try:
                handle.context.run(handle.call, *handle.args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:
                self.call_exception_handler({"message": f"exception in {handle.call}", "exception": error})


def run(main: Coroutine[Any, Any, T]) -> T:
    """Like asyncio.run, in virtual time. Garbage is collected afterwards: what that ends would come at any moment."""
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(main)
    finally:
        gc.enable()
