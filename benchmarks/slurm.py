"""Slurm as a user of slurmrestd sees it: allocate, submit, cancel, and the states of all jobs.

In: slurmrestd's URL and a token. Out: job ids, states, and moments on time.monotonic. The jobs look like the bridge's
placeholders: EXTERNAL_JOB, one CPU, 1 GiB, a comment of the same length.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

PARTITION = "slurm-bridge"
ENDED = frozenset(
    {"CANCELLED", "COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE"}
)
COMMENT = "x" * 320  # as long as the bridge's mark
TOP_PRIORITY = 4294967290


class _Job(msgspec.Struct):
    id: str = msgspec.field(name="job_id")
    state: list[str] = []


class _States(msgspec.Struct):
    jobs: list[_Job]


_states = msgspec.json.Decoder(_States).decode
States = Mapping[int, frozenset[str]]


class Slurm:
    def __init__(self, url: str, api: str, token_file: Path) -> None:
        self._base = f"{url}/slurm/{api}"
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=64),
            headers={
                "X-SLURM-USER-TOKEN": token_file.read_text().strip(),
                "Content-Type": "application/json",
            },
            timeout=aiohttp.ClientTimeout(total=60),
        )

    async def close(self) -> None:
        await self._http.close()

    async def _raw(self, method: str, path: str, body: object = None) -> bytes:
        raw = None if body is None else json.dumps(body)
        try:
            async with self._http.request(method, f"{self._base}/{path}", data=raw) as reply:
                data = await reply.read()
        except (
            aiohttp.ClientResponseError
        ) as error:  # slurmrestd doubles its refusals, which aiohttp can't read
            raise RuntimeError(f"{method} {path}: {error.message[:300]}") from None
        if reply.status != 200:
            raise RuntimeError(f"{method} {path}: {reply.status} {data[:300]!r}")
        return data

    async def call(self, method: str, path: str, body: object = None) -> Any:
        return json.loads(await self._raw(method, path, body))

    async def nodes(self) -> dict[str, dict[str, Any]]:
        """Every record, as Slurm tells it; half a megabyte for a hundred."""
        return {node["name"]: node for node in (await self.call("GET", "nodes/"))["nodes"]}

    async def node(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = (await self.call("GET", f"node/{name}"))["nodes"][0]
        return found

    async def delete_node(self, name: str) -> None:
        await self._raw("DELETE", f"node/{name}")

    async def release(self) -> str:
        return str((await self.call("GET", "ping/"))["meta"]["slurm"]["release"])

    async def states(self, job: int | None = None) -> States:
        path = "jobs/state/" if job is None else f"jobs/state/?job_id={job}"
        return {int(j.id): frozenset(j.state) for j in _states(await self._raw("GET", path)).jobs}

    async def allocate(self, **more: Any) -> int:
        """Placed when the call returns."""
        return await self._ask("job/allocate", {**_job(), "immediate": True, **more})

    async def submit(self, **more: Any) -> int:
        return await self._ask("job/submit", {**_job(), **more})

    async def _ask(self, path: str, job: Mapping[str, Any]) -> int:
        answer = await self.call("POST", path, {"job": job})
        if not answer.get("job_id"):
            raise RuntimeError(f"{path}: no job: {answer.get('errors')} {answer.get('warnings')}")
        return int(answer["job_id"])

    async def block(self, nodes: int, *, but: str = "") -> int:
        """A job that holds so many whole nodes, all except `but`."""
        more: dict[str, Any] = {"excluded_nodes": [but]} if but else {}
        return await self.allocate(
            minimum_nodes=nodes, maximum_nodes=nodes, tasks=nodes, shared=["none"], **more
        )

    async def cancel(self, job: int) -> None:
        await self._raw("DELETE", f"job/{job}")

    async def cancel_all(self, jobs: Iterable[int]) -> None:
        ids = [str(job) for job in jobs]
        if ids:
            await self._raw("DELETE", "jobs/", {"jobs": ids, "signal": "KILL"})

    async def until(self, true: Callable[[States], bool], within: float, *, every: float = 0.05) -> bool:
        """Polls all states until `true` of them."""
        end = time.monotonic() + within
        while not true(await self.states()):
            if time.monotonic() > end:
                return False
            await asyncio.sleep(every)
        return True

    async def running_since(self, job: int, within: float = 60.0, every: float = 0.01) -> float:
        """Polls this one job; the moment at which the answer that says RUNNING had come."""
        end = time.monotonic() + within
        while not granted((await self.states(job)).get(job, frozenset())):
            if time.monotonic() > end:
                raise RuntimeError(f"job {job} does not run after {within:.0f} s")
            await asyncio.sleep(every)
        return time.monotonic()


def _job() -> dict[str, Any]:
    return {
        "name": "bench",
        "partition": PARTITION,
        "flags": ["EXTERNAL_JOB"],
        "minimum_nodes": 1,
        "maximum_nodes": 1,
        "tasks": 1,
        "cpus_per_task": 1,
        "memory_per_node": {"set": True, "infinite": False, "number": 1024},
        "admin_comment": COMMENT,
    }


def granted(state: frozenset[str]) -> bool:
    """As the design means it: RUNNING and not CONFIGURING."""
    return "RUNNING" in state and "CONFIGURING" not in state


def live(state: frozenset[str]) -> bool:
    return not state & ENDED


async def many(count: int, width: int, one: Callable[[], Awaitable[int]]) -> tuple[list[int], float, float]:
    """`one` so many times with `width` under way. Job ids, first moment, last moment."""
    queue = iter(range(count))
    jobs: list[int] = []

    async def worker() -> None:
        for _ in queue:
            jobs.append(await one())

    begun = time.monotonic()
    await asyncio.gather(*(worker() for _ in range(width)))
    return jobs, begun, time.monotonic()


class StatePoll:
    """All job states every 10 ms.

    `listed`, `running` and `ended` of a job: when the question was sent whose answer first said so. `told`: seconds
    from then until Slurm had also answered a read of the job, sent at once when it was seen RUNNING (only if `read`).
    Both answers wait until slurmctld's scheduler has ended its pass over all waiting jobs.
    """

    def __init__(self, slurm: Slurm, every: float = 0.01, *, read: bool = False) -> None:
        self._slurm, self._every, self._read = slurm, every, read
        self._reads: list[asyncio.Task[None]] = []
        self.told: dict[int, float] = {}
        self._task: asyncio.Task[None] | None = None
        self.running: dict[int, float] = {}
        self.listed: dict[int, float] = {}
        self.ended: dict[int, float] = {}
        self.states: States = {}

    async def __aenter__(self) -> StatePoll:
        """After the first poll: what was there before is known."""
        await self._look()
        self._task = asyncio.create_task(self._poll())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, *self._reads, return_exceptions=True)

    async def _poll(self) -> None:
        while True:
            asked = await self._look()
            await asyncio.sleep(max(0.0, self._every - (time.monotonic() - asked)))

    async def _look(self) -> float:
        asked = time.monotonic()
        self.states = await self._slurm.states()
        for job, state in self.states.items():
            self.listed.setdefault(job, asked)
            if granted(state):
                if self._read and job not in self.running and self._task is not None:
                    self._reads.append(asyncio.create_task(self._ask_for_nodes(job, asked)))
                self.running.setdefault(job, asked)
            elif not live(state):
                self.ended.setdefault(job, asked)
        return asked

    async def _ask_for_nodes(self, job: int, asked: float) -> None:
        await self._slurm.call("GET", f"job/{job}")
        self.told[job] = time.monotonic() - asked
