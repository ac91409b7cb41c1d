"""A pod of a batch/v1 Job: a job in Slurm of its own; the Job's annotations and deadline count for it."""

from __future__ import annotations

from bridge.core.grouping import pod as bare
from bridge.core.model import GroupKey, Owner, Pod
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


def key_of(pod: Pod) -> GroupKey:
    return bare.key_of(pod)


def rank(pod: Pod) -> tuple[int, str]:
    """The completion index, then the name. Pods without a usable index come first, by name."""
    index = pod.annotations.get(COMPLETION_INDEX) or pod.labels.get(COMPLETION_INDEX) or ""
    return (int(index) if index.isascii() and index.isdigit() and len(index) < 10 else -1, pod.name)
