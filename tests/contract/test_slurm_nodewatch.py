"""The watcher of Slurm's nodes: over the world on a clock of the test's own, and over the real daemons."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from bridge.config import SlurmSettings
from bridge.core.model import SlurmNode
from bridge.slurm.client import SlurmClient
from bridge.slurm.nodewatch import WHOLE, NodeWatch
from tests.contract.slurm_fixture import Slurm, eventually, real_fixture
from tests.contract.slurm_time import VirtualTime, settle
from tests.worlds.slurm import SlurmWorld
from tests.worlds.slurm_faults import Fault, Kind
from tests.worlds.slurm_jobs import WorldNode

__all__ = ["real_fixture"]
K0, K1 = SlurmNode("k0"), SlurmNode("k1")
NEWS = 1.0  # seconds


class Watched:
    def __init__(self, tmp_path: Path, nodes: int = 200) -> None:
        self.time = VirtualTime()
        self.world = SlurmWorld(tuple(WorldNode(f"k{i}") for i in range(nodes)), clock=self.time.now)
        (tmp_path / "token").write_text("token")
        settings = SlurmSettings(
            slurmRestApi="http://world", slurmTokenFile=tmp_path / "token", readTimeout=25.0
        )
        self.client = SlurmClient(settings, transport=httpx.ASGITransport(self.world))
        self.told: list[frozenset[SlurmNode]] = []
        self.open = True
        self.watch = NodeWatch(
            self.client,
            self.told.append,
            open=lambda: self.open,
            monotonic=self.time.now,
            sleep=self.time.sleep,
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self.watch.run())
        await settle()
        await self.time.advance(NEWS + 1.0)  # beyond the second in which the nodes came
        self.told.clear()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self.client.close()

    def alter(self, name: SlurmNode, **changes: Any) -> None:
        self.world.set_node(replace(self.world.nodes[name], **changes))

    def edit(self, change: Callable[[dict[str, Any]], None], times: int = 0) -> Fault:
        """Somebody else's answer to the question for the nodes."""

        def changed(raw: bytes) -> bytes:
            body = json.loads(raw)
            change(body)
            return json.dumps(body).encode()

        return self.world.faults.add(Fault(pattern="^GET nodes/", kind=Kind.EDIT, edit=changed, times=times))


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    watched = Watched(tmp_path)
    yield watched
    await watched.stop()


async def test_what_changes_is_known_within_a_second_and_told_once(watched: Watched) -> None:
    await watched.start()
    watched.alter(K0, drained=True, reason="fan")
    await watched.time.advance(NEWS)
    assert watched.told == [{K0}]
    assert watched.watch.nodes[K0].reason == "fan"
    assert watched.watch.nodes.keys() == watched.world.nodes.keys()
    await watched.time.advance(5.0)
    assert watched.told == [{K0}]


async def test_while_nothing_changes_slurm_sends_no_list(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    await watched.start()
    monkeypatch.setattr(watched.client, "_observe", lambda route, status, seconds, size: sizes.append(size))
    await watched.time.advance(WHOLE - 5.0)
    assert len(sizes) >= 40
    assert not any(sizes)
    assert watched.watch.age() < NEWS


async def test_a_clock_of_slurmctld_that_was_set_back_hides_nothing_for_long(watched: Watched) -> None:
    await watched.start()
    watched.alter(K0, drained=True)
    watched.world.nodes_changed -= 3600.0
    await watched.time.advance(WHOLE + NEWS)
    assert watched.watch.nodes[K0].drained


@pytest.mark.parametrize("lacks", [lambda name: True, lambda name: name == K0])
async def test_a_node_that_a_list_lacks_is_missing_and_not_gone(
    watched: Watched, lacks: Callable[[str], bool]
) -> None:
    await watched.start()

    def shortened(body: dict[str, Any]) -> None:
        body["nodes"] = [node for node in body["nodes"] if not lacks(node["name"])]

    fault = watched.edit(shortened)
    watched.alter(K1, comment="news")
    watched.watch.hint()
    await watched.time.advance(0.06)  # one list
    watched.world.nodes_changed -= 100.0  # nothing has changed any more
    missing = watched.watch.missing[K0]
    assert missing.record.name == K0
    assert K0 not in watched.watch.nodes
    assert K0 in frozenset().union(*watched.told)
    began = missing.since
    await watched.time.advance(2 * NEWS)
    assert watched.watch.missing[K0].lists >= 2
    assert watched.watch.missing[K0].since == began
    watched.world.faults.remove(fault)
    watched.alter(K1, comment="more")
    await watched.time.advance(NEWS)
    assert not watched.watch.missing
    assert K0 in watched.watch.nodes


@pytest.mark.parametrize(
    "broken",
    [
        Fault(pattern="^GET nodes/", kind=Kind.STATUS, status=502, times=0),
        Fault(pattern="^GET nodes/", kind=Kind.TRUNCATE, times=0),
        Fault(pattern="^GET nodes/", kind=Kind.HTML, times=0),
        Fault(pattern="^GET nodes/", kind=Kind.STATUS, status=200, body=b"", times=0),
        Fault(pattern="^GET nodes/", kind=Kind.STATUS, status=200, body=b'{"nodes": null}', times=0),
        Fault(
            pattern="^GET nodes/",
            kind=Kind.STATUS,
            status=200,
            body=b'{"nodes": [], "errors": [{"error_number": 1}]}',
            times=0,
        ),
        Fault(pattern="^GET nodes/", kind=Kind.DROP_BEFORE, times=0),
    ],
    ids=lambda fault: f"{fault.kind.name}-{fault.status}-{fault.body.decode()}",
)
async def test_what_is_no_list_changes_nothing_and_grows_old(watched: Watched, broken: Fault) -> None:
    await watched.start()
    known = watched.watch.nodes
    watched.world.faults.add(replace(broken, released=asyncio.Event()))
    watched.alter(K0, drained=True)
    await watched.time.advance(10.0)
    assert watched.watch.nodes is known
    assert watched.watch.age() > 9.0
    assert watched.watch.problem
    watched.world.faults.clear()
    await watched.time.advance(3.0)
    assert not watched.watch.problem
    assert watched.watch.nodes[K0].drained


async def test_the_nodes_of_another_cluster_are_never_taken_for_ours(watched: Watched) -> None:
    await watched.start()
    known = watched.watch.nodes

    def foreign(body: dict[str, Any]) -> None:
        body["meta"]["slurm"]["cluster"] = "other"
        body["nodes"] = [{"name": "x1", "state": ["IDLE"]}]

    watched.edit(foreign)
    watched.alter(K0, comment="news")
    await watched.time.advance(NEWS)
    assert watched.watch.nodes is known
    assert not watched.watch.missing
    assert "'other'" in watched.watch.problem


async def test_a_node_that_we_deleted_is_not_missing(watched: Watched) -> None:
    await watched.start()
    watched.world.remove_node(K0)
    await watched.time.advance(NEWS)
    watched.watch.forget(K0)
    await watched.time.advance(WHOLE + NEWS)
    assert not watched.watch.missing


async def test_a_list_that_was_asked_for_before_we_deleted_a_node_does_not_bring_it_back(
    watched: Watched,
) -> None:
    await watched.start()
    listed, asked = await watched.client.nodes.list(), watched.time.now()
    watched.time.jump(0.1)
    watched.world.remove_node(K0)
    watched.watch.forget(K0)
    watched.watch._publish(listed, asked)
    assert K0 not in watched.watch.nodes
    await watched.time.advance(NEWS)
    assert not watched.watch.missing


async def test_nothing_is_asked_while_slurm_cannot_be_polled(watched: Watched) -> None:
    await watched.start()
    watched.open = False
    await watched.time.advance(NEWS)
    asked = watched.world.count("GET nodes/")
    await watched.time.advance(20.0)
    assert watched.world.count("GET nodes/") == asked
    watched.open = True
    await watched.time.advance(NEWS)
    assert watched.watch.age() <= NEWS


async def test_a_hint_brings_the_news_at_once(watched: Watched) -> None:
    await watched.start()
    watched.alter(K0, drained=True)
    watched.watch.hint()
    await watched.time.advance(0.1)
    assert watched.told == [{K0}]


async def test_a_follower_asks_at_a_tenth_of_the_rate(watched: Watched) -> None:
    await watched.start()
    watched.watch.pace = 10.0
    await watched.time.advance(10.0)
    asked = watched.world.count("GET nodes/")
    await watched.time.advance(50.0)
    assert watched.world.count("GET nodes/") - asked <= 11


async def test_nobody_asks_for_a_single_node(watched: Watched) -> None:
    await watched.start()
    await watched.time.advance(60.0)
    assert {request for request in watched.world.requests if "node/" in request} == set()


@pytest.mark.real
async def test_the_watcher_of_nodes_sees_a_drain_on_real_daemons(real: Slurm) -> None:
    told: list[frozenset[SlurmNode]] = []
    watch, node = NodeWatch(real.client, told.append), real.nodes[-1]
    task = asyncio.create_task(watch.run())
    await eventually(lambda: watch.healthy)
    assert set(real.nodes) <= watch.nodes.keys()
    assert await real.client.nodes.drain(node, "slurm-bridge: a test")
    try:
        await eventually(lambda: watch.nodes[node].drained, within=1.0)
        assert any(node in names for names in told)
    finally:
        assert await real.client.nodes.undrain(node, "slurm-bridge: a test")
        await eventually(lambda: not watch.nodes[node].drained, within=1.0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
