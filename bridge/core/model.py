"""The nouns: pods, nodes and workloads as we see them, jobs as Slurm sees them, and the mark that joins both.

Frozen values only. Times are Unix seconds (float, 0.0 = not set) unless a name ends in `_age`; memory is MiB. This
module knows neither API.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NewType

from bridge.core.constraints import ANYWHERE, Constraints, Taint
from bridge.names import SCHEDULED_CONDITION

JobId = NewType("JobId", int)
KubeNode = NewType("KubeNode", str)  # a Kubernetes node name
SlurmNode = NewType("SlurmNode", str)  # a Slurm node name; the two vocabularies never mix
Uid = NewType("Uid", str)


@dataclass(frozen=True, slots=True, order=True)
class GroupKey:
    """The pods that share one job, named by the object that makes them one. `uid` never repeats."""

    namespace: str
    kind: str
    name: str
    uid: str

    def __str__(self) -> str:  # the form inside the mark
        return f"{self.kind}/{self.namespace}/{self.name}/{self.uid}"

    @classmethod
    def parse(cls, text: str) -> GroupKey | None:
        """Inverse of str(); None for anything else."""
        kind, namespace, name, uid = parts if len(parts := text.split("/")) == 4 else ("",) * 4
        return cls(namespace, kind, name, uid) if all(parts) and uid else None


# --- Kubernetes -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Requests and limits as Kubernetes quantities, unparsed ("500m", "1Gi")."""

    requests: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    name: str
    resources: Resources = Resources()
    sidecar: bool = False  # an init container with restartPolicy Always


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerStatus:
    """What kubelet last said of one container."""

    name: str
    running: bool = False
    terminated: bool = False
    exit_code: int = 0
    signal: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    type: str
    status: str  # "True" | "False" | "Unknown"
    reason: str = ""
    message: str = ""
    probed: float = 0.0  # lastProbeTime: when we last wrote ours
    changed: float = 0.0  # lastTransitionTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """One ownerReference."""

    api_version: str
    kind: str
    name: str
    uid: Uid
    controller: bool = False

    @property
    def group(self) -> str:
        return api_group(self.api_version)


def api_group(api_version: str) -> str:
    """ "batch/v1" → "batch"; of the core group, "v1" → ""."""
    return api_version.rpartition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    namespace: str
    name: str
    uid: Uid
    version: str = ""  # resourceVersion; opaque
    created: float = 0.0
    deleted: float = 0.0  # deletionTimestamp; 0 = not being deleted
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    owners: tuple[Owner, ...] = ()
    finalizers: tuple[str, ...] = ()
    scheduler: str = ""
    node: KubeNode = KubeNode("")
    gates: tuple[str, ...] = ()
    priority_class: str = ""
    scheduling_group: str = (
        ""  # a built-in PodGroup's name; of Kubernetes 1.35, "Workload/pod group/replica key"
    )
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    overhead: Mapping[str, str] = field(default_factory=dict)
    resources: Resources | None = None  # pod-level resources, if given
    active_deadline: int | None = None  # seconds
    claims: tuple[str, ...] = ()  # names in spec.resourceClaims
    constraints: Constraints = ANYWHERE
    volume_claims: tuple[str, ...] = ()  # names of PersistentVolumeClaims that it mounts
    grace: int = 30  # terminationGracePeriodSeconds
    phase: str = "Pending"
    reason: str = ""  # why it failed, if the control plane or kubelet says so: Evicted, DeadlineExceeded
    message: str = ""
    nominated: KubeNode = KubeNode("")
    conditions: tuple[Condition, ...] = ()
    statuses: tuple[ContainerStatus, ...] = ()

    @property
    def ref(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def ended(self) -> bool:
        """Kubernetes calls the pod finished: its containers will not run again."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def bound_at(self) -> float:
        """By the API server's clock; 0.0 = not bound, or nobody knows when."""
        shown = self.condition(SCHEDULED_CONDITION)
        return shown.changed if shown is not None and shown.status == "True" else 0.0

    def condition(self, kind: str) -> Condition | None:
        return next((c for c in self.conditions if c.type == kind), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A Kubernetes node, as far as placing our pods needs it."""

    name: KubeNode
    uid: Uid = Uid("")
    labels: Mapping[str, str] = field(default_factory=dict)
    ready: bool = True
    ready_since: float = 0.0  # of the Ready condition as it stands; 0.0 = it does not say
    cordoned: bool = False  # spec.unschedulable
    taints: tuple[Taint, ...] = ()
    allocatable: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    deleted: float = 0.0  # deletionTimestamp
    unknown: bool = False  # Ready is Unknown: its kubelet is silent
    boot_id: str = ""  # another one after each start of the machine
    addresses: tuple[str, ...] = ()  # its own IP addresses
    mirrored: Condition | None = None  # ours, as it stands: what Slurm said of it

    @property
    def usable(self) -> bool:
        return self.ready and not self.cordoned


DEADLINE_EXCEEDED = "DeadlineExceeded"  # the reason of a pod or Job that was ended at activeDeadlineSeconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """An object whose annotations count for pods: what controls them, up to a JobSet, or a PodGroup that they name."""

    namespace: str
    kind: str
    name: str
    uid: Uid
    api_version: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    owners: tuple[Owner, ...] = ()
    active_deadline: int | None = None  # seconds
    overdue: str = ""  # why its controller ends its pods at that deadline; "" = it doesn't
    size: int | None = None  # pods that make one group complete; None = it does not say
    in_turn: str = ""  # the field that makes its controller wait with some pods until others run
    sizes: Mapping[str, int] = field(
        default_factory=dict
    )  # its gangs by name; of "leader" and "worker" 1 or 0
    timeout: int | None = None  # seconds that a coscheduling PodGroup waits for its members
    parent: str = ""  # the built-in Workload that a built-in PodGroup was made from

    @property
    def group(self) -> str:
        return api_group(self.api_version)

    @property
    def ref(self) -> str:
        """For people."""
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """That the pods of a group start together or not at all."""

    wanted: int  # pods that the workload has when it is complete
    at_least: bool = False  # more than `wanted` start beside them, each on its own
    complete: bool = False  # its pods are those of one job, or of the next one
    begun: bool = False  # not complete: more than are wanted, and those have asked for their job
    timeout: int  # seconds that half of a started gang waits for the other half
    restart: bool = False  # a member that is lost takes the others along (on-member-failure: restart-gang)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Pods that share one job, in rank order."""

    key: GroupKey
    pods: tuple[Pod, ...]
    workload: Workload | None = None
    gang: Gang | None = None  # None: a pod on its own
    owners: tuple[Workload, ...] = ()  # whose annotations count, weakest first; `workload` among them
    beside: tuple[Workload, ...] = ()  # above others of its pods only: their deadlines count


# --- Slurm ----------------------------------------------------------------------------------------

# Base states in which Slurm no longer holds resources for a job; every other base state is live.
ENDED_STATES = frozenset(
    {
        "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED",
        "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY", "LAUNCH_FAILED",
    }
)  # fmt: skip
States = frozenset[str]  # base state and flags, as Slurm spells them


def is_ended(states: States) -> bool:
    return bool(states & ENDED_STATES)


PART = "PART_"  # before a state that a component of a job of several sizes is in, and its other components aren't


def is_granted(states: States) -> bool:
    """Slurm gives the nodes to the job now. CONFIGURING: a prolog or a boot still holds it back."""
    if "RUNNING" not in states or states & {"CONFIGURING", "COMPLETING", "POWER_UP_NODE"}:
        return False
    return len(states) == 1 or not any(state.startswith(PART) for state in states)


def torn(states: States) -> States:
    """The ends of components of a job whose other components live."""
    if is_ended(states):
        return frozenset()
    return ENDED_STATES.intersection(state.removeprefix(PART) for state in states if state.startswith(PART))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What we write into a job's admin_comment; the proof that the job is ours. See core.identity."""

    cluster: str
    group: GroupKey
    attempt: int
    uids: tuple[Uid, ...]
    pods: tuple[str, ...]  # "namespace/name", what the Go project reads
    grace: int = 30  # seconds, the longest of the group's pods
    over: bool = False  # containers of these pods are known dead: written before we cancel the job
    sizes: tuple[str, ...] = ()  # of the pods of each component, in Slurm's order; () = one job for all
    asks: str = ""  # a digest of what the pods asked for then (core.changed); "" = not told
    place: bool = False  # it asks for the place of pods that run, whose job Slurm lost


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """One full read of one job."""

    id: JobId
    states: States
    submitted: float = 0.0
    started: float = 0.0  # for a pending job: Slurm's estimate
    ended: float = 0.0
    vague: bool = (
        False  # it ended while it was suspended, then or later: Slurm gives the moment of the suspension
    )
    preempted: float = 0.0  # preempt_time: non-zero while RUNNING = the grace window has begun
    reason: str = ""  # state_reason: Resources, Priority, …
    nodes: tuple[SlurmNode, ...] = ()  # in Slurm's order
    gres: tuple[str, ...] = ()  # gres_detail, one string a node: "gpu:h100:2(IDX:0-1)"
    cpus: int | None = None  # of all its nodes
    cpus_by_node: tuple[int, ...] = ()  # in the order of nodes; () where Slurm does not say
    tasks: int | None = None
    cpus_per_task: int | None = None  # more than was asked for, where Slurm allows a CPU only so much memory
    memory_per_cpu: int | None = None  # MiB
    memory_mib: int | None = None  # of each node; 0 = all of it, None = not by node
    name: str = ""
    user: str = ""
    partition: str = ""
    qos: str = ""
    time_limit: int | None = None  # minutes; None = unlimited or not set
    priority: int | None = None  # 0 = held; None = not told
    excluded: tuple[SlurmNode, ...] = ()  # nodes that the job must not get
    exit_code: int = 0
    exit_signal: int = 0
    mark: Mark | None = None  # parsed admin_comment, None if it isn't one of ours by shape
    comment: str = ""  # admin_comment as it stands, at most a few KB
    overwritten: bool = False  # the mark is one that it had: somebody has written something else over it
    listed: tuple[str, ...] = ()  # "namespace/name": the pods of a mark as the Go project writes it
    required: tuple[SlurmNode, ...] = ()  # what the job must get; of the Go project's, what it may get
    parts: tuple[JobRecord, ...] = ()  # of a job of several sizes: its components, see slurm.components
    stillborn: bool = False  # what the refused submit of such a job leaves: CANCELLED, and by no person

    @property
    def claims(self) -> bool:
        """It asks, or asked, for the place of pods that run. `required` doesn't tell: people steer waiting jobs."""
        return self.mark is not None and self.mark.place


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What we ask Slurm for: the noun between pods and slurmrestd. None or "" = leave it to Slurm."""

    name: str
    partition: str
    mark: Mark
    nodes_min: int = 1
    nodes_max: int = 1
    tasks: int = 1
    tasks_per_node: int | None = None
    cpus_per_task: int = 1
    memory_mib: int | None = 256  # per node
    memory_per_cpu: int | None = None  # MiB; of a gang, in place of memory_mib
    temporary_disk_mib: int | None = None  # that a node must have; Slurm compares it and counts nothing off
    gres: str = ""  # tres_per_node: "gres/gpu:h100=2,gres/nic=1"
    gres_per_task: str = ""  # of a gang, in place of gres
    exclusive: bool = False
    time_limit: int | None = None  # minutes, sent to Slurm: the user's plus grace plus margin
    user_limit: int | None = None  # minutes, after which we end the pod
    account: str = ""
    qos: str = ""
    user: str = ""
    group: str = ""
    reservation: str = ""
    wckey: str = ""
    licenses: str = ""
    constraints: str = ""
    prefer: str = ""
    priority: int | None = None
    nice: int | None = None
    dependency: str = ""
    comment: str = ""
    begin: str = ""
    deadline: str = ""
    segment_size: int | None = None
    mcs_label: str = ""
    excluded_nodes: tuple[SlurmNode, ...] = ()
    required_nodes: tuple[
        SlurmNode, ...
    ] = ()  # of a claim, no candidates; of a gang one a task, in rank order
    warnings: tuple[str, ...] = ()
    notice: str = ""  # what the pod's author is told in the pod's condition, beside what Slurm says
    size: str = ""  # of a gang: what each of its pods asks for, in words
    pods: tuple[Uid, ...] = ()  # of a job of several sizes: those whose tasks these are
    others: tuple[JobSpec, ...] = ()  # its further components: this is the first
    most: JobSpec | None = None  # the same pods as one job, which has the most of each resource for every one

    def each(self, change: Callable[[JobSpec], JobSpec]) -> JobSpec:
        """The same change to every component."""
        return replace(
            change(self),
            others=tuple(map(change, self.others)),
            most=None if self.most is None else change(self.most),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """What a partition of Slurm's does to our jobs."""

    name: str
    grace: float = 0.0  # seconds that a preempted job gets
    longest: int | None = None  # MaxTime in minutes; None = unlimited
    nodes: frozenset[SlurmNode] | None = None  # None = it does not say
