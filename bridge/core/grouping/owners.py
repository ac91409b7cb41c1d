"""Whose annotations count for a pod: all that stands above it, up to a JobSet, and the PodGroup that it names.

In: the pod and a lookup. Out: the objects, weakest first: a built-in PodGroup < the controllers, outermost first < the
Workload that the PodGroup was made from; a coscheduling PodGroup is the strongest. The pod itself is stronger than all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from bridge.core.model import Owner, Pod, Uid, Workload
from bridge.names import LWS_NAME, POD_GROUP_LABEL

COSCHEDULING_GROUP = "scheduling.x-k8s.io"  # API group of the PodGroup that pods name by a label
LWS_GROUP = "leaderworkerset.x-k8s.io"
BUILT_IN_GROUP = "scheduling.k8s.io"  # of Kubernetes' own PodGroup and Workload
DEEPEST = 8  # controllers above a pod; a chain that goes on is a loop, or nothing that anybody means


@dataclass(frozen=True, slots=True)
class Reference:
    """An object by API group, kind and name; `uid` if an ownerReference names it, None for any."""

    group: str
    kind: str
    name: str
    uid: Uid | None = None


class Absence(Enum):
    """Why a lookup has no object."""

    NOT_YET = "it should be there, and has not been read yet"
    UNREAD = "of a kind that is not read here"


Lookup = Callable[[str, Reference], Workload | Absence]  # namespace, what is looked for


@dataclass(frozen=True, slots=True)
class Chain:
    """`workloads`: weakest first. `nearest`: what controls the pod itself, if it is read. `awaited`: "Job a/train"."""

    workloads: tuple[Workload, ...] = ()
    nearest: Workload | None = None
    awaited: str = ""

    def find(self, group: str, kind: str) -> Workload | None:
        """The first of that kind that counts, by its API group."""
        return next((work for work in self.workloads if (work.group, work.kind) == (group, kind)), None)

    def over(self, work: Workload) -> tuple[Workload, ...]:
        """What is weaker than that one, nearest first: what stands above it."""
        return tuple(reversed(self.workloads[: self.workloads.index(work)]))


def chain(pod: Pod, lookup: Lookup) -> Chain:
    """All that counts for the pod as far as it is known, and the first that should be there and isn't."""
    awaited: list[str] = []

    def find(ref: Reference) -> Workload | None:
        found = lookup(pod.namespace, ref)
        if isinstance(found, Workload) and ref.uid in (None, found.uid):
            return found
        if found is not Absence.UNREAD:  # also an earlier object of that name
            awaited.append(f"{ref.kind} {pod.namespace}/{ref.name}")
        return None

    controllers = tuple(_controllers(pod, find))
    weak: list[Workload] = []
    strong: list[Workload] = []
    for ref in named(pod):
        found = find(ref)
        if found is None or found in controllers:
            continue
        (weak if (ref.group, ref.kind) == (BUILT_IN_GROUP, "PodGroup") else strong).append(found)
        if found.parent and (above := find(Reference(BUILT_IN_GROUP, "Workload", found.parent))) is not None:
            strong.insert(0, above)
    if any((work.group, work.kind) == (LWS_GROUP, "LeaderWorkerSet") for work in strong):
        awaited = [one for one in awaited if not one.startswith("Pod ")]
    # Of a Pod above the pod (the leader of a LeaderWorkerSet) the owners count, not the annotations.
    counting = (work for work in reversed(controllers) if work.kind != "Pod")
    return Chain(
        (*weak, *counting, *strong), controllers[0] if controllers else None, awaited[0] if awaited else ""
    )


def above_all(pods: Iterable[Pod], lookup: Lookup) -> tuple[Workload, ...]:
    """What stands above any of them; pods of one controller are asked for once."""
    first = {controller(pod.owners): pod for pod in pods}
    found = {work.uid: work for pod in first.values() for work in chain(pod, lookup).workloads}
    return tuple(found.values())


def named(pod: Pod) -> Iterator[Reference]:
    """The groups that the pod itself names."""
    workload, slash, _ = pod.scheduling_group.partition("/")
    if slash:  # Kubernetes 1.35
        yield Reference(BUILT_IN_GROUP, "Workload", workload)
    elif pod.scheduling_group:
        yield Reference(BUILT_IN_GROUP, "PodGroup", pod.scheduling_group)
    if label := pod.labels.get(POD_GROUP_LABEL):
        yield Reference(COSCHEDULING_GROUP, "PodGroup", label)
    # Between them may be a leader of another scheduler, which is not read.
    if label := pod.labels.get(LWS_NAME):
        yield Reference(LWS_GROUP, "LeaderWorkerSet", label)


def merged(workloads: Sequence[Workload]) -> dict[str, str]:
    """Their annotations as one layer."""
    return {key: said for work in workloads for key, said in work.annotations.items()}


def whose(workloads: Sequence[Workload], key: str) -> Workload | None:
    """The one whose annotation of that key counts."""
    return next((work for work in reversed(workloads) if key in work.annotations), None)


def controller(owners: Sequence[Owner]) -> Owner | None:
    """References that don't control are notes, not ownership."""
    return next((owner for owner in owners if owner.controller), None)


def _controllers(pod: Pod, find: Callable[[Reference], Workload | None]) -> Iterator[Workload]:
    """From the pod upwards, as far as each is known."""
    owner, seen = controller(pod.owners), {pod.uid}
    for _ in range(DEEPEST):
        if owner is None or owner.uid in seen:
            return
        seen.add(owner.uid)
        found = find(Reference(owner.group, owner.kind, owner.name, owner.uid))
        if found is None:
            return
        yield found
        owner = controller(found.owners)
