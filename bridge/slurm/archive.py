"""Jobs that slurmctld has forgotten, as Slurm's accounting (slurmdbd) has them: each is asked for until it is told.

In: a client, every complete poll, ids that somebody wants. Out: `records`, and a call of `told` for each answer. What
must stay true:

- One question at a time, each with a deadline, and a pause after one that failed.
- A failure is no answer: the job stays open, and is asked for again when the others have had their turn. Only when
  nobody has had an answer for PATIENCE is it given up; that, like "no such job", is None, and says nothing.
- A row of a job that has not ended, which slurmctld denies, is an answer only while slurmctld has nothing to send:
  after an outage of slurmdbd it tells ends late.
- A job that left the list before our eyes is not asked for: an end of it would have been listed for MinJobAge.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final

from bridge.core.model import JobId, JobRecord, is_ended
from bridge.errors import BridgeError, Busy, UserError
from bridge.slurm.client import SlurmClient

TIMEOUT: Final = 5.0  # seconds for one answer; 50 ms when all is well
PATIENCE: Final = (
    300.0  # seconds without an answer to anybody: slurmdbd may start, or its database may recover
)
PAUSE: Final = 10.0  # seconds after a failure in which nothing is asked
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
        self._wanted: dict[JobId, float] = {}  # since when; the next to be asked for first
        self._answered = -math.inf  # when it last answered
        self._trouble = ""  # why the last question has no answer
        self._work = asyncio.Event()

    def records(self, jobs: Iterable[JobId]) -> Mapping[JobId, JobRecord]:
        """What it has of them."""
        found = ((job, self._answers[job][0]) for job in jobs if job in self._answers)
        return {job: record for job, record in found if record is not None}

    def open(self, jobs: Iterable[JobId]) -> Mapping[JobId, str]:
        """Those whose answer is worth waiting for, and why it isn't there; "" = it is on its way."""
        if not self._client.accounting:
            return {}
        return {job: self._trouble for job in jobs if job not in self._answers}

    def note(self) -> str:
        """Whose answers are late; "" = nobody's."""
        if not self._wanted or not self._trouble:
            return ""
        return (
            f"{len(self._wanted)} jobs, which may have ended unseen, are asked for in vain: {self._trouble}"
        )

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
        for job in [job for job in self._wanted if job in ours]:
            del self._wanted[job]

    async def run(self) -> None:
        """For ever."""
        while True:
            await self._work.wait()
            job, since = next(iter(self._wanted.items()), (None, 0.0))
            if job is None:
                self._trouble = ""
                self._work.clear()
                continue
            record = None
            if self._now() - max(since, self._answered) < PATIENCE:
                try:
                    record = await self._asked(job)
                except Exception as error:
                    await self._failed(job, error)
                    continue
                self._answered, self._trouble = self._now(), ""
            if self._wanted.pop(job, None) is not None:
                self._answers[job] = (record, self._now())
                self._told(job)
            await self._sleep(0.0)

    async def _asked(self, job: JobId) -> JobRecord | None:
        """Raises Busy for a row that slurmctld may be about to change."""
        record = await self._client.accounted(job, TIMEOUT)
        if record is None or is_ended(record.states):
            return record
        if unsent := await self._client.unsent():
            why = f"slurmctld has {unsent} messages that slurmdbd has not got yet"
            raise Busy(why).saying(why)
        return await self._client.accounted(job, TIMEOUT)  # what was on its way then has arrived

    async def _failed(self, job: JobId, error: Exception) -> None:
        """The others first: it may be this very answer that can't be had."""
        if not isinstance(error, BridgeError | UserError):
            log.exception("asking Slurm's accounting for job %d failed", job)
        elif not self._trouble:
            log.warning("Slurm's accounting can't be asked for job %d: %s", job, error)
        self._trouble = getattr(error, "said", "") or type(error).__name__  # no job's number: pods show it
        if (since := self._wanted.pop(job, None)) is not None:
            self._wanted[job] = since
        await self._sleep(PAUSE)
