"""Who leads: one reading of the Lease and our own memory → what to do next.

Pure. Expiry is counted from the moment *we* last saw the record change, on our monotonic clock; the
timestamps in the record are written by other clocks and are never compared with ours. Two processes of
different names can both lead only if one's clock runs faster than `DURATION / RENEW_DEADLINE` times the other's.

Each acquisition is a new generation, one by the holder's own name included, and a process leads only under a
generation that the API server confirmed to itself. So a second process of our name is an opponent like any
other: it may take our Lease at once in one case, when its first reading shows it (a restarted container keeps
its name), and then we are out at our next renewal, and wait.

The times: a dead leader is replaced at most LOOK + DURATION later, 11 s, which leaves four for the first
binding of its successor. A healthy one renews every RETRY (1,800 writes an hour) and bears an API server that
swallows every call for 3.4 s, wherever between two renewals that begins, or that takes 2.5 s for each. More patience
would be paid for at every takeover. And little is lost when it is not enough: nobody else can have written
either, so the leader is back with the API server's first answers, and what it missed were writes to Slurm.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

DURATION = 10.0  # seconds without a change after which others may take the Lease
RENEW_DEADLINE = 7.0  # seconds after our last renewal at which we stop leading by ourselves
RETRY = 2.0  # seconds between renewals
LOOK = 1.0  # seconds between looks of those who wait


class Generation(NamedTuple):
    """One acquisition: never the same twice, since the API server takes one write at a version."""

    holder: str
    transitions: int
    acquired: float

    def __str__(self) -> str:
        return str(self.transitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """One coordination.k8s.io/v1 Lease. `holder` "" = released; times are Unix seconds, for people only."""

    holder: str = ""
    duration: int = int(DURATION)  # seconds
    acquired: float = 0.0
    renewed: float = 0.0
    transitions: int = 0
    version: str = ""  # resourceVersion; "" = not created yet
    uid: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)  # of others, kept as they are
    annotations: Mapping[str, str] = field(default_factory=dict)  # likewise; people ask for things here

    @property
    def generation(self) -> Generation:
        return Generation(self.holder, self.transitions, self.acquired)

    def same_renewal(self, other: LeaseRecord | None) -> bool:
        """Nobody has renewed between the two readings (what else is edited changes only the version)."""
        return (
            other is not None
            and self.generation == other.generation
            and (self.renewed, self.duration) == (other.renewed, other.duration)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRef:
    """What an Event needs to name the Lease; `uid` "" = not read yet."""

    namespace: str
    name: str
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """`wait` says for how many seconds the record can't be ours; the other three want action now."""

    action: Literal["acquire", "renew", "wait", "lost"]
    seconds: float = 0.0


def decide(
    record: LeaseRecord | None,
    now: float,
    seen_changed_at: float,
    *,
    leading: bool,
    ours: Collection[Generation],
) -> Decision:
    """`now` and `seen_changed_at` are monotonic; `leading`: we renewed less than a deadline ago.

    `ours`: the generations that we may follow at once: the one that was confirmed to us, the one that we asked for
    and had no answer about, the one of our former life. While we lead it is the confirmed one alone.
    """
    mine = record is not None and record.generation in ours
    if leading and record is not None:
        return Decision("renew" if mine else "lost")
    # A leader whose record a person deleted makes it anew: others wait as if it were there.
    if leading or mine or (record is not None and not record.holder):
        return Decision("acquire")
    duration = record.duration if record is not None and record.duration > 0 else DURATION
    left = seen_changed_at + duration - now
    return Decision("wait", left) if left > 0 else Decision("acquire")


def acquired(record: LeaseRecord | None, me: str, now: float, duration: int) -> LeaseRecord:
    """What to write to begin a new generation; `now` is Unix seconds. Keeps the version as the precondition."""
    now = round(now, 6)  # as the API server keeps it: the generation must be known again in its answer
    if record is None:
        return LeaseRecord(holder=me, duration=duration, acquired=now, renewed=now)
    return replace(
        record, holder=me, duration=duration, acquired=now, renewed=now, transitions=record.transitions + 1
    )


def renewed(
    record: LeaseRecord, now: float, duration: int, told: Mapping[str, str] | None = None
) -> LeaseRecord:
    """What to write to go on under the same generation; `told`: annotations for the next leader."""
    return replace(record, renewed=now, duration=duration, annotations={**record.annotations, **(told or {})})


def released(record: LeaseRecord, now: float) -> LeaseRecord:
    """What to write so that a successor needn't wait."""
    return replace(record, holder="", duration=1, renewed=now)
