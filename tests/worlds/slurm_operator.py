"""A slurm-operator for both worlds: to nodes of its own it writes exactly what the real one does, to others nothing.

Its rule about owners: a node whose reason isn't empty and doesn't begin with its prefix is somebody else's, and it
neither drains nor undrains it.
"""

from __future__ import annotations

import json
from typing import Any

from tests.worlds import slurm_nodes
from tests.worlds.kube import KubeWorld
from tests.worlds.slurm import SlurmWorld
from tests.worlds.slurm_jobs import WorldNode

PREFIX = "slurm-operator: "
NODESET = "worker"


class Operator:
    def __init__(self, slurm: SlurmWorld, kube: KubeWorld) -> None:
        self._slurm, self._kube = slurm, kube
        self._homes: dict[str, str] = {}  # Slurm node → Kubernetes node
        self.skipped: set[str] = set()  # by the last sync, as somebody else's

    def join(self, name: str, home: str, **size: Any) -> None:
        """The slurmd pod of that node has registered itself, and the operator has said where it runs."""
        self._homes[name] = home
        where = {"namespace": "slurm", "podName": f"slurm-{NODESET}-{home}", "node": home}
        comment = json.dumps(where | {"nodeSetName": NODESET, "nodeSetUID": "7c1e"})
        self._slurm.set_node(
            WorldNode(name, external=False, features=(NODESET,), comment=comment, reason_by="slurm", **size)
        )

    def sync(self) -> None:
        """One round over its nodes."""
        self.skipped.clear()
        for name, home in self._homes.items():
            node, found = self._slurm.nodes[name], self._kube.get("nodes", home)
            if node.reason and not node.reason.startswith(PREFIX):
                self.skipped.add(name)
                continue
            cordoned = found is not None and bool(found["spec"].get("unschedulable"))
            if cordoned and not node.drained:
                self._say(name, state=["DRAIN"], reason=f"{PREFIX}Node ({home}) was cordoned")
            elif not cordoned and node.drained and node.reason:
                self._say(name, state=["UNDRAIN"])

    def terminate(self, name: str) -> None:
        """The slurmd pod's preStop hook."""
        self._say(name, state=["DOWN"], reason=f"{PREFIX}Pod is terminating")

    def _say(self, name: str, **body: Any) -> None:
        node, busy = self._slurm.nodes[name], bool(slurm_nodes.on(self._slurm, name))
        now = self._slurm.clock()
        self._slurm.set_node(slurm_nodes.updated(node, body, busy=busy, by="slurm", now=now))
