"""The guard: what people see of an open breaker, and the command that closes it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from bridge.core.breaker import PAUSE
from bridge.core.lease import LeaseRecord
from bridge.core.model import JobId, SlurmNode
from bridge.kube.client import KubeClient
from bridge.loops.guard import CLOSED, OPENED, Guard, ask_to_close, command
from bridge.metrics import BREAKER, BREAKER_NODES
from bridge.names import CLOSE_BREAKER_ANNOTATION, COMPONENT
from tests.sim import loop
from tests.worlds.kube import KubeWorld

STARTED = 1_700_000_000.0
JOBS = [JobId(n) for n in range(100, 130)]
NODES = [SlurmNode(f"n{n}") for n in range(1, 21)]


class Scene:
    def __init__(self, *, typed: str = "type this") -> None:
        self.told: list[tuple[str, str, bool]] = []
        self.closed = 0
        time = asyncio.get_running_loop().time
        self.guard = Guard(
            jobs=lambda: 50,
            nodes=lambda: 40,
            tell=self._tell,
            command=typed,
            clock=time,
            wall=lambda: STARTED,
        )
        self.guard.on_closed(self._close)
        self.guard.lease_seen(LeaseRecord())

    async def _tell(self, reason: str, text: str, *, warning: bool) -> None:
        self.told.append((reason, text, warning))

    def _close(self) -> None:
        self.closed += 1

    def ask(self, jobs: list[JobId] | list[SlurmNode]) -> int:
        """How many are let through."""
        return sum(self.guard.admit(job) for job in jobs)

    def annotate(self, value: str) -> None:
        self.guard.lease_seen(LeaseRecord(annotations={CLOSE_BREAKER_ANNOTATION: value}))


def play(scene: Coroutine[Any, Any, None]) -> None:
    loop.run(scene)


def test_an_open_breaker_is_seen_in_notes_metric_and_one_event() -> None:
    async def story() -> None:
        scene = Scene()
        work = asyncio.create_task(scene.guard.run())
        assert scene.ask(JOBS) == 10
        await asyncio.sleep(5)
        assert BREAKER._value.get() == 20
        [note] = scene.guard.notes()
        assert "20 jobs are held back" in note
        assert "type this" in note
        [(reason, text, warning)] = scene.told
        assert (reason, warning) == (OPENED, True)
        assert text.startswith(
            "20 jobs are held back (110, 111, 112, 113, 114, …): more than 10 and 20% of 50 "
        )
        assert "type this" in text
        work.cancel()

    play(story())


def test_where_nobody_reads_the_command_it_is_not_named() -> None:
    async def story() -> None:
        scene = Scene(typed="")
        scene.ask(JOBS)
        assert scene.guard.notes() == ["breaker open: 20 jobs are held back and looked at again"]

    play(story())


def test_jobs_and_nodes_are_counted_apart() -> None:
    async def story() -> None:
        scene = Scene()
        assert scene.ask(NODES[:10]) == 10
        assert scene.ask(JOBS[:10]) == 10
        assert scene.ask(NODES[10:12]) == 0
        assert (BREAKER._value.get(), BREAKER_NODES._value.get()) == (0, 2)
        [note] = scene.guard.notes()
        assert note.startswith("breaker open: 2 nodes are held back")

    play(story())


def test_two_further_looks_close_it_and_say_so() -> None:
    async def story() -> None:
        scene = Scene()
        work = asyncio.create_task(scene.guard.run())
        scene.ask(JOBS)
        for _ in range(2):
            await asyncio.sleep(PAUSE)
            scene.ask(JOBS[10:])
        assert scene.ask(JOBS[10:]) == 20
        await asyncio.sleep(2)
        assert [reason for reason, _, _ in scene.told] == [OPENED, CLOSED]
        assert "20 jobs are no longer held back: two further looks at each say the same" in scene.told[1][1]
        assert scene.closed == 1
        work.cancel()

    play(story())


def test_reasons_that_go_close_it_and_say_so() -> None:
    async def story() -> None:
        scene = Scene()
        work = asyncio.create_task(scene.guard.run())
        scene.ask(JOBS)
        await asyncio.sleep(2)
        for job in JOBS[10:]:
            scene.guard.relent(job)
        await asyncio.sleep(2)
        assert "1 job is no longer held back: the reasons are gone" in scene.told[1][1]
        assert scene.guard.notes() == []
        work.cancel()

    play(story())


def test_what_nobody_asks_about_any_more_closes_it_by_itself() -> None:
    async def story() -> None:
        scene = Scene()
        work = asyncio.create_task(scene.guard.run())
        scene.ask(JOBS)
        await asyncio.sleep(62)
        assert BREAKER._value.get() == 0
        assert [reason for reason, _, _ in scene.told] == [OPENED, CLOSED]
        work.cancel()

    play(story())


def test_a_command_lets_through_what_is_held_now_and_the_breaker_stays_armed() -> None:
    async def story() -> None:
        scene = Scene()
        work = asyncio.create_task(scene.guard.run())
        scene.ask(JOBS[:25])
        scene.ask(NODES)
        scene.annotate("2023-11-14T22:14:00Z")
        assert scene.closed == 2
        assert (BREAKER._value.get(), BREAKER_NODES._value.get()) == (0, 0)
        assert scene.ask(JOBS[10:25]) == 15
        assert scene.ask(NODES) == len(NODES)
        assert scene.ask(JOBS[25:]) == 0, "it stays armed"
        scene.annotate("2023-11-14T22:14:00Z")
        assert scene.ask(JOBS[25:]) == 0, "the same command again is none"
        await asyncio.sleep(2)
        closed = [text for reason, text, _ in scene.told if reason == CLOSED]
        assert [text.partition(":")[0] for text in closed] == [
            "15 jobs are no longer held back",
            "10 nodes are no longer held back",
        ]
        assert all("an operator said so" in text for text in closed)
        work.cancel()

    play(story())


@pytest.mark.parametrize("value", ["2023-11-14T22:14:00Z", "please"])
def test_a_command_that_was_there_at_the_start_was_meant_for_another_process(value: str) -> None:
    async def story() -> None:
        scene = Scene()
        late = Guard(
            jobs=lambda: 50,
            nodes=lambda: 40,
            tell=scene._tell,
            command="",
            clock=lambda: 0.0,
            wall=lambda: STARTED,
        )
        late.lease_seen(LeaseRecord(annotations={CLOSE_BREAKER_ANNOTATION: value}))
        for job in JOBS:
            late.admit(job)
        late.lease_seen(LeaseRecord(annotations={CLOSE_BREAKER_ANNOTATION: value}))
        assert late.notes()
        late.lease_seen(LeaseRecord(annotations={CLOSE_BREAKER_ANNOTATION: "another word"}))
        assert not late.notes()

    play(story())


def test_a_flutter_of_opening_and_closing_keeps_a_bounded_number_of_events() -> None:
    async def story() -> None:
        scene = Scene()
        scene.ask(JOBS[:10])
        for _ in range(1000):
            scene.ask(JOBS[10:11])
            scene.guard.relent(JOBS[10])
        work = asyncio.create_task(scene.guard.run())
        await asyncio.sleep(2)
        assert len(scene.told) <= 16
        work.cancel()

    play(story())


def test_the_verb_writes_what_the_guard_reads() -> None:
    async def story() -> None:
        world = KubeWorld()
        lease = {"metadata": {"name": COMPONENT, "annotations": {"a": "b"}}, "spec": {"holderIdentity": "x"}}
        world.add("leases", lease)
        client = KubeClient(world)
        scene = Scene()
        scene.guard.lease_seen(await client.lease("default", COMPONENT))
        scene.ask(JOBS)
        said = await ask_to_close(client, "default", STARTED + 40)
        record = await client.lease("default", COMPONENT)
        assert record.annotations == {"a": "b", CLOSE_BREAKER_ANNOTATION: "2023-11-14T22:14:00Z"}
        assert f"{CLOSE_BREAKER_ANNOTATION}=2023-11-14T22:14:00Z" in said
        scene.guard.lease_seen(record)
        assert scene.guard.notes() == []

    play(story())


def test_the_command_for_people_names_lease_and_annotation() -> None:
    assert command("slurm").startswith(
        "kubectl -n slurm annotate lease slurm-bridge --overwrite slinky.slurm.net/close-breaker="
    )
