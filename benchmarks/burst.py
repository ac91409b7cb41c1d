"""N single pods at once, and how fast the two sides are without us.

- through the bridge: first create to last binding;
- limit A: the same pods through a stock kube-scheduler with our client settings and without the extender;
- limit B: the same jobs through slurmrestd, as immediate allocations (as the bridge asks) and as queued submits;
- A∥B: A and B at the same time. The budget is a share of the slower of these two.

For the limits the bridge is stopped.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from benchmarks import kube
from benchmarks.meters import (
    BRIDGE_USER,
    GRANT_TO_BOUND,
    SCHEDULER_USER,
    Cost,
    Meter,
    by_label,
    histogram,
    longest_stall,
    rss_mib,
)
from benchmarks.report import Row, percent, quantile, rate, seconds, spread, summary
from benchmarks.slurm import granted, many
from benchmarks.stack import LIMIT_SCHEDULER
from benchmarks.world import WIDTH, World, say

PATIENCE = 600.0  # seconds for a burst
LEGS = (("created", "nominated"), ("nominated", "released"), ("released", "bound"))


@dataclass(frozen=True)
class Burst:
    """One burst through the bridge."""

    rate: float
    latencies: list[float]
    legs: Mapping[str, list[float]]
    cost: Cost
    rss: tuple[float, float]  # MiB, before and after
    stall: float
    renominated: int


@dataclass
class Limits:
    """Per second, one value a run."""

    default_scheduler: list[float] = field(default_factory=list)
    scheduler: list[float] = field(default_factory=list)
    allocate: list[float] = field(default_factory=list)
    submit: list[float] = field(default_factory=list)
    scheduler_beside: list[float] = field(default_factory=list)
    allocate_beside: list[float] = field(default_factory=list)
    cost: Cost | None = None  # of the last A∥B


async def through_bridge(world: World, count: int) -> Burst:
    say(f"burst of {count} pods through the bridge")
    pid = world.stack.pids["bridge"]
    before, renominated = rss_mib(pid), world.log.renominated
    names = kube.new_names(count, "burst")
    meter = Meter(world.stack)
    await meter.begin()
    created: dict[str, float] = {}
    cost: list[Cost] = []

    async def work() -> None:
        created.update(await world.kube.create(names, kube.OUR_SCHEDULER))
        if not await world.log.reached(names, "bound", PATIENCE):
            bound = sum(world.log.at(name, "bound") is not None for name in names)
            raise SystemExit(f"benchmark: only {bound} of {count} pods bound after {PATIENCE:.0f} s")
        cost.append(await meter.end())

    task = asyncio.create_task(work())
    stall = await longest_stall(world.stack, task)
    await task
    moments = {name: {**world.log.moments[name], "created": created[name]} for name in names}
    last = max(found["bound"] for found in moments.values())
    legs = {f"{a} → {b}": [m[b] - m[a] for m in moments.values() if a in m and b in m] for a, b in LEGS}
    after = rss_mib(pid)
    await world.reset()
    return Burst(
        rate=count / (last - min(created.values())),
        latencies=[found["bound"] - found["created"] for found in moments.values()],
        legs=legs,
        cost=cost[0],
        rss=(before, after),
        stall=stall,
        renominated=world.log.renominated - renominated,
    )


async def scheduler_alone(world: World, count: int, scheduler: str) -> float:
    """Limit A: pods/s, first create to last binding."""
    names = kube.new_names(count, "limit")
    created = await world.kube.create(names, scheduler)
    if not await world.log.reached(names, "bound", PATIENCE):
        raise SystemExit(f"benchmark: {scheduler} did not bind {count} pods in {PATIENCE:.0f} s")
    last = max(world.log.moments[name]["bound"] for name in names)
    return count / (last - min(created.values()))


async def allocate_alone(world: World, count: int) -> float:
    """Limit B: jobs/s, first request to last answer; the job runs when the answer comes."""
    jobs, begun, ended = await many(count, WIDTH, world.slurm.allocate)
    states = await world.slurm.states()
    if not all(granted(states.get(job, frozenset())) for job in jobs):
        raise SystemExit("benchmark: an allocated job does not run, so limit B means nothing")
    return count / (ended - begun)


async def submit_alone(world: World, count: int) -> float:
    """Limit B for the queue: jobs/s, first submit to all RUNNING (all states polled every 50 ms)."""
    jobs, begun, _ = await many(count, WIDTH, world.slurm.submit)
    mine = set(jobs)
    done = await world.slurm.until(
        lambda states: all(job in states and granted(states[job]) for job in mine), PATIENCE
    )
    if not done:
        raise SystemExit(f"benchmark: {count} submitted jobs do not all run after {PATIENCE:.0f} s")
    return count / (time.monotonic() - begun)


async def limits(world: World, count: int, found: Limits, *, stock: bool) -> None:
    """All limits once, inside `world.without_bridge()`."""
    if stock:
        say(f"limit A, default-scheduler: {count} pods")
        found.default_scheduler.append(await scheduler_alone(world, count, "default-scheduler"))
        await world.reset()
    say(f"limit A: {count} pods through kube-scheduler alone")
    found.scheduler.append(await scheduler_alone(world, count, LIMIT_SCHEDULER))
    await world.reset()
    say(f"limit B: {count} jobs through slurmrestd alone")
    found.allocate.append(await allocate_alone(world, count))
    await world.reset()
    found.submit.append(await submit_alone(world, count))
    await world.reset()
    say(f"limit A∥B: {count} pods and {count} jobs side by side")
    meter = Meter(world.stack, bridge=False)
    await meter.begin()
    beside = await asyncio.gather(
        scheduler_alone(world, count, LIMIT_SCHEDULER), allocate_alone(world, count)
    )
    found.cost = await meter.end()
    found.scheduler_beside.append(beside[0])
    found.allocate_beside.append(beside[1])
    await world.reset()


# --- rows -----------------------------------------------------------------------------------------


def middle(values: Iterable[float]) -> float:
    return quantile(values, 0.5)


def rows(count: int, bursts: list[Burst], found: Limits) -> list[Row]:
    """Rates are the medians of all repeats; the rest is of the burst with the median rate."""
    burst = sorted(bursts, key=lambda each: each.rate)[(len(bursts) - 1) // 2]
    return [
        *(_against(burst, bursts, found) if found.allocate else [Row("create→bound", rate(burst.rate))]),
        Row(
            "create→bound of one pod",
            spread(burst.latencies, "p50", "p95", "max"),
            values=summary(burst.latencies),
        ),
        *_legs(burst),
        _grants(burst),
        *_writes(count, burst),
        *_rest(count, burst),
        _looks(count, burst),
        *_cpu(count, burst, found),
        _room(burst),
    ]


def _against(burst: Burst, bursts: list[Burst], found: Limits) -> list[Row]:
    beside = middle(found.scheduler_beside), middle(found.allocate_beside)
    values = {"pods_per_s": [each.rate for each in bursts], **vars(found), "cost": None}
    limit = f"A {rate(beside[0])} ∥ B {rate(beside[1])}"
    first = Row(
        "create→bound, against A∥B side by side", rate(burst.rate), limit, percent(burst.rate, min(beside)),
        "≥80 %", values,
    )  # fmt: skip
    alone = (
        ("A: kube-scheduler, our client settings", middle(found.scheduler)),
        ("A: default-scheduler (50 requests/s)", middle(found.default_scheduler)),
        (f"B: allocate immediate, {WIDTH} at once", middle(found.allocate)),
        ("B: submit until all RUNNING", middle(found.submit)),
    )
    return [first, *(Row(f"  {what}", "", rate(limit), percent(burst.rate, limit)) for what, limit in alone)]


def _legs(burst: Burst) -> list[Row]:
    return [
        Row(f"  {leg}", spread(taken, "p50", "p95", "max"), values=summary(taken))
        for leg, taken in burst.legs.items()
    ]


def _grants(burst: Burst) -> Row:
    found = histogram(burst.cost.metrics, GRANT_TO_BOUND)
    p50, p99 = found.quantile(0.5), found.quantile(0.99)
    return Row(
        "grant→bound (bridge's histogram)",
        f"p50 {seconds(p50)} · p99 {seconds(p99)} s",
        values={"n": found.count, "p50": p50, "p99": p99},
    )


def _writes(count: int, burst: Burst) -> list[Row]:
    found = []
    for who, user, budget in (("bridge", BRIDGE_USER, "≤3"), ("scheduler", SCHEDULER_USER, "")):
        writes: Counter[str] = burst.cost.writes.get(user, Counter())
        total = sum(writes.values()) / count
        values = {"per_pod": total, "by": dict(writes)}
        what = f"Kubernetes writes a pod: {who}"
        found.append(Row(what, f"{total:.2f}", "", "", budget, values, _most(writes, count)))
    return found


def _most(counts: Mapping[str, float], per: float) -> str:
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{what} {n / per:.2f}" for what, n in ordered if n)


def _rest(count: int, burst: Burst) -> list[Row]:
    found = []
    for what, series in (("requests", "request_seconds_count"), ("kB read", "bytes_total")):
        per = count * (1000 if what == "kB read" else 1)
        by = by_label(burst.cost.metrics, f"slurm_bridge_slurm_{series}", "route")
        total = sum(by.values()) / per
        values = {"per_pod": total, "by": by}
        found.append(Row(f"slurmrestd {what} a pod", f"{total:.2f}", values=values, note=_most(by, per)))
    return found


def _looks(count: int, burst: Burst) -> Row:
    """How often a group was decided on, and what kube-scheduler was told: once each is enough."""
    metrics = burst.cost.metrics
    looks = by_label(metrics, "slurm_bridge_decisions_total", "reason")
    answers = by_label(metrics, "slurm_bridge_extender_seconds_count", "verb", "answer")
    submits = by_label(metrics, "slurm_bridge_submits_total", "outcome")
    steps = by_label(metrics, "slurm_bridge_steps_total", "step", "result")
    return Row(
        "looks at a pod's group",
        f"{sum(looks.values()) / count:.2f}",
        values={"looks": looks, "extender": answers, "submits": submits, "steps": steps},
        note=f"{_most(looks, count)}; extender: {_most(answers, count)}; "
        f"steps: {_most(steps, count)}; nominated again {burst.renominated / count:.2f}",
    )


def _cpu(count: int, burst: Burst, found: Limits) -> list[Row]:
    """Of the whole stack; on few cores this is what decides."""
    total, note, values = _parts(count, burst.cost)
    limit, limit_note, _ = _parts(count, found.cost) if found.cost else (0.0, "", {})
    share = percent(total, limit)
    text = f"A∥B {limit:.1f}" if limit else ""
    first = Row("CPU seconds per 1,000 pods: all parts", f"{total:.1f}", text, share, "", values, note)
    return [first, Row("  the same of A∥B", "", text, note=limit_note)] if limit else [first]


def _parts(count: int, cost: Cost) -> tuple[float, str, dict[str, float]]:
    each = {part: 1000 * cpu / count for part, cpu in cost.cpu.items()}
    ordered = sorted(each.items(), key=lambda item: -item[1])
    others = cost.others / cost.seconds
    text = ", ".join(f"{part} {cpu:.1f}" for part, cpu in ordered if cpu >= 0.05)
    total = sum(each.values())
    return total, f"{text}; all others on this machine {others:.2f} cores", {**each, "others_cores": others}


def _room(burst: Burst) -> Row:
    before, after = burst.rss
    return Row(
        "bridge: memory before → after, longest stall",
        f"{before:.0f} → {after:.0f} MiB, {seconds(burst.stall)} s",
        values={"before": before, "after": after, "stall": burst.stall},
    )
