"""The order of the pods of a group: rank i gets the i-th place in Slurm's order of nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable

from bridge.core.model import Pod, Uid
from bridge.names import COMPLETION_INDEX, JOBSET_JOB_INDEX, LWS_WORKER_INDEX, POD_INDEX

_NUMBERED = re.compile(r"(.*?)([0-9]{0,9})")
_Place = tuple[Uid, int, int]  # its controller, the job of a JobSet, the index
INDICES = (COMPLETION_INDEX, LWS_WORKER_INDEX, POD_INDEX)  # what controllers number the pods of a set by


def rank(pod: Pod) -> tuple[int, int, str, int]:
    """The job of a JobSet, the index within it, then the name, where w-9 comes before w-10. Pods without an index come
    first."""
    stem, end = _split(pod.name)
    index = next((found for key in INDICES if (found := number(pod, key)) >= 0), -1)
    return (number(pod, JOBSET_JOB_INDEX), index, stem, end)


def last(pods: Iterable[Pod]) -> list[Pod]:
    """Of those that one controller made for one index, who came last; all that have no index. In the order given."""
    everyone = list(pods)
    newest: dict[_Place, Pod] = {}
    for pod in everyone:
        if (place := _place(pod)) is not None:
            newest[place] = max(
                newest.get(place, pod), pod, key=lambda one: (one.created, one.phase == "Succeeded")
            )
    return [pod for pod in everyone if (place := _place(pod)) is None or newest[place] is pod]


def _place(pod: Pod) -> _Place | None:
    (job, index, *_), owner = rank(pod), next((o.uid for o in pod.owners if o.controller), None)
    return (owner, job, index) if owner is not None and index >= 0 else None


def _split(name: str) -> tuple[str, int]:
    found = _NUMBERED.fullmatch(name)
    return (found[1], int(found[2]) if found[2] else -1) if found is not None else (name, -1)


def number(pod: Pod, key: str) -> int:
    """-1 for none, and for what no controller writes."""
    text = pod.annotations.get(key) or pod.labels.get(key) or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
