"""A pod of a LeaderWorkerSet: leader and workers of one group are one job in Slurm, unless gang: "false" says no.

Where the workers are made when the leader is ready (LeaderReady), each pod has a job of its own.
"""

from __future__ import annotations

from dataclasses import replace

from bridge.core.grouping import wishes
from bridge.core.grouping.gangs import Family
from bridge.core.grouping.owners import LWS_GROUP, Chain
from bridge.core.model import Pod
from bridge.names import LWS_GROUP_INDEX, LWS_REVISION, LWS_SIZE

GROUP = LWS_GROUP
LEADER, WORKER = "leader", "worker"  # how many of each one of them makes in its gang: 1, or 0
KIND = "LeaderWorkerSet"


def family(pod: Pod, above: Chain) -> Family | None:
    """The pods of its group, by the group's index and the revision of the template: with another one, of another size
    perhaps, its pods are all made anew, and nobody comes for a lost one. Their number is what they say themselves."""
    owner, index = above.find(GROUP, KIND), pod.labels.get(LWS_GROUP_INDEX, "")
    if owner is None or owner.in_turn or not index or wishes.asked(pod, owner) is False:
        return None
    told = pod.annotations.get(LWS_SIZE, "")
    size = owner.size or 1
    if told.isascii() and told.isdigit() and owner.sizes:
        size = owner.sizes[LEADER] + owner.sizes[WORKER] * (int(told) - 1)
    one = Family.of(owner, wishes.gang(size, pod, above))
    parts = (owner.uid, index, pod.labels.get(LWS_REVISION, ""))
    return replace(one, name=f"{owner.name}-{index}", uid="-".join(filter(None, parts)))
