"""A pod of a batch/v1 Job: a job in Slurm of its own, or with gang: "true" one for all pods of the Job."""

from __future__ import annotations

from bridge.core.grouping import wishes
from bridge.core.grouping.gangs import Family
from bridge.core.grouping.owners import Chain
from bridge.core.model import Owner, Pod

GROUP = "batch"
KIND = "Job"


def owner_ref(pod: Pod) -> Owner | None:
    """The Job that controls the pod. References that don't control it are notes, not ownership."""
    return next((o for o in pod.owners if o.controller and (o.group, o.kind) == (GROUP, KIND)), None)


def family(pod: Pod, above: Chain) -> Family | None:
    """All pods of the Job, if somebody asks for it."""
    job = above.find(GROUP, KIND)
    if job is None or not wishes.asked(pod, job):
        return None
    return Family.of(job, wishes.gang(job.size or 1, pod, above))
