"""Which Kubernetes node is which Slurm node: by the label that admins set, else by the same name.

In: Kubernetes nodes. Out: nodes by Slurm name, and a sentence for each name that two of them claim. What must stay
true: a name that is not unique stands for nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bridge.core.model import KubeNode, Node, SlurmNode
from bridge.names import SLURM_NODENAME_LABEL


def slurm_name(node: Node) -> SlurmNode:
    """The one that it claims."""
    return SlurmNode(node.labels.get(SLURM_NODENAME_LABEL) or node.name)


def by_slurm_name(nodes: Iterable[Node]) -> tuple[dict[SlurmNode, Node], tuple[str, ...]]:
    """Nodes that Slurm can be told by their name; two with one name are both left out, and said."""
    found: dict[SlurmNode, list[Node]] = {}
    for node in nodes:
        found.setdefault(slurm_name(node), []).append(node)
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
