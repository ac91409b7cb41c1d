"""The two parties around the API server that the bridge lives with: a kubelet and a stock kube-scheduler.

Both act on `KubeWorld` directly, one step at a time; a test decides when.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from bridge.core.fit import Needs, Taken, obstacle
from bridge.kube import node_view, view
from tests.worlds.kube import KubeWorld
from tests.worlds.kube_merge import Object
from tests.worlds.kube_storage import Refused, encode

Extender = Callable[[Object], Awaitable[Object]]  # one verb: the JSON that kube-scheduler posts → our answer


class Kubelet:
    """All kubelets of the cluster in one."""

    def __init__(self, world: KubeWorld) -> None:
        self._world = world

    def run(self, name: str, namespace: str = "default") -> Object:
        """The containers of a bound pod start."""
        return self._report(namespace, name, "Running", lambda _: {"running": {}})

    def finish(self, name: str, exit_code: int = 0, namespace: str = "default") -> Object:
        """The containers end by themselves."""
        phase = "Failed" if exit_code else "Succeeded"
        return self._report(namespace, name, phase, lambda _: {"terminated": {"exitCode": exit_code}})

    def end_deleted(self, name: str, namespace: str = "default", exit_code: int = 143) -> None:
        """A pod under deletion: its containers are ended, that is reported, then the object goes."""
        pod = self._world.storage.get("pods", namespace, name)
        if pod["status"].get("phase") not in ("Succeeded", "Failed"):
            self.finish(name, exit_code, namespace)
        self._world.storage.delete("pods", namespace, name, {"gracePeriodSeconds": 0})

    def step(self) -> None:
        """Start what is bound, end what is being deleted. Pods of nodes that don't exist stay as they are."""
        for pod in list(self._world.storage.all("pods")):
            meta, node = pod["metadata"], pod["spec"].get("nodeName", "")
            if not node or self._world.get("nodes", node) is None:
                continue
            if meta.get("deletionTimestamp"):
                self.end_deleted(meta["name"], meta["namespace"])
            elif pod["status"].get("phase") == "Pending":
                self.run(meta["name"], meta["namespace"])

    def _report(self, namespace: str, name: str, phase: str, state: Callable[[str], Object]) -> Object:
        pod = self._world.storage.get("pods", namespace, name)
        statuses = [{"name": c["name"], "state": state(c["name"])} for c in pod["spec"]["containers"]]
        ready = {"type": "Ready", "status": "True" if phase == "Running" else "False"}
        patch = {"status": {"phase": phase, "containerStatuses": statuses, "conditions": [ready]}}
        return self._world.storage.patch("pods", namespace, name, patch, subresource="status")


class Scheduler:
    """What a stock kube-scheduler with our extender does to un-gated pods of ours.

    A nominated node is asked about alone, first. A refusal leaves the pod until something changes; an error
    clears the nomination and backs off for 1, 2, 4 … 10 s of `clock`. Placement by resources and volumes is not
    simulated.
    """

    def __init__(
        self,
        world: KubeWorld,
        schedulers: Sequence[str],
        *,
        filter: Extender,
        bind: Extender,
        clock: Callable[[], float],
        max_backoff: float = 10.0,
    ) -> None:
        self._world = world
        self._schedulers = frozenset(schedulers)
        self._filter = filter
        self._bind = bind
        self._clock = clock
        self._max_backoff = max_backoff
        self._failures: dict[str, int] = {}
        self._not_before: dict[str, float] = {}
        self.full: set[str] = set()  # nodes that it gives to nobody, for reasons of its own
        self.filter_calls = 0
        self.bind_calls = 0

    async def step(self) -> int:
        """Try every pod that is due, oldest first. Returns how many were bound."""
        waiting = [pod for pod in self._world.storage.all("pods") if self._due(pod)]
        bound = 0
        for pod in sorted(waiting, key=lambda p: int(p["metadata"]["resourceVersion"])):
            bound += await self._schedule(pod)
        return bound

    def due(self) -> float:
        """When the next pod that has failed is tried again, by the clock."""
        times = (self._not_before.get(p["metadata"]["uid"], 0.0) for p in self._world.storage.all("pods"))
        return min((at for at in times if at > self._clock()), default=math.inf)

    def _due(self, pod: Object) -> bool:
        meta, spec = pod["metadata"], pod["spec"]
        return (
            spec.get("schedulerName") in self._schedulers
            and not spec.get("nodeName")
            and not spec.get("schedulingGates")
            and not meta.get("deletionTimestamp")
            and self._clock() >= self._not_before.get(meta["uid"], 0.0)
        )

    async def _schedule(self, pod: Object) -> bool:
        usable = [n["metadata"]["name"] for n in self._world.storage.all("nodes") if self._fits(pod, n)]
        nominated = pod["status"].get("nominatedNodeName", "")
        try:
            fit = await self._ask(pod, [nominated]) if nominated in usable else []
            fit = fit or await self._ask(pod, usable)
        except _ExtenderError as error:
            self._failed(pod, str(error))
            return False
        if not fit:
            self._condition(pod, "Unschedulable", "no node passed the filters")
            return False
        meta = pod["metadata"]
        self.bind_calls += 1
        answer = await self._bind(
            {
                "podName": meta["name"],
                "podNamespace": meta["namespace"],
                "podUID": meta["uid"],
                "node": fit[0],
            }
        )
        if answer.get("error"):
            self._failed(pod, answer["error"])
            return False
        self._failures.pop(meta["uid"], None)
        return True

    def _fits(self, pod: Object, node: Object) -> bool:
        """Cordon, taints, selector and affinity, host ports: what the bridge should have told Slurm; and `full`."""
        if node["metadata"]["name"] in self.full:
            return False
        there = [
            p
            for p in self._world.storage.all("pods")
            if p["spec"].get("nodeName") == node["metadata"]["name"]
        ]
        alive = [p for p in there if p["status"].get("phase") not in ("Succeeded", "Failed")]
        ports = [port for p in alive for port in view.pod_from_object(p).constraints.ports]
        wants = Needs(view.pod_from_object(pod).constraints)
        return not obstacle(wants, replace(node_view.node(encode(node)), ready=True), Taken(0, ports))

    async def _ask(self, pod: Object, nodes: list[str]) -> list[str]:
        if not nodes:
            return []
        self.filter_calls += 1
        answer = await self._filter({"pod": pod, "nodenames": nodes})
        if answer.get("error"):
            raise _ExtenderError(answer["error"])
        names: list[str] = answer.get("nodenames") or []
        return [name for name in names if name in nodes]

    def _failed(self, pod: Object, message: str) -> None:
        uid = pod["metadata"]["uid"]
        self._failures[uid] = self._failures.get(uid, 0) + 1
        pause = min(self._max_backoff, 2.0 ** (self._failures[uid] - 1))
        self._not_before[uid] = self._clock() + pause
        self._condition(pod, "SchedulerError", message)

    def _condition(self, pod: Object, reason: str, message: str) -> None:
        said: dict[str, Any] = {
            "type": "PodScheduled", "status": "False", "reason": reason, "message": message,
        }  # fmt: skip
        patch = {"status": {"conditions": [said], "nominatedNodeName": None}}
        meta = pod["metadata"]
        try:
            self._world.storage.patch("pods", meta["namespace"], meta["name"], patch, subresource="status")
        except Refused:
            return  # it went away meanwhile


class _ExtenderError(Exception):
    pass
