"""A pod that names a PodGroup, of coscheduling or of Kubernetes itself: with the others that name it one job in Slurm.

At least so many pods make it complete; all that are there by then start together, and later ones beside them.
"""

from __future__ import annotations

from dataclasses import replace

from bridge.core.grouping import wishes
from bridge.core.grouping.gangs import Family
from bridge.core.grouping.owners import BUILT_IN_GROUP, COSCHEDULING_GROUP, Chain
from bridge.core.model import Pod

KIND = "PodGroup"


def family(pod: Pod, above: Chain) -> Family | None:
    """Kubernetes' own group, where the pod names both. One that asks for no minimum is no gang."""
    _, slash, rest = pod.scheduling_group.partition("/")
    if slash:  # Kubernetes 1.35: a group and replica of a Workload
        return _of_workload(pod, above, rest)
    for group in (BUILT_IN_GROUP, COSCHEDULING_GROUP):
        found = above.find(group, KIND)
        if found is not None and found.size and wishes.asked(pod, found) is not False:
            return Family.of(found, wishes.gang(found.size, pod, above, found.timeout, at_least=True))
    return None


def _of_workload(pod: Pod, above: Chain, rest: str) -> Family | None:
    found = above.find(BUILT_IN_GROUP, "Workload")
    name, _, replica = rest.partition("/")
    size = found.sizes.get(name) if found is not None else None
    if found is None or not size or wishes.asked(pod, found) is False:
        return None
    suffix = "-".join(filter(None, (name, replica)))
    one = Family.of(found, wishes.gang(size, pod, above, found.timeout, at_least=True))
    return replace(one, name=f"{found.name}-{suffix}", uid=f"{found.uid}-{suffix}")
