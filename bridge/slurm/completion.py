"""Ending a job as COMPLETED or FAILED: slurmrestd cannot do it, so it is said to slurmctld itself.

One message and one answer over TCP (REQUEST_COMPLETE_JOB_ALLOCATION), authenticated by the same token.
Integers are big-endian; a string is its length with the closing NUL, the bytes, the NUL; none is length 0.
What must stay true: no job is kept for ever because nobody takes the message.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from bridge.core.model import JobId
from bridge.errors import BridgeError, ProtocolError, RefusedError, UnknownOutcome, Unreachable
from bridge.slurm import faults

log = logging.getLogger("bridge.slurm")
CONNECT_TIMEOUT: Final = 5.0  # seconds
TIMEOUT: Final = 10.0  # seconds for the whole exchange
PATIENCE: Final = (
    60.0  # seconds without anybody who takes an exit code: a job that has ended must not keep its GPUs
)
PROBE: Final = 10.0  # seconds between questions whether anybody does
NOBODY: Final = JobId(0)  # no job has this id: asking to end it changes nothing
STANDBY: Final = (
    2027  # answered by a backup slurmctld that is not in charge, to whatever is asked (measured with 26.05)
)

_COMPLETE_JOB_ALLOCATION: Final = 5017
_RETURN_CODE: Final = 8001
_AUTH_JWT: Final = 102
_NO_STEP: Final = 0xFFFFFFFE
_ANSWER_LIMIT: Final = 64 * 1024  # bytes; the real one has about fifty

# Slurm release → the protocol of its daemons; each also takes the three before its own.
_PROTOCOLS: Final = (((26, 5), 45), ((25, 11), 44), ((25, 5), 43))
_OLDEST: Final = 42
_FIRST_WITH_STEP: Final = 44  # from here the body names the job as a step id


def protocol_of(release: tuple[int, int]) -> int:
    """The newest protocol that both that release and we speak. (0, 0), unknown: the oldest."""
    return next((protocol for since, protocol in _PROTOCOLS if release >= since), _OLDEST)


class Completion:
    """Speaks to the slurmctld in charge: the first of `addresses` ("host:port", IPv6 in brackets) that takes a message;
    the one that took the last is asked before the others.

    `token` gives the JWT of SlurmUser, `release` Slurm's release (both are asked at every call). `alive` asks slurmctld
    anything through slurmrestd, and raises if there is no answer.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        token: Callable[[], str],
        release: Callable[[], tuple[int, int]],
        alive: Callable[[], Awaitable[object]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._addresses = tuple(addresses)
        self._token, self._release = token, release
        self._alive, self._clock = alive, clock
        self._heard = False  # the last message was taken
        self._silent_since: float | None = (
            None  # nobody takes one, although slurmrestd has answers from slurmctld
        )
        self._trouble = ""  # what became of the last one, once we have given up

    async def complete(self, job: JobId, wait_status: int) -> bool:
        """`wait_status` as of wait(2): 0 → COMPLETED, 3<<8 → FAILED 3:0, 9 → FAILED 0:9.

        True also when the job is unknown or ended already. False, and nothing is sent: for PATIENCE nobody has taken
        such a message. Unreachable: nothing was done. UnknownOutcome, ProtocolError: it may have been. Denied: the
        token. Invalid: slurmctld refuses, `code` says why.
        """
        if self._trouble:
            return False
        await self._send(job, wait_status)
        return True

    async def watch(self) -> None:
        """Finds out whether anybody takes our messages: at the start, and from then on while nobody does."""
        while True:
            if not self._heard:
                with suppress(BridgeError):
                    await self._send(NOBODY, 0)
            await asyncio.sleep(PROBE)

    def note(self) -> str:
        """What works worse than it could, "" = nothing."""
        if not self._trouble:
            return ""
        return (
            f"slurmctldAddress: nobody takes exit codes ({self._trouble}), so jobs end CANCELLED with the exit code in "
            "their comment; the setting must name every SlurmctldHost as host:port, reachable from here"
        )

    async def _send(self, job: JobId, wait_status: int) -> None:
        message = _message(protocol_of(self._release()), self._token(), job, wait_status)
        failures: list[BridgeError] = []
        for address in self._addresses:
            try:
                await _tell(address, message)
            except RefusedError:
                self._answered(address)
                raise
            except BridgeError as error:
                failures.append(error)
            else:
                self._answered(address)
                return
        await self._missed(failures)
        raise next((e for e in failures if not isinstance(e, Unreachable)), failures[0])

    def _answered(self, address: str) -> None:
        self._addresses = (address, *(other for other in self._addresses if other != address))
        if self._trouble:
            log.info("slurmctld at %s takes exit codes", address)
        self._heard, self._silent_since, self._trouble = True, None, ""

    async def _missed(self, failures: Sequence[BridgeError]) -> None:
        """Only a slurmctld that answers others counts as silent to us: one that is down will be back."""
        self._heard = False
        try:
            await self._alive()
        except BridgeError:
            self._silent_since = None
            return
        now = self._clock()
        if self._silent_since is None:
            self._silent_since = now
        if now - self._silent_since >= PATIENCE and not self._trouble:
            self._trouble = "; ".join(dict.fromkeys(str(error) for error in failures))
            log.warning(self.note())


async def _tell(address: str, message: bytes) -> None:
    """One message to one slurmctld. Returns if it is done, or the job is unknown or ended already."""
    code = await _exchange(address, message)
    if code == STANDBY:
        raise Unreachable(f"slurmctld at {address} is a standby")
    if code and code not in faults.GONE:
        raise faults.from_number(f"slurmctld at {address} refuses to end the job ({code})", code)


async def _exchange(address: str, message: bytes) -> int:
    host, _, port = address.rpartition(":")
    sent = False
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(TIMEOUT):
            async with asyncio.timeout(CONNECT_TIMEOUT):
                reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            sent = True
            writer.write(struct.pack(">I", len(message)) + message)
            await writer.drain()
            (length,) = struct.unpack(">I", await reader.readexactly(4))
            if length > _ANSWER_LIMIT:
                raise ProtocolError(f"{address} does not speak Slurm's protocol")
            return _return_code(address, await reader.readexactly(length))
    except (OSError, asyncio.IncompleteReadError) as error:  # TimeoutError is an OSError
        why = str(error) or type(error).__name__
        if not sent:
            raise Unreachable(f"slurmctld at {address} was not reached: {why}") from error
        raise UnknownOutcome(f"slurmctld at {address} did not answer: {why}") from error
    finally:
        if writer is not None:
            writer.close()


def _packed(text: str | None) -> bytes:
    if text is None:
        return struct.pack(">I", 0)
    raw = text.encode() + b"\0"
    return struct.pack(">I", len(raw)) + raw


def _message(protocol: int, token: str, job: JobId, wait_status: int) -> bytes:
    if protocol >= _FIRST_WITH_STEP:
        body = struct.pack(">QIIII", 0, job, _NO_STEP, _NO_STEP, wait_status)
    else:
        body = struct.pack(">II", job, wait_status)
    # version, flags, type, length of the body, nothing forwarded, nothing returned, no sender's address
    header = struct.pack(">HHHIHHH", protocol << 8, 0, _COMPLETE_JOB_ALLOCATION, len(body), 0, 0, 0)
    return header + struct.pack(">I", _AUTH_JWT) + _packed(token) + _packed(None) + body


def _return_code(address: str, answer: bytes) -> int:
    try:
        (kind,) = struct.unpack_from(">H", answer, 4)
        (code,) = struct.unpack(">i", answer[-4:])
    except struct.error as error:
        raise ProtocolError(f"{address}: an answer of {len(answer)} bytes") from error
    if kind != _RETURN_CODE:
        raise ProtocolError(f"{address}: an answer of type {kind} instead of {_RETURN_CODE}")
    return int(code)
