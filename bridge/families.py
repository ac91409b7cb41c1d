"""Pods that start together or not at all: which family each is of, which jobs name it, and so which group it is in.

Goes in: pods, workloads and jobs as they change. Comes out: the group of every pod of a family (core.grouping.gangs
decides). A cache like all of memory: after a restart, lists, annotations and the marks of jobs fill it again.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import replace

from bridge.core import grouping
from bridge.core.attempt import of_pod
from bridge.core.grouping import wishes
from bridge.core.grouping.gangs import Family, Seat, Vacancy, assign, family_uid, generation_of
from bridge.core.grouping.owners import chain
from bridge.core.model import Gang, GroupKey, JobId, Mark, Pod, States, Uid, is_ended, is_granted, torn
from bridge.kube.store import Store
from bridge.names import GANG_ANNOTATION, JOB_ID_LABEL
from bridge.slurm.watch import JobWatcher


class Families:
    """`live`: jobs whose mark names a group and that are not over; `chosen`: ids that we choose."""

    def __init__(
        self,
        store: Store,
        watcher: JobWatcher,
        live: Callable[[GroupKey], frozenset[JobId]],
        chosen: Container[JobId],
        cluster: str,
    ) -> None:
        self._store = store
        self._watcher = watcher
        self._live = live
        self._chosen = chosen
        self._cluster = cluster
        self._families: dict[str, Family] = {}  # by the UID of the workload
        self._pods: dict[
            str, dict[Uid, Pod]
        ] = {}  # the same; also those that are gone, as they were last seen
        self._family_of: dict[Uid, str] = {}
        self._named: dict[Uid, set[JobId]] = {}  # jobs of gangs whose mark names the pod
        self._asked: dict[
            Uid, GroupKey
        ] = {}  # a job that names the pod is being asked for, or may yet appear

    def see(self, pod: Pod) -> str | None:
        """A pod came, changed or went. The UID of its family's workload, None if it is of none."""
        family = grouping.family_of(pod, chain(pod, self._store.lookup))
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
        """The pods of the families of that workload: of one whose groups are gangs there are many."""
        for family in [known for known in self._pods if known == uid or known.startswith(f"{uid}-")]:
            yield from tuple(self._pods[family].values())

    def of_group(self, key: GroupKey) -> str | None:
        """The family of a group, if it has pods here."""
        uid = family_uid(key)
        return uid if uid in self._families else None

    def gang(self, key: GroupKey) -> Gang | None:
        """What is wanted of a group of a gang; None for a pod on its own."""
        family, complete = self._families.get(family_uid(key)), bool(generation_of(key))
        if family is not None and (family.kind, family.name) == (key.kind, key.name):
            wanted = max(1, family.gang.wanted - self._beside(key))
            if complete and family.gang.at_least and any(pod.node for pod in self._others(key)):
                wanted = 1  # whoever comes after the first waits for nobody
            begun = family.gang.at_least and not complete and self._begun(family.uid)
            return replace(family.gang, complete=complete, wanted=wanted, begun=begun)
        return (
            replace(wishes.UNKNOWN, complete=True) if complete else None
        )  # its workload is not there any more

    def _beside(self, key: GroupKey) -> int:
        """Pods of the family that run, and are of other jobs."""
        return sum(1 for pod in self._others(key) if pod.node and not pod.ended and not pod.deleted)

    def _others(self, key: GroupKey) -> Iterator[Pod]:
        exist = self._store.pods.ours
        pods = (exist[uid] for uid in self._pods[family_uid(key)] if uid in exist)
        return (pod for pod in pods if pod.annotations.get(GANG_ANNOTATION, "") != generation_of(key))

    def _begun(self, family: str) -> bool:
        return any(pod in self._asked or self.jobs_naming(pod) for pod in self._pods[family])

    def job_changed(self, job: JobId) -> None:
        """Remembers whom it names."""
        mark = self._mark(job)
        if mark is None or mark.cluster != self._cluster or not generation_of(mark.group):
            return
        known = self._watcher.newest(job) is not None or self._alive(job)
        for uid in mark.uids:
            jobs = self._named.setdefault(uid, set())
            (jobs.add if known else jobs.discard)(job)
            if not jobs:
                del self._named[uid]

    def ask(self, key: GroupKey, pods: Iterable[Uid]) -> None:
        """A job of that group is about to be asked for: its pods stay together until it is known what became of it."""
        self._asked |= dict.fromkeys(pods, key)

    def asked(self, key: GroupKey) -> bool:
        """It is known. True: it was not before."""
        mine = [pod for pod, group in self._asked.items() if group == key]
        for pod in mine:
            del self._asked[pod]
        return bool(mine)

    def jobs_naming(self, pod: Uid) -> tuple[JobId, ...]:
        """Live jobs of gangs whose mark names the pod; one that runs first."""
        named = self._named.get(pod, ())
        live = (job for job in named if self._alive(job) and (mark := self._mark(job)) and pod in mark.uids)
        return tuple(sorted(live, key=lambda job: (not is_granted(self._states(job)), job)))

    def _cancelled(self, pod: Uid) -> Mark | None:
        """Of the job of a waiting pod that somebody ended, and that takes its whole gang along: the bridge writes the
        next attempt on its pods before it ends a job itself."""
        known = self._store.pods.ours.get(pod)
        if known is None or known.node:
            return None
        for job in sorted(self._named.get(pod, ())):
            mark = self._mark(job)
            taken = self._states(job) & {"CANCELLED", "DEADLINE"} and "REVOKED" not in self._states(job)
            if mark is None or not taken or pod not in mark.uids or self._given_up(mark):
                continue
            if job in self._chosen or known.labels.get(JOB_ID_LABEL) == str(job):
                return mark  # one that Slurm has numbered counts once its pods name it
        return None

    def _given_up(self, mark: Mark) -> bool:
        """One of its pods is told the next attempt: who cancelled saw perhaps not all of them."""
        there = (self._store.pods.ours.get(uid) for uid in mark.uids)
        return any(of_pod(pod).number > mark.attempt for pod in there if pod is not None)

    def named(self, pod: Uid) -> GroupKey | None:
        """The group of the job of a gang that names it, whether or not its workload is here."""
        jobs = self.jobs_naming(pod)
        mark = self._mark(jobs[0]) if jobs else self._cancelled(pod)
        return mark.group if mark is not None else None

    def _alive(self, job: JobId) -> bool:
        """A list that lacks it proves nothing: Slurm must have denied it."""
        return not is_ended(self._states(job)) and not self._watcher.denied((job,))

    def _states(self, job: JobId) -> States:
        listed, record = self._watcher.newest(job), self._watcher.records.get(job)
        return listed if listed is not None else record.states if record is not None else frozenset()

    def _mark(self, job: JobId) -> Mark | None:
        record = self._watcher.records.get(job)
        return record.mark if record is not None else None

    def groups(self, uid: str, present: Callable[[Uid], GroupKey | None]) -> Mapping[Uid, GroupKey]:
        """The group that each pod of the family belongs to now."""
        family = self._families[uid]
        seats = [self._seat(pod, present(pod.uid)) for pod in self._pods[uid].values()]
        keys = {key for seat in seats for key in (seat.named, seat.present) if key is not None}
        return assign(family, seats, tuple(self._vacancies(family, seats, keys)))

    def _seat(self, pod: Pod, present: GroupKey | None) -> Seat:
        named = self.named(pod.uid) or self._asked.get(pod.uid)
        if named is None and present is not None and present.uid == pod.uid and self._live(present):
            named = present  # it had a job of its own before it was of a gang
        return Seat(pod=pod, exists=pod.uid in self._store.pods.ours, named=named, present=present)

    def _ended(self, key: GroupKey, members: Iterable[Seat]) -> bool:
        """By the record of its own job, which had nodes: its places are not asked for again."""
        jobs = {job for seat in members for job in self._named.get(seat.pod.uid, ())}
        records = (self._watcher.records.get(job) for job in jobs)
        mine = (r for r in records if r is not None and r.mark is not None and r.mark.group == key)
        return any(record.nodes and is_ended(self._states(record.id)) for record in mine)

    def _vacancies(
        self, family: Family, seats: Iterable[Seat], keys: Iterable[GroupKey]
    ) -> Iterator[Vacancy]:
        """Of jobs that run, or under which pods run, also of one that Slurm has lost: its places are asked for again.
        Where a loss takes all along, nobody comes for a lost one."""
        for key in sorted(keys):
            members = [seat for seat in seats if key in (seat.named, seat.present)]
            lost = any(not seat.living and seat.pod.phase != "Succeeded" for seat in members)
            if family.gang.restart and lost:
                continue
            runs = any(seat.living and seat.pod.node for seat in members)
            known = [r for job in self._live(key) if (r := self._watcher.records.get(job)) is not None]
            for record in known:
                if torn(self._states(record.id)):
                    continue  # all that it has places for go with the part that ended
                if record.mark is not None and (runs or is_granted(record.states)):
                    yield Vacancy(group=key, tasks=record.tasks or len(record.mark.uids))
            if runs and not known and generation_of(key) and not self._ended(key, members):
                yield Vacancy(group=key, tasks=family.gang.wanted)
