"""Which jobs of ours are read in full, and when: the second half of the watcher.

In: each complete poll. Out: `records`, and a call of `told(id)` for each read that brought news. Five reasons
to read, most urgent first: somebody wants it; its state changed; it is unknown (after a start, even if it has ended)
or doubtful (after a boot of slurmctld); it waits, so its reason and estimate may have changed; it runs where others
wait and preemption leaves time to say goodbye, which no state shows. What must stay true:

- A read counts for a state only if it was begun after that state was seen.
- A job is read by one task at a time, and one under way is in no queue.
- All reads stop while Slurm cannot be polled.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from itertools import chain, zip_longest
from typing import Any, Final

from bridge.config import SlurmSettings
from bridge.core.identity import dated, remembered
from bridge.core.model import JobId, JobRecord, States, is_ended
from bridge.errors import BridgeError, NotFound
from bridge.slurm.client import SlurmClient
from bridge.slurm.graces import Graces

BACKGROUND_PER_SECOND: Final = 50.0  # reads of unknown and doubtful jobs
RUNNING_PER_SECOND: Final = (
    80.0  # at most, of running jobs that may be in the grace time of a preemption: 0.5 cores
)
RUNNING_WIDTH: Final = 4  # of these at a time
LOOKS_PER_GRACE: Final = 4.0  # so many looks at a running job in the grace time that it would get
IDLE: Final = 0.25  # seconds until the next question whether a running job is due
SAME_JOB_INTERVAL: Final = 1.0  # seconds between two looks at one waiting job
RETRY: Final = 1.0  # seconds before a failed read is tried again
DENIAL: Final = 30.0  # seconds: what Slurm said it didn't have so long ago it is asked for anew

log = logging.getLogger("bridge.slurm")


class Reads:
    """Queues (insertion-ordered dicts used as sets) and the tasks that empty them."""

    def __init__(
        self,
        client: SlurmClient,
        settings: SlurmSettings,
        told: Callable[[JobId], None],
        graces: Graces,
        monotonic: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        slurm_now: Callable[[], float],
    ) -> None:
        self._slurm_now = slurm_now
        self.records: dict[JobId, JobRecord] = {}
        self.begun: dict[JobId, int] = {}  # stamp of the question that each record answers
        self.asked: dict[JobId, float] = {}  # monotonic time of the same question
        self._denied: dict[JobId, float] = {}  # not listed, and when Slurm, asked for them, said so
        self._stamps = 0
        self._client, self._told, self._graces = client, told, graces
        self._now, self._sleep = monotonic, sleep
        self._width = settings.concurrentRequests
        self._waiting_gap = 1.0 / settings.pendingReadsPerSecond
        self._states: Mapping[JobId, States] = {}  # of the last complete poll
        self._settled: dict[JobId, States] = {}  # the polled state that the record covers
        self._untold: set[JobId] = set()  # a new state that `told` has not heard of
        self._wanted: dict[JobId, None] = {}
        self._urgent: dict[JobId, None] = {}
        self._background: dict[JobId, None] = {}
        self._waiting: dict[JobId, float] = {}  # PENDING jobs → when last looked at, oldest first
        self._first: set[JobId] = set()  # of the first poll, not read yet
        self._running: dict[JobId, float] = {}  # the same of RUNNING jobs, while they are read again
        self._recheck = 0.0  # seconds in which each of these is read again
        self._retry: dict[JobId, float] = {}  # failed reads → when to try again
        self._reading: dict[JobId, States | None] = {}  # under way → the state that it covers
        self._again: set[JobId] = set()  # under way, and to be repeated
        self._stale: set[JobId] = set()  # under way, and to be no denial
        self._open = asyncio.Event()  # Slurm can be polled
        self._quick = asyncio.Event()  # something is in the two quick queues
        self._later = asyncio.Event()  # something is in the background queue
        self._queued = asyncio.Event()  # some job of ours waits in Slurm
        self._contested = asyncio.Event()  # some job of ours may be preempted with notice

    # --- news -------------------------------------------------------------------------------------

    def unlisted(self, ours: Mapping[JobId, States], stamp: int) -> list[JobId]:
        """Those that the last poll listed, or that were read since, and that this one, of `stamp`, does not list."""
        read = (
            job for job in self._settled if job not in self._states and self.begun.get(job, stamp) < stamp
        )
        return [job for job in chain(self._states, read) if job not in ours]

    def polled(
        self,
        ours: Mapping[JobId, States],
        vanished: Iterable[JobId],
        *,
        first: bool,
        booted: bool,
        contested: bool = False,
    ) -> list[JobId]:
        """A complete poll. Returns the jobs with a new state that a record covers already: no read will tell.

        `first`: nothing is known yet, so nothing is news. `booted`: every live record is doubtful. `contested`: some
        job, of whomever, waits for room.
        """
        before, self._states = self._states, ours
        covered: list[JobId] = []
        for job, states in ours.items():
            if self._settled.get(job) == states or (job in before and self._happens_to_cover(job, states)):
                self._settled[job] = states
                if before.get(job) != states:
                    covered.append(job)
            elif first and job not in self.records:
                self._settled[job] = states
                self._first.add(job)
            elif self._reading.get(job) != states:
                self._untold.add(job)
                self._ask(job, self._urgent)
        if first:
            self._background.update((job, None) for job in self._by_turns(ours))
        if booted:
            self._background.update((job, None) for job, states in ours.items() if not is_ended(states))
        for job in vanished:  # should it be listed again, it is another job
            self._settled.pop(job, None)
            self._untold.discard(job)
        self._note_waiting(ours)
        self._note_running(ours if contested and self._graces.given() else {})
        for job in self._denied.keys() & ours.keys():
            del self._denied[job]
        for job in [job for job, due in self._retry.items() if due <= self._now()]:
            del self._retry[job]
            self._ask(job, self._urgent)
        self._wake()
        return covered

    def _by_turns(self, ours: Mapping[JobId, States]) -> Iterator[JobId]:
        """Live jobs and ended ones, so that neither wait for thousands of the others."""
        live = (job for job, states in ours.items() if job in self._first and not is_ended(states))
        ended = (job for job, states in ours.items() if job in self._first and is_ended(states))
        return (job for pair in zip_longest(live, ended) for job in pair if job is not None)

    def behind(self) -> bool:
        """Some job of the first poll has not been read yet, be it live or ended."""
        return bool(self._first)

    def _happens_to_cover(self, job: JobId, states: States) -> bool:
        """A look at a waiting job was faster than the poll, and saw that state."""
        known = self.records.get(job)
        return known is not None and known.states == states and job not in self._untold

    def _note_waiting(self, ours: Mapping[JobId, States]) -> None:
        for job in [job for job in self._waiting if "PENDING" not in ours.get(job, ())]:
            del self._waiting[job]
        for job, states in ours.items():
            if "PENDING" in states:
                self._waiting.setdefault(job, self._now())

    def _note_running(self, ours: Mapping[JobId, States]) -> None:
        for job in [job for job in self._running if "RUNNING" not in ours.get(job, ())]:
            del self._running[job]
        for job, states in ours.items():
            if "RUNNING" in states and self._grace(job):
                self._running.setdefault(job, self._now())
        self._recheck = min((self._grace(job) for job in self._running), default=0.0) / LOOKS_PER_GRACE

    def _grace(self, job: JobId) -> float:
        known = self.records.get(job)
        return self._graces.of(known) if known is not None else 0.0

    def overdue(self) -> str:
        """Why a preemption may be seen too late; "" = it is seen in time."""
        if unknown := self._graces.unknown():
            return unknown
        round_, grace = len(self._running) / RUNNING_PER_SECOND, self._recheck * LOOKS_PER_GRACE
        if round_ <= grace / 2:
            return ""
        return (
            f"{len(self._running)} running jobs are read in {round_:.0f} s while others wait, and a GraceTime of"
            f" {grace:.0f} s may be over by then; give their partitions or QOS at least {2 * round_:.0f} s"
        )

    def denied(self, job: JobId) -> bool:
        """Not listed, and Slurm, asked for it lately, has none."""
        return self._now() - self._denied.get(job, -math.inf) < DENIAL

    def note(self, record: JobRecord) -> None:
        """A record from elsewhere, as good as a read of ours."""
        self.records[record.id] = record
        self.begun[record.id] = self.stamp()
        self.asked[record.id] = self._now()
        self._denied.pop(record.id, None)
        self._first.discard(record.id)
        self._settled[record.id] = record.states
        self._urgent.pop(record.id, None)
        if record.id in self._reading:
            self._again.add(record.id)  # that read may be older than this record
        self._wake()

    def stamp(self) -> int:
        """Puts questions to Slurm in order, finer than any clock."""
        self._stamps += 1
        return self._stamps

    def want(self, job: JobId) -> None:
        """Before all others. A read that is under way will do: it tells when it is done."""
        if job not in self._reading:
            self._ask(job, self._wanted)
            self._wake()

    def recant(self, job: JobId) -> None:
        """That Slurm denied this job no longer counts, nor will it if the answer is still under way."""
        self._denied.pop(job, None)
        if job in self._reading:
            self._stale.add(job)

    def forget(self, job: JobId) -> None:
        """The record, and every wish to read it. A job that Slurm still lists stays settled: no news."""
        self.records.pop(job, None)
        self.begun.pop(job, None)
        self.asked.pop(job, None)
        self._denied.pop(job, None)
        self._first.discard(job)
        self._untold.discard(job)
        self._retry.pop(job, None)
        for queue in (self._wanted, self._urgent, self._background):
            queue.pop(job, None)
        if job not in self._states:
            self._settled.pop(job, None)
        self._wake()

    def unlist(self, job: JobId) -> None:
        """As if no poll had listed it: should one do so again, it is read."""
        self._states = {known: states for known, states in self._states.items() if known != job}
        self.forget(job)

    def pause(self) -> None:
        """Slurm cannot be polled."""
        self._open.clear()

    def resume(self) -> None:
        """It can again."""
        self._open.set()

    def _ask(self, job: JobId, queue: dict[JobId, None]) -> None:
        if job in self._reading:
            self._again.add(job)
        elif job not in self._retry:
            queue[job] = None

    def _wake(self) -> None:
        for event, queue in (
            (self._quick, self._wanted or self._urgent),
            (self._later, self._background),
            (self._queued, self._waiting),
            (self._contested, self._running),
        ):
            if queue:
                event.set()
            else:
                event.clear()

    # --- tasks ------------------------------------------------------------------------------------

    def tasks(self) -> list[Coroutine[Any, Any, None]]:
        """To be run side by side for as long as the watcher runs."""
        quick = [self._forever(self._quick, self._next_quick, 0.0) for _ in range(self._width)]
        background = self._forever(self._later, self._next_background, 1.0 / BACKGROUND_PER_SECOND)
        waiting = self._forever(self._queued, self._next_waiting, self._waiting_gap)
        pace = RUNNING_WIDTH / RUNNING_PER_SECOND
        running = [
            self._forever(self._contested, self._next_running, pace, idle=IDLE) for _ in range(RUNNING_WIDTH)
        ]
        return [*quick, background, waiting, *running]

    async def _forever(
        self, work: asyncio.Event, choose: Callable[[], JobId | None], gap: float, idle: float = 0.0
    ) -> None:
        while True:
            await work.wait()
            await self._open.wait()
            job = choose()
            if job is not None:
                await self._read(job)
            else:
                self._wake()  # nothing to do after all: wait, and never spin
            if gap:
                await self._sleep(gap if job is not None else max(gap, idle))

    def _next_quick(self) -> JobId | None:
        return next(iter(self._wanted or self._urgent), None)

    def _next_background(self) -> JobId | None:
        return next(iter(self._background), None)

    def _next_waiting(self) -> JobId | None:
        return self._longest_ago(self._waiting, SAME_JOB_INTERVAL)

    def _next_running(self) -> JobId | None:
        return self._longest_ago(self._running, self._recheck)

    def _longest_ago(self, looked_at: dict[JobId, float], interval: float) -> JobId | None:
        """The one whose last look is longest ago, if that is long enough."""
        job, looked = next(iter(looked_at.items()), (None, 0.0))
        if job is None or self._now() - looked < interval:
            return None
        del looked_at[job]
        looked_at[job] = self._now()
        return job

    async def _read(self, job: JobId) -> None:
        """One full read; raises nothing but cancellation."""
        for queue in (self._wanted, self._urgent, self._background):
            queue.pop(job, None)
        self._wake()
        if job in self._reading:
            return  # the background and the waiting task may choose one that is under way: no need for both
        covers = self._reading[job] = self._states.get(job)
        begun, asked = self.stamp(), self._now()
        news = done = False
        read: JobRecord | None = None
        try:
            read, known = await self._client.job(job), self.records.get(job)
            read = dated(known, remembered(known, read), self._slurm_now())
            news = self.records.get(job) != read
            self.records[job] = read
            self.begun[job], self.asked[job] = begun, asked
            self._denied.pop(job, None)
            done = True
        except NotFound:
            # Of one that is listed it says nothing: asked again, else nobody ever reads it.
            done = covers is None
            news = covers is None and not self.denied(job)
            if covers is None and job not in self._stale:
                self._denied[job] = asked
        except BridgeError as error:
            log.debug("job %d could not be read: %s", job, error)
        except Exception:
            log.exception("reading job %d failed; it is tried again", job)
        finally:
            del self._reading[job]
            self._stale.discard(job)
        if not done:
            self._again.discard(job)
            self._retry[job] = self._now() + RETRY
            return
        self._first.discard(job)
        if covers is not None:
            self._settled[job] = covers
        elif read is not None:
            self._settled[job] = (
                read.states
            )  # not listed yet, as right after a submit: the next poll is no news
        if job in self._again:
            self._again.discard(job)
            self._urgent[job] = None
            self._wake()
        if news or job in self._untold:
            self._untold.discard(job)
            self._told(job)
