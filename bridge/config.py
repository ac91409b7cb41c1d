"""Settings: frozen groups, read once at start, each field with its consequence.

Goes in: a flat mapping (the Go project's keys work, names match without regard to case). Comes out: `Settings`.
Errors name where, key and value. Secrets are paths and never appear in a repr. `bridge.configfile` reads the file.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from bridge.errors import ConfigError
from bridge.names import DEFAULT_SCHEDULER_NAME, SCHEDULER_NAME, UPSTREAM_SCHEDULER_NAME

TOKEN_FILE_ENV = "SLURM_JWT_FILE"
JobIds = Literal["auto", "chosen", "held"]
NICE_LIMIT = 2_147_483_645  # the largest that Slurm takes


def _listed(value: object) -> object:
    """A list may be written as one text with commas."""
    if not isinstance(value, str):
        return value
    return tuple(part for raw in value.split(",") if (part := raw.strip()))


class _Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class SlurmSettings(_Group):
    """How we reach Slurm."""

    slurmRestApi: str = Field("http://slurm-restapi.slurm:6820", description="Base URL of slurmrestd.")
    slurmTokenFile: Path = Field(
        Path("/var/run/secrets/slurm/auth-token"),
        description="File with SlurmUser's JWT; read again for every request, so a rotated token needs no restart.",
    )
    jobIds: JobIds = Field(
        "auto",
        description="Who numbers our jobs. chosen: the bridge does, as only SlurmUser and root may; a submit costs one "
        "request. held: Slurm does, for a token with AdminLevel=Administrator or a federation; each job is submitted "
        "held, named on its pod, released, and every job that Slurm lists is read once. auto: chosen if the token's "
        "user may.",
    )
    slurmctldAddress: Annotated[tuple[str, ...], BeforeValidator(_listed)] = Field(
        (),
        description="host:port of slurmctld; of several, each SlurmctldHost, as a list or with commas. Set: jobs end "
        "COMPLETED or FAILED with the pod's exit code. Empty, or nobody answers there for a minute: they end CANCELLED "
        "with the exit code in the comment.",
    )
    submitTimeout: float = Field(
        25.0,
        gt=0,
        description="Seconds. Above the 10–20 s after which slurmrestd itself gives up, or answers are lost.",
    )
    readTimeout: float = Field(25.0, gt=0, description="Seconds for every other request to slurmrestd.")
    pollInterval: float = Field(
        0.1,
        gt=0,
        description="Seconds between state polls on a small cluster; the poll slows down with its own cost.",
    )
    pollShare: float = Field(
        0.2,
        gt=0,
        le=1,
        description="Largest share of the time that state polls may take of one slurmrestd thread.",
    )
    pendingReadsPerSecond: float = Field(
        5.0, gt=0, description="Reads of waiting jobs (reason, estimate) per second in all."
    )
    concurrentRequests: int = Field(
        6, ge=1, description="Submits and cancels under way at once; polls and reads have lanes of their own."
    )
    preemptionGrace: float | None = Field(
        None,
        ge=0,
        description="Seconds that Slurm leaves to a preempted job; running jobs are read again four times in it while "
        "others wait, so that pods get their signal in time. Unset: the GraceTime of each job's partition, or its QOS' "
        "with PreemptType=preempt/qos; set it where slurmrestd can't read QOS (no openapi/slurmdbd).",
    )
    bootGrace: float = Field(
        300.0,
        ge=0,
        description="Seconds after a new slurmctld boot in which absence and NODE_FAIL prove nothing.",
    )

    @property
    def freshness(self) -> float:
        """Seconds that a state poll is good for: where polls are rare, three of their intervals."""
        return max(5.0, 3 * self.pollInterval)


class PriorityClass(_Group):
    """What a Kubernetes PriorityClass means in Slurm: never an absolute priority."""

    qos: str | None = Field(None, min_length=1, description="Slurm quality of service.")
    nice: int | None = Field(
        None, ge=0, le=NICE_LIMIT, description="How far the job steps back in the queue."
    )

    @model_validator(mode="after")
    def _says_something(self) -> PriorityClass:
        if self.qos is None and self.nice is None:
            raise ValueError("names neither a qos nor a nice")
        return self


class JobSettings(_Group):
    """What a placeholder job looks like when its pod says nothing."""

    partition: str = Field("slurm-bridge", description="Partition of jobs whose pod names none.")
    mcsLabel: str = Field("", description="MCS label of every placeholder; empty: none is sent.")
    exclusiveByDefault: bool = Field(False, description='Whole nodes unless a pod says exclusive: "false".')
    minimumCpus: int = Field(1, ge=1, description="CPUs of a pod that asks for none.")
    minimumMemoryMiB: int = Field(
        256, ge=1, description='Memory of a pod that asks for none; never Slurm\'s "all".'
    )
    timeLimitMargin: int = Field(
        60,
        ge=0,
        description="Seconds beyond limit and grace, so that we end the pod before Slurm frees its GPUs.",
    )
    fastPath: bool = Field(True, description="Try an immediate allocation first when nothing of ours waits.")
    gresByResource: Mapping[str, str] = Field(
        default_factory=lambda: {"nvidia.com/gpu": "gpu", "amd.com/gpu": "gpu"},
        description="Extended resource → GRES (name or name:type).",
    )
    priorityClasses: Mapping[str, PriorityClass] = Field(
        default_factory=dict,
        description="PriorityClass of a pod → {qos: NAME} or {nice: POINTS} (or both) of its job, unless an annotation "
        "says otherwise. A class that is not listed means nothing to Slurm.",
    )
    temporaryDisk: bool = Field(
        False,
        description="The ephemeral storage that a pod asks for is asked of Slurm, too, as temporary disk: only nodes "
        "whose TmpDisk is as large are considered. Slurm compares and does not count it, so jobs may share the same "
        "disk. Where no node has a TmpDisk such a job is refused.",
    )
    oldOptionKeys: bool = Field(
        False,
        description="Annotations under their names from before 1.0 of the Go project (slinky.slurm.net/qos) count, "
        "and the pod's condition asks for the name of today. Off: they are ignored, as by that project.",
    )
    jobIdFirst: int = Field(
        0x02000000,
        ge=1,
        description="First job id of ours; far above the ids that Slurm gives out by itself.",
    )
    jobIdStop: int = Field(0x03FDFFFF, le=0x03FFFFFE, description="End (exclusive) of our job ids.")


class ClusterSettings(_Group):
    """Which pods are ours and who we are."""

    schedulerName: str = Field(SCHEDULER_NAME, description="Pods with this spec.schedulerName are ours.")
    schedulerNames: tuple[str, ...] = Field(
        (UPSTREAM_SCHEDULER_NAME,), description="Further scheduler names that mean the same."
    )
    clusterId: str = Field("", description="Marks our jobs; empty: the UID of the kube-system namespace.")
    managedNamespaces: tuple[str, ...] = Field(
        (), description="Namespaces whose every pod becomes ours (admission)."
    )
    managedNamespaceSelector: Mapping[str, Any] | None = Field(
        None, description="Label selector for the same; when set, managedNamespaces is ignored."
    )
    leaseNamespace: str = Field("slurm", description="Namespace of the leader's Lease.")
    leaderElect: bool = Field(True, description="Off only where exactly one process can run.")

    @property
    def schedulers(self) -> frozenset[str]:
        return frozenset({self.schedulerName, *self.schedulerNames})


class PlacementSettings(_Group):
    """How long things may take before we give a grant back."""

    bindTimeout: float = Field(
        30.0,
        gt=0,
        description="Seconds from grant to bound; then the job ends, the node is excluded, we try again. Ten times "
        "as long, and no node is excluded, while kube-scheduler has not looked at the pod.",
    )
    ungatedLimit: int = Field(200, ge=1, description="Pods un-gated and not yet bound at a time.")
    viewAge: float = Field(2.0, gt=0, description="Seconds: an older state poll is no ground for a binding.")
    deathMargin: float = Field(
        60.0,
        ge=0,
        description="Seconds beyond its grace until a force-deleted pod counts as dead on a Ready node. Above the time "
        "in which Kubernetes notices that a kubelet is gone (node-monitor-grace-period, 40 to 50 s).",
    )
    deviceWait: float = Field(
        900.0,
        gt=0,
        description="Seconds that a grant waits while the last holder of its GPUs is not known dead, or less if the "
        "pod's time limit is over by then; then it is given back, the node is excluded, we try again.",
    )
    maxAttempts: int = Field(20, ge=1, description="Lost grants after which a pod waits for a person.")
    workers: int = Field(16, ge=1, description="Groups decided at once.")
    sweepInterval: float = Field(
        15.0, gt=0, description="Seconds between looks for jobs whose pods are gone."
    )


class NodeSettings(_Group):
    """What is told between Kubernetes nodes and Slurm nodes; docs/nodes.md says who owns which fact."""

    nodeStateToSlurm: bool = Field(
        True,
        description="External nodes are drained in Slurm while Kubernetes can't use them. Off: no such drain is set or "
        "lifted.",
    )
    nodeStateToKubernetes: bool = Field(
        True, description="Nodes show in a condition whether Slurm can use them. Off: it stays as it was."
    )
    externalNodes: bool = Field(
        True,
        description="Labelled nodes are registered in Slurm, sized and deleted. Off: records stay as they are.",
    )
    taintNodes: bool = Field(
        True, description="Nodes that Slurm has get the taint managed-node. Off: none is added."
    )
    taintEffect: Literal["NoSchedule", "NoExecute"] = Field(
        "NoSchedule",
        description="Of the taint managed-node where it is new; what stands on a node is kept. NoExecute evicts pods "
        "that don't tolerate it, and is not set where one of them is the system's; `slurm-bridge nodes plan` lists "
        "them.",
    )
    taintUnavailable: bool = Field(
        True,
        description="Nodes that somebody drained, stopped or reserved in Slurm get a NoSchedule taint, which our "
        "pods tolerate.",
    )
    drainTaints: Annotated[tuple[str, ...], BeforeValidator(_listed)] = Field(
        (
            "node.kubernetes.io/memory-pressure",
            "node.kubernetes.io/disk-pressure",
            "node.kubernetes.io/pid-pressure",
            "node.kubernetes.io/network-unavailable",
            "node.kubernetes.io/out-of-service",
        ),
        description="Keys of taints for which an external node is drained in Slurm.",
    )
    drainShare: float = Field(
        0.1,
        gt=0,
        le=1,
        description="Share of all nodes, at least two, that may be drained within five minutes as they are not "
        "Ready or reject pods; beyond that it is only told.",
    )
    recreationShare: float = Field(
        0.05, gt=0, le=1, description="Share of external nodes, at least one, that are re-created at a time."
    )
    nodeSettling: float = Field(
        600.0, ge=0, description="Seconds that another size must last before a node is re-created with it."
    )
    nodeTolerance: float = Field(
        0.05,
        ge=0,
        lt=1,
        description="Share by which CPUs and memory may differ from Slurm's before that counts.",
    )
    nodeHeadroomCpus: int = Field(0, ge=0, description="CPUs of an external node that Slurm is not told of.")
    nodeHeadroomMemoryMiB: int = Field(
        0, ge=0, description="Memory of an external node that Slurm is not told of."
    )
    externalNodePartitions: Annotated[tuple[str, ...], BeforeValidator(_listed)] = Field(
        (), description="Partitions, as features, of external nodes whose annotation names none."
    )
    externalNodeAddress: str = Field(
        "",
        description="IP address of any slurmd that lives; slurmctld asks it for all external nodes. Empty: each node's "
        "own address, and a signal, suspend or GraceTime makes Slurm take the node for dead.",
    )
    startFailures: int = Field(
        3,
        ge=1,
        description="Pods that kubelet rejects within startFailureWindow before their node is drained.",
    )
    startFailureWindow: float = Field(600.0, gt=0, description="Seconds.")

    @property
    def mirrored(self) -> bool:
        """Something of it is wanted."""
        told = self.nodeStateToSlurm or self.nodeStateToKubernetes
        return told or self.externalNodes or self.taintNodes or self.taintUnavailable


class Settings(_Group):
    slurm: SlurmSettings = SlurmSettings()
    jobs: JobSettings = JobSettings()
    cluster: ClusterSettings = ClusterSettings()
    placement: PlacementSettings = PlacementSettings()
    nodes: NodeSettings = NodeSettings()
    warnings: tuple[str, ...] = ()


_GROUPS: Mapping[str, type[_Group]] = {
    "slurm": SlurmSettings,
    "jobs": JobSettings,
    "cluster": ClusterSettings,
    "placement": PlacementSettings,
    "nodes": NodeSettings,
}


def from_mapping(
    body: Mapping[str, Any], *, where: str = "configuration", environ: Mapping[str, str] | None = None
) -> Settings:
    """Flat keys → groups. Later groups never share a key."""
    owner = {key.lower(): (group, key) for group, model in _GROUPS.items() for key in model.model_fields}
    sorted_out: dict[str, dict[str, Any]] = {group: {} for group in _GROUPS}
    warnings: list[str] = []
    for key, value in body.items():
        known = owner.get(str(key).lower())
        if known is None:
            near = difflib.get_close_matches(str(key).lower(), owner, n=1)
            hint = f"; did you mean {owner[near[0]][1]}?" if near else ""
            warnings.append(f"{where}: unknown key {key!r} is ignored{hint}")
        elif value is not None:
            sorted_out[known[0]][known[1]] = value
    token = (environ or {}).get(TOKEN_FILE_ENV)
    if token:
        sorted_out["slurm"]["slurmTokenFile"] = token
    try:
        groups = {name: model(**sorted_out[name]) for name, model in _GROUPS.items()}
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{where}: {key}: {first['msg']} (value: {first.get('input')!r})") from error
    for key in ("managedNamespaces", "managedNamespaceSelector"):
        if sorted_out["cluster"].get(key):
            warnings.append(f"{where}: {key} has no effect yet: pods opt in with spec.schedulerName")
    settings = Settings(**groups, warnings=tuple(warnings))
    _check(settings, where)
    if settings.jobs.jobIdFirst >= settings.jobs.jobIdStop:
        raise ConfigError(f"{where}: jobIdFirst: must be below jobIdStop ({settings.jobs.jobIdStop})")
    return settings


def _check(settings: Settings, where: str) -> None:
    """What no type can say. Raises ConfigError."""
    if not settings.slurm.slurmRestApi.startswith(("http://", "https://")):
        raise ConfigError(
            f"{where}: slurmRestApi: {settings.slurm.slurmRestApi!r} is no http:// or https:// address"
        )
    for address in settings.slurm.slurmctldAddress:
        host, _, port = address.rpartition(":")
        if not (host and port.isdigit() and 0 < int(port) < 65536):
            raise ConfigError(
                f"{where}: slurmctldAddress: {address!r} must be host:port, for example slurmctld:6817"
            )
    if settings.nodes.externalNodeAddress and not _is_ip(settings.nodes.externalNodeAddress):
        raise ConfigError(
            f"{where}: externalNodeAddress: {settings.nodes.externalNodeAddress!r} is no IP address; "
            "a name that does not resolve stalls slurmctld for 10 s at every job start"
        )
    taken = settings.cluster.schedulers & {DEFAULT_SCHEDULER_NAME, ""}
    if taken:
        raise ConfigError(
            f"{where}: schedulerName, schedulerNames: {min(taken)!r} would make every pod of the cluster ours"
        )


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def describe(settings: Settings) -> str:
    """Every setting in force with its consequence, one group after the other."""
    lines: list[str] = []
    for group in _GROUPS:
        values: _Group = getattr(settings, group)
        lines.append(f"# {group}: {(type(values).__doc__ or '').strip()}")
        for key, field in type(values).model_fields.items():
            shown = json.dumps(values.model_dump(mode="json")[key])
            lines.append(f"{key}: {shown}  # {field.description}")
    return "\n".join(lines)
