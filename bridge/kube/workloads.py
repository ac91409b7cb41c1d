"""The objects whose annotations count for pods, one table for each kind that the cluster has.

A kind is named by API group and name: two groups have a PodGroup. Goes in: objects from the informers that
`bridge.kube.discovery` runs. Comes out: lookups, and who stands below whom.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from bridge.core.grouping.owners import BUILT_IN_GROUP, Absence, Reference, controller
from bridge.core.model import Uid, Workload
from bridge.kube.kinds import OPTIONAL
from bridge.kube.table import Clock, Table

JOB = ("batch", "Job")
KindId = tuple[str, str]  # API group, kind
OnWorkload = Callable[[Workload | None, Workload | None], None]
_Key = tuple[KindId, str, str]
_KNOWN = frozenset((kind.group, kind.kind) for kind in OPTIONAL)


class Workloads:
    def __init__(self, *, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._tables: dict[KindId, Table[Workload]] = {}
        self._below: dict[str, dict[_Key, None]] = {}  # by what stands above: a UID, or _named(…)
        self._listeners: list[OnWorkload] = []
        self._dropped = 0  # versions of tables that are no longer there
        self.settled: Callable[[], bool] = lambda: True  # whether it is known which kinds there are
        self.denied: Callable[[KindId], bool] = lambda kind: False  # the API server does not let us read it
        self.wanted: Callable[[], None] = lambda: None  # something refers to a kind that is not served yet
        self.jobs = self.serve(JOB)

    def serve(self, kind: KindId) -> Table[Workload]:
        """The kind's table, made if there is none."""
        found = self._tables.get(kind)
        if found is None:
            found = self._tables[kind] = Table(lambda w: (w.namespace, w.name), clock=self._clock)
            found.on_change(lambda old, new: self._changed(kind, old, new))
        return found

    def withdraw(self, kind: KindId) -> None:
        """The cluster has that kind no longer."""
        if (table := self._tables.pop(kind, None)) is not None:
            table.begin()
            table.end()  # an empty list: all of them are gone
            self._dropped += table.version

    def on_change(self, listener: OnWorkload) -> None:
        """Of what came (None, new), changed, or went (old, None), of every kind."""
        self._listeners.append(listener)

    @property
    def version(self) -> int:
        return self._dropped + sum(table.version for table in self._tables.values())

    def find(self, kind: KindId, namespace: str, name: str) -> Workload | None:
        table = self._tables.get(kind)
        return table.get(namespace, name) if table is not None else None

    def lookup(self, namespace: str, ref: Reference) -> Workload | Absence:
        """Never waits. What an ownerReference names is there, so its kind is, even if we have not seen it yet."""
        kind = (ref.group, ref.kind)
        if (found := self.find(kind, namespace, ref.name)) is not None:
            return found
        if self.denied(kind):
            return Absence.UNREAD
        if kind in self._tables:
            return Absence.NOT_YET
        if kind in _KNOWN and ref.uid:
            self.wanted()
            return Absence.NOT_YET
        return Absence.UNREAD

    def below(self, work: Workload) -> Iterator[Workload]:
        """What the object controls, and the PodGroups made from it."""
        yield from self.controlled_by(work.uid)
        if (work.group, work.kind) == (BUILT_IN_GROUP, "Workload"):
            yield from self._all(_named(work.namespace, work.name))

    def controlled_by(self, uid: Uid) -> Iterator[Workload]:
        return self._all(uid)

    def _all(self, above: str) -> Iterator[Workload]:
        for kind, namespace, name in tuple(self._below.get(above, ())):
            if (found := self.find(kind, namespace, name)) is not None:
                yield found

    def _changed(self, kind: KindId, old: Workload | None, new: Workload | None) -> None:
        if old is not None:
            for above in _above(old):
                keys = self._below.get(above, {})
                keys.pop((kind, old.namespace, old.name), None)
                if not keys:
                    self._below.pop(above, None)
        if new is not None:
            for above in _above(new):
                self._below.setdefault(above, {})[kind, new.namespace, new.name] = None
        for listener in self._listeners:
            listener(old, new)


def _above(work: Workload) -> Iterator[str]:
    if (owner := controller(work.owners)) is not None:
        yield owner.uid
    if work.parent:
        yield _named(work.namespace, work.parent)


def _named(namespace: str, name: str) -> str:
    return f"{namespace}/{name}"  # no UID has a slash
