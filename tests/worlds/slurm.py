"""An in-memory slurmrestd and slurmctld: real REST shapes over a first-fit scheduler, as an ASGI application.

In: requests (through httpx.ASGITransport or uvicorn), and what a test does to it. Out: what real daemons answer.
The same contract tests run against this and against the real ones, so where they differ this is the one in the wrong.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import httpx
import msgspec

from bridge.core.model import JobId, is_ended
from tests.worlds import slurm_nodes
from tests.worlds.slurm_books import CLUSTER, Books, number
from tests.worlds.slurm_cluster import Cluster
from tests.worlds.slurm_faults import Fault, Faults, Kind
from tests.worlds.slurm_jobs import Refused, WorldJob, WorldNode, names_of
from tests.worlds.slurm_shown import planned_end, shown

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Answer = tuple[int, str, bytes]

JSON = "application/json"
encode = msgspec.json.Encoder().encode
BOOKS = re.compile(r"slurmdb/v0\.0\.(\d+)/(?:qos/|job/(\d+))")
NODES = re.compile(r"nodes/|node/[^/]+")
NEW_NODE = "new/node/"  # since 25.11
DOWN = {"GET jobs/state/": (500, -1), "GET job/{id}": (500, -1), "DELETE job/{id}": (403, 1)}
ROUTES = (
    ("GET", re.compile(r"ping/"), "ping/"),
    ("GET", re.compile(r"diag/"), "diag/"),
    ("GET", re.compile(r"conf"), "conf"),
    ("GET", re.compile(r"jobs/state/"), "jobs/state/"),
    ("POST", re.compile(r"job/submit"), "job/submit"),
    ("POST", re.compile(r"job/allocate"), "job/allocate"),
    ("GET", re.compile(r"job/(\d+)"), "job/{id}"),
    ("POST", re.compile(r"job/(\d+)"), "job/{id}"),
    ("DELETE", re.compile(r"job/(\d+)"), "job/{id}"),
    ("GET", re.compile(r"partitions/"), "partitions/"),
)


class SlurmWorld(Cluster):
    """Give it to httpx.ASGITransport. `version` is the newest data_parser that it serves."""

    def __init__(
        self,
        nodes: tuple[WorldNode, ...] = (WorldNode("k0001"), WorldNode("k0002")),
        *,
        clock: Callable[[], float] = time.time,
        version: int = 45,
        token: str = "token",
        min_job_age: float = 300.0,
    ) -> None:
        self.books = Books()
        super().__init__(nodes, clock=clock, external=version >= 43, min_job_age=min_job_age)
        self.version = version
        self.token = token
        self.users_of_tokens: dict[str, str] = {}  # others that are good, too
        self.preempts = "preempt/partition_prio"
        self.down = False  # slurmctld; slurmrestd lives on
        self.latency = 0.0  # seconds of every request, half of them before it is carried out
        self.faults = Faults()
        self.requests: list[str] = []  # "GET job/{id}"
        self._since: int | None = None  # of the question that is answered now: Unix seconds
        self.serving: JobId | None = None  # a client's request changes this job now
        self.serving_node = ""  # and this node
        self._hanging: set[asyncio.Task[Answer]] = set()

    def count(self, request: str) -> int:
        """How many such requests came so far."""
        return self.requests.count(request)

    # --- ASGI -------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        raw = b""
        while True:
            message = await receive()
            raw += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {k.decode().lower(): v.decode() for k, v in scope["headers"]}
        path = f"{scope['path']}?{scope['query_string'].decode()}"
        status, kind, body = await self.serve(scope["method"], path, headers, raw)
        start = {"type": "http.response.start", "status": status}
        await send({**start, "headers": [(b"content-type", kind.encode())]})
        await send({"type": "http.response.body", "body": body})

    async def serve(self, method: str, path: str, headers: dict[str, str], raw: bytes) -> Answer:
        """One request; raises httpx's errors where the connection breaks."""
        path, _, query = path.partition("?")
        prefix = f"/slurm/v0.0.{self.version}/"
        route, job = (
            _route(method, path.removeprefix(prefix)) if path.startswith(prefix) else (path, JobId(0))
        )
        if (books := BOOKS.fullmatch(path, 1)) is not None and int(books[1]) == self.version:
            route = "slurmdb/job/{id}" if books[2] else "slurmdb/qos/"
            job = JobId(int(books[2] or 0))
        request = f"{method} {route}"
        self.requests.append(request)
        if self.latency:
            await asyncio.sleep(self.latency / 2)
        fault = self.faults.take(request)
        if fault is not None and fault.kind is Kind.HANG:
            return await self._hung(self._later(fault, request, job, headers, raw))
        if fault is not None and fault.kind is Kind.DROP_BEFORE:
            raise httpx.ReadError("the connection was reset")
        if fault is not None and fault.kind is Kind.STATUS:
            return fault.status, fault.content_type, fault.body
        if fault is not None and fault.kind is Kind.HTML:
            return 200, "text/html", b"<html><body>Please log in</body></html>"
        self._since = int(query.removeprefix("update_time=") or 0) or None
        answer = self._answer(request, job, headers, raw)
        if self.latency:
            await asyncio.sleep(self.latency / 2)
        return _spoil(fault, answer)

    async def _later(
        self, fault: Fault, request: str, job: JobId, headers: dict[str, str], raw: bytes
    ) -> Answer:
        await fault.released.wait()
        return self._answer(request, job, headers, raw)

    async def _hung(self, answer: Coroutine[Any, Any, Answer]) -> Answer:
        """A caller who gives up takes nothing back: slurmctld has the message."""
        task = asyncio.ensure_future(answer)
        self._hanging.add(task)
        task.add_done_callback(self._hanging.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if task.cancelled() and not (
                me and me.cancelling()
            ):  # the caller does not die at the same moment
                raise httpx.ReadError("slurmctld died") from None
            raise

    def _put(self, job: WorldJob, *, gone: bool = False) -> None:
        if not gone:
            self.books.note(job)
        super()._put(job, gone=gone)

    # --- holds and rights -------------------------------------------------------------------------

    def unhold(self, job: JobId) -> None:
        found = self.get(job)
        if is_ended(found.states):
            raise Refused(2084, "Job has already finished")
        if found.on_hold:
            self._put(replace(found, on_hold=False, reason="None"))

    def hold(self, job: JobId, reason: str) -> None:
        """What `scontrol hold` does; `reason` tells who."""
        self._put(replace(self.get(job), on_hold=True, reason=reason))

    def set_priority(self, job: JobId, priority: int) -> None:
        found = self.get(job)
        if is_ended(found.states):
            raise Refused(2084, "Job has already finished")
        if found.on_hold:
            raise Refused(2042, "Job is in held state, pending scheduler release")
        self._put(replace(found, priority=priority))

    def retime(self, job: JobId, minutes: int | None) -> None:
        """What `scontrol update TimeLimit=` does; None: UNLIMITED."""
        found = self.get(job)
        changed = replace(found, time_limit=minutes)
        self._put(replace(changed, ended=planned_end(changed)))
        self.tick()

    def _check_rights(self, body: dict[str, Any]) -> None:
        if self.asker == "slurm":
            return
        if "job_id" in body:
            raise Refused(2017, "Invalid job id specified")
        if body.get("user_id", self.asker) != self.asker:
            raise Refused(2010, "Invalid user id")
        if "admin_comment" in body and self.asker not in self.admins:
            raise Refused(2002, "Access/permission denied")

    def crash(self, seconds: float) -> None:
        """The messages that a hung slurmctld had not read die with it."""
        for task in self._hanging:
            task.cancel()
        super().crash(seconds)

    # --- routes -----------------------------------------------------------------------------------

    def _answer(self, request: str, job: JobId, headers: dict[str, str], raw: bytes) -> Answer:
        if "x-slurm-user-token" not in headers:
            return 401, "text/plain", b"Authentication failure"
        if request == "GET /openapi/v3":
            return 200, JSON, json.dumps(self._openapi()).encode()
        route = request.split(" ")[1]
        if route.startswith("slurmdb/") and self.books.open:
            if not self.books.answers:
                return self._refused(502, 7000, "Unable to connect to database")
            return self._ok(self.books.told(job) if job else self.books.qos())
        nodes = NODES.fullmatch(route) or (route == NEW_NODE and self.version >= 44)
        if not nodes and route not in {known for _, _, known in ROUTES}:
            return 404, "text/plain", b"Unable to find requested URL endpoint."
        given = headers["x-slurm-user-token"]
        good = given == self.token or given in self.users_of_tokens
        if request == "GET ping/":
            ping = {"hostname": "world", "responding": good and not self.down, "primary": True}
            return self._ok({"pings": [ping]})
        if not good:
            return self._refused(511, 1007, "Protocol authentication error")
        if self.down:
            return self._refused(*DOWN.get(request, (502, 1800)), "Unable to contact slurm controller")
        self.tick()
        owner, self.asker = self.asker, self.users_of_tokens.get(given, self.asker)
        try:
            self.serving = None if request.startswith("GET") else job
            self.serving_node = _node_of(request, raw)
            return self._handle(request, job, raw)
        except Refused as refusal:
            status = 404 if refusal.code == 2017 else 422 if self.version >= 43 else 500
            return self._refused(status, refusal.code, refusal.text)
        finally:
            self.serving, self.serving_node = None, ""
            self.asker = owner

    def _handle(self, request: str, job: JobId, raw: bytes) -> Answer:
        body: dict[str, Any] = json.loads(raw) if raw else {}
        match request:
            case "GET conf":
                meta = {"BOOT_TIME": int(self.booted), "LastUpdate": int(self.clock())}
                conf: dict[str, Any] = {
                    "SlurmUser": "slurm",
                    "AccountingStorageType": "accounting_storage/slurmdbd",
                }
                conf |= {"PreemptType": self.preempts, "MinJobAge": int(self._min_job_age)}
                return self._ok({"slurm_conf_meta": meta, "slurm_conf": conf})
            case "GET diag/":
                times = {"req_time": number(int(self.clock())), "req_time_start": number(int(self.booted))}
                unsent = {"dbd_agent_queue_size": len(self.books.unsent)}
                return self._ok({"statistics": {**times, **self.counts, **unsent}})
            case "GET jobs/state/":
                listed = [{"job_id": j.listed, "state": sorted(j.states)} for j in self.jobs.values()]
                return self._ok({"jobs": listed})
            case "GET job/{id}":
                self.get(job)
                return self._ok({"jobs": [shown(one) for one in self.together(job)]})
            case "POST job/submit" | "POST job/allocate":
                return self._submitted(
                    body["jobs"] if "jobs" in body else [body["job"]], immediate=request.endswith("allocate")
                )
            case "POST job/{id}":
                if texts := {k: str(v) for k, v in body.items() if k in ("comment", "admin_comment")}:
                    self.update(job, **texts)
                if body.get("hold") is False:
                    self.unhold(job)
                if "priority" in body:
                    self.set_priority(job, body["priority"]["number"])
                if body.get("excluded_nodes"):  # an empty list changes nothing, as in Slurm
                    self.exclude(job, names_of(body["excluded_nodes"]))
                return self._ok({"results": None})
            case "DELETE job/{id}":
                return self._ok({"status": self._killed(job)})
            case "GET partitions/":
                names = sorted(self.partitions)
                longest = self.longest is not None
                limit = {"time": {"set": longest, "infinite": not longest, "number": self.longest or 0}}
                every = {
                    "grace_time": self.grace_time,
                    "maximums": limit,
                    "nodes": {"configured": ",".join(self.nodes)},
                }
                return self._ok({"partitions": [{"name": name, **every} for name in names]})
        method, _, route = request.partition(" ")
        _, slash, name = route.partition("node/")
        found = slurm_nodes.answered(self, method, name if slash else "", body, self._since)
        return (304, "", b"") if found is None else self._ok(found)

    def _submitted(self, jobs: list[dict[str, Any]], *, immediate: bool) -> Answer:
        for job in jobs:
            assert job.get("immediate", False) is immediate, (
                "allocate without immediate blocks slurmrestd for ever"
            )
            for key in ("cpus_per_task", "tasks", "minimum_nodes"):
                if not isinstance(job.get(key, 1), int):
                    return self._ok({}, f"Expected OpenAPI type=integer: #/job/{key}/")
            if "group_id" in job and self.version < 43:
                raise httpx.RemoteProtocolError("Server disconnected without sending a response.")  # it dies
            self._check_rights(job)
        if len(jobs) > 1:
            known, warnings = self.submit_together(jobs)
        else:
            known, warnings = self.submit(jobs[0], immediate=immediate)
        return self._ok({"job_id": known.id, "job_submit_user_msg": ""}, *warnings)

    def _killed(self, job: JobId) -> list[dict[str, Any]]:
        found = self.jobs.get(job)
        living = [one for one in self.together(job) if not is_ended(one.states)]
        if living:
            with self._at_once():
                for one in living:
                    self.end(one.id, "CANCELLED")
            return []
        code, text = (
            (2017, "Invalid job id specified") if found is None else (2021, "Job/step already completing")
        )
        error = {"string": text, "code": code, "message": text}
        return [{"error": error, "step_id": str(job), "job_id": number(0)}]

    def _openapi(self) -> dict[str, Any]:
        served = [v for v in (42, 43, 44, 45) if v <= self.version]
        paths: dict[str, Any] = {f"/slurm/v0.0.{v}/job/submit": {"post": {}} for v in served}
        if self.books.open:
            paths |= {f"/slurmdb/v0.0.{v}/job/{{job_id}}": {"get": {}} for v in served}
        return {"openapi": "3.1.0", "paths": paths, "info": {"x-slurm": {"version": self._slurm_version()}}}

    def _slurm_version(self) -> dict[str, str]:
        major, minor = {42: ("24", "11"), 43: ("25", "05"), 44: ("25", "11"), 45: ("26", "05")}[self.version]
        return {"major": major, "minor": minor, "micro": "5"}

    def _ok(self, body: dict[str, Any], *warnings: str) -> Answer:
        meta = {"slurm": {"version": self._slurm_version(), "cluster": CLUSTER}}
        listed = [{"description": w, "source": "world"} for w in warnings]
        return 200, JSON, encode({"errors": [], **body, "meta": meta, "warnings": listed})

    def _refused(self, status: int, code: int, text: str) -> Answer:
        error = {"description": "Request failed", "error_number": code, "error": text, "source": "world"}
        return (
            status,
            JSON,
            encode({"jobs": None, "errors": [error], "warnings": [], "meta": {}}),
        )


@lru_cache(maxsize=10_000)
def _route(method: str, rest: str) -> tuple[str, JobId]:
    for wanted, pattern, route in ROUTES:
        found = pattern.fullmatch(rest)
        if found is not None and method == wanted:
            return route, JobId(int(found[1]) if found.groups() else 0)
    return rest, JobId(0)


def _node_of(request: str, raw: bytes) -> str:
    """The node that a request changes, if any."""
    method, _, route = request.partition(" ")
    if route == NEW_NODE:
        named = re.search(r"NodeName=([^\s\"]+)", raw.decode(errors="replace"))
        return named[1] if named else ""
    return route.removeprefix("node/") if method != "GET" and route.startswith("node/") else ""


def _spoil(fault: Fault | None, answer: Answer) -> Answer:
    """Faults that come after the deed."""
    if fault is not None and fault.kind is Kind.DROP_AFTER:
        raise httpx.ReadError("the connection was reset")
    if fault is not None and fault.kind is Kind.TRUNCATE:
        return answer[0], answer[1], answer[2][: len(answer[2]) // 2]
    if fault is not None and fault.kind is Kind.EDIT:
        return answer[0], answer[1], fault.edit(answer[2])
    return answer
