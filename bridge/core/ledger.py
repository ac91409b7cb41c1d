"""The ledger of devices: who may still use a GPU that Slurm has given to somebody else.

In: pods that sit on nodes, with the GPUs that we wrote on them, and what a job holds by its own record. Out: which of
these pods stand in the job's way. What must stay true: what can't be told counts as held, and a pod never stands in the
way of its own job. Which containers are known dead is decided elsewhere (`Member.containers_dead`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from bridge.core import devices, hostlist
from bridge.core.model import JobRecord, KubeNode, Pod, SlurmNode, Uid
from bridge.errors import UserError
from bridge.names import (
    GPUS_ANNOTATION,
    JOB_ID_LABEL,
    NODE_ANNOTATION,
    SCHEDULING_GATE,
    STARTED_ANNOTATION,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A pod on a node and its GPUs there."""

    uid: Uid
    pod: str  # "namespace/name"
    node: KubeNode
    gpus: frozenset[int] | None  # None: its annotation can't be read, so it may be any of them

    def __str__(self) -> str:
        gpus = "any" if self.gpus is None else devices.spell(self.gpus)
        return f"{self.pod} on {self.node}: gpu {gpus}"

    def together(self, other: Holder) -> Holder:
        """With what the same pod may have there besides."""
        known = self.gpus is not None and other.gpus is not None
        return replace(self, gpus=(self.gpus or frozenset()) | (other.gpus or frozenset()) if known else None)

    def shared(self, gpus: Collection[int]) -> str:
        """Which of these are its own, "0-1"; "" = none."""
        return devices.spell(gpus if self.gpus is None else self.gpus.intersection(gpus))


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A holder that stands in a job's way."""

    holder: Holder
    gpus: str  # the GPUs that both have, "0-1"

    def __str__(self) -> str:
        return f"{self.holder.pod} on {self.holder.node}: gpu {self.gpus}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """A grant of ours over GPUs that others may still use."""

    claims: tuple[Claim, ...]
    waited: float = 0.0  # seconds since this process first saw it so
    overdue: bool = False  # longer than a grant is worth waiting for
    homeless: bool = False  # one that lives there has lost its job, and is first in the queue for this place

    @property
    def text(self) -> str:
        return "containers of others are not known dead: " + "; ".join(map(str, self.claims))


def holding(pod: Pod, resources: Collection[str] = ()) -> Holder | None:
    """What a pod holds by our own annotation; None: no node, or no GPUs.

    `resources` are counted as GPUs: a pod that was placed with some, and says nothing of them any more, may have any.
    """
    text = pod.annotations.get(GPUS_ANNOTATION, "")
    if not pod.node:
        return None
    if not text:
        asked = (c.resources.limits for c in (*pod.containers, *pod.init_containers))
        some = any(amounts.get(name, "0") != "0" for amounts in asked for name in resources)
        silent = some and JOB_ID_LABEL in pod.labels
        return Holder(uid=pod.uid, pod=pod.ref, node=pod.node, gpus=None) if silent else None
    return Holder(uid=pod.uid, pod=pod.ref, node=pod.node, gpus=indices(text))


@lru_cache(maxsize=20_000)  # asked of each holder at every look
def indices(text: str) -> frozenset[int] | None:
    """Of our annotation, "0-1,4"; None: it can't be read, as anybody who may edit the pod may have written it."""
    if not text:
        return frozenset()
    try:
        return frozenset(int(number) for number in hostlist.expand(f"[{text}]"))
    except (UserError, ValueError):
        return None


def started(pod: Pod) -> int:
    """The start of its job that gave it its GPUs, in Unix seconds by slurmctld's clock; 0 = not noted."""
    text = pod.annotations.get(STARTED_ANNOTATION, "")
    return int(text) if text.isascii() and text.isdigit() else 0


def blocking(
    record: JobRecord,
    kube_name: Callable[[SlurmNode], KubeNode],
    holders: Callable[[KubeNode], Iterable[Holder]],
    *,
    only: KubeNode | None = None,
) -> tuple[Claim, ...]:
    """Who has GPUs that this job has, too, on its nodes (or on `only` one of them), but for its own pods.

    Raises ProtocolError for a gres text that Slurm doesn't write.
    """
    own = record.mark.uids if record.mark else ()
    found: list[Claim] = []
    for name, text in zip(record.nodes, record.gres, strict=False):
        node = kube_name(name)
        if only not in (None, node):
            continue
        gpus = devices.indices(text)
        others = (holder for holder in holders(node) if holder.uid not in own)
        found += [Claim(holder=other, gpus=both) for other in others if (both := other.shared(gpus))]
    return tuple(found)


def destination(pod: Pod) -> KubeNode:
    """Where kube-scheduler may bind it at any moment; "" = nowhere, or it is bound."""
    waits = (
        pod.node or pod.deleted or pod.ended or SCHEDULING_GATE in pod.gates or JOB_ID_LABEL not in pod.labels
    )
    return KubeNode("" if waits else pod.annotations.get(NODE_ANNOTATION, ""))
