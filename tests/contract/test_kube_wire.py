"""Every row of the error table, through the real client over real sockets, and the same through the world.

The API server can't be made to answer most of these on demand, so a few lines of HTTP stand in for it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bridge.core.lease import LeaseRecord
from bridge.core.model import KubeNode, Pod, Uid
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
from bridge.kube.client import ClusterWire, KubeClient
from bridge.kube.kinds import pods
from bridge.kube.wire import CONNECTIONS
from tests.contract import kube_fixture
from tests.contract.kube_fixture import Side
from tests.worlds.kube import KubeWorld
from tests.worlds.kube_faults import Answer, DropAfter, DropBefore, Effect, Hang, Truncate
from tests.worlds.kube_storage import status

side = kube_fixture.side

POD = json.dumps({"metadata": {"name": "a", "namespace": "b", "uid": "u", "resourceVersion": "5"}}).encode()


@dataclass
class Stub:
    """Answers every request with `reply`, byte for byte."""

    reply: Callable[[bytes], bytes | None]  # the request's head → bytes; None = say nothing
    port: int = 0
    heads: list[bytes] = field(default_factory=list)
    connections: int = 0
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.add(asyncio.ensure_future(self.serve(reader, writer)))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        await reader.readexactly(int(line.split(b":")[1]))
                answer = self.reply(head)
                if answer is None:
                    await reader.read()  # until the client gives up
                    break
                writer.write(answer)
                await writer.drain()
                if b"connection: close" in answer.lower():
                    break
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def http(code: int, body: bytes, **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {code} X", "Content-Type: application/json"]
    lines += [f"{key.replace('_', '-')}: {value}" for key, value in headers.items()]
    if "Content_Length" not in headers:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@asynccontextmanager
async def stub(
    reply: Callable[[bytes], bytes | None], folder: Path
) -> AsyncIterator[tuple[Stub, KubeClient]]:
    made = Stub(reply)
    server = await asyncio.start_server(made.accept, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    config = folder / "kubeconfig"
    write_config(config, made.port, "one")
    wire = await ClusterWire.connect(str(config))
    try:
        yield made, KubeClient(wire)
    finally:
        await wire.close()
        server.close()
        await server.wait_closed()
        await asyncio.gather(*made.tasks)


def write_config(path: Path, port: int, token: str) -> None:
    body = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(body))


UID_CAUSE = [{"field": "metadata.uid", "reason": "FieldValueInvalid"}]
ROWS = [
    (400, status(400, "BadRequest", "no"), {}, Invalid, "BadRequest"),
    (401, status(401, "Unauthorized", "no"), {}, Denied, "Unauthorized"),
    (403, status(403, "Forbidden", "no"), {}, Denied, "Forbidden"),
    (403, b"<html>", {}, Denied, ""),
    (404, status(404, "NotFound", "no", name="a", kind="pods"), {}, NotFound, "NotFound"),
    (404, status(404, "NotFound", "could not find the requested resource"), {}, ProtocolError, "NotFound"),
    (404, b"404 page not found\n", {}, ProtocolError, ""),
    (404, b'{"kind":"Error","reason":"NotFound","details":{"name":"a"}}', {}, ProtocolError, ""),
    (409, status(409, "AlreadyExists", "no", name="a"), {}, Conflict, "AlreadyExists"),
    (409, status(409, "Conflict", "no", name="a"), {}, Conflict, "Conflict"),
    (409, b"<html>", {}, ProtocolError, ""),
    (410, status(410, "Expired", "no"), {}, Gone, "Expired"),
    (413, status(413, "RequestEntityTooLarge", "no"), {}, Invalid, "RequestEntityTooLarge"),
    (422, status(422, "Invalid", "no", name="a"), {}, Invalid, "Invalid"),
    (422, status(422, "Invalid", "no", name="a", causes=UID_CAUSE), {}, Conflict, "Invalid"),
    (429, status(429, "TooManyRequests", "no"), {"Retry_After": "7"}, Busy, "TooManyRequests"),
    (429, status(429, "TooManyRequests", "no", retryAfterSeconds=7), {}, Busy, "TooManyRequests"),
    (503, b"<html>no backend</html>", {"Retry_After": "7"}, Busy, ""),
    (500, status(500, "InternalError", "no"), {}, UnknownOutcome, "InternalError"),
    (502, b"<html>", {}, UnknownOutcome, ""),
    (504, status(504, "Timeout", "no"), {}, UnknownOutcome, "Timeout"),
    (418, b"teapot", {}, ProtocolError, ""),
    (302, b"", {}, ProtocolError, ""),
]
IDS = [f"{row[0]}-{row[3].__name__}-{i}" for i, row in enumerate(ROWS)]


@pytest.mark.parametrize(("code", "body", "headers", "kind", "reason"), ROWS, ids=IDS)
async def test_each_row_of_the_table_over_a_socket(
    tmp_path: Path, code: int, body: bytes, headers: dict[str, str], kind: type[BridgeError], reason: str
) -> None:
    async with stub(lambda _: http(code, body, **headers), tmp_path) as (_, client):
        with pytest.raises(BridgeError) as found:
            await client.pod("b", "a")
        with pytest.raises(kind):
            async with client.watch(pods(), "1", seconds=5, silence=5):
                pytest.fail("a refused watch was opened")
    assert type(found.value) is kind
    assert (found.value.status, found.value.code) == (code, reason)
    if isinstance(found.value, Busy):
        assert found.value.retry_after == 7.0


@pytest.mark.parametrize(("code", "body", "headers", "kind", "reason"), ROWS, ids=IDS)
async def test_each_row_of_the_table_in_the_world(
    code: int, body: bytes, headers: dict[str, str], kind: type[BridgeError], reason: str
) -> None:
    world = KubeWorld()
    spelled = {key.replace("_", "-"): value for key, value in headers.items()}
    world.faults.plan(Answer(code, body or b"-", spelled), times=2)
    client = KubeClient(world)
    with pytest.raises(BridgeError) as found:
        await client.pod("b", "a")
    with pytest.raises(kind):
        async with client.watch(pods(), "1", seconds=5, silence=5):
            pytest.fail("a refused watch was opened")
    assert (type(found.value), found.value.status, found.value.code) == (kind, code, reason)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (http(200, POD[:30], Content_Length=str(len(POD)), Connection="close"), ProtocolError),
        (http(200, POD[:-1]), ProtocolError),
        (http(200, b"<html>hello</html>"), ProtocolError),
        (http(200, b'{"metadata": {"name": 7}}'), ProtocolError),
        (b"SSH-2.0-OpenSSH\r\n\r\n", ProtocolError),
    ],
    ids=["cut off", "last brace missing", "html", "wrong type", "not http"],
)
async def test_a_broken_answer_proves_nothing(tmp_path: Path, answer: bytes, kind: type[BridgeError]) -> None:
    async with stub(lambda _: answer, tmp_path) as (_, client):
        with pytest.raises(kind):
            await client.pod("b", "a")


async def test_a_binding_answered_by_a_web_page_is_not_taken_as_done(tmp_path: Path) -> None:
    async with stub(lambda _: http(200, b"<html>welcome</html>"), tmp_path) as (_, client):
        with pytest.raises(ProtocolError):
            await client.bind("b", "a", Uid("u"), KubeNode("n"))


async def test_a_reset_after_the_request_leaves_the_outcome_unknown(tmp_path: Path) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    config = tmp_path / "kubeconfig"
    write_config(config, server.sockets[0].getsockname()[1], "one")
    wire = await ClusterWire.connect(str(config))
    with pytest.raises(UnknownOutcome):
        await KubeClient(wire).patch_pod(_pod(), labels={"a": "b"})
    await wire.close()
    server.close()
    await server.wait_closed()


async def test_no_answer_within_the_deadline_leaves_the_outcome_unknown(tmp_path: Path) -> None:
    async with stub(lambda _: None, tmp_path) as (_, client):
        with pytest.raises(UnknownOutcome):
            await client.lease("b", "a", timeout=0.05)


async def test_a_closed_port_is_unreachable(tmp_path: Path) -> None:
    server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    write_config(tmp_path / "kubeconfig", port, "one")
    wire = await ClusterWire.connect(str(tmp_path / "kubeconfig"))
    with pytest.raises(Unreachable):
        await KubeClient(wire).pod("b", "a")
    with pytest.raises(Unreachable):
        async with KubeClient(wire).watch(pods(), "1", seconds=5, silence=5):
            pytest.fail("a watch was opened on a closed port")
    await wire.close()


async def test_one_connection_serves_many_calls(tmp_path: Path) -> None:
    async with stub(lambda _: http(200, POD), tmp_path) as (made, client):
        for _ in range(20):
            assert (await client.pod("b", "a")).uid == "u"
        assert made.connections == 1
        await asyncio.gather(*(client.pod("b", "a") for _ in range(CONNECTIONS * 2)))
        assert made.connections <= CONNECTIONS


async def test_a_rotated_kubeconfig_is_read_again_after_a_401(tmp_path: Path) -> None:
    def reply(head: bytes) -> bytes:
        return http(200, POD) if b"Bearer two" in head else http(401, status(401, "Unauthorized", "no"))

    async with stub(reply, tmp_path) as (made, client):
        write_config(tmp_path / "kubeconfig", made.port, "two")
        assert (await client.pod("b", "a")).name == "a"
        assert (await client.pod("b", "a")).name == "a"
        assert len(made.heads) == 3


async def test_a_watch_yields_complete_lines_and_stops_at_the_end(tmp_path: Path) -> None:
    long = b'{"x":"' + b"y" * 300_000 + b'"}'
    body = b'{"a":1}\n' + long + b'\n{"cut":'
    async with (
        stub(lambda _: http(200, body), tmp_path) as (_, client),
        client.watch(pods(), "1", seconds=5, silence=5) as lines,
    ):
        assert [line async for line in lines] == [b'{"a":1}', long]


async def test_a_silent_watch_ends_with_an_error(tmp_path: Path) -> None:
    head = b'HTTP/1.1 200 X\r\nContent-Length: 999\r\n\r\n{"a":1}\n'
    async with (
        stub(lambda _: head, tmp_path) as (_, client),
        client.watch(pods(), "1", seconds=5, silence=1.0) as lines,
    ):
        assert await anext(lines) == b'{"a":1}'
        with pytest.raises(UnknownOutcome):
            await anext(lines)


@pytest.mark.parametrize("text", ["", "not: [yaml", '{"clusters": []}'])
async def test_a_kubeconfig_that_does_not_work_names_the_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(ConfigError, match="kubeconfig"):
        await ClusterWire.connect(str(path))


async def test_a_missing_kubeconfig_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        await ClusterWire.connect(str(tmp_path / "nowhere"))


async def test_accidents_of_the_world_are_done_or_not_done_as_they_say() -> None:
    world = KubeWorld(sleep=lambda _: asyncio.sleep(0))
    client = KubeClient(world)
    world.add("pods", {"metadata": {"name": "a"}, "spec": {"containers": []}})
    pod = await client.pod("default", "a")
    accidents: list[tuple[Effect, type[BridgeError], bool]] = [
        (DropBefore(), Unreachable, False),
        (Hang(), UnknownOutcome, False),
        (DropAfter(), UnknownOutcome, True),
        (Hang(done=True), UnknownOutcome, True),
        (Truncate(), ProtocolError, True),
    ]
    for effect, kind, done in accidents:
        world.faults.plan(effect, verb="patch")
        word = str(effect).partition("(")[0] + str(done)
        with pytest.raises(kind):
            await client.patch_pod(pod, labels={"seen": word})
        assert ((await client.pod("default", "a")).labels.get("seen") == word) is done


async def test_a_refused_right_is_denied(side: Side) -> None:
    with pytest.raises(Denied) as found:
        await side.denied.create_lease(side.namespace, "x", LeaseRecord(holder="me"))
    assert (found.value.status, found.value.code) == (403, "Forbidden")


def _pod() -> Pod:
    return Pod(namespace="b", name="a", uid=Uid("u"))
