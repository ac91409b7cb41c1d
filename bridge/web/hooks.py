"""What Slurm's own hooks ask (deploy/slurm/handover): a hint that a job changes, and whether its GPUs are clear.

    POST /slurm/hint?job=N                 204 at once; 429 if there are too many
    GET /slurm/handover?job=N&nodes=LIST   200 {"clear":true} or {"clear":false,"holders":[…]}; 503: can't be told

A 503 is no more to the hook than a bridge that is away, and it soon gives up: whoever may be in the way is named.

Nobody proves who he is here, so nothing is decided on what comes in: a hint only makes us look, an answer goes to the
one who asked, and both have a limit on what they can make us do. Any replica answers. Plain ASGI, like the extender.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Container, Iterable
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import parse_qs

import msgspec

from bridge.core import hostlist
from bridge.core.ledger import Claim, Holder
from bridge.core.model import JobId, JobRecord, SlurmNode, is_ended
from bridge.errors import BridgeError, UserError
from bridge.metrics import HANDOVERS, HINTS
from bridge.web.budget import Budget
from bridge.web.extender import Receive, Scope, Send
from bridge.web.overruns import Overruns

HINTS_PER_SECOND = 100.0
READS_PER_SECOND = 50.0  # of jobs in Slurm, for all that ask
LISTS_PER_SECOND = 200.0  # of the pods of one node
MOST_LISTS = 50  # that one question counts for
READ_AGAIN = 1.0  # seconds between two reads of one job
ANSWER = 1.5  # seconds after which an answer doesn't wait for the job's read any more: the hook gives it 2
NAMED = 20  # holders in one answer: the hook reads it byte by byte
REMEMBERED = 5.0  # seconds after the last question that a job's record is kept; the hook asks every second

encode = msgspec.json.Encoder().encode


class Ledger(Protocol):
    """Who holds which GPUs; `bridge.ledger`."""

    def blind(self) -> str: ...
    def on(self, names: Iterable[SlurmNode]) -> tuple[Holder, ...]: ...
    def blocking(self, record: JobRecord, also: Collection[Holder] = ()) -> tuple[Claim, ...]: ...


class Clear(msgspec.Struct, frozen=True, omit_defaults=True):
    clear: bool
    holders: list[str] = []


class Error(msgspec.Struct, frozen=True):
    error: str


class Unclear(Exception):
    """Nothing can be said; the hook asks again."""


@dataclass(slots=True)
class _Waiting:
    """A native job whose hook asks."""

    asked: float
    read: float = float("-inf")  # when Slurm was asked last
    reading: asyncio.Task[JobRecord] | None = None  # outlives the question, as slurmrestd may be slow
    record: JobRecord | None = None


class Hooks:
    """`ours`: is that job ours, as far as we know; `chosen`: the ids that we choose; `hint`: look at a job of ours;
    `job`: one full read; `there`: who has GPUs on these nodes, by the API server's own word; `clock` is monotonic."""

    def __init__(
        self,
        ours: Callable[[JobId], bool],
        ledger: Ledger,
        *,
        chosen: Container[JobId],
        cluster: str,
        hint: Callable[[JobId], None],
        job: Callable[[JobId], Awaitable[JobRecord]],
        there: Callable[[Iterable[SlurmNode]], Awaitable[Collection[Holder]]],
        clock: Callable[[], float],
    ) -> None:
        self._ours, self._ledger = ours, ledger
        self._chosen, self._cluster = chosen, cluster
        self._hint, self._job, self._there, self._clock = hint, job, there, clock
        self._hints = Budget(HINTS_PER_SECOND, clock)
        self._reads = Budget(READS_PER_SECOND, clock)
        self._lists = Budget(LISTS_PER_SECOND, clock)
        self._waiting: dict[JobId, _Waiting] = {}
        self._overruns = Overruns(job, ledger)
        self.notes = self._overruns.notes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = parse_qs(scope["query_string"].decode("latin-1"))
        number = query.get("job", [""])[0]
        job = JobId(int(number)) if number.isascii() and number.isdigit() and len(number) < 11 else None
        match scope["method"], scope["path"].rsplit("/", 1)[-1]:
            case _ if job is None:
                await _reply(send, 400, Error("which job? ?job=NUMBER"))
            case "POST", "hint":
                await _reply(send, self.hint(job))
            case "GET", "handover":
                status, answer = await self.handover(job, query.get("nodes", [""])[0])
                await _reply(send, status, answer)
            case _:
                await _reply(send, 404, Error("POST /slurm/hint and GET /slurm/handover exist"))

    def hint(self, job: JobId) -> int:
        """The HTTP status."""
        if not self._ours(job):
            HINTS.labels("foreign").inc()
            return 204
        if not self._hints.spend():
            HINTS.labels("limited").inc()
            return 429
        HINTS.labels("taken").inc()
        self._hint(job)
        return 204

    async def handover(self, job: JobId, nodes: str) -> tuple[int, Clear | Error]:
        """May the job start? One of ours may, as the ledger is asked again before its pods are bound. What it is tells
        its mark: a number that Slurm gave to one of ours may be another's, as a slurmctld that was killed forgets."""
        if self._ours(job):
            self.hint(job)
        try:
            found = () if job in self._chosen else await self._in_the_way(job, nodes)
        except (Unclear, BridgeError) as error:
            HANDOVERS.labels("unknown").inc()
            return 503, Error(str(error))
        HANDOVERS.labels("busy" if found else "clear").inc()
        if found:
            self._overruns.waits(job)
            return 200, Clear(clear=False, holders=[str(one) for one in found[:NAMED]])
        self._forget(job)
        self._overruns.clear(job)
        return 200, Clear(clear=True)

    async def _in_the_way(self, job: JobId, nodes: str) -> tuple[Claim | Holder, ...]:
        asked, blind = self._clock(), self._ledger.blind()
        there: Collection[Holder] = self._ledger.on(names := _names(nodes))
        if not there:
            if blind:
                raise Unclear(blind)
            # "Clear" is final, and a watch may have been cut off a moment ago: only the API server's word will do.
            if names and not (there := await self._unseen(names)):
                return ()
        try:
            record = await self._record(job, asked + ANSWER)
            if is_ended(record.states) or (record.mark is not None and record.mark.cluster == self._cluster):
                return ()
            if not record.nodes:
                raise Unclear(f"Slurm names no nodes for job {job}")
            claims = self._ledger.blocking(record)
        except (Unclear, BridgeError):
            if not there:
                raise
            return tuple(there)  # which GPUs the job has can't be told, so it may be theirs
        if blind and not claims:
            raise Unclear(blind)
        return claims or self._ledger.blocking(record, await self._unseen(record.nodes))

    async def _unseen(self, names: Collection[SlurmNode]) -> Collection[Holder]:
        if not all(self._lists.spend() for _ in range(min(len(names), MOST_LISTS))):
            raise Unclear("too many ask at once")
        return await self._there(names)

    async def _record(self, job: JobId, until: float) -> JobRecord:
        """What a job holds doesn't change while its prolog runs: one read a job."""
        now = self._clock()
        for other in [j for j, w in self._waiting.items() if now - w.asked >= REMEMBERED]:
            self._forget(other)
        known = self._waiting.setdefault(job, _Waiting(asked=now))
        known.asked = now
        if known.record is not None:
            return known.record
        if known.reading is None or known.reading.done():
            if now - known.read < READ_AGAIN or not self._reads.spend():
                raise Unclear(f"job {job} has not been read yet")
            known.read = now
            known.reading = asyncio.ensure_future(self._read(job, known))
            known.reading.add_done_callback(lambda done: done.cancelled() or done.exception())
        reading = known.reading
        await asyncio.wait((reading,), timeout=max(0.0, until - now))
        if reading.cancelled() or not reading.done():
            raise Unclear(f"job {job} is being read")
        return reading.result()

    async def _read(self, job: JobId, known: _Waiting) -> JobRecord:
        record = await self._job(job)
        if record.nodes:  # else it was read before it had any
            known.record = record
        return record

    def _forget(self, job: JobId) -> None:
        known = self._waiting.pop(job, None)
        if known is not None and known.reading is not None:
            known.reading.cancel()


def _names(text: str) -> list[SlurmNode]:
    try:
        return [SlurmNode(name) for name in dict.fromkeys(hostlist.expand(text))]
    except UserError as error:
        raise Unclear(str(error)) from error


async def _reply(send: Send, status: int, answer: Clear | Error | None = None) -> None:
    body = b"" if answer is None else encode(answer)
    headers = [(b"content-type", b"application/json")] if body else []
    if status != 204:
        headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
