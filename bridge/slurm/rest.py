"""One exchange with slurmrestd: the version that both sides speak, the lanes, deadlines, and answers decoded.

In: SlurmSettings, and a transport in tests. Out: decoded answers, or classes of bridge.errors (table: faults.py). What
must stay true:

- A write whose outcome isn't known raises UnknownOutcome or ProtocolError: read back before deciding.
- Polls and reads have lanes of their own, so that no number of submits holds them up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

import httpx
import msgspec

from bridge.config import SlurmSettings
from bridge.errors import ConfigError, ProtocolError, UnknownOutcome
from bridge.slurm import faults, versions, wire
from bridge.slurm.auth import TokenAuth, TokenFile

POLL_LANE: Final = 2  # a poll and a ping beside the ordinary requests
NODE_LANE: Final = 1  # a list of a thousand nodes takes its time, and no poll of jobs waits behind it
READ_LANE: Final = 3  # reads of granted jobs hold GPUs up: they don't queue behind submits
ACCOUNTING_LANE: Final = 1  # slurmdbd may be slow, and each question holds a thread of slurmrestd
CONNECT_TIMEOUT: Final = 5.0  # seconds
UNCHANGED: Final = 304

Observe = Callable[[str, int, float, int], None]  # method and route, HTTP status or 0, seconds, bytes
A = TypeVar("A", bound=wire.Envelope)


class Rest:
    """Connects by itself on the first request; `connect` again after slurmrestd was replaced."""

    def __init__(
        self,
        settings: SlurmSettings,
        transport: httpx.AsyncBaseTransport | None = None,
        observe: Observe | None = None,
    ) -> None:
        lanes = settings.concurrentRequests + POLL_LANE + NODE_LANE + READ_LANE + ACCOUNTING_LANE
        self.token = TokenFile(settings.slurmTokenFile)
        self._settings = settings
        self._observe = observe
        try:
            self._http = httpx.AsyncClient(
                base_url=settings.slurmRestApi.rstrip("/"),
                auth=TokenAuth(self.token),
                transport=transport,
                limits=httpx.Limits(max_connections=lanes, max_keepalive_connections=lanes),
                headers={"accept": "application/json"},
                trust_env=False,  # a proxy meant for the internet must not see Slurm's token
            )
        except httpx.InvalidURL as error:
            raise ConfigError(f"slurmRestApi: {settings.slurmRestApi!r} is not a URL: {error}") from error
        self._ordinary = asyncio.Semaphore(settings.concurrentRequests)
        self.polls = asyncio.Semaphore(POLL_LANE)
        self.node_lists = asyncio.Semaphore(NODE_LANE)
        self.reads = asyncio.Semaphore(READ_LANE)
        self.accounts = asyncio.Semaphore(ACCOUNTING_LANE)
        self._connecting = asyncio.Lock()
        self._version = 0
        self.accounting = False  # slurmrestd can ask slurmdbd
        self._release = (0, 0)

    # --- what we speak to -------------------------------------------------------------------------

    @property
    def version(self) -> str:
        """The data_parser in use, "v0.0.45"; "" before the first connect."""
        return f"v0.0.{self._version}" if self._version else ""

    @property
    def release(self) -> tuple[int, int]:
        """Slurm's release, (26, 5); (0, 0) before the first answer."""
        return self._release

    async def connect(self) -> None:
        """Choose the newest version that both sides know. Raises ProtocolError when there is none."""
        async with self._connecting:
            await self._negotiate()

    async def _negotiate(self) -> None:
        raw = await self._exchange("GET", "/openapi/v3", "/openapi/v3", lane=self.polls)
        try:
            document = msgspec.json.decode(raw, type=wire.OpenApi)
        except msgspec.DecodeError as error:
            raise ProtocolError(f"GET /openapi/v3: not an OpenAPI document: {error}") from error
        self._version = versions.chosen(document)
        self.accounting = versions.accounts(document, self._version)
        self._note_release(document.info.slurm.version)

    async def close(self) -> None:
        await self._http.aclose()

    # --- the wire ---------------------------------------------------------------------------------

    async def connected(self) -> None:
        if not self._version:
            async with self._connecting:
                if not self._version:
                    await self._negotiate()

    async def read(
        self,
        route: str,
        path: str,
        shape: type[A],
        *,
        lane: asyncio.Semaphore,
        timeout: float | None = None,
        base: str = "slurm",
    ) -> A:
        await self.connected()
        raw = await self._exchange("GET", route, f"/{base}/{self.version}/{path}", lane=lane, timeout=timeout)
        return self._decoded(f"GET {path}", raw, shape)

    async def read_changed(
        self, route: str, path: str, shape: type[A], since: int, *, lane: asyncio.Semaphore
    ) -> A | None:
        """What `read` gives; None: nothing has changed since then, in Unix seconds of slurmctld's clock."""
        await self.connected()
        url = f"/slurm/{self.version}/{path}?update_time={since}"
        raw = await self._exchange("GET", route, url, lane=lane, quiet=True)
        return self._decoded(f"GET {path}", raw, shape) if raw else None

    def _decoded(self, what: str, raw: bytes, shape: type[A]) -> A:
        try:
            answer = msgspec.json.decode(raw, type=shape)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ProtocolError(f"{what}: undecodable answer: {error}: {_start(raw)}", status=200) from error
        if answer.errors:
            raise ProtocolError(
                f"{what}: {faults.describe(answer.errors)}",
                status=200,
                code=faults.significant(answer.errors),
            )
        self._note_release(answer.meta.slurm.version)
        return answer

    async def write(
        self, method: str, route: str, path: str, shape: type[A], body: wire.Body | None, timeout: float
    ) -> A:
        await self.connected()
        url = f"/slurm/{self.version}/{path}"
        raw = await self._exchange(method, route, url, lane=self._ordinary, body=body, timeout=timeout)
        what = f"{method} {path}"
        try:
            answer = msgspec.json.decode(raw, type=shape)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UnknownOutcome(f"{what}: undecodable answer: {error}: {_start(raw)}", status=200) from error
        number = faults.significant(answer.errors)
        if number:
            raise faults.from_number(f"{what}: {faults.describe(answer.errors)}", number, status=200)
        self._note_release(answer.meta.slurm.version)
        return answer

    async def _exchange(
        self,
        method: str,
        route: str,
        url: str,
        *,
        lane: asyncio.Semaphore,
        body: wire.Body | None = None,
        timeout: float | None = None,
        quiet: bool = False,
    ) -> bytes:
        """One request; the body of a 200, or one of our errors. `route` is the template that metrics see.

        `quiet`: Slurm may say that nothing has changed, which has no body.
        """
        limit = self._settings.readTimeout if timeout is None else timeout
        content = None if body is None else wire.encode(body)
        headers = {} if body is None else {"content-type": "application/json"}
        what = f"{method} {url}"
        async with lane:
            began = time.perf_counter()
            status, raw = 0, b""
            try:
                # httpx counts its timeouts from byte to byte; the outer deadline is for a peer that drips.
                async with asyncio.timeout(limit):
                    response = await self._http.request(
                        method,
                        url,
                        content=content,
                        headers=headers,
                        timeout=httpx.Timeout(limit, connect=min(CONNECT_TIMEOUT, limit / 2)),
                    )
                status, raw = response.status_code, response.content
            except httpx.HTTPError as error:
                raise faults.from_transport(what, error) from error
            except TimeoutError as error:
                raise UnknownOutcome(f"{what}: no complete answer within {limit:.0f} s") from error
            finally:
                if self._observe is not None:
                    self._observe(f"{method} {route}", status, time.perf_counter() - began, len(raw))
        if status == UNCHANGED and quiet and not raw:
            return b""
        if status != 200:
            raise faults.from_answer(what, response)
        if quiet and not raw:  # else it would be taken for "nothing has changed"
            raise ProtocolError(f"{what}: an empty answer", status=status)
        return raw

    def _note_release(self, version: wire.Version) -> None:
        with suppress(ValueError):  # absent: what was known stays
            self._release = (int(version.major), int(version.minor))


def _start(raw: bytes) -> str:
    return raw[:120].decode(errors="replace")
