"""The nouns of the node mirror: a Slurm node as one read shows it, its twin in Kubernetes, and what is around both.

Frozen values only, as in `core.model`. Times are Unix seconds by slurmctld's clock unless a name ends in `_age` or
`_for`, which are seconds that this process measured; memory is MiB.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from typing import Any

from bridge.core.model import KubeNode, Node, Pod, SlurmNode, States, Uid
from bridge.core.steps import NodeStep
from bridge.core.verdict import Verdict

BUSY = frozenset({"ALLOCATED", "MIXED", "COMPLETING"})


class Kind(StrEnum):
    """Who runs a node in Slurm."""

    EXTERNAL = "external"  # no slurmd: only our jobs run there, and the record is ours
    OPERATOR = "operator"  # slurm-operator's slurmd pod; we only read the record
    SLURMD = "slurmd"  # a slurmd that somebody else runs; the same
    NONE = "none"  # Slurm has no record of it


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """One Slurm node."""

    name: SlurmNode
    states: States
    reason: str = ""
    reason_user: str = ""
    reason_at: float = 0.0
    comment: str = ""
    extra: str = ""
    features: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    gres: str = ""
    cpus: int = 0
    memory_mib: int = 0
    threads: int = 1  # of a core
    reserved_cores: int = 0  # CoreSpecCount
    reserved_mib: int = 0  # MemSpecLimit
    topology: str = ""
    address: str = ""
    hostname: str = ""  # NodeHostName
    booted: float = 0.0
    last_busy: float = 0.0  # when its last job ended
    reservation: str = ""

    @property
    def drained(self) -> bool:
        """Slurm starts nothing more there, by somebody's word."""
        return "DRAIN" in self.states and "UNDRAIN" not in self.states

    @property
    def busy(self) -> bool:
        return bool(self.states & BUSY)

    @property
    def external(self) -> bool:
        return "EXTERNAL" in self.states

    @property
    def kind(self) -> Kind:
        if self.external:
            return Kind.EXTERNAL
        return Kind.OPERATOR if operator_pod(self.comment) is not None else Kind.SLURMD


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeMark:
    """What we write into the comment of an external node."""

    cluster: str
    node: KubeNode
    drained: bool = False  # the drain in force is the mirror's
    topology: str = ""  # that we set


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPod:
    """What slurm-operator writes into the comment of its nodes."""

    namespace: str
    name: str
    node: KubeNode


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFailure:
    """A pod of ours that kubelet could not start."""

    pod: Uid
    ref: str  # "namespace/name"
    at: float  # Unix seconds by the API server's clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One node as both sides have it. At least one of `node` and `record` is there."""

    name: SlurmNode  # that Slurm has it under, or will
    node: Node | None = None
    record: NodeRecord | None = None
    siblings: tuple[NodeRecord, ...] = ()  # further slurmds on the same Kubernetes node
    former: tuple[SlurmNode, ...] = ()  # other records whose mark names this Kubernetes node: it has moved
    claimants: tuple[Node, ...] = ()  # of a name that several claim
    refused: str = ""  # why nobody can say which two belong together; then nothing is done
    others: tuple[Pod, ...] = ()  # on it, not Slurm's, not ended; slurmd's own are among them
    taken: Mapping[str, Fraction] = field(default_factory=dict)  # what these ask for: `nodesize.taken`
    failures: tuple[StartFailure, ...] = ()
    unfree: str = ""  # why what ran there may run on: no drain of ours is lifted meanwhile
    named: bool = (
        False  # a live job, or one that waits for exactly this node, names it, or a pod may use its GPUs
    )
    differs_for: float = 0.0  # since its size was first seen to be another one than Slurm's
    silent_for: float = 0.0  # since Slurm was first seen not to reach it
    absent_for: float = 0.0  # since Slurm was first seen to have no record of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How many more nodes may be taken out of service at this moment."""

    drains: int  # as they are not Ready, or as pods don't start there
    recreations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What is the same for all nodes."""

    cluster: str
    scheduler: str  # the value of the taint
    now: float  # Unix seconds by the API server's clock
    slurm_now: float
    kube_age: float  # since Kubernetes' nodes and pods were last known in full
    slurm_age: float  # since all Slurm nodes were last read
    boot_age: float  # since slurmctld's boot time changed under our eyes
    boot_grace: float = 300.0
    min_job_age: float = 300.0  # how long slurmctld remembers a job that ended
    partitions: frozenset[str] | None = None  # that Slurm has; None = not known
    many_lost: bool = False  # so many bridged nodes lack a record that Slurm may have lost its list
    gres_by_resource: Mapping[str, str] = field(default_factory=dict)

    @property
    def age(self) -> float:
        """Seconds since the older of both sides was known: a start of slurmctld may have undone what it said before."""
        return max(self.kube_age, self.slurm_age if self.slurm_age <= self.boot_age else math.inf)

    @property
    def young(self) -> bool:
        """slurmctld has just come up: what it lacks, or doesn't reach, is not lost."""
        return self.boot_age < self.boot_grace


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What mirror() says of one node."""

    name: SlurmNode
    kind: Kind
    steps: tuple[NodeStep, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    drained_by: str = ""  # "bridge", "operator", or who else; "" = nobody
    differs: str = (
        ""  # in which sizes both sides differ; `Pair.differs_for` counts from when this was first said
    )
    shown: bool = False  # its Kubernetes node gets condition and taints
    hint: str = ""  # what an admin should set
    overcommitted: bool = False  # several slurmds offer more than their machine has: no job of ours gets it
    again: float | None = None  # seconds; None = the next event


@lru_cache(maxsize=16_384)  # a comment: they are asked for at each look at all nodes
def mark(comment: str) -> NodeMark | None:
    """None for anything that isn't a mark of a bridge."""
    ours = _object(comment).get("bridge")
    if not isinstance(ours, dict) or ours.get("v") != 1:
        return None
    cluster, node = ours.get("cluster"), ours.get("node")
    if not isinstance(cluster, str) or not isinstance(node, str):
        return None
    topology = ours.get("topology")
    return NodeMark(
        cluster=cluster,
        node=KubeNode(node),
        drained=ours.get("drained") is True,
        topology=topology if isinstance(topology, str) else "",
    )


def marked(comment: str, new: NodeMark) -> str:
    """The comment with another mark; what others wrote into it stays."""
    body = _object(comment)
    if not body and comment:
        body = {"comment": comment}
    ours: dict[str, Any] = {"v": 1, "cluster": new.cluster, "node": new.node}
    if new.drained:
        ours["drained"] = True
    if new.topology:
        ours["topology"] = new.topology
    return json.dumps(body | {"bridge": ours}, separators=(",", ":"))


@lru_cache(maxsize=16_384)
def operator_pod(comment: str) -> OperatorPod | None:
    """None for anything that slurm-operator doesn't write."""
    body = _object(comment)
    found = [body.get(key) for key in ("namespace", "podName", "node")]
    namespace, name, node = (one if isinstance(one, str) else "" for one in found)
    return OperatorPod(namespace=namespace, name=name, node=KubeNode(node)) if name else None


def _object(comment: str) -> dict[str, Any]:
    """{} for anything that is no JSON object."""
    if not comment.startswith("{"):
        return {}
    try:
        body = json.loads(comment)
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}
