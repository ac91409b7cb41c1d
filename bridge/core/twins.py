"""Which Kubernetes node is which Slurm node.

In: Kubernetes nodes and, where Slurm's nodes are read, what their records say of names. Out: nodes by Slurm name, and a
sentence for each name that two of them claim. A node's name in Slurm is, in this order: what the label says; what
slurm-operator wrote into the comment of its nodes (several, where several slurmds share a machine); the node's own
name; that name cut at its first dot. What must stay true: a name that two nodes claim belongs to neither; and what a
record no longer says is not taken for a move, as a comment may be lost while jobs run there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bridge.core.model import KubeNode, Node, SlurmNode
from bridge.core.nodes import Kind, NodeRecord, operator_pod
from bridge.names import SLURM_NODENAME_LABEL


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """What Slurm's records say."""

    known: frozenset[SlurmNode] = frozenset()
    external: frozenset[SlurmNode] = frozenset()
    hosts: Mapping[SlurmNode, KubeNode] = field(default_factory=dict)  # where slurm-operator's nodes live
    # The same the other way round.
    hosted: Mapping[KubeNode, tuple[SlurmNode, ...]] = field(default_factory=dict)


def naming(records: Iterable[NodeRecord], before: Naming | None = None) -> Naming:
    """`before`: of the last look. A node that no longer says where it lives stays where it was."""
    found = {record.name: record for record in records}
    hosts = {name: host for name, record in found.items() if (host := _host(record))}
    kept = before.hosts.items() if before is not None else ()
    lost = {n: host for n, host in kept if n in found and n not in hosts and not found[n].external}
    hosts |= lost
    hosted: dict[KubeNode, list[SlurmNode]] = {}
    for name in sorted(hosts):
        hosted.setdefault(hosts[name], []).append(name)
    return Naming(
        known=frozenset(found),
        external=frozenset(name for name, record in found.items() if record.external),
        hosts=hosts,
        hosted={host: tuple(mine) for host, mine in hosted.items()},
    )


def names(node: Node, said: Naming) -> tuple[SlurmNode, ...]:
    """That a node has in Slurm, or would have."""
    hosted = said.hosted.get(node.name, ())
    if label := node.labels.get(SLURM_NODENAME_LABEL):
        return tuple(dict.fromkeys((SlurmNode(label), *hosted)))
    short, full = SlurmNode(node.name.partition(".")[0]), SlurmNode(node.name)
    cut = full not in said.known and short in said.known - said.external
    return hosted or ((short,) if cut else (full,))


def slurm_name(node: Node) -> SlurmNode:
    """The one that it claims by itself."""
    return SlurmNode(node.labels.get(SLURM_NODENAME_LABEL) or node.name)


def by_slurm_name(
    nodes: Iterable[Node], said: Naming | None = None
) -> tuple[dict[SlurmNode, Node], tuple[str, ...]]:
    """Nodes that Slurm can be told by their name; two with one name are both left out, and said. `said`: then only
    names that Slurm has: another one may be of a node whose comment is lost."""
    found: dict[SlurmNode, list[Node]] = {}
    for node in nodes:
        for name in (slurm_name(node),) if said is None else names(node, said):
            if said is None or name in said.known:
                found.setdefault(name, []).append(node)
    duplicates = tuple(
        f"{' and '.join(sorted(n.name for n in same))} both claim the Slurm name {name}"
        for name, same in found.items()
        if len(same) > 1
    )
    return {name: same[0] for name, same in found.items() if len(same) == 1}, duplicates


def kube_name(nodes: Mapping[SlurmNode, Node], name: SlurmNode) -> KubeNode:
    """One that Kubernetes doesn't have keeps its name."""
    node = nodes.get(name)
    return node.name if node is not None else KubeNode(name)


def _host(record: NodeRecord) -> KubeNode:
    """ "" = it doesn't say."""
    pod = operator_pod(record.comment) if record.kind is Kind.OPERATOR else None
    return pod.node if pod is not None else KubeNode("")
