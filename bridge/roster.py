"""Which pods are of which group, and how many are on their way to a node: kept up by every change of a pod or a job.

Goes in: pod events from the store, job events from the watcher. Comes out: keys and UIDs. A cache like all of memory:
after a restart the first list fills it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from bridge.core import grouping
from bridge.core.model import GroupKey, JobId, JobRecord, Pod, Uid, Workload
from bridge.errors import UserError
from bridge.inherited import Inherited
from bridge.kube.store import Store
from bridge.memory import Memory
from bridge.metrics import CREATE_TO_BOUND, GRANT_TO_BOUND
from bridge.names import JOB_ID_LABEL, SCHEDULING_GATE


class Roster:
    """`records`: what is known of each job; `wall` gives Unix seconds."""

    def __init__(
        self,
        store: Store,
        records: Callable[[], Mapping[JobId, JobRecord]],
        memory: Memory,
        inherited: Inherited,
        wall: Callable[[], float],
    ) -> None:
        self._store = store
        self._records = records
        self._memory = memory
        self._inherited = inherited
        self._wall = wall
        self._members: dict[GroupKey, dict[Uid, None]] = {}
        self._keys: dict[Uid, GroupKey] = {}
        self._on_their_way: set[Uid] = set()
        self._on_nodes: set[Uid] = set()  # and not ended
        store.pods.on_pod(self._on_pod)

    def __contains__(self, key: GroupKey) -> bool:
        return key in self._members

    def __iter__(self) -> Iterator[GroupKey]:
        return iter(tuple(self._members))

    def key_of(self, uid: Uid) -> GroupKey | None:
        return self._keys.get(uid)

    def members(self, key: GroupKey) -> tuple[Uid, ...]:
        return tuple(self._members.get(key, ()))

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

    def _place(self, pod: Pod) -> GroupKey:
        """Into its group; a pod changes it when it turns out to share a job of the Go project's, and when that ends."""
        present = self._keys.get(pod.uid)
        key = self._inherited.group_of(pod, present) or _key_of(pod)
        if key != present:
            self._leave(pod.uid)
            self._keys[pod.uid] = key
            self._members.setdefault(key, {})[pod.uid] = None
            self._memory.meet(key)
        return key

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
        record = self._records().get(job) if job is not None else None
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


def _key_of(pod: Pod) -> GroupKey:
    try:
        return grouping.key_of(pod)
    except UserError:  # told to the user when the group is translated
        return GroupKey(pod.namespace, "Pod", pod.name, pod.uid)


def _unbound(pod: Pod) -> bool:
    return not pod.node and not pod.deleted and SCHEDULING_GATE not in pod.gates
