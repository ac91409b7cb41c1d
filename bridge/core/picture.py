"""What somebody sees of both sides at one moment, and the way from one moment to the next.

In: pods, jobs and nodes as the nouns of `core.model`, from wherever they were read. Out: the relations between them
that `core.invariants` judges. What must stay true: nothing here knows how the bridge decides; who makes a picture says
how exactly the bridge can be held to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from bridge.core.model import JobId, JobRecord, KubeNode, Node, Pod, SlurmNode, Uid, is_ended, torn
from bridge.core.nodes import NodeRecord
from bridge.names import GANG_ANNOTATION, JOB_ID_LABEL, OPTION_PREFIX

MINUTE = 60.0  # seconds: Slurm's time limits are whole minutes, rounded up


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Both sides at one moment, as somebody saw them; and how exactly the bridge can be held to what it promises."""

    cluster: str
    now: float
    pods: tuple[Pod, ...] = ()  # with a scheduler name of ours; they exist
    gone: tuple[Pod, ...] = ()  # they existed: the last state that was seen
    dead: frozenset[Uid] = frozenset()  # containers known not to run, beyond what the status tells
    jobs: tuple[JobRecord, ...] = ()  # ours, and as many of others as are known
    nodes: Mapping[SlurmNode, Node] = field(default_factory=dict)
    drained: frozenset[SlurmNode] = frozenset()  # in Slurm, by whomever
    records: Mapping[SlurmNode, NodeRecord] = field(
        default_factory=dict
    )  # of all nodes, where they are judged, too
    since: Mapping[SlurmNode, float] = field(
        default_factory=dict
    )  # when each was drained, under whatever reason
    author: str = ""  # the user as whom the bridge drains nodes; "" = by their text alone
    drain_taints: tuple[str, ...] = ()  # for which external nodes are drained
    drain_share: float = 0.1  # of the nodes that may be drained at a time as they are not Ready
    recreation_share: float = 0.05  # of external nodes that may be re-created at a time
    alone: bool = True  # no second bridge believes that it leads
    booted: float = (
        0.0  # slurmctld's start, before which it may have forgotten its last seconds; 0 = not known
    )
    boot_grace: float = 0.0  # seconds after it in which the bridge takes nothing for lost
    repair: float = 0.0  # seconds beyond that in which it puts right what was forgotten
    view_age: float = 2.0  # seconds: a binding may rest on a look at Slurm that is this old
    skew: float = 1.0  # seconds between the clocks of both sides; Kubernetes writes whole ones
    patience: float = 10.0  # seconds that a pod may wait in silence
    limit_margin: float = 60.0  # seconds, beside its grace, that a pod ends before its job would
    restarts: frozenset[Uid] = (
        frozenset()
    )  # workloads whose gangs restart as a whole when one of them is lost
    heeds_limits: bool = (
        False  # nothing has kept the bridge from ending pods in time, for longer than they need
    )
    handover: bool = True  # native jobs are made to wait for a device (False: not promised, not counted)
    _own: Mapping[Uid, list[JobRecord]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        own: dict[Uid, list[JobRecord]] = {}
        named = {pod.ref: pod for pod in self.pods}
        joined: dict[str, list[Pod]] = {}
        for pod in (*self.pods, *self.gone):
            if GANG_ANNOTATION in pod.annotations:
                joined.setdefault(pod.labels.get(JOB_ID_LABEL, ""), []).append(pod)
        for job in self.jobs:
            uids = (*self._uids(job, named), *self._joined(job, joined.get(str(job.id), ())))
            for uid in dict.fromkeys(uids):
                own.setdefault(uid, []).append(job)
        object.__setattr__(self, "_own", own)

    def _uids(self, job: JobRecord, named: Mapping[str, Pod]) -> tuple[Uid, ...]:
        """The pods that the job is for; of one that the Go project submitted, those that name it in their label."""
        if job.mark is not None:
            return job.mark.uids if job.mark.cluster == self.cluster else ()
        pods = [named.get(ref) for ref in job.listed]
        return tuple(p.uid for p in pods if p is not None and p.labels.get(JOB_ID_LABEL) == str(job.id))

    def _joined(self, job: JobRecord, pods: Iterable[Pod]) -> Iterator[Uid]:
        """Pods that came for lost ones: a slurmctld that was killed may have forgotten that its mark names them."""
        mark = job.mark
        if mark is not None and mark.cluster == self.cluster and job.submitted < self.booted:
            yield from (
                pod.uid for pod in pods if mark.group.uid.endswith(f".{pod.annotations[GANG_ANNOTATION]}")
            )

    @property
    def settling(self) -> bool:
        """slurmctld has just come up, or will: it may lack what it knew, and know again what was over."""
        return bool(self.booted) and self.now - self.booted < self.boot_grace + self.repair

    @property
    def young(self) -> bool:
        """slurmctld has just come up: nothing that it lacks or puts elsewhere counts for lost."""
        return bool(self.booted) and 0 <= self.now - self.booted < self.boot_grace

    def own(self, pod: Uid) -> list[JobRecord]:
        """Jobs, live or ended, whose mark names this cluster and this pod, or is the Go project's and names it."""
        return self._own.get(pod, [])

    def ours(self, job: JobRecord) -> bool:
        """To be ended and changed; of a job that the Go project submitted: if each pod that it lists names it."""
        if job.mark is not None:
            return job.mark.cluster == self.cluster
        return 0 < len(job.listed) == sum(job in jobs for jobs in self._own.values())

    def places(self, job: JobRecord) -> list[KubeNode]:
        """The job's nodes in Slurm's order; one that Kubernetes doesn't have keeps its name."""
        return [node.name if (node := self.nodes.get(name)) else KubeNode(name) for name in job.nodes]

    def holding(self, pod: Pod) -> list[JobRecord]:
        """The pod's own jobs that hold or held its node; of one that is COMPLETING Slurm no longer says it."""
        return [
            job
            for job in self.own(pod.uid)
            if pod.node in self.places(job) or ("COMPLETING" in job.states and not job.nodes)
        ]

    def covers(self, job: JobRecord, bound: float) -> bool:
        """Did the job hold its nodes when the pod was bound (0 = nobody knows when)?"""
        if "PENDING" in job.states:
            return self.settling
        if not bound:
            return True
        anew = job.claims or self.booted >= bound
        begun = job.started <= bound + self.skew or (anew and bound <= job.started)
        over = is_ended(job.states) and bound > job.ended + self.view_age + self.skew
        return begun and not over

    def lost(self, pod: Pod) -> bool:
        own = self.own(pod.uid)
        if not pod.node:
            return any((job.states | torn(job.states)) & {"CANCELLED", "DEADLINE"} for job in own)
        if any(torn(job.states) for job in own):
            return True
        held = [job for job in self.holding(pod) if self.covers(job, pod.bound_at)]
        live = [job for job in held if not is_ended(job.states) and "PENDING" not in job.states]
        if live:
            return any(job.preempted or self.near_limit(job) for job in live)
        claimed = [job for job in own if not job.nodes and job.submitted > pod.bound_at]
        named = [job for job in own if not job.nodes and pod.labels.get(JOB_ID_LABEL) == str(job.id)]
        if any(
            "CANCELLED" in job.states for job in (*claimed, *named)
        ):  # a crash undid the start of the latter
            return True
        if self.young:
            return any(is_ended(job.states) and "NODE_FAIL" not in job.states for job in held)
        elsewhere = any(not is_ended(job.states) for job in own)
        return bool(held) or elsewhere or self.overdue(pod) or any("FAILED" in job.states for job in claimed)

    def bereft(self, pod: Pod) -> bool:
        """Its gang begins anew: its owner wants that where another pod of its job failed, or is going or gone; or
        another never got its node."""
        if not pod.node:
            return False
        jobs = [job for job in self.own(pod.uid) if job.mark is not None]
        uids = {uid for job in jobs if job.mark is not None for uid in job.mark.uids} - {pod.uid}
        others = [other for other in self.pods if other.uid in uids]
        went = [other for other in self.gone if other.uid in uids]  # without a node at once
        late = [one for one in (pod, *others, *went) if not one.node]
        rest = bool(others or went)
        if rest and any(job.started and one.created <= job.started for job in jobs for one in late):
            return True
        well = {other.uid for other in others if not other.deleted and other.phase != "Failed"}
        gang = pod.annotations.get(
            GANG_ANNOTATION
        )  # a claim of its place, made since, names the others no more
        lost = gang and any(
            one.annotations.get(GANG_ANNOTATION) == gang and one.phase != "Succeeded" for one in self.gone
        )
        wants = self.restarts.intersection(owner.uid for owner in pod.owners)
        return bool(wants) and (bool(lost) or not uids <= well)

    def near_limit(self, job: JobRecord) -> bool:
        """Slurm's end of a running job is its limit. While one waited for the place of a pod, that pod ran."""
        waited = job.started - job.submitted if job.claims else 0.0
        ahead = (job.mark.grace if job.mark else 0) + self.limit_margin + MINUTE + waited
        return bool(job.ended) and self.now >= job.ended - ahead

    def reclaiming(self, pod: Pod) -> bool:
        """A job of its own waits for exactly its node."""
        twins = {name: node.name for name, node in self.nodes.items()}
        waiting = (job for job in self.own(pod.uid) if "PENDING" in job.states)
        return any(twins.get(name, name) == pod.node for job in waiting for name in job.required)

    def overdue(self, pod: Pod) -> bool:
        """The pod's own time limit, counted from its binding, is over."""
        limit = pod.annotations.get(f"{OPTION_PREFIX}timelimit", "")
        if not pod.bound_at or not limit.isdecimal() or not int(limit):
            return False
        return self.now + self.skew >= pod.bound_at + int(limit) * 60

    def given_up(self, node: KubeNode) -> bool:
        """Nobody can say what runs there, and Slurm starts nothing more on it."""
        ready = any(twin.ready for twin in self.nodes.values() if twin.name == node)
        return not ready and self.closed(node)

    def closed(self, node: KubeNode) -> bool:
        """Slurm starts nothing more on it."""
        names = [name for name, twin in self.nodes.items() if twin.name == node]
        return all(name in self.drained for name in names or [SlurmNode(node)])

    def living(self) -> Iterator[Pod]:
        """Pods that may have containers on their node: everything that is not known dead."""
        for pod in (*self.pods, *self.gone):
            stopped = pod.ended and not any(status.running for status in pod.statuses)
            if pod.node and not stopped and pod.uid not in self.dead:
                yield pod


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Two pictures, and what is known of the way from one to the other. What nobody else did, the bridge did."""

    before: Picture
    after: Picture
    touched: frozenset[JobId] = frozenset()  # jobs that requests of the bridge ended or changed
    altered: frozenset[SlurmNode] = frozenset()  # nodes of Slurm, the same
    shown: frozenset[KubeNode] = frozenset()  # nodes of Kubernetes, the same
    removed: frozenset[Uid] = frozenset()  # pods that somebody else deleted
    writes: int = 0  # requests of the bridge, carried out, that change something
