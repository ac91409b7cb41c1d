"""The objects of a manifest, and those that controllers make of them, as a lookup for what stands above a pod.

Stands where a cluster has its caches (`bridge.kube.store`), with the same answers for the same objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from bridge.core.grouping.owners import (
    BUILT_IN_GROUP,
    COSCHEDULING_GROUP,
    DEEPEST,
    Absence,
    Reference,
    controller,
)
from bridge.core.model import Owner, Pod, Uid, Workload, api_group
from bridge.kube import manifests, view, workload_view
from bridge.kube.kinds import OPTIONAL
from bridge.kube.manifests import OFFLINE, Object
from bridge.kube.shapes import OnlyMetaView
from bridge.kube.workloads import JOB

POD: Final = ("", "Pod")
READ: Final = frozenset(
    (POD, JOB, *((kind.group, kind.kind) for kind in OPTIONAL))
)  # a cluster's bridge does
NAMED: Final = frozenset(kind for kind in READ if kind[0] in (BUILT_IN_GROUP, COSCHEDULING_GROUP))  # by pods
_Key = tuple[str, str, str, str]  # API group, kind, namespace, name


class Beside:
    def __init__(self, objects: Iterable[Object]) -> None:
        self._objects: dict[_Key, list[Object]] = {}
        self._works: dict[int, Workload] = {}  # by the identity of the object
        self._written: set[int] = set()  # the same of those that somebody wrote
        self.add(objects)
        self._written.update(id(obj) for found in self._objects.values() for obj in found)

    def add(self, objects: Iterable[Object]) -> None:
        for obj in objects:
            key = (*kind_of(obj), manifests.namespace(obj), manifests.name(obj))
            self._objects.setdefault(key, []).append(obj)

    def find(self, namespace: str, ref: Reference) -> Object | None:
        """The one of that uid; else one whose uid only a cluster knows."""
        found = self._objects.get((ref.group, ref.kind, namespace, ref.name), [])
        exact = next((obj for obj in found if ref.uid in (None, manifests.uid(obj))), None)
        return exact or next((obj for obj in found if _unborn(obj)), None)

    def lookup(self, namespace: str, ref: Reference) -> Workload | Absence:
        """For `grouping.owners`. Raises UserError for an object that is malformed."""
        if (ref.group, ref.kind) not in READ:
            return Absence.UNREAD
        obj = self.find(namespace, ref)
        if obj is None:
            return Absence.NOT_YET
        work = self._works.get(id(obj))
        if work is None:
            work = self._works[id(obj)] = _workload(manifests.named(obj))
        return replace(work, uid=ref.uid) if ref.uid is not None and _unborn(obj) else work

    def written_above(self, obj: Object) -> str | None:
        """What somebody wrote above the object, and whose pods are shown, the nearest, rather than what a controller
        made; for people."""
        above = self._above(manifests.namespace(obj), _owners(obj))
        found = (one for one in above if id(one) in self._written and manifests.has_template(one))
        return next(
            (f"{one['kind']} {manifests.namespace(one)}/{manifests.name(one)}" for one in found), None
        )

    def unheard(self, pod: Pod) -> Iterator[Object]:
        """Of the objects above the pod those whose annotations the bridge does not read."""
        return (obj for obj in self._above(pod.namespace, pod.owners) if kind_of(obj) not in READ)

    def _above(self, namespace: str, owners: Sequence[Owner]) -> Iterator[Object]:
        for _ in range(DEEPEST):
            if (owner := controller(owners)) is None:
                return
            ref = Reference(owner.group, owner.kind, owner.name, owner.uid)
            if (obj := self.find(namespace, ref)) is None:
                return
            yield obj
            owners = _owners(obj)


def _owners(obj: Object) -> tuple[Owner, ...]:
    """Raises UserError."""
    return view.owners(view.from_object(obj, OnlyMetaView).metadata.owner_references)


def kind_of(obj: Object) -> tuple[str, str]:
    """API group and kind."""
    return api_group(str(obj.get("apiVersion"))), str(obj.get("kind"))


def _unborn(obj: Object) -> bool:
    return manifests.uid(obj).startswith(OFFLINE)


def _workload(obj: Object) -> Workload:
    if kind_of(obj) != POD:
        return workload_view.from_object(obj)
    pod = view.pod_from_object(obj)  # the leader of a LeaderWorkerSet
    return Workload(
        namespace=pod.namespace,
        kind="Pod",
        name=pod.name,
        uid=Uid(pod.uid),
        api_version="v1",
        owners=pod.owners,
    )
