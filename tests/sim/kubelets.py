"""The machines: kubelets, and the containers that really run, whatever any control plane believes of them.

In: the pods of the Kubernetes world. Out: their status, and `containers`: which pods run on which node, until they are
dead. A node that is not Ready is out of reach: its containers run on, and its kubelet hears and says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tests.worlds.kube import KubeWorld
from tests.worlds.kube_agents import Kubelet
from tests.worlds.kube_merge import Object
from tests.worlds.kube_storage import Refused


@dataclass(slots=True, kw_only=True)
class Running:
    """The containers of one pod."""

    name: str
    namespace: str
    node: str
    grace: float
    dies: float = math.inf  # when, by the clock


class Kubelets(Kubelet):
    """`dying`: the share of its grace that a container takes to end after the signal."""

    def __init__(self, world: KubeWorld, clock: Callable[[], float], dying: float = 0.0) -> None:
        super().__init__(world)
        self._clock = clock
        self._dying = dying
        self.containers: dict[str, Running] = {}  # by pod UID
        self.rejects: set[str] = set()  # nodes whose kubelet takes no pod

    def finish(self, name: str, exit_code: int = 0, namespace: str = "default") -> Object:
        pod = super().finish(name, exit_code, namespace)
        self.containers.pop(pod["metadata"]["uid"], None)
        return pod

    def due(self) -> float:
        """When something will happen by time alone."""
        return min((c.dies for c in self.containers.values() if self.reachable(c.node)), default=math.inf)

    def step(self) -> None:
        """Start what is bound, end what is being deleted or has gone."""
        here = {}
        for pod in list(self._world.storage.all("pods")):
            meta, node = pod["metadata"], pod["spec"].get("nodeName", "")
            here[meta["uid"]] = pod
            if not node or not self.reachable(node):
                continue
            if meta.get("deletionTimestamp"):
                self._stop(meta["uid"])
                if meta["uid"] not in self.containers:
                    self.end_deleted(meta["name"], meta["namespace"])
            elif pod["status"].get("phase") == "Pending" and meta["uid"] not in self.containers:
                self._start(pod, node)
        for uid, held in list(self.containers.items()):
            if uid not in here and self.reachable(held.node):
                self._stop(uid)
        self._bury(here)

    def _start(self, pod: Object, node: str) -> None:
        meta = pod["metadata"]
        if node in self.rejects:
            status = {"status": {"phase": "Failed", "reason": "OutOfcpu"}}
            self._world.storage.patch("pods", meta["namespace"], meta["name"], status, subresource="status")
            return
        self.containers[meta["uid"]] = Running(
            name=meta["name"],
            namespace=meta["namespace"],
            node=node,
            grace=float(pod["spec"].get("terminationGracePeriodSeconds", 30)),
        )
        self.run(meta["name"], meta["namespace"])

    def _stop(self, uid: str) -> None:
        """The signal; the end comes at the latest after the grace."""
        held = self.containers.get(uid)
        if held is not None and held.dies == math.inf:
            held.dies = self._clock() + held.grace * self._dying

    def _bury(self, here: dict[str, Object]) -> None:
        for uid, held in list(self.containers.items()):
            if held.dies > self._clock() or not self.reachable(held.node):
                continue
            del self.containers[uid]
            if uid in here:
                self.end_deleted(held.name, held.namespace)

    def reachable(self, node: str) -> bool:
        found = self._world.get("nodes", node)
        if found is None:
            return False
        return any(c["type"] == "Ready" and c["status"] == "True" for c in found["status"]["conditions"])

    def end_deleted(self, name: str, namespace: str = "default", exit_code: int = 143) -> None:
        try:
            super().end_deleted(name, namespace, exit_code)
        except Refused:  # force-deleted in the same moment
            return
