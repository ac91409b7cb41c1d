"""Everything that can stand between the bridge and the truth about its jobs: one `Fault` each, with its bodies.

The bodies are those of slurmrestd 26.05. What is answered to a write has not been done, unless the fault says that it
asks slurmrestd first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from tests.e2e.faultproxy import Act, Exchange, Fault, Message, answer

_META = {
    "plugin": {"type": "openapi/slurmctld", "data_parser": "data_parser/v0.0.45", "accounting_storage": ""},
    "client": {"source": "127.0.0.1", "user": "root", "group": "root"},
    "command": [],
    "slurm": {
        "version": {"major": "26", "micro": "5", "minor": "05"},
        "release": "26.05.5",
        "cluster": "local",
    },
}
_SUBMITS = ("POST job/submit", "POST job/allocate")
_LISTS = {"GET jobs/state/": "jobs", "GET jobs/": "jobs", "GET nodes/": "nodes"}
_ONE_JOB = re.compile(r"^GET job/(\d+)$")
_LOGIN_PAGE = "<!DOCTYPE html>\n<html><head><title>Sign in</title></head><body><form>…</form></body></html>\n"
_STRANGER = "00000000-0000-0000-0000-00000000beef"  # the other cluster's id in its marks
_DAY = 86400


def _body(number: int | None, text: str = "", source: str = "", **more: object) -> str:
    errors = [] if number is None else [_error(number, text, source)]
    return json.dumps({**more, "meta": _META, "errors": errors, "warnings": []})


def _error(number: int, text: str, source: str) -> dict[str, object]:
    return {"description": text, "error_number": number, "error": text, "source": source}


# --- one answer to everything ---------------------------------------------------------------------


def _always(reply: Message) -> Act:
    async def act(_: Exchange) -> Message:
        return reply

    return act


def _refusal(status: int, number: int, text: str, source: str, **more: object) -> Act:
    return _always(answer(status, _body(number, text, source, **more)))


def _plain(status: int, text: str) -> Act:
    return _always(answer(status, text, kind="text/plain"))


async def _no_such_job(exchange: Exchange) -> Message:
    text = "Invalid job id specified"
    if exchange.request.route.startswith("DELETE "):
        number = {"set": False, "infinite": False, "number": 0}
        unknown = {"error": {"string": text, "code": 2017, "message": text}, "step_id": "0", "job_id": number}
        return answer(200, _body(None, status=[unknown]))
    return answer(404, _body(2017, text, "_handle_job_get", jobs=[]))


# --- the true answer, spoilt ----------------------------------------------------------------------


def _rewritten(change: Callable[[str, Any], Any]) -> Act:
    """Slurm's own answer to each question, after `change(route, data)`."""

    async def act(exchange: Exchange) -> Message:
        reply = await exchange.ask()
        if reply.status != 200:
            return reply
        return answer(200, json.dumps(change(exchange.request.route, reply.data())))

    return act


def _empty(route: str, data: Any) -> Any:
    key = "jobs" if _ONE_JOB.match(route) else _LISTS.get(route)
    return {**data, key: []} if key else data


def _short(route: str, data: Any) -> Any:
    key = _LISTS.get(route)
    return {**data, key: data[key][::2]} if key else data


async def _without_job_id(exchange: Exchange) -> Message:
    if exchange.request.route not in _SUBMITS:
        return await exchange.ask()
    warning = {"description": 'Expected OpenAPI type=integer but got "abc"', "source": "#/job/cpus_per_task/"}
    return answer(200, json.dumps({"errors": [], "warnings": [warning], "meta": _META}))


async def _truncated(exchange: Exchange) -> Message:
    whole = (await exchange.ask()).body.decode()
    return answer(200, whole[: len(whole) // 2])


async def _answer_lost(exchange: Exchange) -> None:
    await exchange.ask()


# --- another cluster's slurmrestd, at this address by mistake --------------------------------------


async def _foreign(exchange: Exchange) -> Message | None:
    """It has as many jobs, in the same range of ids, with the marks of its own bridge; it knows none of ours."""
    route = exchange.request.route
    if route in _SUBMITS:
        return answer(422, _body(2000, "Invalid partition name specified", "slurm_submit_batch_job()"))
    asked = _ONE_JOB.match(route)
    if asked is None and not route.startswith("GET "):
        return await _no_such_job(exchange)
    if asked is None:
        return await _rewritten(_elsewhere)(exchange)
    ours = _twin(int(asked[1]))
    head = exchange.request.head.replace(f"/job/{asked[1]} ".encode(), f"/job/{ours} ".encode())
    reply = await exchange.ask_for(Message(head, b""))
    if reply.status != 200:
        return await _no_such_job(exchange)
    return answer(200, json.dumps(_elsewhere(route, reply.data())))


def _elsewhere(route: str, data: Any) -> Any:
    if route == "GET conf":
        data["slurm_conf_meta"]["BOOT_TIME"] -= _DAY
    for job in data.get("jobs", ()):
        job["job_id"] = type(job["job_id"])(_twin(int(job["job_id"])))
        if "admin_comment" in job:
            job["admin_comment"] = re.sub(
                r'"cluster": ?"[^"]*"', f'"cluster":"{_STRANGER}"', job["admin_comment"]
            )
            job["nodes"] = "other-" + job["nodes"]
    return data


def _twin(number: int) -> int:
    """Each job of ours has one over there, and each of theirs one here."""
    return number ^ 0x155555


# --- connections that don't do what they should ---------------------------------------------------


async def _drip(exchange: Exchange) -> None:
    for byte in bytes(await exchange.ask()):
        await exchange.send(bytes([byte]))
        if await exchange.until_over(1.0):
            return


async def _reset(exchange: Exchange) -> None:
    exchange.reset()


async def _hang(exchange: Exchange) -> None:
    await exchange.until_over()


FAULTS = [
    Fault("401", _plain(401, "Authentication failure")),
    Fault("404-of-the-job", _no_such_job),
    Fault("404-of-the-route", _plain(404, "Unable to find requested URL endpoint. Please query …")),
    Fault(
        "422",
        _refusal(422, 2045, "Invalid account or account/partition combination specified", "slurm_load()"),
    ),
    Fault("500", _refusal(500, -1, "Unspecified error", "slurm_load_job_state()", jobs=None)),
    Fault(
        "502",
        _refusal(502, 1800, "Unable to contact slurm controller (connect failure)", "slurm_load_jobs()"),
    ),
    Fault("504", _refusal(504, 5004, "Socket timed out on send/recv operation", "slurm_submit_batch_job()")),
    Fault("511", _refusal(511, 1007, "Protocol authentication error", "slurm_load_job_state()", jobs=None)),
    Fault(
        "200-with-errors", _refusal(200, 1800, "Unable to contact slurm controller", "slurm_load()", jobs=[])
    ),
    Fault("200-without-a-job-id", _without_job_id),
    Fault("empty-list", _rewritten(_empty)),
    Fault("short-list", _rewritten(_short)),
    Fault("foreign-list", _foreign),
    Fault("truncated-json", _truncated),
    Fault("html-of-a-proxy", _always(answer(200, _LOGIN_PAGE, kind="text/html"))),
    Fault("slow-loris", _drip),
    Fault("reset-after-accept", _reset),
    Fault("hang", _hang),
    Fault("answer-lost", _answer_lost),
]
