"""How large a node is for Slurm: what kubelet can hold beside the pods that are not Slurm's.

In: a Kubernetes node, those pods, the Slurm record. Out: the size that an external node should have, in which it
differs by more than the tolerance, and for nodes with slurmd what an admin should set. What must stay true: a size is
never more than kubelet can hold, so it is rounded down.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from bridge.config import NodeSettings
from bridge.core import demand, quantity
from bridge.core.model import Node, Pod
from bridge.core.nodes import NodeRecord
from bridge.errors import UserError

_SOCKETS = re.compile(r"\([^)]*\)")  # "gpu:h100:8(S:0-1)": only where the sockets were told


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    cpus: int
    memory_mib: int
    gres: Mapping[str, int]  # "gpu:h100" → 8; none has 0

    def __str__(self) -> str:
        devices = "".join(f", {name}:{count}" for name, count in sorted(self.gres.items()))
        return f"{self.cpus} CPUs, {self.memory_mib} MiB{devices}"


Amounts = Mapping[str, Fraction]


def taken(others: Iterable[Pod]) -> Amounts:
    """What pods that are not Slurm's ask for, together. Raises UserError for an amount that can't be read."""
    sums: dict[str, Fraction] = {}
    for pod in others:
        for name, amount in demand.requested(pod).items():
            sums[name] = sums.get(name, Fraction(0)) + amount
    return sums


def holdable(node: Node, taken: Amounts) -> Amounts:
    """Resource → what is left for pods of ours, in the resource's own unit.

    Raises UserError for an amount that can't be read: nothing is concluded from a guess.
    """
    has = {name: _amount(text, f"{node.name}: {name}") for name, text in node.allocatable.items()}
    return {name: max(amount - taken.get(name, 0), Fraction(0)) for name, amount in has.items()}


@lru_cache(maxsize=4096)
def _amount(text: str, field: str) -> Fraction:
    return quantity.parse(text, field)


def wanted(node: Node, taken: Amounts, settings: NodeSettings, gres_by_resource: Mapping[str, str]) -> Size:
    """Raises UserError where nothing is left, or it can't be read."""
    left = holdable(node, taken)
    cpus = math.floor(left.get("cpu", 0)) - settings.nodeHeadroomCpus
    memory = math.floor(left.get("memory", Fraction(0)) / quantity.MIB) - settings.nodeHeadroomMemoryMiB
    if cpus < 1 or memory < 1:
        raise UserError(
            f"node {node.name}: {max(cpus, 0)} CPUs and {max(memory, 0)} MiB are left for pods of Slurm's; move other "
            "pods away, or lower nodeHeadroomCpus and nodeHeadroomMemoryMiB"
        )
    counts: dict[str, int] = {}
    for resource, target in gres_by_resource.items():
        if target and (count := math.floor(left.get(resource, 0))):
            counts[target] = counts.get(target, 0) + count
    return Size(cpus=cpus, memory_mib=memory, gres=counts)


def registered(record: NodeRecord) -> Size:
    return Size(cpus=record.cpus, memory_mib=record.memory_mib, gres=counts(record.gres))


def counts(gres: str) -> Mapping[str, int]:
    """ "gpu:h100:8(S:0-1),nic:2" → {"gpu:h100": 8, "nic": 2}."""
    found: dict[str, int] = {}
    for entry in filter(None, _SOCKETS.sub("", gres).split(",")):
        name, _, count = entry.rpartition(":")
        name, number = (name, int(count)) if name and count.isdecimal() else (entry, 1)
        found[name] = found.get(name, 0) + number
    return {name: count for name, count in found.items() if count}


def difference(record: NodeRecord, size: Size, tolerance: float) -> str:
    """ "cpus 64 → 60, gpu 8 → 7"; "" = none beyond the tolerance, which devices don't have."""
    found: list[str] = []
    for name, old, new in (("CPUs", record.cpus, size.cpus), ("MiB", record.memory_mib, size.memory_mib)):
        if abs(new - old) > tolerance * old:
            found.append(f"{name} {old} → {new}")
    had = counts(record.gres)
    for name in sorted({*had, *size.gres}):
        if had.get(name, 0) != size.gres.get(name, 0):
            found.append(f"{name} {had.get(name, 0)} → {size.gres.get(name, 0)}")
    return ", ".join(found)


def hint(records: Sequence[NodeRecord], node: Node, taken: Amounts) -> str:
    """What makes slurmd offer no more than kubelet can hold; "" = it doesn't. Raises UserError as `holdable`."""
    left = holdable(node, taken)
    cpus, memory = math.floor(left.get("cpu", 0)), math.floor(left.get("memory", Fraction(0)) / quantity.MIB)
    offered = sum(r.cpus - r.reserved_cores * r.threads for r in records)
    offered_mib = sum(r.memory_mib - r.reserved_mib for r in records)
    if not node.allocatable or (offered <= cpus and offered_mib <= memory):
        return ""
    names = " and ".join(r.name for r in records)
    if len(records) > 1:
        offers = f"{names} offer {offered} CPUs and {offered_mib} MiB together"
        return f"{offers}, and {node.name} has {cpus} and {memory} left"
    (record,) = records
    parts = []
    if offered > cpus:
        parts.append(f"CoreSpecCount={math.ceil((record.cpus - cpus) / record.threads)}")
    if offered_mib > memory:
        parts.append(f"MemSpecLimit={record.memory_mib - memory}")
    return f"set {' '.join(parts)} for {names}: {node.name} has {cpus} CPUs and {memory} MiB left"
