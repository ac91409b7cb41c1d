"""A reverse proxy between the bridge and slurmrestd that can be told to fail.

In: the address of slurmrestd, and at any moment one `Fault` or none. Out: a URL for `slurmRestApi`. It runs on a thread
of its own. Each request goes to slurmrestd over a connection of its own, so that nothing of one request is left for
the next; what the client sees is up to the fault (tests/e2e/faults.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

_PREFIX = re.compile(r"^/slurm/v[\d.]+/")
_DROPPED = (OSError, EOFError, asyncio.IncompleteReadError)


@dataclass(frozen=True)
class Message:
    """A request or an answer: first line, headers, body."""

    head: bytes  # with the empty line that ends it
    body: bytes

    @property
    def route(self) -> str:
        """Of a request: "GET jobs/state/", without the version of the API."""
        method, target, _ = self.head.split(b"\r\n", 1)[0].decode().split(" ")
        return f"{method} {_PREFIX.sub('', target).partition('?')[0]}"

    @property
    def status(self) -> int:
        return int(self.head.split(b" ", 2)[1])

    @property
    def last(self) -> bool:
        """Nothing follows on this connection. slurmrestd closes after every answer that isn't 200."""
        return b"\r\nconnection: close" in self.head.lower()

    def data(self) -> Any:
        return json.loads(self.body)

    def __bytes__(self) -> bytes:
        return self.head + self.body


def answer(status: int, body: str, *, kind: str = "application/json") -> Message:
    """As slurmrestd writes one."""
    close = "" if status == 200 else "Connection: Close\r\n"
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase.upper()}\r\n{close}"
        f"Content-Length: {len(body.encode())}\r\nContent-Type: {kind}\r\n\r\n"
    )
    return Message(head.encode(), body.encode())


class Exchange:
    """One request that a fault has to do with, and what may be done about it."""

    def __init__(
        self, request: Message, client: asyncio.StreamWriter, upstream: str, over: asyncio.Event
    ) -> None:
        self.request = request
        self._client, self._upstream, self._over = client, upstream, over

    async def ask(self) -> Message:
        """What slurmrestd really answers; whatever the request asks for is done."""
        return await self.ask_for(self.request)

    async def ask_for(self, request: Message) -> Message:
        place = urlsplit(self._upstream)
        reader, writer = await asyncio.open_connection(place.hostname, place.port, limit=1 << 20)
        with contextlib.closing(writer):
            writer.write(bytes(request))
            return await _read(reader)

    async def send(self, raw: bytes) -> None:
        self._client.write(raw)
        await self._client.drain()

    async def until_over(self, seconds: float | None = None) -> bool:
        """Waits for the end of the fault, at most so long. True if it has ended."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), seconds)
        return self._over.is_set()

    def reset(self) -> None:
        """The connection ends with a RST instead of an orderly end."""
        connection: socket.socket = self._client.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


Act = Callable[[Exchange], Awaitable[Message | None]]
"""What the client gets instead. None: nothing, and the connection ends."""


@dataclass(frozen=True)
class Fault:
    name: str
    act: Act


class FaultProxy:
    def __init__(self, upstream: str) -> None:
        self.faulted: dict[str, int] = {}  # by route, since the last fault began
        self._upstream = upstream
        self._fault: Fault | None = None
        self._over = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault proxy", daemon=True)
        self._thread.start()
        self._clients: set[asyncio.Task[None]] = set()
        self._server = self._run(asyncio.start_server(self._accepted, "127.0.0.1", 0, limit=1 << 20))
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @contextmanager
    def failing(self, fault: Fault) -> Iterator[None]:
        """Every request is treated by this fault. Requests under way when it begins are not."""
        self._run(self._switch(fault))
        try:
            yield
        finally:
            self._run(self._switch(None))

    def close(self) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _switch(self, fault: Fault | None) -> None:
        self._over.set()
        self._fault, self._over = fault, asyncio.Event()
        if fault is not None:
            self.faulted = {}

    async def _stop(self) -> None:
        self._server.close()
        for task in self._clients:
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        task.add_done_callback(self._clients.discard)
        with contextlib.closing(writer), contextlib.suppress(*_DROPPED, asyncio.CancelledError):
            while True:
                exchange = Exchange(await _read(reader), writer, self._upstream, self._over)
                reply = await self._treat(exchange)
                if reply is None:
                    return
                await exchange.send(bytes(reply))
                if reply.last:
                    return

    async def _treat(self, exchange: Exchange) -> Message | None:
        if self._fault is None:
            return await exchange.ask()
        route = exchange.request.route
        self.faulted[route] = self.faulted.get(route, 0) + 1
        return await self._fault.act(exchange)


async def _read(reader: asyncio.StreamReader) -> Message:
    """One message. slurmrestd and the bridge both tell the length; what has no length has no body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    assert b"transfer-encoding" not in head.lower(), head
    return Message(head, await reader.readexactly(int(length[1])) if length else b"")
