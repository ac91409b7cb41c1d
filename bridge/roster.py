"""Which pods are of which group, and how many are on their way to a node: kept up by every change of a pod or a job.

Goes in: pod events from the store, job events from the watcher. Comes out: keys and UIDs. A cache like all of memory:
after a restart the first list fills it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bridge.core import grouping
from bridge.core.grouping.gangs import generation_of
from bridge.core.model import Gang, GroupKey, JobId, Pod, Uid, Workload
from bridge.families import Families
from bridge.inherited import Inherited
from bridge.kube.store import Store
from bridge.memory import Memory
from bridge.metrics import CREATE_TO_BOUND, GRANT_TO_BOUND
from bridge.names import JOB_ID_LABEL, SCHEDULING_GATE
from bridge.slurm.watch import JobWatcher


class Roster:
    """`wall` gives Unix seconds."""

    def __init__(
        self,
        store: Store,
        watcher: JobWatcher,
        memory: Memory,
        inherited: Inherited,
        wall: Callable[[], float],
        cluster: str,
    ) -> None:
        self._store = store
        self._watcher = watcher
        self._memory = memory
        self._inherited = inherited
        self._wall = wall
        self._members: dict[GroupKey, dict[Uid, None]] = {}
        self._keys: dict[Uid, GroupKey] = {}
        self._families = Families(store, watcher, memory.live_of, inherited.chosen, cluster)
        self._moved: list[Callable[[GroupKey], None]] = []
        self._on_their_way: set[Uid] = set()
        self._on_nodes: set[Uid] = set()  # and not ended
        store.pods.on_pod(self._on_pod)
        store.workloads.on_change(self._on_workload)

    def on_move(self, listener: Callable[[GroupKey], None]) -> None:
        """Of every group that a pod has come to, or left, other than by its own event."""
        self._moved.append(listener)

    def __contains__(self, key: GroupKey) -> bool:
        return key in self._members

    def __iter__(self) -> Iterator[GroupKey]:
        return iter(tuple(self._members))

    def key_of(self, uid: Uid) -> GroupKey | None:
        return self._keys.get(uid)

    def members(self, key: GroupKey) -> tuple[Uid, ...]:
        return tuple(self._members.get(key, ()))

    def gang(self, key: GroupKey) -> Gang | None:
        """What is wanted of the pods of a group that start together; None for a pod on its own."""
        return self._families.gang(key)

    def ask(self, key: GroupKey) -> None:
        """A job is about to be asked for: the pods of a gang stay together until it is known what became of that."""
        if generation_of(key):
            self._families.ask(key, self.members(key))

    def answered(self, key: GroupKey) -> None:
        """It is known."""
        family = self._families.of_group(key)
        if generation_of(key) and self._families.asked(key) and family is not None:
            self._regroup(family)

    def rivals(self, key: GroupKey) -> Iterator[tuple[JobId, GroupKey]]:
        """Live jobs of other groups that name pods of this one, and under which no pod runs."""
        named = {job for uid in self._members.get(key, ()) for job in self._families.jobs_naming(uid)}
        for job in sorted(named):
            record = self._watcher.records.get(job)
            mark = record.mark if record is not None else None
            if mark is None or mark.group == key or any(uid in self._on_nodes for uid in mark.uids):
                continue
            yield job, mark.group

    def jobs_of(self, uid: Uid) -> frozenset[JobId]:
        """Live jobs of its group."""
        key = self._keys.get(uid)
        return self._memory.live_of(key) if key is not None else frozenset()

    def placed(self) -> int:
        """How many groups have a pod that runs on a node."""
        return len({self._keys[uid] for uid in self._on_nodes if uid in self._keys})

    def on_their_way(self) -> int:
        """Pods that kube-scheduler has been given and has not bound yet."""
        return len(self._on_their_way)

    def job_changed(self, job: JobId) -> Iterator[GroupKey]:
        """Yields the groups of pods that share a job of the Go project's: who is in one of them may have changed."""
        for pod in tuple(self._inherited.job_changed(job)):
            yield self._place(pod)
        record = self._watcher.records.get(job)
        self._families.job_changed(job)
        if record is not None and record.mark is not None:
            for uid in record.mark.uids if len(record.mark.uids) > 1 else ():
                if (member := self._store.pods.ours.get(uid)) is not None:
                    self._place(member)
            if (family := self._families.of_group(record.mark.group)) is not None:
                self._regroup(family)
        for pod in self._store.pods.by_job(str(job)):
            self._count(pod.uid, pod)

    def below(self, work: Workload) -> Iterator[GroupKey]:
        """Groups of the pods for which the object's annotations count."""
        for pod in self._store.pods_below(work):
            if (key := self._keys.get(pod.uid)) is not None:
                yield key

    def settle(self, key: GroupKey) -> None:
        """Nothing of this group is left in Slurm: pods that are gone may be forgotten."""
        for uid in self.members(key):
            gone = self._store.pods.gone.get(uid)
            if gone is not None and gone.deleted:
                self._store.pods.forget(uid)
                self._leave(uid)
                self._families.leave(uid)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        assert pod is not None
        self._inherited.see(old, new)
        self._memory.note_pod(pod.uid, deleted=new is not None and bool(new.deleted))
        self._place(pod)
        self._count(pod.uid, new)
        runs = new is not None and bool(new.node) and not new.ended
        (self._on_nodes.add if runs else self._on_nodes.discard)(pod.uid)
        if new is not None and new.node and old is not None and not old.node:
            self._note_bound(new)

    def _on_workload(self, old: Workload | None, new: Workload | None) -> None:
        """It came, or wants another number of pods, or no longer says that they are a gang."""
        workload = new or old
        assert workload is not None
        pods = (*self._store.pods_below(workload), *self._families.of_workload(workload.uid))
        for pod in {pod.uid: pod for pod in pods}.values():
            present = self._keys.get(pod.uid)
            if self._place(pod) != present:
                self._tell(self._keys[pod.uid])

    def _place(self, pod: Pod) -> GroupKey:
        """Into its group; a pod changes it when it turns out to share a job of the Go project's, and when that ends; of
        a gang when its members are complete, or one is lost before the start."""
        present = self._keys.get(pod.uid)
        inherited = self._inherited.group_of(pod, present)
        family = self._families.see(pod)
        if family is not None and (inherited is None or generation_of(inherited)):
            self._regroup(family, but=pod.uid)
            if (key := self._keys.get(pod.uid)) is not None:
                return key
        key = inherited or self._families.named(pod.uid) or grouping.key_of(pod)
        self._move(pod.uid, key)
        return key

    def _regroup(self, family: str, but: Uid | None = None) -> None:
        """Everybody of the family into the group that is theirs now. `but`: whose event this is."""
        for uid, key in self._families.groups(family, self._keys.get).items():
            before = self._keys.get(uid)
            if key == before:
                continue
            self._move(uid, key)
            for group in (before, key) if uid != but else (before,):
                self._tell(group)

    def _tell(self, key: GroupKey | None) -> None:
        if key is not None and key in self:
            for listener in self._moved:
                listener(key)

    def _move(self, uid: Uid, key: GroupKey) -> None:
        if self._keys.get(uid) == key:
            return
        self._leave(uid)
        self._keys[uid] = key
        self._members.setdefault(key, {})[uid] = None
        self._memory.meet(key)

    def _leave(self, uid: Uid) -> None:
        key = self._keys.pop(uid, None)
        if key is None:
            return
        del self._members[key][uid]
        if not self._members[key]:
            del self._members[key]
            self._memory.forget(key)
            self._inherited.forget(key)

    def _count(self, uid: Uid, pod: Pod | None) -> None:
        """Un-gated, not yet bound, and its own job is granted: a label alone, or a grant given back, does not count."""
        label = pod.labels.get(JOB_ID_LABEL, "") if pod is not None and _unbound(pod) else ""
        job = JobId(int(label)) if label.isascii() and label.isdigit() else None
        record = self._watcher.records.get(job) if job is not None else None
        granted = job is not None and self._memory.granted_for(job) is not None
        if granted and record is not None and record.mark is not None and uid in record.mark.uids:
            self._on_their_way.add(uid)
        else:
            self._on_their_way.discard(uid)

    def _note_bound(self, pod: Pod) -> None:
        label = pod.labels.get(JOB_ID_LABEL, "")
        waited = self._memory.granted_for(JobId(int(label))) if label.isdigit() else None
        if waited is not None:
            GRANT_TO_BOUND.observe(waited)
            CREATE_TO_BOUND.observe(max(0.0, self._wall() - pod.created))


def _unbound(pod: Pod) -> bool:
    return not pod.node and not pod.deleted and SCHEDULING_GATE not in pod.gates
