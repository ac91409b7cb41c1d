"""The slurmdbd of the Slurm world: a row for each submit of each job, as slurmctld told it.

A crash of slurmctld undoes nothing here: an end that it forgets stays on the books, as on real ones (measured, 26.05).
"""

from __future__ import annotations

from typing import Any

from bridge.core.model import JobId, is_ended
from tests.worlds.slurm_jobs import WorldJob

CLUSTER = "world"  # ClusterName
QOS = "normal"  # of every job


class Books:
    """`open`: slurmrestd can ask it. `answers` False: it doesn't say a word."""

    def __init__(self) -> None:
        self.open = False
        self.answers = True
        self.graces = {QOS: 0, "high": 0}  # seconds that a preempted job gets, by QOS
        self.rows: dict[tuple[JobId, float], WorldJob] = {}
        self.late = False  # slurmctld can't send it anything
        self.unsent: list[WorldJob] = []

    def note(self, job: WorldJob) -> None:
        if self.late:
            self.unsent.append(job)
        else:
            self.rows[job.id, job.submitted] = job

    def catch_up(self) -> None:
        """slurmctld sends what it has kept."""
        self.late = False
        for job in self.unsent:
            self.note(job)
        self.unsent.clear()

    def of(self, job: JobId) -> list[WorldJob]:
        """Every submit of that id, oldest first."""
        return [row for (number, _), row in sorted(self.rows.items()) if number == job]

    def told(self, job: JobId) -> dict[str, Any]:
        """As GET /slurmdb/…/job/{id} tells it."""
        return {"jobs": [accounted(row) for row in self.of(job)]}

    def qos(self) -> dict[str, Any]:
        """As GET /slurmdb/…/qos/ tells it."""
        return {"qos": [{"name": name, "limits": {"grace_time": s}} for name, s in self.graces.items()]}


def number(value: int | None) -> dict[str, Any]:
    """Slurm's number that may be unset."""
    return {"set": value is not None, "infinite": False, "number": value or 0}


def accounted(job: WorldJob) -> dict[str, Any]:
    """A row: slurmctld sends admin_comment with the end only."""
    ended = is_ended(job.states)
    return {
        "job_id": job.id,
        "cluster": CLUSTER,
        "state": {"current": sorted(job.states), "reason": job.reason},
        "time": {
            "submission": int(job.submitted),
            "start": int(job.started),
            "end": int(job.ended) if ended else 0,
            "limit": number(job.time_limit),
        },
        "comment": {"administrator": job.admin_comment if ended else "", "job": "", "system": ""},
        "nodes": ",".join(job.nodes) or "None assigned",
        "name": job.name,
        "user": job.user,
        "partition": job.partition,
    }
