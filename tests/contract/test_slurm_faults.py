"""The error table of bridge.slurm.faults, row by row, and what the auth flow does about tokens."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from bridge.config import SlurmSettings
from bridge.core.model import JobId
from bridge.errors import (
    BridgeError,
    Busy,
    Conflict,
    Denied,
    Invalid,
    NotFound,
    ProtocolError,
    UnknownOutcome,
    Unreachable,
)
from bridge.slurm.auth import expires_in
from bridge.slurm.client import SlurmClient
from tests.contract.slurm_fixture import spec
from tests.worlds.slurm import SlurmWorld
from tests.worlds.slurm_faults import Fault, Kind

JOB = JobId(0x02000001)
Answer = Callable[[httpx.Request], httpx.Response]


@pytest.fixture
def settings(tmp_path: Path) -> SlurmSettings:
    token = tmp_path / "token"
    token.write_text("SLURM_JWT=token\n")
    return SlurmSettings(slurmRestApi="http://slurm", slurmTokenFile=token)


def client_of(settings: SlurmSettings, answer: Answer) -> SlurmClient:
    """A client whose version is settled, and whose every request gets that answer."""
    client = SlurmClient(settings, transport=httpx.MockTransport(answer))
    client._version = 45
    return client


def slurm_error(number: int) -> dict[str, object]:
    return {"errors": [{"description": "It failed", "error_number": number, "error": "why"}], "warnings": []}


def html(status: int) -> httpx.Response:
    return httpx.Response(status, html="<html>" + "x" * 5000 + "</html>")


REFUSED: list[tuple[httpx.Response, type[BridgeError], int]] = [
    (httpx.Response(401, text="Authentication failure"), Denied, 0),
    (httpx.Response(511, json=slurm_error(1007)), Denied, 1007),
    (httpx.Response(500, json=slurm_error(1007)), Denied, 1007),
    (httpx.Response(429, text="slow down"), Busy, 0),
    (httpx.Response(503, text="no backend", headers={"retry-after": "7"}), Busy, 0),
    (httpx.Response(422, json=slurm_error(11)), Busy, 11),
    (httpx.Response(422, json=slurm_error(2011)), Conflict, 2011),
    (httpx.Response(500, json=slurm_error(2011)), Conflict, 2011),
    (httpx.Response(404, json=slurm_error(2017)), NotFound, 2017),
    (httpx.Response(422, json=slurm_error(2010)), Denied, 2010),
    (httpx.Response(422, json=slurm_error(2002)), Denied, 2002),
    (httpx.Response(403, json=slurm_error(1)), UnknownOutcome, 1),
    (httpx.Response(500, json=slurm_error(-1)), UnknownOutcome, -1),
    (httpx.Response(502, json=slurm_error(1800)), UnknownOutcome, 1800),
    (httpx.Response(504, json=slurm_error(5004)), UnknownOutcome, 5004),
    (httpx.Response(422, json=slurm_error(2014)), Invalid, 2014),
    (httpx.Response(500, json=slurm_error(9207)), Invalid, 9207),
    (httpx.Response(404, json=slurm_error(2018)), Invalid, 2018),
    (html(500), UnknownOutcome, 0),
    (html(502), UnknownOutcome, 0),
    (html(504), UnknownOutcome, 0),
    (httpx.Response(500, text="Unspecified error"), UnknownOutcome, 0),
    (httpx.Response(404, text="Unable to find requested URL endpoint."), ProtocolError, 0),
    (httpx.Response(404, json={"detail": "Not Found"}), ProtocolError, 0),
    (html(404), ProtocolError, 0),
    (httpx.Response(400, text="Failure during parsing"), ProtocolError, 0),
    (httpx.Response(302, headers={"location": "http://login"}), ProtocolError, 0),
    (httpx.Response(304), ProtocolError, 0),
]


def again(response: httpx.Response) -> Answer:
    return lambda _: httpx.Response(response.status_code, headers=response.headers, content=response.content)


@pytest.mark.parametrize(("response", "expected", "code"), REFUSED)
async def test_an_answer_that_is_not_200_becomes_the_class_of_its_row(
    settings: SlurmSettings, response: httpx.Response, expected: type[BridgeError], code: int
) -> None:
    client = client_of(settings, again(response))
    for call in (client.states(), client.job(JOB), client.submit(JOB, spec()), client.cancel(JOB)):
        with pytest.raises(BridgeError) as caught:
            await call
        assert type(caught.value) is expected
        assert (caught.value.status, caught.value.code) == (response.status_code, code)
        assert len(str(caught.value)) <= 300
        if isinstance(caught.value, Busy):
            assert caught.value.retry_after == float(response.headers.get("retry-after", 0))
    await client.close()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (httpx.ConnectError("refused"), Unreachable),
        (httpx.ConnectTimeout("slow"), Unreachable),
        (httpx.PoolTimeout("full"), Unreachable),
        (httpx.UnsupportedProtocol("ftp"), Unreachable),
        (httpx.ReadTimeout("slow"), UnknownOutcome),
        (httpx.ReadError("reset"), UnknownOutcome),
        (httpx.WriteError("reset"), UnknownOutcome),
        (httpx.RemoteProtocolError("closed"), UnknownOutcome),
        (httpx.CloseError("closed"), UnknownOutcome),
    ],
)
async def test_no_answer_is_unreachable_only_if_nothing_was_sent(
    settings: SlurmSettings, error: httpx.HTTPError, expected: type[BridgeError]
) -> None:
    def fail(_: httpx.Request) -> httpx.Response:
        raise error

    client = client_of(settings, fail)
    for call in (client.states(), client.ping(), client.submit(JOB, spec()), client.cancel(JOB)):
        with pytest.raises(BridgeError) as caught:
            await call
        assert type(caught.value) is expected
        assert caught.value.__cause__ is error
    await client.close()


BROKEN = [
    b"",
    b"<html>login</html>",
    b'{"jobs": [',
    b"[]",
    b"null",
    b"{}",
    b'{"jobs": null, "status": null, "job_id": null}',
    b'{"errors": [], "warnings": []',
    b"\xff\xfe",
]


@pytest.mark.parametrize("body", BROKEN)
async def test_a_broken_200_proves_nothing(settings: SlurmSettings, body: bytes) -> None:
    client = client_of(settings, lambda _: httpx.Response(200, content=body))
    for read in (client.states(), client.job(JOB), client.boot_time(), client.ping()):
        with pytest.raises(ProtocolError):
            await read
    with pytest.raises(UnknownOutcome):
        await client.cancel(JOB)
    with pytest.raises(Invalid if body == b"{}" else UnknownOutcome):
        await client.submit(JOB, spec())
    await client.close()


async def test_a_200_with_errors_is_never_an_empty_list(settings: SlurmSettings) -> None:
    for number in (0, 2017, -1):
        body = {"jobs": [], "pings": [], "status": [], **slurm_error(number)}
        client = client_of(settings, lambda _, body=body: httpx.Response(200, json=body))  # type: ignore[misc]
        for read in (client.states(), client.job(JOB), client.ping()):
            with pytest.raises(ProtocolError):
                await read
        await client.close()


async def test_a_200_with_an_error_number_refuses_a_write_by_that_number(settings: SlurmSettings) -> None:
    client = client_of(settings, lambda _: httpx.Response(200, json={"status": [], **slurm_error(2011)}))
    for write in (client.submit(JOB, spec()), client.cancel(JOB), client.update_comment(JOB, "x")):
        with pytest.raises(Conflict):
            await write
    await client.close()


async def test_an_empty_list_is_a_value(settings: SlurmSettings) -> None:
    client = client_of(settings, lambda _: httpx.Response(200, json={"jobs": [], "errors": []}))
    assert await client.states() == {}
    with pytest.raises(ProtocolError):  # but for a single job it is no proof of anything
        await client.job(JOB)
    await client.close()


async def test_het_components_and_array_tasks_count_under_their_number(settings: SlurmSettings) -> None:
    listed = [{"job_id": i, "state": ["RUNNING"]} for i in ("7", "34774386+0", "34774387+1", "12_3")]
    client = client_of(settings, lambda _: httpx.Response(200, json={"jobs": listed}))
    assert set(await client.states()) == {7, 34774386, 34774387, 12}
    await client.close()
    listed.append({"job_id": "many", "state": ["RUNNING"]})
    client = client_of(settings, lambda _: httpx.Response(200, json={"jobs": listed}))
    with pytest.raises(ProtocolError):
        await client.states()
    await client.close()


async def test_another_id_than_asked_for_is_a_protocol_error(settings: SlurmSettings) -> None:
    client = client_of(settings, lambda _: httpx.Response(200, json={"job_id": 17}))
    with pytest.raises(ProtocolError, match="17"):
        await client.submit(JOB, spec())
    await client.close()


@pytest.mark.parametrize(
    ("code", "expected"), [(2002, Denied), (2010, Denied), (1800, UnknownOutcome), (9000, Invalid)]
)
async def test_a_failed_kill_hides_in_the_status_list(
    settings: SlurmSettings, code: int, expected: type[BridgeError]
) -> None:
    body = {"status": [{"error": {"code": code, "string": "no"}, "step_id": "1"}], "errors": []}
    client = client_of(settings, lambda _: httpx.Response(200, json=body))
    with pytest.raises(expected):
        await client.cancel(JOB)
    await client.close()


async def test_a_hanging_peer_costs_the_deadline_and_no_more(settings: SlurmSettings) -> None:
    world = SlurmWorld()
    hasty = settings.model_copy(update={"submitTimeout": 0.2, "readTimeout": 0.2})
    client, patient = (SlurmClient(s, transport=httpx.ASGITransport(world)) for s in (hasty, settings))
    client._version = 45
    hang = world.faults.add(Fault(pattern="job/submit|jobs/state", kind=Kind.HANG, times=0))
    with pytest.raises(UnknownOutcome):
        await client.submit(JOB, spec())
    with pytest.raises(UnknownOutcome):
        await client.states()
    assert hang.hits == 2
    world.faults.clear()
    assert await patient.states() == {}
    await client.close()
    await patient.close()


async def test_no_common_version_says_which_are_served(settings: SlurmSettings) -> None:
    paths: dict[str, object] = {"/slurm/v0.0.40/job/submit": {}, "/slurm/v0.0.46/job/submit": {}}
    client = client_of(settings, lambda _: httpx.Response(200, json={"paths": paths}))
    with pytest.raises(ProtocolError, match=r"40, 46.*24\.11"):
        await client.connect()
    paths["/slurm/v0.0.44/job/submit"] = {}
    await client.connect()
    assert client.version == "v0.0.44"
    await client.close()


# --- tokens ---------------------------------------------------------------------------------------


async def test_a_rotated_token_is_used_at_once_without_a_refusal(settings: SlurmSettings) -> None:
    world = SlurmWorld()
    client = SlurmClient(settings, transport=httpx.ASGITransport(world))
    await client.states()
    world.token = "fresh"
    settings.slurmTokenFile.write_text("fresh")
    before = len(world.requests)
    await client.states()
    assert len(world.requests) == before + 1
    await client.close()


async def test_a_refused_token_is_read_again_and_the_request_goes_once_more(settings: SlurmSettings) -> None:
    tokens: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        tokens.append(request.headers["x-slurm-user-token"])
        if len(tokens) == 1:
            settings.slurmTokenFile.write_text("fresh")
            return httpx.Response(511, json=slurm_error(1007))
        return httpx.Response(200, json={"job_id": JOB})

    client = client_of(settings, answer)
    assert (await client.submit(JOB, spec())).job_id == JOB
    assert tokens == ["token", "fresh"]
    await client.close()


async def test_a_token_that_stays_refused_is_tried_twice_and_no_more(settings: SlurmSettings) -> None:
    count = 0

    def answer(_: httpx.Request) -> httpx.Response:
        nonlocal count
        count += 1
        return httpx.Response(401, text="Authentication failure")

    client = client_of(settings, answer)
    with pytest.raises(Denied):
        await client.states()
    assert count == 2
    await client.close()


@pytest.mark.parametrize("content", [None, "", "SLURM_JWT=\n"])
async def test_a_missing_token_is_denied_before_anything_is_sent(
    settings: SlurmSettings, content: str | None
) -> None:
    if content is None:
        settings.slurmTokenFile.unlink()
    else:
        settings.slurmTokenFile.write_text(content)
    world = SlurmWorld()
    client = SlurmClient(settings, transport=httpx.ASGITransport(world))
    with pytest.raises(Denied, match="token file"):
        await client.states()
    assert world.requests == []
    await client.close()


async def test_no_token_reaches_an_error_or_a_repr(settings: SlurmSettings) -> None:
    settings.slurmTokenFile.write_text("topsecret")
    client = client_of(settings, lambda _: httpx.Response(401, text="no"))
    with pytest.raises(Denied) as caught:
        await client.states()
    assert "topsecret" not in str(caught.value) + repr(caught.value) + repr(client) + repr(client.token)
    await client.close()


def test_the_seconds_that_a_token_lives() -> None:
    def token(claims: dict[str, object]) -> str:
        return "h." + base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=") + ".s"

    assert expires_in(token({"exp": 1000, "sun": "slurm"}), 900.0) == 100.0
    assert expires_in(token({"exp": 1000}), 1100.0) == -100.0
    assert expires_in(token({"sun": "slurm"}), 0.0) == math.inf
    for junk in ("", "x", "a.b.c", "a.!!!.c", token({"exp": "soon"})):
        assert math.isnan(expires_in(junk, 0.0))
