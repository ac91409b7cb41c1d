"""A gang: one Job whose pods start together, from `kubectl apply` to the last binding.

The limit is what both sides need alone, one after the other: the same Job through the Job controller and a stock
kube-scheduler, and one job of as many tasks through slurmrestd (allocate immediate).
"""

from __future__ import annotations

import time
from typing import Any

from benchmarks import kube
from benchmarks.kube import NAMESPACE, OPTION
from benchmarks.report import Row, seconds, spread, summary, times
from benchmarks.stack import LIMIT_SCHEDULER
from benchmarks.world import World, say

JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
PATIENCE = 120.0


async def measure(world: World, pods: int, count: int) -> list[Row]:
    say(f"{count} gangs of {pods} pods, then their limits")
    through = [await _bound(world, pods, kube.OUR_SCHEDULER) for _ in range(count)]
    async with world.without_bridge():
        alone = [await _bound(world, pods, LIMIT_SCHEDULER) for _ in range(count)]
        placed = [await _allocated(world, pods) for _ in range(count)]
    await world.reset()
    p50, limit = summary(through)["p50"], summary(alone)["p50"] + summary(placed)["p50"]
    return [
        Row(
            f"apply → {pods} pods bound",
            spread(through, "p50", "max"),
            f"kube-scheduler + allocate: p50 {seconds(limit)} s",
            f"{times(p50, limit)} ({p50 - limit:+.2f} s)",
            values=summary(through),
        ),
        Row("  limit: the same Job, kube-scheduler", "", spread(alone, "p50", "max"), values=summary(alone)),
        Row(
            f"  limit: Slurm, {pods} tasks at once", "", spread(placed, "p50", "max"), values=summary(placed)
        ),
    ]


async def _bound(world: World, pods: int, scheduler: str) -> float:
    (name,) = kube.new_names(1, "gang")
    begun = time.monotonic()
    await world.kube.call("POST", JOBS, _job(name, pods, scheduler))
    if not await world.log.bound_of(f"{name}-", pods, PATIENCE):
        raise SystemExit(f"benchmark: the {pods} pods of Job {name} are not bound after {PATIENCE:.0f} s")
    last = max(world.log.moments[pod]["bound"] for pod in world.log.bound(f"{name}-"))
    await world.kube.call("DELETE", f"{JOBS}/{name}?propagationPolicy=Background")
    await world.reset()
    return last - begun


async def _allocated(world: World, pods: int) -> float:
    begun = time.monotonic()
    job = await world.slurm.allocate(tasks=pods, maximum_nodes=pods)
    taken = time.monotonic() - begun
    await world.slurm.cancel(job)
    return taken


def _job(name: str, pods: int, scheduler: str) -> dict[str, Any]:
    body = kube.pod(name, scheduler, {})
    gang = {f"{OPTION}gang": "true"} if scheduler == kube.OUR_SCHEDULER else {}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "annotations": gang},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "completionMode": "Indexed",
            "template": {"metadata": {}, "spec": {**body["spec"], "restartPolicy": "Never"}},
        },
    }
