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
    gres: Mapping[str, int]  # "gpu:h100" → 8

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


def left(node: Node, taken: Amounts, gres_by_resource: Mapping[str, str]) -> Size:
    """`holdable`, as Slurm counts. A device that kubelet doesn't know is not in it; one that it lacks is, with 0."""
    amounts = holdable(node, taken)
    counts: dict[str, int] = {}
    for resource, target in gres_by_resource.items():
        if target and resource in amounts:
            counts[target] = counts.get(target, 0) + math.floor(amounts[resource])
    memory = math.floor(amounts.get("memory", Fraction(0)) / quantity.MIB)
    return Size(cpus=math.floor(amounts.get("cpu", 0)), memory_mib=memory, gres=counts)


def wanted(node: Node, taken: Amounts, settings: NodeSettings, gres_by_resource: Mapping[str, str]) -> Size:
    """Raises UserError where nothing is left, or it can't be read."""
    size = left(node, taken, gres_by_resource)
    cpus = size.cpus - settings.nodeHeadroomCpus
    memory = size.memory_mib - settings.nodeHeadroomMemoryMiB
    if cpus < 1 or memory < 1:
        raise UserError(
            f"node {node.name}: {max(cpus, 0)} CPUs and {max(memory, 0)} MiB are left for pods of Slurm's; move other "
            "pods away, or lower nodeHeadroomCpus and nodeHeadroomMemoryMiB"
        )
    return Size(cpus=cpus, memory_mib=memory, gres={name: n for name, n in size.gres.items() if n})


def offered(records: Iterable[NodeRecord]) -> Size:
    """What Slurm gives away of them, together."""
    cpus = memory = 0
    devices: dict[str, int] = {}
    for record in records:
        cpus += record.cpus - record.reserved_cores * record.threads
        memory += record.memory_mib - record.reserved_mib
        for name, count in counts(record.gres).items():
            devices[name] = devices.get(name, 0) + count
    return Size(cpus=cpus, memory_mib=memory, gres=devices)


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


def hint(
    records: Sequence[NodeRecord], node: Node, taken: Amounts, gres_by_resource: Mapping[str, str]
) -> str:
    """What makes slurmd offer no more than kubelet can hold; "" = it doesn't. Raises UserError as `holdable`."""
    has, offers = left(node, taken, gres_by_resource), offered(records)
    if not node.allocatable:
        return ""
    few = {name: count for name, count in has.gres.items() if _of(offers, name) > count}
    if offers.cpus <= has.cpus and offers.memory_mib <= has.memory_mib and not few:
        return ""
    names = " and ".join(r.name for r in records)
    if len(records) > 1:
        offered_together = f"{names} offer {offers} together, and {node.name} has {has} left"
        return f"{offered_together}: no job of ours gets them until that fits"
    (record,) = records
    parts = []
    if offers.cpus > has.cpus:
        parts.append(f"CoreSpecCount={math.ceil((record.cpus - has.cpus) / record.threads)}")
    if offers.memory_mib > has.memory_mib:
        parts.append(f"MemSpecLimit={record.memory_mib - has.memory_mib}")
    if few:
        parts.append("Gres=" + ",".join(f"{name}:{count}" for name, count in sorted(few.items())))
    return f"set {' '.join(parts)} for {names}: {node.name} has {has} left"


def _of(offers: Size, name: str) -> int:
    """Slurm may tell more of a device than the setting says: "gpu" is every "gpu:TYPE"."""
    return sum(count for gres, count in offers.gres.items() if name in (gres, gres.partition(":")[0]))
