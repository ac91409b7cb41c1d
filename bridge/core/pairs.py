"""Which Slurm node is which Kubernetes node, with the records of Slurm at hand.

In: both lists. Out: one pair a Slurm name. A node's name in Slurm is, in this order: what the label says; what
slurm-operator wrote into the comment of its nodes (several, where several slurmds share a machine); the node's own
name; that name cut at its first dot. What must stay true: a name that two nodes claim belongs to neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bridge.core.model import KubeNode, Node, SlurmNode
from bridge.core.nodes import Kind, NodeRecord, Pair, mark, operator_pod
from bridge.names import SLURM_NODENAME_LABEL

LOST_AT_ONCE = 2  # bridged nodes whose records may be missing at a time,
LOST_SHARE = 0.1  # or this share of all of them: more, and Slurm may have lost its list


def join(nodes: Iterable[Node], records: Iterable[NodeRecord], cluster: str) -> tuple[Pair, ...]:
    """By name. `cluster`: ours, as two clusters may each have a node of one name."""
    known = {record.name: record for record in records}
    hosted = _hosted(known.values())
    claims: dict[SlurmNode, list[Node]] = {}
    own: dict[KubeNode, tuple[SlurmNode, ...]] = {}
    for node in nodes:
        own[node.name] = names(node, known, hosted.get(node.name, ()))
        for name in own[node.name]:
            claims.setdefault(name, []).append(node)
    former: dict[KubeNode, list[SlurmNode]] = {}
    for record in known.values():
        here = mark(record.comment) if record.external else None
        ours = here is not None and here.cluster == cluster
        if here is not None and ours and here.node in own and record.name not in own[here.node]:
            former.setdefault(here.node, []).append(record.name)
    return tuple(_pair(name, claims.get(name, ()), known, own, former) for name in sorted({*known, *claims}))


def names(
    node: Node, known: Mapping[SlurmNode, NodeRecord], hosted: Sequence[SlurmNode] = ()
) -> tuple[SlurmNode, ...]:
    """That a node has in Slurm, or would have. `hosted`: the operator's nodes that say that they live on it."""
    if label := node.labels.get(SLURM_NODENAME_LABEL):
        return tuple(dict.fromkeys((SlurmNode(label), *hosted)))
    if hosted:
        return tuple(hosted)
    short = SlurmNode(node.name.partition(".")[0])
    full = SlurmNode(node.name)
    return (short,) if full not in known and short in known and not known[short].external else (full,)


def _hosted(records: Iterable[NodeRecord]) -> dict[KubeNode, list[SlurmNode]]:
    found: dict[KubeNode, list[SlurmNode]] = {}
    for record in records:
        pod = operator_pod(record.comment) if record.kind is Kind.OPERATOR else None
        if pod is not None and pod.node:
            found.setdefault(pod.node, []).append(record.name)
    return {node: sorted(names) for node, names in found.items()}


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
        return Pair(name=name, record=record, refused=f"{who} both claim the Slurm name {name}")
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


def many_lost(pairs: Iterable[Pair]) -> bool:
    """Do so many nodes that Slurm had lack a record that it may rather have lost its list, or given an empty one?"""
    bridged = [pair for pair in pairs if pair.node is not None and pair.node.mirrored is not None]
    lost = sum(pair.record is None for pair in bridged)
    return lost > 0 and (lost == len(bridged) or lost > max(LOST_AT_ONCE, LOST_SHARE * len(bridged)))
