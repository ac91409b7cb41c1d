"""What a stretch of time cost, read before and after it.

- CPU and memory: /proc of the stack's own processes, and of the whole machine, so that other people's load shows.
- Kubernetes requests: the API server's audit log, one line a request with its user; leases and watches don't count.
- slurmrestd requests and bytes, groups looked at, grants to bindings: the bridge's own /metrics.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
import urllib.request
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.stack import Stack

BRIDGE_USER = "system:serviceaccount:slurm:slurm-bridge"
SCHEDULER_USER = "system:serviceaccount:slurm:slurm-bridge-scheduler"
WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
STALL_WINDOW = 10.0  # seconds that the bridge's stall gauge looks back
GRANT_TO_BOUND = "slurm_bridge_grant_to_bound_seconds"

_TICK = os.sysconf("SC_CLK_TCK")
_SERIES = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')

Labels = frozenset[tuple[str, str]]
Metrics = Mapping[tuple[str, Labels], float]


# --- processes ------------------------------------------------------------------------------------


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def rss_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def machine_busy() -> float:
    """CPU seconds of everybody since boot."""
    user, nice, system, _, _, irq, softirq, *_ = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + irq + softirq) / _TICK


# --- the audit log --------------------------------------------------------------------------------


@dataclass
class Audit:
    """Requests from the moment of its making on."""

    path: Path
    offset: int = field(init=False)

    def __post_init__(self) -> None:
        self.offset = self.path.stat().st_size

    def writes(self) -> dict[str, Counter[str]]:
        """user → "patch pods/status" → how often; a refused one has its HTTP status behind it."""
        found: dict[str, Counter[str]] = {}
        with self.path.open("rb") as log:
            log.seek(self.offset)
            for line in log:
                event = _whole(line)
                about = event.get("objectRef") or {}
                if event.get("stage") != "ResponseComplete" or event.get("verb") not in WRITES:
                    continue
                if about.get("resource") in (None, "leases", "tokenreviews", "subjectaccessreviews"):
                    continue
                what = f"{event['verb']} {about['resource']}"
                what += f"/{about['subresource']}" if about.get("subresource") else ""
                code = (event.get("responseStatus") or {}).get("code", 0)
                what += f" !{code}" if code >= 400 else ""
                found.setdefault(event["user"]["username"], Counter())[what] += 1
        return found


def _whole(line: bytes) -> dict[str, Any]:
    try:
        event: dict[str, Any] = json.loads(line)
    except ValueError:  # the last line is being written
        return {}
    return event


# --- the bridge's metrics -------------------------------------------------------------------------


def parse(text: str) -> Metrics:
    found: dict[tuple[str, Labels], float] = {}
    for line in text.splitlines():
        match = _SERIES.match(line)
        if match is not None:
            found[match[1], frozenset(_LABEL.findall(match[2] or ""))] = float(match[3])
    return found


async def bridge_metrics(stack: Stack) -> Metrics:
    try:
        return parse(await asyncio.to_thread(_fetch, f"{stack.bridge_url}/metrics"))
    except OSError as error:
        raise SystemExit(
            f"benchmark: the bridge does not answer {stack.bridge_url}/metrics: {error}"
        ) from error


def _fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as reply:
        return str(reply.read().decode())


def by_label(metrics: Metrics, name: str, *labels: str) -> dict[str, float]:
    """Sums over all labels but these."""
    found: dict[str, float] = {}
    for (series, pairs), value in metrics.items():
        if series == name:
            values = dict(pairs)
            key = " ".join(values.get(label, "") for label in labels)
            found[key] = found.get(key, 0.0) + value
    return found


def difference(after: Metrics, before: Metrics) -> Metrics:
    return {key: value - before.get(key, 0.0) for key, value in after.items()}


def gauge(metrics: Metrics, name: str) -> float:
    return metrics.get((name, frozenset()), 0.0)


async def longest_stall(stack: Stack, work: asyncio.Task[None] | None = None) -> float:
    """The gauge holds the longest stall of the last full 10 s: read every 9 s until `work` is done, and once after."""
    worst = 0.0
    while work is not None and not work.done():
        await asyncio.wait({work}, timeout=STALL_WINDOW - 1)
        worst = max(worst, gauge(await bridge_metrics(stack), "slurm_bridge_loop_stall_seconds"))
    await asyncio.sleep(STALL_WINDOW + 0.5)
    return max(worst, gauge(await bridge_metrics(stack), "slurm_bridge_loop_stall_seconds"))


@dataclass(frozen=True)
class Histogram:
    """Of one stretch: upper bound → how many at or below it."""

    buckets: tuple[tuple[float, float], ...]

    @property
    def count(self) -> float:
        return self.buckets[-1][1] if self.buckets else 0.0

    def quantile(self, share: float) -> float:
        """Interpolated within its bucket; nan without observations."""
        wanted, below, low = share * self.count, 0.0, 0.0
        for bound, total in self.buckets:
            if total >= wanted and total > below:
                high = bound if bound != float("inf") else low
                return low + (high - low) * (wanted - below) / (total - below)
            below, low = total, bound
        return float("nan")


def histogram(metrics: Metrics, name: str) -> Histogram:
    bounds = by_label(metrics, f"{name}_bucket", "le")
    return Histogram(tuple(sorted((float(bound), count) for bound, count in bounds.items())))


# --- one stretch ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    seconds: float
    cpu: Mapping[str, float]  # part → CPU seconds; "benchmark" is this process
    others: float  # CPU seconds of what is not part of the stack
    writes: Mapping[str, Counter[str]]
    metrics: Metrics  # what the bridge's counters moved by; empty without the bridge


class Meter:
    """`await begin()`, the work, `await end()`. Without `bridge` the bridge's metrics are left out."""

    def __init__(self, stack: Stack, *, bridge: bool = True) -> None:
        self._stack, self._bridge = stack, bridge

    async def begin(self) -> None:
        self._pids = await asyncio.to_thread(lambda: self._stack.pids)
        self._metrics = await bridge_metrics(self._stack) if self._bridge else {}
        self._audit = Audit(self._stack.audit_log)
        self._cpu = self._read()
        self._busy, self._at = machine_busy(), time.monotonic()

    async def end(self) -> Cost:
        seconds = time.monotonic() - self._at
        cpu = {part: now - self._cpu[part] for part, now in self._read().items()}
        others = machine_busy() - self._busy - sum(cpu.values())
        metrics = (
            difference(await bridge_metrics(self._stack), self._metrics) if self._bridge else self._metrics
        )
        writes = await asyncio.to_thread(self._audit.writes)
        return Cost(seconds, cpu, max(0.0, others), writes, metrics)

    def _read(self) -> dict[str, float]:
        cpu = {part: cpu_seconds(pid) for part, pid in self._pids.items()}
        return {**cpu, "benchmark": time.process_time()}
