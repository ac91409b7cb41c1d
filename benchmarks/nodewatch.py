"""One streaming watch of all nodes: which are Ready, and what the bridge shows on each, with the moment of the news."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec

from benchmarks.kube import NODES, Kube

CONDITION = "slinky.slurm.net/SlurmNode"
TAINT = "slinky.slurm.net/slurm-unavailable"


class _Entry(msgspec.Struct):
    key: str = ""
    type: str = ""
    status: str = ""
    reason: str = ""


class _Meta(msgspec.Struct):
    name: str = ""
    version: str = msgspec.field(name="resourceVersion", default="")


class _Spec(msgspec.Struct):
    taints: list[_Entry] = []


class _Status(msgspec.Struct):
    conditions: list[_Entry] = []


class _Node(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class _Event(msgspec.Struct):
    type: str
    object: _Node


_decode = msgspec.json.Decoder(_Event).decode


class NodeLog:
    """`shown[name]` = (reason of our condition, our taint is there); `ready`: names."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._news = asyncio.Event()
        self._version = ""
        self._task: asyncio.Task[None] | None = None
        self.ready: set[str] = set()
        self.shown: dict[str, tuple[str, bool]] = {}
        self._at = 0.0  # when the last news came

    async def __aenter__(self) -> NodeLog:
        found: dict[str, Any] = await self._kube.call("GET", NODES)
        for item in found["items"]:
            self._note(msgspec.convert(item, _Node))
        self._version = found["metadata"]["resourceVersion"]
        self._task = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            response = await self._kube.watch(self._version, NODES)
            rest = b""
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in filter(None, lines):
                    event = _decode(line)
                    if event.type == "ERROR":
                        raise RuntimeError(f"the watch of nodes failed: {line[:200]!r}")
                    self._version = event.object.metadata.version or self._version
                    if event.type in ("ADDED", "MODIFIED"):
                        self._note(event.object)

    def _note(self, node: _Node) -> None:
        name = node.metadata.name
        by_type = {condition.type: condition for condition in node.status.conditions}
        if "Ready" in by_type and by_type["Ready"].status == "True":
            self.ready.add(name)
        else:
            self.ready.discard(name)
        ours = by_type.get(CONDITION, _Entry())
        self.shown[name] = (ours.reason, any(taint.key == TAINT for taint in node.spec.taints))
        self._at = time.monotonic()
        self._news.set()

    async def until(self, true: Callable[[], bool], within: float) -> float:
        """When the news came that made it so."""
        async with asyncio.timeout(within):
            while not true():
                self._news.clear()
                await self._news.wait()
        return self._at
