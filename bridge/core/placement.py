"""A granted job → the slot of each pod: its Kubernetes node and its GPUs.

In: the group in rank order, one full read of its job, nodes and gres texts in Slurm's order, and what was asked for.
Out: one slot for each pod, in rank order. What must stay true: every slot lies on a node that the job holds, no GPU of
a node is in two slots, and a pod that has a slot of the job keeps it, whatever anybody wrote on it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from bridge.core import devices
from bridge.core.grouping.ranks import number
from bridge.core.model import Group, JobRecord, JobSpec, KubeNode, Pod, SlurmNode, Uid
from bridge.errors import UserError
from bridge.names import GPUS_ANNOTATION, JOB_ID_LABEL, NODE_ANNOTATION, RANK_ANNOTATION


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Where one pod of a group goes."""

    pod: Uid
    node: KubeNode
    gpus: str = ""  # GRES indices of this pod on that node, "" = none: "0-1"
    rank: int = 0  # in Slurm's order of the job's tasks


class PlacementError(UserError):
    """What Slurm granted can't hold the group; the grant has to be given back."""


@dataclass(frozen=True, slots=True)
class _Place:
    node: KubeNode
    gpus: str


def place(
    group: Group,
    record: JobRecord,
    kube_name: Callable[[SlurmNode], KubeNode | None],
    spec: JobSpec | None = None,
    before: int = 0,
) -> tuple[Slot, ...]:
    """One slot a pod. Fewer pods than nodes: the first nodes are used. A gang has as many pods on a node as Slurm gave
    it tasks there, by `spec`. `before`: of a component, the tasks of those before it.

    Raises PlacementError if the record names no node, a node has no Kubernetes twin, or pods don't divide evenly where
    Slurm doesn't say how many it put on each; ProtocolError if a gres text is none that Slurm writes.
    """
    if not record.nodes:
        raise PlacementError(f"job {record.id}: Slurm names no node for it; it is asked for anew")
    if record.parts:
        return tuple(_by_component(group, record, kube_name, spec))
    spec = _asked_as_one(spec, record)
    if group.gang is None or spec is None:
        places = _evenly(len(group.pods), record, kube_name)
    else:
        places = _tasks(record.tasks or max(spec.tasks, len(group.pods)), record, spec, kube_name)
    if len(places) < len(group.pods):
        raise PlacementError(
            f"job {record.id}: has {len(places)} places for {len(group.pods)} pods; containers of lost ones may live"
        )
    ranks = _ranks(group.pods, record, places, before)
    slots = ((uid, at, places[at]) for uid, at in ranks.items())
    by_uid = {uid: Slot(pod=uid, node=one.node, gpus=one.gpus, rank=before + at) for uid, at, one in slots}
    return tuple(by_uid[pod.uid] for pod in group.pods)


def _asked_as_one(spec: JobSpec | None, record: JobRecord) -> JobSpec | None:
    """What a job without components was asked for with: pods of one size are left, or it had the most of each."""
    sizes = record.mark.sizes if record.mark is not None else ()
    if spec is None or spec.most is None:
        return spec
    return next((one for one in (spec, *spec.others) if sizes == (one.size,)), spec.most)


def of_record(spec: JobSpec, record: JobRecord) -> Iterator[tuple[JobRecord, JobSpec]]:
    """The job that Slurm has and what it is asked for; of several sizes each component that there are pods for."""
    if record.parts:
        sizes = record.mark.sizes if record.mark is not None else ()
        each = {one.size: replace(one, others=(), most=None) for one in (spec, *spec.others)}
        yield from (
            (part, each[size]) for size, part in zip(sizes, record.parts, strict=False) if size in each
        )
    else:
        yield record, _asked_as_one(spec, record) or spec


def _by_component(
    group: Group,
    record: JobRecord,
    kube_name: Callable[[SlurmNode], KubeNode | None],
    spec: JobSpec | None,
) -> Iterator[Slot]:
    """Each pod in the component of its size; where a pod is already, its node tells, as components share none."""
    sizes = record.mark.sizes if record.mark is not None else ()
    asked = {one.size: one for one in (spec, *spec.others)} if spec is not None else {}
    size_of = {uid: one.size for one in asked.values() for uid in one.pods}
    where = {kube_name(name): at for at, part in enumerate(record.parts) for name in part.nodes}
    members: dict[int, list[Pod]] = {}
    for pod in group.pods:
        size = size_of.get(pod.uid, spec.size if spec is not None else "")
        at = where.get(node) if (node := _own_node(pod, record)) else None
        if at is None and size not in sizes[: len(record.parts)]:
            raise PlacementError(f"job {record.id}: has no places of the size of pod {pod.ref} ({size})")
        members.setdefault(sizes.index(size) if at is None else at, []).append(pod)
    before = 0
    for at, part in enumerate(record.parts):
        own = asked.get(sizes[at]) if at < len(sizes) else None
        mine = members.get(at)
        if own is None and mine:
            text = f"job {record.id}: nothing is known of a size like that of pod {mine[0].ref} now"
            raise PlacementError(text)
        if own is not None and mine:
            yield from place(
                replace(group, pods=tuple(mine)),
                replace(part, id=record.id, mark=record.mark),
                kube_name,
                replace(own, most=None),
                before,
            )
        before += part.tasks or 0


def _own_node(pod: Pod, record: JobRecord) -> KubeNode | None:
    """Where the pod is, or is to be, by this job; None = it has no place of it yet."""
    if pod.labels.get(JOB_ID_LABEL) != str(record.id):
        return None
    return KubeNode(pod.node or pod.annotations.get(NODE_ANNOTATION, "")) or None


def _ranks(
    pods: Sequence[Pod], record: JobRecord, places: Sequence[_Place], before: int
) -> Mapping[Uid, int]:
    """Which of the places each pod has. Who is there keeps the one that it was told or, if that can't be, the one that
    the job's mark has it in, as marks name pods in the order of their places; else one that looks like its own. Those
    that come get what is left: each its place in the mark, if it can."""
    named = record.mark.uids if record.mark is not None else tuple(pod.uid for pod in pods)
    at_of = {uid: at - before for at, uid in enumerate(named)}
    marked = [(pod.uid, at_of[pod.uid]) for pod in pods if pod.uid in at_of]
    told = [(pod.uid, number(pod, RANK_ANNOTATION) - before) for pod in pods if pod.node]
    claimants = Counter(at for _, at in told)  # somebody wrote over the annotation of one of several
    own = {
        pod.uid: _Place(node, pod.annotations.get(GPUS_ANNOTATION, ""))
        for pod in pods
        if (node := _own_node(pod, record)) is not None
    }
    found: dict[Uid, int] = {}
    free = set(range(len(places)))

    def give(wishes: Iterable[tuple[Uid, int]]) -> None:
        for uid, at in wishes:
            if uid not in found and at in free:
                found[uid] = at
                free.remove(at)

    def fitting(wishes: Iterable[tuple[Uid, int]]) -> Iterator[tuple[Uid, int]]:
        return ((uid, at) for uid, at in wishes if at in free and places[at] == own.get(uid))

    give(fitting((uid, at) for uid, at in told if claimants[at] == 1))
    give(fitting(marked))
    give(fitting((uid, at) for uid in own if uid not in found for at in range(len(places))))
    give(marked)
    give(zip([pod.uid for pod in pods if pod.uid not in found], sorted(free), strict=False))
    return found


def _evenly(pods: int, record: JobRecord, kube_name: Callable[[SlurmNode], KubeNode | None]) -> list[_Place]:
    """The pods, and the GPUs of a node, are spread evenly."""
    used = record.nodes[:pods]
    per_node, left = divmod(pods, len(used)) if used else (0, 0)
    if left:
        raise PlacementError(
            f"job {record.id}: {pods} pods don't spread evenly over its {len(used)} nodes;"
            " ask for a number of nodes that divides them"
        )
    places: list[_Place] = []
    for position, node in enumerate(used):
        gpus = devices.indices(_gres(record, position))
        places += _on_node(_twin(record, node, kube_name), gpus, per_node)
    return places


def _tasks(
    tasks: int, record: JobRecord, spec: JobSpec, kube_name: Callable[[SlurmNode], KubeNode | None]
) -> list[_Place]:
    """As many places on a node as it holds tasks, by its GPUs and its CPUs, in Slurm's order of the nodes. GPUs asked
    for by the node are spread evenly over the pods there."""
    if spec.tasks < tasks:  # pods are missing: those that are there don't tell how many share a node
        evenly = math.ceil(tasks / len(record.nodes)) if spec.exclusive else None
        spec = replace(spec, tasks_per_node=evenly)
    each = devices.wanted(spec.gres_per_task)
    if not each and not record.cpus_by_node:
        return _evenly(tasks, record, kube_name)
    room = [_room(position, record, spec, each) for position in range(len(record.nodes))]
    if sum(room) < tasks:
        shown = ", ".join(f"{count} on {node}" for node, count in zip(record.nodes, room, strict=True))
        raise PlacementError(f"job {record.id}: has room for {sum(room)} of its {tasks} pods: {shown}")
    places: list[_Place] = []
    for position, node in enumerate(record.nodes):
        after = sum(1 for more in room[position + 1 :] if more)  # each was given for one pod at least
        count = min(room[position], max(0, tasks - len(places) - after))
        gpus = devices.indices(_gres(record, position))
        used = gpus if devices.wanted(spec.gres) else gpus[: count * each]
        places += _on_node(_twin(record, node, kube_name), used, count)
    return places


def _room(position: int, record: JobRecord, spec: JobSpec, gpus_each: int) -> int:
    """Tasks that this node of the job has room for."""
    found: list[int] = []
    if gpus_each:
        found.append(len(devices.indices(_gres(record, position))) // gpus_each)
    if record.cpus_by_node:
        found.append(record.cpus_by_node[position] // max(spec.cpus_per_task, record.cpus_per_task or 1))
    if spec.tasks_per_node is not None:
        found.append(spec.tasks_per_node)
    return min(found)


def _on_node(node: KubeNode, gpus: Sequence[int], count: int) -> list[_Place]:
    """So many places; where the GPUs don't divide, the first have one more."""
    each, more = divmod(len(gpus), count) if count else (0, 0)
    starts = [at * each + min(at, more) for at in range(count + 1)]
    return [_Place(node, devices.spell(gpus[first:last])) for first, last in pairwise(starts)]


def _twin(record: JobRecord, node: SlurmNode, kube_name: Callable[[SlurmNode], KubeNode | None]) -> KubeNode:
    twin = kube_name(node)
    if twin is None:
        raise PlacementError(
            f"job {record.id}: Slurm node {node} is no node of this Kubernetes cluster;"
            " register it, or take it out of the partition"
        )
    return twin


def _gres(record: JobRecord, position: int) -> str:
    return record.gres[position] if position < len(record.gres) else ""


def shortfall(spec: JobSpec, record: JobRecord) -> str:
    """What a granted job has less of than was asked for, in words; "" = nothing.

    Whoever may change a waiting job (its owner, an operator) can make it smaller, and the pod would use what it lacks.
    Raises ProtocolError if a gres text is none that Slurm writes.
    """
    return " and ".join(filter(None, (_shortfall(own, part) for part, own in of_record(spec, record))))


def _shortfall(spec: JobSpec, record: JobRecord) -> str:
    missing: list[str] = []
    gpus = devices.wanted(spec.gres)
    held = [_gpus(_gres(record, position)) for position in range(len(record.nodes))]
    missing += [
        f"{has} of {gpus} GPUs on {node}" for node, has in zip(record.nodes, held, strict=True) if has < gpus
    ]
    wanted = spec.tasks * devices.wanted(spec.gres_per_task)
    if sum(held) < wanted:
        missing.append(f"{sum(held)} of {wanted} GPUs")
    cpus = spec.tasks * spec.cpus_per_task
    if record.cpus is not None and record.cpus < cpus:
        missing.append(f"{record.cpus} of {cpus} CPUs")
    if less := _cramped(spec, record):
        missing.append(less)
    if record.memory_mib and record.memory_mib < (spec.memory_mib or 0):
        missing.append(f"{record.memory_mib} of {spec.memory_mib} MiB of memory")
    return " and ".join(missing)


def cramped(spec: JobSpec, record: JobRecord) -> str:
    """Of memory for each pod of a gang, in words; "" = it has enough, or its memory is counted by the node. Whoever
    comes for a lost pod may ask for more than that one did."""
    return next(filter(None, (_cramped(own, part) for part, own in of_record(spec, record))), "")


def _cramped(spec: JobSpec, record: JobRecord) -> str:
    wanted, has = spec.cpus_per_task * (spec.memory_per_cpu or 0), record.memory_per_cpu
    each = (has or 0) * (record.cpus_per_task or 1)
    return f"{each} of {wanted} MiB of memory for each pod" if has and each < wanted else ""


def _gpus(text: str) -> int:
    return sum(one.count for one in devices.held(text) if one.name == devices.GPU)
