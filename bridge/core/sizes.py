"""A gang whose pods are of different sizes: one job with a component for each size, where Slurm can start such jobs.

In: the job that would have the most of each resource for every pod, and the pods. Out: a job of several components in
the order in which their sizes first come in rank, or that one job. What must stay true: a component asks for exactly
what its pods need, and sizes that Slurm could not tell apart are one. Components never share a node (Slurm's rule).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bridge.config import JobSettings
from bridge.core import demand, derived
from bridge.core.model import Group, JobSpec, Pod
from bridge.core.overrides import Options, key
from bridge.core.packing import BY_PERSON, by_task
from bridge.errors import UserError

FIELDS = (
    "cpus_per_task", "memory_mib", "gres", "temporary_disk_mib", "tasks", "nodes_min", "nodes_max"
)  # in which components differ  # fmt: skip
OWN, MOST = "own", "most"  # what the option says
TEMPLATES = ("JobSet", "LeaderWorkerSet")  # few sizes, each meant; pods that just name a group may be of any
NEVER_MORE = "JobSet"  # refused rather than given more than its pods ask for


@dataclass(frozen=True, slots=True)
class Size:
    """What Slurm is asked for one pod."""

    cpus: int
    memory: int  # MiB
    gres: str
    disk: int | None  # MiB

    def __str__(self) -> str:
        disk = f", {self.disk} MiB of disk" if self.disk else ""
        return f"cpu={self.cpus}, mem={self.memory}Mi{f', {self.gres}' if self.gres else ''}{disk}"


def of_pod(pod: Pod, options: Options, settings: JobSettings) -> Size:
    """`options`: of the whole group. What people wrote counts for every pod. Raises UserError as the translation."""
    amounts = demand.effective(pod)
    said = {name for name, layer in options.sources.items() if layer in BY_PERSON}
    cpus = options.cpus_per_task if "cpus_per_task" in said else demand.cpus(amounts)
    memory = options.memory_mib if "memory_mib" in said else demand.memory_mib(amounts)
    gres = options.gres if "gres" in said else demand.gres(amounts, settings.gresByResource)[0]
    return Size(
        cpus=cpus or settings.minimumCpus,
        memory=memory or settings.minimumMemoryMiB,
        gres=gres or "",
        disk=demand.disk_mib(amounts) or None if settings.temporaryDisk else None,
    )


def apart(spec: JobSpec, group: Group, options: Options, settings: JobSettings, undivided: str) -> JobSpec:
    """`spec`: of all pods, not yet by the task. `undivided`: why Slurm takes no job of several sizes; "" = it does.

    Raises UserError for a JobSet of different sizes that can't have them, and does not ask for the most of each.
    """
    sizes: dict[Size, list[Pod]] = {}
    for pod in group.pods:
        sizes.setdefault(of_pod(pod, options, settings), []).append(pod)
    gpus = derived.gpus(group, settings)
    most = by_task(spec, options, gpus)
    if len(sizes) == 1:
        return replace(most, size=str(next(iter(sizes))))
    all_the_same = "its pods ask for different amounts: Slurm is asked for the most of each, for every pod"
    if (options.sizes or (OWN if group.key.kind in TEMPLATES else MOST)) == MOST:
        return replace(most, warnings=(*most.warnings, all_the_same))
    if why := undivided or _counted_together(options, len(group.pods)):
        if group.key.kind == NEVER_MORE or options.sizes == OWN:
            one, other = list(map(str, sizes))[:2]
            raise UserError(
                f"{group.key.kind} {group.key.namespace}/{group.key.name}: pods of {len(sizes)} sizes ({one}; {other}):"
                f" {why}; let all ask for the same, or write {key('sizes')}: {MOST}"
            )
        return replace(most, warnings=(*most.warnings, f"{all_the_same}; {why}"))
    placed = [
        pod for pods in sizes.values() for pod in pods
    ]  # a mark names them in the order of their places
    uids, refs = tuple(pod.uid for pod in placed), tuple(pod.ref for pod in placed)
    mark = replace(spec.mark, sizes=tuple(map(str, sizes)), uids=uids, pods=refs)
    first, *others = (
        _component(replace(spec, mark=mark), size, pods, options, gpus) for size, pods in sizes.items()
    )
    others = [replace(one, licenses="") for one in others]  # the job holds them once
    text = f"its pods are of {len(sizes)} sizes: Slurm gives those of different sizes different nodes"
    return replace(first, others=tuple(others), most=most, warnings=(*first.warnings, text))


def _counted_together(options: Options, pods: int) -> str:
    low, high = options.nodes_min or 1, options.nodes_max or pods
    if low == pods or (low == 1 and high == pods):
        return ""
    return "min-nodes and max-nodes can't count nodes of several sizes together"


def _component(spec: JobSpec, size: Size, pods: list[Pod], options: Options, gpus: int) -> JobSpec:
    count = len(pods)
    asked = replace(
        spec,
        nodes_min=count if spec.nodes_min == spec.tasks else 1,
        nodes_max=count,
        tasks=count,
        cpus_per_task=size.cpus,
        memory_mib=size.memory,
        gres=size.gres,
        temporary_disk_mib=size.disk,
        size=str(size),
        pods=tuple(pod.uid for pod in pods),
    )
    return by_task(asked, options, gpus)
