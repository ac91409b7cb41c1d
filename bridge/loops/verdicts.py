"""What was last said of each group, and for how long it has been so: the log lines and the metrics of waits.

Goes in: the verdict of each look. Comes out: one log line a change; per reason the number of groups and the longest
time that one of them has been in it, so that every wait can have an alert.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bridge.core.model import GroupKey
from bridge.core.verdict import Reason, Verdict
from bridge.log import logger
from bridge.metrics import DECISIONS, GROUPS, LONGEST

log = logger("groups")


@dataclass(frozen=True, slots=True)
class _Said:
    verdict: Verdict
    since: float  # monotonic: when the reason became this one


class Verdicts:
    """`clock` is monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._said: dict[GroupKey, _Said] = {}

    def say(self, key: GroupKey, verdict: Verdict) -> None:
        DECISIONS.labels(verdict.reason.value).inc()
        before = self._said.get(key)
        if before is not None and before.verdict == verdict:
            return
        same = before is not None and before.verdict.reason == verdict.reason
        self._said[key] = _Said(verdict, before.since if before is not None and same else self._clock())
        log.info(verdict.text, group=f"{key.namespace}/{key.name}", reason=verdict.reason.value)

    def forget(self, key: GroupKey) -> None:
        self._said.pop(key, None)

    def forget_all(self) -> None:
        """Another replica decides from now on."""
        self._said.clear()

    def measure(self) -> None:
        """Sets the gauges."""
        now = self._clock()
        counts = dict.fromkeys(Reason, 0)
        longest = dict.fromkeys(Reason, 0.0)
        for said in self._said.values():
            reason = said.verdict.reason
            counts[reason] += 1
            longest[reason] = max(longest[reason], now - said.since)
        for reason, count in counts.items():
            GROUPS.labels(reason.value).set(count)
            LONGEST.labels(reason.value).set(longest[reason])
