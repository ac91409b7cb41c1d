"""Native jobs whose hook waited no longer: they run, and a pod may still use their GPUs.

In: which jobs were told "not clear", and when they asked no more. Out: a count, a log line and a note for each that
Slurm shows running on GPUs of a pod that is not known dead. Any replica may have been asked last, so each looks for
itself. Nothing is decided here: what has happened is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol

from bridge.core.ledger import Claim
from bridge.core.model import JobId, JobRecord, is_granted
from bridge.errors import BridgeError, NotFound
from bridge.log import logger
from bridge.metrics import HANDOVERS

SILENT = 5.0  # seconds without a question: the hook asks every second
MOST = 100  # jobs at a time

log = logger("handover")


class Blocking(Protocol):
    def blocking(self, record: JobRecord) -> tuple[Claim, ...]: ...


class Overruns:
    """`job`: one full read."""

    def __init__(self, job: Callable[[JobId], Awaitable[JobRecord]], ledger: Blocking) -> None:
        self._job, self._ledger = job, ledger
        self._timers: dict[JobId, asyncio.TimerHandle] = {}
        self._looks: set[asyncio.Task[None]] = set()
        self._running: dict[JobId, JobRecord] = {}

    def waits(self, job: JobId) -> None:
        """Its hook was told that its GPUs are not clear."""
        self.clear(job)
        if len(self._timers) < MOST:
            self._timers[job] = asyncio.get_running_loop().call_later(SILENT, self._silent, job)

    def clear(self, job: JobId) -> None:
        """It may start."""
        if (timer := self._timers.pop(job, None)) is not None:
            timer.cancel()

    def notes(self) -> Iterator[str]:
        """For /readyz, as long as a pod may use what the job has."""
        for job, record in tuple(self._running.items()):
            if claims := self._ledger.blocking(record):
                yield f"devices: native job {job} runs, though a pod may still use its GPUs: {claims[0]}"
            else:
                del self._running[job]

    def _silent(self, job: JobId) -> None:
        del self._timers[job]
        look = asyncio.ensure_future(self._look(job))
        self._looks.add(look)
        look.add_done_callback(self._looks.discard)

    async def _look(self, job: JobId) -> None:
        record: JobRecord | None = None
        try:
            record = await self._job(job)
        except NotFound:
            return
        except BridgeError as error:
            log.debug("the job could not be read", job=job, error=str(error))
        if record is None or "CONFIGURING" in record.states:
            self.waits(job)  # it is asked for once more; or another replica is asked by the hook meanwhile
        elif is_granted(record.states) and (claims := self._ledger.blocking(record)):
            self._running[job] = record
            HANDOVERS.labels("overrun").inc()
            log.warning(
                "a native job runs beside a pod that may still use its GPUs: its hook waited no longer",
                job=job,
                holders="; ".join(map(str, claims)),
            )
