"""What the pods themselves ask for, as annotations: the layer of a job's options that nobody wrote.

In: a group, settings, what people wrote. Out: annotations, the rule behind each, warnings. Of a gang of different pods
the most of each resource counts for every one.
"""

from __future__ import annotations

import math

from bridge.config import JobSettings
from bridge.core import demand, devices, overrides
from bridge.core.model import Group
from bridge.core.overrides import Options, key
from bridge.errors import UserError

MINUTE = 60  # seconds


def of_group(
    group: Group, settings: JobSettings, said: Options
) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Annotations; the rule behind each field; warnings. `said`: what people wrote, which may need a word.

    Raises UserError as `core.jobspec.translate` does.
    """
    pod, gang = group.pods[0], group.gang is not None
    found = {key("job-name"): group.key.name if gang else pod.name}
    why = {"name": f"the {group.key.kind}'s name" if gang else "the pod's name"}
    amounts = _amounts(group)
    warnings: list[str] = []
    if cpus := demand.cpus(amounts):
        found[key("cpu-per-task")] = str(cpus)
        why["cpus_per_task"] = "what the pod asks for, the larger of requests and limits, rounded up to CPUs"
    if memory := demand.memory_mib(amounts):
        found[key("mem-per-node")] = f"{memory}Mi"
        why["memory_mib"] = "what the pod asks for, the larger of requests and limits, rounded up to MiB"
    for option, asked, sent, unit in (
        ("cpu-per-task", cpus, said.cpus_per_task, ""),
        ("mem-per-node", memory, said.memory_mib, " MiB"),
    ):
        if sent is not None and sent < asked:
            warnings.append(f"{key(option)}: asks Slurm for {sent}{unit}, the pod may use {asked}{unit}")
    if said.gres is None:
        text, doubts = demand.gres(amounts, settings.gresByResource)
        warnings += doubts
        if text:
            found[key("gres")] = text
            why["gres"] = "the pod's devices, by gresByResource and device class"
    else:
        warnings += _replaced_devices(amounts, settings, said.gres)
    if (meant := settings.priorityClasses.get(pod.priority_class)) is not None:
        for suffix, value in (("qos", meant.qos), ("nice", meant.nice)):
            if value is not None:
                found[key(suffix)] = str(value)
                why[suffix] = f"setting priorityClasses: PriorityClass {pod.priority_class}"
    if deadline := _deadline(group):
        seconds, whose = deadline
        found[key("timelimit")] = str(math.ceil(seconds / MINUTE))
        why["user_limit"] = f"activeDeadlineSeconds {seconds} of {whose}, rounded up to minutes"
    return found, why, warnings


def _amounts(group: Group) -> demand.Amounts:
    """What each task needs: of a gang of different pods the most of each resource."""
    asked: list[demand.Amounts] = []
    for pod in group.pods:
        try:
            asked.append(demand.effective(pod))
        except UserError as error:
            raise UserError(
                f"{error} (of pod {pod.ref})" if group.gang is not None else str(error)
            ) from error
    return demand.largest(asked)


def gpus(group: Group, settings: JobSettings) -> int:
    """How many kubelet gives to one pod at most, as far as Slurm can count them."""
    try:
        text, _ = demand.gres(_amounts(group), settings.gresByResource)
    except UserError:
        return 0
    return devices.wanted(text)


def disk_mib(group: Group, settings: JobSettings) -> int | None:
    """MiB of temporary disk that a node must have for any pod of the group; None = Slurm isn't asked for it."""
    if not settings.temporaryDisk:
        return None
    asked, pod = max(
        ((demand.disk_mib(demand.effective(p)), p) for p in group.pods), key=lambda found: found[0]
    )
    if asked > overrides.INT32:
        raise UserError(
            f"Pod {pod.ref}: ephemeral-storage: {asked} MiB are more than the {overrides.INT32} that Slurm takes;"
            " ask for less"
        )
    return asked or None


def _replaced_devices(amounts: demand.Amounts, settings: JobSettings, sent: str) -> list[str]:
    """The gres annotation wins, also over devices that we could not have translated. It may not ask for fewer GPUs than
    kubelet will hand to the pod: Slurm would give the others to somebody else."""
    try:
        text, _ = demand.gres(amounts, settings.gresByResource)
    except UserError as error:
        text = f"devices ({error})"
    asked, used = devices.wanted(sent), devices.wanted(text)
    if asked < used:
        raise UserError(
            f"{key('gres')}: {sent!r} asks Slurm for {asked} GPUs, and the pod's limits are {used}; ask for as many"
        )
    return [f"{key('gres')}: {sent!r} replaces the pod's {text}"] if text and text != sent else []


def _deadline(group: Group) -> tuple[int, str] | None:
    """The smaller activeDeadlineSeconds, and whose it is."""
    found = [(one.active_deadline, f"Pod {one.ref}") for one in group.pods if one.active_deadline]
    found += [
        (work.active_deadline, work.ref) for work in (*group.owners, *group.beside) if work.active_deadline
    ]
    return min(found, default=None)
