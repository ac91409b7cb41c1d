"""The pods of a group as decisions see them: each with what is known of its node, and for how long.

Goes in: the pod store, and what this process has noted of nodes and pods. Comes out: `Member`s; also of pods that this
process never saw, on each node where one may be. A cache like all of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from bridge.core.facts import Member, Sight
from bridge.core.ghosts import never_seen
from bridge.core.model import GroupKey, KubeNode, Pod, SlurmNode, Uid
from bridge.kube.store import Store
from bridge.memory import Memory


class Members:
    def __init__(
        self,
        store: Store,
        memory: Memory,
        kube_name: Callable[[SlurmNode], KubeNode],
        cluster: str,
        monotonic: Callable[[], float],
    ) -> None:
        self._store = store
        self._memory = memory
        self._kube_name = kube_name
        self._cluster = cluster
        self._monotonic = monotonic

    def of(self, uid: Uid) -> Member | None:
        """One that exists, or has just gone."""
        pod = self._store.pods.ours.get(uid)
        gone = self._store.pods.gone.get(uid) if pod is None else None
        known = pod or (gone.pod if gone else None)
        if known is None:
            return None
        return self._member(known, self._monotonic() - gone.at if gone is not None and gone.deleted else None)

    def ghosts(self, key: GroupKey, seen: Iterable[Member], sights: Iterable[Sight]) -> Iterator[Member]:
        """Pods of the group's live jobs that went before this process began."""
        known = {member.pod.uid for member in seen}
        for record in (sight.record for sight in sights if sight.live):
            if record is not None and record.mark is not None and record.mark.group == key:
                for pod in never_seen(record, self._kube_name, cluster=self._cluster, seen=known):
                    yield self._member(pod, self._memory.known_for(key))

    def _member(self, pod: Pod, gone_age: float | None) -> Member:
        node = self._store.node(pod.node) if pod.node else None
        return Member(
            pod=pod,
            gone_age=gone_age,
            node_ready=node is not None and node.ready,
            node_ready_for=self._memory.ready_for(pod.node),
            node_dead_for=self._memory.dead_for(pod.node),
            node_ready_since=node.ready_since if node is not None else 0.0,
            node_view_age=self._store.nodes.age(),
            deleted_for=self._memory.deleted_for(pod.uid),
        )
