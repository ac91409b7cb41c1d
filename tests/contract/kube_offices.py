"""Leaders on an in-memory API server in virtual time: what the tests of leader election share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from bridge.kube.client import KubeClient
from bridge.kube.leader import Leader
from tests.worlds.kube import KubeWorld
from tests.worlds.kube_clock import VirtualClock


@asynccontextmanager
async def running(leader: Leader) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.ensure_future(leader.run())
    try:
        yield task
    finally:
        await stop(task)


def states(*leaders: Leader) -> list[bool]:
    return [leader.leading for leader in leaders]


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


class Scene:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.world = KubeWorld(clock=self.clock.time, now=self.clock.unix, sleep=self.clock.sleep)

    def leader(self, name: str) -> Leader:
        """With a connection and clock of its own."""
        clock = self.clock
        return Leader(
            KubeClient(self.world), "default", "l", name, clock=clock.time, now=clock.unix, sleep=clock.sleep
        )

    @property
    def holder(self) -> str:
        lease = self.world.get("leases", "l")
        return str(lease["spec"]["holderIdentity"]) if lease else ""

    @property
    def transitions(self) -> int:
        lease = self.world.get("leases", "l")
        assert lease is not None
        return int(lease["spec"]["leaseTransitions"])
