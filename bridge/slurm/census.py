"""Which of all the jobs that Slurm lists are ours, where Slurm numbers them and no id tells: each is read once.

In: every complete poll. Out: `ours`, and a call of `found` for each of them. What must stay true:

- A job is never read again while Slurm lists it, unless it is so young that slurmctld, started anew, may have given its
  id to another.
- `known_until` never runs ahead: every live job of every poll begun by then has been read.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from bridge.core.model import JobId, JobRecord, States, is_ended
from bridge.errors import BridgeError, NotFound
from bridge.slurm.client import SlurmClient

PER_SECOND: Final = 50.0  # reads
RETRY: Final = 1.0  # seconds after a failed one
FORGETFUL: Final = 60.0  # seconds: far more than the five that a killed slurmctld loses

log = logging.getLogger("bridge.slurm")


class Census:
    """`run()` is one task; everything else is synchronous and belongs to the same event loop."""

    def __init__(
        self,
        client: SlurmClient,
        found: Callable[[JobRecord], None],
        monotonic: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self.ours: dict[JobId, float] = {}  # and since when we know
        self._client, self._found = client, found
        self._now, self._sleep = monotonic, sleep
        self._foreign: dict[JobId, float] = {}  # and when it was read
        self._unread: dict[JobId, float] = {}  # in turn, and when the last poll without it was asked for
        self._ended: dict[JobId, float] = {}  # the same of ended jobs, of the first poll only
        self._last = -math.inf  # when the last poll was asked for
        self._work = asyncio.Event()
        self._open = asyncio.Event()  # Slurm can be polled

    def known_until(self) -> float:
        """Polls begun until then (monotonic) hold no job of ours that we don't know; -inf: none has been read yet."""
        return min(self._unread.values(), default=self._last)

    def behind(self) -> bool:
        """Some listed job has not been read yet."""
        return bool(self._unread or self._ended)

    def count(self, listed: Mapping[JobId, States], asked: float, *, booted: bool) -> None:
        """A complete poll."""
        first = self._last == -math.inf
        if booted:
            young = self._now() - FORGETFUL
            self._foreign = {job: read for job, read in self._foreign.items() if read < young}
            for job in [job for job, known in self.ours.items() if known >= young]:
                self._unread.setdefault(job, self._last)
        for known in (self.ours, self._foreign, self._unread, self._ended):
            for job in known.keys() - listed.keys():
                del known[job]
        for job, states in listed.items():
            if is_ended(states):
                if first and job not in self.ours:
                    self._ended[job] = self._last
                continue  # one that ended unseen since never had a pod: a job is named before it runs
            if job not in self.ours and job not in self._foreign and job not in self._unread:
                self._unread[job] = self._last
        self._last = asked
        self._wake()

    def ours_too(self, job: JobId) -> None:
        """We know without a read."""
        self.ours.setdefault(job, self._now())
        self._unread.pop(job, None)
        self._ended.pop(job, None)
        self._foreign.pop(job, None)

    def pause(self) -> None:
        """Slurm cannot be polled."""
        self._open.clear()

    def resume(self) -> None:
        """It can again."""
        self._open.set()

    async def run(self) -> None:
        """For ever."""
        while True:
            await self._work.wait()
            await self._open.wait()
            job = next(iter(self._unread or self._ended), None)
            if job is None:
                self._wake()
                continue
            pause = 1.0 / PER_SECOND
            try:
                self._learn(job, await self._client.job(job))
            except NotFound:  # as long as it is listed, that says nothing; nobody waits behind it
                self._defer(job)
                pause = RETRY if len(self._unread) + len(self._ended) < 2 else pause
            except BridgeError as error:
                log.warning("job %d could not be read, and is tried again: %s", job, error)
                pause = RETRY
            except Exception:
                log.exception("reading job %d failed; it is tried again", job)
                pause = RETRY
            await self._sleep(pause)

    def _defer(self, job: JobId) -> None:
        for queue in (self._unread, self._ended):
            if (known := queue.pop(job, None)) is not None:
                queue[job] = known
        self._wake()

    def _learn(self, job: JobId, record: JobRecord) -> None:
        if self._unread.pop(job, self._ended.pop(job, None)) is not None:
            if record.mark is not None:
                self.ours[job] = self._now()
                self._found(record)
            else:
                self.ours.pop(job, None)
                self._foreign[job] = self._now()
        self._wake()

    def _wake(self) -> None:
        if self._unread or self._ended:
            self._work.set()
        else:
            self._work.clear()
