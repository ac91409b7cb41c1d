"""Both sides of one stack, and how to make runs start alike.

In: a running stack. Out: clients for Kubernetes and Slurm, the pod watch, and `reset`, after which there is no pod, no
live job, and no finished job that Slurm still remembers.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.kube import OUR_SCHEDULER, Kube, PodLog, new_names
from benchmarks.meters import bridge_metrics, gauge
from benchmarks.slurm import Slurm, States, live
from benchmarks.stack import Stack, limit_scheduler

PURGE = 90.0  # seconds: MinJobAge, and slurmctld's own rhythm
ALONE = 60.0  # seconds that the bridge has for ending the jobs of deleted pods
WIDTH = 6  # requests to slurmrestd at once, as the bridge does by default


@dataclass
class World:
    stack: Stack
    kube: Kube
    slurm: Slurm
    log: PodLog
    leaked: int = 0  # jobs that outlived their deleted pods by a minute

    @property
    def nodes(self) -> int:
        found = self.stack.facts["nodes"]
        return len(found["hybrid"]) + len(found["external"])

    async def reset(self) -> None:
        await self.kube.delete_all()
        await asyncio.wait_for(self.log.empty.wait(), 120)
        if not await self.slurm.until(_none_lives, ALONE if self._bridge_runs() else 0.0, every=0.2):
            left = [job for job, state in (await self.slurm.states()).items() if live(state)]
            self.leaked += len(left) if self._bridge_runs() else 0
            await self.slurm.cancel_all(left)
        if not await self.slurm.until(lambda states: not states, PURGE, every=0.5):
            say("slurmctld still remembers finished jobs; the next run starts with them")

    def _bridge_runs(self) -> bool:
        return "bridge" in self.stack.pids

    @asynccontextmanager
    async def without_bridge(self) -> AsyncIterator[None]:
        """For limits: the scheduler of limit A runs instead of the bridge. Afterwards the bridge leads again."""
        await asyncio.to_thread(self.stack.part, "stop", "bridge")
        try:
            with limit_scheduler(self.stack):
                yield
        finally:
            await asyncio.to_thread(self.stack.part, "start", "bridge")
            await self._until_leading()

    async def _until_leading(self) -> None:
        while True:
            if gauge(await bridge_metrics(self.stack), "slurm_bridge_leading") == 1:
                break
            await asyncio.sleep(0.2)
        await self.warm_up()

    async def warm_up(self) -> None:
        """One pod through everything: connections are open and code is loaded before anything is timed."""
        names = new_names(1, "warm-up")
        await self.kube.create(names, OUR_SCHEDULER)
        if not await self.log.reached(names, "running", 60):
            raise SystemExit(
                f"benchmark: a first pod does not run after 60 s; look into {self.stack.log_dir}/bridge.log"
            )
        await self.reset()


def _none_lives(states: States) -> bool:
    return not any(live(state) for state in states.values())


@asynccontextmanager
async def connect(stack: Stack) -> AsyncIterator[World]:
    facts = stack.facts
    kube = Kube(Path(facts["kubeconfigs"]["admin"]))
    slurm = Slurm(facts["slurm_url"], facts["slurm_api"], Path(facts["token_file"]))
    try:
        await kube.ensure_namespace()
        async with PodLog(kube) as log:
            yield World(stack, kube, slurm, log)
    finally:
        await slurm.close()
        await kube.close()


_begun = time.monotonic()


def say(text: str) -> None:
    print(f"[{time.monotonic() - _begun:4.0f} s] {text}", file=sys.stderr, flush=True)
