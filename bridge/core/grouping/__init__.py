"""Which pods share one Slurm job: one small file for each kind of workload.

In: a pod as the API server shows it, and a way to look up the objects that it names. Out: the key of a pod on its own,
or the family of gangs that it is of; the owner that the caller should fetch; and, once the pods are there, the `Group`
in rank order. Nothing is fetched here and no pod is ever dropped. A kind is a module with `matches`, `owner_ref`,
`family` and `rank`; the first that matches decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType

from bridge.core.grouping import job, pod
from bridge.core.grouping.gangs import Family
from bridge.core.grouping.wishes import Find
from bridge.core.model import Gang, Group, GroupKey, Owner, Pod, Workload

_KINDS: tuple[ModuleType, ...] = (job, pod)


def key_of(pod_: Pod) -> GroupKey:
    """Of a pod that is of no gang."""
    return pod.key_of(pod_)


def family_of(pod: Pod, find: Find) -> Family | None:
    """The family of gangs that the pod is of; None: it has a job of its own, as far as is known."""
    family: Family | None = _kind(pod).family(pod, find)
    return family


def owner_ref(pod: Pod) -> Owner | None:
    """The owner whose annotations and deadline count for the pod; None if it stands alone."""
    owner: Owner | None = _kind(pod).owner_ref(pod)
    return owner


def build(
    key: GroupKey, pods: Iterable[Pod], workload: Workload | None = None, gang: Gang | None = None
) -> Group:
    """All of `pods`, in rank order."""
    members = tuple(sorted(pods, key=lambda member: _kind(member).rank(member)))
    return Group(key=key, pods=members, workload=workload, gang=gang)


def _kind(pod: Pod) -> ModuleType:
    return next(kind for kind in _KINDS if kind.matches(pod))
