"""Which pods share one Slurm job: one small file for each kind of workload.

In: a pod as the API server shows it, and what stands above it (`grouping.owners`). Out: the key of a pod on its own, or
the family of gangs that it is of; and, once the pods are there, the `Group` in rank order. Nothing is fetched here and
no pod is ever dropped. A kind is a module with `family`; the first that claims the pod decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import ModuleType

from bridge.core.grouping import job, jobset, leaderworkerset, pod, podgroup
from bridge.core.grouping.gangs import Family
from bridge.core.grouping.owners import Chain
from bridge.core.grouping.ranks import rank
from bridge.core.model import Gang, Group, GroupKey, Owner, Pod, Workload

# What a pod names itself comes before what made it.
_KINDS: tuple[ModuleType, ...] = (podgroup, leaderworkerset, jobset, job)


def key_of(alone: Pod) -> GroupKey:
    """Of a pod that is of no gang."""
    return pod.key_of(alone)


def family_of(member: Pod, above: Chain) -> Family | None:
    """The family of gangs that the pod is of; None: it has a job of its own, as far as is known."""
    found: Iterable[Family | None] = (kind.family(member, above) for kind in _KINDS)
    return next((family for family in found if family is not None), None)


def owner_ref(member: Pod) -> Owner | None:
    """The Job that controls the pod."""
    return job.owner_ref(member)


def build(
    key: GroupKey,
    pods: Iterable[Pod],
    workload: Workload | None = None,
    above: Sequence[Workload] = (),
    gang: Gang | None = None,
    beside: Sequence[Workload] = (),
) -> Group:
    """All of `pods`, in rank order, with what controls them and all that stands above them (`grouping.owners`);
    `beside`: above some of them only."""
    counting = tuple(above) or ((workload,) if workload is not None else ())
    ranked = tuple(sorted(pods, key=rank))
    others = tuple(work for work in beside if work not in counting)
    return Group(key=key, pods=ranked, workload=workload, owners=counting, gang=gang, beside=others)
