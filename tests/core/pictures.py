"""Small pictures for the invariants: one pod that runs on n1 with its job, and what may stand beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bridge.core.model import (
    Condition,
    ContainerStatus,
    GroupKey,
    JobId,
    JobRecord,
    Mark,
    Pod,
    SlurmNode,
    Uid,
)
from bridge.core.picture import Change, Picture
from bridge.names import GPUS_ANNOTATION, SCHEDULED_CONDITION
from tests.core import build
from tests.core.build import CLUSTER, NODES, NOW

JOB = JobId(100)
NATIVE = JobRecord(
    id=JobId(7),
    states=frozenset({"RUNNING"}),
    nodes=(SlurmNode("n1"),),
    gres=("gpu:h100:1(IDX:1)",),
    user="alice",
)
BOUND = NOW - 3  # when the pod got its node


def picture(*jobs: JobRecord, pods: tuple[Pod, ...] = (), **changes: Any) -> Picture:
    base: dict[str, Any] = {"cluster": CLUSTER, "now": NOW, "nodes": NODES, "pods": pods, "jobs": jobs}
    return Picture(**(base | changes))


def running(**changes: Any) -> Pod:
    when = Condition(type=SCHEDULED_CONDITION, status="True", changed=BOUND)
    status = ContainerStatus(name="c", running=True)
    return replace(build.bound(JOB, conditions=(when,), statuses=(status,)), **changes)


def job(*states: str, **changes: Any) -> JobRecord:
    return build.record(changes.pop("id", JOB), *(states or ("RUNNING",)), **changes)


def of_another(number: int, *states: str, uid: str = "uid-2", **changes: Any) -> JobRecord:
    key = GroupKey("default", "Pod", uid, uid)
    mark = Mark(cluster=CLUSTER, group=key, attempt=0, uids=(Uid(uid),), pods=(f"default/{uid}",))
    return job(*states, id=JobId(number), mark=mark, **changes)


def another(uid: str = "uid-2", **changes: Any) -> Pod:
    return running(uid=Uid(uid), name=uid, **changes)


def gang(*gpus: str) -> tuple[JobRecord, tuple[Pod, ...]]:
    """One job with four GPUs on n1, and its two pods, of which some are told theirs."""
    uids = (Uid("uid-1"), Uid("uid-2"))
    shared = replace(build.mark(), uids=uids, pods=("default/a", "default/b"))
    pods = tuple(
        running(uid=uid, name=uid, annotations={GPUS_ANNOTATION: text})
        for uid, text in zip(uids, gpus, strict=False)
    )
    return job(mark=shared, gres=("gpu:h100:4(IDX:0-3)",)), pods


def change(before: Picture, after: Picture, **known: Any) -> Change:
    return Change(before=before, after=after, **known)


WAITS = build.released(JOB)  # granted, and not bound yet
HEALTHY = picture(job(), pods=(running(),))
