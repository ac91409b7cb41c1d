"""Ends of jobs with an exit status, as slurmctld takes them beside its REST API."""

from __future__ import annotations

import asyncio

from bridge.core.model import JobId
from bridge.errors import Denied
from tests.worlds.slurm import SlurmWorld


class WorldCompletion:
    """Stands in for bridge.slurm.completion.Completion."""

    def __init__(self, world: SlurmWorld) -> None:
        self._world = world

    async def complete(self, job: JobId, wait_status: int) -> bool:
        found = self._world.jobs.get(job)
        if found is not None and self._world.asker not in ("slurm", found.user):
            raise Denied(f"complete job {job}: slurmctld refuses (2010)", code=2010)
        self._world.serving = job
        self._world.complete_all(job, wait_status)
        self._world.serving = None
        return True

    async def watch(self) -> None:
        await asyncio.Event().wait()

    def note(self) -> str:
        return ""
