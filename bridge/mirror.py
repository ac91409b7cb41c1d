"""The READ door of the node mirror: joins the nodes of both sides into frozen pairs for `core.mirror`.

In: the caches of Kubernetes and Slurm, and how long this process has seen a few things last. Out: all pairs and what is
around them. Nothing in here waits for the network.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import replace

from bridge.config import Settings
from bridge.core import nodesize, startfailures
from bridge.core import pairs as core_pairs
from bridge.core.drains import REMOVING, standing
from bridge.core.model import JobId, KubeNode, Node, Pod, SlurmNode, Uid, is_ended
from bridge.core.nodes import Around, Outlook, Pair, StartFailure
from bridge.errors import UserError
from bridge.kube.store import Store
from bridge.ledger import OLD_VIEW
from bridge.slurm.client import SlurmClient
from bridge.slurm.nodewatch import NodeWatch
from bridge.slurm.watch import JobWatcher

SILENT = "NOT_RESPONDING"


class Mirror:
    """`boot_age`: seconds since slurmctld started; `lingering`: why what ran on a node may run on, "" = it doesn't;
    `occupied`: a pod of ours may use GPUs there; not one that has lost its job, by who tells which live."""

    def __init__(
        self,
        store: Store,
        watch: NodeWatch,
        watcher: JobWatcher,
        slurm: SlurmClient,
        settings: Settings,
        cluster: str,
        *,
        boot_age: Callable[[], float],
        lingering: Callable[[KubeNode], str],
        occupied: Callable[[KubeNode, Callable[[JobId], bool]], bool],
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._watch, self._watcher, self._slurm = store, watch, watcher, slurm
        self._settings, self._cluster = settings, cluster
        self._boot_age, self._lingering, self._occupied = boot_age, lingering, occupied
        self._now, self._wall = monotonic, wall
        self._others: dict[KubeNode, dict[Uid, Pod]] = {}
        self._taken: dict[KubeNode, nodesize.Amounts] = {}  # by them
        self._failures: dict[KubeNode, dict[Uid, StartFailure]] = {}
        self._silent: dict[SlurmNode, float] = {}  # since when it was seen so
        self._absent: dict[SlurmNode, float] = {}  # the same
        self._differs: dict[SlurmNode, float] = {}
        store.pods.on_change(self._on_seat)
        store.pods.on_pod(self._on_pod)

    # --- events in --------------------------------------------------------------------------------

    def _on_seat(self, old: Pod | None, new: Pod | None) -> None:
        """Of every pod of the cluster: who takes what from a node, beside ours."""
        for pod, comes in ((old, False), (new, True)):
            if pod is None or not pod.node or self._store.pods.is_ours(pod.scheduler):
                continue
            self._taken.pop(pod.node, None)
            here = self._others.setdefault(pod.node, {})
            if comes and not pod.ended:
                here[pod.uid] = pod
            else:
                here.pop(pod.uid, None)
            if not here:
                del self._others[pod.node]

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """Of a pod of ours. One that has gone failed all the same."""
        pod = new or old
        if pod is not None and (failure := startfailures.failure(pod)) is not None:
            self._failures.setdefault(pod.node, {})[pod.uid] = failure

    def learn(self, node: Node) -> None:
        """The answer to a write of ours, ahead of the watch."""
        held = self._store.node(node.name)
        if held is not None and held.uid == node.uid:
            self._store.nodes.learn(node)

    def looked(self, outlooks: Iterable[Outlook]) -> None:
        """What the last look said: a difference counts from when it was first said."""
        now = self._now()
        self._differs = {one.name: self._differs.get(one.name, now) for one in outlooks if one.differs}

    # --- the look ---------------------------------------------------------------------------------

    def ready(self) -> bool:
        """Both sides have been read once."""
        return self._store.synced and self._watch.polls > 0

    def look(self) -> tuple[tuple[Pair, ...], Around]:
        now = self._now()
        records = self._watch.nodes
        silent = (name for name, record in records.items() if SILENT in record.states)
        self._silent = {name: self._silent.get(name, now) for name in silent}
        self._forget_failures()
        named = self._named()
        joined = core_pairs.join(self._store.nodes, records.values(), self._cluster)
        self._absent = {one.name: self._absent.get(one.name, now) for one in joined if one.record is None}
        found = tuple(self._filled(pair, named, now) for pair in joined)
        around = Around(
            cluster=self._cluster,
            scheduler=self._settings.cluster.schedulerName,
            now=self._wall(),
            slurm_now=self._watcher.slurm_now(),
            kube_age=self._kube_age(),
            slurm_age=self._slurm_age(),
            boot_age=self._boot_age(),
            boot_grace=self._settings.slurm.bootGrace,
            min_job_age=float(self._slurm.min_job_age),
            partitions=frozenset(self._watcher.partitions) or None,
            many_lost=core_pairs.many_lost(found) or not records,
            gres_by_resource=self._settings.jobs.gresByResource,
        )
        return found, around

    def _filled(self, pair: Pair, named: Set[SlurmNode], now: float) -> Pair:
        home = core_pairs.home(pair)
        others = tuple(self._others.get(home, {}).values())
        if home not in self._taken:
            try:
                self._taken[home] = nodesize.taken(others)
            except UserError as error:
                pair = replace(pair, refused=pair.refused or str(error))
        return replace(
            pair,
            others=others,
            taken=self._taken.get(home, {}),
            failures=tuple(self._failures.get(home, {}).values()),
            unfree=self._lingering(home),
            named=pair.name in named or (_leaves(pair) and self._occupied(home, self._lives)),
            differs_for=now - self._differs.get(pair.name, now),
            silent_for=now - self._silent.get(pair.name, now),
            absent_for=now - self._absent.get(pair.name, now),
        )

    def _kube_age(self) -> float:
        """A healthy watch may say nothing for OLD_VIEW, and is current all the same."""
        tables = (self._store.nodes, self._store.pods)
        age = max(table.age() for table in tables)
        return age if age > OLD_VIEW else max(table.unwatched() for table in tables)

    def _slurm_age(self) -> float:
        """A look in vain may mean that slurmctld starts anew, and has lost what it said last."""
        if self._watch.failing or not self._watcher.healthy:
            return math.inf
        return max(self._watch.age(), self._watcher.age())

    def _named(self) -> frozenset[SlurmNode]:
        """Nodes that a live job of ours holds or waits for. Looked for only while some node is to go."""
        leaving = any(standing(record) in REMOVING for record in self._watch.nodes.values())
        return frozenset(self._held()) if leaving else frozenset()

    def _lives(self, job: JobId) -> bool:
        states = self._watcher.states.get(job)
        return states is not None and not is_ended(states)

    def _held(self) -> Iterator[SlurmNode]:
        for job, states in self._watcher.states.items():
            record = self._watcher.records.get(job)
            if record is not None and not is_ended(states):
                yield from (*record.nodes, *record.required)

    def _forget_failures(self) -> None:
        since = self._wall() - self._settings.nodes.startFailureWindow
        for node, failures in tuple(self._failures.items()):
            kept = {uid: one for uid, one in failures.items() if one.at >= since}
            if kept:
                self._failures[node] = kept
            else:
                del self._failures[node]


def _leaves(pair: Pair) -> bool:
    return pair.record is not None and standing(pair.record) in REMOVING
