"""Ghosts: pods whose objects went before this process began, and whose containers may live.

In: the record of a job of ours, and which pods have been seen. Out: who may still hold what the job had, and the mark
by which our own ends say that nobody does. What must stay true: a job that somebody else ended has ghosts until its
grace and a margin are over; one that we ended has none, so that a restart of the bridge holds nobody up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Set
from dataclasses import replace
from itertools import zip_longest

from bridge.core import devices
from bridge.core.ledger import Holder
from bridge.core.model import JobRecord, KubeNode, Mark, Pod, SlurmNode, Uid, is_ended
from bridge.errors import ProtocolError

WITH_A_STATUS = frozenset({"COMPLETED", "FAILED", "OUT_OF_MEMORY"})  # ours: that of containers that are dead


def at_rest(record: JobRecord | None, members: Set[Uid] | None = None) -> Mark | None:
    """What to write on a job that we cancel after its containers; None: nothing, it isn't ours or never had a node.

    `members`: who has gone. Others of its gang would take the cancel for a person's word.
    """
    if record is None or record.mark is None:
        return None
    others = members is not None and not members >= set(record.mark.uids)
    return replace(record.mark, over=True) if record.nodes or others else None


def at_peace(record: JobRecord) -> bool:
    """We ended it, so its containers were dead, or its nodes drained."""
    return bool((record.mark is not None and record.mark.over) or record.states & WITH_A_STATUS)


def ghosts(
    record: JobRecord,
    kube_name: Callable[[SlurmNode], KubeNode],
    ready_since: Callable[[KubeNode], float],
    *,
    cluster: str,
    seen: Collection[Uid],
    now: float,
    margin: float,
) -> Iterator[Holder]:
    """Pods of the job's mark that were never seen, on each of its nodes.

    `now`: by slurmctld's clock. `ready_since`: in seconds since the epoch; inf: the node is not Ready. Its kubelet ends
    nothing before.
    """
    mark, ended = record.mark, is_ended(record.states)
    if mark is None or mark.cluster != cluster or at_peace(record):
        return
    for name, text in zip_longest(record.nodes, record.gres[: len(record.nodes)], fillvalue=""):
        node = kube_name(SlurmNode(name))
        if ended and now - max(record.ended, ready_since(node)) >= mark.grace + margin:
            continue
        gpus = _gpus(text, ended=ended)
        if gpus and mark.place:
            gpus = None  # a claim may have got other GPUs than its pod was started with
        if gpus is None or gpus:
            for uid, pod in zip(mark.uids, mark.pods, strict=False):
                if uid not in seen:
                    yield Holder(uid=uid, pod=pod, node=node, gpus=gpus)


def never_seen(
    record: JobRecord, kube_name: Callable[[SlurmNode], KubeNode], *, cluster: str, seen: Collection[Uid]
) -> Iterator[Pod]:
    """Of a live job: one for each of its nodes, as any pod of its mark that was never seen may be there."""
    mark = record.mark
    if mark is None or mark.cluster != cluster:
        return
    unseen = next((p for p in zip(mark.uids, mark.pods, strict=False) if p[0] not in seen), None)
    if unseen is None:
        return
    uid, (namespace, _, name) = unseen[0], unseen[1].partition("/")
    for node in record.nodes:
        yield Pod(namespace=namespace, name=name, uid=uid, node=kube_name(node), grace=mark.grace)


def _gpus(text: str, *, ended: bool) -> frozenset[int] | None:
    """None: any of the node. Of an ended job Slurm does not tell."""
    if ended and not text:
        return None
    try:
        return frozenset(devices.indices(text))
    except ProtocolError:
        return None
