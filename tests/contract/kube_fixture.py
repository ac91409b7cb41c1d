"""One API server for the contract tests, in memory or real; every test runs against both.

`side` gives a client, a namespace of the test's own, and raw access for what a person or kubelet would do. The real
one is the stack named $SLURM_BRIDGE_STACK (default "test") of deploy/local.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from bridge.core.model import KubeNode, Pod
from bridge.errors import BridgeError
from bridge.kube.client import ClusterWire, KubeClient, Wire
from bridge.kube.wire import JSON, STRATEGIC_MERGE, Query, Reply
from tests.patience import PATIENCE
from tests.worlds import kube_objects
from tests.worlds.kube import KubeWorld
from tests.worlds.kube_faults import Answer
from tests.worlds.kube_merge import Object

ROOT = Path(__file__).resolve().parents[2]
SCHEDULER = "contract-test"  # nobody schedules these pods, and no admission policy knows them
T = TypeVar("T")


async def eventually(
    condition: Callable[[], T | None], *, within: float = 30.0, what: str = "", promised: bool = False
) -> T:
    """The first true value of `condition`, looked at every 5 ms. Fails after `within` seconds.

    Unless the product has `promised` them, they are those of a machine that is ours alone: tests/patience.py.
    """
    within *= 1 if promised else PATIENCE
    deadline = asyncio.get_running_loop().time() + within
    while True:
        if found := condition():
            return found
        if asyncio.get_running_loop().time() > deadline:
            pytest.fail(f"not within {within} s: {what or condition}")
        await asyncio.sleep(0.005)


class CutWire:
    """A wire whose open watches a test can end silently, as a proxy or a dying API server does."""

    def __init__(self, inner: Wire) -> None:
        self._inner = inner
        self._open: set[asyncio.Event] = set()
        self.opened = 0
        self.requests: list[tuple[str, str]] = []

    def cut(self) -> None:
        for event in self._open:
            event.set()

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout: float,
    ) -> Reply:
        self.requests.append((method, path))
        return await self._inner.request(
            method, path, query=query, body=body, content_type=content_type, accept=accept, timeout=timeout
        )

    @asynccontextmanager
    async def stream(
        self, path: str, query: Query, timeout: float, accept: str = JSON
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        cut = asyncio.Event()
        async with self._inner.stream(path, query, timeout, accept) as lines:
            self._open.add(cut)
            self.opened += 1
            try:
                async with aclosing(self._until(lines, cut)) as until:
                    yield until
            finally:
                self._open.discard(cut)

    async def _until(self, lines: AsyncIterator[bytes], cut: asyncio.Event) -> AsyncGenerator[bytes, None]:
        stop = asyncio.ensure_future(cut.wait())
        line: asyncio.Future[Any] = stop
        try:
            while True:
                line = asyncio.ensure_future(_next(lines))
                await asyncio.wait({line, stop}, return_when=asyncio.FIRST_COMPLETED)
                if stop.done() or not (found := line.result()):
                    return
                yield found
        finally:
            for task in (stop, line):
                task.cancel()
            await asyncio.gather(stop, line, return_exceptions=True)


async def _next(lines: AsyncIterator[bytes]) -> Any:
    return await anext(lines, b"")


@dataclass
class Side:
    """One API server. `world` is None for the real one."""

    wire: CutWire
    client: KubeClient
    denied: KubeClient  # may not write Leases in `namespace`
    namespace: str
    world: KubeWorld | None
    facts: Mapping[str, Any]
    calls: list[tuple[str, str, str]] = field(default_factory=list)  # verb, resource, outcome of `client`

    @property
    def real(self) -> bool:
        return self.world is None

    # --- what others do -------------------------------------------------------------------------

    async def send(
        self, method: str, path: str, body: Any = None, *, content_type: str = JSON, **query: str
    ) -> tuple[int, Any]:
        raw = json.dumps(body).encode() if body is not None else None
        reply = await self.wire.request(
            method, path, query=query or None, body=raw, content_type=content_type, timeout=20.0
        )
        return reply.status, json.loads(reply.body)

    async def must(self, method: str, path: str, body: Any = None, *, content_type: str = JSON) -> Object:
        status, found = await self.send(method, path, body, content_type=content_type)
        assert 200 <= status < 300, found
        return dict(found)

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods"

    async def pod(self, name: str = "a", **how: Any) -> Pod:
        """Post a pod that nobody else touches."""
        await self.must("POST", self.pods, kube_objects.pod(name, **({"scheduler": SCHEDULER} | how)))
        return await self.client.pod(self.namespace, name)

    async def change(self, name: str, patch: Object) -> Object:
        return await self.must("PATCH", f"{self.pods}/{name}", patch, content_type=STRATEGIC_MERGE)

    async def bound(self, name: str, node: str = "contract-no-such-node") -> Pod:
        pod = await self.pod(name, gates=())
        await self.client.bind(pod.namespace, pod.name, pod.uid, KubeNode(node))
        return await self.client.pod(pod.namespace, name)

    def writes(self) -> list[tuple[str, str]]:
        """Writes that `client` has made, in order."""
        return [(verb, resource) for verb, resource, _ in self.calls if verb not in ("get", "list", "watch")]


class _DenyingWire(CutWire):
    async def request(self, method: str, path: str, **how: Any) -> Reply:
        assert isinstance(self._inner, KubeWorld)
        fault = self._inner.faults.plan(Answer(403, reason="Forbidden"), resource="leases")
        try:
            return await super().request(method, path, **how)
        finally:
            fault.times = 0


def stack_facts() -> Mapping[str, Any]:
    """What `deploy/local/stack env` says of the real stack."""
    name = os.environ.get("SLURM_BRIDGE_STACK", "test")
    command = [str(ROOT / "deploy/local/stack"), "env", "--name", name, "--json"]
    hint = f"the real API server isn't there: run `deploy/local/stack up --name {name}`"
    try:
        done = subprocess.run(command, capture_output=True, check=True, timeout=60)
        facts: Mapping[str, Any] = json.loads(done.stdout)
        found = Path(facts["kubeconfigs"]["admin"]).exists()
    except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
        raise RuntimeError(f"{hint} ({type(error).__name__})") from error
    if not found:
        raise RuntimeError(hint)
    return facts


@asynccontextmanager
async def _world_side() -> AsyncIterator[Side]:
    world = KubeWorld()
    namespace = f"contract-{uuid.uuid4().hex[:8]}"
    world.namespace(namespace)
    yield _side(world, _DenyingWire(world), namespace, world, {})


@asynccontextmanager
async def _real_side() -> AsyncIterator[Side]:
    try:
        facts = await asyncio.to_thread(stack_facts)
    except RuntimeError as error:
        pytest.fail(str(error))
    configs = facts["kubeconfigs"]
    admin = await ClusterWire.connect(configs["admin"])
    other = await ClusterWire.connect(configs["bridge"])
    namespace = f"contract-{uuid.uuid4().hex[:8]}"
    side = _side(admin, other, namespace, None, facts)
    try:
        try:
            await side.must("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        except BridgeError as error:
            name = facts["name"]
            pytest.fail(
                f"the real API server doesn't answer: run `deploy/local/stack up --name {name}` ({error})"
            )
        # Pods are refused until the controller-manager has made the ServiceAccount.
        account = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
        await _until_ok(lambda: side.send("GET", account))
        yield side
        await side.send("DELETE", side.pods, {"gracePeriodSeconds": 0})
        await side.send("DELETE", f"/api/v1/namespaces/{namespace}")
    finally:
        await admin.close()
        await other.close()


async def _until_ok(ask: Callable[[], Awaitable[tuple[int, Any]]], within: float = 90.0) -> None:
    deadline = asyncio.get_running_loop().time() + within * PATIENCE
    while (await ask())[0] != 200:
        assert asyncio.get_running_loop().time() < deadline, "the namespace never became usable"
        await asyncio.sleep(0.02)


def _side(wire: Wire, other: Wire, namespace: str, world: KubeWorld | None, facts: Mapping[str, Any]) -> Side:
    cut = CutWire(wire)
    calls: list[tuple[str, str, str]] = []
    client = KubeClient(cut, lambda verb, resource, outcome, _: calls.append((verb, resource, outcome)))
    return Side(cut, client, KubeClient(other), namespace, world, facts, calls)


@pytest.fixture(params=["world", pytest.param("real", marks=pytest.mark.real)])
async def side(request: pytest.FixtureRequest) -> AsyncIterator[Side]:
    """Both API servers, one after the other."""
    async with _world_side() if request.param == "world" else _real_side() as found:
        yield found
