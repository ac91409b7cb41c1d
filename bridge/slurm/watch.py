"""The one Slurm watcher: a cheap poll of all job states, and full reads of exactly our jobs that changed.

In: a client, the range of our job ids, and ids outside of it that somebody follows. Out: a cache that anybody on the
loop reads without waiting, and one call of `changed(id)` for every such job whose record or state changed. What must
stay true:

- `states` is always one whole answer of Slurm, and `age` counts from when that question was asked.
- An answer is published only under a boot time that was read after it, whenever it follows an error or takes
  something back (a job gone, a state that went backwards): a rolled-back slurmctld is never taken for news.
- No request of ours keeps a hung daemon's threads: while something is wrong one ping at a time asks for it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Final

from bridge.config import SlurmSettings
from bridge.core.jobid import IdRange
from bridge.core.model import JobId, JobRecord, Partition, States, is_ended
from bridge.errors import BridgeError, Busy, Denied, ProtocolError, Unreachable, trim
from bridge.slurm.archive import Archive
from bridge.slurm.backwards import backwards
from bridge.slurm.census import FORGETFUL, Census
from bridge.slurm.client import SlurmClient
from bridge.slurm.clock import Clock
from bridge.slurm.graces import Graces
from bridge.slurm.pause import Pause
from bridge.slurm.reads import Reads

BOOT_INTERVAL: Final = 1.0  # seconds between looks at the boot time
HURRIED: Final = 0.02  # seconds between two polls after a hint, if polls are as cheap as that
MAX_INTERVAL: Final = 2.0  # seconds: the longest pause between two polls, and the longest back-off
CATCH_UP: Final = 10.0  # seconds that GPUs wait at most, after a start, for reads of jobs that ended before
KEPT_POLLS: Final = 256  # start times that poll_started remembers
KEPT_RECORDS: Final = 900.0  # seconds that a record outlives its id in the state list

log = logging.getLogger("bridge.slurm")


class JobWatcher:
    """Run `run()` as one task; everything else is synchronous and belongs to the same event loop.

    `pace`: followers set it to 10 and poll at a tenth of the rate.
    """

    def __init__(
        self,
        client: SlurmClient,
        settings: SlurmSettings,
        ids: IdRange,
        changed: Callable[[JobId], None],
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.pace = 1.0
        self.polls = 0  # complete polls so far
        self.boot_time = 0.0  # Unix seconds; 0 before the first look
        self.healthy = False  # the last cycle succeeded
        self.problem = "Slurm has not been asked yet"  # "" while healthy
        self._client, self._settings, self._ids = client, settings, ids
        self._changed, self._now, self._sleep = changed, monotonic, sleep
        self._followed: dict[JobId, int] = {}  # outside of our range, and since when, as Reads stamps it
        self._states: dict[JobId, States] = {}
        self._stamp = 0  # of the question of the last complete poll, as Reads stamps them
        self._asked = -math.inf  # when the question of the last complete poll was sent
        self._started: deque[tuple[int, float]] = deque(maxlen=KEPT_POLLS)
        self._booted = -math.inf  # when we first saw a boot that happened while we watched
        self._boot_looked = -math.inf
        self._failures = 0
        self._reconnect = False
        self._ask_ping = False
        self._fresh_since = -math.inf  # when polls went on after a gap, or under a new boot
        self._clock = Clock(monotonic, wall)
        self._caught_up = math.inf  # when nobody waits any longer for reads of the first poll
        self._contested = False  # some job, of whomever, waits for room
        self._costs: deque[float] = deque((0.0, 0.0), maxlen=2)
        self._gone: dict[JobId, float] = {}  # records whose id left the list, and when
        self._rest = Pause(monotonic, sleep)
        self._graces = Graces(client, settings, monotonic, sleep)
        self._reads = Reads(client, settings, self._tell, self._graces, monotonic, sleep, self.slurm_now)
        self._census = Census(client, self._found, monotonic, sleep)
        self._archive = Archive(client, self._tell, monotonic, sleep)
        self._held = False  # as last said: Slurm numbers our jobs

    def __contains__(self, job: JobId) -> bool:
        """Ours, whatever became of it: by its id, or where Slurm numbers our jobs by its mark."""
        return job in self._ids or job in self._census.ours

    # --- what others read -------------------------------------------------------------------------

    @property
    def states(self) -> Mapping[JobId, States]:
        """Ours by id range, of the last complete poll. Never changed in place: a new mapping every poll."""
        return self._states

    @property
    def records(self) -> Mapping[JobId, JobRecord]:
        """The last full read of each job; may be older than `states`; outlives its id there by 15 minutes."""
        return self._reads.records

    @property
    def partitions(self) -> Mapping[str, Partition]:
        """As far as they have been read."""
        return self._graces.partitions

    def newest(self, job: JobId) -> States | None:
        """The state by the last complete poll, or by a read that was begun after it."""
        if self._reads.begun.get(job, 0) > self._stamp:
            return self._reads.records[job].states
        return self._states.get(job)

    def record_age(self, job: JobId) -> float:
        """Seconds since the question was sent that its record answers; inf without one."""
        return self._now() - self._reads.asked.get(job, -math.inf)

    def denied(self, jobs: Iterable[JobId]) -> frozenset[JobId]:
        """Those that are not in the last complete poll, and of which Slurm, asked for them lately, said so."""
        return frozenset(filter(self._reads.denied, jobs))

    def recalled(self, jobs: Iterable[JobId]) -> Mapping[JobId, JobRecord]:
        """What Slurm's accounting has of those that slurmctld doesn't list, as far as it was asked."""
        return self._archive.records(jobs)

    def recallable(self, jobs: Iterable[JobId]) -> Mapping[JobId, str]:
        """Those that may have ended unseen, and whose answer from Slurm's accounting is worth waiting for; and why it
        isn't there, "" = it is on its way."""
        return self._archive.open(job for job in jobs if self.newest(job) is None)

    def unseen(self) -> Iterator[JobId]:
        """Live jobs of ours that nobody has read yet."""
        return (j for j, states in self._states.items() if j not in self.records and not is_ended(states))

    def covers(self, job: JobId) -> bool:
        """The last complete poll looked for this job: its absence there says something."""
        return job in self._ids or self._followed.get(job, math.inf) < self._stamp

    def unknown_for(self) -> float:
        """Seconds since the question of the last poll without a job that may be ours and that nobody has read yet.

        inf: no poll has been read through. Only where Slurm numbers our jobs.
        """
        return self._now() - self._census.known_until()

    def age(self) -> float:
        """Seconds since the last complete poll was begun; inf before the first."""
        return self._now() - self._asked

    def poll_started(self, number: int) -> float:
        """Monotonic time at which poll `number` (counted as in `polls`) began.

        inf: not done yet. -inf: too long ago to be remembered.
        """
        if number > self.polls:
            return math.inf
        return next((began for n, began in reversed(self._started) if n == number), -math.inf)

    def fresh_for(self) -> float:
        """Seconds without a gap in our picture of Slurm, and under one boot of slurmctld."""
        return self._now() - self._fresh_since

    def slurm_now(self) -> float:
        """Unix seconds by slurmctld's clock, by ours before it was asked; neither may jump, see `core.clock`."""
        return self._clock.now()

    def catching_up(self) -> bool:
        """Jobs of the first poll have not all been read, and there was time for a few hundred of them at most."""
        unread = not self.polls or self._reads.behind() or self._census.behind()
        return unread and self._now() < self._caught_up

    def notes(self) -> Iterator[str]:
        """What comes late."""
        for what, why in (("preemption", self._reads.overdue()), ("accounting", self._archive.note())):
            if why:
                yield f"{what}: {why}"

    def boot_age(self) -> float:
        """Seconds since we saw slurmctld's boot time change; inf while it never has."""
        return self._now() - self._booted

    # --- what others tell us ----------------------------------------------------------------------

    def follow(self, job: JobId) -> None:
        """Watch this job like those of our range; nothing is ever looked for among all others."""
        self._followed.setdefault(job, self._reads.stamp())

    def unfollow(self, job: JobId) -> None:
        """Nobody here has anything to do with it any more: neither its end nor its record is news."""
        if self._followed.pop(job, None) is not None and job not in self._census.ours:
            self._states = {known: states for known, states in self._states.items() if known != job}
            self._gone.pop(job, None)
            self._reads.unlist(job)

    def named(self, job: JobId) -> None:
        """A pod names this job anew: what Slurm denied before may have been an earlier one of that id."""
        self._reads.recant(job)

    def note(self, record: JobRecord) -> None:
        """The result of a submit or read of our own: saves the read that the next poll would cause."""
        self._reads.note(record)
        if self._client.rights.held and record.id not in self._ids:
            self._census.ours_too(record.id)

    def want(self, job: JobId) -> None:
        """Read this job in full, before all others. `changed` is called if that brings news."""
        self._reads.want(job)

    def recall(self, job: JobId) -> None:
        """Ask Slurm's accounting for this job. `changed` is called when there is an answer, whatever it is."""
        self._archive.want(job)

    def hint(self, job: JobId) -> None:
        """Somebody says that this job changes about now: looks follow, and nothing else."""
        self._rest.hint()
        if job in self._states or job in self.records:
            self.want(job)

    def forget(self, job: JobId) -> None:
        """The record is no longer needed."""
        self._reads.forget(job)
        self._gone.pop(job, None)

    # --- the loop ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """For ever; ends only by cancellation."""
        async with asyncio.TaskGroup() as tasks:
            for number, reader in enumerate(self._reads.tasks()):
                tasks.create_task(reader, name=f"slurm-read-{number}")
            tasks.create_task(self._graces.run(), name="slurm-graces")
            tasks.create_task(self._census.run(), name="slurm-census")
            tasks.create_task(self._archive.run(), name="slurm-archive")
            while True:
                began = self._now()
                try:
                    await self._cycle()
                except BridgeError as error:
                    await self._sleep(self._failed(error))
                except Exception as error:
                    log.exception("the Slurm watcher's cycle failed; it goes on")
                    await self._sleep(self._failed(error))
                else:
                    taken = self._now() - began
                    await self._rest.take(
                        self._pause(taken, self._settings.pollInterval), self._pause(taken, HURRIED)
                    )

    async def _cycle(self) -> None:
        """One poll, published whole or not at all."""
        if self._ask_ping and not await self._client.ping():
            raise Busy("slurmctld does not answer slurmrestd")
        if self._reconnect:
            await self._client.connect()
            self._reconnect = False
        asked, stamp = self._now(), self._reads.stamp()
        everything = await self._client.states()
        self._costs.append(self._now() - asked)
        self._contested = any("PENDING" in states for states in everything.values())
        ids, marked, followed = self._ids, self._census.ours, self._followed
        ours = {
            job: states
            for job, states in everything.items()
            if job in ids or job in followed or job in marked
        }
        due = asked - self._boot_looked >= BOOT_INTERVAL
        booted = False
        vanished = [job for job in self._reads.unlisted(ours, stamp) if job in self or job in followed]
        if due or self._failures or not self.polls or self._takes_back(ours, vanished):
            booted = await self._look_at_boot()
        self._stamp = stamp
        self._publish(asked, ours, vanished, booted)
        if self._client.rights.held:
            others = {job: states for job, states in everything.items() if job not in self._ids}
            self._census.count(others, asked, booted=booted)
        self._recovered()

    def _takes_back(self, ours: Mapping[JobId, States], vanished: Iterable[JobId]) -> bool:
        """Of the last poll, and of jobs that it didn't show and that an answer to our own request did."""
        records, new = self._reads.records, ours.keys() - self._states.keys()
        noted = ((job, records[job].states) for job in chain(new, vanished) if job in records)
        known = chain(self._states.items(), noted)
        return any(backwards(before, ours.get(job)) for job, before in known)

    async def _look_at_boot(self) -> bool:
        """True: another boot than the last we saw."""
        asked = self._now()
        boot = await self._client.boot_time()
        self._boot_looked = self._now()
        self._clock.told(self._client.slurm_time, asked)
        if self._held != self._client.rights.held:
            self._held = self._client.rights.held
            log.warning(self._client.rights.note() or "the bridge numbers its jobs itself again")
        before, self.boot_time = self.boot_time, boot
        if before in (0.0, boot):
            return False
        self._booted = self._now()
        log.warning("slurmctld has started anew (boot time %.0f, was %.0f)", boot, before)
        return True

    def _publish(
        self, asked: float, ours: dict[JobId, States], vanished: Iterable[JobId], booted: bool
    ) -> None:
        """No await in here: nobody sees half of it."""
        before, first = self._states, not self.polls
        if first:
            self._caught_up = self._now() + CATCH_UP
        if asked - self._asked > self._settings.freshness or booted:
            self._fresh_since = asked
        self._archive.polled(ours, vanished, asked - self._asked)
        self._states = ours
        self._asked = asked
        self.polls += 1
        self._started.append((self.polls, asked))
        for job in tuple(self._reissued(ours, before, booted)):
            self._reads.forget(job)
        for job in vanished:
            self._gone.setdefault(job, self._now())
        for job, since in list(self._gone.items()):
            if job in ours:
                del self._gone[job]
                if job not in self._ids:
                    self._reads.forget(job)  # Slurm may have given its id to another
            elif self._now() - since > KEPT_RECORDS:
                self.forget(job)
        covered = self._reads.polled(ours, vanished, first=first, booted=booted, contested=self._contested)
        for job in ours if first else [*vanished, *covered]:
            self._tell(job)

    def _reissued(
        self, ours: Mapping[JobId, States], before: Mapping[JobId, States], booted: bool
    ) -> Iterator[JobId]:
        """Jobs with a number of Slurm's that a slurmctld which was killed may have given to another: young ones, and
        those that no poll has shown before, and that were read under an earlier boot."""
        since = self.boot_time - FORGETFUL
        for job in ours if booted else ours.keys() - before.keys():
            record = self.records.get(job)
            if job in self._ids or record is None:
                continue
            young = not record.submitted or record.submitted > since
            if (booted and young) or (job not in before and self.record_age(job) >= self.boot_age()):
                yield job

    def _found(self, record: JobRecord) -> None:
        """By its mark. From the next poll on it is watched like any other of ours."""
        self._reads.note(record)
        self._tell(record.id)

    def _tell(self, job: JobId) -> None:
        try:
            self._changed(job)
        except Exception:  # a listener's mistake must not cost the others their news
            log.exception("a listener failed on job %d", job)

    def _pause(self, taken: float, usual: float) -> float:
        """Seconds until the next poll. The cheaper of two polls counts: one slow answer must not blind us."""
        cost = min(self._costs)
        paced = min(usual * self.pace, max(usual, MAX_INTERVAL))
        interval = max(paced, min(cost / self._settings.pollShare, MAX_INTERVAL))
        return max(
            interval - taken, min(cost, MAX_INTERVAL)
        )  # never more than half of the time, however slow

    def _failed(self, error: Exception) -> float:
        """Seconds to wait."""
        if self.healthy or not self._failures:
            log.warning("Slurm cannot be read: %s", error)
        self.healthy = False
        self.problem = trim(str(error)) or type(error).__name__
        self._failures += 1
        self._reads.pause()
        self._census.pause()
        # A refused token or connection costs slurmrestd nothing, and a ping would not tell when it is over.
        self._ask_ping = not isinstance(error, Denied | ProtocolError) and bool(self._client.version)
        # Perhaps another slurmrestd is there by now, with other versions.
        self._reconnect = self._reconnect or isinstance(error, Unreachable | ProtocolError)
        return min(MAX_INTERVAL, self._settings.pollInterval * 2.0 ** min(self._failures, 10))

    def _recovered(self) -> None:
        if self._failures:
            log.info("Slurm can be read again after %d failed looks", self._failures)
        self.healthy, self.problem, self._failures, self._ask_ping = True, "", 0, False
        self._reads.resume()
        self._census.resume()
