"""Until when a bridge has led and seen Slurm: one leader tells the next, on the Lease.

In: what a leader sees of Slurm, readings of the Lease. Out: what it writes with its renewals, and what the one before
it wrote (`Memory.watched`). What must stay true: a job that had ended by then has no pod any more. So nothing is told
before the leader has had the time to see to all of them, its questions to Slurm's accounting included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bridge.core.lease import LeaseRecord
from bridge.memory import Memory
from bridge.names import WATCHED_ANNOTATION
from bridge.slurm.archive import PATIENCE
from bridge.slurm.watch import JobWatcher

SEEN_TO = PATIENCE + 300.0  # seconds of leading, and of seeing Slurm without a gap


class Watched:
    def __init__(self, watcher: JobWatcher, memory: Memory, leading: Callable[[], bool]) -> None:
        self._watcher, self._memory, self._leading = watcher, memory, leading

    def lease_seen(self, record: LeaseRecord) -> None:
        """One's own word is none for oneself: what this process has seen, it knows by itself."""
        text = record.annotations.get(WATCHED_ANNOTATION, "")
        if not self._leading():
            self._memory.watched = float(text) if text.isascii() and text.isdigit() else 0.0

    def told(self, in_office: float) -> Mapping[str, str]:
        """Annotations of the next renewal, after so many seconds of leading."""
        now = self._watcher.slurm_now()
        if not now or min(in_office, self._watcher.fresh_for()) < SEEN_TO:
            return {}
        return {WATCHED_ANNOTATION: f"{now - self._watcher.age():.0f}"}
