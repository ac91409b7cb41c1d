"""A slurm-operator for both worlds: to nodes of its own it writes exactly what the real one does, to others nothing.

Its rule about owners: a node whose reason isn't empty and doesn't begin with its prefix is somebody else's, and it
neither drains nor undrains it.
"""

from __future__ import annotations

import json
from typing import Any

from tests.worlds import slurm_nodes
from tests.worlds.kube import KubeWorld
from tests.worlds.kube_objects import Object
from tests.worlds.slurm import SlurmWorld
from tests.worlds.slurm_jobs import WorldNode

PREFIX = "slurm-operator: "
NODESET = "worker"
NAMESPACE = "slurm"
ANY = {"operator": "Exists"}
BUSY = (
    "Allocated",
    "Mixed",
    "Idle",
    "Down",
    "Error",
    "Future",
    "Unknown",
)  # base states, of which one is shown
FLAGS = {"Drain": "DRAIN", "Fail": "FAIL", "Completing": "COMPLETING", "NotResponding": "NOT_RESPONDING",
         "Maintenance": "MAINTENANCE", "Undrain": "UNDRAIN"}  # fmt: skip


class Operator:
    def __init__(self, slurm: SlurmWorld, kube: KubeWorld) -> None:
        self._slurm, self._kube = slurm, kube
        self._homes: dict[str, str] = {}  # Slurm node → Kubernetes node
        self.skipped: set[str] = set()  # by the last sync, as somebody else's

    def join(self, name: str, home: str, *, tolerates: Object = ANY, **size: Any) -> None:
        """The slurmd pod of that node has registered itself, and the operator has said where it runs.

        `tolerates`: what the admin lets it bear, beside the operator's own taint.
        """
        self._homes[name] = home
        if self._kube.get("pods", f"slurm-{NODESET}-{home}", NAMESPACE) is None:
            if self._kube.get("namespaces", NAMESPACE) is None:
                self._kube.namespace(NAMESPACE)
            self._kube.add("pods", _slurmd(name, home, tolerates), NAMESPACE)
        where = {"namespace": NAMESPACE, "podName": f"slurm-{NODESET}-{home}", "node": home}
        comment = json.dumps(where | {"nodeSetName": NODESET, "nodeSetUID": "7c1e"})
        self._slurm.set_node(
            WorldNode(name, external=False, features=(NODESET,), comment=comment, reason_by="slurm", **size)
        )

    def sync(self) -> None:
        """One round over its nodes."""
        self.skipped.clear()
        for name, home in self._homes.items():
            self._tell(name, home)
            node, found = self._slurm.nodes[name], self._kube.get("nodes", home)
            if node.reason and not node.reason.startswith(PREFIX):
                self.skipped.add(name)
                continue
            cordoned = found is not None and bool(found["spec"].get("unschedulable"))
            if cordoned and not node.drained:
                self._say(name, state=["DRAIN"], reason=f"{PREFIX}Node ({home}) was cordoned")
            elif not cordoned and node.drained and node.reason:
                self._say(name, state=["UNDRAIN"])

    def _tell(self, name: str, home: str) -> None:
        """On its pod: Slurm's states of the node, as conditions of which those are there that are so."""
        pod = self._kube.get("pods", f"slurm-{NODESET}-{home}", NAMESPACE)
        if pod is None:
            return
        node = self._slurm.nodes[name]
        states = slurm_nodes.shown(node, slurm_nodes.on(self._slurm, name), external=False)["state"]
        base = next((one for one in BUSY if one.upper() in states), "Unknown")
        wanted = [base, *(flag for flag, state in FLAGS.items() if state in states)]
        told = [
            {"type": f"SlurmNodeState{state}", "status": "True", "message": node.reason} for state in wanted
        ]
        status = pod.get("status") or {}
        others = [c for c in status.get("conditions", ()) if not c["type"].startswith("SlurmNodeState")]
        if status.get("conditions", []) != others + told:
            gone = [
                {"type": c["type"], "$patch": "delete"}
                for c in status.get("conditions", ())
                if c not in others and c["type"] not in {one["type"] for one in told}
            ]
            body = {"status": {"conditions": told + gone}}
            where = ("pods", NAMESPACE, pod["metadata"]["name"])
            self._kube.storage.patch(*where, body, subresource="status")

    def terminate(self, name: str) -> None:
        """The slurmd pod's preStop hook."""
        self._say(name, state=["DOWN"], reason=f"{PREFIX}Pod is terminating")

    def _say(self, name: str, **body: Any) -> None:
        node, busy = self._slurm.nodes[name], bool(slurm_nodes.on(self._slurm, name))
        now = self._slurm.clock()
        self._slurm.set_node(slurm_nodes.updated(node, body, busy=busy, by="slurm", now=now))


def _slurmd(name: str, home: str, tolerates: Object) -> Object:
    labels = {
        "app.kubernetes.io/name": "slurmd",
        "app.kubernetes.io/instance": NODESET,
        "app.kubernetes.io/component": "worker",
        "slinky.slurm.net/cluster": "slurm",
        "nodeset.slinky.slurm.net/pod-hostname": name,
        "nodeset.slinky.slurm.net/scaling-mode": "DaemonSet",
    }
    own = {"key": "nodeset.slinky.slurm.net/worker", "operator": "Exists", "effect": "NoExecute"}
    spec = {"nodeName": home, "schedulerName": "default-scheduler", "tolerations": [own, tolerates]}
    spec["containers"] = [{"name": "slurmd"}]
    meta = {"name": f"slurm-{NODESET}-{home}", "namespace": NAMESPACE, "labels": labels}
    return {"metadata": meta, "spec": spec, "status": {"phase": "Running"}}
