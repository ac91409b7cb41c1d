"""Which Slurm node is which Kubernetes node, with the records of Slurm at hand.

In: both lists. Out: one pair a Slurm name, as `core.twins` finds it. What must stay true: a name that two nodes claim
belongs to neither.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace

from bridge.core import nodesize, startfailures
from bridge.core.model import KubeNode, Node, Pod, SlurmNode
from bridge.core.nodes import NodeRecord, Pair, StartFailure, mark
from bridge.core.twins import names, naming
from bridge.errors import UserError

LOST_AT_ONCE = 2  # bridged nodes whose records may be missing at a time,
LOST_SHARE = 0.1  # or this share of all of them: more, and Slurm may have lost its list


def join(nodes: Iterable[Node], records: Iterable[NodeRecord], cluster: str) -> tuple[Pair, ...]:
    """By name. `cluster`: ours, as two clusters may each have a node of one name."""
    known = {record.name: record for record in records}
    said = naming(known.values())
    claims: dict[SlurmNode, list[Node]] = {}
    own: dict[KubeNode, tuple[SlurmNode, ...]] = {}
    for node in nodes:
        own[node.name] = names(node, said)
        for name in own[node.name]:
            claims.setdefault(name, []).append(node)
    former: dict[KubeNode, list[SlurmNode]] = {}
    for record in known.values():
        here = mark(record.comment) if record.external else None
        ours = here is not None and here.cluster == cluster
        if here is not None and ours and here.node in own and record.name not in own[here.node]:
            former.setdefault(here.node, []).append(record.name)
    return tuple(_pair(name, claims.get(name, ()), known, own, former) for name in sorted({*known, *claims}))


def _pair(
    name: SlurmNode,
    claimants: Sequence[Node],
    known: Mapping[SlurmNode, NodeRecord],
    own: Mapping[KubeNode, tuple[SlurmNode, ...]],
    former: Mapping[KubeNode, Sequence[SlurmNode]],
) -> Pair:
    record = known.get(name)
    if len(claimants) > 1:
        who = " and ".join(sorted(node.name for node in claimants))
        return Pair(
            name=name,
            record=record,
            claimants=tuple(claimants),
            refused=f"{who} both claim the Slurm name {name}",
        )
    if not claimants:
        return Pair(name=name, record=record)
    (node,) = claimants
    rest = (known[other] for other in own[node.name] if other != name and other in known)
    return Pair(
        name=name,
        node=node,
        record=record,
        siblings=tuple(rest),
        former=tuple(former.get(node.name, ())),
    )


def home(pair: Pair) -> KubeNode:
    """The Kubernetes node, also of a record whose node has gone."""
    if pair.node is not None:
        return pair.node.name
    known = mark(pair.record.comment) if pair.record is not None and pair.record.external else None
    return known.node if known is not None else KubeNode(pair.name)


def seen_once(pairs: Iterable[Pair], pods: Iterable[Pod], ours: Container[str]) -> tuple[Pair, ...]:
    """With what one list of all pods tells of each, `ours`: scheduler names. How long sizes have differed, and whether
    containers of pods that have gone run on, only a running bridge knows: the first counts from now, nothing runs on.
    A slurmd that does not answer is taken to have been silent for long."""
    others: dict[KubeNode, list[Pod]] = {}
    failures: dict[KubeNode, list[StartFailure]] = {}
    for pod in pods:
        if pod.scheduler not in ours:
            if pod.node and not pod.ended:
                others.setdefault(pod.node, []).append(pod)
        elif (failure := startfailures.failure(pod)) is not None:
            failures.setdefault(pod.node, []).append(failure)
    return tuple(
        replace(
            with_others(pair, others.get(home(pair), ())),
            failures=tuple(failures.get(home(pair), ())),
            silent_for=math.inf,
            absent_for=math.inf,
        )
        for pair in pairs
    )


def with_others(pair: Pair, others: Iterable[Pod]) -> Pair:
    """And what these ask for. What can't be read concludes nothing."""
    pods = tuple(others)
    try:
        return replace(pair, others=pods, taken=nodesize.taken(pods))
    except UserError as error:
        return replace(pair, others=pods, refused=pair.refused or str(error))


def many_lost(pairs: Iterable[Pair]) -> bool:
    """Do so many nodes that Slurm had lack a record that it may rather have lost its list, or given an empty one?"""
    bridged = [pair for pair in pairs if pair.node is not None and pair.node.mirrored is not None]
    lost = sum(pair.record is None for pair in bridged)
    return lost > 0 and (lost == len(bridged) or lost > max(LOST_AT_ONCE, LOST_SHARE * len(bridged)))
