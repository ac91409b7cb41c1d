"""What may be done to the outside: one frozen type per write, carried out by `bridge.apply` and nothing else.

Steps come in a safe order (docs/design.md): attempt before nomination, nomination before label and gate, containers
dead before the job ends. Whoever stops between two of them finds the earlier mark and goes on forwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from bridge.core.attempt import Attempt
from bridge.core.constraints import Taint
from bridge.core.model import Condition, GroupKey, JobId, JobSpec, KubeNode, Mark, Pod, SlurmNode, Uid
from bridge.core.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitJob:
    """Ask Slurm for a job with exactly this id. `immediate`: place it now or fail, never queue."""

    id: JobId
    spec: JobSpec
    immediate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitHeld:
    """Ask Slurm for a job under an id of its own, which does not run before it is released."""

    spec: JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class NameJob:
    """Write id and submit time of a held job on its pod, in place of any other. Refused if the pod changed since."""

    pod: Pod
    job: JobId
    submitted: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Unhold:
    """Let the held job run that its pods name, with a priority of Slurm's own."""

    id: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class Prioritize:
    """Give a waiting job of ours this priority; Slurm refuses that while it is held."""

    id: JobId
    priority: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateExclusions:
    """Change which nodes a waiting job of ours must not get; of a job of several sizes, which each component."""

    id: JobId
    excluded: Mapping[JobId, tuple[SlurmNode, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptJob:
    """Write our mark on a job that the Go project submitted for pods that are here: from then on it is ours."""

    id: JobId
    mark: Mark


@dataclass(frozen=True, slots=True, kw_only=True)
class EndJob:
    """End a live job of ours. `wait_status` as wait(2) has it (exit code × 256, or a signal); None: cancel."""

    id: JobId
    wait_status: int | None
    why: str  # one sentence for the log and, where the job can't be completed, its comment
    waits: bool = (
        False  # it is PENDING: slurmctld takes a status of it and makes it CANCELLED, without a word
    )
    note: str = ""  # what the status can't say; goes into the job's comment first
    group: GroupKey | None = (
        None  # whose it is; the loop knows. Slurm may have given a number of its own out again
    )
    mark: Mark | None = None  # goes into the job first where it is cancelled; a status tells as much
    # Only if these nodes are Ready since the moment that we know of: that containers there are dead, time alone tells.
    working: tuple[tuple[KubeNode, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainNode:
    """Let Slurm start nothing more on this node. A node that somebody else drained keeps that reason."""

    node: SlurmNode
    reason: str
    away: KubeNode | None = None  # only if this one isn't Ready
    needed: bool = True  # what follows must not be done without it
    comment: str | None = None  # goes with it: the node's mark, which says that this drain is ours
    over: str = (
        ""  # the reason of a drain of ours that this one replaces; drained with any other text it stays
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UndrainNode:
    """Lift a drain, without a reason. Only while it has exactly this reason, and the node has not failed."""

    node: SlurmNode
    reason: str
    comment: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterNode:
    """Make an external node. `conf`: as Slurm's node_conf; one that exists by now is none the worse for it."""

    node: SlurmNode
    conf: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateNode:
    """Change an external node of ours in place; None leaves a field as it is."""

    node: SlurmNode
    features: tuple[str, ...] | None = None
    topology: str | None = None
    comment: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteNode:
    """Delete the record of an external node of ours. Only while it is idle and drained with exactly this reason."""

    node: SlurmNode
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetNodeCondition:
    """`condition` None: take ours away."""

    node: KubeNode
    uid: Uid
    condition: Condition | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetNodeTaints:
    """Add these, take those away; every other taint stays as it is. `unless`: a label that the node must not have."""

    node: KubeNode
    uid: Uid
    add: tuple[Taint, ...] = ()
    remove: tuple[Taint, ...] = ()
    unless: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyNode:
    """An Event on the Kubernetes node."""

    node: KubeNode
    uid: Uid
    verdict: Verdict
    warning: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Nominate:
    """Tell kube-scheduler to look at this node for this pod; "" takes an earlier nomination back."""

    pod: Pod
    node: KubeNode
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Label, annotations and gate in one write: from here on the extender says yes for this node. Refused if the pod
    changed since: it may be bound elsewhere. `environment`: annotations for a pod that asks for Slurm's variables."""

    pod: Pod
    job: JobId
    node: KubeNode
    gpus: str = ""
    started: int = 0  # Unix seconds, of slurmctld; 0 = what is noted stays
    gang: str = ""  # the pods that start with it, by one name; "" = a pod on its own
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forsake:
    """Give a grant up: write the next attempt, take node and GPUs off the pod. Refused if the pod changed since."""

    pod: Pod
    attempt: Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class SetConditions:
    """`unchanged`: refused if the pod changed since it was read."""

    pod: Pod
    conditions: tuple[Condition, ...]
    unchanged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify:
    """An Event on the pod."""

    pod: Pod
    verdict: Verdict
    warning: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePod:
    """Delete exactly this pod (by UID) with its own grace period.

    `guarded`: so many at once may be an accident, so the breaker is asked about `job` first.
    """

    pod: Pod
    verdict: Verdict
    job: JobId
    guarded: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DropFinalizer:
    """Take the Go project's finalizer off a pod that we took over and whose job has ended."""

    pod: Pod


@dataclass(frozen=True, slots=True, kw_only=True)
class Bind:
    """The binding itself, refused if the pod is another one or changed since `pod` was read."""

    pod: Pod
    node: KubeNode


TO_A_JOB = Unhold | Prioritize | UpdateExclusions
TO_A_POD = NameJob | Nominate | Release | Forsake | SetConditions | Notify | DeletePod | DropFinalizer | Bind
NodeStep = (
    DrainNode
    | UndrainNode
    | RegisterNode
    | UpdateNode
    | DeleteNode
    | SetNodeCondition
    | SetNodeTaints
    | NotifyNode
)
Step = (
    SubmitJob | SubmitHeld | Unhold | Prioritize | UpdateExclusions | AdoptJob | EndJob | DrainNode | TO_A_POD
)


def onto(latest: Mapping[Uid, Pod], step: Step) -> Step:
    """The same step to the pod as our own last write left it."""
    pod = latest.get(step.pod.uid) if isinstance(step, TO_A_POD) else None
    return replace(step, pod=pod) if isinstance(step, TO_A_POD) and pod is not None else step


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What decide() says: why, what to do now, which jobs to read first, and when to look again at the latest."""

    verdict: Verdict
    steps: tuple[Step, ...] = ()
    reads: tuple[JobId, ...] = ()
    recalls: tuple[JobId, ...] = ()  # jobs that slurmctld has forgotten: Slurm's accounting is asked for them
    again: float | None = None  # seconds; None = the next event
    settled: bool = False  # nothing is left to do for this group: its memory may go
