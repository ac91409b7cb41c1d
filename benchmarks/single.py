"""One pod at a time on an idle cluster, and what each side alone needs for the same.

- bridge: create → bound, on the fast path, and through Slurm's queue (an annotation that rules the fast path out);
- kube-scheduler alone: create → bound;
- Slurm alone: allocate immediate (the call itself), and submit → RUNNING (that job polled every 10 ms).

All have random pauses in between: Slurm's scheduler works in rhythms of a second.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping

from benchmarks import kube
from benchmarks.kube import OPTION
from benchmarks.report import Row, seconds, spread, summary, times
from benchmarks.stack import LIMIT_SCHEDULER
from benchmarks.world import World, say

QUEUED = {f"{OPTION}begin": "1"}  # may begin since 1970: changes nothing but the way
PATIENCE = 60.0


async def repeat(count: int, one: Callable[[], Awaitable[float]]) -> list[float]:
    taken = []
    for _ in range(count):
        await asyncio.sleep(0.3 + random.random())
        taken.append(await one())
    return taken


async def pod_bound(world: World, scheduler: str, annotations: Mapping[str, str]) -> float:
    (name,) = kube.new_names(1, "single")
    created = await world.kube.create([name], scheduler, annotations)
    if not await world.log.reached([name], "bound", PATIENCE):
        raise SystemExit(f"benchmark: pod {name} is not bound after {PATIENCE:.0f} s")
    taken = world.log.moments[name]["bound"] - created[name]
    await world.kube.delete(name)
    await world.log.reached([name], "gone", PATIENCE)
    return taken


async def allocate(world: World) -> float:
    begun = time.monotonic()
    job = await world.slurm.allocate()
    taken = time.monotonic() - begun
    await world.slurm.cancel(job)
    return taken


async def submit(world: World) -> float:
    begun = time.monotonic()
    job = await world.slurm.submit()
    taken = await world.slurm.running_since(job) - begun
    await world.slurm.cancel(job)
    return taken


async def measure(world: World, count: int) -> list[Row]:
    say(f"{count} single pods through the bridge, then {count} through Slurm's queue")
    fast = await repeat(count, lambda: pod_bound(world, kube.OUR_SCHEDULER, {}))
    slow = await repeat(count, lambda: pod_bound(world, kube.OUR_SCHEDULER, QUEUED))
    async with world.without_bridge():
        say(f"limits of single pods: {count} of kube-scheduler, allocate, submit each")
        bound = await repeat(count, lambda: pod_bound(world, LIMIT_SCHEDULER, {}))
        placed = await repeat(count, lambda: allocate(world))
        started = await repeat(count, lambda: submit(world))
    await world.reset()
    return [
        _row("create→bound, fast path", fast, "kube-scheduler + allocate", [bound, placed], "≤1 s"),
        _row(
            "create→bound through Slurm's queue", slow, "Slurm's submit→RUNNING", [started], "limit + 0.3 s"
        ),
        Row("  limit: kube-scheduler create→bound", "", spread(bound, "p50", "p95"), values=summary(bound)),
        Row("  limit: Slurm allocate immediate", "", spread(placed, "p50", "p95"), values=summary(placed)),
        Row("  limit: Slurm submit→RUNNING", "", spread(started, "p50", "p95"), values=summary(started)),
    ]


def _row(what: str, taken: list[float], name: str, parts: list[list[float]], budget: str) -> Row:
    limit = sum(summary(part)["p50"] for part in parts)
    p50 = summary(taken)["p50"]
    ratio = f"{times(p50, limit)} ({p50 - limit:+.2f} s)"
    return Row(
        what, spread(taken, "p50", "p95"), f"{name}: p50 {seconds(limit)} s", ratio, budget, summary(taken)
    )
