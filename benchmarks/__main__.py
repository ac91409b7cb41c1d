"""The command line: which measurements, in which order, and where the results go."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import burst, ends, gangs, grants, nodes, single, stack
from benchmarks.report import Report
from benchmarks.world import World, connect, say

SECTIONS = ("burst", "single", "gangs", "grants", "ends")
NODES = "nodes"  # a section with a stack of its own: the bridge registers the nodes
SLOWEST = 300  # pods of the run at half the peak rate, at most


def main() -> None:
    asked = _arguments()
    say(f"stack {asked.name}: {asked.nodes} external nodes")
    if NODES in asked.only:
        found = stack.up(asked.name, 0, asked.min_job_age, nodes.SETTINGS)
    else:
        found = stack.up(asked.name, asked.nodes, asked.min_job_age)
    report = Report({"date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")})
    try:
        asyncio.run(_measure(found, report, asked))
    finally:  # what was measured before a failure is shown, too
        print(report.text(), flush=True)
        if asked.json:
            report.write(asked.json)
        if not asked.keep:
            stack.down(found)


async def _measure(found: stack.Stack, report: Report, asked: argparse.Namespace) -> None:
    async with connect(found) as world:
        report.facts.update(await _facts(world, asked))
        await world.reset()
        await world.warm_up()
        if NODES in asked.only:
            report.facts["nodes"] = f"{world.nodes} and {asked.nodes} that the bridge registers"
            report.add(f"{asked.nodes} external nodes", *await nodes.measure(world, asked.nodes, asked.ends))
            return
        peak = asked.peak
        for count in asked.pods if "burst" in asked.only else ():
            peak = await _burst(world, report, count, asked)
        if "single" in asked.only:
            report.add("One pod on an idle cluster", *await single.measure(world, asked.singles))
        for pods in asked.gangs if "gangs" in asked.only else ():
            report.add("Gangs", *await gangs.measure(world, pods, asked.ends))
        if "grants" in asked.only:
            rows = await grants.at_half_rate(world, min(SLOWEST, asked.pods[-1]), peak)
            report.add("Pods arriving at half the peak rate", *rows)
        if "ends" in asked.only:
            report.add("Ends", await ends.cancelled_job(world, asked.ends))
            report.add("Ends", await ends.deleted_pod(world, asked.ends))
        if asked.waiting:
            rows = await grants.with_waiting(world, asked.waiting, asked.ends)
            report.add(f"{asked.waiting} pods waiting in Slurm", *rows)
        report.facts["jobs that outlived their pods by a minute"] = str(world.leaked)


async def _burst(world: World, report: Report, count: int, asked: argparse.Namespace) -> float:
    bursts: list[burst.Burst] = []
    limits = burst.Limits()
    for number in range(asked.repeat):
        bursts.append(await burst.through_bridge(world, count))
        async with world.without_bridge() if asked.limits else nullcontext():
            if asked.limits:
                await burst.limits(world, count, limits, stock=number == 0)
    report.add(f"Burst of {count} pods", *burst.rows(count, bursts, limits))
    say(f"burst of {count}: {bursts[-1].rate:.1f} pods/s")
    return burst.middle(each.rate for each in bursts)


async def _facts(world: World, asked: argparse.Namespace) -> dict[str, str]:
    return {
        "cores": f"{os.cpu_count()} ({_processor()})",
        "Kubernetes": await world.kube.version(),
        "Slurm": await world.slurm.release(),
        "Python": platform.python_version(),
        "nodes": str(world.nodes),
        "MinJobAge": f"{asked.min_job_age} s",
        "repeats": str(asked.repeat),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks/run", description="Measures the bridge and its limits on a local stack of its own."
    )
    add = parser.add_argument
    add(
        "--pods",
        type=_numbers,
        default=[100, 300, 1000],
        metavar="N,N",
        help="sizes of bursts (100,300,1000)",
    )
    add("--nodes", type=int, default=100, help="external nodes (100)")
    add(
        "--waiting", type=int, default=0, metavar="N", help="also with so many pods waiting in Slurm, say 900"
    )
    add("--repeat", type=int, default=1, metavar="N", help="bursts and limits so often, for medians (1)")
    add(
        "--only",
        type=_sections,
        default=list(SECTIONS),
        metavar="S,S",
        help=f"sections: {','.join(SECTIONS)}; or {NODES}, alone, with --nodes 1000",
    )
    add("--quick", action="store_true", help="one burst of 100 and few repetitions: does everything work?")
    add("--no-limits", dest="limits", action="store_false", help="bursts without their limits, for tuning")
    add("--peak", type=float, default=40.0, metavar="RATE", help="pods/s if no burst was measured (40)")
    add("--json", type=Path, metavar="FILE", help="all values, for machines")
    add("--keep", action="store_true", help="leave the stack up")
    add("--name", default="bench", help="of the stack (bench)")
    add("--min-job-age", type=int, default=10, metavar="SECONDS", help="Slurm's MinJobAge (10)")
    asked = parser.parse_args()
    asked.singles, asked.ends = (5, 3) if asked.quick else (20, 10)
    asked.pods = [100] if asked.quick else asked.pods
    asked.gangs = [16] if asked.quick else [16, 128]
    return asked


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _sections(text: str) -> list[str]:
    chosen = text.split(",")
    unknown = [name for name in chosen if name and name not in (*SECTIONS, NODES)]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]}: the sections are {', '.join((*SECTIONS, NODES))}")
    if NODES in chosen and len(chosen) > 1:
        raise argparse.ArgumentTypeError(f"{NODES} stands alone: its stack is another one")
    return chosen


if __name__ == "__main__":
    main()
