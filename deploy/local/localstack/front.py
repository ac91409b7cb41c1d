"""One address for several replicas of the bridge: what a Service is in a cluster.

In: an address to listen on and those behind it. Out: each connection is handed to the next replica in turn; one that
refuses is passed over. Knows nothing of what is spoken, and keeps nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections.abc import Sequence

_PATIENCE = 1.0  # seconds that a replica has to accept
_CHUNK = 1 << 16

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Front:
    def __init__(self, replicas: Sequence[str]) -> None:
        self._replicas = tuple(replicas)
        self._turn = itertools.count()

    async def serve(self, listen: str) -> None:
        host, port = _split(listen)
        async with await asyncio.start_server(self._accepted, host, port) as server:
            await server.serve_forever()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            found = await self._connect()
            if found is None:
                return
            with contextlib.closing(found[1]):
                # Either side's end is the end of both: HTTP has no use for half a connection.
                ways = {
                    asyncio.ensure_future(_copy(reader, found[1])),
                    asyncio.ensure_future(_copy(found[0], writer)),
                }
                _, others = await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in others:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)

    async def _connect(self) -> Streams | None:
        first, count = next(self._turn), len(self._replicas)
        for offset in range(count):
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(_PATIENCE):
                    return await asyncio.open_connection(*_split(self._replicas[(first + offset) % count]))
        return None


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while chunk := await source.read(_CHUNK):
        sink.write(chunk)
        await sink.drain()


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


if __name__ == "__main__":
    asyncio.run(Front(sys.argv[2:]).serve(sys.argv[1]))
