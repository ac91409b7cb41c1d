"""The nodes of a schedule whose nodes are mirrored, what happens to them, and who else is at work on them.

In: a simulation before its bridge begins, and actions. What must stay true: whatever is done for a while is undone by
who did it; only what somebody says in Slurm, and doesn't take back, stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bridge.core.model import KubeNode
from bridge.core.nodes import NodeMark, marked
from bridge.core.violation import Violation
from bridge.kube import view
from bridge.names import EXTERNAL_NODE_LABEL, SLURMD_LABEL
from tests.sim.actions import (
    Action,
    Admin,
    Deaf,
    Gone,
    Reboot,
    Rejects,
    Reserve,
    Resize,
    Silence,
    Taint,
    Unlabel,
)
from tests.sim.simulation import Simulation
from tests.worlds import slurm_nodes
from tests.worlds.kube_merge import Object
from tests.worlds.slurm_jobs import WorldNode
from tests.worlds.slurm_operator import Operator

KINDS = {  # of a schedule: its nodes, in their order
    "external": ("external", "external", "external"),
    "slurmd": ("operator", "slurmd", "slurmd"),
    "both": ("external", "operator", "external"),
}
FOREIGN = "f1"  # an external node of another cluster's bridge, on the same slurmctld
PERSON = "root"
COLLECTED = 40.0  # seconds until pods of a node that is not there are deleted
BOOT = "boot-1"
CPUS = range(61, 68)  # that are no other size than 64


class Machines:
    """`later(seconds, act)` calls it then, and the schedule is not over before."""

    def __init__(
        self, sim: Simulation, kind: str, gpus: int, later: Callable[[float, Callable[[], object]], None]
    ) -> None:
        self._sim, self._gpus, self._later = sim, gpus, later
        self._kinds = dict(zip(sorted(sim.slurm.nodes), KINDS[kind], strict=True))
        self._operator = Operator(sim.slurm, sim.kube)
        self._bodies: dict[str, Object] = {}  # of node objects that were deleted
        self._lost: dict[str, float] = {}  # since when a node is not there
        self._boots = 1
        for name, what in self._kinds.items():
            self._prepare(name, what)
        comment = marked("", NodeMark(cluster="another", node=KubeNode("n1")))
        sim.slurm.set_node(WorldNode(FOREIGN, gpus=gpus, comment=comment))
        self._work = asyncio.create_task(self._run())

    def _prepare(self, name: str, what: str) -> None:
        sim = self._sim
        sizes = {"cpu": "64", "memory": "512000Mi", "nvidia.com/gpu": str(self._gpus), "pods": "110"}
        addresses = [{"type": "InternalIP", "address": "10.0.0.1"}]
        status = {"allocatable": sizes, "addresses": addresses, "nodeInfo": {"bootID": BOOT}}
        sim.kube.storage.patch("nodes", "", name, {"status": status}, subresource="status")
        if what == "external":
            sim.label(name, **{EXTERNAL_NODE_LABEL: ""})
            return
        sim.slurm.set_node(replace(sim.slurm.nodes[name], external=False, dynamic=False))
        if what == "operator":
            self._operator.join(name, name, gpus=self._gpus)

    def close(self) -> None:
        self._work.cancel()

    # --- what happens -----------------------------------------------------------------------------

    def do(self, action: Action) -> None:
        sim = self._sim
        match action:
            case Silence(node=node, says=says, seconds=seconds):
                for name in [node] if node else self._kinds:
                    self._for(seconds, name, lambda name, on: self._ready(name, says if on else "True"))
            case Taint(node=node, key=key, seconds=seconds):
                self._for(seconds, node, lambda name, on: self._taint(name, key, on))
            case Unlabel(node=node, seconds=seconds):
                if self._kinds[node] == "external":
                    self._for(seconds, node, lambda name, on: self._label(name, None if on else ""))
            case Gone(node=node, seconds=seconds):
                self._for(seconds, node, self._gone)
            case Resize(node=node, cpus=cpus, gpus=gpus, seconds=seconds):
                self._for(
                    seconds,
                    node,
                    lambda name, on: self._size(name, *((cpus, gpus) if on else (64, self._gpus))),
                )
            case Reboot(node=node):
                self._boots += 1
                self._status(node, {"nodeInfo": {"bootID": f"boot-{self._boots}"}})
            case Rejects(node=node, seconds=seconds):
                sim.kubelet.rejects.add(node)
                self._later(seconds, lambda: sim.kubelet.rejects.discard(node))
            case Admin(node=node, state=state, reason=reason, seconds=seconds):
                self.say(node, state, reason)
                if seconds:
                    self._later(seconds, lambda: self._take_back(node, reason))
            case Reserve(node=node, seconds=seconds):
                self._for(seconds, node, lambda name, on: self._change(name, reservation="r1" if on else ""))
            case Deaf(node=node, seconds=seconds):
                self._change(node, silent=True)
                if self._kinds[node] != "external":
                    self._later(seconds, lambda: self._change(node, silent=False))
            case _:
                raise AssertionError(action)

    def _for(self, seconds: float, node: str, act: Callable[[str, bool], object]) -> None:
        act(node, True)
        self._later(seconds, lambda: act(node, False))

    def _status(self, name: str, status: dict[str, Any]) -> None:
        if self._sim.kube.get("nodes", name) is not None:
            self._sim.kube.storage.patch("nodes", "", name, {"status": status}, subresource="status")
        elif name in self._bodies:
            body = self._bodies[name]
            self._bodies[name] = {**body, "status": {**body["status"], **status}}

    def _ready(self, name: str, says: str) -> None:
        since = view.stamp(self._sim.wall())
        self._status(name, {"conditions": [{"type": "Ready", "status": says, "lastTransitionTime": since}]})

    def _size(self, name: str, cpus: int, gpus: int) -> None:
        sizes = {"cpu": str(cpus), "memory": "512000Mi", "nvidia.com/gpu": str(gpus), "pods": "110"}
        self._status(name, {"allocatable": sizes})

    def _label(self, name: str, value: str | None) -> None:
        if self._sim.kube.get("nodes", name) is not None:
            self._sim.label(name, **{EXTERNAL_NODE_LABEL: value})

    def _taint(self, name: str, key: str, on: bool) -> None:
        found = self._sim.kube.get("nodes", name)
        if found is not None:
            others = [taint for taint in found.get("spec", {}).get("taints") or () if taint["key"] != key]
            taints = [*others, {"key": key, "effect": "NoSchedule"}] if on else others
            self._sim.kube.storage.patch("nodes", "", name, {"spec": {"taints": taints}})

    def _gone(self, name: str, on: bool) -> None:
        """What others than kubelet wrote on it is lost with the object."""
        kube = self._sim.kube
        found = kube.get("nodes", name)
        if on and found is not None:
            labels = {EXTERNAL_NODE_LABEL: ""} if self._kinds[name] == "external" else {}
            ready = [one for one in found["status"]["conditions"] if one["type"] == "Ready"]
            status = {**found["status"], "conditions": ready}
            self._bodies[name] = {"metadata": {"name": name, "labels": labels}, "status": status}
            kube.storage.delete("nodes", "", name, {})
        elif not on and found is None and name in self._bodies:
            body = self._bodies.pop(name)
            kube.add("nodes", {**body, "spec": {}})
            self._ready(name, "True")

    def _change(self, name: str, **changes: Any) -> None:
        if name in self._sim.slurm.nodes:
            self._sim.slurm.set_node(replace(self._sim.slurm.nodes[name], **changes))

    def say(self, name: str, state: str, reason: str = "") -> None:
        """What scontrol does; of a node that is in order RESUME is refused."""
        slurm = self._sim.slurm
        if name not in slurm.nodes:
            return
        node, jobs = slurm.nodes[name], slurm_nodes.on(slurm, name)
        if state == "RESUME" and not (node.drained or node.failing or node.down):
            return
        body = {"state": [state], "reason": reason}
        slurm.set_node(slurm_nodes.updated(node, body, busy=bool(jobs), by=PERSON, now=slurm.clock()))
        for job in jobs if state == "DOWN" else ():
            slurm.end(job.id, "NODE_FAIL")

    def _take_back(self, name: str, reason: str) -> None:
        node = self._sim.slurm.nodes.get(name)
        if node is not None and node.reason == reason and node.reason_by == PERSON:
            self.say(name, "RESUME")

    # --- who else is at work ----------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self._operator.sync()
            self._collect()

    def _collect(self) -> None:
        """The garbage collector of pods whose node is not there."""
        now, kube = asyncio.get_running_loop().time(), self._sim.kube
        for name in self._kinds:
            if kube.get("nodes", name) is not None:
                self._lost.pop(name, None)
            elif now - self._lost.setdefault(name, now) > COLLECTED:
                for pod in [p for p in self._sim.pods() if p["spec"].get("nodeName") == name]:
                    if SLURMD_LABEL not in pod["metadata"].get("labels", {}):  # its controller makes it anew
                        self._sim.delete(pod["metadata"]["name"], force=True)

    # --- the end ----------------------------------------------------------------------------------

    def calm(self) -> None:
        """What a crash of slurmctld brought back."""
        for name, what in self._kinds.items():
            if (node := self._sim.slurm.nodes.get(name)) is not None:
                silent = node.silent and what == "external"
                if (node.reservation, node.silent) != ("", silent):
                    self._change(name, reservation="", silent=silent)

    def unfinished(self) -> Violation | None:
        """A record of another size than its machine, while no other one is being made anew."""
        if any("to be re-created" in node.reason for node in self._sim.slurm.nodes.values()):
            return None
        for name, what in self._kinds.items():
            node = self._sim.slurm.nodes.get(name)
            judged = what == "external" and node is not None and not node.closed
            if node is not None and judged and (node.cpus not in CPUS or node.gpus != self._gpus):
                text = f"node {name} has {node.cpus} CPUs and {node.gpus} GPUs in Slurm, which it has not"
                return Violation("nodes_agree", text)
        return None

    def give_back(self) -> bool:
        """A person resumes what people, or the bridge for the sake of devices, took out of service, and is clean."""
        used = {held.node for held in self._sim.kubelet.containers.values()}
        out = [
            n
            for n in self._sim.slurm.nodes.values()
            if (n.drained or n.failing or n.down) and n.name not in used
        ]
        for node in out:
            self.say(node.name, "RESUME")
        return bool(out)


def is_ours(action: Action) -> bool:
    return isinstance(
        action, Silence | Taint | Unlabel | Gone | Resize | Reboot | Rejects | Admin | Reserve | Deaf
    )
