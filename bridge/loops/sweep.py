"""The sweep: jobs of ours that no pod needs any more and whose end no event told us about (a restart, a lost watch).

Quiet: reads Kubernetes only when the Slurm watcher shows a suspect, and then two complete lists, as invariant 3 asks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from bridge.apply import WriteDoor
from bridge.core.breaker import Key
from bridge.core.ghosts import at_rest
from bridge.core.model import GroupKey, JobId, JobRecord, Uid
from bridge.core.orphans import Listing, Orphan, orphan
from bridge.core.steps import DrainNode, EndJob, Step
from bridge.errors import BridgeError, Conflict, NotFound, StaleView
from bridge.kube.client import KubeClient
from bridge.log import logger
from bridge.loops.guard import Guard
from bridge.names import DRAIN_PREFIX
from bridge.snapshot import Snapshot

log = logger("sweep")


class SweepLoop:
    def __init__(
        self,
        snapshot: Snapshot,
        door: WriteDoor,
        kube: KubeClient,
        guard: Guard,
        look_again: Callable[[GroupKey], None],
        *,
        leading: Callable[[], bool],
        interval: float,
        margin: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._snapshot = snapshot
        self._door = door
        self._kube = kube
        self._guard = guard
        self._look_again = look_again
        self._leading = leading
        self._interval = interval
        self._margin = margin
        self._monotonic = monotonic
        self._since: dict[JobId, float] = {}  # when each suspect was first seen

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            if not self._leading():
                self._since.clear()
                continue
            try:
                await self.look()
            except BridgeError as error:
                log.warning("the sweep could not finish; it is repeated", error=str(error))
            except Exception:
                log.exception("the sweep failed; it is repeated")

    async def look(self) -> None:
        """One sweep over the suspects that Slurm shows now."""
        suspects = {record.id: record for record in self._snapshot.suspects()}
        missing = self._snapshot.unconfirmed()
        now = self._monotonic()
        self._since = {job: self._since.get(job, now) for job in suspects}
        if not suspects and not missing:
            return
        first, second = await self._listing(), await self._listing()
        listed = first.uids | second.uids
        for uid in [uid for uid, ref in missing.items() if uid in listed or await self._there(uid, ref)]:
            del missing[uid]
        for key in self._snapshot.confirm_gone(missing):
            self._look_again(key)
        for record, found in self._orphans(suspects.values(), first, second):
            pods = zip(record.mark.uids, record.mark.pods, strict=False) if record.mark is not None else ()
            if any([await self._there(uid, ref) for uid, ref in pods]):
                continue
            log.warning(found.verdict.text, reason=found.verdict.reason.value)
            try:
                for step in self._steps(record, found):
                    await self._door.apply(step)
            except (StaleView, Conflict) as error:  # the others are ended all the same
                log.info("an orphan is looked at again", job=record.id, error=str(error))

    async def _there(self, uid: Uid, ref: str) -> bool:
        """Asked for by its name: lists may have been another cluster's."""
        try:
            pod = await self._kube.pod(*ref.split("/", 1))
        except NotFound:
            return False
        if pod.uid != uid:
            return False
        self._snapshot.restore(pod)
        return True

    async def _listing(self) -> Listing:
        begun = self._monotonic()
        page = await self._kube.list_pods()
        return Listing(begun, frozenset(pod.uid for pod in page.items))

    def _orphans(
        self, suspects: Iterable[JobRecord], first: Listing, second: Listing
    ) -> Iterable[tuple[JobRecord, Orphan]]:
        """By the lists, and as many as the breaker lets through."""
        for record in suspects:
            found = orphan(
                record,
                first,
                second,
                cluster=self._snapshot.cluster,
                dead_for=self._snapshot.dead_for,
                ready_for=self._snapshot.ready_for,
                view_age=self._snapshot.node_view_age(),
                since=self._since[record.id],
                now=self._monotonic(),
                margin=self._margin,
                over=self._snapshot.memory.ended_as(record) is not None,
            )
            if found is None:
                continue
            keys: tuple[Key, ...] = (record.id, *found.dead)
            asked = [self._guard.admit(key) for key in keys]
            if all(asked):
                yield record, found

    def _steps(self, record: JobRecord, found: Orphan) -> Iterable[Step]:
        for node in found.dead:
            reason = f"{DRAIN_PREFIX} node not Ready; containers of job {record.id} may still run"
            yield DrainNode(node=node, reason=reason, away=self._snapshot.kube_name(node))
        unknown = f"exit unknown: {found.verdict.text}" if record.nodes else ""
        status, note = self._snapshot.memory.ended_as(record) or (None, unknown)
        twins = self._snapshot.nodes()
        if lost := [name for name in found.working if name not in twins]:
            raise StaleView(f"node {lost[0]} has gone from Kubernetes since")
        working = tuple((twins[name].name, twins[name].ready_since) for name in found.working)
        yield EndJob(
            id=record.id,
            wait_status=status,
            why=found.verdict.text,
            note=note,
            group=record.mark.group if record.mark is not None else None,
            mark=at_rest(record),
            working=working,
        )
