"""A TCP proxy that carries a POST to the other side and breaks the connection instead of bringing the answer back."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType
from urllib.parse import urlsplit


class LossyProxy:
    """`async with LossyProxy(url) as other_url`. Only the first POST is hit; everything else passes."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._armed = True
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        async with asyncio.timeout(5.0):  # the client is closed by now, so every connection ends
            await asyncio.gather(*self._tasks)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        upstream_reader, upstream = await asyncio.open_connection(self._host, self._port)
        lost = asyncio.Event()

        async def forth() -> None:
            while data := await reader.read(65536):
                if self._armed and data.startswith(b"POST "):
                    self._armed = False
                    lost.set()
                upstream.write(data)
                await upstream.drain()

        async def back() -> None:
            while data := await upstream_reader.read(65536):
                if lost.is_set():  # the answer is here, so the deed is done
                    return
                writer.write(data)
                await writer.drain()

        directions = [asyncio.create_task(forth()), asyncio.create_task(back())]
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for direction in directions:
                direction.cancel()
            await asyncio.gather(*directions, return_exceptions=True)
            upstream.close()
            writer.close()
            for end in (upstream, writer):
                with suppress(OSError):
                    await end.wait_closed()
