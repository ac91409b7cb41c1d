"""Leaders under random schedules of accidents: never two names at once, and in the end one process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from bridge.core.lease import DURATION
from bridge.errors import UnknownOutcome, Unreachable
from bridge.kube.client import KubeClient
from bridge.kube.leader import Leader
from bridge.kube.wire import Reply
from tests.sim import loop
from tests.worlds.kube import KubeWorld

EPOCH = 1_700_000_000.0
TROUBLES = ("refused", "lost", "swallowed", "slow", "answered late", "carried out late")
MOVES = ("trouble", "trouble", "fine", "start", "kill", "stop", "edit", "delete")


class Line:
    """One process's connection to the API server, with troubles of its own."""

    def __init__(self, world: KubeWorld) -> None:
        self._world = world
        self._late: set[asyncio.Task[Reply]] = set()
        self.trouble = ""

    async def request(self, *words: str, timeout: float, **rest: Any) -> Reply:
        async def carry_out(after: float = 0.0) -> Reply:
            await asyncio.sleep(after)
            return await self._world.request(*words, timeout=timeout, **rest)

        match self.trouble:
            case "refused":
                raise Unreachable("refused")
            case "lost":
                await carry_out()
            case "slow":
                return await carry_out(after=0.96 * timeout)
            case "answered late":
                reply = await carry_out()
                await asyncio.sleep(0.96 * timeout)
                return reply
            case "carried out late":
                self._late.add(asyncio.create_task(carry_out(after=timeout + 4.0)))
                await asyncio.sleep(timeout)
            case "swallowed":
                await asyncio.sleep(timeout)
            case _:
                return await carry_out()
        raise UnknownOutcome(self.trouble)

    def stream(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def close(self) -> None:
        for task in self._late:
            task.cancel()
        await asyncio.gather(*self._late, return_exceptions=True)


@dataclass
class Process:
    line: Line
    leader: Leader
    task: asyncio.Task[None]

    async def stop(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task
        await self.line.close()

    async def kill(self) -> None:
        """It doesn't even release."""
        self.line.trouble = "refused"
        await self.stop()


class Play:
    def __init__(self, seed: int) -> None:
        self._time = asyncio.get_running_loop().time
        self.chance = random.Random(seed)
        self.world = KubeWorld(clock=self._time, now=self.wall)
        self.processes: list[Process] = []
        self.story: list[str] = [f"seed {seed}"]

    def start(self, name: str) -> None:
        line = Line(self.world)
        leader = Leader(KubeClient(line), "default", "l", name, clock=self._time, now=self.wall)
        self.processes.append(Process(line, leader, asyncio.create_task(leader.run())))

    def wall(self) -> float:
        """A clock that jumps: nobody may trust it."""
        return EPOCH + self._time() + self.chance.choice((0.0, 0.0, -7200.0, 86_400.0))

    def leaders(self) -> list[str]:
        return [process.leader.identity for process in self.processes if process.leader.leading]

    @property
    def lease(self) -> Any:
        return self.world.get("leases", "l")

    async def move(self) -> None:
        """Something happens, and then some time passes."""
        what = self.chance.choice(MOVES)
        one = self.chance.choice(self.processes)
        match what:
            case "trouble":
                one.line.trouble = what = self.chance.choice(TROUBLES)
            case "fine":
                one.line.trouble = ""
            case "start" if (
                len(self.processes) < 5 and self.lease
            ):  # who sees no Lease at its start asks nobody
                self.start(self.chance.choice("abc"))
            case "kill" | "stop" if len(self.processes) > 1:
                self.processes.remove(one)
                await (one.kill() if what == "kill" else one.stop())
            case "edit" if self.lease:
                note = {"metadata": {"annotations": {"example.com/note": str(self.chance.random())}}}
                self.world.storage.patch("leases", "default", "l", note)
            # Who never saw a Lease believes that it is the first: the one gap, up to the leader's next renewal.
            case "delete" if self.lease and all(process.leader.holder for process in self.processes):
                self.world.storage.delete("leases", "default", "l", {})
        self.story.append(f"{self._time():.1f} {what} {one.leader.identity}")
        await self.watch(self.chance.uniform(0.1, 4.0))

    async def watch(self, seconds: float) -> None:
        until = self._time() + seconds
        while self._time() < until:
            await asyncio.sleep(0.1)
            assert len(set(self.leaders())) <= 1, f"{self.leaders()} lead: {self.story}"

    async def end(self) -> None:
        for process in self.processes:
            await process.kill()


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_two_names_never_lead_and_in_the_end_one_process_does(seed: int) -> None:
    async def scene() -> None:
        play = Play(seed)
        for name in "aab":
            play.start(name)
        for _ in range(60):
            await play.move()
        for process in play.processes:
            process.line.trouble = ""
        await play.watch(2 * DURATION)
        assert len(final := play.leaders()) == 1, play.story
        for _ in range(60):
            await play.watch(1.0)
            assert play.leaders() == final, play.story
        await play.end()

    _run(scene())


@pytest.mark.parametrize("trouble", ["slow", "answered late"])
def test_a_healthy_leader_outlives_an_api_server_that_is_slow_for_ever(trouble: str) -> None:
    async def scene() -> None:
        play = Play(0)
        play.start("a")
        await asyncio.sleep(1.0)
        play.processes[0].line.trouble = trouble
        for _ in range(600):
            await asyncio.sleep(0.1)
            assert play.leaders() == ["a"]
        assert play.lease["spec"]["leaseTransitions"] == 0
        await play.end()

    _run(scene())


def _run(scene: Coroutine[Any, Any, None]) -> None:
    loop.run(scene)
