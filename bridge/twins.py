"""Which nodes each side has: Kubernetes nodes by their Slurm names, and the Slurm nodes of partitions.

Goes in: the store's table of nodes, partitions as they were read. Comes out: a mapping, the same until a node changes,
the names of nodes that have gone, whose containers may run on; and a set, the same until a partition changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from bridge.core.model import KubeNode, Node, Partition, SlurmNode
from bridge.core.twins import Naming, by_slurm_name
from bridge.kube.table import Table


class Twins:
    """`said`: what Slurm's records say of names, the same object until it changes; None = they are not read."""

    def __init__(self, table: Table[Node], said: Callable[[], Naming | None] = lambda: None) -> None:
        self._table = table
        self._said = said
        self._version: tuple[int, Naming | None] = (-1, None)
        self._nodes: dict[SlurmNode, Node] = {}
        self._names: dict[SlurmNode, KubeNode] = {}  # also of nodes that have gone
        self._duplicates: tuple[str, ...] = ()

    def nodes(self) -> dict[SlurmNode, Node]:
        """By the name that Slurm knows them under."""
        said = self._said()
        if self._version[0] != self._table.version or self._version[1] is not said:
            self._version = self._table.version, said
            self._nodes, self._duplicates = by_slurm_name(self._table, said)
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


def nodes_of(partitions: Mapping[str, Partition], names: str) -> frozenset[SlurmNode] | None:
    """Of one partition, or of several "a,b"; None: of one of them it is not known."""
    found = [partitions.get(name) for name in names.split(",")]
    nodes = [one.nodes for one in found if one is not None and one.nodes is not None]
    return _union(*nodes) if len(nodes) == len(found) else None


@lru_cache(maxsize=16)
def _union(*sets: frozenset[SlurmNode]) -> frozenset[SlurmNode]:
    return sets[0] if len(sets) == 1 else frozenset[SlurmNode]().union(*sets)
