"""A pod of a JobSet: with gang: "true" on the JobSet, on what made it, or on its pods one job for all its pods."""

from __future__ import annotations

from bridge.core.grouping import wishes
from bridge.core.grouping.gangs import Family
from bridge.core.grouping.owners import Chain
from bridge.core.model import Pod

GROUP = "jobset.x-k8s.io"
KIND = "JobSet"


def family(pod: Pod, above: Chain) -> Family | None:
    """All pods of the JobSet. Where one of its Jobs alone asks for a gang, that Job is one."""
    owner, job = above.find(GROUP, KIND), above.find("batch", "Job")
    if owner is None or owner.in_turn or (job is not None and wishes.asked(pod, job) is False):
        return None
    whole = (owner, *above.over(owner))  # a TrainJob
    return Family.of(owner, wishes.gang(owner.size or 1, pod, *whole)) if wishes.asked(pod, *whole) else None
