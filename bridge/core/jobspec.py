"""A group of pods → the placeholder job that asks Slurm for exactly their room.

In: the group with its workload, settings and attempt. Out: a `JobSpec` with its warnings, and
on request the rule behind each field. Stays true: for every resource that Slurm counts, what is sent is at
least what the pod asks Kubernetes for; a pod that asks for nothing gets the configured minimum, never "all".
Everything that is known goes through one table of options: defaults < derived < owner < pod.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from bridge.config import JobSettings
from bridge.core import demand, devices, grouping, overrides
from bridge.core.model import Group, JobSpec, Mark, Pod, SlurmNode
from bridge.core.overrides import OptionError, Options, key
from bridge.errors import UserError
from bridge.names import OPTION_PREFIX

MINUTE = 60  # seconds
_FIELDS = frozenset(field.name for field in fields(JobSpec))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Why one field of a job is as it is."""

    field: str  # of JobSpec
    value: str
    layer: str  # "defaults" | "derived" | "owner" | "pod" | "bridge"
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    options: Options
    why: Mapping[str, str]  # field → rule, for what is derived or a default
    warnings: tuple[str, ...]


def translate(
    group: Group,
    *,
    settings: JobSettings,
    cluster: str,
    attempt: int = 0,
) -> JobSpec:
    """The job of a group of one pod.

    Raises UserError naming object, field and fix for malformed quantities and annotations, for GPUs that
    Slurm can't count, and for groups that aren't supported yet.
    """
    pod = _only_pod(group)
    answer = _answer(group, pod, settings)
    found = answer.options
    minutes = found.user_limit or None
    return JobSpec(
        name=found.name or "",
        partition=found.partition or "",
        mark=Mark(
            cluster=cluster,
            group=group.key,
            attempt=attempt,
            uids=tuple(member.uid for member in group.pods),
            pods=tuple(member.ref for member in group.pods),
            grace=pod.grace,
        ),
        nodes_min=found.nodes_min or 1,
        nodes_max=found.nodes_max or 1,
        tasks=max(len(group.pods), found.nodes_min or 1),  # Slurm wants a task a node
        cpus_per_task=found.cpus_per_task or settings.minimumCpus,
        memory_mib=found.memory_mib or settings.minimumMemoryMiB,
        gres=found.gres or "",
        exclusive=bool(found.exclusive),
        time_limit=None if minutes is None else _sent_limit(minutes, pod, settings),
        user_limit=minutes,
        account=found.account or "",
        qos=found.qos or "",
        user=found.user or "",
        group=found.group or "",
        reservation=found.reservation or "",
        wckey=found.wckey or "",
        licenses=found.licenses or "",
        constraints=found.constraints or "",
        prefer=found.prefer or "",
        priority=found.priority,
        nice=found.nice,
        dependency=found.dependency or "",
        comment=found.comment or "",
        begin=found.begin or "",
        deadline=found.deadline or "",
        segment_size=found.segment_size,
        mcs_label=settings.mcsLabel,
        excluded_nodes=found.excluded_nodes or (),
        warnings=answer.warnings,
    )


def avoiding(spec: JobSpec, nodes: tuple[SlurmNode, ...]) -> JobSpec:
    """The same job on none of these nodes either. Ten thousand jobs may share one tuple."""
    own = spec.excluded_nodes
    return replace(spec, excluded_nodes=tuple(dict.fromkeys((*own, *nodes))) if own else nodes)


def capped(spec: JobSpec, longest: int | None) -> JobSpec:
    """With grace and margin on top the limit may exceed what the partition allows: then the pod gives them up.

    `longest` in minutes, None = unlimited. A limit of the user's own that is too long stays, and Slurm says so.
    """
    sent, wanted = spec.time_limit, spec.user_limit
    if longest is None or sent is None or wanted is None or sent <= longest or wanted > longest:
        return spec
    kept = max(1, longest - (sent - wanted))
    text = f"timelimit {wanted}: partition {spec.partition} allows {longest} min; the pod is ended after {kept} min"
    return replace(spec, time_limit=longest, user_limit=kept, warnings=(*spec.warnings, text))


def padded(spec: JobSpec) -> bool:
    """Grace and margin are on top of the user's limit."""
    return spec.time_limit is not None and spec.user_limit is not None and spec.time_limit > spec.user_limit


def unpadded(spec: JobSpec) -> JobSpec:
    """The same job with the user's own limit (core.limits tells when its pod ends then)."""
    return replace(spec, time_limit=spec.user_limit)


def essence(pod: Pod) -> tuple[object, ...]:
    """All of a pod that its job depends on: equal essences make equal jobs, whatever happens to the pod's status."""
    options = {key: said for key, said in pod.annotations.items() if key.startswith(OPTION_PREFIX)}
    asks = (pod.containers, pod.init_containers, pod.overhead, pod.resources, pod.claims)
    return (pod.uid, pod.ref, pod.grace, pod.priority_class, pod.active_deadline, asks, options)


def explain(group: Group, *, settings: JobSettings) -> tuple[Rule, ...]:
    """Which rule sets each field of the job, ordered by field. Raises as `translate` does."""
    pod = _only_pod(group)
    answer = _answer(group, pod, settings)
    said = answer.options.sources.keys() & _FIELDS
    rules = [_rule(option, answer, group) for option in overrides.TABLE if option.field in said]
    minutes = answer.options.user_limit
    if minutes:
        why = f"{minutes} min + {pod.grace} s grace of the pod + {settings.timeLimitMargin} s timeLimitMargin"
        value = str(_sent_limit(minutes, pod, settings))
        rules.append(Rule(field="time_limit", value=value, layer="bridge", why=why))
    if settings.mcsLabel:
        rules.append(
            Rule(field="mcs_label", value=settings.mcsLabel, layer="defaults", why="setting mcsLabel")
        )
    return tuple(sorted(rules, key=lambda rule: rule.field))


def _rule(option: overrides.Option, answer: _Answer, group: Group) -> Rule:
    value = getattr(answer.options, option.field)
    layer = answer.options.sources[option.field]
    why = answer.why.get(option.field, "") if layer in ("defaults", "derived") else ""
    shown = ",".join(value) if isinstance(value, tuple) else str(value)
    why = why or f"annotation {option.key} of {_object(group, layer)}"
    return Rule(field=option.field, value=shown, layer=layer, why=why)


def _answer(group: Group, pod: Pod, settings: JobSettings) -> _Answer:
    """Merge the four layers, each in the form of annotations, and collect what is worth a word."""
    owner = group.workload.annotations if group.workload else {}
    try:
        said = overrides.options(owner, pod.annotations)
    except OptionError as error:
        raise UserError(f"{_object(group, error.layer)}: {error}") from error
    if said.gang:
        raise UserError(f"{_object(group, said.sources['gang'])}: {key('gang')}: gangs are not supported yet")
    try:
        derived, why, warnings = _derive(group, pod, settings, said)
        options = overrides.options(_defaults(settings), derived, owner, pod.annotations)
    except UserError as error:
        raise UserError(f"Pod {pod.ref}: {error}") from error
    options = _node_counts(group, options)
    return _Answer(
        options=options,
        why={**_DEFAULT_RULES, **why},
        warnings=(*options.warnings, *warnings, *_doubts(group, options)),
    )


_DEFAULT_RULES = {
    "partition": "setting partition",
    "exclusive": "setting exclusiveByDefault",
    "cpus_per_task": "setting minimumCpus: the pod asks for no CPU",
    "memory_mib": "setting minimumMemoryMiB: the pod asks for no memory",
    "nodes_min": "one node a pod",
    "nodes_max": "one node a pod",
}


def _defaults(settings: JobSettings) -> dict[str, str]:
    return {
        key("partition"): settings.partition,
        key("exclusive"): "true" if settings.exclusiveByDefault else "false",
        key("cpu-per-task"): str(settings.minimumCpus),
        key("mem-per-node"): f"{settings.minimumMemoryMiB}Mi",
        key("min-nodes"): "1",
        key("max-nodes"): "1",
    }


def _derive(
    group: Group, pod: Pod, settings: JobSettings, said: Options
) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """What the pod's own fields say, as annotations; the rule behind each; warnings."""
    found = {key("job-name"): pod.name}
    why = {"name": "the pod's name"}
    warnings: list[str] = []
    amounts = demand.effective(pod)
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
    if deadline := _deadline(group, pod):
        seconds, whose = deadline
        found[key("timelimit")] = str(math.ceil(seconds / MINUTE))
        why["user_limit"] = f"activeDeadlineSeconds {seconds} of {whose}, rounded up to minutes"
    return found, why, warnings


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


def _deadline(group: Group, pod: Pod) -> tuple[int, str] | None:
    """The smaller activeDeadlineSeconds, and whose it is."""
    found: list[tuple[int, str]] = []
    if pod.active_deadline:
        found.append((pod.active_deadline, _object(group, "pod")))
    if group.workload is not None and group.workload.active_deadline:
        found.append((group.workload.active_deadline, _object(group, "owner")))
    return min(found, default=None)


def _node_counts(group: Group, options: Options) -> Options:
    """A count that one side alone gives moves the other, which nobody gave, out of its way."""
    low, high = options.nodes_min or 1, options.nodes_max or 1
    if low > high and options.sources["nodes_max"] == "defaults":
        return replace(options, nodes_max=low)
    if low > high:
        layer = options.sources["nodes_max"]
        raise UserError(
            f"{_object(group, layer)}: {key('min-nodes')} {low} is more than {key('max-nodes')} {high};"
            " raise the second or lower the first"
        )
    return options


def _doubts(group: Group, options: Options) -> list[str]:
    """Legal, and probably not what somebody wanted."""
    pod = group.pods[0]
    doubts: list[str] = []
    if (options.nodes_max or 1) > len(group.pods):
        doubts.append(
            f"up to {options.nodes_max} nodes are held for {len(group.pods)} pod; it runs on the first"
        )
    if options.gang_timeout is not None or options.on_member_failure is not None:
        doubts.append(f"{key('gang-timeout')} and {key('on-member-failure')} have no effect on a single pod")
    owner = grouping.owner_ref(pod)
    if owner is not None and group.workload is None:
        doubts.append(f"{owner.kind} {pod.namespace}/{owner.name} is not there: its annotations don't count")
    if options.user_limit is None:
        doubts.append(
            f"no time limit: neither {key('timelimit')} nor activeDeadlineSeconds is set;"
            " the partition's default counts"
        )
    return doubts


def _sent_limit(minutes: int, pod: Pod, settings: JobSettings) -> int:
    """Minutes for Slurm: we end the pod at its own limit, and its containers are dead before Slurm's."""
    return minutes + math.ceil((pod.grace + settings.timeLimitMargin) / MINUTE)


def _only_pod(group: Group) -> Pod:
    if len(group.pods) != 1:
        raise UserError(f"{group.key}: has {len(group.pods)} pods; only groups of one are supported yet")
    pod = group.pods[0]
    if pod.claims:  # our scheduler profile allocates no devices: the pod would run without them
        raise UserError(
            f"Pod {pod.ref}: spec.resourceClaims ({', '.join(pod.claims)}): claims are not supported yet;"
            " ask for devices with resources.limits, for example nvidia.com/gpu"
        )
    return pod


def _object(group: Group, layer: str) -> str:
    """Whose annotations a layer holds, for a message."""
    if layer == "owner" and group.workload is not None:
        return f"{group.workload.kind} {group.workload.namespace}/{group.workload.name}"
    return f"Pod {group.pods[0].ref}"
