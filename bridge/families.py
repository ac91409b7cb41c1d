"""Pods that start together or not at all: which family each is of, which jobs name it, and so which group it is in.

Goes in: pods, workloads and jobs as they change. Comes out: the group of every pod of a family (core.grouping.gangs
decides). A cache like all of memory: after a restart, lists, annotations and the marks of jobs fill it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from bridge.core import grouping
from bridge.core.grouping.gangs import Family, Seat, Vacancy, assign, family_uid, generation_of
from bridge.core.model import Gang, GroupKey, JobId, JobRecord, Pod, Uid, is_ended, is_granted
from bridge.kube.store import Store


class Families:
    """`records`: what is known of each job; `live`: jobs whose mark names a group and that are not over."""

    def __init__(
        self,
        store: Store,
        records: Callable[[], Mapping[JobId, JobRecord]],
        live: Callable[[GroupKey], frozenset[JobId]],
        cluster: str,
    ) -> None:
        self._store = store
        self._records = records
        self._live = live
        self._cluster = cluster
        self._families: dict[str, Family] = {}  # by the UID of the workload
        self._pods: dict[
            str, dict[Uid, Pod]
        ] = {}  # the same; also those that are gone, as they were last seen
        self._family_of: dict[Uid, str] = {}
        self._named: dict[Uid, set[JobId]] = {}  # jobs of gangs whose mark names the pod

    def see(self, pod: Pod) -> str | None:
        """A pod came, changed or went. The UID of its family's workload, None if it is of none."""
        family = grouping.family_of(pod, self._store.workload)
        known = self._family_of.get(pod.uid)
        if family is not None:
            self._families[family.uid] = family
            uid = family.uid
        elif known is not None and (pod.node or self.jobs_naming(pod.uid)):
            uid = known  # its workload is gone, or says otherwise now: what has begun goes on
        else:
            self.leave(pod.uid)
            return None
        if known not in (None, uid):
            self.leave(pod.uid)
        self._family_of[pod.uid] = uid
        self._pods.setdefault(uid, {})[pod.uid] = pod
        return uid

    def leave(self, pod: Uid) -> None:
        """It is forgotten, or of no family any more."""
        uid = self._family_of.pop(pod, None)
        if uid is None:
            return
        del self._pods[uid][pod]
        if not self._pods[uid]:
            del self._pods[uid], self._families[uid]

    def of_workload(self, uid: str) -> Iterator[Pod]:
        """The pods of the family of that workload."""
        yield from tuple(self._pods.get(uid, {}).values())

    def of_group(self, key: GroupKey) -> str | None:
        """The family of a group, if it has pods here."""
        uid = family_uid(key)
        return uid if uid in self._families else None

    def gang(self, key: GroupKey) -> Gang | None:
        """What is wanted of a group of a gang; None for a pod on its own."""
        family = self._families.get(family_uid(key))
        if family is None or (family.namespace, family.kind, family.name) != (
            key.namespace,
            key.kind,
            key.name,
        ):
            return None
        return family.gang.as_of(complete=bool(generation_of(key)))

    def job_changed(self, job: JobId, *, listed: bool) -> None:
        """Remembers whom it names."""
        record = self._records().get(job)
        mark = record.mark if record is not None else None
        if mark is None or mark.cluster != self._cluster or not generation_of(mark.group):
            return
        for uid in mark.uids:
            jobs = self._named.setdefault(uid, set())
            (jobs.add if listed else jobs.discard)(job)
            if not jobs:
                del self._named[uid]

    def jobs_naming(self, pod: Uid) -> tuple[JobId, ...]:
        """Live jobs of gangs whose mark names the pod; one that runs first."""
        found = [r for job in self._named.get(pod, ()) if (r := self._records().get(job)) is not None]
        live = [record for record in found if not is_ended(record.states)]
        return tuple(r.id for r in sorted(live, key=lambda r: (not is_granted(r.states), r.id)))

    def groups(self, uid: str, present: Callable[[Uid], GroupKey | None]) -> Mapping[Uid, GroupKey]:
        """The group that each pod of the family belongs to now."""
        family = self._families[uid]
        seats = [self._seat(pod, present(pod.uid)) for pod in self._pods[uid].values()]
        keys = {key for seat in seats for key in (seat.named, seat.present) if key is not None}
        return assign(family, seats, tuple(self._vacancies(family, seats, keys)))

    def _seat(self, pod: Pod, present: GroupKey | None) -> Seat:
        jobs = self.jobs_naming(pod.uid)
        record = self._records().get(jobs[0]) if jobs else None
        named = record.mark.group if record is not None and record.mark is not None else None
        if named is None and present is not None and present.uid == pod.uid and self._live(present):
            named = present  # it had a job of its own before it was of a gang
        return Seat(pod=pod, exists=pod.uid in self._store.pods.ours, named=named, present=present)

    def _vacancies(
        self, family: Family, seats: Iterable[Seat], keys: Iterable[GroupKey]
    ) -> Iterator[Vacancy]:
        """Of jobs that run. Where a loss takes all along, nobody comes for one that was lost."""
        for key in sorted(keys):
            for job in self._live(key):
                record = self._records().get(job)
                if record is None or record.mark is None or not is_granted(record.states):
                    continue
                members = [seat for seat in seats if key in (seat.named, seat.present)]
                lost = any(not seat.living and seat.pod.phase != "Succeeded" for seat in members)
                if not (family.gang.restart and lost):
                    yield Vacancy(group=key, tasks=record.tasks or len(record.mark.uids))
