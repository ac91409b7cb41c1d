"""Which pods share one Slurm job: one small file for each kind of workload.

In: a pod as the API server shows it. Out: the key of its group, the owner that the caller should fetch,
and, once the pods are there, the `Group` in rank order. Nothing is fetched here and no pod is ever dropped.
A kind is a module with `matches`, `owner_ref`, `key_of` and `rank`; the first that matches decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType

from bridge.core.grouping import job, pod
from bridge.core.model import Group, GroupKey, Owner, Pod, Workload
from bridge.errors import UserError
from bridge.names import OPTION_PREFIX

_KINDS: tuple[ModuleType, ...] = (job, pod)
_GANG = OPTION_PREFIX + "gang"


def key_of(pod: Pod) -> GroupKey:
    """The pod's group. Raises UserError for a pod that asks for a gang, which isn't supported yet."""
    _refuse_gang(f"Pod {pod.ref}", pod.annotations)
    key: GroupKey = _kind(pod).key_of(pod)
    return key


def owner_ref(pod: Pod) -> Owner | None:
    """The owner whose annotations and deadline count for the pod; None if it stands alone."""
    owner: Owner | None = _kind(pod).owner_ref(pod)
    return owner


def build(
    key: GroupKey, pods: Iterable[Pod], workload: Workload | None = None, above: Sequence[Workload] = ()
) -> Group:
    """All of `pods`, in rank order, with what controls them and all that stands above them (`grouping.owners`).

    Raises UserError if any of them asks for a gang.
    """
    members = tuple(sorted(pods, key=lambda member: _kind(member).rank(member)))
    for member in members:
        _refuse_gang(f"Pod {member.ref}", member.annotations)
    counting = tuple(above) or ((workload,) if workload is not None else ())
    for work in counting:
        _refuse_gang(work.ref, work.annotations)
    return Group(key=key, pods=members, workload=workload, owners=counting)


def _kind(pod: Pod) -> ModuleType:
    return next(kind for kind in _KINDS if kind.matches(pod))


def _refuse_gang(what: str, annotations: Mapping[str, str]) -> None:
    """A gang that is quietly scheduled one by one would deadlock with its siblings: better said at once."""
    if annotations.get(_GANG, "").strip().lower() == "true":
        raise UserError(f'{what}: {_GANG}: "true": gangs are not supported yet; remove the annotation')
