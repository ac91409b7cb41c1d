"""`slurm-bridge nodes plan`: which nodes would get the taint managed-node, and which pods it would evict there.

In: nodes as `core.mirror` judged them, the pods of both sides. Out: a line a node. What must stay true: what is refused
here is refused by the bridge, by the same function.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bridge.config import NodeSettings
from bridge.core import external, reflection
from bridge.core.constraints import Taint
from bridge.core.model import KubeNode, Pod, SlurmNode
from bridge.core.nodes import Around, Kind, Outlook, Pair
from bridge.core.nodetable import NOTHING, Judged, columns
from bridge.names import MANAGED_NODE_TAINT


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    pod: str  # "namespace/name"
    system: bool
    ours: bool  # it has one of our scheduler names


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Of one node. Neither kept nor refused: it gets the taint."""

    node: KubeNode
    slurm: SlurmNode
    kept: str = ""  # the taint that is there already, and stays as it is
    refused: str = ""  # why it gets none
    evicts: tuple[Victim, ...] = ()  # what the taint evicts, or would if it were not refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    taint: Taint | None  # None: none is set anywhere
    nodes: tuple[Planned, ...]

    @property
    def applies(self) -> bool:
        """No node refuses it."""
        return not any(one.refused for one in self.nodes)


def plan(
    found: Judged, pods: Iterable[Pod], around: Around, settings: NodeSettings, ours: Container[str]
) -> Plan:
    """`pods`: all; `ours`: scheduler names."""
    if not settings.taintNodes:
        return Plan(taint=None, nodes=())
    seats: dict[KubeNode, list[Pod]] = {}
    for pod in pods:
        if pod.node and not pod.ended:
            seats.setdefault(pod.node, []).append(pod)
    planned: list[Planned] = []
    for pair, outlook in found:
        node = pair.node
        if node is None or outlook is None or not (outlook.shown or _coming(pair, outlook, settings)):
            continue
        if (standing := reflection.managed(node)) is not None:
            planned.append(Planned(node=node.name, slurm=pair.name, kept=str(standing)))
            continue
        kind = pair.record.kind if pair.record is not None else Kind.EXTERNAL
        taint, refused = reflection.planned(kind, pair.others, around, settings)
        victims = sorted(reflection.evicted(taint, seats.get(node.name, ())), key=lambda pod: pod.ref)
        evicts = tuple(
            Victim(pod=pod.ref, system=reflection.system(pod), ours=pod.scheduler in ours) for pod in victims
        )
        planned.append(Planned(node=node.name, slurm=pair.name, refused=refused, evicts=evicts))
    taint = Taint(MANAGED_NODE_TAINT, around.scheduler, settings.taintEffect)
    return Plan(taint=taint, nodes=tuple(planned))


def _coming(pair: Pair, outlook: Outlook, settings: NodeSettings) -> bool:
    """Slurm is to get it, and then it is tainted."""
    return (
        outlook.kind is Kind.NONE
        and settings.externalNodes
        and external.labelled(pair) is not None
        and not pair.refused
    )


# --- for people and machines ------------------------------------------------------------------------


def body(found: Plan) -> dict[str, Any]:
    """For JSON."""
    nodes = [asdict(one) for one in found.nodes]
    return {"taint": str(found.taint or ""), "may_be_applied": found.applies, "nodes": nodes}


def text(found: Plan) -> str:
    if found.taint is None:
        return "No node gets the taint: taintNodes is false. What stands on nodes stays."
    head = ("NODE", "SLURM", "TAINT", "EVICTS", "WHY NOT")
    lines = [line for one in found.nodes for line in _lines(one)]
    return "\n".join([columns([head, *lines]), "", *_summary(found, found.taint)])


def _lines(one: Planned) -> Iterable[Sequence[str]]:
    """A line a pod."""
    told = f"kept: {one.kept}" if one.kept else "refused" if one.refused else "set"
    pods = [victim.pod + (" (system)" if victim.system else "") for victim in one.evicts] or [NOTHING]
    for number, pod in enumerate(pods):
        yield one.node, one.slurm, told, pod, NOTHING if number or not one.refused else one.refused


def _summary(found: Plan, taint: Taint) -> Iterable[str]:
    refused = [one for one in found.nodes if one.refused]
    gets = [one for one in found.nodes if not one.refused and not one.kept]
    evicted = [victim for one in gets for victim in one.evicts]
    yield f"{_count(len(gets), 'node')} would get {taint}, {len(found.nodes) - len(gets) - len(refused)} keep theirs."
    if taint.effect != "NoExecute":
        yield f"Nobody is evicted: {taint.effect} lets pods be that run."
    else:
        yield f"{_count(len(evicted), 'pod')} would be evicted."
        if mine := sum(victim.ours for victim in evicted):
            yield f"{mine} of them of Slurm's: they came without the toleration that admission adds."
    if refused:
        yield f"Not to be applied as it stands: {_count(len(refused), 'node')} would stay without it."
    else:
        yield "May be applied."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
