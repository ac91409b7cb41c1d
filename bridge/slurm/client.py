"""The client of slurmrestd: one method a request. Raises only classes of bridge.errors (table: faults.py).

In: SlurmSettings, and a transport in tests. Out: values of core.model. What must stay true:

- A write whose outcome isn't known raises UnknownOutcome or ProtocolError: read back before deciding.
- `states` gives the whole list or raises; it never gives a part of it.
- Polls and reads have lanes of their own, so that no number of submits holds them up.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import httpx
import msgspec

from bridge.config import SlurmSettings
from bridge.core import identity
from bridge.core.checkup import SlurmNodeRecord, SlurmSetup
from bridge.core.model import JobId, JobRecord, JobSpec, Mark, Partition, SlurmNode, States
from bridge.errors import (
    Busy,
    ConfigError,
    Denied,
    Invalid,
    ProtocolError,
    RefusedError,
    UnknownOutcome,
    UserError,
)
from bridge.slurm import faults, translate, versions, wire
from bridge.slurm.auth import TokenAuth, TokenFile
from bridge.slurm.rights import Rights

FIRST_WITH_CONF: Final = (
    45  # GET conf, which tells the boot; before that /diag tells when its statistics began
)
POLL_LANE: Final = 2  # a poll and a ping beside the ordinary requests
READ_LANE: Final = 3  # reads of granted jobs hold GPUs up: they don't queue behind submits
ACCOUNTING_LANE: Final = 1  # slurmdbd may be slow, and each question holds a thread of slurmrestd
CONNECT_TIMEOUT: Final = 5.0  # seconds
PING_TIMEOUT: Final = 2.0  # seconds; 2 ms when all is well, 60 ms when slurmctld is down

Observe = Callable[[str, int, float, int], None]  # method and route, HTTP status or 0, seconds, bytes
A = TypeVar("A", bound=wire.Envelope)


class SlurmClient:
    """Connects by itself on the first request; `connect` again after slurmrestd was replaced."""

    def __init__(
        self,
        settings: SlurmSettings,
        transport: httpx.AsyncBaseTransport | None = None,
        observe: Observe | None = None,
    ) -> None:
        lanes = settings.concurrentRequests + POLL_LANE + READ_LANE + ACCOUNTING_LANE
        self.token = TokenFile(settings.slurmTokenFile)
        self.rights = Rights(settings.jobIds, self.token)
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
        self._polls = asyncio.Semaphore(POLL_LANE)
        self._jobs = asyncio.Semaphore(READ_LANE)
        self._accounts = asyncio.Semaphore(ACCOUNTING_LANE)
        self._connecting = asyncio.Lock()
        self._version = 0
        self.accounting = False  # slurmrestd can ask slurmdbd
        self.preempts = ""  # PreemptType; "" = not known (before v0.0.45)
        self._release = (0, 0)
        self.slurm_time = 0.0  # slurmctld's own clock when it was last asked for its boot time; 0.0 = never

    # --- what we speak to -------------------------------------------------------------------------

    @property
    def version(self) -> str:
        """The data_parser in use, "v0.0.45"; "" before the first connect."""
        return f"v0.0.{self._version}" if self._version else ""

    @property
    def release(self) -> tuple[int, int]:
        """Slurm's release, (26, 5); (0, 0) before the first answer."""
        return self._release

    def stranger(self) -> str:
        """Why nothing may be written with this token, "" = all is well."""
        return self.rights.stranger()

    async def connect(self) -> None:
        """Choose the newest version that both sides know. Raises ProtocolError when there is none."""
        async with self._connecting:
            await self._negotiate()

    async def _negotiate(self) -> None:
        raw = await self._exchange("GET", "/openapi/v3", "/openapi/v3", lane=self._polls)
        try:
            document = msgspec.json.decode(raw, type=wire.OpenApi)
        except msgspec.DecodeError as error:
            raise ProtocolError(f"GET /openapi/v3: not an OpenAPI document: {error}") from error
        self._version = versions.chosen(document)
        self.accounting = versions.accounts(document, self._version)
        self._note_release(document.info.slurm.version)

    async def close(self) -> None:
        await self._http.aclose()

    # --- reads ------------------------------------------------------------------------------------

    async def ping(self, timeout: float = PING_TIMEOUT) -> bool:
        """Does slurmctld answer slurmrestd? Cheap even if it doesn't. Raises when slurmrestd itself fails."""
        answer = await self._read("ping/", "ping/", wire.PingAnswer, lane=self._polls, timeout=timeout)
        return any(p.responding for p in answer.pings)

    async def boot_time(self) -> float:
        """Unix seconds of slurmctld's start; another value = another boot.

        Before v0.0.45 it is the time from which /diag counts. That also moves at midnight UTC and at
        `sdiag --reset`, which then looks like a boot: that costs a grace, a missed boot would cost pods.
        """
        await self._connected()
        if self._version >= FIRST_WITH_CONF:
            conf = await self._read("conf", "conf", wire.ConfAnswer, lane=self._polls)
            boot = float(conf.slurm_conf_meta.BOOT_TIME)
            self.slurm_time = float(conf.slurm_conf_meta.LastUpdate)
            self.rights.learn(conf.slurm_conf)
            self.preempts = conf.slurm_conf.PreemptType
        else:
            diag = await self._read("diag/", "diag/", wire.DiagAnswer, lane=self._polls)
            boot = diag.statistics.req_time_start.value
            self.slurm_time = diag.statistics.req_time.value
        if not boot:  # in its first second slurmctld doesn't say
            raise Busy("slurmctld does not say yet when it started")
        return boot

    async def states(self) -> dict[JobId, States]:
        """Every job that Slurm has, native ones too. Empty is what Slurm said, never a failed question."""
        answer = await self._read("jobs/state/", "jobs/state/", wire.StatesAnswer, lane=self._polls)
        try:
            return translate.states(answer)
        except ValueError as error:
            raise ProtocolError(f"GET jobs/state/: a job id that is none: {error}") from error

    async def job(self, job: JobId) -> JobRecord:
        """One full read. NotFound: Slurm itself says that it has no such job now."""
        answer = await self._read("job/{id}", f"job/{job}", wire.JobAnswer, lane=self._jobs)
        try:
            found = translate.whole(answer, job)
        except UserError as error:
            raise ProtocolError(f"GET job/{job}: {error}") from error
        if found is None:
            raise ProtocolError(f"GET job/{job}: the answer holds {len(answer.jobs)} jobs and not this one")
        return found

    async def accounted(self, job: JobId, timeout: float) -> JobRecord | None:
        """What Slurm's accounting has under this id, of the last submit. None: nothing of this Slurm cluster."""
        ask: dict[str, Any] = {"lane": self._accounts, "timeout": timeout, "base": "slurmdb"}
        answer = await self._read("slurmdb/job/{id}", f"job/{job}", wire.AccountedAnswer, **ask)
        return translate.accounted(answer, job)

    async def unsent(self) -> int:
        """Messages for slurmdbd that slurmctld has not sent yet: what the accounting says may be out of date."""
        diag = await self._read("diag/", "diag/", wire.DiagAnswer, lane=self._polls)
        return diag.statistics.dbd_agent_queue_size

    async def graces_of_qos(self, timeout: float) -> dict[str, float]:
        """Seconds that a preempted job has left, by QOS; Slurm's accounting tells."""
        ask: dict[str, Any] = {"lane": self._accounts, "timeout": timeout, "base": "slurmdb"}
        answer = await self._read("slurmdb/qos/", "qos/", wire.QosAnswer, **ask)
        return {q.name: float(q.limits.grace_time) for q in answer.qos}

    async def partitions(self) -> dict[str, Partition]:
        """By name."""
        answer = await self._read("partitions/", "partitions/", wire.PartitionsAnswer, lane=self._polls)
        return {p.name: translate.partition(p) for p in answer.partitions}

    async def setup(self) -> SlurmSetup | None:
        """slurmctld's configuration, as far as pods depend on it. None: before v0.0.45 it is not told."""
        await self._connected()
        if self._version < FIRST_WITH_CONF:
            return None
        return translate.setup(await self._read("conf", "conf", wire.ConfAnswer, lane=self._polls))

    async def nodes(self) -> tuple[SlurmNodeRecord, ...]:
        """Every node that Slurm has."""
        answer = await self._read("nodes/", "nodes/", wire.NodesAnswer, lane=self._polls)
        return tuple(translate.node(found) for found in answer.nodes)

    # --- writes -----------------------------------------------------------------------------------

    async def submit(self, job: JobId, spec: JobSpec) -> translate.Submitted:
        """Queue the job under the id that we chose. Conflict: that id exists already, ours or not."""
        await self._connected()
        return await self._submit("job/submit", job, translate.submit_body(job, spec, self._version))

    async def submit_held(self, spec: JobSpec) -> translate.Submitted:
        """Queue the job under an id of Slurm's own, held: it does not run before `unhold`."""
        await self._connected()
        try:
            return await self._submit("job/submit", None, translate.held_body(spec, self._version))
        except Denied as error:
            error.saying(self.rights.refusal(error.said or str(error)))
            raise

    async def unhold(self, job: JobId) -> None:
        """Let a held job run."""
        await self._update(job, {"hold": False})

    async def update_priority(self, job: JobId, priority: int) -> None:
        """Of a job that waits; refused while it is held."""
        await self._update(job, {"priority": translate.number(priority)})

    async def allocate(self, job: JobId, spec: JobSpec) -> translate.Submitted:
        """Place the job now or not at all: on return it is RUNNING. Its owner is the token's user, always.

        Invalid with code 2016 (no room now), 2013 (others come first), 2014 or 2015 (never): Slurm then keeps
        a FAILED record under this id.
        """
        await self._connected()
        return await self._submit("job/allocate", job, translate.allocate_body(job, spec, self._version))

    async def _submit(self, route: str, job: JobId | None, body: wire.Body) -> translate.Submitted:
        answer = await self._write(
            "POST", route, route, wire.SubmitAnswer, body, self._settings.submitTimeout
        )
        warnings = tuple(w.description for w in answer.warnings)
        if answer.job_submit_user_msg:
            warnings += (answer.job_submit_user_msg,)
        if not answer.job_id:
            reasons = "; ".join(warnings) or faults.describe(answer.errors) or "no reason given"
            raise Invalid(f"POST {route}: nothing was submitted: {reasons}", status=200)
        if job is not None and answer.job_id != job:
            raise ProtocolError(
                f"POST {route}: asked for job {job}, got {answer.job_id}; the token must be SlurmUser's",
                status=200,
            )
        return translate.Submitted(job_id=JobId(answer.job_id), warnings=warnings)

    async def cancel(self, job: JobId, comment: str = "", mark: Mark | None = None) -> None:
        """End the job. Returns when it ended or Slurm knows no live one. Comment and mark, if given, go first."""
        first: wire.Body = {"comment": translate.fitting(comment)} if comment else {}
        if mark is not None:
            first["admin_comment"] = identity.render(mark)
        if first:
            with suppress(RefusedError):  # ended or unknown: the DELETE decides
                await self._update(job, first)
        what = f"DELETE job/{job}"
        answer = await self._write(
            "DELETE", "job/{id}", f"job/{job}", wire.KillAnswer, None, self._settings.readTimeout
        )
        for status in answer.status:
            if status.error.code and status.error.code not in faults.GONE:
                text = f"{what}: {status.error.string} ({status.error.code})"
                raise faults.from_number(text, status.error.code, status=200)

    async def update_comment(self, job: JobId, text: str) -> None:
        """Set the job's `comment`, as much of it as Slurm takes; its admin_comment is our mark and stays."""
        await self._update(job, {"comment": translate.fitting(text)})

    async def update_mark(self, job: JobId, mark: Mark) -> None:
        """Another admin_comment for a live job: it is ours from then on."""
        await self._update(job, {"admin_comment": identity.render(mark)})

    async def update_excluded(self, job: JobId, nodes: Sequence[SlurmNode]) -> None:
        """The nodes that a waiting job must not get. An empty list would change nothing: one empty name clears it."""
        await self._update(job, {"excluded_nodes": translate.node_list(nodes)})

    async def drain(self, node: SlurmNode, reason: str) -> bool:
        """Let nothing more start there. False: somebody has drained it already, and the reason stays theirs."""
        answer = await self._read("node/{name}", f"node/{node}", wire.NodesAnswer, lane=self._jobs)
        if any("DRAIN" in found.state for found in answer.nodes):
            return False
        body = {"state": ["DRAIN"], "reason": translate.fitting(reason)}
        await self._write(
            "POST", "node/{name}", f"node/{node}", wire.UpdateAnswer, body, self._settings.readTimeout
        )
        return True

    async def _update(self, job: JobId, body: wire.Body) -> None:
        answer = await self._write(
            "POST", "job/{id}", f"job/{job}", wire.UpdateAnswer, body, self._settings.readTimeout
        )
        for result in answer.results or ():
            if result.error_code:
                what = f"POST job/{job}: {result.error} ({result.error_code})"
                raise faults.from_number(what, result.error_code, status=200)

    # --- the wire ---------------------------------------------------------------------------------

    async def _connected(self) -> None:
        if not self._version:
            async with self._connecting:
                if not self._version:
                    await self._negotiate()

    async def _read(
        self,
        route: str,
        path: str,
        shape: type[A],
        *,
        lane: asyncio.Semaphore,
        timeout: float | None = None,
        base: str = "slurm",
    ) -> A:
        await self._connected()
        raw = await self._exchange("GET", route, f"/{base}/{self.version}/{path}", lane=lane, timeout=timeout)
        what = f"GET {path}"
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

    async def _write(
        self, method: str, route: str, path: str, shape: type[A], body: wire.Body | None, timeout: float
    ) -> A:
        await self._connected()
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
    ) -> bytes:
        """One request; the body of a 200, or one of our errors. `route` is the template that metrics see."""
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
        if status != 200:
            raise faults.from_answer(what, response)
        return raw

    def _note_release(self, version: wire.Version) -> None:
        with suppress(ValueError):  # absent: what was known stays
            self._release = (int(version.major), int(version.minor))


def _start(raw: bytes) -> str:
    return raw[:120].decode(errors="replace")
