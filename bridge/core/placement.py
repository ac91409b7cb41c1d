"""A granted job → the slot of each pod: its Kubernetes node and its GPUs.

In: the group in rank order and one full read of its job, nodes and gres texts in Slurm's order. Out: one
slot for each pod, in rank order: the pods are spread evenly and rank i gets the i-th slot. What must stay
true: every slot lies on a node that the job holds, and no GPU of a node is in two slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bridge.core import devices
from bridge.core.model import Group, JobRecord, JobSpec, KubeNode, Pod, Slot, SlurmNode
from bridge.errors import UserError


class PlacementError(UserError):
    """What Slurm granted can't hold the group; the grant has to be given back."""


def place(
    group: Group, record: JobRecord, kube_name: Callable[[SlurmNode], KubeNode | None]
) -> tuple[Slot, ...]:
    """One slot a pod. Fewer pods than nodes: the first nodes are used.

    Raises PlacementError if the record names no node, a node has no Kubernetes twin, or pods or GPUs don't
    divide evenly; ProtocolError if a gres text is none that Slurm writes.
    """
    if not record.nodes:
        raise PlacementError(f"job {record.id}: Slurm names no node for it; it is asked for anew")
    used = record.nodes[: len(group.pods)]
    per_node, left = divmod(len(group.pods), len(used)) if used else (0, 0)
    if left:
        raise PlacementError(
            f"job {record.id}: {len(group.pods)} pods don't spread evenly over its {len(used)} nodes;"
            " ask for a number of nodes that divides them"
        )
    slots: list[Slot] = []
    for position, node in enumerate(used):
        members = group.pods[position * per_node : (position + 1) * per_node]
        slots.extend(_on_node(members, node, kube_name(node), record, position))
    return tuple(slots)


def shortfall(spec: JobSpec, record: JobRecord) -> str:
    """What a granted job has less of than was asked for, in words; "" = nothing.

    Whoever may change a waiting job (its owner, an operator) can make it smaller, and the pod would use what it lacks.
    Raises ProtocolError if a gres text is none that Slurm writes.
    """
    missing: list[str] = []
    gpus = devices.wanted(spec.gres)
    for position, node in enumerate(record.nodes):
        text = record.gres[position] if position < len(record.gres) else ""
        held = sum(one.count for one in devices.held(text) if one.name == devices.GPU)
        if held < gpus:
            missing.append(f"{held} of {gpus} GPUs on {node}")
    cpus = spec.tasks * spec.cpus_per_task
    if record.cpus is not None and record.cpus < cpus:
        missing.append(f"{record.cpus} of {cpus} CPUs")
    if record.memory_mib and record.memory_mib < spec.memory_mib:
        missing.append(f"{record.memory_mib} of {spec.memory_mib} MiB of memory")
    return " and ".join(missing)


def _on_node(
    members: Sequence[Pod], node: SlurmNode, twin: KubeNode | None, record: JobRecord, position: int
) -> list[Slot]:
    if twin is None:
        raise PlacementError(
            f"job {record.id}: Slurm node {node} is no node of this Kubernetes cluster;"
            " register it, or take it out of the partition"
        )
    text = record.gres[position] if position < len(record.gres) else ""
    gpus = devices.indices(text)
    share, left = divmod(len(gpus), len(members))
    if left:
        raise PlacementError(
            f"job {record.id}: {len(gpus)} GPUs of node {node} don't spread evenly over {len(members)} pods"
        )
    return [
        Slot(pod=pod.uid, node=twin, gpus=devices.spell(gpus[rank * share : (rank + 1) * share]))
        for rank, pod in enumerate(members)
    ]
