"""Bytes to and from the API server, and the one table that turns its failures into ours.

| what comes back                                   | raised                                   |
|---------------------------------------------------|------------------------------------------|
| 400, 413, 422                                     | Invalid                                  |
| 422 about metadata.uid (a PATCH of another UID)   | Conflict                                 |
| 401, 403                                          | Denied                                   |
| 404 with a Status of reason NotFound and a name   | NotFound                                 |
| 404 without (unknown resource, wrong URL, proxy)  | ProtocolError                            |
| 409                                               | Conflict, code = the Status' reason      |
| 410                                               | Gone                                     |
| 429, 503                                          | Busy, retry_after in seconds             |
| 500, 502, 504; reset, EOF or time-out after send  | UnknownOutcome                           |
| refused, no route, TLS failure, connect time-out  | Unreachable                              |
| any other status; truncated body; not JSON        | ProtocolError                            |

`status` of the error is the HTTP status (0 if there was none), `code` the reason of the Status object.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlencode

import aiohttp
import msgspec
from kubernetes_asyncio import config as kube_config
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.client.rest import RESTClientObject
from yarl import URL

from bridge.errors import (
    BridgeError,
    Busy,
    ConfigError,
    Conflict,
    Denied,
    Gone,
    Invalid,
    NotFound,
    ProtocolError,
    UnknownOutcome,
    Unreachable,
)

JSON = "application/json"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"  # of the objects of a watch
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
STRATEGIC_MERGE = "application/strategic-merge-patch+json"
CONNECTIONS = 64  # to the API server at once; each open watch holds one
CONNECT_TIMEOUT = 5.0  # seconds for TCP and TLS
RELOAD_PAUSE = 10.0  # seconds between two readings of the kubeconfig after a 401
USER_AGENT = "slurm-bridge"
DEFAULT_KUBECONFIG = os.path.expanduser("~/.kube/config")

Query = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes


class Wire(Protocol):
    """What the client needs. `request` raises Unreachable, UnknownOutcome, ProtocolError; a status is a
    Reply.
    """

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
    ) -> Reply: ...

    def stream(
        self, path: str, query: Query, timeout: float, accept: str = JSON
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Open a watch: complete lines until EOF. Entering raises by the table; `timeout`: seconds of
        silence.
        """
        ...


class StatusView(msgspec.Struct):
    """metav1.Status, as far as we read it."""

    class Cause(msgspec.Struct):
        field: str = ""

    class Details(msgspec.Struct, rename="camel"):
        name: str = ""
        retry_after_seconds: int = 0
        causes: list[StatusView.Cause] | None = None

    kind: str = ""
    reason: str = ""
    message: str = ""
    details: Details | None = None


_STATUS = msgspec.json.Decoder(StatusView)
_BY_STATUS: Mapping[int, type[BridgeError]] = {
    400: Invalid, 413: Invalid, 422: Invalid, 404: NotFound, 409: Conflict, 410: Gone,
}  # fmt: skip


def refusal(status: int, headers: Mapping[str, str], body: bytes, what: str) -> BridgeError:
    """The table above for an answer that isn't a success. `what` says who was asked: "patch pods a/b"."""
    found: StatusView | None
    try:
        found = _STATUS.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        found = None
    if found is not None and found.kind != "Status":
        found = None
    said = found.message if found else body[:200].decode("utf-8", "replace")
    code = found.reason if found else ""
    text = f"{what}: {status} {code}: {said}"
    if status in (401, 403):
        return Denied(text, status=status, code=code)
    if status in (429, 503):
        wait = _seconds(headers.get("Retry-After", ""))
        if not wait and found and found.details:
            wait = float(found.details.retry_after_seconds)
        return Busy(text, status=status, code=code, retry_after=wait)
    if status in (500, 502, 504):
        return UnknownOutcome(text, status=status, code=code)
    kind = _BY_STATUS.get(status)
    # A proxy or a wrong URL answers without a Status, an unknown resource without a name: neither tells
    # us anything about the object that we meant.
    named = found is not None and found.details is not None and bool(found.details.name)
    if kind is None or found is None or (status == 404 and not (code == "NotFound" and named)):
        return ProtocolError(text, status=status, code=code)
    if status == 422 and any(
        c.field == "metadata.uid" for c in (found.details and found.details.causes) or ()
    ):
        kind = Conflict
    return kind(text, status=status, code=code)


def _seconds(text: str) -> float:
    return float(text) if text.isdigit() else 0.0


def _broken(error: Exception, what: str) -> BridgeError:
    """The rows of the table in which there is no status. Order matters: aiohttp's classes overlap."""
    said = f"{what}: {type(error).__name__} {error}"
    if isinstance(error, aiohttp.ConnectionTimeoutError | aiohttp.ClientConnectorError):
        return Unreachable(said)
    if isinstance(error, aiohttp.ClientPayloadError):
        return ProtocolError(said)
    if isinstance(error, aiohttp.ClientConnectionError | aiohttp.ClientConnectionResetError | OSError):
        return UnknownOutcome(said)  # TimeoutError is an OSError
    return ProtocolError(said)


class ClusterWire:
    """The real API server, through kubernetes_asyncio's configuration, authentication and aiohttp session.

    In-cluster tokens are read again by its hook. A kubeconfig (exec plugin, rotated file) is loaded again
    after a 401, at most every RELOAD_PAUSE seconds, and the refused request is sent once more: a 401 did
    nothing.
    """

    def __init__(self, configuration: Any, kubeconfig: str | None) -> None:
        self._configuration = configuration
        self._kubeconfig = kubeconfig  # None = in-cluster
        self._rest = RESTClientObject(configuration, maxsize=CONNECTIONS)
        self._session: aiohttp.ClientSession = self._rest.pool_manager
        # The proxy comes from the configuration; looking for one, and for a .netrc, costs two thread hops a request.
        self._session._trust_env = False
        self._base = str(configuration.host).rstrip("/")
        self._reloading = asyncio.Lock()
        self._reloaded = float("-inf")

    @classmethod
    async def connect(cls, kubeconfig: str | None = None) -> ClusterWire:
        """`kubeconfig` None: the ServiceAccount when we run in a pod, else $KUBECONFIG or ~/.kube/config."""
        if kubeconfig is None and not os.environ.get("KUBERNETES_SERVICE_HOST"):
            kubeconfig = os.environ.get("KUBECONFIG") or DEFAULT_KUBECONFIG
        return cls(await _load(kubeconfig), kubeconfig)

    async def close(self) -> None:
        await self._rest.close()

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
        limit = aiohttp.ClientTimeout(total=timeout, connect=min(CONNECT_TIMEOUT, timeout))
        headers = {"Accept": accept}
        if body is not None:
            headers["Content-Type"] = content_type
        for last in (False, True):
            try:
                async with self._session.request(
                    method,
                    self._url(path, query),
                    data=body,
                    headers=headers | await self._credentials(),
                    timeout=limit,
                    **self._extra(),
                ) as answer:
                    reply = Reply(answer.status, answer.headers, await answer.read())
            except (aiohttp.ClientError, OSError) as error:
                raise _broken(error, f"{method} {path}") from error
            if reply.status != 401 or last or not await self._reload():
                break
        return reply

    @asynccontextmanager
    async def stream(
        self, path: str, query: Query, timeout: float, accept: str = JSON
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        limit = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT, sock_read=timeout)
        what = f"WATCH {path}"
        try:
            async with self._session.get(
                self._url(path, query),
                headers={"Accept": accept} | await self._credentials(),
                timeout=limit,
                **self._extra(),
            ) as answer:
                if answer.status != 200:
                    body = await answer.read()
                    if answer.status == 401:
                        await self._reload()  # the caller opens again
                    raise refusal(answer.status, answer.headers, body, what)
                async with aclosing(_lines(answer.content, what)) as lines:
                    yield lines
        except (aiohttp.ClientError, OSError) as error:
            raise _broken(error, what) from error

    def _url(self, path: str, query: Query | None) -> URL:
        return URL(f"{self._base}{path}" + (f"?{urlencode(query)}" if query else ""), encoded=True)

    def _extra(self) -> dict[str, Any]:
        extra: dict[str, Any] = {}
        if self._rest.proxy:
            extra["proxy"] = self._rest.proxy
        if self._rest.proxy_headers:
            extra["proxy_headers"] = self._rest.proxy_headers
        if self._rest.server_hostname:
            extra["server_hostname"] = self._rest.server_hostname
        return extra

    async def _credentials(self) -> dict[str, str]:
        token = await self._configuration.get_api_key_with_prefix("BearerToken")
        return {"User-Agent": USER_AGENT} | ({"Authorization": token} if token else {})

    async def _reload(self) -> bool:
        """Load credentials again after a 401; False if that was tried just now."""
        asked = time.monotonic()
        async with self._reloading:
            if self._reloaded > asked:
                return True  # somebody else did while we queued
            if asked - self._reloaded < RELOAD_PAUSE:
                return False
            self._reloaded = time.monotonic()
            try:
                fresh = await _load(self._kubeconfig)
            except ConfigError:
                return False
            self._configuration.api_key = fresh.api_key
            self._configuration.refresh_api_key_hook = fresh.refresh_api_key_hook
            return True


async def _load(kubeconfig: str | None) -> Any:
    """A Configuration of our own, not the process-wide default; None = in-cluster. Raises ConfigError."""
    configuration = type.__call__(Configuration)
    loader: Any = kube_config  # half of its functions carry no types
    try:
        if kubeconfig is None:
            loader.load_incluster_config(client_configuration=configuration)
        else:
            await loader.load_kube_config(
                config_file=kubeconfig, client_configuration=configuration, persist_config=False
            )
    except Exception as error:  # YAML, attribute and plugin errors come through as they are
        where = kubeconfig or "the pod's ServiceAccount"
        raise ConfigError(
            f"{where}: {type(error).__name__}: {error}; give a working kubeconfig or run in a pod"
        ) from error
    return configuration


async def _lines(content: aiohttp.StreamReader, what: str) -> AsyncGenerator[bytes, None]:
    """Complete lines; an unfinished last one is dropped, since the watch resumes before it."""
    rest = b""
    try:
        async for chunk in content.iter_any():
            head, found, tail = chunk.rpartition(b"\n")
            if not found:
                rest += chunk
                continue
            for line in (rest + head).split(b"\n"):
                if line:
                    yield line
            rest = tail
    except (aiohttp.ClientError, OSError) as error:
        raise _broken(error, what) from error
