"""A pod of a batch/v1 Job: a job in Slurm of its own, or with gang: "true" one for all pods of the Job."""

from __future__ import annotations

from bridge.core.grouping import wishes
from bridge.core.grouping.gangs import Family
from bridge.core.model import Owner, Pod
from bridge.names import COMPLETION_INDEX

API_VERSION = "batch/v1"
KIND = "Job"


def matches(pod: Pod) -> bool:
    return owner_ref(pod) is not None


def owner_ref(pod: Pod) -> Owner | None:
    """The Job that controls the pod. References that don't control it are notes, not ownership."""
    return next(
        (o for o in pod.owners if o.controller and o.kind == KIND and o.api_version == API_VERSION), None
    )


def family(pod: Pod, find: wishes.Find) -> Family | None:
    """All pods of the Job, if somebody asks for it."""
    owner = owner_ref(pod)
    job = find(KIND, pod.namespace, owner.name) if owner is not None else None
    if owner is None or job is None or job.uid != owner.uid or not wishes.asked(pod, job):
        return None
    return Family(
        namespace=pod.namespace,
        kind=KIND,
        name=job.name,
        uid=job.uid,
        gang=wishes.gang(job.size or 1, pod, job),
    )


def rank(pod: Pod) -> tuple[int, str]:
    """The completion index, then the name. Pods without a usable index come first, by name."""
    index = pod.annotations.get(COMPLETION_INDEX) or pod.labels.get(COMPLETION_INDEX) or ""
    return (int(index) if index.isascii() and index.isdigit() and len(index) < 10 else -1, pod.name)
