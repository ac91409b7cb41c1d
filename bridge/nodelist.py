"""`slurm-bridge nodes`: one look at the nodes of both sides.

In: the settings and clients that `serve` uses. Out: what was read, and what is the same for all nodes. What must stay
true: it only reads; a side that can't be read costs nothing of what is known of the other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from bridge.config import Settings
from bridge.core import checkup
from bridge.core.nodes import Around
from bridge.core.nodetable import Sides
from bridge.errors import BridgeError, Busy, UnknownOutcome
from bridge.kube import kinds
from bridge.kube.client import ClusterWire, KubeClient
from bridge.slurm.client import SlurmClient


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    sides: Sides
    around: Around
    troubles: tuple[str, ...]  # a sentence for each side that could not be read: why, and what to do


async def run(settings: Settings, *, kubeconfig: str | None, timeout: float) -> Look:
    """With clients of its own, closed at the end. `timeout`: seconds. A side that can't be read raises nothing."""
    async with AsyncExitStack() as opened:

        async def connect() -> KubeClient:
            wire = await ClusterWire.connect(kubeconfig)
            opened.push_async_callback(wire.close)
            return KubeClient(wire)

        slurm = SlurmClient(settings.slurm)
        opened.push_async_callback(slurm.close)
        return await Looker(settings, connect, slurm, timeout).look()


class Looker:
    def __init__(
        self,
        settings: Settings,
        connect: Callable[[], Awaitable[KubeClient]],
        slurm: SlurmClient,
        timeout: float,
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._settings, self._connect, self._slurm, self._timeout = settings, connect, slurm, timeout
        self._sides = Sides()
        cluster, now = settings.cluster, wall()
        self._around = Around(
            cluster=cluster.clusterId,
            scheduler=cluster.schedulerName,
            now=now,
            slurm_now=now,
            kube_age=0.0,
            slurm_age=0.0,
            boot_age=0.0,
            boot_grace=settings.slurm.bootGrace,
            gres_by_resource=settings.jobs.gresByResource,
        )

    async def look(self) -> Look:
        """Both sides at once."""
        kube, slurm = await asyncio.gather(self._tried(self._read_kube), self._tried(self._read_slurm))
        troubles = []
        if kube is not None:
            troubles.append(checkup.no_kubernetes(kube))
        if slurm is not None:
            troubles.append(checkup.no_slurm(slurm, self._settings))
        return Look(sides=self._sides, around=self._around, troubles=tuple(troubles))

    async def _tried(self, read: Callable[[], Awaitable[None]]) -> BridgeError | None:
        try:
            async with asyncio.timeout(self._timeout):
                await read()
        except TimeoutError:
            return UnknownOutcome(f"nothing came of it within {self._timeout:.0f} s")
        except BridgeError as error:
            return error
        return None

    async def _read_kube(self) -> None:
        """What was read before something failed counts."""
        kube = await self._connect()
        if not self._around.cluster:
            self._around = replace(self._around, cluster=str(await kube.namespace_uid("kube-system")))
        nodes = [node async for page in kube.pages(kinds.nodes()) for node in page.items]
        self._sides = replace(self._sides, nodes=tuple(nodes))
        self._sides = replace(self._sides, pods=(await kube.list_pods()).items)

    async def _read_slurm(self) -> None:
        slurm = self._slurm
        if not await slurm.ping():
            raise Busy("slurmctld does not answer slurmrestd")
        booted = await slurm.boot_time()
        partitions = frozenset(await slurm.partitions())
        records = (await slurm.nodes.list()).nodes
        now = slurm.slurm_time or self._around.slurm_now
        self._around = replace(
            self._around,
            slurm_now=now,
            boot_age=now - booted,
            min_job_age=float(slurm.min_job_age),
            partitions=partitions or None,
        )
        self._sides = replace(self._sides, records=records)
