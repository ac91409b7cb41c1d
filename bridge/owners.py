"""Jobs that pods name, and that no watch has shown: asked for by name before a pod goes on without.

A lost event, or a list that lacked it, must not let the pods of a gang start one by one. Goes in: a pod. Comes out:
whether its Job is known to be gone. A cache like all of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from bridge.core import grouping
from bridge.core.model import Pod, Uid
from bridge.errors import BridgeError, Denied, NotFound
from bridge.kube.client import KubeClient
from bridge.kube.store import Store

PAUSE = 5.0  # seconds between two questions for one Job
KEPT = 10_000  # answers; then all are forgotten


class Owners:
    """`clock` is monotonic."""

    def __init__(self, kube: KubeClient, store: Store, clock: Callable[[], float]) -> None:
        self._kube = kube
        self._store = store
        self._clock = clock
        self._gone: set[Uid] = set()
        self._asked: dict[Uid, float] = {}

    def awaited(self, pods: Sequence[Pod]) -> bool:
        """Their Job is neither here nor known to be gone."""
        owner = grouping.owner_ref(pods[0]) if pods else None
        if owner is None or owner.uid in self._gone:
            return False
        known = self._store.jobs.get(pods[0].namespace, owner.name)
        return known is None or known.uid != owner.uid

    async def ask(self, pod: Pod) -> None:
        """The API server, for the pod's Job; no answer leaves it awaited."""
        owner = grouping.owner_ref(pod)
        if owner is None or self._clock() - self._asked.get(owner.uid, -PAUSE) < PAUSE:
            return
        if len(self._asked) >= KEPT:
            self._asked.clear()
            self._gone.clear()
        self._asked[owner.uid] = self._clock()
        with suppress(BridgeError):
            try:
                found = await self._kube.job(pod.namespace, owner.name)
            except (NotFound, Denied):  # a role that is older than this program
                self._gone.add(owner.uid)
                return
            if found.uid == owner.uid:
                self._store.jobs.put(found)
            else:
                self._gone.add(owner.uid)
