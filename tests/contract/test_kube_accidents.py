"""No change is lost, whatever happens to a watch: accidents that only the world can arrange, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from bridge.core.model import Pod, Uid
from bridge.errors import Busy, Gone, UnknownOutcome
from bridge.kube import kinds
from bridge.kube.client import KubeClient
from bridge.kube.informer import Informer
from bridge.kube.store import Pods
from tests.contract.kube_fixture import SCHEDULER
from tests.worlds import kube_objects
from tests.worlds.kube import KubeWorld
from tests.worlds.kube_clock import VirtualClock
from tests.worlds.kube_faults import Answer, DropBefore


@asynccontextmanager
async def running(*informers: Informer[Any]) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(i.run()) for i in informers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


# --- accidents that only the world can have --------------------------------------------------------


class Scene:
    """A world, a pod table and an informer on one virtual clock."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.world = KubeWorld(clock=self.clock.time, now=self.clock.unix, sleep=self.clock.sleep)
        self.client = KubeClient(self.world)
        self.table = Pods({SCHEDULER}, clock=self.clock.time)
        self.informer: Informer[Pod] = Informer(
            self.client,
            kinds.pods(self.table.is_ours),
            self.table,
            clock=self.clock.time,
            sleep=self.clock.sleep,
            jitter=lambda: 0.0,
        )

    def add(self, name: str) -> Uid:
        pod = self.world.add("pods", kube_objects.pod(name, scheduler=SCHEDULER))
        return Uid(pod["metadata"]["uid"])

    def remove(self, name: str) -> None:
        self.world.storage.delete("pods", "default", name, {})

    @property
    def held(self) -> set[str]:
        return {pod.name for pod in self.table}


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    made.add("first")
    async with running(made.informer):
        await made.clock.settle()
        assert made.informer.lists == 1
        yield made


async def test_an_expired_version_lists_again_and_finds_what_went_meanwhile(scene: Scene) -> None:
    scene.add("kept")
    uid = scene.add("lost")
    await scene.clock.settle()
    scene.world.faults.plan(DropBefore(), verb="watch", times=3)
    scene.world.cut_watches()
    await scene.clock.settle()
    scene.remove("lost")
    scene.add("born")
    scene.world.compact()
    await scene.clock.advance(30)
    assert scene.held == {"first", "kept", "born"}
    assert scene.informer.lists == 2
    assert [(g.pod.uid, g.deleted) for g in scene.table.gone.values()] == [(uid, False)]


async def test_a_410_status_lists_again(scene: Scene) -> None:
    scene.world.faults.plan(Answer(410, reason="Expired"), verb="watch")
    scene.world.cut_watches()
    await scene.clock.advance(1)
    assert scene.informer.lists == 2
    scene.add("next")
    await scene.clock.settle()
    assert scene.held == {"first", "next"}


async def test_a_name_that_came_back_with_another_uid_is_two_pods(scene: Scene) -> None:
    told: list[tuple[bool, bool]] = []
    scene.table.on_pod(lambda old, new: told.append((old is not None, new is not None)))
    old = scene.table.get("default", "first")
    assert old is not None
    scene.world.faults.plan(DropBefore(), verb="watch", times=1)
    scene.world.cut_watches()
    await scene.clock.settle()
    scene.remove("first")
    uid = scene.add("first")
    scene.world.compact()
    await scene.clock.advance(5)
    assert told == [(True, False), (False, True)]
    assert old.uid in scene.table.gone
    assert scene.table.by_uid(old.uid) is None
    assert {p.uid for p in scene.table} == {uid}


async def test_a_reset_backs_off_and_resumes_without_a_list(scene: Scene) -> None:
    scene.world.faults.plan(DropBefore(), verb="watch", times=5)
    scene.world.cut_watches(reset=True)
    await scene.clock.settle()
    scene.add("next")
    assert isinstance(scene.informer.last_error, UnknownOutcome)
    assert scene.informer.notes() == []
    await scene.clock.advance(1)
    assert scene.held == {"first"}
    (note,) = scene.informer.notes()
    assert note.startswith("Kubernetes: pods are as they were 1 s ago; nothing that runs is touched: ")
    await scene.clock.advance(15)
    assert scene.held == {"first", "next"}
    assert scene.informer.lists == 1
    assert scene.informer.notes() == []
    assert scene.informer.last_error is None


async def test_a_busy_server_gets_the_pause_it_asks_for(scene: Scene) -> None:
    scene.world.faults.plan(Answer(429, headers={"Retry-After": "20"}), verb="watch")
    scene.world.cut_watches()
    scene.add("next")
    await scene.clock.advance(19)
    assert isinstance(scene.informer.last_error, Busy)
    before = scene.world.reads["watch", "pods"]
    await scene.clock.advance(2)
    assert scene.world.reads["watch", "pods"] == before + 1
    assert scene.held == {"first", "next"}


async def test_a_list_that_fails_halfway_is_done_again_before_anything_is_called_gone(scene: Scene) -> None:
    scene.informer._chunk = 2
    for i in range(5):
        scene.add(f"p{i}")
    await scene.clock.settle()
    scene.world.compact()
    scene.world.faults.plan(Answer(500), verb="list", when=lambda _: scene.world.reads["list", "pods"] == 2)
    scene.world.faults.plan(Answer(410, reason="Expired"), verb="watch")
    scene.world.cut_watches()
    await scene.clock.settle()
    assert not scene.table.gone
    await scene.clock.advance(10)
    assert scene.informer.lists == 2
    assert not scene.table.gone
    assert len(scene.held) == 6


async def test_a_watch_that_says_nothing_for_too_long_is_given_up(scene: Scene) -> None:
    assert scene.world.mute_watches() == 1
    scene.add("next")
    await scene.clock.advance(60)
    assert scene.held == {"first"}
    assert scene.informer.age() >= 60
    await scene.clock.advance(45)
    assert scene.held == {"first", "next"}
    assert scene.informer.age() < 10


async def test_a_healthy_quiet_watch_stays_fresh_with_a_list_every_few_minutes(scene: Scene) -> None:
    for _ in range(100):
        await scene.clock.advance(10)
        assert scene.informer.age() <= 70
    assert scene.informer.lists <= 1 + 1000 / 300
    assert sum(scene.world.writes.values()) == 0


async def test_a_bookmark_moves_the_version_on_past_compaction(scene: Scene) -> None:
    scene.informer._watch_seconds = 300
    scene.world.cut_watches()
    await scene.clock.settle()
    for i in range(5):
        scene.world.add("leases", {"metadata": {"name": f"l{i}"}, "spec": {}})
    await scene.clock.advance(61)
    scene.world.compact()
    scene.world.cut_watches()
    await scene.clock.settle()
    assert scene.informer.lists == 1
    scene.add("next")
    await scene.clock.settle()
    assert scene.held == {"first", "next"}


async def test_an_event_that_comes_twice_counts_once(scene: Scene) -> None:
    told: list[str] = []
    scene.table.on_pod(lambda old, new: told.append("gone" if new is None else "there"))
    scene.world.repeat_events()
    scene.add("next")
    await scene.clock.settle()
    scene.world.repeat_events()
    scene.remove("next")
    await scene.clock.settle()
    assert told == ["there", "there", "gone"]  # made, marked as being deleted, gone


async def test_a_deletion_that_no_watch_reported_is_found_by_the_next_list(scene: Scene) -> None:
    uid = scene.add("next")
    await scene.clock.settle()
    scene.world.drop_events(count=2)
    scene.remove("next")
    await scene.clock.settle()
    assert "next" in scene.held
    scene.world.compact()
    scene.world.faults.plan(Answer(410, reason="Expired"), verb="watch")
    scene.world.cut_watches()
    await scene.clock.advance(1)
    assert scene.held == {"first"}
    assert not scene.table.gone[uid].deleted


async def test_a_list_asked_for_during_a_list_is_another_one(scene: Scene) -> None:
    scene.world.latency = 1.0
    first = asyncio.ensure_future(scene.informer.relist())
    await scene.clock.advance(0.5)
    second = asyncio.ensure_future(scene.informer.relist())
    await scene.clock.advance(1.0)
    assert (first.done(), second.done()) == (True, False)
    await scene.clock.advance(2.0)
    assert second.done()
    assert scene.informer.lists == 3


async def test_a_deletion_that_no_watch_reported_is_repaired_by_asking(scene: Scene) -> None:
    scene.world.drop_events(count=2)
    scene.remove("first")
    await scene.clock.settle()
    assert scene.held == {"first"}
    await scene.informer.relist()
    assert scene.held == set()


async def test_garbage_in_a_watch_means_list_again(scene: Scene) -> None:
    scene.world.storage.history[-1:] = []
    scene.world.faults.plan(Answer(200, body=b"{}"), verb="watch")
    scene.world.cut_watches()
    await scene.clock.advance(1)
    assert scene.informer.lists == 2


async def test_history_that_went_back_means_list_again(scene: Scene) -> None:
    scene.world.storage.version = 5
    pod = scene.table.get("default", "first")
    assert pod is not None
    with pytest.raises(Gone):
        scene.informer._apply(
            kinds.pods().event(
                b'{"type":"MODIFIED","object":{"metadata":{"name":"x","resourceVersion":"3"}}}'
            )
        )


async def test_asking_for_a_list_sees_through_an_etcd_that_was_restored(scene: Scene) -> None:
    scene.informer._version = str(scene.world.storage.version + 1_000_000)
    scene.world.cut_watches()
    await scene.clock.settle()
    scene.add("next")
    await scene.clock.advance(30)
    assert scene.held == {"first"}  # a version ahead of the server's hears nothing, on the real one too
    await scene.informer.relist()
    assert scene.held == {"first", "next"}


async def test_an_event_that_was_lost_without_a_sign_is_found_within_minutes(scene: Scene) -> None:
    scene.world.drop_events()
    scene.add("missed")
    await scene.clock.advance(5)
    assert scene.held == {"first"}
    await scene.clock.advance(420)
    assert scene.held == {"first", "missed"}


async def test_a_list_of_another_cluster_blinds_nobody_for_long(scene: Scene) -> None:
    """Its version is ahead of ours: the right API server has nothing to say to a watch that begins there."""
    foreign = b'{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"99999"},"items":[]}'
    scene.world.faults.plan(Answer(200, foreign), verb="list", resource="pods", times=1)
    scene.world.compact()
    scene.world.cut_watches()
    await scene.clock.advance(5)
    scene.add("second")
    await scene.clock.advance(200)
    assert scene.held == {"first", "second"}
