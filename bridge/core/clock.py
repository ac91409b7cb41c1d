"""slurmctld's clock, by what it says now and then: which time counts where that and our own do not go on alike.

In: what it said, and when. Out: what to add to our monotonic clock. What must stay true: a clock that is wrong for some
seconds, theirs or ours, ends nobody, and one that was set is followed. Whatever time alone decides waits until a moment
has passed, so the earlier of two times is the careful one.
"""

from __future__ import annotations

from dataclasses import dataclass

DRIFT = 5.0  # seconds that count at once: clocks are set right by as much
STOOD = 60.0  # seconds that a larger step must stand before the later time counts


@dataclass(frozen=True, slots=True)
class SlurmClock:
    """`ahead`: of our monotonic clock, in seconds; begin with that of our own wall clock."""

    ahead: float
    other: float | None = None  # what it says instead
    since: float = 0.0  # and from when on, monotonic

    @property
    def earliest(self) -> float:
        """What to reckon with, as `ahead`."""
        return self.ahead if self.other is None else min(self.ahead, self.other)

    def told(self, ahead: float, at: float, took: float = 0.0) -> SlurmClock:
        """It was so far ahead, `at` that moment, or up to `took` seconds before: so long the answer took."""
        if -DRIFT <= self.ahead - ahead <= DRIFT + took:
            return SlurmClock(ahead if took < DRIFT else self.ahead)
        if self.other is None or abs(ahead - self.other) > DRIFT:
            return SlurmClock(self.ahead, ahead, at)
        if at - self.since >= STOOD:
            return SlurmClock(ahead)
        return SlurmClock(self.ahead, ahead, self.since)
