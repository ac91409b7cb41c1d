"""How much those who ask may make us do: nobody proves who he is at this port."""

from __future__ import annotations

from collections.abc import Callable


class Budget:
    """At most `rate` a second, and at most so many at once. `clock` is monotonic."""

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        self._rate, self._clock = rate, clock
        self._left, self._at = rate, clock()

    def spend(self) -> bool:
        now = self._clock()
        self._left = min(self._rate, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
