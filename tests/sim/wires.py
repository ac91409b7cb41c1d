"""The wires of one simulated process: to both worlds for its clients, and from kube-scheduler to its extender.

No sockets and no HTTP framework in between, as thousands of schedules pay for every request. `written()` is awaited
after every request that may have changed something, before its answer is given.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, cast

import httpx

from bridge.config import SlurmSettings
from bridge.core.model import JobId
from bridge.kube.wire import JSON, Query, Reply
from bridge.slurm.auth import TokenAuth
from bridge.slurm.client import SlurmClient
from tests.worlds.kube import KubeWorld
from tests.worlds.slurm import SlurmWorld
from tests.worlds.slurm_completion import WorldCompletion

Message = MutableMapping[str, Any]
Application = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]
Written = Callable[[], Awaitable[None]]


class Wires:
    def __init__(self, kube: KubeWorld, slurm: SlurmWorld, settings: SlurmSettings, written: Written) -> None:
        self.kube = _KubeWire(kube, written)
        self.slurm = SlurmClient(settings, transport=httpx.AsyncBaseTransport())
        self.slurm._http = cast(Any, _SlurmHttp(slurm, TokenAuth(self.slurm.token), written))
        self.completion = _Completion(slurm, written)


class _KubeWire:
    def __init__(self, world: KubeWorld, written: Written) -> None:
        self._world = world
        self._written = written

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
        reply = await self._world.request(
            method, path, query=query, body=body, content_type=content_type, accept=accept, timeout=timeout
        )
        if method != "GET":
            await self._written()
        return reply

    def stream(
        self, path: str, query: Query, timeout: float, accept: str = JSON
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        return self._world.stream(path, query, timeout, accept)


@dataclass(slots=True)
class _Exchange:
    """What the client and its authentication use of httpx's requests and responses."""

    headers: dict[str, str]
    status_code: int = 0
    content: bytes = b""

    @property
    def text(self) -> str:
        return self.content.decode(errors="replace")


class _SlurmHttp:
    """In place of httpx.AsyncClient, which takes five times as long as all the rest of a poll."""

    def __init__(self, world: SlurmWorld, auth: TokenAuth, written: Written) -> None:
        self._world = world
        self._auth = auth
        self._written = written

    async def request(
        self, method: str, url: str, *, content: bytes | None, headers: dict[str, str], timeout: object
    ) -> _Exchange:
        flow = self._auth.auth_flow(cast(Any, _Exchange(headers)))
        asked = next(flow)
        while True:
            answer = await self._send(method, url, cast(Any, asked).headers, content or b"")
            try:
                asked = flow.send(cast(Any, answer))
            except StopIteration:
                return answer

    async def _send(self, method: str, url: str, headers: dict[str, str], content: bytes) -> _Exchange:
        lower = {name.lower(): value for name, value in headers.items()}
        status, kind, body = await self._world.serve(method, url, lower, content)
        if method != "GET":
            await self._written()
        return _Exchange({"content-type": kind}, status, body)

    async def aclose(self) -> None:
        pass


class _Completion(WorldCompletion):
    def __init__(self, world: SlurmWorld, written: Written) -> None:
        super().__init__(world)
        self._written = written

    async def complete(self, job: JobId, wait_status: int) -> bool:
        done = await super().complete(job, wait_status)
        await self._written()
        return done


async def ask(application: Application, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """One POST; the JSON of the answer."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "headers": []}
    await application(scope, receive, send)
    found: dict[str, Any] = json.loads(b"".join(m.get("body", b"") for m in sent))
    return found
