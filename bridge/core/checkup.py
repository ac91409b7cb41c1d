"""A check-up: what an installation is like → what that means for the people who run it.

In: versions, the token, Slurm's configuration and nodes as plain values. Out: findings, each a sentence with its
consequence, and what to do. What must stay true: nothing is concluded from what could not be read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from bridge.config import Settings
from bridge.core.jobid import IdRange
from bridge.core.model import Node, SlurmNode
from bridge.core.nodes import NodeRecord
from bridge.errors import BridgeError, Busy, Denied, ProtocolError
from bridge.names import DRAIN_PREFIX, SLURM_NODENAME_LABEL

DAY: Final = 86_400.0
SHORT_MEMORY: Final = 60  # seconds of MinJobAge: a restart of the bridge takes less
START_DELAY: Final = 3  # seconds, Slurm's own batch_sched_delay
TESTED_SLURM: Final = ((24, 11), (26, 5))
TESTED_KUBERNETES: Final = ((1, 34), (1, 37))
BY_QOS: Final = "preempt/qos"  # there a partition's GraceTime counts for nothing (measured with 26.05)
HOOK: Final = "handover"  # in the name of the program that makes native jobs wait
POLICIES_ON: Final = (1, 36)  # MutatingAdmissionPolicy is served without a feature gate

# The first data_parser, v0.0.N, that has it, and what an older one means.
SLURM_LACKS: Final = (
    (
        43,
        "has no jobs without a process: placeholders are batch jobs that sleep, so pods run only on nodes with slurmd",
        "Slurm 25.05 or newer",
    ),
    (44, "has no nodes without slurmd (State=EXTERNAL): every node that takes pods needs one", "Slurm 25.11 or newer"),
    (
        45,
        "does not show its configuration: SlurmUser, and what slurm.conf means for pods, are not checked; midnight"
        " (UTC) and `sdiag --reset` look like a new boot of slurmctld and cost the grace of one",
        "Slurm 26.05 or newer",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    text: str
    do: str = ""
    urgent: bool = False  # a person is needed; otherwise it is good to know


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmSetup:
    """What slurmctld tells of its configuration, as far as pods depend on it."""

    user: str = ""  # SlurmUser
    next_job: int = 0  # the next id that Slurm gives out by itself
    min_job_age: int = 0  # seconds
    max_nodes: int = 0
    default_memory: bool = False  # some memory is given to a job that asks for none
    state_cache: bool = False
    start_delay: int = START_DELAY  # seconds
    start_hooks: tuple[str, ...] = ()  # PrologSlurmctld
    gres_types: tuple[str, ...] = ()
    mcs: bool = False  # mcs/label
    preempts: str = ""  # PreemptType

    @property
    def hands_over(self) -> bool:
        """As far as a name tells: native jobs are made to wait for a pod's GPUs."""
        return any(HOOK in hook for hook in self.start_hooks)


def versions(
    parser: int, release: tuple[int, int], kubernetes: tuple[int, int] | None, settings: Settings
) -> Iterator[Finding]:
    """`parser`: N of data_parser v0.0.N; `kubernetes` None: it could not be read."""
    spoken = f"Slurm {release[0]}.{release[1]:02}"
    if not TESTED_SLURM[0] <= release <= TESTED_SLURM[1]:
        yield Finding(text=f"{spoken} is outside of 24.11 to 26.05, with which the bridge is tested")
    for first, lacks, cure in SLURM_LACKS:
        if parser < first:
            yield Finding(text=f"{spoken} (data_parser v0.0.{parser}) {lacks}", do=cure)
    if not settings.slurm.slurmctldAddress:
        yield Finding(
            text="slurmctldAddress is not set: jobs end CANCELLED, with the exit code in their comment only, never"
            " COMPLETED or FAILED",
            do="set slurmctldAddress to slurmctld's host:port",
        )
    if kubernetes is None:
        return
    shown = f"Kubernetes {kubernetes[0]}.{kubernetes[1]}"
    if not TESTED_KUBERNETES[0] <= kubernetes <= TESTED_KUBERNETES[1]:
        yield Finding(text=f"{shown} is outside of 1.34 to 1.37, with which the bridge is tested")
    if kubernetes < POLICIES_ON:
        yield Finding(
            text=f"{shown} serves no admission policies by itself: pods come in without our gate, and wait at the cost"
            " of kube-scheduler",
            do="turn the feature gate and the API MutatingAdmissionPolicy on",
        )


def token(user: str, stranger: str, note: str, seconds: float) -> Iterator[Finding]:
    """`user`: whose it is; `stranger`: why nothing may be written with it; `note`: what works worse than it could;
    `seconds` that it is still valid."""
    if stranger:
        yield Finding(text=f"{stranger}: nothing is written to Slurm", do=_NEW_TOKEN, urgent=True)
    elif not user:
        yield Finding(text="the Slurm token does not say whose it is; it should be SlurmUser's")
    if note:
        yield Finding(text=note, do="docs/configuration.md, jobIds")
    if seconds <= 0:
        yield Finding(text=f"the Slurm token ended {span(-seconds)} ago", do=_NEW_TOKEN, urgent=True)
    elif seconds < DAY:
        yield Finding(text=f"the Slurm token ends in {span(seconds)}", do=_NEW_TOKEN, urgent=True)


_NEW_TOKEN: Final = (
    "put SlurmUser's token into the Secret: scontrol token username=SLURMUSER lifespan=31536000"
)


def configuration(setup: SlurmSetup, settings: Settings) -> Iterator[Finding]:
    """slurm.conf, and what it means for pods."""
    ids = IdRange(settings.jobs.jobIdFirst, settings.jobs.jobIdStop)
    if setup.next_job >= ids.first:
        yield Finding(
            text=f"Slurm's own numbering has reached job {setup.next_job}, and ours begins at {ids.first}: ids that"
            " we choose may be taken",
            do="move jobIdFirst and jobIdStop",
            urgent=True,
        )
    if not setup.state_cache:
        yield Finding(
            text="slurmctld has no job state cache: each state poll locks all jobs, and sbatch users feel it",
            do="SlurmctldParameters=enable_job_state_cache",
        )
    if not setup.default_memory:
        yield Finding(
            text="no DefMemPerCPU: an sbatch job that names no memory gets all of its node, and no pod fits beside it",
            do="DefMemPerCPU=1000, or whatever suits the site",
        )
    if 0 < setup.min_job_age < SHORT_MEMORY:
        yield Finding(
            text=f"MinJobAge is {setup.min_job_age} s: how a job ended is forgotten before a bridge that was away has"
            " read it, and its pod is kept (JobAbsent)",
            do="MinJobAge=300",
        )
    if setup.start_delay:
        yield Finding(
            text=f"batch_sched_delay is {setup.start_delay} s: a queued pod may start that much later than it could",
            do="SchedulerParameters=batch_sched_delay=0",
        )
    wanted = sorted({gres.partition(":")[0] for gres in settings.jobs.gresByResource.values()})
    missing = [name for name in wanted if name not in setup.gres_types]
    if missing:
        yield Finding(
            text=f"GresTypes lacks {', '.join(missing)}: a pod that asks for one is refused",
            do=f"GresTypes={','.join((*setup.gres_types, *missing))}",
        )
    if settings.jobs.mcsLabel and not setup.mcs:
        yield Finding(
            text=f"mcsLabel is {settings.jobs.mcsLabel!r}, and Slurm has no MCSPlugin=mcs/label: it separates nobody",
            do="MCSPlugin=mcs/label, or leave mcsLabel empty",
        )


def preemption(setup: SlurmSetup, settings: Settings, *, accounting: bool) -> Iterator[Finding]:
    """Is the time known that it leaves to pods? `accounting`: slurmrestd can ask slurmdbd."""
    if setup.preempts != BY_QOS or accounting or settings.slurm.preemptionGrace is not None:
        return
    yield Finding(
        text="PreemptType=preempt/qos, and the GraceTime of QOS can't be read: a pod may be told of its preemption only"
        " when its time is over",
        do="slurmrestd with openapi/slurmdbd, or preemptionGrace: the shortest GraceTime of a QOS",
    )


def handover(setup: SlurmSetup, nodes: Iterable[NodeRecord], partition: str) -> Iterator[Finding]:
    """Who makes a native job wait for the GPUs of a pod that still dies?"""
    risky = sorted(n.name for n in nodes if not n.external and n.gres and partition in n.partitions)
    if not risky or setup.hands_over:
        return
    text = "GPU hand-over between pods and native jobs: not guaranteed on nodes with slurmd"
    if setup.start_hooks:
        text += f" unless {', '.join(setup.start_hooks)} asks the bridge, which can't be seen from here"
    yield Finding(
        text=f"{text} ({few(risky)}): when Slurm ends a pod's job, a native job may get its GPU while the pod"
        " still dies",
        do="PrologSlurmctld with deploy/slurm/handover, see docs/handover.md",
    )


def nodes(
    records: Iterable[NodeRecord],
    twins: Mapping[SlurmNode, Node],
    duplicates: Iterable[str],
    setup: SlurmSetup | None,
    partition: str,
) -> Iterator[Finding]:
    """Whether both sides mean the same nodes."""
    known = list(records)
    for text in duplicates:
        yield Finding(
            text=f"{text}: neither is used", do=f"mend their label {SLURM_NODENAME_LABEL}", urgent=True
        )
    here = [record for record in known if partition in record.partitions]
    if not here:
        yield Finding(
            text=f"no node of Slurm is in partition {partition}: a pod that names no other partition waits for ever",
            do="set partition, or put nodes into it",
            urgent=True,
        )
    strange = sorted(record.name for record in here if record.name not in twins)
    if strange:
        yield Finding(
            text=f"partition {partition} has nodes that are none of this Kubernetes cluster ({few(strange)}): a grant"
            " there is given back",
            do=f"take them out of the partition, or set the node label {SLURM_NODENAME_LABEL}",
            urgent=True,
        )
    unused = sorted(set(twins) - {record.name for record in known})
    if unused:
        yield Finding(
            text=f"Slurm does not have {len(unused)} of the Kubernetes nodes ({few(unused)}): no pod of ours runs there"
        )
    if setup is not None and unused and 0 < setup.max_nodes < len(known) + len(unused):
        yield Finding(
            text=f"MaxNodeCount is {setup.max_nodes}: {len(known)} nodes are there, and {len(unused)} more don't fit",
            do=f"MaxNodeCount={2 * (len(known) + len(unused))}",
        )
    for record in known:
        if record.drained and record.reason.startswith(DRAIN_PREFIX):
            yield Finding(
                text=f"node {record.name} is drained: {record.reason}",
                do="docs/operations.md, The bridge drained a node",
                urgent=True,
            )


def no_slurm(error: BridgeError, settings: Settings) -> str:
    """What happened to whoever asked Slurm, and what to do."""
    slurm = settings.slurm
    if isinstance(error, Denied):
        cure = f"put a valid token of SlurmUser into {slurm.slurmTokenFile}"
    elif isinstance(error, Busy):
        cure = "look at slurmctld's host and log"
    elif isinstance(error, ProtocolError):
        cure = f"check that slurmRestApi ({slurm.slurmRestApi}) is a slurmrestd of Slurm 24.11 to 26.05"
    else:
        cure = f"check slurmRestApi ({slurm.slurmRestApi}), that slurmrestd runs, and the network in between"
    return f"Slurm could not be read: {error}; {cure}"


def no_kubernetes(error: BridgeError) -> str:
    cure = "check --kubeconfig, that the API server runs, and the network in between"
    if isinstance(error, Denied):
        cure = "give the rights of deploy/manifests/cluster/bridge-rights.yaml, or another --kubeconfig"
    return f"Kubernetes could not be read: {error}; {cure}"


def few(names: list[SlurmNode]) -> str:
    """At most five of them, and how many more."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def span(seconds: float) -> str:
    """A length of time as a person says it: "40 s", "3 min", "5 h", "12 days"."""
    if math.isinf(seconds):
        return "ever"
    for unit, length in (("days", DAY), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
