"""From Slurm's grant to the binding, with pods arriving steadily, and the bridge's share of a pod's start.

- grant→bound at about half the peak rate: "RUNNING" by the benchmark's own poll of all states (every 10 ms, the moment
  the question was sent), "bound" by the watch; beside it the bridge's own histogram of the same pods.
- With hundreds of pods waiting in Slurm, against an idle cluster: create → the job is listed, plus RUNNING → bound, for
  probe pods that may start at once. What Slurm itself takes in between is left out.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from benchmarks import kube
from benchmarks.kube import OPTION
from benchmarks.meters import (
    BRIDGE_USER,
    GRANT_TO_BOUND,
    Histogram,
    Meter,
    by_label,
    histogram,
)
from benchmarks.report import Row, rate, seconds, spread, summary, times
from benchmarks.single import QUEUED, repeat
from benchmarks.slurm import StatePoll, States
from benchmarks.world import World, say

PATIENCE = 300.0
STEADY = 30.0  # seconds in which the cost of waiting is counted


async def at_half_rate(world: World, count: int, peak: float) -> list[Row]:
    pace = peak / 2
    say(f"{count} pods at {pace:.0f}/s: grant→bound")
    names = kube.new_names(count, "steady")
    meter = Meter(world.stack)
    await meter.begin()
    async with StatePoll(world.slurm) as poll:
        begun = time.monotonic()
        creates = []
        for number, name in enumerate(names):
            await asyncio.sleep(max(0.0, begun + number / pace - time.monotonic()))
            creates.append(asyncio.create_task(world.kube.create([name], kube.OUR_SCHEDULER)))
        created = {name: at for made in await asyncio.gather(*creates) for name, at in made.items()}
        await world.log.reached(names, "bound", PATIENCE)
        await asyncio.sleep(0.05)
    cost = await meter.end()
    bound = {name: world.log.moments[name]["bound"] for name in names}
    taken = [
        max(0.0, bound[name] - poll.running[world.log.jobs[name]])
        for name in names
        if world.log.jobs.get(name) in poll.running
    ]
    whole = [bound[name] - created[name] for name in names]
    await world.reset()
    return [
        Row("arriving", f"{count} pods at {rate(pace)}"),
        Row("grant→bound (10 ms state poll)", spread(taken, "p50", "p95", "p99"), "", "",
            "p50 ≤0.3, p99 ≤1 s", summary(taken)),
        _own(histogram(cost.metrics, GRANT_TO_BOUND)),
        Row("create→bound", spread(whole, "p50", "p95", "max"), values=summary(whole)),
    ]  # fmt: skip


def _own(found: Histogram) -> Row:
    p50, p99 = found.quantile(0.5), found.quantile(0.99)
    return Row(
        "grant→bound (bridge's histogram)",
        f"p50 {seconds(p50)} · p99 {seconds(p99)} s",
        values={"n": found.count, "p50": p50, "p99": p99},
    )


# --- many wait ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Share:
    """Of one probe pod: what is ours of its start."""

    submitted: float  # create → the job is listed
    bound: float  # RUNNING → bound
    told: float  # of that: until slurmctld tells which nodes the job has

    @property
    def total(self) -> float:
        return self.submitted + self.bound

    @property
    def ours(self) -> float:
        return self.submitted + max(0.0, self.bound - self.told)


async def _probe(world: World, poll: StatePoll, shares: list[Share]) -> float:
    (name,) = kube.new_names(1, "probe")
    created = (await world.kube.create([name], kube.OUR_SCHEDULER, QUEUED))[name]
    if not await world.log.reached([name], "bound", PATIENCE):
        raise SystemExit(f"benchmark: probe {name} is not bound after {PATIENCE:.0f} s")
    await asyncio.sleep(0.05)
    job = world.log.jobs[name]
    bound = world.log.moments[name]["bound"]
    told = poll.told.get(job, 0.0)
    shares.append(Share(poll.listed[job] - created, max(0.0, bound - poll.running[job]), told))
    await world.kube.delete(name)
    await world.log.reached([name], "gone", PATIENCE)
    return shares[-1].total


def _pending(states: States) -> int:
    return sum("PENDING" in state for state in states.values())


async def with_waiting(world: World, waiting: int, probes: int) -> list[Row]:
    say(f"the bridge's share of {probes} starts on an idle cluster")
    idle: list[Share] = []
    async with StatePoll(world.slurm, read=True) as poll:
        await repeat(probes, lambda: _probe(world, poll, idle))
    await world.reset()
    free = str(world.stack.facts["nodes"]["external"][-1])
    blocker = await world.slurm.block(world.nodes - 1, but=free)
    say(f"{waiting} pods that wait in Slurm (every node but {free} is taken)")
    # They must not get the free node, and the probes go before them.
    behind = {f"{OPTION}exclude-nodes": free, f"{OPTION}nice": "1000000"}
    begun = time.monotonic()
    await world.kube.create(kube.new_names(waiting, "queue"), kube.OUR_SCHEDULER, behind)
    all_wait = await world.slurm.until(lambda states: _pending(states) >= waiting, PATIENCE)
    if not all_wait:
        found = _pending(await world.slurm.states())
        raise SystemExit(f"benchmark: only {found} of {waiting} pods wait in Slurm after {PATIENCE:.0f} s")
    submitted = waiting / (time.monotonic() - begun)
    await asyncio.sleep(5)
    meter = Meter(world.stack)
    await meter.begin()
    await asyncio.sleep(STEADY)
    cost = await meter.end()
    busy: list[Share] = []
    say(f"the bridge's share of {probes} starts beside them")
    async with StatePoll(world.slurm, read=True) as poll:
        await repeat(probes, lambda: _probe(world, poll, busy))
    await world.slurm.cancel(blocker)
    await world.reset()
    reads = by_label(cost.metrics, "slurm_bridge_slurm_request_seconds_count", "route")
    writes = sum(cost.writes.get(BRIDGE_USER, {}).values())
    before, with_them = (summary([share.total for share in found]) for found in (idle, busy))
    return [
        Row(
            f"bridge's share of a start, {waiting} waiting",
            spread([s.total for s in busy], "p50", "max"),
            f"idle: {spread([s.total for s in idle], 'p50', 'max')}",
            times(with_them["p50"], before["p50"]),
            "≤1.5×",
            {"idle": [vars(s) for s in idle], "waiting": [vars(s) for s in busy]},
        ),
        Row("  without slurmctld's own wait", spread([s.ours for s in busy], "p50", "max"),
            f"idle: {spread([s.ours for s in idle], 'p50', 'max')}",
            times(summary([s.ours for s in busy])["p50"], summary([s.ours for s in idle])["p50"]), "≤1.5×"),
        Row("  create → job listed", spread([s.submitted for s in busy], "p50", "max"),
            spread([s.submitted for s in idle], "p50", "max")),
        Row("  RUNNING → bound", spread([s.bound for s in busy], "p50", "max"),
            spread([s.bound for s in idle], "p50", "max")),
        Row("    of that: until slurmctld tells the nodes", spread([s.told for s in busy], "p50", "max"),
            spread([s.told for s in idle], "p50", "max")),
        Row(f"submits of the {waiting}", rate(submitted)),
        Row("slurmrestd requests while they wait", rate(sum(reads.values()) / cost.seconds), "", "",
            "≤5/s job reads", {"by": reads, "seconds": cost.seconds},
            ", ".join(f"{route} {rate(n / cost.seconds)}" for route, n in reads.items() if n)),
        Row("Kubernetes writes a waiting pod and minute", f"{60 * writes / cost.seconds / waiting:.2f}", "", "",
            "≤1", dict(cost.writes.get(BRIDGE_USER, {}))),
        Row("bridge CPU while they wait", f"{100 * cost.cpu['bridge'] / cost.seconds:.1f} % of a core"),
    ]  # fmt: skip
