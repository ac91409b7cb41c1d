"""A group of pods → the placeholder job that asks Slurm for exactly their room.

In: the group with its workload, settings and attempt. Out: a `JobSpec` with its warnings, and
on request the rule behind each field. Stays true: for every resource that Slurm counts, what is sent is at
least what the pod asks Kubernetes for; a pod that asks for nothing gets the configured minimum, never "all".
Everything that is known goes through one table of options: defaults < derived < owner < pod.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields, replace

from bridge.config import JobSettings
from bridge.core import derived, environment, fit, grouping, overrides, packing, sizes
from bridge.core.grouping.owners import merged, whose
from bridge.core.model import Group, JobSpec, Mark, Pod, SlurmNode
from bridge.core.overrides import OptionError, Options, key
from bridge.errors import UserError

MINUTE = 60  # seconds
WITHOUT_LIMIT = (
    "with a deadline Slurm wants a time limit that ends before it:"
    f" set {key('timelimit')}, or activeDeadlineSeconds"
)
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


LONGEST = 2**31 - 100_000  # minutes: what is put on top of a limit must not make it a negative one in Slurm


def translate(
    group: Group,
    *,
    settings: JobSettings,
    cluster: str,
    attempt: int = 0,
    undivided: str = "",
) -> JobSpec:
    """The job of a group: a task for each pod. `undivided`: why Slurm takes no job of several sizes; "" = it does.

    Raises UserError naming object, field and fix for malformed quantities and annotations, and for GPUs that
    Slurm can't count.
    """
    answer = _answer(group, settings)
    found = answer.options
    minutes = min(found.user_limit, LONGEST) if found.user_limit else None
    grace = max(pod.grace for pod in group.pods)
    spec = JobSpec(
        name=found.name or "",
        partition=found.partition or "",
        mark=Mark(
            cluster=cluster,
            group=group.key,
            attempt=attempt,
            uids=tuple(member.uid for member in group.pods),
            pods=tuple(member.ref for member in group.pods),
            grace=grace,
        ),
        nodes_min=found.nodes_min or 1,
        nodes_max=found.nodes_max or 1,
        tasks=max(len(group.pods), found.nodes_min or 1),  # Slurm wants a task a node
        cpus_per_task=found.cpus_per_task or settings.minimumCpus,
        memory_mib=found.memory_mib or settings.minimumMemoryMiB,
        temporary_disk_mib=derived.disk_mib(group, settings),
        gres=found.gres or "",
        exclusive=bool(found.exclusive),
        time_limit=None if minutes is None else _sent_limit(minutes, grace, settings),
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
        notice="; ".join(found.old_names),
    )
    return sizes.apart(spec, group, found, settings, undivided) if group.gang is not None else spec


def avoiding(spec: JobSpec, nodes: Mapping[str, tuple[SlurmNode, ...]]) -> JobSpec:
    """The same job on none of these nodes either: of each component those of its size, else those of "". Ten thousand
    jobs may share one tuple."""

    def change(one: JobSpec) -> JobSpec:
        names = nodes.get(one.size, nodes[""])
        both = tuple(dict.fromkeys((*one.excluded_nodes, *names))) if one.excluded_nodes else names
        return replace(one, excluded_nodes=both)

    return spec.each(change)


def capped(spec: JobSpec, longest: int | None) -> JobSpec:
    """With grace and margin on top the limit may exceed what the partition allows: then the pod gives them up.

    `longest` in minutes, None = unlimited. A limit of the user's own that is too long stays, and Slurm says so.
    """
    sent, wanted = spec.time_limit, spec.user_limit
    if longest is None or sent is None or wanted is None or sent <= longest or wanted > longest:
        return spec
    kept = max(1, longest - (sent - wanted))
    text = f"timelimit {wanted}: partition {spec.partition} allows {longest} min; the pod is ended after {kept} min"
    capped = spec.each(lambda one: replace(one, time_limit=longest, user_limit=kept))
    return replace(capped, warnings=(*spec.warnings, text))


def padded(spec: JobSpec) -> bool:
    """Grace and margin are on top of the user's limit."""
    return spec.time_limit is not None and spec.user_limit is not None and spec.time_limit > spec.user_limit


def unpadded(spec: JobSpec) -> JobSpec:
    """The same job with the user's own limit (core.limits tells when its pod ends then)."""
    return spec.each(lambda one: replace(one, time_limit=one.user_limit))


def essence(pod: Pod) -> tuple[object, ...]:
    """All of a pod that its job depends on: equal essences make equal jobs, whatever happens to the pod's status."""
    options = dict(_says(pod))
    asks = (pod.containers, pod.init_containers, pod.overhead, pod.resources, pod.claims)
    return (pod.uid, pod.ref, pod.grace, pod.priority_class, pod.active_deadline, asks, options)


def explain(group: Group, *, settings: JobSettings) -> tuple[Rule, ...]:
    """Which rule sets each field of the job, ordered by field. Raises as `translate` does."""
    answer = _answer(group, settings)
    said = answer.options.sources.keys() & _FIELDS
    rules = [_rule(option, answer, group) for option in overrides.TABLE if option.field in said]
    minutes = answer.options.user_limit
    if minutes:
        grace = max(pod.grace for pod in group.pods)
        why = f"{minutes} min + {grace} s grace of the pod + {settings.timeLimitMargin} s timeLimitMargin"
        value = str(_sent_limit(minutes, grace, settings))
        rules.append(Rule(field="time_limit", value=value, layer="bridge", why=why))
    if disk := derived.disk_mib(group, settings):
        why = "setting temporaryDisk: the pod's ephemeral storage, rounded up to MiB"
        rules.append(Rule(field="temporary_disk_mib", value=str(disk), layer="derived", why=why))
    if settings.mcsLabel:
        rules.append(
            Rule(field="mcs_label", value=settings.mcsLabel, layer="defaults", why="setting mcsLabel")
        )
    if group.gang is not None:
        spec = translate(group, settings=settings, cluster="")
        rules.append(Rule(field="tasks", value=str(spec.tasks), layer="bridge", why="a task for each pod"))
        rules = [shown for rule in rules for shown in _by_size(rule, spec)]
    return tuple(sorted(rules, key=lambda rule: rule.field))


def _by_size(rule: Rule, spec: JobSpec) -> Iterator[Rule]:
    """Of a job of several sizes: the value in each of its components, "-" where it is asked for in another form."""
    if not spec.others or rule.field not in sizes.FIELDS:
        yield _by_task(rule, spec)
        return
    parts = (spec, *spec.others)
    each = [_by_task(replace(rule, value=str(_sent(rule.field, part) or "-")), part) for part in parts]
    for field in dict.fromkeys(one.field for one in each if one.value != "-"):
        values = [one.value if one.field == field else "-" for one in each]
        yield replace(next(one for one in each if one.field == field), value=" / ".join(values))


def _sent(field: str, spec: JobSpec) -> object:
    return getattr(spec, field) or (spec.gres_per_task if field == "gres" else spec.memory_per_cpu)


def _by_task(rule: Rule, spec: JobSpec) -> Rule:
    """What a gang asks for by the CPU and by the task."""
    if rule.field == "memory_mib" and spec.memory_per_cpu is not None:
        why = f"{rule.why}, over its {spec.cpus_per_task} CPUs"
        return replace(rule, field="memory_per_cpu", value=str(spec.memory_per_cpu), why=why)
    if rule.field == "memory_mib" and rule.value != str(spec.memory_mib):
        why = f"{rule.why}, times the {spec.tasks_per_node} pods of a node"
        return replace(rule, value=str(spec.memory_mib), why=why)
    if rule.field == "gres" and spec.gres_per_task:
        return replace(rule, field="gres_per_task")
    return rule


def _rule(option: overrides.Option, answer: _Answer, group: Group) -> Rule:
    value = getattr(answer.options, option.field)
    layer = answer.options.sources[option.field]
    why = answer.why.get(option.field, "") if layer in ("defaults", "derived") else ""
    shown = ",".join(value) if isinstance(value, tuple) else str(value)
    name = answer.options.keys[option.field]
    why = why or f"annotation {name} of {_object(group, layer, name)}"
    return Rule(field=option.field, value=shown, layer=layer, why=why)


def _answer(group: Group, settings: JobSettings) -> _Answer:
    """Merge the four layers, each in the form of annotations, and collect what is worth a word."""
    pod = _speaker(group)
    owner = merged(group.owners)
    try:
        said = overrides.options(owner, pod.annotations, old_keys=settings.oldOptionKeys)
    except OptionError as error:
        raise UserError(f"{_object(group, error.layer, error.key)}: {error}") from error
    for work in group.beside:
        try:
            overrides.options(work.annotations, old_keys=settings.oldOptionKeys)
        except OptionError as error:
            raise UserError(f"{work.ref}: {error}") from error
    if said.gang and group.gang is None:
        waits = next((one for one in group.owners if one.in_turn), None)
        if waits is not None:
            raise UserError(
                f"{_object(group, said.sources['gang'], key('gang'))}: {key('gang')}: with {waits.in_turn} the pods of"
                f" {waits.ref} are made one after the other and can't start together; remove one of the two"
            )
        raise UserError(
            f"{_object(group, said.sources['gang'], key('gang'))}: {key('gang')}: a pod on its own is no gang; remove"
            " the annotation, or make the pods with a Job"
        )
    try:
        said_by_pods, why, warnings = derived.of_group(group, settings, said)
        layers = (_defaults(group, settings), said_by_pods, owner, pod.annotations)
        options = overrides.options(*layers, old_keys=settings.oldOptionKeys)
    except UserError as error:
        raise UserError(f"Pod {pod.ref}: {error}") from error
    options = _node_counts(group, _at_least(options, settings))
    return _Answer(
        options=options,
        why={**_DEFAULT_RULES, **(_of_a_gang(group) if group.gang is not None else {}), **why},
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


_OF_A_GANG = {
    "nodes_min": "one node at least; whole nodes: one for each pod",
    "nodes_max": "as many nodes as pods at most",
}


def _of_a_gang(group: Group) -> dict[str, str]:
    if (port := fit.shared_port(group.pods)) is not None:
        return dict.fromkeys(_OF_A_GANG, f"host port {port} of its pods: one for each pod")
    return _OF_A_GANG


def _defaults(group: Group, settings: JobSettings) -> dict[str, str]:
    return {
        key("partition"): settings.partition,
        key("exclusive"): "true" if settings.exclusiveByDefault else "false",
        key("cpu-per-task"): str(settings.minimumCpus),
        key("mem-per-node"): f"{settings.minimumMemoryMiB}Mi",
        key("min-nodes"): "1",
        key("max-nodes"): str(len(group.pods)) if group.gang is not None else "1",
    }


def _at_least(options: Options, settings: JobSettings) -> Options:
    """Of nothing Slurm would make all of the node."""
    return replace(
        options,
        cpus_per_task=options.cpus_per_task or settings.minimumCpus,
        memory_mib=options.memory_mib or settings.minimumMemoryMiB,
    )


def _node_counts(group: Group, options: Options) -> Options:
    """A count that one side alone gives moves the other, which nobody gave, out of its way."""
    low, high = options.nodes_min or 1, options.nodes_max or 1
    if group.gang is not None:
        whose = _object(group, options.sources["nodes_min"], key("min-nodes"))
        return packing.node_counts(len(group.pods), options, whose, fit.shared_port(group.pods))
    if low > high and options.sources["nodes_max"] == "defaults":
        return replace(options, nodes_max=low)
    if low > high:
        layer = options.sources["nodes_max"]
        raise UserError(
            f"{_object(group, layer, key('max-nodes'))}: {key('min-nodes')} {low} is more than"
            f" {key('max-nodes')} {high}; raise the second or lower the first"
        )
    return options


def _doubts(group: Group, options: Options) -> list[str]:
    """Legal, and probably not what somebody wanted."""
    pod = group.pods[0]
    doubts: list[str] = []
    if (options.nodes_max or 1) > len(group.pods) == 1:
        doubts.append(
            f"up to {options.nodes_max} nodes are held for {len(group.pods)} pod; it runs on the first"
        )
    if group.gang is None and (options.gang_timeout is not None or options.on_member_failure is not None):
        doubts.append(f"{key('gang-timeout')} and {key('on-member-failure')} have no effect on a single pod")
    unheard = next((one for one in group.pods if _says(one) != _says(pod)), None)
    if unheard is not None:
        keys = ", ".join(sorted(dict(_says(unheard) ^ _says(pod))))
        doubts.append(
            f"Pods {pod.ref} and {unheard.ref} say different {keys}: that of the first in rank counts"
        )
    heard = merged(group.owners)
    for work in group.beside:
        vain = (k for k, said in work.annotations.items() if overrides.counts(k) and heard.get(k) != said)
        if keys := ", ".join(sorted(vain)):
            doubts.append(f"{work.ref}: {keys}: no effect; what stands above {pod.ref} counts for all pods")
    if options.inject_env and not environment.asks(pod):
        doubts.append(
            f"{environment.ASKED}: has no effect on the owner of a pod; write it into the pod template"
        )
    owner = grouping.owner_ref(pod)
    if owner is not None and group.workload is None:
        doubts.append(f"{owner.kind} {pod.namespace}/{owner.name} is not there: its annotations don't count")
    if options.user_limit is None and options.deadline:
        doubts.append(WITHOUT_LIMIT)
    elif options.user_limit is None:
        doubts.append(
            f"no time limit: neither {key('timelimit')} nor activeDeadlineSeconds is set;"
            " the partition's default counts"
        )
    return doubts


def _says(pod: Pod) -> AbstractSet[tuple[str, str]]:
    """Its options."""
    return {(key, said) for key, said in pod.annotations.items() if overrides.counts(key)}


def _sent_limit(minutes: int, grace: int, settings: JobSettings) -> int:
    """Minutes for Slurm: we end the pod at its own limit, and its containers are dead before Slurm's."""
    return minutes + math.ceil((grace + settings.timeLimitMargin) / MINUTE)


def _speaker(group: Group) -> Pod:
    """The pod whose annotations count: the first in rank."""
    if len(group.pods) != 1 and group.gang is None:
        raise UserError(f"{group.key}: has {len(group.pods)} pods, and is no gang")
    for pod in group.pods:
        if pod.claims:  # our scheduler profile allocates no devices: the pod would run without them
            raise UserError(
                f"Pod {pod.ref}: spec.resourceClaims ({', '.join(pod.claims)}): claims are not supported yet;"
                " ask for devices with resources.limits, for example nvidia.com/gpu"
            )
    return group.pods[0]


def _object(group: Group, layer: str, key: str = "") -> str:
    """Who says that annotation in that layer, for a message."""
    work = whose(group.owners, key) if layer == "owner" else None
    return work.ref if work is not None else f"Pod {group.pods[0].ref}"
