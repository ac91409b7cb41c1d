"""The mark: one JSON object in a job's admin_comment that says whose job it is.

`render(mark)` → text; `parse(text)` → Mark or None. Shape: contract of the bridge (docs/compatibility.md); `pods` alone
is what the Go project writes and reads, and is not a mark of ours: `listed(text)` reads that one.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from bridge.core.model import GroupKey, JobRecord, Mark, Uid

VERSION = 1
_REF = re.compile(r"[^/]+/[^/]+")


def render(mark: Mark) -> str:
    ours = {
        "v": VERSION,
        "cluster": mark.cluster,
        "group": str(mark.group),
        "attempt": mark.attempt,
        "uids": list(mark.uids),
        "grace": mark.grace,
    }
    if mark.over:
        ours["over"] = True
    if mark.sizes:
        ours["sizes"] = list(mark.sizes)
    if mark.asks:
        ours["asks"] = mark.asks
    if mark.place:
        ours["place"] = True
    return json.dumps({"pods": list(mark.pods), "bridge": ours}, separators=(",", ":"))


def parse(text: str) -> Mark | None:
    """None for anything that isn't exactly one of our marks: nothing may be concluded from such a job."""
    if not text.startswith("{"):
        return None
    try:
        body: Any = json.loads(text)
        ours = body["bridge"]
        group = GroupKey.parse(str(ours["group"]))
        if group is None or ours["v"] != VERSION:
            return None
        return Mark(
            cluster=str(ours["cluster"]),
            group=group,
            attempt=int(ours["attempt"]),
            uids=tuple(Uid(str(u)) for u in ours["uids"]),
            pods=tuple(str(p) for p in body.get("pods", ())),
            grace=int(ours.get("grace", 30)),
            over=ours.get("over") is True,
            sizes=tuple(str(size) for size in ours.get("sizes", ())),
            asks=str(ours.get("asks", "")),
            place=ours.get("place") is True,
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def remembered(known: JobRecord | None, read: JobRecord) -> JobRecord:
    """A job is what it was submitted as: who writes something else over its mark makes it nobody else's."""
    same = known is not None and known.mark is not None and known.submitted == read.submitted
    if known is None or not same or read.mark is not None:
        return read
    return replace(read, mark=known.mark, overwritten=True)


def dated(known: JobRecord | None, read: JobRecord, now: float) -> JobRecord:
    """Of a job that ended nobody knows when: not before it was seen so. `now`: by slurmctld's clock."""
    if not read.vague:
        return read
    same = known is not None and known.vague and known.submitted == read.submitted
    return replace(read, ended=known.ended if known is not None and same else max(read.ended, now))


def listed(text: str) -> tuple[str, ...]:
    """The pods, "namespace/name", of a mark as the Go project writes it; () for anything else, our own mark too."""
    if not text.startswith("{"):
        return ()
    try:
        body: Any = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    pods = body.get("pods") if body.keys() == {"pods"} else None
    if not isinstance(pods, list) or not all(isinstance(pod, str) and _REF.fullmatch(pod) for pod in pods):
        return ()
    return tuple(pods)
