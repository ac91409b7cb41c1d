"""A pod of a JobSet: with gang: "true" on the JobSet, on what made it, or on its pods one job for all its pods."""

from __future__ import annotations

from dataclasses import replace

from bridge.core.grouping import wishes
from bridge.core.grouping.gangs import Family
from bridge.core.grouping.owners import Chain
from bridge.core.model import Pod
from bridge.names import JOBSET_RESTART

GROUP = "jobset.x-k8s.io"
KIND = "JobSet"


def family(pod: Pod, above: Chain) -> Family | None:
    """All pods of the JobSet, which makes them anew at each restart. Where one of its Jobs alone asks for a gang, that
    Job is one."""
    owner, job = above.find(GROUP, KIND), above.find("batch", "Job")
    if owner is None or owner.in_turn or (job is not None and wishes.asked(pod, job) is False):
        return None
    whole = (owner, *above.over(owner))  # a TrainJob
    if not wishes.asked(pod, *whole):
        return None
    one, restarts = (
        Family.of(owner, wishes.gang(owner.size or 1, pod, above)),
        pod.labels.get(JOBSET_RESTART, "0"),
    )
    return one if restarts == "0" else replace(one, uid=f"{owner.uid}-{restarts}")
