"""What only this process knows: caches that make waits shorter and texts better, and nothing that a restart would miss.

Goes in: what the watcher and the groups loop see. Comes out: ages and counts for `bridge.snapshot`. After a restart all
of it is empty, and every group still reaches the same end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from bridge.core.attempt import EXCLUSION_LIFE
from bridge.core.facts import ClaimRefused, Refusal
from bridge.core.grouping.gangs import family_uid
from bridge.core.model import (
    GroupKey,
    JobId,
    JobRecord,
    JobSpec,
    KubeNode,
    SlurmNode,
    States,
    Uid,
    is_ended,
    is_granted,
)

END_KEPT = 600.0  # seconds: longer than slurmctld and the sweep need to bring a lost end to light
LATE = 5.0  # seconds that a request may lie in slurmctld after its caller gave up
HUNG = (
    60.0  # the same, where a late job would be a second one: of a gang whose pods are not the same any more
)
YOUNG_PAUSE = 15.0  # the same while slurmctld has just started
NO_FAST = 10.0  # seconds after an immediate allocation without room in which no other is tried for the group
DRAIN_LOOK = 60.0  # seconds before a node that we drained is looked at again
REFUSAL_PAUSE = 30.0  # seconds before Slurm is asked again for a job that it refused


@dataclass(frozen=True, slots=True)
class _Refused:
    text: str
    until: float  # monotonic
    spec: JobSpec  # another spec is worth another try at once


class Memory:
    """`clock` is monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.watched = (
            0.0  # by slurmctld's clock: until then the leader before us saw Slurm; 0.0 = nobody tells
        )
        self._first_seen: dict[GroupKey, float] = {}
        self._troubles: dict[GroupKey, tuple[str, float]] = {}  # of submits
        self._barred: dict[GroupKey, tuple[str, float]] = {}  # hand-overs that the API server refuses
        self._refused: dict[GroupKey, _Refused] = {}
        self._granted_at: dict[JobId, float] = {}
        self._released_at: dict[JobId, float] = {}
        self._first_nodes: dict[JobId, tuple[SlurmNode, ...]] = {}
        self._nodes: dict[JobId, tuple[SlurmNode, ...]] = {}  # as we saw them last
        self._ran_under: dict[JobId, float] = {}  # boot time of slurmctld when we last saw the job granted
        self._asked: dict[JobId, GroupKey] = {}  # ids read on behalf of a group, whatever their mark says
        self._asked_by: dict[GroupKey, set[JobId]] = {}
        self.slurm_nodes: set[SlurmNode] = set()  # seen in a job's record: Slurm knows these names
        # submits without an answer, by our id or, where Slurm numbers our jobs, by group → when we gave up waiting
        self._ends: dict[JobId, tuple[float, float, int | None, str]] = {}  # when, of which submit, how
        self._doubts: dict[JobId | GroupKey, float] = {}
        self._claims: dict[
            GroupKey, tuple[str, float, int, int]
        ] = {}  # text, when, times taken in a row, times
        self._no_fast: dict[GroupKey, float] = {}
        self._unpadded: dict[GroupKey, float] = {}
        self._shunned: dict[
            str, tuple[tuple[SlurmNode, ...], float]
        ] = {}  # of a family of gangs: nodes, when
        self._drained: dict[SlurmNode, float] = {}
        self._dead_since: dict[KubeNode, float] = {}
        self._ready_since: dict[KubeNode, float] = {}
        self._told: dict[KubeNode, float] = {}
        self._deleted_since: dict[Uid, float] = {}
        self._live: dict[GroupKey, set[JobId]] = {}  # jobs by their mark
        self._marked: dict[JobId, GroupKey] = {}  # of all that Slurm lists
        # the last that was read of a job that held nodes, and its attempt
        self._ran: dict[GroupKey, tuple[int, JobRecord]] = {}
        self._waiting: dict[JobId, str] = {}  # pending jobs of bridges → partition
        self._waiting_in: Counter[str] = Counter()

    def meet(self, key: GroupKey) -> None:
        self._first_seen.setdefault(key, self._clock())

    def known_for(self, key: GroupKey) -> float:
        """Seconds since this process first saw the group."""
        return self._clock() - self._first_seen.get(key, self._clock())

    def forget(self, key: GroupKey) -> None:
        self._first_seen.pop(key, None)
        self._refused.pop(key, None)
        self._troubles.pop(key, None)
        self._barred.pop(key, None)
        self._claims.pop(key, None)
        self._ran.pop(key, None)
        self._no_fast.pop(key, None)
        self._unpadded.pop(key, None)
        self._doubts.pop(key, None)
        for job in self._asked_by.pop(key, ()):
            self._asked.pop(job, None)

    def shun(self, key: GroupKey, nodes: tuple[SlurmNode, ...]) -> None:
        """They refused pods of a gang. Pods tell it themselves; but their controller may make all of them anew."""
        now = self._clock()
        kept = {one: told for one, told in self._shunned.items() if now - told[1] < EXCLUSION_LIFE}
        self._shunned = kept | {family_uid(key): (nodes, now)}

    def shunned(self, key: GroupKey) -> tuple[SlurmNode, ...]:
        nodes, told = self._shunned.get(family_uid(key), ((), 0.0))
        return nodes if nodes and self._clock() - told < EXCLUSION_LIFE else ()

    # --- jobs -------------------------------------------------------------------------------------

    def note_job(self, job: JobId, states: States | None, record: JobRecord | None, boot: float) -> None:
        """A job changed: is it granted, does it wait?"""
        group = record.mark.group if record is not None and record.mark is not None else None
        before = self._marked.get(job)
        if record is not None and before is not None and before != group:  # Slurm has given the id out again
            self.note_job(job, None, None, boot)
            self._note_live(before, job, live=False)
        if record is not None:
            self.slurm_nodes.update(record.nodes)
            self._note_ran(record)
        if states is not None and is_granted(states):
            self._granted_at.setdefault(job, self._clock())
            self._ran_under[job] = boot
            if record is not None and record.nodes:
                if job not in self._first_nodes and record.mark is not None:
                    self.claimed(record.mark.group)  # also where the answer to the claim was lost
                self._first_nodes.setdefault(job, record.nodes)
                if self._nodes.get(job, record.nodes) != record.nodes:  # placed anew: so is everybody's time
                    self._granted_at[job] = self._clock()
                    self._released_at.pop(job, None)
                self._nodes[job] = record.nodes
        else:
            self._granted_at.pop(job, None)
            self._released_at.pop(job, None)
        if states is None:
            self._nodes.pop(job, None)
            self._ran_under.pop(job, None)
            self._first_nodes.pop(job, None)
            self._marked.pop(job, None)
        elif group is not None:
            self._marked[job] = group
        if group is not None:
            self._note_live(group, job, live=states is not None and not is_ended(states))
        waited = self._waiting.pop(job, None)
        if waited is not None:
            self._waiting_in[waited] -= 1
        if states is not None and "PENDING" in states and record is not None and record.mark is not None:
            self._waiting[job] = record.partition
            self._waiting_in[record.partition] += 1

    def ran(self, key: GroupKey) -> JobRecord | None:
        """The last that was read of a job of the group that held nodes: a claim that is refused leaves another record
        under its id."""
        return self._ran.get(key, (0, None))[1]

    def _note_ran(self, record: JobRecord) -> None:
        if (mark := record.mark) is None:
            return
        if not record.nodes or is_ended(record.states):
            if mark.group not in self._first_seen:
                self._ran.pop(mark.group, None)  # of pods that went before we came
        elif mark.attempt >= self._ran.get(mark.group, (0, None))[0]:
            self._ran[mark.group] = (mark.attempt, record)

    def _note_live(self, key: GroupKey, job: JobId, *, live: bool) -> None:
        jobs = self._live.setdefault(key, set())
        (jobs.add if live else jobs.discard)(job)
        if not jobs:
            del self._live[key]

    def live_of(self, key: GroupKey) -> frozenset[JobId]:
        """Live jobs whose mark names this group, of whatever attempt: annotations of the pod may have been edited."""
        return frozenset(self._live.get(key, ()))

    def granted_for(self, job: JobId) -> float | None:
        """Seconds since this process first saw the job granted; None = it isn't."""
        seen = self._granted_at.get(job)
        return None if seen is None else self._clock() - seen

    def ran_under(self, job: JobId, boot: float) -> bool:
        """Did this process see the job granted while that boot of slurmctld was up?"""
        return bool(boot) and self._ran_under.get(job) == boot

    def note_released(self, job: JobId) -> None:
        """A pod of the job was un-gated: from now on kube-scheduler has it."""
        if job in self._granted_at:
            self._released_at[job] = self._clock()

    def unbound_for(self, job: JobId) -> float | None:
        """Seconds that kube-scheduler has had: since the un-gating, else since the grant; None = not granted."""
        seen = self._released_at.get(job, self._granted_at.get(job))
        return None if seen is None else self._clock() - seen

    def moved(self, job: JobId, record: JobRecord | None) -> bool:
        """The job holds other nodes than when this process first saw it granted."""
        first = self._first_nodes.get(job)
        return first is not None and record is not None and bool(record.nodes) and record.nodes != first

    def note_end(self, record: JobRecord, wait_status: int | None, note: str) -> None:
        """We have ended it so, after its containers. A slurmctld that is killed may lose that, and the job comes back;
        or it was a lie that there is none."""
        now = self._clock()
        for job in [job for job, end in self._ends.items() if now - end[0] > END_KEPT]:
            del self._ends[job]
        self._ends[record.id] = (now, record.submitted, wait_status, note)

    def ended_as(self, record: JobRecord) -> tuple[int | None, str] | None:
        """Wait status and note of an end of ours that Slurm does not have."""
        _, submitted, status, note = self._ends.get(record.id, (0.0, -1.0, None, ""))
        return (status, note) if submitted == record.submitted else None

    def waiting_in(self, partition: str) -> int:
        """Placeholders known to wait in that partition."""
        return self._waiting_in[partition]

    def ask(self, job: JobId, key: GroupKey) -> None:
        """This group wants to hear of that job, even if the job turns out to be somebody else's."""
        self._asked[job] = key
        self._asked_by.setdefault(key, set()).add(job)

    def asker(self, job: JobId) -> GroupKey | None:
        return self._asked.get(job)

    @property
    def doubting(self) -> bool:
        return bool(self._doubts)

    def doubt(self, job: JobId | GroupKey) -> None:
        """A submit has no answer: the job may exist, or come to exist when a hung slurmctld goes on."""
        self._doubts[job] = self._clock()

    def doubts(self, job: JobId | GroupKey, poll_age: float, late: float = LATE) -> bool:
        """Still in doubt? Ends with a poll begun well after the question; the caller has looked for the job itself."""
        asked = self._doubts.get(job)
        if asked is not None and self._clock() - poll_age > asked + late:
            del self._doubts[job]
        return job in self._doubts

    def sure(self, job: JobId | GroupKey) -> None:
        self._doubts.pop(job, None)

    # --- nodes, pods and vanished jobs ------------------------------------------------------------------

    def note_node(self, node: KubeNode, *, ready: bool, told: float) -> None:
        """Of every change of a node. One that is gone is not Ready. `told`: since when it is so, by its own condition:
        another moment means that a change in between was not seen."""
        since, other = self._dead_since, self._ready_since
        if ready:
            since, other = other, since
        other.pop(node, None)
        if self._told.get(node) != told:
            since.pop(node, None)
        self._told[node] = told
        since.setdefault(node, self._clock())

    def dead_for(self, node: KubeNode) -> float:
        """Seconds since this process first saw that the node is not Ready, or not there; 0.0 = it is Ready."""
        if not node or node in self._ready_since:
            return 0.0
        return self._clock() - self._dead_since.setdefault(node, self._clock())

    def ready_for(self, node: KubeNode) -> float:
        """Seconds since this process first saw that the node is Ready; 0.0 = it is not."""
        return self._clock() - self._ready_since.get(node, self._clock())

    def note_pod(self, pod: Uid, *, deleted: bool) -> None:
        """Of every change of a pod; `deleted`: it is being deleted, and still there."""
        if deleted:
            self._deleted_since.setdefault(pod, self._clock())
        else:
            self._deleted_since.pop(pod, None)

    def deleted_for(self, pod: Uid) -> float:
        """Seconds since this process first saw that the pod is being deleted; 0.0 = it isn't, or is gone."""
        return self._clock() - self._deleted_since.get(pod, self._clock())

    def note_drained(self, node: SlurmNode) -> None:
        self._drained[node] = self._clock()

    def drained(self, boot_age: float) -> frozenset[SlurmNode]:
        """By us a moment ago. Then it is looked at again: somebody may have resumed the node.

        A drain that is older than slurmctld's start may be lost: a crash undoes its last seconds.
        """
        young = min(DRAIN_LOOK, boot_age)
        self._drained = {n: at for n, at in self._drained.items() if self._clock() - at < young}
        return frozenset(self._drained)

    def no_fast(self, key: GroupKey) -> None:
        """An immediate allocation found no room: the queue is next."""
        self._no_fast[key] = self._clock()

    def fast(self, key: GroupKey) -> bool:
        return self._clock() - self._no_fast.get(key, float("-inf")) > NO_FAST

    def unpad(self, key: GroupKey) -> None:
        """Slurm has refused this group's job, perhaps for what we put on top of its time limit."""
        self._unpadded[key] = self._clock()

    def unpadded(self, key: GroupKey) -> bool:
        return self._clock() - self._unpadded.get(key, float("-inf")) < REFUSAL_PAUSE

    def claim_refused(self, key: GroupKey, text: str, *, taken: bool) -> None:
        """`taken`: others hold the place that this group asked for again."""
        _, _, before, times = self._claims.get(key, ("", 0.0, 0, 0))
        self._claims[key] = (text, self._clock(), before + 1 if taken else 0, times + 1)

    def claim(self, key: GroupKey) -> ClaimRefused | None:
        if (known := self._claims.get(key)) is None:
            return None
        text, at, taken, times = known
        return ClaimRefused(text=text, age=self._clock() - at, taken=taken, times=times)

    def claimed(self, key: GroupKey) -> None:
        self._claims.pop(key, None)

    # --- troubles and refusals ---------------------------------------------------------------------------------

    def trouble(self, key: GroupKey, text: str) -> None:
        """A submit of this group failed, and is tried again."""
        since = self._troubles.get(key, ("", self._clock()))[1]
        self._troubles[key] = (text, since)

    def fine(self, key: GroupKey) -> None:
        self._troubles.pop(key, None)

    def lasting_trouble(self, key: GroupKey, patience: float) -> str:
        """What has gone wrong for longer than `patience` seconds, "" = nothing."""
        text, since = self._troubles.get(key, ("", self._clock()))
        return text if self._clock() - since >= patience else ""

    def bar(self, key: GroupKey, text: str) -> None:
        """The API server refuses to let a pod of this group go to its node."""
        self._barred[key] = (text, self._barred.get(key, ("", self._clock()))[1])

    def unbar(self, key: GroupKey) -> None:
        self._barred.pop(key, None)

    def barred(self, key: GroupKey, patience: float) -> str:
        """Why it has refused for longer than `patience` seconds, "" = it doesn't."""
        text, since = self._barred.get(key, ("", self._clock()))
        return text if self._clock() - since >= patience else ""

    def refuse(self, key: GroupKey, spec: JobSpec, text: str, *, young: bool = False) -> None:
        """`young`: slurmctld has just started, and its nodes may not have registered yet."""
        pause = YOUNG_PAUSE if young else REFUSAL_PAUSE
        self._refused[key] = _Refused(text, self._clock() + pause, spec)

    def refusal(self, key: GroupKey, spec: JobSpec) -> Refusal | None:
        """What Slurm said to exactly this job within the last minute."""
        refused = self._refused.get(key)
        if refused is None:
            return None
        left = refused.until - self._clock()
        if left <= 0 or refused.spec != spec:
            del self._refused[key]
            return None
        return Refusal(text=refused.text, retry_in=left)
