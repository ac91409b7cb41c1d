"""Two tiny clusters that share nodes: what each side keeps of them, and who else writes there.

Slurm's part behaves as measured on 26.05: UNDRAIN clears the reason except on a DOWN node (`old`: nor on a busy one),
a drain without a reason keeps the text that is there, FAIL takes the place of DRAIN. `look` is one look of the bridge
with all that it remembers nowhere else: how long two sizes have differed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from bridge.config import NodeSettings
from bridge.core import mirror, nodesize, pairs
from bridge.core.constraints import Constraints, Taint, Toleration
from bridge.core.model import Condition, Container, KubeNode, Node, Pod, Resources, SlurmNode, Uid
from bridge.core.nodes import Around, NodeMark, NodeRecord, Outlook, Pair, StartFailure, marked
from bridge.core.steps import (
    DeleteNode,
    DrainNode,
    NodeStep,
    NotifyNode,
    RegisterNode,
    SetNodeCondition,
    SetNodeTaints,
    UndrainNode,
    UpdateNode,
)
from bridge.names import EXTERNAL_NODE_LABEL, MANAGED_NODE_TAINT

CLUSTER = "cluster-1"
NOW = 1_800_000_000.0
GIB = 1024
EXTERNAL = frozenset({"IDLE", "EXTERNAL", "DYNAMIC_NORM"})
SETTINGS = NodeSettings(externalNodePartitions=("bridge",))
GPUS = {"nvidia.com/gpu": "gpu:h100"}


def kube(name: str, **changes: Any) -> Node:
    base = Node(
        name=KubeNode(name),
        uid=Uid(f"uid-{name}"),
        labels={EXTERNAL_NODE_LABEL: ""},
        allocatable={"cpu": "64", "memory": f"{256 * GIB}Mi", "nvidia.com/gpu": "8", "pods": "110"},
        boot_id="boot-1",
        addresses=("10.0.0.1",),
    )
    return replace(base, **changes)


def record(name: str, *flags: str, node: str = "", cluster: str = CLUSTER, **changes: Any) -> NodeRecord:
    base = NodeRecord(
        name=SlurmNode(name),
        states=EXTERNAL | set(flags),
        comment=marked("", NodeMark(cluster=cluster, node=KubeNode(node or name))),
        features=("bridge",),
        partitions=("bridge",),
        gres="gpu:h100:8",
        cpus=64,
        memory_mib=256 * GIB,
        address="10.0.0.1",
    )
    return replace(base, **changes)


def operated(name: str, *flags: str, node: str = "", **changes: Any) -> NodeRecord:
    """As slurm-operator leaves it."""
    info = {
        "namespace": "slurm",
        "podName": f"{name}-pod",
        "node": node or name,
        "nodeSetName": "gpu",
        "nodeSetUID": "1-2-3",
    }
    return record(
        name,
        **{
            "states": frozenset({"IDLE", "DYNAMIC_NORM", *flags}),
            "comment": json.dumps(info),
            "features": ("gpu",),
            **changes,
        },
    )


def by_hand(name: str, *flags: str, **changes: Any) -> NodeRecord:
    """A slurmd that the site runs."""
    return record(name, **{"states": frozenset({"IDLE", *flags}), "comment": "rack 7", **changes})


def other(name: str, node: str, *, tolerates: bool = True, **changes: Any) -> Pod:
    """A pod that is not Slurm's."""
    tolerations = (Toleration(operator="Exists"),) if tolerates else ()
    requests = changes.pop("requests", {})
    base = Pod(
        namespace="monitoring",
        name=name,
        uid=Uid(f"uid-{name}-{node}"),
        node=KubeNode(node),
        phase="Running",
        containers=(Container(name="main", resources=Resources(requests=requests)),),
        constraints=Constraints(tolerations=tolerations),
    )
    return replace(base, **changes)


def slurmd(name: str, node: str, *, tolerates: bool = True) -> Pod:
    return other(
        name,
        node,
        tolerates=tolerates,
        namespace="slurm",
        labels={"app.kubernetes.io/name": "slurmd"},
    )


@dataclass
class World:
    nodes: dict[KubeNode, Node] = field(default_factory=dict)
    records: dict[SlurmNode, NodeRecord] = field(default_factory=dict)
    others: dict[KubeNode, tuple[Pod, ...]] = field(default_factory=dict)
    failures: dict[KubeNode, tuple[StartFailure, ...]] = field(default_factory=dict)
    unfree: dict[SlurmNode, str] = field(default_factory=dict)
    named: set[SlurmNode] = field(default_factory=set)
    settings: NodeSettings = SETTINGS
    partitions: frozenset[str] | None = None
    old: bool = False  # a Slurm that keeps the reason of a busy node
    now: float = NOW
    booted: float = NOW - 10_000
    differed: dict[SlurmNode, float] = field(default_factory=dict)  # what a restart of the bridge forgets
    events: list[NotifyNode] = field(default_factory=list)

    @classmethod
    def of(cls, *things: Node | NodeRecord, **changes: Any) -> World:
        world = cls(**changes)
        for thing in things:
            if isinstance(thing, Node):
                world.nodes[thing.name] = thing
            else:
                world.records[thing.name] = thing
        return world

    # --- the bridge -------------------------------------------------------------------------------

    def around(self, found: Iterable[Pair] = (), **changes: Any) -> Around:
        base = Around(
            cluster=CLUSTER,
            scheduler="slurm-bridge",
            now=self.now,
            slurm_now=self.now,
            kube_age=0.1,
            slurm_age=min(0.1, self.now - self.booted),
            boot_age=self.now - self.booted,
            partitions=self.partitions,
            many_lost=pairs.many_lost(found),
            gres_by_resource=GPUS,
        )
        return replace(base, **changes)

    def pairs(self) -> tuple[Pair, ...]:
        return tuple(
            replace(
                pair,
                others=self.others.get(pair.node.name, ()) if pair.node else (),
                taken=nodesize.taken(self.others.get(pair.node.name, ()) if pair.node else ()),
                failures=self.failures.get(pair.node.name, ()) if pair.node else (),
                unfree=self.unfree.get(pair.name, ""),
                named=pair.name in self.named,
                differs_for=self.now - self.differed.get(pair.name, self.now),
                silent_for=60.0,
                absent_for=60.0,
            )
            for pair in pairs.join(self.nodes.values(), self.records.values(), CLUSTER)
        )

    def see(self, **changes: Any) -> dict[SlurmNode, Outlook]:
        found = self.pairs()
        outlooks = mirror.mirror_all(found, self.around(found, **changes), self.settings)
        for one in outlooks:
            if not one.differs:
                self.differed.pop(one.name, None)
            else:
                self.differed.setdefault(one.name, self.now)
        return {one.name: one for one in outlooks}

    def look(self, **changes: Any) -> list[NodeStep]:
        """And do it."""
        steps = [step for one in self.see(**changes).values() for step in one.steps]
        for step in steps:
            self.apply(step)
        return steps

    def settle(self) -> list[NodeStep]:
        """Until nothing is left to do; all steps."""
        done: list[NodeStep] = []
        for _ in range(8):
            steps = self.look()
            if not steps:
                return done
            done += steps
        raise AssertionError(f"no end of it: {done[-6:]}")

    def restart(self) -> None:
        """Of the bridge."""
        self.differed.clear()

    # --- what each step does ----------------------------------------------------------------------

    def apply(self, step: NodeStep) -> None:
        match step:
            case DrainNode():
                self._drain(step)
            case UndrainNode(node=name, reason=reason, comment=comment):
                old = self.records[name]
                if "DRAIN" in old.states and "FAIL" not in old.states and old.reason == reason:
                    self.resume(name)
                    if comment is not None:
                        self.change(name, comment=comment)
            case RegisterNode(node=name, conf=conf):
                self._register(name, conf)
            case UpdateNode(node=name, features=features, topology=topology, comment=comment):
                if features is not None:
                    self.change(name, features=features)
                if topology is not None:
                    self.change(name, topology=topology)
                if comment is not None:
                    self.change(name, comment=comment)
            case DeleteNode(node=name, reason=reason):
                old = self.records[name]
                assert old.drained, f"{name} is deleted before it is drained"
                assert not old.busy, f"{name} is deleted under a job"
                if old.reason == reason:
                    del self.records[name]
            case SetNodeCondition(node=node, condition=condition):
                self._condition(node, condition)
            case SetNodeTaints(node=node, add=add, remove=remove):
                there = self.nodes[node]
                kept = tuple(t for t in there.taints if t not in remove)
                self.nodes[node] = replace(there, taints=(*kept, *add))
            case NotifyNode():
                self.events.append(step)

    def _drain(self, step: DrainNode) -> None:
        old = self.records[step.node]
        if "DRAIN" in old.states and (not step.over or old.reason != step.over):
            return
        self.change(
            step.node,
            states=old.states | {"DRAIN"},
            reason=step.reason,
            reason_user="slurm",
            reason_at=self.now,
            comment=old.comment if step.comment is None else step.comment,
        )

    def _register(self, name: SlurmNode, conf: str) -> None:
        keys = dict(part.split("=", 1) for part in conf.split(" "))
        self.records.setdefault(
            name,
            NodeRecord(
                name=name,
                states=EXTERNAL,
                features=tuple(keys.get("Feature", "").split(",")) if "Feature" in keys else (),
                gres=keys.get("Gres", ""),
                cpus=int(keys["CPUs"]),
                memory_mib=int(keys["RealMemory"]),
                topology=keys.get("Topology", ""),
                address=keys["NodeAddr"],
            ),
        )

    def _condition(self, name: KubeNode, condition: Condition | None) -> None:
        old = self.nodes[name].mirrored
        if condition is not None:
            same = old is not None and old.status == condition.status
            condition = replace(condition, changed=old.changed if same and old else self.now)
        self.nodes[name] = replace(self.nodes[name], mirrored=condition)

    # --- others -----------------------------------------------------------------------------------

    def change(self, name: SlurmNode, **changes: Any) -> None:
        self.records[name] = replace(self.records[name], **changes)

    def kubernetes(self, name: KubeNode, **changes: Any) -> None:
        self.nodes[name] = replace(self.nodes[name], **changes)

    def drain(self, name: SlurmNode, reason: str, user: str = "root") -> None:
        """By somebody else, with or without a reason."""
        old = self.records[name]
        told = {"reason": reason, "reason_user": user, "reason_at": self.now} if reason else {}
        self.change(name, states=old.states | {"DRAIN"}, **told)

    def resume(self, name: SlurmNode) -> None:
        """RESUME, or UNDRAIN."""
        old = self.records[name]
        keeps = "DOWN" in old.states or (self.old and old.busy)
        reason = old.reason if keeps else ""
        self.change(name, states=old.states - {"DRAIN", "FAIL"}, reason=reason)

    def run(self, name: SlurmNode, busy: bool) -> None:
        old = self.records[name]
        if busy:
            self.change(name, states=old.states - {"IDLE"} | {"MIXED"})
        elif old.busy:
            self.change(name, states=old.states - {"MIXED"} | {"IDLE"}, last_busy=self.now)


def tainted(node: Node) -> Node:
    return replace(node, taints=(Taint(MANAGED_NODE_TAINT, "slurm-bridge", "NoSchedule"),))
