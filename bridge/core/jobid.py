"""The job ids that we choose, so that Slurm itself refuses a second job for one group.

`job_id(range, cluster, group_uid, attempt, probe)` is a pure hash into the configured range: a retry after a lost
reply asks for the same id, and Slurm answers 2011 "Duplicate job id" instead of making a second job. `probe` steps
aside when the id belongs to somebody else; FAST probes are for the immediate allocation, whose failure leaves a
FAILED record that keeps its id busy.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

from bridge.core.model import JobId

PROBES = 12  # queued submits of one attempt try at most this many ids
FAST = 100  # the probe number of the immediate allocation


@dataclass(frozen=True, slots=True)
class IdRange:
    """Half-open: first ≤ id < stop. The default is far above the ids that Slurm has given out so far."""

    first: int = 0x02000000
    stop: int = 0x03FDFFFF

    def __contains__(self, job: object) -> bool:
        return isinstance(job, int) and self.first <= job < self.stop


def job_id(ids: IdRange, cluster: str, group_uid: str, attempt: int, probe: int) -> JobId:
    text = f"{cluster}\n{group_uid}\n{attempt}\n{probe}".encode()
    number = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
    return JobId(ids.first + number % (ids.stop - ids.first))


@lru_cache(maxsize=20_000)  # asked at every look at a group
def candidates(ids: IdRange, cluster: str, group_uid: str, attempt: int) -> tuple[JobId, ...]:
    """Every id that this attempt may use, the immediate one first."""
    return tuple(job_id(ids, cluster, group_uid, attempt, probe) for probe in (FAST, *range(PROBES)))
