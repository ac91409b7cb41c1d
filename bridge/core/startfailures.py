"""Nodes on which pods do not start: kubelet rejects whatever it is given, and so the node attracts ever more.

In: pods of ours. Out: which of them kubelet rejected, and whether so many that their node is to be drained. What must
stay true: what a pod's author can do wrong (an image, a command, a selector) is no failure of the node; and once
somebody has given the node back, what failed before counts no more.
"""

from __future__ import annotations

from collections.abc import Iterable

from bridge.core.model import Condition, Pod
from bridge.core.nodes import StartFailure

# status.reason of a pod that kubelet never started. OutOf…: it has less than it said.
_REJECTIONS = frozenset({"UnexpectedAdmissionError", "TopologyAffinityError", "InvalidNodeInfo"})
_NAMED = 5  # pods in a message


def failure(pod: Pod) -> StartFailure | None:
    """None: kubelet took it, or has not decided."""
    rejected = pod.reason in _REJECTIONS or pod.reason.startswith("OutOf")
    if not pod.node or pod.phase != "Failed" or not rejected:
        return None
    return StartFailure(pod=pod.uid, ref=pod.ref, at=pod.bound_at)


def counted(
    failures: Iterable[StartFailure], mirrored: Condition | None, *, now: float, window: float
) -> tuple[str, ...]:
    """The pods, "namespace/name". `mirrored`: our condition on the node; while that says that Slurm can't use it, and
    for what came before, a person has the last word."""
    if mirrored is not None and mirrored.status != "True":
        return ()
    since = max(now - window, mirrored.changed if mirrored is not None else 0.0)
    found = {one.pod: one.ref for one in failures if one.at >= since}
    return tuple(sorted(found.values()))


def told(refs: Iterable[str], boot: str) -> str:
    """With the boot id, so that the drain says itself when it is over."""
    names = sorted(refs)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}, boot {boot or 'unknown'}"


def boot_of(detail: str) -> str:
    """Of a drain's text."""
    return detail.rpartition(", boot ")[2]
