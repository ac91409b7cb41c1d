"""slurmctld's time between two looks at its clock. What of that clock is believed is decided in `bridge.core.clock`."""

from __future__ import annotations

import logging
from collections.abc import Callable

from bridge.core.clock import SlurmClock

log = logging.getLogger("bridge.slurm")


class Clock:
    """`monotonic` and `wall` (Unix seconds) are ours."""

    def __init__(self, monotonic: Callable[[], float], wall: Callable[[], float]) -> None:
        self._monotonic, self._wall = monotonic, wall
        self._known: SlurmClock | None = None  # None: not asked yet

    def now(self) -> float:
        """Unix seconds by slurmctld's clock, by ours before it was asked."""
        return self._wall() if self._known is None else self._monotonic() + self._known.earliest

    def told(self, time: float, asked: float) -> None:
        """It has just answered with that `time` (Unix seconds) to a question of that moment (monotonic)."""
        at = self._monotonic()
        before = self._known or SlurmClock(self._wall() - at)
        self._known = before.told(time - at, at, at - asked)
        if self._known.other is not None and self._known.since == at:
            step = time - at - before.ahead
            log.warning("slurmctld's clock has jumped by %.0f s, or ours: the earlier time counts", step)
