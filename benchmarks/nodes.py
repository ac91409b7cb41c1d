"""Many nodes on both sides: how long they take to register, and what a restart, a word and a roll-out cost with them.

In: a stack with one hybrid node and no others; this module makes external nodes in Kubernetes, whose kubelets KWOK
plays, and the bridge registers them. Out: rows. Slurm's side is polled through slurmrestd every 10 ms, Kubernetes is
watched.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import kube
from benchmarks.meters import Cost, Meter, bridge_metrics, by_label, gauge, rss_mib
from benchmarks.nodewatch import NodeLog
from benchmarks.report import Row, percent, seconds, spread, summary, times
from benchmarks.slurm import many
from benchmarks.world import WIDTH, World, say

LABEL = "scheduler.slinky.slurm.net/external-node"
ADDRESS = "127.0.0.1"
SIZE = {"cpu": "64", "memory": "512000Mi", "nvidia.com/gpu": "8", "pods": "110"}
CONF = "State=EXTERNAL CPUs=64 RealMemory=512000 Gres=gpu:8 GresConf=count=8,name=gpu"
SETTLING = 20.0  # seconds: `nodeSettling` of the stack under test, 600 by default
PAUSE = 1.0  # seconds between two words
QUIET = 30.0  # seconds in which nothing changes
PATIENCE = 300.0  # seconds
SETTINGS = (
    f"nodeSettling={SETTLING:.0f}",
    "externalNodePartitions=[all]",
    f"externalNodeAddress={ADDRESS}",
)


async def measure(world: World, count: int, repeats: int) -> list[Row]:
    """The nodes stay when it is done."""
    names = [f"b{number:05d}" for number in range(count)]
    async with NodeLog(world.kube) as log:
        rows = [await _registered(world, log, names), *await _restarted(world, names), await _at_rest(world)]
        rows += await _words(world, log, names, repeats)
        rows += [await _rolled_out(world, names), await _grown(world, names)]
    return rows


# --- registration ---------------------------------------------------------------------------------


async def _registered(world: World, log: NodeLog, names: Sequence[str]) -> Row:
    say(f"limit: {len(names)} nodes by slurmrestd alone")
    limit = await _by_slurmrestd_alone(world, len(names))
    say(f"{len(names)} nodes: made in Kubernetes, then labelled for the bridge")
    await _each(names, lambda name: world.kube.call("POST", kube.NODES, _node(name)))
    await log.until(lambda: log.ready >= set(names), PATIENCE)
    begun = time.monotonic()
    label = {"metadata": {"labels": {LABEL: ""}}}
    await _each(names, lambda name: world.kube.patch_node(name, label))
    await _until(lambda: _all_marked(world, names), every=0.25)
    taken = time.monotonic() - begun
    return Row(
        f"{len(names)} nodes: labelled → all in Slurm",
        f"{seconds(taken)} s",
        f"POST new/node alone: {seconds(limit)} s",
        times(taken, limit),
        "<60 s",
        {"seconds": taken, "limit": limit},
    )


async def _by_slurmrestd_alone(world: World, count: int) -> float:
    """As many registrations, as many at a time as the bridge sends, without a bridge that looks."""
    numbers = iter(range(count))
    made: list[str] = []

    async def one() -> int:
        name = f"limit{next(numbers):05d}"
        await world.slurm.call(
            "POST", "new/node/", {"node_conf": f"NodeName={name} NodeAddr={ADDRESS} {CONF}"}
        )
        made.append(name)
        return 0

    await asyncio.to_thread(world.stack.part, "stop", "bridge")
    _, begun, over = await many(count, WIDTH, one)
    for name in made:
        await world.slurm.delete_node(name)
    await asyncio.to_thread(world.stack.part, "start", "bridge")
    await _until_leading(world)
    return over - begun


async def _all_marked(world: World, names: Sequence[str]) -> bool:
    records = await world.slurm.nodes()
    return all(name in records and '"bridge"' in records[name]["comment"] for name in names)


# --- a restart, and rest --------------------------------------------------------------------------


async def _restarted(world: World, names: Sequence[str]) -> list[Row]:
    say("a restart of the bridge, with a pod that came meanwhile")
    boots = {name: record["boot_time"] for name, record in (await world.slurm.nodes()).items()}
    await asyncio.to_thread(world.stack.part, "stop", "bridge")
    pods = kube.new_names(1, "restart")
    await world.kube.create(pods, kube.OUR_SCHEDULER)
    begun = time.monotonic()
    await asyncio.to_thread(world.stack.part, "start", "bridge")
    if not await world.log.reached(pods, "bound", PATIENCE):
        raise SystemExit(f"benchmark: no pod is bound {PATIENCE:.0f} s after a restart of the bridge")
    taken = world.log.moments[pods[0]]["bound"] - begun
    await _until_leading(world)
    metrics = await bridge_metrics(world.stack)
    again = by_label(metrics, "slurm_bridge_steps_total", "step").get("RegisterNode", 0.0)
    still = {name: record["boot_time"] for name, record in (await world.slurm.nodes()).items()}
    await world.reset()
    memory = rss_mib(world.stack.pids["bridge"])
    return [
        Row(
            "bridge started → a waiting pod bound",
            f"{seconds(taken)} s",
            budget="≤10 s",
            values={"seconds": taken},
        ),
        Row(
            "nodes that a restart registers again",
            f"{again:.0f}",
            budget="0",
            values={"again": again, "others": len(boots.items() ^ still.items())},
        ),
        Row("bridge's memory", f"{memory:.0f} MiB", budget="≤500 MB", values={"mib": memory}),
    ]


async def _at_rest(world: World) -> Row:
    say(f"{QUIET:.0f} s in which nothing changes")
    meter = Meter(world.stack)
    await meter.begin()
    await asyncio.sleep(QUIET)
    cost = await meter.end()
    asked = by_label(cost.metrics, "slurm_bridge_slurm_request_seconds_count", "route", "status")
    read = sum(by_label(cost.metrics, "slurm_bridge_slurm_bytes_total", "route").values())
    writes = sum(sum(what.values()) for user, what in cost.writes.items() if "slurm-bridge" in user)
    to_slurm = sum(n for what, n in asked.items() if not what.startswith("GET"))
    share, rate = cost.cpu["bridge"] / cost.seconds, read / 1024 / cost.seconds
    return Row(
        "at rest: writes to Kubernetes, to Slurm",
        f"{writes}, {to_slurm:.0f} in {QUIET:.0f} s",
        budget="0, 0",
        values={"kubernetes": writes, "slurm": to_slurm, "cpu": share, "bytes": read},
        note=f"bridge {percent(share, 1)} of a core, {rate:.0f} kB/s from slurmrestd: {_routes(asked, cost)}",
    )


def _routes(asked: dict[str, float], cost: Cost) -> str:
    often = sorted(((n, what) for what, n in asked.items() if n), reverse=True)
    return ", ".join(f"{what} {n / cost.seconds:.1f}/s" for n, what in often)


# --- one word -------------------------------------------------------------------------------------


BUDGETS = {
    "cordon → DRAIN": "≤1 s",
    "uncordon → UNDRAIN": "≤1 s",
    "drained in Slurm → condition and taint": "≤2 s",
    "resumed in Slurm → condition and taint gone": "≤2 s",
    "Node deleted → DRAIN": "≤1 s",
}


async def _words(world: World, log: NodeLog, names: Sequence[str], repeats: int) -> list[Row]:
    """Each on another node, one after the other."""
    say(f"cordons, drains and deletions of {repeats} nodes, one by one")
    found: dict[str, list[float]] = {what: [] for what in BUDGETS}
    for name in names[:: max(1, len(names) // repeats)][:repeats]:
        for what, taken in zip(BUDGETS, await _Words(world, log, name).all(), strict=True):
            found[what].append(taken)
    return [
        Row(what, spread(taken, "p50", "max"), "", "", BUDGETS[what], summary(taken))
        for what, taken in found.items()
    ]


@dataclass(frozen=True)
class _Words:
    """What is said of one node on one side, and seconds until the other side shows it."""

    world: World
    log: NodeLog
    name: str

    async def all(self) -> list[float]:
        found = [
            await self._drain_follows(self._cordon(True), True),
            await self._drain_follows(self._cordon(None), False),
            await self._shows({"state": ["DRAIN"], "reason": "benchmark"}, "Drained", tainted=True),
            await self._shows({"state": ["RESUME"]}, "Usable", tainted=False),
            await self._drain_follows(self.world.kube.call("DELETE", f"{kube.NODES}/{self.name}"), True),
        ]
        body = _node(self.name)
        body["metadata"]["labels"][LABEL] = ""
        await self._drain_follows(self.world.kube.call("POST", kube.NODES, body), False)
        return found

    def _cordon(self, on: bool | None) -> Awaitable[None]:
        return self.world.kube.patch_node(self.name, {"spec": {"unschedulable": on}})

    async def _drain_follows(self, said: Awaitable[Any], drained: bool) -> float:
        begun = time.monotonic()
        await said

        async def heard() -> bool:
            return ("DRAIN" in (await self.world.slurm.node(self.name))["state"]) is drained

        await _until(heard)
        taken = time.monotonic() - begun
        await asyncio.sleep(PAUSE)
        return taken

    async def _shows(self, said: dict[str, Any], reason: str, *, tainted: bool) -> float:
        begun = time.monotonic()
        await self.world.slurm.call("POST", f"node/{self.name}", said)
        at = await self.log.until(lambda: self.log.shown.get(self.name) == (reason, tainted), PATIENCE)
        await asyncio.sleep(PAUSE)
        return at - begun


# --- roll-outs ------------------------------------------------------------------------------------


async def _rolled_out(world: World, names: Sequence[str]) -> Row:
    """A DaemonSet's pods, each deleted and made again: every node has another size for a moment."""
    say("a DaemonSet of pods that are not ours is rolled out")
    await _each(names, lambda name: world.kube.call("POST", kube.PODS, _daemon(name, "a", cpus=2)))
    await _settled(world, names)
    async with _Drains(world, names) as most:
        for generation in ("b", "c"):

            async def renew(name: str, old: str = chr(ord(generation) - 1), new: str = generation) -> None:
                await world.kube.delete(f"daemon-{name}-{old}")
                await world.kube.call("POST", kube.PODS, _daemon(name, new, cpus=2))

            await _each(names, renew)
        await asyncio.sleep(2 * SETTLING)
    return Row(
        f"two roll-outs on {len(names)} nodes: drained",
        f"{most.most}",
        budget="0",
        values={"most": most.most},
    )


async def _grown(world: World, names: Sequence[str]) -> Row:
    """The same, and the pods ask for more from then on: every record is to be made anew."""
    say("the DaemonSet asks for more")

    async def renew(name: str) -> None:
        await world.kube.delete(f"daemon-{name}-c")
        await world.kube.call("POST", kube.PODS, _daemon(name, "d", cpus=16))

    allowed = max(1, len(names) // 20)
    begun = time.monotonic()
    async with _Drains(world, names) as most:
        await _each(names, renew)
        await asyncio.sleep(60.0)
        done = sum(record["cpus"] < 60 for record in (await world.slurm.nodes()).values())
    taken = time.monotonic() - begun
    return Row(
        "the same for good: drained at once",
        f"{most.most}",
        budget=f"≤{allowed} (5 %)",
        values={"most": most.most, "done": done, "seconds": taken},
        note=f"{done} records made anew after {taken:.0f} s, of which {SETTLING:.0f} s settling",
    )


class _Drains:
    """How many of these nodes were drained at once, at most, asked every half second."""

    def __init__(self, world: World, names: Sequence[str]) -> None:
        self._world, self._names = world, set(names)
        self.most = 0

    async def __aenter__(self) -> _Drains:
        self._task = asyncio.create_task(self._count())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _count(self) -> None:
        while True:
            records = await self._world.slurm.nodes()
            drained = sum(
                "DRAIN" in record["state"] for name, record in records.items() if name in self._names
            )
            self.most = max(self.most, drained)
            await asyncio.sleep(0.5)


async def _settled(world: World, names: Sequence[str]) -> None:
    """The first pods change the sizes, too: until that is over."""

    async def over() -> bool:
        records = await world.slurm.nodes()
        return all(name in records and "DRAIN" not in records[name]["state"] for name in names)

    await asyncio.sleep(2 * SETTLING)
    await _until(over, every=0.5)


# --- small things ---------------------------------------------------------------------------------


def _node(name: str) -> dict[str, Any]:
    labels = {"type": "kwok", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
    addresses = [{"type": "InternalIP", "address": ADDRESS}]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "status": {"capacity": SIZE, "allocatable": SIZE, "addresses": addresses},
    }


def _daemon(node: str, generation: str, *, cpus: int) -> dict[str, Any]:
    body = kube.pod(f"daemon-{node}-{generation}", "default-scheduler", {})
    amounts = {"cpu": str(cpus), "memory": "1Gi"}
    body["spec"] |= {"nodeName": node, "tolerations": [{"operator": "Exists"}]}
    body["spec"]["containers"][0]["resources"] = {"requests": amounts, "limits": amounts}
    return body


async def _each(names: Sequence[str], one: Callable[[str], Awaitable[Any]]) -> None:
    """`kube.CREATORS` under way at once."""
    queue = iter(names)

    async def worker() -> None:
        for name in queue:
            await one(name)

    await asyncio.gather(*(worker() for _ in range(kube.CREATORS)))


async def _until(true: Callable[[], Awaitable[bool]], every: float = 0.01) -> None:
    end = time.monotonic() + PATIENCE
    while not await true():
        if time.monotonic() > end:
            raise SystemExit(f"benchmark: not reached within {PATIENCE:.0f} s")
        await asyncio.sleep(every)


async def _until_leading(world: World) -> None:
    async def leads() -> bool:
        return gauge(await bridge_metrics(world.stack), "slurm_bridge_leading") == 1

    await _until(leads)
