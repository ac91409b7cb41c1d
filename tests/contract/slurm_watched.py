"""A watcher over the Slurm world, on a clock of the test's own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from bridge.config import SlurmSettings
from bridge.core.jobid import IdRange
from bridge.core.model import JobId
from bridge.slurm.client import SlurmClient
from bridge.slurm.watch import JobWatcher
from tests.contract.slurm_fixture import spec
from tests.contract.slurm_time import VirtualTime, settle
from tests.worlds.slurm import SlurmWorld
from tests.worlds.slurm_jobs import WorldNode

IDS = IdRange()
A, B, C = JobId(IDS.first + 1), JobId(IDS.first + 2), JobId(IDS.first + 3)


class Watched:
    """A world, a client, a watcher that is not running yet, and what it told."""

    def __init__(self, tmp_path: Path, *, version: int = 45, patience: float = 25.0) -> None:
        self.time = VirtualTime()
        self.world = SlurmWorld(
            tuple(WorldNode(f"k{i}") for i in range(100)), clock=self.time.now, version=version
        )
        token = tmp_path / "token"
        token.write_text("token")
        self.settings = SlurmSettings(
            slurmRestApi="http://world",
            slurmTokenFile=token,
            readTimeout=patience,  # seconds of real time: the deadline is asyncio's own
        )
        self.client = SlurmClient(self.settings, transport=httpx.ASGITransport(self.world))
        self.told: list[JobId] = []
        self.boot_ages: list[float] = []
        self.behind = 0.0  # seconds that the wall clock of our machine is
        self.watcher = JobWatcher(
            self.client,
            self.settings,
            IDS,
            self.hear,
            self.time.now,
            self.time.sleep,
            wall=lambda: self.time.now() - self.behind,
        )
        self._task: asyncio.Task[None] | None = None

    def hear(self, job: JobId) -> None:
        self.told.append(job)
        self.boot_ages.append(self.watcher.boot_age())

    async def start(self) -> None:
        self._task = asyncio.create_task(self.watcher.run())
        await settle()
        self.told.clear()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self.client.close()

    async def pass_time(self, seconds: float) -> None:
        await self.time.advance(seconds)

    async def submit(self, job: JobId, **changes: object) -> None:
        await self.client.submit(job, spec(**changes))

    def healthy(self) -> bool:
        return self.watcher.healthy

    def reads(self) -> int:
        return self.world.count("GET job/{id}")

    def polls(self) -> int:
        return self.world.count("GET jobs/state/")


@pytest.fixture(name="watched")
async def watched_fixture(tmp_path: Path) -> AsyncIterator[Watched]:
    watched = Watched(tmp_path)
    yield watched
    await watched.stop()
