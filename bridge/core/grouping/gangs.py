"""Which pods of a workload share the next job, where they start together or not at all.

A *family* is all that one workload makes; a *generation* is the pods of one of its jobs. In: the pods of a family, and
what is known of each. Out: the group of each pod. What must stay true: a pod that a live job names, or that has a node,
stays in its group; a generation is named by the UIDs of its pods, so whoever sees the same pods asks for the same job.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bridge.core.grouping import pod as pod_kind
from bridge.core.grouping.ranks import rank
from bridge.core.model import Gang, GroupKey, Pod, Uid, Workload
from bridge.names import GANG_ANNOTATION, NODE_ANNOTATION

_BETWEEN = "."  # UID of the workload, then the generation; no UID has one


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """All the pods that one workload makes into gangs."""

    namespace: str
    kind: str
    name: str
    uid: str
    gang: Gang

    @classmethod
    def of(cls, workload: Workload, gang: Gang) -> Family:
        return cls(
            namespace=workload.namespace, kind=workload.kind, name=workload.name, uid=workload.uid, gang=gang
        )

    @property
    def gathering(self) -> GroupKey:
        """The group of the pods that wait for others."""
        return GroupKey(self.namespace, self.kind, self.name, self.uid)

    def generation(self, digest: str) -> GroupKey:
        return GroupKey(self.namespace, self.kind, self.name, f"{self.uid}{_BETWEEN}{digest}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A pod of a family, and what is known of it."""

    pod: Pod
    exists: bool = True
    named: GroupKey | None = None  # the group of the job that names it, alive or being asked for
    present: GroupKey | None = None  # the group that it is in

    @property
    def living(self) -> bool:
        return self.exists and not self.pod.ended and not self.pod.deleted


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacancy:
    """A running job of the family with fewer living pods than tasks."""

    group: GroupKey
    tasks: int


def generation_of(key: GroupKey) -> str:
    """The part of its name that tells one job's pods from another's; "" while they gather, and of a pod alone."""
    return key.uid.partition(_BETWEEN)[2]


def family_uid(key: GroupKey) -> str:
    """What the ids of its jobs are made of: one lock for all generations, so that a job that was asked for, and comes
    late, is refused although its pods are in another by then."""
    return key.uid.partition(_BETWEEN)[0]


def digest(uids: Iterable[Uid]) -> str:
    return hashlib.blake2b("\n".join(sorted(uids)).encode(), digest_size=6).hexdigest()


def assign(
    family: Family, seats: Sequence[Seat], vacancies: Sequence[Vacancy] = ()
) -> Mapping[Uid, GroupKey]:
    """The group of every pod of the family; of one that is on its way out and has never had one: None of it."""
    found: dict[Uid, GroupKey] = {}
    free: list[Seat] = []
    begun = {
        family.generation(said)
        for seat in seats
        if seat.living and seat.pod.node and (said := _said(seat.pod))
    }
    for seat in seats:
        if (key := seat.named or _begun(family, seat, begun)) is not None:
            found[seat.pod.uid] = key
        elif seat.living:
            free.append(seat)
        elif seat.present is not None:
            found[seat.pod.uid] = seat.present
    first_free = min((seat.pod.created for seat in free), default=0.0)
    started = sum(1 for seat in seats if _counts(family.gang, seat, first_free))
    places = tuple(_vacant(family.gang, seats, found, vacancies))
    found |= {seat.pod.uid: key for seat, key in zip(free, places, strict=False)}
    free = free[len(places) :]
    if not free:
        return found
    # Those that run count: more pods than the workload asks for start beside them.
    wanted = family.gang.wanted - started
    if len(free) < max(1, wanted):
        return found | {seat.pod.uid: family.gathering for seat in free}
    if not family.gang.at_least:
        return found | _together(family, free)
    # So many start together, and whoever is more waits for nobody: each with a job of its own, once those run.
    free.sort(key=lambda seat: rank(seat.pod))
    first, rest = free[: max(0, wanted)], free[max(0, wanted) :]
    apart = [_together(family, [seat]) if wanted <= 0 else {seat.pod.uid: family.gathering} for seat in rest]
    return found | _together(family, first) | {uid: key for each in apart for uid, key in each.items()}


def _counts(gang: Gang, seat: Seat, since: float) -> bool:
    """It is one of those that are wanted at one time: it runs; where so many are enough, also if it has ended well, for
    those that were there when it started (`since`), and not for the next run."""
    pod = seat.pod
    over = gang.at_least and pod.phase == "Succeeded" and pod.bound_at >= since
    return bool(pod.node) and (seat.living or over)


def _together(family: Family, seats: Sequence[Seat]) -> dict[Uid, GroupKey]:
    """One generation."""
    key = family.generation(digest(seat.pod.uid for seat in seats))
    return {seat.pod.uid: key for seat in seats}


def _said(pod: Pod) -> str:
    return pod.annotations.get(GANG_ANNOTATION, "")


def _begun(family: Family, seat: Seat, begun: Collection[GroupKey]) -> GroupKey | None:
    """Of a pod that has a node: by its own annotation, as a process that has just started knows no more. One that has
    none was started before anybody asked for a gang. A pod that has been sent to its node, too, if others are there."""
    said = _said(seat.pod)
    if not seat.pod.node:
        sent = seat.living and said and NODE_ANNOTATION in seat.pod.annotations
        return key if sent and (key := family.generation(said)) in begun else None
    return family.generation(said) if said else seat.present or pod_kind.key_of(seat.pod)


def _vacant(
    gang: Gang, seats: Sequence[Seat], found: Mapping[Uid, GroupKey], vacancies: Sequence[Vacancy]
) -> Iterator[GroupKey]:
    """One for each pod that may take the place of a lost one."""
    for vacancy in vacancies:
        members = [seat for seat in seats if found.get(seat.pod.uid) == vacancy.group]
        living = sum(1 for seat in members if seat.living)
        # Of a PodGroup nobody comes for a pod that ended well: whoever comes is of the next run.
        over = sum(1 for seat in members if gang.at_least and seat.pod.phase == "Succeeded")
        for _ in range(vacancy.tasks - living - over if living else 0):  # one that all have left is over
            yield vacancy.group
