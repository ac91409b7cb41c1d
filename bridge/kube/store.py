"""What the API server last told us: pods, nodes and workloads, indexed.

Goes in: objects from the informers. Comes out: frozen values, read without copying or locking. A read
between two pages of a list sees some objects newer than others, never one older than it was. What must stay
true: a pod of ours that goes away is in `gone` until somebody has dealt with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, replace

from bridge import names
from bridge.core.constraints import StorageClass, Volume, VolumeClaim
from bridge.core.grouping.owners import Absence, Reference, named
from bridge.core.ledger import destination
from bridge.core.model import KubeNode, Node, Pod, Uid, Workload
from bridge.kube.table import Clock, Table
from bridge.kube.workloads import JOB, Workloads

OnPod = Callable[[Pod | None, Pod | None], None]
_Index = dict[str, dict[Uid, None]]  # a dict as a set that keeps its order


@dataclass(frozen=True, slots=True)
class Gone:
    """A pod of ours that is no longer there. `pod` is its last state that we know."""

    pod: Pod
    at: float  # monotonic, when we noticed
    deleted: bool  # True: the watch said DELETED, or two more lists agree; False: missing from one list


class Pods(Table[Pod]):
    """All pods, ours in full; ours are those whose scheduler name is in `schedulers`.

    `on_pod(old, new)` is called for every pod of ours that came (None, new), changed, or went (old, None); a
    name that comes back with another UID is first a (old, None), then a (None, new). `on_change` tells the same of
    every pod, and first. Callbacks must be quick.
    """

    def __init__(self, schedulers: Set[str], *, clock: Clock = time.monotonic) -> None:
        super().__init__(lambda pod: (pod.namespace, pod.name), clock=clock)
        self._schedulers = schedulers
        self._ours: dict[Uid, Pod] = {}
        self._foreign: dict[Uid, Pod] = {}
        self._by_job: _Index = {}
        self._by_owner: _Index = {}
        self._by_name: _Index = {}
        self._gone: dict[Uid, Gone] = {}
        self._callbacks: list[OnPod] = []

    def is_ours(self, scheduler: str) -> bool:
        return scheduler in self._schedulers

    def on_pod(self, callback: OnPod) -> None:
        self._callbacks.append(callback)

    @property
    def ours(self) -> Mapping[Uid, Pod]:
        """By UID; a live view: copy it before you await."""
        return self._ours

    def by_uid(self, uid: Uid) -> Pod | None:
        return self._ours.get(uid) or self._foreign.get(uid)

    def by_job(self, job_id: str) -> tuple[Pod, ...]:
        """Pods of ours with that job id in their label."""
        return tuple(self._ours[uid] for uid in self._by_job.get(job_id, ()))

    def by_owner(self, uid: Uid) -> tuple[Pod, ...]:
        """Pods of ours whose controller has that UID."""
        return tuple(self._ours[uid] for uid in self._by_owner.get(uid, ()))

    def naming(self, group: str, kind: str, namespace: str, name: str) -> tuple[Pod, ...]:
        """Pods of ours that name that PodGroup or Workload themselves."""
        return tuple(self._ours[uid] for uid in self._by_name.get(f"{group}/{kind}/{namespace}/{name}", ()))

    @property
    def gone(self) -> Mapping[Uid, Gone]:
        """Pods of ours that went away and that nobody has forgotten yet; a live view."""
        return self._gone

    def confirm(self, uid: Uid) -> None:
        """Further complete lists don't show the pod either. It may have gone just now: the first one may have lied."""
        gone = self._gone.get(uid)
        if gone is not None and not gone.deleted:
            # Nobody has seen its last state: it may have been bound by then.
            last = replace(gone.pod, node=gone.pod.node or destination(gone.pod))
            self._gone[uid] = Gone(last, self._clock(), deleted=True)

    def restore(self, pod: Pod) -> None:
        """A list lacked it, and the API server has it all the same."""
        gone = self._gone.get(pod.uid)
        if gone is not None and not gone.deleted:
            self.put(pod)

    def forget(self, uid: Uid) -> None:
        self._gone.pop(uid, None)

    def learn(self, pod: Pod) -> None:
        """The answer to a write of ours, ahead of the watch; ignored if the pod isn't here (any more)."""
        held = self.get(pod.namespace, pod.name)
        if held is not None and held.uid == pod.uid and self._listed is None:
            self.put(pod)

    def _stale(self, old: Pod | None, new: Pod, *, dropping: bool = False) -> bool:
        if old is None:
            return False
        if dropping:
            return old.uid != new.uid  # the deletion of an earlier pod of that name, seen twice
        if self._listed is not None:
            # A list is the truth even with a lower version: etcd may have been restored from a backup.
            return old.uid == new.uid and old.version == new.version
        if old.version.isdigit() and new.version.isdigit():
            return int(new.version) <= int(old.version)
        return old == new

    def _changed(self, old: Pod | None, new: Pod) -> None:
        if old is not None and old.uid != new.uid:
            self._removed(old, None)  # its DELETED never reached us
            old = None
        self.version += 1
        for listener in self._listeners:
            listener(old, new)
        if not self.is_ours(new.scheduler):
            self._foreign[new.uid] = new
            return
        if old is not None:
            self._unlink(old)
            new = _lasting(self._ours.get(new.uid, old), new)
        self._gone.pop(new.uid, None)
        self._ours[new.uid] = new
        for index, key in self._index_keys(new):
            index.setdefault(key, {})[new.uid] = None
        self._tell(old, new)

    def _removed(self, old: Pod, final: Pod | None) -> None:
        self.version += 1
        for listener in self._listeners:
            listener(old, None)
        if self._foreign.pop(old.uid, None) is not None:
            return
        self._unlink(old)
        known = self._ours.get(old.uid, old)
        last = _lasting(known, final) if final is not None else known
        self._ours.pop(old.uid, None)
        self._gone[old.uid] = Gone(last, self._clock(), final is not None)
        self._tell(old, None)

    def _unlink(self, pod: Pod) -> None:
        for index, key in self._index_keys(pod):
            if (uids := index.get(key)) is not None:
                uids.pop(pod.uid, None)
                if not uids:
                    del index[key]

    def _index_keys(self, pod: Pod) -> Iterator[tuple[_Index, str]]:
        if job := pod.labels.get(names.JOB_ID_LABEL):
            yield self._by_job, job
        for owner in pod.owners:
            if owner.controller:
                yield self._by_owner, owner.uid
        for ref in named(pod):
            yield self._by_name, f"{ref.group}/{ref.kind}/{pod.namespace}/{ref.name}"

    def _tell(self, old: Pod | None, new: Pod | None) -> None:
        for callback in self._callbacks:
            callback(old, new)


def _lasting(old: Pod, new: Pod) -> Pod:
    """With the longest grace that was ever asked for: a forced deletion takes the object, not kubelet's patience."""
    return new if new.grace >= old.grace else replace(new, grace=old.grace)


class Store:
    """All tables of this process."""

    def __init__(self, schedulers: Set[str], *, clock: Clock = time.monotonic) -> None:
        self.pods = Pods(schedulers, clock=clock)
        self.nodes: Table[Node] = Table(lambda node: (node.name,), clock=clock)
        self.workloads = Workloads(clock=clock)
        self.jobs = self.workloads.jobs
        # These make answers better, and nothing stops without them.
        self.claims: Table[VolumeClaim] = Table(lambda c: (c.namespace, c.name), clock=clock)
        self.volumes: Table[Volume] = Table(lambda v: (v.name,), clock=clock)
        self.storage_classes: Table[StorageClass] = Table(lambda c: (c.name,), clock=clock)
        self.storage_denied: Callable[[], bool] = lambda: False  # whoever reads them says so

    @property
    def storage_settled(self) -> bool:
        """All is read that may be read of where volumes lie."""
        tables = (self.claims, self.volumes, self.storage_classes)
        return self.storage_denied() or all(table.synced for table in tables)

    @property
    def synced(self) -> bool:
        tables = (self.pods, self.nodes, self.jobs)
        return all(table.synced for table in tables) and self.workloads.settled()

    @property
    def version(self) -> int:
        """Changes whenever anything in here does."""
        return self.pods.version + self.nodes.version + self.workloads.version

    def age(self) -> float:
        """Seconds, of the oldest of the tables that every cluster has."""
        return max(self.pods.age(), self.nodes.age(), self.jobs.age())

    def node(self, name: KubeNode) -> Node | None:
        return self.nodes.get(name)

    def workload(self, kind: str, namespace: str, name: str, group: str = JOB[0]) -> Workload | None:
        """`group`: the API group; for a Job it needs not be said."""
        return self.workloads.find((group, kind), namespace, name)

    def lookup(self, namespace: str, ref: Reference) -> Workload | Absence:
        """For `grouping.owners`: what stands above a pod may be a Pod, the leader of a LeaderWorkerSet."""
        if (ref.group, ref.kind) != ("", "Pod"):
            return self.workloads.lookup(namespace, ref)
        pod = self.pods.get(namespace, ref.name)
        if pod is None:
            return Absence.NOT_YET
        return Workload(
            namespace=namespace, kind="Pod", name=pod.name, uid=pod.uid, api_version="v1", owners=pod.owners
        )

    def pods_below(self, work: Workload) -> Iterator[Pod]:
        """Pods of ours for which the object's annotations count."""
        todo, seen = [work], {work.uid}
        while todo:
            above = todo.pop()
            pods = self.pods.by_owner(above.uid)
            yield from (*pods, *self.pods.naming(above.group, above.kind, above.namespace, above.name))
            below = list(self.workloads.below(above))
            for pod in pods:  # the leader of a LeaderWorkerSet controls its workers' StatefulSet
                below += self.workloads.controlled_by(pod.uid)
            todo += [found for found in below if found.uid not in seen]
            seen.update(found.uid for found in below)
