"""The groups loop: every change of a pod or a job makes its group look again; one worker a group at a time.

look (snapshot.facts) → decide (core.lifecycle) → act (apply, stop at the first failure) → look again. Nothing is rolled
back: the next look is the recovery.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace

from bridge.apply import WriteDoor
from bridge.core import held
from bridge.core.breaker import PAUSE, Key
from bridge.core.grouping.gangs import generation_of
from bridge.core.lifecycle import decide
from bridge.core.model import GroupKey, JobId, JobRecord, Pod, SlurmNode, Uid, Workload
from bridge.core.outcomes import Outcome, of_submit, refusal, too_long
from bridge.core.steps import (
    TO_A_JOB,
    TO_A_POD,
    AdoptJob,
    Decision,
    DeletePod,
    DrainNode,
    EndJob,
    Forsake,
    Nominate,
    Prioritize,
    Release,
    Step,
    SubmitHeld,
    SubmitJob,
    Unhold,
    UpdateExclusions,
    onto,
)
from bridge.core.verdict import Reason, Verdict
from bridge.errors import BridgeError, Busy, Conflict, Denied, Invalid, NotFound, StaleView
from bridge.log import logger
from bridge.loops.guard import Guard
from bridge.loops.queue import KeyedQueue
from bridge.loops.verdicts import Verdicts
from bridge.metrics import QUEUE, SUBMITS
from bridge.slurm.watch import JobWatcher
from bridge.snapshot import Snapshot

log = logger("groups")
RESYNC = 60.0  # seconds in which every group is looked at about once, whatever happened
RESYNC_TICK = 0.25  # seconds
STIRRED_PAUSE = 0.005  # seconds between groups of which a change of one node may change the jobs
UNKNOWN_NODE = 2018  # Slurm's error number for a node name that it doesn't know
STALE = 2.0  # seconds: that a job is to end is decided anew when the steps before it took longer, as it frees devices
NODES_BUSY = 2016  # Slurm's error number for a place that others hold
ASK_FOR_OWNER = 2.0  # seconds without the Job of a pod
UNSYNCED_PAUSE = 0.1  # seconds between looks while the first lists are under way


class GroupsLoop:
    def __init__(
        self,
        snapshot: Snapshot,
        door: WriteDoor,
        watcher: JobWatcher,
        guard: Guard,
        *,
        leading: Callable[[], bool],
        workers: int,
        clock: Callable[[], float],
    ) -> None:
        self.queue: KeyedQueue[GroupKey] = KeyedQueue()
        self._snapshot = snapshot
        self._door = door
        self._watcher = watcher
        self._guard = guard
        self._held: dict[GroupKey, frozenset[Key]] = {}  # by the breaker
        self._leading = leading
        self._clock = clock
        self._workers = workers
        self.verdicts = Verdicts(clock)
        snapshot.roster.on_move(self.queue.add)

    # --- events -----------------------------------------------------------------------------------

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        key = self._snapshot.roster.key_of(pod.uid) if pod is not None else None
        if key is not None:
            self.queue.add(key)

    def workload_changed(self, old: Workload | None, new: Workload | None) -> None:
        """What its annotations count for looks again."""
        for work in (old, new):
            for key in self._snapshot.roster.below(work) if work is not None else ():
                self.queue.add(key)

    def job_changed(self, job: JobId) -> None:
        for key in self._snapshot.job_changed(job):
            self.queue.add(key, urgent=True)

    def look_at_held(self) -> None:
        """The breaker has closed."""
        for key in self._held:
            self.queue.add(key)

    # --- tasks ------------------------------------------------------------------------------------

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(self._workers):
                tasks.create_task(self._work(), name=f"group-worker-{number}")
            tasks.create_task(self._resync(), name="group-resync")

    async def _work(self) -> None:
        while True:
            key = await self.queue.get()
            try:
                await self._look(key)
            except Exception:
                log.exception("a look at a group failed; it is looked at again", group=str(key))
                self.queue.retry(key, at_least=1.0)
            finally:
                self.queue.done(key)

    async def _resync(self) -> None:
        """Every group once a minute, spread out: what an event should have told and didn't. All at once on election.
        And those soon whose pods other nodes can take than before."""
        was_leading = False
        due: deque[GroupKey] = deque()
        share, next_round = 0, asyncio.get_running_loop().time() + RESYNC
        while True:
            leading = self._leading()
            if was_leading and not leading:
                self.verdicts.forget_all()
            if leading and not was_leading:
                for key in self._snapshot.roster:
                    self.queue.add(key)
            was_leading = leading
            for place, key in enumerate(self._snapshot.stirred()):
                self.queue.add_after(key, min(place * STIRRED_PAUSE, RESYNC))
            if not due and asyncio.get_running_loop().time() >= next_round:
                due = deque(self._snapshot.roster)
                share = math.ceil(len(due) * RESYNC_TICK / RESYNC)
                next_round = asyncio.get_running_loop().time() + RESYNC
            for _ in range(min(share, len(due))):
                self.queue.add(due.popleft())
            QUEUE.set(len(self.queue))
            await asyncio.sleep(RESYNC_TICK)

    # --- one look ---------------------------------------------------------------------------------

    async def _look(self, key: GroupKey) -> None:
        if not self._leading():
            return
        facts = self._snapshot.facts(key)
        if facts is None:
            self._relent(key)
            if not self._snapshot.synced:
                self.queue.add_after(key, UNSYNCED_PAUSE)
            return
        if facts.unread and facts.known_for > ASK_FOR_OWNER:
            await self._snapshot.owners.ask(facts.members[0].pod)
        if not facts.doubted and not (facts.held and facts.unknown):
            self._snapshot.roster.answered(key)
        decision = self._guarded(key, decide(facts))
        self.verdicts.say(key, decision.verdict)
        for job in decision.reads:
            self._snapshot.memory.ask(job, key)
            self._watcher.want(job)
        for job in decision.recalls:
            self._snapshot.memory.ask(job, key)
            self._watcher.recall(job)
        if not await self._act(key, decision):
            return
        self.queue.succeeded(key)
        if decision.settled:
            self._snapshot.roster.settle(key)
            self.queue.forget(key)
            if key not in self._snapshot.roster:
                self.verdicts.forget(key)
        elif decision.again is not None:
            self.queue.add_after(key, decision.again)
        elif decision.reads:
            self.queue.add_after(key, 2.0)  # in case the read brings no news

    def _guarded(self, key: GroupKey, decision: Decision) -> Decision:
        """What the breaker holds back is not done, not even in part; its job is read again, and then asked again."""
        jobs = {step.job for step in decision.steps if isinstance(step, DeletePod) and step.guarded}
        nodes = {step.node for step in decision.steps if isinstance(step, DrainNode)}
        records = self._watcher.records
        asked = [self._guard.admit(job, records.get(job)) for job in jobs]
        asked += [self._guard.admit(node) for node in nodes]
        self._relent(key, but=jobs | nodes)
        if all(asked):
            return decision
        self._held[key] = frozenset(jobs | nodes)
        text = f"{decision.verdict.text}; held back, as too many end at once"
        return Decision(verdict=Verdict(Reason.HELD_BACK, text), reads=tuple(sorted(jobs)), again=PAUSE + 1.0)

    def _relent(self, key: GroupKey, but: Collection[Key] = ()) -> None:
        """Nothing is to be done any more about what was held back of this group, `but` these."""
        for one in self._held.pop(key, frozenset()).difference(but):
            self._guard.relent(one)

    async def _act(self, key: GroupKey, decision: Decision) -> bool:
        """True if every step was carried out. What a write of ours made of a pod is no change under our hands."""
        latest: dict[Uid, Pod] = {}
        begun = self._clock()
        for planned in decision.steps:
            if isinstance(planned, EndJob) and self._clock() - begun > STALE:
                self.queue.add(key)
                return False
            step = onto(latest, planned)
            if isinstance(step, EndJob):
                step = replace(step, group=key)
            if isinstance(step, SubmitJob | SubmitHeld):
                self._snapshot.roster.ask(key)
            try:
                answer = await self._door.apply(step)
            except StaleView:
                return False
            except BridgeError as error:
                self._failed(key, step, error)
                if isinstance(error, Conflict) and isinstance(step, TO_A_POD):
                    await self._read(step.pod)
                elif isinstance(error, Conflict) and isinstance(step, TO_A_JOB):
                    self._watcher.want(step.id)
                return False
            self._succeeded(key, step, answer)
            if isinstance(answer, Pod):
                latest[answer.uid] = answer
        return True

    async def _read(self, pod: Pod) -> None:
        """It has changed, and a watch that is slow, or dead, may not tell for long."""
        with suppress(BridgeError):
            await self._snapshot.read(pod)

    def _succeeded(self, key: GroupKey, step: Step, answer: Pod | JobId | SlurmNode | None) -> None:
        if isinstance(answer, Pod):
            self._snapshot.learn(answer)
        if isinstance(step, Release):
            self._snapshot.memory.note_released(step.job)
            self._snapshot.memory.unbar(key)
        if isinstance(step, Forsake) and generation_of(key) and step.attempt.excluded:
            self._snapshot.memory.shun(key, step.attempt.excluded)
        if isinstance(step, DrainNode) and answer is not None:  # others may lift theirs
            self._snapshot.memory.note_drained(step.node)
        if isinstance(step, SubmitJob | SubmitHeld):
            self._snapshot.memory.fine(key)
            self._snapshot.memory.unbar(key)
            self._snapshot.memory.claimed(key)
            SUBMITS.labels(Outcome.CREATED.value).inc()
        if isinstance(step, SubmitJob):
            self._submitted(key, step)
        if isinstance(step, SubmitHeld) and isinstance(answer, int):
            self._numbered(key, step, answer)
        if isinstance(step, Unhold) and (known := self._watcher.records.get(step.id)) is not None:
            self._watcher.note(replace(known, reason=""))
        if isinstance(step, Prioritize) and (known := self._watcher.records.get(step.id)) is not None:
            self._watcher.note(replace(known, priority=step.priority))
        if isinstance(step, UpdateExclusions) and (known := self._watcher.records.get(step.id)) is not None:
            own = step.excluded
            parts = tuple(replace(part, excluded=own.get(part.id, part.excluded)) for part in known.parts)
            self._watcher.note(replace(known, excluded=own.get(known.id, known.excluded), parts=parts))
        if isinstance(step, AdoptJob) and (known := self._watcher.records.get(step.id)) is not None:
            self._watcher.note(replace(known, mark=step.mark, overwritten=False))
            self.job_changed(step.id)
        if isinstance(step, EndJob):
            self._ended(step)
            self.queue.add(key)

    def _submitted(self, key: GroupKey, step: SubmitJob) -> None:
        self._snapshot.memory.ask(step.id, key)
        self._snapshot.memory.sure(step.id)
        if step.immediate:
            self._note(step, "RUNNING")
            self._watcher.want(step.id)  # its nodes are all that is missing
        else:
            self._note(step, "PENDING")
        list(self._snapshot.job_changed(step.id))  # it counts from now on

    def _numbered(self, key: GroupKey, step: SubmitHeld, job: JobId) -> None:
        """Slurm has given the job an id: the next look names it on its pod."""
        self._snapshot.memory.ask(job, key)
        self._watcher.note(
            JobRecord(
                id=job,
                states=frozenset({"PENDING"}),
                reason=held.REASON,
                mark=step.spec.mark,
                partition=step.spec.partition,
                tasks=step.spec.tasks,
                required=step.spec.required_nodes,
            )
        )
        list(self._snapshot.job_changed(job))
        self.queue.add(key)

    def _ended(self, step: EndJob) -> None:
        """Noted like a submit: what we ended is not ended again before the next state poll, which has the last word."""
        record = self._watcher.records.get(step.id)
        if record is not None:
            if step.mark is not None:  # its containers are dead
                self._snapshot.memory.note_end(record, step.wait_status, step.note)
            state = "CANCELLED" if step.wait_status is None else "FAILED" if step.wait_status else "COMPLETED"
            self._watcher.note(replace(record, states=frozenset({state}), mark=step.mark or record.mark))
            list(self._snapshot.job_changed(step.id))

    def _note(self, step: SubmitJob, state: str) -> None:
        """What we know without a read: the answer to our own submit."""
        self._watcher.note(
            JobRecord(
                id=step.id,
                states=frozenset({state}),
                mark=step.spec.mark,
                partition=step.spec.partition,
                tasks=step.spec.tasks,
            )
        )

    def _failed(self, key: GroupKey, step: Step, error: BridgeError) -> None:
        if isinstance(step, SubmitJob | SubmitHeld):
            self._submit_failed(key, step, error)
            return
        if isinstance(step, UpdateExclusions) and error.code == UNKNOWN_NODE:
            self._snapshot.memory.slurm_nodes.clear()
        if isinstance(step, EndJob) and isinstance(error, Conflict):
            self._watcher.want(step.id)
        if isinstance(step, Release | Nominate) and isinstance(error, Denied | Invalid):
            said = f"the API server does not let the pod go to its node: {error.said or error}"
            self._snapshot.memory.bar(key, said)
        delay = self.queue.retry(key, at_least=error.retry_after if isinstance(error, Busy) else 0.0)
        # The pod changed under our hands, was bound for example: the next look sees it.
        overtaken = isinstance(error, Conflict | NotFound) or isinstance(step, Nominate)
        (log.info if overtaken else log.warning)(
            "a step failed; the group is looked at again",
            group=f"{key.namespace}/{key.name}", step=type(step).__name__, error=f"{type(error).__name__}: {error}",
            again=f"{delay:.1f}s",
        )  # fmt: skip

    def _submit_failed(self, key: GroupKey, step: SubmitJob | SubmitHeld, error: BridgeError) -> None:
        outcome = of_submit(error, immediate=isinstance(step, SubmitJob) and step.immediate)
        SUBMITS.labels(outcome.value).inc()
        if isinstance(step, SubmitJob):
            self._left_behind(key, step, outcome)
        match outcome:
            case Outcome.NO_ROOM | Outcome.REFUSED if too_long(step, outcome, error):
                self._snapshot.memory.unpad(key)
                self.queue.add(key)
            case Outcome.NO_ROOM | Outcome.REFUSED if step.spec.required_nodes:
                said = error.said or str(error)
                self._snapshot.memory.claim_refused(key, said, taken=error.code == NODES_BUSY)
                self.queue.add(key)
            case Outcome.NO_ROOM:
                self._snapshot.memory.no_fast(key)
                self.queue.add_after(key, 2.0)
            case Outcome.TAKEN:  # by whom is not read yet: perhaps by an earlier submit of ours
                self._snapshot.memory.doubt(step.id if isinstance(step, SubmitJob) else key)
                self.queue.add_after(key, 2.0)
            case Outcome.REFUSED if error.code == UNKNOWN_NODE and self._snapshot.memory.slurm_nodes:
                self._snapshot.memory.slurm_nodes.clear()  # one was deleted in Slurm: learn them anew
                self.queue.add(key)
            case Outcome.REFUSED:
                self._snapshot.memory.refuse(key, step.spec, refusal(step, error), young=self._snapshot.young)
                self.queue.add(key)
            case _:
                if outcome is Outcome.UNKNOWN:
                    self._snapshot.memory.doubt(step.id if isinstance(step, SubmitJob) else key)
                said = f"the job can't be submitted, and is tried again: {error.said or error}"
                self._snapshot.memory.trouble(key, said)
                delay = self.queue.retry(key, at_least=error.retry_after if isinstance(error, Busy) else 0.5)
                log.warning(
                    "a submit has no answer yet; its job is looked for, then asked for again",
                    group=f"{key.namespace}/{key.name}", outcome=outcome.value,
                    error=f"{type(error).__name__}: {error}", again=f"{delay:.1f}s",
                )  # fmt: skip

    def _left_behind(self, key: GroupKey, step: SubmitJob, outcome: Outcome) -> None:
        """What there may be under the id that we chose, although the submit failed."""
        self._snapshot.memory.ask(step.id, key)
        # What a refusal leaves under the id is read, and not just believed: an answer may be a lie, and another id for
        # a job that runs would be a second job.
        if outcome in (Outcome.NO_ROOM, Outcome.TAKEN, Outcome.UNKNOWN) or step.spec.required_nodes:
            self._watcher.want(step.id)
