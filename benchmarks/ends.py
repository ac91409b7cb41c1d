"""The other direction: how soon one side hears of the other.

- scancel → the pod's deletionTimestamp (job cancelled through slurmrestd, pod seen by the watch);
- pod deleted while it waits in Slurm → its job not active any more (all states polled every 10 ms).
"""

from __future__ import annotations

import asyncio
import random
import time

from benchmarks import kube
from benchmarks.report import Row, spread, summary
from benchmarks.slurm import StatePoll, live
from benchmarks.world import World, say

PATIENCE = 60.0  # seconds


async def cancelled_job(world: World, count: int) -> Row:
    say(f"scancel of {count} running pods' jobs, one by one")
    names = kube.new_names(count, "cancel")
    await world.kube.create(names, kube.OUR_SCHEDULER)
    await world.log.reached(names, "running", PATIENCE)
    taken = []
    for name in names:
        await asyncio.sleep(0.2 + random.random())
        begun = time.monotonic()
        await world.slurm.cancel(world.log.jobs[name])
        if not await world.log.reached([name], "deleting", PATIENCE):
            raise SystemExit(f"benchmark: pod {name} is not deleted {PATIENCE:.0f} s after its job's scancel")
        taken.append(world.log.moments[name]["deleting"] - begun)
    await world.reset()
    return Row(
        "scancel → pod's deletionTimestamp", spread(taken, "p50", "max"), "", "", "≤1 s", summary(taken)
    )


async def deleted_pod(world: World, count: int) -> Row:
    say(f"deletion of {count} pods that wait in Slurm, one by one")
    blocker = await world.slurm.block(world.nodes)
    taken = []
    async with StatePoll(world.slurm) as poll:
        for name in kube.new_names(count, "waiting"):
            known = set(poll.states)
            await world.kube.create([name], kube.OUR_SCHEDULER)
            job = await _new_pending(poll, known)
            await asyncio.sleep(0.2 + random.random())
            begun = time.monotonic()
            await world.kube.delete(name)
            taken.append(await _ended(poll, job) - begun)
    await world.slurm.cancel(blocker)
    await world.reset()
    return Row(
        "waiting pod deleted → job not active", spread(taken, "p50", "max"), "", "", "≤1 s", summary(taken)
    )


async def _ended(poll: StatePoll, job: int) -> float:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if job in poll.ended:
            return poll.ended[job]
        await asyncio.sleep(0.005)
    raise SystemExit(f"benchmark: job {job} is active {PATIENCE:.0f} s after its pod was deleted")


async def _new_pending(poll: StatePoll, known: set[int]) -> int:
    """A failed attempt on the fast path leaves a FAILED record beside it; that one doesn't count."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        for job, state in poll.states.items():
            if job not in known and live(state):
                return job
        await asyncio.sleep(0.005)
    raise SystemExit("benchmark: no job appears in Slurm for a new pod")
