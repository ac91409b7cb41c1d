"""The READ door of the extender: may this pod be bound, by what is known here, or by what either side says when asked.

Goes in: a pod as kube-scheduler or our own store shows it. Comes out: the node that Slurm gave it, or a refusal. What
must stay true: it is asked by every replica, and takes nothing for granted that only a leader knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from bridge.core.answers import Asked, allowed
from bridge.core.ledger import Holder, holding
from bridge.core.model import JobRecord, KubeNode, Node, Pod, SlurmNode, States
from bridge.core.verdict import Reason, Verdict
from bridge.kube.client import KubeClient
from bridge.kube.store import Store
from bridge.ledger import Ledger
from bridge.names import GPUS_ANNOTATION, NODE_ANNOTATION
from bridge.slurm.client import SlurmClient
from bridge.slurm.watch import JobWatcher

PATIENCE = 1.5  # seconds with the API server: the hook of a native job gives an answer 2, kube-scheduler 5
LISTS = 16  # at a time


class Grants:
    """`view_age`: seconds that a look at Slurm may be old; `unsettled`: slurmctld has started lately, and may give
    away the devices of pods whose jobs it lost; `kube_name` and `resources` as for the ledger."""

    def __init__(
        self,
        store: Store,
        watcher: JobWatcher,
        ledger: Ledger,
        slurm: SlurmClient,
        kube: KubeClient,
        *,
        cluster: str,
        nodes: Callable[[], Mapping[SlurmNode, Node]],
        kube_name: Callable[[SlurmNode], KubeNode],
        resources: Collection[str],
        unsettled: Callable[[], bool],
        view_age: float,
    ) -> None:
        self._store = store
        self._watcher = watcher
        self._ledger = ledger
        self._slurm = slurm
        self._kube = kube
        self._cluster = cluster
        self._nodes = nodes
        self._kube_name = kube_name
        self._resources = resources
        self._unsettled = unsettled
        self._view_age = view_age

    def allowed(self, pod: Asked) -> KubeNode | Verdict:
        """From memory."""
        if self._watcher.age() > self._view_age:
            return Verdict(Reason.STALE, "the last look at Slurm is too old to bind on")
        if pod.job is not None and self._watcher.record_age(pod.job) >= self._watcher.boot_age():
            text = f"job {pod.job} was last read before slurmctld started anew, which may have placed it anew"
            return Verdict(Reason.STALE, text)
        return self._answer(pod, *self._known(pod), self._ledger.holders)

    async def confirm(self, pod: Asked) -> KubeNode | Verdict:
        """The same from one read of the job itself, for a view that is too old."""
        if pod.job is None:
            return self.allowed(pod)
        record = await self._slurm.job(pod.job)
        return self._answer(pod, record.states, record, self._ledger.holders)

    async def alone(self, pod: Asked, node: KubeNode) -> KubeNode | Verdict:
        """The same, before a binding, with the pods of that node as the API server has them, where Slurm's word will
        not do: a pod that was bound out of our sight still uses what a slurmctld that lost its job has given away.
        """
        if not self._unsettled() or not pod.annotations.get(GPUS_ANNOTATION):
            return node
        there = await self._living(node)

        def holders(name: KubeNode) -> Iterable[Holder]:
            return (*self._ledger.holders(name), *(holder for holder in there if holder.node == name))

        return self._answer(pod, *self._known(pod), holders)

    async def there(self, names: Iterable[SlurmNode]) -> tuple[Holder, ...]:
        """Who has GPUs on these nodes, by the API server's own word."""
        lane = asyncio.Semaphore(LISTS)

        async def on(name: SlurmNode) -> list[Holder]:
            async with lane:
                return await self._living(self._kube_name(name))

        found = await asyncio.gather(*(on(name) for name in names))
        return tuple(holder for holders in found for holder in holders)

    async def _living(self, node: KubeNode) -> list[Holder]:
        """The ledger knows better what the pods have that it knows: by records, not by what stands on them now."""
        pods = await self._kube.pods_on(node, PATIENCE)
        found = (holding(pod, self._resources) for pod in pods if not pod.ended)
        known = {holder.uid for holder in self._ledger.holders(node)}
        return [holder for holder in found if holder is not None and holder.uid not in known]

    def pod(self, namespace: str, name: str) -> Pod | None:
        return self._store.pods.get(namespace, name)

    async def fresh_pod(self, namespace: str, name: str) -> Pod:
        pod = await self._kube.pod(namespace, name)
        self._store.pods.learn(pod)
        return pod

    def _known(self, pod: Asked) -> tuple[States | None, JobRecord | None]:
        if pod.job is None:
            return None, None
        return self._watcher.newest(pod.job), self._watcher.records.get(pod.job)

    def _answer(
        self,
        pod: Asked,
        states: States | None,
        record: JobRecord | None,
        holders: Callable[[KubeNode], Iterable[Holder]],
    ) -> KubeNode | Verdict:
        return allowed(
            pod,
            cluster=self._cluster,
            states=states,
            record=record,
            nodes=self._nodes(),
            holders=holders,
            beside=self._beside(pod) if record is not None and (record.tasks or 1) > 1 else (),
        )

    def _beside(self, pod: Asked) -> Iterator[Pod]:
        """Pods of the same job that are, or are to be, on the same node."""
        there = pod.annotations.get(NODE_ANNOTATION, "")
        for other in self._store.pods.by_job(str(pod.job)):
            if other.uid != pod.uid and not other.ended and other.annotations.get(NODE_ANNOTATION) == there:
                yield other
