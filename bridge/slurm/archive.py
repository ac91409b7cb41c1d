"""Jobs that slurmctld has forgotten, as Slurm's accounting (slurmdbd) has them: each is asked for once.

In: a client, every complete poll, ids that somebody wants. Out: `records`, and a call of `told` for each answer. What
must stay true:

- One question at a time, each with a deadline; after a failure none for a while, and nobody waits for an answer then.
- An error, no such job, an answer that takes too long: all of it is None, and says nothing.
- A job that left the list before our eyes is not asked for: an end of it would have been listed for MinJobAge.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final

from bridge.core.model import JobId, JobRecord
from bridge.errors import BridgeError, UserError
from bridge.slurm.client import SlurmClient

TIMEOUT: Final = 5.0  # seconds for one answer; 50 ms when all is well
PATIENCE: Final = 30.0  # seconds that a claim waits for its turn: a few hundred questions
PAUSE: Final = 60.0  # seconds after a failure in which nothing is asked
GAP: Final = 30.0  # seconds between two polls in which Slurm may have listed an end, and forgotten it
KEPT: Final = 900.0  # seconds that an answer counts

log = logging.getLogger("bridge.slurm")


class Archive:
    """`run()` is one task; everything else is synchronous and belongs to the same event loop."""

    def __init__(
        self,
        client: SlurmClient,
        told: Callable[[JobId], None],
        monotonic: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self._client, self._told = client, told
        self._now, self._sleep = monotonic, sleep
        self._answers: dict[JobId, tuple[JobRecord | None, float]] = {}  # and when, oldest first
        self._wanted: dict[JobId, float] = {}  # since when, oldest first
        self._resume = -math.inf  # when slurmdbd may be asked again
        self._work = asyncio.Event()

    def records(self, jobs: Iterable[JobId]) -> Mapping[JobId, JobRecord]:
        """What it has of them."""
        found = ((job, self._answers[job][0]) for job in jobs if job in self._answers)
        return {job: record for job, record in found if record is not None}

    def open(self, jobs: Iterable[JobId]) -> frozenset[JobId]:
        """Those whose answer is worth waiting for."""
        if not self._client.accounting or self._now() < self._resume:
            return frozenset()
        return frozenset(job for job in jobs if job not in self._answers)

    def want(self, job: JobId) -> None:
        if self.open((job,)):
            self._wanted.setdefault(job, self._now())
            self._work.set()

    def polled(self, ours: Collection[JobId], vanished: Iterable[JobId], gap: float) -> None:
        """A complete poll, `gap` seconds after the last one, lists these and lacks those that the last one had."""
        now = self._now()
        if gap < GAP:
            self._answers.update((job, (None, now)) for job in vanished)
        for job in [
            job for job, (_, answered) in self._answers.items() if job in ours or now - answered > KEPT
        ]:
            del self._answers[job]

    async def run(self) -> None:
        """For ever."""
        while True:
            await self._work.wait()
            job, since = next(iter(self._wanted.items()), (None, 0.0))
            if job is None:
                self._work.clear()
                continue
            record = None
            if self._now() - since < PATIENCE and self._now() >= self._resume:
                record = await self._ask(job)
            self._wanted.pop(job, None)
            self._answers[job] = (record, self._now())
            self._told(job)
            await self._sleep(0.0)

    async def _ask(self, job: JobId) -> JobRecord | None:
        try:
            return await self._client.accounted(job, TIMEOUT)
        except (BridgeError, UserError) as error:
            log.warning("Slurm's accounting can't be asked for job %d: %s", job, error)
        except Exception:
            log.exception("asking Slurm's accounting for job %d failed", job)
        self._resume = self._now() + PAUSE
        return None
