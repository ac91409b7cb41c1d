"""Which slurmctld is told how a job ended, and what happens when none listens: played by sockets on the loopback."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from bridge.core.model import JobId
from bridge.errors import Denied, Invalid, ProtocolError, UnknownOutcome, Unreachable
from bridge.slurm.completion import PATIENCE, STANDBY, Completion
from tests.contract.slurm_fixture import eventually

JOB = JobId(33554433)
NOWHERE = "127.0.0.1:9"


class Controller:
    """Answers each message with the return code `code`, None: with silence."""

    def __init__(self, code: int | None = 0) -> None:
        self.code = code
        self.asked = 0
        self.address = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        (length,) = struct.unpack(">I", await reader.readexactly(4))
        await reader.readexactly(length)
        self.asked += 1
        if self.code is not None:
            answer = struct.pack(">HHHIi", 45 << 8, 0, 8001, 4, self.code)
            writer.write(struct.pack(">I", len(answer)) + answer)
        writer.close()


@asynccontextmanager
async def listening(controller: Controller, port: int = 0) -> AsyncIterator[Controller]:
    server = await asyncio.start_server(controller.serve, "127.0.0.1", port)
    controller.address = "{}:{}".format(*server.sockets[0].getsockname()[:2])
    async with server:
        yield controller


class Slurm:
    """What slurmrestd says, and the time."""

    def __init__(self) -> None:
        self.up = True
        self.now = 1000.0

    async def alive(self) -> None:
        if not self.up:
            raise UnknownOutcome("GET partitions/: 504")

    def completion(self, *addresses: str) -> Completion:
        return Completion(addresses, lambda: "token", lambda: (26, 5), self.alive, lambda: self.now)


async def silent(slurm: Slurm, completion: Completion, seconds: float) -> None:
    """Somebody asks again and again for so long, in vain."""
    until = slurm.now + seconds
    while slurm.now < until:
        with pytest.raises(Unreachable):
            await completion.complete(JOB, 0)
        slurm.now += 10.0


async def looked(completion: Completion, until: Callable[[], bool]) -> None:
    """`watch` looks at once when it starts."""
    task = asyncio.create_task(completion.watch())
    await eventually(until)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_a_standby_is_passed_over_and_asked_last_from_then_on() -> None:
    async with listening(Controller(STANDBY)) as standby, listening(Controller()) as master:
        completion = Slurm().completion(NOWHERE, standby.address, master.address)
        assert await completion.complete(JOB, 0)
        assert await completion.complete(JOB, 0)
        assert (standby.asked, master.asked) == (1, 2)
        master.code, standby.code = STANDBY, 0  # a fail-over
        assert await completion.complete(JOB, 0)
        assert await completion.complete(JOB, 0)
        assert (standby.asked, master.asked) == (3, 3)


async def test_when_nobody_listens_for_a_minute_that_is_said_without_asking_again() -> None:
    slurm = Slurm()
    async with listening(Controller(STANDBY)) as standby:
        completion = slurm.completion(NOWHERE, standby.address)
        await silent(slurm, completion, PATIENCE)
        assert completion.note() == ""
        with pytest.raises(Unreachable):
            await completion.complete(JOB, 0)
        asked = standby.asked
        assert not await completion.complete(JOB, 0)
        assert standby.asked == asked
        note = completion.note()
        assert all(text in note for text in ("slurmctldAddress", NOWHERE, standby.address, "host:port"))
        standby.code = 0
        await looked(completion, lambda: not completion.note())
        assert await completion.complete(JOB, 0)


async def test_a_wrong_address_is_known_before_the_first_job_ends() -> None:
    slurm = Slurm()
    completion = slurm.completion(NOWHERE)
    await looked(completion, lambda: completion._silent_since is not None)
    slurm.now += PATIENCE
    await looked(completion, lambda: bool(completion.note()))
    assert not await completion.complete(JOB, 0)


async def test_who_answered_is_not_asked_again_for_nothing() -> None:
    async with listening(Controller(2017)) as master:
        completion = Slurm().completion(master.address)
        await looked(completion, lambda: master.asked == 1)
        await looked(completion, lambda: True)
        assert master.asked == 1


async def test_while_slurmrestd_has_no_answers_either_nothing_is_given_up() -> None:
    slurm = Slurm()
    completion = slurm.completion(NOWHERE)
    await silent(slurm, completion, PATIENCE - 10.0)
    slurm.up = False
    await silent(slurm, completion, 10 * PATIENCE)
    slurm.up = True
    await silent(slurm, completion, PATIENCE)
    assert completion.note() == ""


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
async def test_that_one_may_have_done_it_counts_more_than_that_others_did_not(order: tuple[int, int]) -> None:
    async with listening(Controller(None)) as mute:
        addresses = (mute.address, NOWHERE)
        with pytest.raises(UnknownOutcome):
            await Slurm().completion(*(addresses[i] for i in order)).complete(JOB, 0)


async def test_a_refusal_is_an_answer_and_ends_the_search() -> None:
    async with listening(Controller(2010)) as master, listening(Controller()) as other:
        slurm = Slurm()
        completion = slurm.completion(master.address, other.address)
        with pytest.raises(Denied):
            await completion.complete(JOB, 0)
        master.code = 2073
        with pytest.raises(Invalid):
            await completion.complete(JOB, 0)
        assert other.asked == 0


@pytest.mark.parametrize("code", [2017, 2021])
async def test_a_job_that_is_gone_is_done(code: int) -> None:
    async with listening(Controller(code)) as master:
        assert await Slurm().completion(master.address).complete(JOB, 0)


async def test_another_service_is_told_from_slurmctld() -> None:
    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(web, "127.0.0.1", 0)
    async with server:
        address = "{}:{}".format(*server.sockets[0].getsockname()[:2])
        with pytest.raises(ProtocolError):
            await Slurm().completion(address).complete(JOB, 0)
