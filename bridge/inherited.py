"""Jobs of the Go project's that pods here are labelled with: which of them are watched, and whose they have become.

Goes in: pods and jobs as they change. Comes out: the group of a pod that shares an adopted job, and what becomes of a
job that isn't adopted yet (bridge.core.takeover decides). What must stay true: besides our own range only ids are
watched that a pod here is labelled with, or that carry our mark; never all jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from bridge.core.jobid import IdRange
from bridge.core.model import GroupKey, JobId, Mark, Node, Pod, SlurmNode
from bridge.core.steps import Step
from bridge.core.takeover import examine, label_of
from bridge.core.verdict import Reason, Verdict
from bridge.kube.store import Pods
from bridge.names import SUBMITTED_ANNOTATION
from bridge.slurm.watch import JobWatcher


class Inherited:
    def __init__(self, pods: Pods, watcher: JobWatcher, ids: IdRange, cluster: str) -> None:
        self._pods = pods
        self._watcher = watcher
        self.chosen = ids
        self._cluster = cluster
        self._jobs: dict[GroupKey, set[JobId]] = {}  # by their marks, and not settled yet
        self._groups: dict[JobId, GroupKey] = {}  # the same the other way round

    def of_group(self, key: GroupKey) -> frozenset[JobId]:
        """Jobs outside of our range whose mark names this group: adopted ones, and all where Slurm numbers ours."""
        return frozenset(self._jobs.get(key, ()))

    def of_attempt(self, key: GroupKey, attempt: int) -> frozenset[JobId]:
        """Those of them that are this attempt's."""
        records = self._watcher.records
        return frozenset(
            job
            for job in self._jobs.get(key, ())
            if (record := records.get(job)) is not None and record.mark is not None
            if record.mark.attempt == attempt
        )

    def mark_of(self, job: JobId | None) -> Mark | None:
        """The mark of a job outside of our range, while Slurm lists it."""
        if job is None or job in self.chosen or self._watcher.newest(job) is None:
            return None
        record = self._watcher.records.get(job)
        mark = record.mark if record is not None else None
        return mark if mark is not None and mark.cluster == self._cluster else None

    def group_of(self, pod: Pod, present: GroupKey | None) -> GroupKey | None:
        """The group of the adopted job that the pod runs in. Its label may be edited: the mark is what counts."""
        for job in (label_of(pod), *(self._jobs.get(present, ()) if present is not None else ())):
            mark = self.mark_of(job)
            if mark is not None and pod.uid in mark.uids:
                return mark.group
        return None

    def see(self, old: Pod | None, new: Pod | None) -> None:
        """A pod came, changed or went: is the job of its label still to be watched?"""
        for job in _labels(pod for pod in (old, new) if pod is not None):
            self._follow(job)
        if new is not None and _named(new) != _named(old) and (named := label_of(new)) is not None:
            self._watcher.named(named)

    def job_changed(self, job: JobId) -> Iterator[Pod]:
        """Remembers whose job it is; yields the pods that have to do with it."""
        if job in self.chosen:
            return
        mark = self.mark_of(job)
        if mark is not None:
            self._jobs.setdefault(mark.group, set()).add(job)
            self._groups[job] = mark.group
        yield from self._pods.by_job(str(job))
        for uid in mark.uids if mark is not None else ():
            if (pod := self._pods.ours.get(uid)) is not None and label_of(pod) != job:
                yield pod

    def forget(self, key: GroupKey) -> None:
        """Nothing is left of that group."""
        for job in self._jobs.pop(key, ()):
            self._groups.pop(job, None)
            self._follow(job)

    def takeovers(
        self, pods: Iterable[Pod], nodes: Mapping[SlurmNode, Node]
    ) -> dict[JobId, tuple[Step, ...] | Verdict]:
        """What becomes of the labelled jobs that have no mark of any bridge like us. Stale: not known yet, and it will
        be: the jobs of pods that are gone are not watched any more."""
        found: dict[JobId, tuple[Step, ...] | Verdict] = {}
        for job in _labels(pods):
            record, states = self._watcher.records.get(job), self._watcher.newest(job)
            if job in self.chosen or (record is not None and record.mark is not None):
                continue
            if record is not None and record.states == states:
                found[job] = examine(record, cluster=self._cluster, find=self._find, nodes=nodes)
            elif states is not None or (self._pods.by_job(str(job)) and not self._watcher.covers(job)):
                found[job] = Verdict(Reason.STALE, f"job {job}, which the pod's label names, is being read")
        return found

    def _find(self, namespace: str, name: str) -> Pod | None:
        pod = self._pods.get(namespace, name)
        return pod if pod is not None and pod.uid in self._pods.ours else None

    def _follow(self, job: JobId) -> None:
        if job in self.chosen:
            return
        if self._pods.by_job(str(job)) or job in self._groups:
            self._watcher.follow(job)
        else:
            self._watcher.unfollow(job)


def _named(pod: Pod | None) -> tuple[JobId | None, str | None]:
    return (label_of(pod), pod.annotations.get(SUBMITTED_ANNOTATION)) if pod is not None else (None, None)


def _labels(pods: Iterable[Pod]) -> set[JobId]:
    return {job for pod in pods if (job := label_of(pod)) is not None}
