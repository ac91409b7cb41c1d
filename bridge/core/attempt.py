"""The attempt annotation: how often a group lost its grant, which nodes it no longer wants, since when.

Read from a pod, written after a lost grant only; a pod without it is at attempt 0. JSON:
{"attempt": 2, "excluded": ["n1"], "closed": ["n2"], "since": 1790000000, "bare": true}. `excluded` refused the pod for
a reason only kube-scheduler knows; `closed` could no longer take it when Slurm gave them. Unreadable text counts as
attempt 0: chosen job ids make a repeated attempt harmless.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bridge.core.model import Group, Pod, SlurmNode
from bridge.names import ATTEMPT_ANNOTATION

LONGEST_WAIT = 60.0  # seconds
EXCLUSION_LIFE = 600.0  # seconds after the last lost grant until a node that refused the pod is tried again
LONGEST_TEXT = 100_000  # characters
MOST = 1000  # a number that somebody wrote by hand must not cost us anything


@dataclass(frozen=True, slots=True)
class Attempt:
    number: int = 0
    excluded: tuple[SlurmNode, ...] = ()
    closed: tuple[SlurmNode, ...] = ()
    since: float = 0.0
    bare: bool = (
        False  # nothing is put on top of the user's time limit: with that the job would wait for ever
    )
    spared: int = 0  # of the number: nothing was lost, but a member of the gang was replaced before the start

    def next(
        self, *, refused: Sequence[SlurmNode] = (), closed: Sequence[SlurmNode] = (), now: float
    ) -> Attempt:
        return Attempt(
            self.number + 1,
            tuple(dict.fromkeys((*self.excluded, *refused))),
            tuple(dict.fromkeys((*self.closed, *closed))),
            now,
            self.bare,
            self.spared,
        )

    def afresh(self, *, now: float) -> Attempt:
        """The next one, for other members of the same gang: no grant was lost."""
        return replace(self, number=self.number + 1, since=now, spared=self.spared + 1)

    @property
    def lost(self) -> int:
        return self.number - self.spared

    def wait(self, now: float) -> float:
        """Seconds still to wait before this attempt's submit: 1, 2, 4 … 60 after the lost grant."""
        if self.number == 0:
            return 0.0
        pause = min(LONGEST_WAIT, 2.0 ** min(max(self.lost - 1, 0), 10))
        waited = now - self.since
        # A clock that was set back, or another machine's that is behind, must not stop the pod until it has caught up.
        return max(0.0, pause - max(0.0, waited)) if waited > -pause else 0.0

    def avoided(self, opens: Callable[[SlurmNode], bool], now: float) -> tuple[SlurmNode, ...]:
        """The nodes that the next job must not get: a cause that is gone no longer counts. `opens`: the node can take
        the pod now, as far as is known."""
        young = 0 <= now - self.since < EXCLUSION_LIFE
        still = (name for name in self.closed if not opens(name))
        return tuple(dict.fromkeys((*(self.excluded if young else ()), *still)))


def render(attempt: Attempt) -> str:
    body = {
        "attempt": attempt.number,
        "excluded": list(attempt.excluded),
        "closed": list(attempt.closed),
        "since": round(attempt.since, 3),
    }
    if attempt.bare:
        body["bare"] = True
    if attempt.spared:
        body["spared"] = attempt.spared
    return json.dumps(body, separators=(",", ":"))


def parse(text: str) -> Attempt:
    """Anybody who may edit the pod may have written this: whatever it is, the answer is an attempt."""
    if not text or len(text) > LONGEST_TEXT:
        return Attempt()
    try:
        body: Any = json.loads(text)
        since = float(body.get("since", 0))
        number = min(max(int(body["attempt"]), 0), MOST)
        return Attempt(
            number,
            tuple(SlurmNode(str(n)) for n in body.get("excluded", ())),
            tuple(SlurmNode(str(n)) for n in body.get("closed", ())),
            since if math.isfinite(since) else 0.0,
            body.get("bare") is True,
            min(max(int(body.get("spared", 0)), 0), number),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return Attempt()


def of_pod(pod: Pod) -> Attempt:
    return parse(pod.annotations.get(ATTEMPT_ANNOTATION, ""))


def of_group(group: Group, at_least: int = 0) -> Attempt:
    """The furthest attempt any member knows, as writing it stops at the first failure; or that a job is known of."""
    found = (of_pod(pod) for pod in group.pods)
    furthest = max(found, key=lambda attempt: attempt.number, default=Attempt())
    return furthest if furthest.number >= at_least else replace(furthest, number=at_least)
