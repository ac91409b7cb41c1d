"""What a decision about one group may look at: the READ door fills it, `core.lifecycle` reads it.

Everything is a value taken at one moment. Ages are seconds on a monotonic clock; `now` is Unix seconds and used only
for texts and back-off, `slurm_now` is slurmctld's clock, which alone is compared with the times in its records; where
it may be wrong it is too early, never too late (`core.clock`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bridge.core.attempt import Attempt
from bridge.core.fit import EVERYWHERE, Fit, Taken
from bridge.core.ledger import Busy
from bridge.core.model import (
    Group,
    GroupKey,
    JobId,
    JobRecord,
    JobSpec,
    Node,
    Pod,
    SlurmNode,
    States,
    is_ended,
    is_granted,
)
from bridge.core.steps import Step
from bridge.core.verdict import Verdict

NEVER = float("inf")
UNKILLABLE = (
    3600.0  # seconds after its grace for which a deleted pod's containers may live on, on a node that works
)
PATIENCE = 10.0  # seconds without progress before a waiting pod says why


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One pod of the group, existing or just gone."""

    pod: Pod
    gone_age: float | None = None  # seconds since we saw the object disappear; None = it exists
    node_ready: bool = False  # its node exists and kubelet reports Ready
    node_ready_for: float = NEVER  # seconds since we first saw that, after it was not so; 0.0 = it isn't so
    node_dead_for: float = 0.0  # seconds since we first saw that it isn't so; 0.0 = it is
    node_ready_since: float = 0.0  # by its own condition, as far as we saw it
    node_view_age: float = 0.0  # seconds for which nodes have not been seen: what was so may no longer be
    deleted_for: float = 0.0  # seconds since we first saw that it is being deleted

    @property
    def exists(self) -> bool:
        return self.gone_age is None

    def containers_dead(self, margin: float) -> bool:
        """Known dead: never placed, ended by kubelet, or gone for its grace and a margin from a node that works.

        The control plane may call a pod Failed while its node is out of reach: then a status still says running.
        """
        if self.told_dead:
            return True
        if self.gone_age is None or not self.node_ready:
            return False
        # A kubelet that was cut off hears of it only when it is back, and then gives the pod its grace.
        return had_time(
            min(self.gone_age, self.node_ready_for), self.node_view_age, grace=self.pod.grace, margin=margin
        )

    @property
    def told_dead(self) -> bool:
        """Not by time alone."""
        return not self.pod.node or (self.pod.ended and self._told_dead())

    def _told_dead(self) -> bool:
        """By kubelet. One that works and refused the pod has no containers to tell of; of one that is out of reach the
        last word on a container may be that it is about to start again."""
        if self.node_ready:
            return not any(status.running for status in self.pod.statuses)
        return bool(self.pod.statuses) and all(status.terminated for status in self.pod.statuses)

    def stranded(self, margin: float) -> bool:
        """To be gone, on a node that has been dead for longer than a living kubelet would take: nobody will ever say
        whether its containers still run."""
        wait = self.pod.grace + margin
        if not self.pod.node or self.node_dead_for < wait:
            return False
        if self.gone_age is not None:
            return self.gone_age >= wait
        return bool(self.pod.deleted) and self.deleted_for >= wait

    @property
    def out_of_reach(self) -> bool:
        """On a node that does not answer, or is gone, and kubelet has not told that its containers are dead."""
        return self.node_dead_for > 0 and not self.told_dead

    @property
    def dies_in(self) -> float:
        """Seconds for which the containers of a pod that is being deleted may live on."""
        return self.pod.grace + UNKILLABLE - self.deleted_for

    def dead_in(self, margin: float) -> float:
        """Seconds until the answer of `containers_dead` or `stranded` may change by time alone."""
        ages = (self.gone_age, self.node_dead_for, self.node_ready_for, self.deleted_for)
        since = min((age for age in ages if age), default=0.0)
        return max(1.0, self.pod.grace + margin - since)


def had_time(since: float, view_age: float, *, grace: float, margin: float) -> bool:
    """Has a kubelet that has worked for `since` seconds, as far as was seen `view_age` seconds ago, ended a pod?

    It needs the grace and a moment; half of the margin may go by without a look at its node.
    """
    return since >= grace + margin and since - view_age >= grace + margin / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What is known of one job id that this group may have used."""

    id: JobId
    states: States | None  # by the last complete poll, or by a read begun after it; None: not listed
    record: JobRecord | None  # the last full read, possibly of an older state
    polled: bool = True  # the last complete poll, made under a known boot of slurmctld, says the same
    read_age: float = 0.0  # seconds since the record was asked for: a new time limit shows in no state
    named: bool = False  # a pod of the group names this job (core.held.names)

    @property
    def live(self) -> bool:
        return self.states is not None and not is_ended(self.states)

    @property
    def read(self) -> JobRecord | None:
        """The record, if it tells about the state that is listed now."""
        return self.record if self.record is not None and self.record.states == self.states else None

    @property
    def never_ran(self) -> bool:
        """What a failed immediate allocation or a refused submit leaves: FAILED, never a node, and no evidence.

        A job that is still COMPLETING had nodes: Slurm just doesn't list them any more.
        """
        if self.record is not None and self.record.stillborn:
            return True
        states = self.states or frozenset()
        bare = self.record is None or not self.record.nodes
        return "FAILED" in states and "COMPLETING" not in states and bare

    @property
    def over(self) -> bool:
        """Its last record says that it had nodes and ended."""
        return self.record is not None and bool(self.record.nodes) and is_ended(self.record.states)

    @property
    def rank(self) -> tuple[bool, bool, bool, bool, JobId]:
        """A running job before a waiting one before an ended one; a double that we cancelled comes last.

        Of two that wait the one that a pod names: others may rely on it.
        """
        states = self.states or frozenset()
        return (not is_granted(states), not self.live, "CANCELLED" in states, not self.named, self.id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Slurm, or our own translation, said that this job can't be as it is written."""

    text: str
    retry_in: float | None  # seconds until it is worth asking again; None = when the pod changes


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRefused:
    """What Slurm said when the place of a vanished job was asked for again."""

    text: str
    age: float  # seconds ago
    taken: int  # how often in a row it said that others hold the nodes
    times: int = 1  # how often it said no


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Settings that decisions need (bridge.config.PlacementSettings and SlurmSettings say what they mean)."""

    bind_timeout: float = 30.0
    death_margin: float = 30.0
    boot_grace: float = 300.0
    poll_age: float = 5.0  # an older state poll is no ground to submit or to conclude an absence
    max_attempts: int = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    group: Group
    members: tuple[Member, ...]
    ghosts: tuple[Member, ...] = ()  # of a gang: who went before this process began, on each node of its job
    attempt: Attempt
    cluster: str
    now: float
    slurm_now: float = 0.0
    spec: JobSpec | None = None  # of the current attempt; None while refused or when no pod is left
    refusal: Refusal | None = None
    epoch: str = ""  # by which rules pods become jobs now (core.changed)
    fit: Fit = EVERYWHERE  # which nodes can take its pods now
    beside: Mapping[SlurmNode, Taken] = field(
        default_factory=dict
    )  # of a gang that is to start: on its job's nodes
    unread: str = ""  # "Job ns/name has not been read yet", or "waiting for …, which does not exist"
    fast_id: JobId | None = None  # the id of this attempt's immediate allocation
    fast_allowed: bool = False
    probes: tuple[JobId, ...] = ()  # ids for the queue, in the order to try
    current: frozenset[JobId] = frozenset()  # every id of the current attempt
    former: tuple[JobId, ...] = ()  # those of the attempt before, in the order in which they were asked for
    rivals: Mapping[JobId, GroupKey] = field(default_factory=dict)  # live jobs of others that name these pods
    unseen: tuple[JobId, ...] = ()  # of a gang: live jobs that nobody has read yet, and that may be its pods'
    doubted: frozenset[JobId] = (
        frozenset()
    )  # submits of ours that may still turn out to have been carried out
    held: bool = False  # Slurm numbers our jobs: ids below are those that carry our mark (core.held)
    unknown: bool = False  # so numbered, a job of this group may exist that nobody has read yet
    surveyed: bool = True  # so numbered, every job that the last poll lists has been read
    sights: Mapping[JobId, Sight] = field(default_factory=dict)  # listed or read ids of every attempt so far
    nodes: Mapping[SlurmNode, Node] = field(default_factory=dict)  # Kubernetes twins
    poll_age: float = NEVER  # since the last complete state poll began
    known_for: float = NEVER  # that this process has known the group
    steady: bool = (
        True  # the last poll succeeded: slurmctld has not gone away, and perhaps back in time, since
    )
    boot_age: float = NEVER  # since slurmctld's boot time changed under our eyes
    booted: float = 0.0  # when slurmctld started, by its clock; 0.0 = not known yet
    watched: float = (
        0.0  # by slurmctld's clock: until then a leader before this one saw Slurm; 0.0 = nobody tells
    )
    seen_running: frozenset[JobId] = frozenset()  # by this process, under the slurmctld boot that is up now
    denied: frozenset[JobId] = frozenset()  # Slurm itself said of these, when asked, that it has no such job
    recallable: Mapping[JobId, str] = field(
        default_factory=dict
    )  # not listed; may have ended unseen, and Slurm's accounting has not told yet: why, or "" = it is being asked
    recalled: Mapping[JobId, JobRecord] = field(default_factory=dict)  # what it said of such
    ran: JobRecord | None = None  # the last that this process has read of a job of the group that held nodes
    claim_refused: ClaimRefused | None = None  # what it said when the place of a vanished job was asked for
    drained: frozenset[SlurmNode] = frozenset()  # by this process
    moved: frozenset[JobId] = frozenset()  # hold other nodes than when this process first saw them granted
    trouble: str = ""  # why submits of this group have failed for a while
    barred: str = ""  # why the API server has refused for a while to let a pod go to its node
    stuck: str = ""  # the same, for as long as kube-scheduler has for a binding
    granted_age: float = (
        0.0  # that kube-scheduler has had: since this process saw the grant, or un-gated a pod
    )
    room: bool = True  # another pod may be un-gated now
    catching_up: bool = False  # jobs that ended before this process began have not been read yet
    busy: Mapping[JobId, Busy] = field(default_factory=dict)  # grants whose GPUs others may still use
    wanted: bool = False  # a grant of ours waits for devices that its pods use
    takeovers: Mapping[JobId, tuple[Step, ...] | Verdict] = field(
        default_factory=dict
    )  # labelled jobs without a mark of ours: what becomes of them, or why they are left alone
    limits: Limits = Limits()

    def lived(self, job: JobId) -> bool:
        """The last that we know of that id is a live job of this group."""
        record = self.sights[job].record if job in self.sights else None
        return record is not None and self.owns(record) and not is_ended(record.states)

    def absent(self, job: JobId) -> bool:
        """The list lacks it."""
        sight = self.sights.get(job)
        return sight is None or sight.states is None

    def hidden(self, job: JobId) -> bool:
        """The list lacks it, Slurm has not been asked for it, and for all that we know it may be a live job of ours."""
        sight = self.sights.get(job)
        unknown = sight is None or sight.record is None or self.lived(job) or self._undone(sight)
        return unknown and self.absent(job) and job not in self.denied

    def _undone(self, sight: Sight) -> bool:
        """slurmctld has started since it was read: a crash may have undone the end of this job of ours."""
        return self.owns(sight.record) and sight.read_age >= self.boot_age

    def owns(self, record: JobRecord | None) -> bool:
        """The mark names this cluster and this very group: name and namespace alone would match a successor."""
        mark = record.mark if record else None
        return mark is not None and mark.cluster == self.cluster and mark.group == self.group.key

    @property
    def slurm_fresh(self) -> bool:
        return self.poll_age <= self.limits.poll_age

    @property
    def boot_grace(self) -> bool:
        """slurmctld has just come up: absence, re-placement and NODE_FAIL prove nothing yet."""
        return self.boot_age < self.limits.boot_grace
