"""What the API server last told us: pods, nodes and workloads, indexed.

Goes in: objects from the informers. Comes out: frozen values, read without copying or locking. A read
between two pages of a list sees some objects newer than others, never one older than it was. What must stay
true: a pod of ours that goes away is in `gone` until somebody has dealt with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from bridge import names
from bridge.core.constraints import StorageClass, Volume, VolumeClaim
from bridge.core.ledger import destination
from bridge.core.model import KubeNode, Node, Pod, Uid, Workload

T = TypeVar("T")
In = TypeVar("In", contravariant=True)
Key = tuple[str, ...]
Clock = Callable[[], float]
OnPod = Callable[[Pod | None, Pod | None], None]
_Index = dict[str, dict[Uid, None]]  # a dict as a set that keeps its order


@dataclass(frozen=True, slots=True)
class Gone:
    """A pod of ours that is no longer there. `pod` is its last state that we know."""

    pod: Pod
    at: float  # monotonic, when we noticed
    deleted: bool  # True: the watch said DELETED, or two more lists agree; False: missing from one list


class Sink(Protocol[In]):
    """Where an informer puts what it reads."""

    def put(self, item: In, /) -> None:
        """Added or changed, or the same again."""

    def drop(self, item: In, /) -> None:
        """Deleted; `item` is the final state."""

    def begin(self) -> None:
        """A list starts: every item that isn't put before `end` is gone."""

    def end(self) -> None:
        """The list is complete."""

    def fresh(self, at: float, /) -> None:
        """At that monotonic time we knew all there was to know."""


class Table(Generic[T]):
    """Objects of one kind by key. `version` counts changes; `synced` is True after the first complete
    list.
    """

    def __init__(self, key: Callable[[T], Key], *, clock: Clock = time.monotonic) -> None:
        self._key = key
        self._clock = clock
        self._items: dict[Key, T] = {}
        self._listed: set[Key] | None = None
        self._fresh = float("-inf")
        self._listeners: list[Callable[[T | None, T | None], None]] = []
        self.version = 0
        self.synced = False

    def get(self, *key: str) -> T | None:
        return self._items.get(key)

    def __iter__(self) -> Iterator[T]:
        return iter(tuple(self._items.values()))

    def __len__(self) -> int:
        return len(self._items)

    def age(self) -> float:
        """Seconds since we last knew that we were current; infinite before the first list."""
        return self._clock() - self._fresh

    # --- for the informer -------------------------------------------------------------------------

    def put(self, item: T) -> None:
        key = self._key(item)
        if self._listed is not None:
            self._listed.add(key)
        old = self._items.get(key)
        if not self._stale(old, item):
            self._items[key] = item
            self._changed(old, item)

    def drop(self, item: T) -> None:
        key = self._key(item)
        old = self._items.get(key)
        if old is None or self._stale(old, item, dropping=True):
            return
        del self._items[key]
        self._removed(old, item)

    def begin(self) -> None:
        self._listed = set()

    def end(self) -> None:
        if self._listed is not None:
            for key in self._items.keys() - self._listed:
                self._removed(self._items.pop(key), None)
        self._listed = None
        if not self.synced:
            self.version += 1
        self.synced = True

    def fresh(self, at: float) -> None:
        self._fresh = at

    # --- what differs by kind ---------------------------------------------------------------------

    def _stale(self, old: T | None, new: T, *, dropping: bool = False) -> bool:
        """Nothing new in `new`: the same again, or older than what we hold."""
        return not dropping and old == new

    def on_change(self, listener: Callable[[T | None, T | None], None]) -> None:
        """Of what came (None, new), changed, or went (old, None)."""
        self._listeners.append(listener)

    def _changed(self, old: T | None, new: T) -> None:
        self.version += 1
        for listener in self._listeners:
            listener(old, new)

    def _removed(self, old: T, final: T | None) -> None:
        self.version += 1
        for listener in self._listeners:
            listener(old, None)


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
        self.workloads: Table[Workload] = Table(lambda w: (w.kind, w.namespace, w.name), clock=clock)
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
        return self.pods.synced and self.nodes.synced and self.workloads.synced

    @property
    def version(self) -> int:
        """Changes whenever anything in here does."""
        return self.pods.version + self.nodes.version + self.workloads.version

    def age(self) -> float:
        """Seconds, of the oldest of the tables."""
        return max(self.pods.age(), self.nodes.age(), self.workloads.age())

    def node(self, name: KubeNode) -> Node | None:
        return self.nodes.get(name)

    def workload(self, kind: str, namespace: str, name: str) -> Workload | None:
        return self.workloads.get(kind, namespace, name)
