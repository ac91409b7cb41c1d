"""The Kubernetes nodes by their Slurm names, put together again when a node has changed.

Goes in: the store's table of nodes. Comes out: one mapping, the same until a node changes, and the names of nodes that
have gone, whose containers may run on.
"""

from __future__ import annotations

from bridge.core.model import KubeNode, Node, SlurmNode
from bridge.core.twins import by_slurm_name
from bridge.kube.store import Table


class Twins:
    def __init__(self, table: Table[Node]) -> None:
        self._table = table
        self._version = -1
        self._nodes: dict[SlurmNode, Node] = {}
        self._names: dict[SlurmNode, KubeNode] = {}  # also of nodes that have gone
        self._duplicates: tuple[str, ...] = ()

    def nodes(self) -> dict[SlurmNode, Node]:
        """By the name that Slurm knows them under."""
        if self._version != self._table.version:
            self._version = self._table.version
            self._nodes, self._duplicates = by_slurm_name(self._table)
            self._names |= {name: node.name for name, node in self._nodes.items()}
        return self._nodes

    def kube_name(self, name: SlurmNode) -> KubeNode:
        """Of a node that is there, or that has gone."""
        self.nodes()
        return self._names.get(name, KubeNode(name))

    def duplicates(self) -> tuple[str, ...]:
        """A sentence for each name that two nodes claim."""
        self.nodes()
        return self._duplicates
