"""Where a job of the Slurm world goes: first fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from bridge.core import hostlist
from tests.worlds.slurm_jobs import WorldJob, WorldNode


def placed(
    job: WorldJob, nodes: Iterable[WorldNode], jobs: Iterable[WorldJob], *, empty: bool = False
) -> WorldJob | None:
    """First fit; None: no room. `empty`: as if nothing ran."""
    found: dict[str, tuple[int, ...]] = {}
    holders: dict[str, list[WorldJob]] = {}
    for other in jobs:
        for name in other.gpus if other.holds else ():
            holders.setdefault(name, []).append(other)
    if job.tasks is not None:
        return _packed(job, nodes, holders, empty=empty)
    for node in nodes:
        if len(found) == job.node_count:
            break
        if node.name in job.excluded or (job.required and node.name not in job.required):
            continue
        here = holders.get(node.name, [])
        free = sorted(set(range(node.gpus)) - {i for j in here for i in j.gpus[node.name]})
        room = (
            (empty or not node.closed)
            and not any(j.whole for j in here)
            and not (job.whole and here)
            and node.cpus - sum(j.busy_cpus(node.name) for j in here) >= job.cpus
            and node.memory - sum(j.memory_on(node.name) or node.memory for j in here)
            >= (job.memory or node.memory)
            and len(free) >= job.gpu_count
        )
        if room:
            found[node.name] = tuple(free if job.whole and node.gpus else free[: job.gpu_count])
    return replace(job, gpus=found) if len(found) == job.node_count else None


def _packed(
    job: WorldJob, nodes: Iterable[WorldNode], holders: dict[str, list[WorldJob]], *, empty: bool
) -> WorldJob | None:
    """The tasks of a gang, as many on each node as fit, or as its layout says."""
    assert job.tasks is not None
    gpus: dict[str, tuple[int, ...]] = {}
    held: dict[str, int] = {}
    for node in nodes:
        left = job.tasks - sum(held.values())
        wanted = job.layout.count(node.name) if job.layout else left
        if node.name in job.excluded or not wanted or (node.closed and not empty):
            continue
        if job.required and node.name not in job.required:
            continue
        here = holders.get(node.name, [])
        free = sorted(set(range(node.gpus)) - {i for j in here for i in j.gpus[node.name]})
        if any(j.whole for j in here) or (job.whole and here):
            continue
        cpus = node.cpus - sum(j.busy_cpus(node.name) for j in here)
        memory = node.memory - sum(j.memory_on(node.name) or node.memory for j in here)
        fit = [
            cpus // job.cpus,
            wanted if job.by_node and memory >= job.memory else memory // job.memory,
            wanted,
        ]
        if job.gpu_count:
            fit.append(len(free) // job.gpu_count)
        if job.whole or job.a_node:
            fit.append(job.a_node or 1)
        if count := max(0, min(fit)):
            held[node.name] = count
            gpus[node.name] = tuple(free if job.whole else free[: count * job.gpu_count])
    return replace(job, gpus=gpus, held=held) if sum(held.values()) == job.tasks else None


def all_placed(jobs: list[WorldJob], place: Callable[[WorldJob], WorldJob | None]) -> list[WorldJob] | None:
    """The components of one job, on nodes of their own, or None."""
    found: list[WorldJob] = []
    for job in jobs:
        others = {name for one in jobs if one is not job for name in one.required}
        taken = frozenset(others.union(*(one.nodes for one in found)))
        there = place(replace(job, excluded=job.excluded | taken)) if "PENDING" in job.states else None
        if there is None:
            return None
        found.append(replace(there, excluded=job.excluded))
    return found


def layout(body: dict[str, Any]) -> tuple[str, ...]:
    """A node for each task."""
    return tuple(name for text in body["required_nodes"] for name in hostlist.expand(text))
