"""The breaker: an accident must not delete every pod, or drain every node, at once, however convincing it looks.

One breaker counts jobs, whose pods are to be deleted or that are to be ended as orphans; another one counts nodes to
be drained. Above MOST of them and SHARE of all within WINDOW it opens: what it holds back is looked at again, and goes
through once CONFIRMATIONS further reads of each say the same, or once an operator says so. What a person or Slurm's own
rules do to jobs that were seen running (scancel, a time limit, a preemption) never asks it.

Values in, values out; `now` is monotonic seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from bridge.core.model import JobId, SlurmNode

WINDOW = 60.0  # seconds
MOST = 10  # in the window that nobody minds
SHARE = 0.2  # of all
CONFIRMATIONS = 2  # further full reads
PAUSE = 10.0  # seconds between two of them
EXPIRY = 60.0  # seconds after which one that nobody asks about any more is no longer held
REMEMBERED = 10_000  # held back; more than that are refused as well, and ask again when these are through

Key = JobId | SlurmNode


@dataclass(frozen=True, slots=True)
class Held:
    confirmations: int
    confirmed: float  # when the last one was counted, or when it was first held back
    asked: float
    evidence: object  # what was concluded from then


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """Both mappings begin with the oldest: the one let through, or asked about, longest ago."""

    struck: Mapping[Key, float] = field(default_factory=dict)  # let through → when
    held: Mapping[Key, Held] = field(default_factory=dict)

    @property
    def open(self) -> bool:
        return bool(self.held)


def admit(
    breaker: Breaker, key: Key, population: int, now: float, evidence: object = None
) -> tuple[Breaker, bool]:
    """May what was decided about this job or node be done now? Asked at every look until it is done.

    `evidence` is the record that was read: a look confirms only with another object than the last one. None: each look
    brings evidence of its own.
    """
    breaker = prune(breaker, now)
    if key in breaker.struck:
        return breaker, True
    count = len(breaker.struck) + 1
    if not breaker.open and (count <= MOST or count <= SHARE * population):
        return Breaker(struck={**breaker.struck, key: now}, held=breaker.held), True
    before = breaker.held.get(key)
    if before is None and len(breaker.held) >= REMEMBERED:
        return breaker, False
    held = dict(breaker.held)
    held.pop(key, None)
    held[key] = _asked_again(before, now, evidence)
    breaker = Breaker(struck=breaker.struck, held=held)
    if all(one.confirmations >= CONFIRMATIONS for one in held.values()):
        return release(breaker, now), True
    return breaker, False


def _asked_again(before: Held | None, now: float, evidence: object) -> Held:
    if before is None:
        return Held(0, now, now, evidence)
    news = evidence is None or evidence is not before.evidence
    if news and now - before.confirmed >= PAUSE:
        return Held(before.confirmations + 1, now, now, evidence)
    return Held(before.confirmations, before.confirmed, now, before.evidence)


def release(breaker: Breaker, now: float) -> Breaker:
    """What is held back may go at its next look; it counts, so whatever comes on top opens the breaker again."""
    return Breaker(struck={**breaker.struck, **dict.fromkeys(breaker.held, now)})


def relent(breaker: Breaker, key: Key) -> Breaker:
    """A new look found no reason any more."""
    if key not in breaker.held:
        return breaker
    return Breaker(
        struck=breaker.struck, held={one: value for one, value in breaker.held.items() if one != key}
    )


def prune(breaker: Breaker, now: float) -> Breaker:
    """Forgets what is too long ago: a job that vanished must not keep the breaker open."""
    struck: Mapping[Key, float] = breaker.struck
    if struck and now - next(iter(struck.values())) >= WINDOW:
        struck = {key: when for key, when in struck.items() if now - when < WINDOW}
    held: Mapping[Key, Held] = breaker.held
    if held and now - next(iter(held.values())).asked >= EXPIRY:
        held = {key: one for key, one in held.items() if now - one.asked < EXPIRY}
    if struck is breaker.struck and held is breaker.held:
        return breaker
    return Breaker(struck=struck, held=held)


def commanded(value: str, before: str | None, started: float) -> bool:
    """Does an annotation that reads `value` now, and `before` at the last look, ask a process to close its breaker?

    `before` None: this is the first look, so that what it says may have been meant for a former process; so may a
    time before `started` (Unix seconds).
    """
    if before is None or value in ("", before):
        return False
    try:
        when = datetime.fromisoformat(value)
    except ValueError:
        return True  # any new word will do
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() >= started
