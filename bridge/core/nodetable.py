"""`slurm-bridge nodes`: both records of each node side by side, and what the bridge would do about them.

In: what one look read of both sides. Out: a row a node, and how a person or a machine reads it. What must stay true:
what is said of a node is what `core.mirror` says of it; of a side that could not be read nothing is said.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from bridge.config import NodeSettings
from bridge.core import external, nodesize, pairs
from bridge.core.drains import OPERATOR_PREFIX, drained_by
from bridge.core.mirror import mirror_all
from bridge.core.model import KubeNode, Node, Pod, SlurmNode
from bridge.core.nodes import Around, Kind, NodeRecord, Outlook, Pair, operator_pod
from bridge.core.nodesize import Size
from bridge.core.steps import (
    DeleteNode,
    DrainNode,
    NodeStep,
    NotifyNode,
    RegisterNode,
    SetNodeCondition,
    SetNodeTaints,
    UndrainNode,
    UpdateNode,
)
from bridge.core.verdict import Reason, Verdict
from bridge.errors import UserError, trim
from bridge.names import DRAIN_PREFIX, OPERATOR_STATE_CONDITION, SLURM_NODENAME_LABEL, SLURMD_LABEL

NOTHING: Final = "-"
UNREAD: Final = "?"
_KINDS = {"EXTERNAL", "DYNAMIC_NORM", "DYNAMIC_FUTURE", "CLOUD"}  # who a node is, not how it is
_BASES = ("DOWN", "IDLE", "ALLOCATED", "MIXED", "FUTURE", "ERROR", "UNKNOWN")
_LONGEST = 60  # characters of a drain's reason in the table; JSON has all


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """What was read; None: it could not be."""

    nodes: tuple[Node, ...] | None = None
    pods: tuple[Pod, ...] | None = None  # of all namespaces
    records: tuple[NodeRecord, ...] | None = None

    @property
    def whole(self) -> bool:
        return self.nodes is not None and self.pods is not None and self.records is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class InKubernetes:
    name: KubeNode
    status: str  # as kubectl has it
    taints: tuple[str, ...]
    condition: str  # ours, "" = none
    size: Size | None  # that is left for pods of Slurm's; None: it can't be told
    operator: tuple[str, ...]  # states that slurm-operator shows on its slurmd pods there


@dataclass(frozen=True, slots=True, kw_only=True)
class InSlurm:
    name: SlurmNode
    states: tuple[str, ...]
    kind: Kind
    drained_by: str  # "" = nobody
    reason: str
    size: Size  # without what is reserved for the system
    features: tuple[str, ...]
    partitions: tuple[str, ...]
    reservation: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """At least one of both sides is there."""

    name: SlurmNode  # that Slurm has it under, or would
    kubernetes: InKubernetes | None = None
    slurm: InSlurm | None = None
    named_by: str = ""  # what says that both are one node, where the names differ
    differs: str = ""
    set: str = ""  # what an admin should set
    says: tuple[Verdict, ...] = ()
    next: tuple[str, ...] = ()  # what the bridge would do now

    @property
    def amiss(self) -> bool:
        """Both sides differ, or something is to happen."""
        said = any(verdict.reason is not Reason.FOREIGN for verdict in self.says)
        return bool(self.differs or self.set or self.next or said)


# --- the decision -----------------------------------------------------------------------------------

Judged = tuple[tuple[Pair, Outlook | None], ...]


def judged(sides: Sides, around: Around, settings: NodeSettings, ours: Container[str]) -> Judged:
    """Every node as the bridge's loop would judge it at its first look; None where a side is missing. `ours`: scheduler
    names."""
    joined = pairs.join(sides.nodes or (), sides.records or (), around.cluster)
    if sides.pods is not None:
        joined = pairs.seen_once(joined, sides.pods, ours)
    if not sides.whole:
        return tuple((pair, None) for pair in joined)
    around = replace(around, many_lost=pairs.many_lost(joined) or not sides.records)
    return tuple(zip(joined, mirror_all(joined, around, settings), strict=True))


def rows(sides: Sides, found: Judged, around: Around, settings: NodeSettings) -> tuple[Row, ...]:
    """By name; of a name that several nodes claim there is a row for each."""
    alone = {pair.node.name: pair.node for pair, _ in found if pair.node is not None and pair.record is None}
    made: list[Row] = []
    for pair, outlook in found:
        for node in pair.claimants or (pair.node,):
            row = Row(
                name=pair.name,
                kubernetes=_in_kubernetes(node, pair, sides, around, settings) if node is not None else None,
                slurm=_in_slurm(pair.record) if pair.record is not None else None,
                named_by=_named_by(node, pair.record),
            )
            if outlook is not None:
                row = replace(
                    row,
                    differs=outlook.differs or _one_side(pair, alone),
                    set=outlook.hint,
                    says=outlook.verdicts,
                    next=tuple(filter(None, map(_words, outlook.steps))),
                )
            made.append(row)
    return tuple(made)


def _in_kubernetes(
    node: Node, pair: Pair, sides: Sides, around: Around, settings: NodeSettings
) -> InKubernetes:
    shown = node.mirrored
    slurmds = [pod for pod in pair.others if pod.labels.get(SLURMD_LABEL) == "slurmd"]
    return InKubernetes(
        name=node.name,
        status=("Ready" if node.ready else "NotReady") + (",SchedulingDisabled" if node.cordoned else ""),
        taints=tuple(map(str, node.taints)),
        condition=f"{shown.reason}: {shown.message}" if shown is not None else "",
        size=_size(node, pair, around, settings) if sides.pods is not None and not pair.claimants else None,
        operator=tuple(state for pod in slurmds for state in operator_states(pod)),
    )


def operator_states(pod: Pod) -> Iterator[str]:
    """Of Slurm's node, as slurm-operator last saw it: "Idle", "Drain"."""
    for one in pod.conditions:
        if one.type.startswith(OPERATOR_STATE_CONDITION) and one.status == "True":
            yield one.type.removeprefix(OPERATOR_STATE_CONDITION)


def _size(node: Node, pair: Pair, around: Around, settings: NodeSettings) -> Size | None:
    """An external node's is what its record should say."""
    try:
        if external.labelled(pair) is not None and (pair.record is None or pair.record.external):
            return nodesize.wanted(node, pair.taken, settings, around.gres_by_resource)
        return nodesize.left(node, pair.taken, around.gres_by_resource)
    except UserError:
        return None


def _in_slurm(record: NodeRecord) -> InSlurm:
    return InSlurm(
        name=record.name,
        states=_sorted(record.states),
        kind=record.kind,
        drained_by=drained_by(record),
        reason=record.reason,
        size=nodesize.offered([record]),
        features=record.features,
        partitions=record.partitions,
        reservation=record.reservation,
        address=record.address,
    )


def _sorted(states: Iterable[str]) -> tuple[str, ...]:
    """The base state first, as scontrol has it."""
    return tuple(sorted(states, key=lambda word: (word not in _BASES, word)))


def _named_by(node: Node | None, record: NodeRecord | None) -> str:
    if node is None or (record is None and SLURM_NODENAME_LABEL not in node.labels):
        return ""
    if node.labels.get(SLURM_NODENAME_LABEL):
        return f"label {SLURM_NODENAME_LABEL}"
    if record is None or KubeNode(record.name) == node.name:
        return ""
    pod = operator_pod(record.comment)
    return (
        "comment of slurm-operator" if pod is not None and pod.node == node.name else "cut at the first dot"
    )


def _one_side(pair: Pair, alone: Mapping[KubeNode, Node]) -> str:
    if pair.claimants:
        return ""
    if pair.record is None:
        return "only in Kubernetes"
    if pair.node is not None:
        return ""
    host = pair.record.hostname
    twin = next((name for name in alone if host and host in (name, name.partition(".")[0])), None)
    if twin is None:
        return "only in Slurm"
    return f"only in Slurm; its NodeHostName is {host}: label node {twin} {SLURM_NODENAME_LABEL}={pair.name}"


def _words(step: NodeStep) -> str:
    """ "" = nothing that lasts."""
    match step:
        case DrainNode(reason=reason):
            return f"drain: {_bare(reason)}"
        case UndrainNode():
            return "undrain"
        case RegisterNode():
            return "register"
        case UpdateNode(features=features, topology=topology, comment=comment):
            parts = [f"features {','.join(features) or 'none'}"] if features is not None else []
            parts += [f"topology {topology or 'none'}"] if topology is not None else []
            parts += ["mark"] if comment is not None else []
            return f"write {', '.join(parts)}"
        case DeleteNode():
            return "delete in Slurm"
        case SetNodeCondition(condition=condition):
            return f"condition {condition.reason}" if condition is not None else "take the condition away"
        case SetNodeTaints(add=add, remove=remove):
            return ", ".join([*(f"add taint {t}" for t in add), *(f"remove taint {t}" for t in remove)])
        case NotifyNode():
            return ""


def _bare(reason: str) -> str:
    return reason.removeprefix(DRAIN_PREFIX).removeprefix(OPERATOR_PREFIX).strip()


# --- for people and machines ------------------------------------------------------------------------


def body(found: Iterable[Row], troubles: Sequence[str], cluster: str) -> dict[str, Any]:
    """For JSON."""
    nodes = [asdict(row) for row in found]
    return {"cluster": cluster, "unread": list(troubles), "nodes": nodes}


def text(found: Sequence[Row], sides: Sides, *, wide: bool = False) -> str:
    """As kubectl and sinfo write tables. Sizes are Kubernetes' and Slurm's."""
    head = ["NODE", "STATUS", "SLURM", "STATE", "KIND", "CPUS(K/S)", "MIB(K/S)", "DEVICES(K/S)"]
    head += ["NAMED BY", "PARTITIONS", "TAINTS", "OPERATOR SEES"] if wide else []
    head += ["DRAINED BY", "NEXT"]
    return columns([head, *(_cells(row, sides, wide=wide) for row in found)])


def columns(lines: Sequence[Sequence[str]]) -> str:
    """Left-aligned, three spaces between; the last one as long as it is."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)][:-1]
    shown = (
        "   ".join([*(f"{cell:<{w}}" for cell, w in zip(line, widths, strict=False)), line[-1]])
        for line in lines
    )
    return "\n".join(line.rstrip() for line in shown)


def _cells(row: Row, sides: Sides, *, wide: bool) -> Sequence[str]:
    here, there = row.kubernetes, row.slurm
    no_node = NOTHING if sides.nodes is not None else UNREAD
    no_record = NOTHING if sides.records is not None else UNREAD
    states = [word for word in there.states if word not in _KINDS] if there is not None else []
    sizes = [
        f"{_amount(here, kind, no_node)}/{_amount(there, kind, no_record)}"
        for kind in ("cpus", "mib", "gres")
    ]
    cells = [
        here.name if here is not None else no_node,
        here.status if here is not None else no_node,
        row.name if there is not None else no_record,
        "+".join(states) if there is not None else no_record,
        there.kind if there is not None else no_record,
        *sizes,
    ]
    if wide:
        cells += [
            row.named_by or NOTHING,
            ",".join(there.partitions) or NOTHING if there is not None else no_record,
            ",".join(here.taints) or NOTHING if here is not None else no_node,
            ",".join(here.operator) or NOTHING if here is not None else no_node,
        ]
    return [*cells, _drained(there), _next(row) if sides.whole else UNREAD]


def _amount(side: InKubernetes | InSlurm | None, kind: str, missing: str) -> str:
    if side is None:
        return missing
    if side.size is None:
        return UNREAD
    size = side.size
    return str({"cpus": size.cpus, "mib": size.memory_mib, "gres": sum(size.gres.values())}[kind])


def _drained(there: InSlurm | None) -> str:
    if there is None or not there.drained_by:
        return NOTHING
    reason = trim(_bare(there.reason), _LONGEST)
    return f"{there.drained_by}: {reason}" if reason else f"{there.drained_by}, without a reason"


def _next(row: Row) -> str:
    """What another column tells is left out."""
    said = [verdict.text for verdict in row.says if verdict.reason is not Reason.NODE_DRAINED]
    parts = [part for part in (row.differs, row.set) if part and not any(part in text for text in said)]
    return "; ".join([*parts, *said, *row.next]) or NOTHING
