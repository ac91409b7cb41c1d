"""The accidents that a schedule calls by name: what goes wrong on the way to either side."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.worlds.kube_faults import Answer, DropAfter, DropBefore, Effect, Hang, Truncate
from tests.worlds.slurm_faults import Fault, Kind

HTML = b"<html><body>Please log in</body></html>"
TEXT = "text/plain"
FOREIGN_JOBS = range(0x02000100, 0x02000110)


def kube(kind: str) -> Effect:
    if kind.isdigit():
        return Answer(int(kind))
    effects: dict[str, Effect] = {
        "drop-before": DropBefore(),
        "drop-after": DropAfter(),
        "hang": Hang(),
        "hang-done": Hang(done=True),
        "truncate": Truncate(),
        "html": Answer(200, HTML),
        "empty-list": Answer(200, _pods([])),
        "foreign-list": Answer(200, _pods([_foreign_pod(number) for number in range(3)])),
        "empty-nodes": Answer(200, _pods([]).replace(b"PodList", b"NodeList")),
    }
    return effects[kind]


def slurm(kind: str, route: str, times: int) -> Fault:
    if kind in _PLAIN:
        return Fault(pattern=route, kind=_PLAIN[kind], times=times)
    if kind == "no-id":
        route = "POST job/submit|POST job/allocate"
    if kind in _STATUS:
        status, body, content_type = _STATUS[kind]
        return Fault(
            pattern=route, kind=Kind.STATUS, times=times, status=status, body=body, content_type=content_type
        )
    if kind.endswith("-nodes"):
        return Fault(pattern="^GET nodes/", kind=Kind.EDIT, times=times, edit=_EDITS[kind])
    return Fault(pattern="jobs/state", kind=Kind.EDIT, times=times, edit=_EDITS[kind])


def _pods(items: list[Any]) -> bytes:
    meta = {"resourceVersion": "99999"}
    return json.dumps({"kind": "PodList", "apiVersion": "v1", "metadata": meta, "items": items}).encode()


def _foreign_pod(number: int) -> dict[str, Any]:
    meta = {
        "name": f"x{number}",
        "namespace": "default",
        "uid": f"x-{number}",
        "resourceVersion": f"{9000 + number}",
    }
    spec = {"schedulerName": "default-scheduler", "nodeName": "n1", "containers": []}
    return {"metadata": meta, "spec": spec, "status": {"phase": "Running"}}


def _refusal(number: int) -> bytes:
    error = {"description": "Request failed", "error_number": number, "error": "planned", "source": "test"}
    return json.dumps({"errors": [error], "warnings": [], "meta": {}}).encode()


_NOTHING = json.dumps({"errors": [], "warnings": [], "meta": {}}).encode()
_PLAIN = {
    "drop-before": Kind.DROP_BEFORE,
    "drop-after": Kind.DROP_AFTER,
    "truncate": Kind.TRUNCATE,
    "html": Kind.HTML,
}
_STATUS = {
    "401": (401, b"Authentication failure", TEXT),
    "404": (404, _refusal(2017), "application/json"),
    "404-route": (404, b"Unable to find requested URL endpoint.", TEXT),
    "429": (429, b"slow down", TEXT),
    "500": (500, _refusal(-1), "application/json"),
    "502": (502, _refusal(1800), "application/json"),
    "504": (504, _refusal(5004), "application/json"),
    "511": (511, _refusal(1007), "application/json"),
    "no-id": (200, _NOTHING, "application/json"),  # a field that slurmrestd could not read
    "errors": (200, _refusal(9999), "application/json"),
}


def _changed(change: Callable[[dict[str, Any]], None]) -> Callable[[bytes], bytes]:
    def edit(raw: bytes) -> bytes:
        if not raw:  # nothing has changed since
            return raw
        body = json.loads(raw)
        change(body)
        return json.dumps(body).encode()

    return edit


def _empty(body: dict[str, Any]) -> None:
    body["jobs"] = []


def _short(body: dict[str, Any]) -> None:
    body["jobs"] = (body.get("jobs") or [])[1::2]


def _no_nodes(body: dict[str, Any]) -> None:
    body["nodes"] = []


def _few_nodes(body: dict[str, Any]) -> None:
    body["nodes"] = (body.get("nodes") or [])[1:]


def _foreign(body: dict[str, Any]) -> None:
    body["jobs"] = [{"job_id": str(job), "state": ["RUNNING"]} for job in FOREIGN_JOBS]


_EDITS = {
    "empty-list": _changed(_empty),
    "short-list": _changed(_short),
    "foreign-list": _changed(_foreign),
    "empty-nodes": _changed(_no_nodes),
    "short-nodes": _changed(_few_nodes),
}
