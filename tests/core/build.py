"""Small builders for core tests: a group of one pod and what Slurm says about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bridge.core import jobid
from bridge.core.attempt import Attempt
from bridge.core.facts import Facts, Member, Sight
from bridge.core.fit import Fit, needs, obstacle
from bridge.core.model import (
    Condition,
    Group,
    GroupKey,
    JobId,
    JobRecord,
    JobSpec,
    KubeNode,
    Mark,
    Node,
    Pod,
    SlurmNode,
    States,
    Uid,
)
from bridge.names import (
    GPUS_ANNOTATION,
    JOB_ID_LABEL,
    NODE_ANNOTATION,
    SCHEDULER_NAME,
    SCHEDULING_GATE,
    STARTED_ANNOTATION,
)

NOW = 1_800_000_000.0
CLUSTER = "cluster-1"
KEY = GroupKey("default", "Pod", "train-0", "uid-1")
IDS = jobid.IdRange()
FAST = jobid.job_id(IDS, CLUSTER, KEY.uid, 0, jobid.FAST)
FIRST = jobid.job_id(IDS, CLUSTER, KEY.uid, 0, 0)
SECOND = jobid.job_id(IDS, CLUSTER, KEY.uid, 0, 1)
NODES = {SlurmNode(f"n{i}"): Node(name=KubeNode(f"n{i}"), uid=Uid(f"node-{i}")) for i in range(1, 5)}


def pod(**changes: Any) -> Pod:
    base = Pod(
        namespace="default",
        name="train-0",
        uid=Uid("uid-1"),
        version="100",
        created=NOW - 10,
        scheduler=SCHEDULER_NAME,
        gates=(SCHEDULING_GATE,),
    )
    return replace(base, **changes)


# What kube-scheduler writes on a pod that it can't bind.
UNSCHEDULABLE = Condition(type="PodScheduled", status="False", reason="Unschedulable", message="no node")


def released(job: JobId, node: str = "n1", **changes: Any) -> Pod:
    """Label, annotation and no gate: on its way to kube-scheduler."""
    base = {
        "gates": (),
        "labels": {JOB_ID_LABEL: str(job)},
        "annotations": {NODE_ANNOTATION: node, GPUS_ANNOTATION: "0-1", STARTED_ANNOTATION: f"{NOW - 4:.0f}"},
        "nominated": KubeNode(node),
    }
    return pod(**(base | changes))


def bound(job: JobId, node: str = "n1", phase: str = "Running", **changes: Any) -> Pod:
    placed = {"node": KubeNode(node), "nominated": KubeNode(""), "phase": phase}
    return replace(released(job, node), **(placed | changes))


def mark(attempt: int = 0, cluster: str = CLUSTER, key: GroupKey = KEY) -> Mark:
    return Mark(cluster=cluster, group=key, attempt=attempt, uids=(Uid(key.uid),), pods=("default/train-0",))


def record(job: JobId, *states: str, **changes: Any) -> JobRecord:
    base: dict[str, Any] = {"submitted": NOW - 5, "mark": mark()}
    if changes.get("required") and (known := changes.get("mark", base["mark"])) is not None:  # a claim
        changes["mark"] = replace(known, place=True)
    if "PENDING" not in states and "FAILED" not in states:
        base |= {"nodes": (SlurmNode("n1"),), "gres": ("gpu:h100:2(IDX:0-1)",), "started": NOW - 4}
    return JobRecord(id=job, states=frozenset(states), **(base | changes))


def sight(found: JobRecord, states: States | None = None) -> Sight:
    return Sight(id=found.id, states=found.states if states is None else states, record=found)


def vanished(job: JobId, found: JobRecord | None = None) -> Sight:
    return Sight(id=job, states=None, record=found)


SPEC = JobSpec(name="train-0", partition="slurm-bridge", mark=mark(), gres="gres/gpu=2")


def facts(*pods: Pod | Member, sights: tuple[Sight, ...] = (), **changes: Any) -> Facts:
    members = tuple(m if isinstance(m, Member) else Member(pod=m, node_ready=True) for m in pods)
    number = changes.get("attempt", Attempt()).number
    ids = jobid.candidates(IDS, CLUSTER, KEY.uid, number)
    base: dict[str, Any] = {
        "group": Group(key=KEY, pods=tuple(m.pod for m in members)),
        "members": members,
        "attempt": Attempt(),
        "cluster": CLUSTER,
        "now": NOW,
        "slurm_now": NOW,
        "spec": SPEC,
        "fast_id": ids[0],
        "fast_allowed": False,
        "probes": ids[1:],
        "current": frozenset(ids),
        "sights": {s.id: s for s in sights},
        "nodes": NODES,
        "poll_age": 0.1,
    }
    found = Facts(**(base | changes))
    return found if "fit" in changes else replace(found, fit=fit(found.group.pods, found.nodes))


def fit(pods: Sequence[Pod], nodes: Mapping[SlurmNode, Node]) -> Fit:
    """As the READ door finds it, where every node is of the partition."""
    asked = [needs(pod) for pod in pods]
    found = {
        name: next(filter(None, (obstacle(one, node) for one in asked)), "") for name, node in nodes.items()
    }
    return Fit({name: why for name, why in found.items() if why})
