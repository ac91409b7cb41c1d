"""Our nouns ↔ Slurm's JSON. In: JobSpec or wire.Job. Out: the `job` object of a submit, or a JobRecord. Pure.

What must stay true: a field left empty in the JobSpec is absent from the JSON: Slurm's own default counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from bridge.core import hostlist, identity
from bridge.core.checkup import START_DELAY, SlurmSetup
from bridge.core.model import JobId, JobRecord, JobSpec, Partition, SlurmNode, States
from bridge.errors import UserError
from bridge.names import EXTERNAL_JOB_FLAG
from bridge.slurm import components, wire

FIRST_EXTERNAL = 43  # data_parser v0.0.43 (Slurm 25.05) knows jobs without a process of Slurm's own
FIRST_WITHOUT_CWD = 44  # before 25.11 even those need a working directory
TEXT_LIMIT = 1024  # bytes
NO_NODES = "None assigned"  # what accounting calls an empty list
COMMENT_LIMIT = 4096  # characters of admin_comment that a JobRecord keeps

# Only for Slurm without external jobs: the placeholder is a process that waits to be ended.
SLEEPER = "#!/bin/sh\nexec sleep infinity\n"
WORKING_DIRECTORY = "/tmp"
ENVIRONMENT = ["PATH=/usr/local/bin:/usr/bin:/bin"]


def number(value: int) -> dict[str, Any]:
    return {"set": True, "infinite": False, "number": value}


def _time(text: str) -> Any:
    """Unix seconds, or a time as Slurm's own tools take it ("now+1hour")."""
    return int(text) if text.isdigit() else text


def _whole_node(_: bool) -> list[str]:
    return ["none"]


def node_list(names: Sequence[SlurmNode]) -> list[str]:
    """One hostlist instead of one entry a name: Slurm takes both, and 1,000 names are a line. Clears when empty."""
    return [_compressed(tuple(names))]


@lru_cache(maxsize=256)
def _compressed(names: tuple[SlurmNode, ...]) -> str:
    """Pods of equal needs exclude the same nodes, perhaps thousands."""
    return hostlist.compress(names)


def _required(names: Sequence[SlurmNode]) -> list[str]:
    """A gang names a node once for each of its tasks there, which a hostlist would forget."""
    return list(names) if len(set(names)) < len(names) else node_list(names)


def _same(value: Any) -> Any:
    return value


# JobSpec field → JSON field, and how the value is written. None, "", () and False are not sent.
FIELDS: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
    ("name", "name", _same),
    ("partition", "partition", _same),
    ("mark", "admin_comment", identity.render),
    ("nodes_min", "minimum_nodes", _same),
    ("nodes_max", "maximum_nodes", _same),
    ("tasks", "tasks", _same),
    ("tasks_per_node", "tasks_per_node", _same),
    ("cpus_per_task", "cpus_per_task", _same),
    ("memory_mib", "memory_per_node", number),
    ("memory_per_cpu", "memory_per_cpu", number),
    ("temporary_disk_mib", "temporary_disk_per_node", _same),
    ("gres", "tres_per_node", _same),
    ("gres_per_task", "tres_per_task", _same),
    ("exclusive", "shared", _whole_node),
    ("time_limit", "time_limit", number),
    ("account", "account", _same),
    ("qos", "qos", _same),
    ("user", "user_id", _same),
    ("group", "group_id", _same),
    ("reservation", "reservation", _same),
    ("wckey", "wckey", _same),
    ("licenses", "licenses", _same),
    ("constraints", "constraints", _same),
    ("prefer", "prefer", _same),
    ("priority", "priority", number),
    ("nice", "nice", _same),
    ("dependency", "dependency", _same),
    ("comment", "comment", _same),
    ("begin", "begin_time", _time),
    ("deadline", "deadline", _time),
    ("segment_size", "segment_size", number),
    ("mcs_label", "mcs_label", _same),
    ("excluded_nodes", "excluded_nodes", node_list),
    ("required_nodes", "required_nodes", _required),
)

# Slurm 24.11: slurmrestd itself dies of it ("fatal: invalid type"); there the job gets its user's own group.
FATAL = frozenset({"group_id"})


def fitting(text: str) -> str:
    """As much of it as Slurm takes for a comment or a reason."""
    return text.encode()[:TEXT_LIMIT].decode("utf-8", "ignore")


def _given(value: Any) -> bool:
    return value is not None and value is not False and value != "" and value != ()


def job_body(job: JobId, spec: JobSpec, version: int) -> wire.Body:
    """The `job` object of a submit or an allocate, for data_parser v0.0.`version`."""
    body: wire.Body = {"job_id": job}
    for field, key, write in FIELDS:
        value = getattr(spec, field)
        if _given(value) and not (version < FIRST_EXTERNAL and key in FATAL):
            body[key] = write(value)
    if 1 < spec.tasks == len(spec.required_nodes):
        body["distribution"] = "arbitrary"  # a task for each entry of required_nodes
    if version >= FIRST_EXTERNAL:
        body["flags"] = [EXTERNAL_JOB_FLAG]
    if version < FIRST_WITHOUT_CWD:
        body["current_working_directory"] = WORKING_DIRECTORY
    return body


def partition(found: wire.Partition) -> Partition:
    longest = found.maximums.time
    return Partition(
        name=found.name,
        grace=float(found.grace_time),
        longest=int(longest.value) if longest.set and not longest.infinite else None,
        nodes=_names(found.nodes.configured),
    )


@lru_cache(maxsize=64)
def _names(text: str) -> frozenset[SlurmNode] | None:
    """The same set for the same hostlist, which is read again and again; None for none, or for what is none."""
    try:
        return frozenset(_nodes(text)) or None
    except UserError:
        return None


def submit_body(job: JobId, spec: JobSpec, version: int) -> wire.Body:
    """The body of POST job/submit: queued, placed by Slurm's scheduler when there is room."""
    if spec.others:  # ids that follow on each other: a second submit of any of them is refused
        parts = (replace(part, others=()) for part in (spec, *spec.others))
        return {"jobs": [job_body(JobId(job + at), part, version) for at, part in enumerate(parts)]}
    body = job_body(job, spec, version)
    if version < FIRST_EXTERNAL:
        body |= {
            "script": SLEEPER,
            "environment": ENVIRONMENT,
            "standard_output": "/dev/null",
            "standard_error": "/dev/null",
            "requeue": False,  # after a node failure it would start again elsewhere, under the same id
        }
    return {"job": body}


def held_body(spec: JobSpec, version: int) -> wire.Body:
    """The body of POST job/submit for a job that Slurm numbers. A priority would end the hold at once."""
    body = submit_body(JobId(0), replace(spec, priority=None), version)
    del body["job"]["job_id"]
    body["job"]["hold"] = True
    return body


def allocate_body(job: JobId, spec: JobSpec, version: int) -> wire.Body:
    """The body of POST job/allocate. Always immediate: otherwise it pins a slurmrestd thread for ever."""
    body = job_body(job, spec, version)
    body["immediate"] = True
    if version < FIRST_EXTERNAL:
        body["environment"] = ENVIRONMENT
    return {"job": body}


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """Slurm has the job. The warnings say why it may wait, or which field was not understood."""

    job_id: JobId
    warnings: tuple[str, ...] = ()


@lru_cache(maxsize=1024)
def states_of(names: tuple[str, ...]) -> States:
    """Cached: ten thousand jobs share a dozen sets."""
    return frozenset(names)


def job_id_of(text: str) -> JobId:
    """ "100", "100+0" (het component) and "100_7" (array task) → 100. Raises ValueError for anything else."""
    return JobId(int(text.partition("+")[0].partition("_")[0]))


def states(answer: wire.StatesAnswer) -> dict[JobId, States]:
    """Every id in the list, components as one job. Raises ValueError for an id that is none."""
    return components.by_job((j.job_id, job_id_of(j.job_id), states_of(j.state)) for j in answer.jobs)


@lru_cache(maxsize=256)
def _nodes(text: str) -> tuple[SlurmNode, ...]:
    return tuple(SlurmNode(name) for name in hostlist.expand(text)) if text else ()


def _cpus_by_node(job: wire.Job) -> tuple[int, ...]:
    """In the order of its nodes; () where Slurm does not say it of each."""
    held = job.job_resources.nodes.allocation if job.job_resources is not None else ()
    counts = {node.name: node.cpus.count for node in held}
    names = _nodes(job.nodes)
    return tuple(counts[name] for name in names) if counts.keys() >= set(names) else ()


def record(job: wire.Job) -> JobRecord:
    """One full read. Raises UserError when the node list can't be expanded."""
    return JobRecord(
        id=JobId(job.job_id),
        states=states_of(job.job_state),
        submitted=job.submit_time.value,
        started=job.start_time.value,
        ended=job.end_time.value,
        vague=0 < job.suspend_time.value == job.end_time.value,
        preempted=job.preempt_time.value,
        reason=job.state_reason,
        nodes=_nodes(job.nodes),
        gres=job.gres_detail,
        cpus=job.cpus.limit,
        cpus_by_node=_cpus_by_node(job),
        tasks=job.tasks.limit,
        cpus_per_task=job.cpus_per_task.limit,
        memory_per_cpu=job.memory_per_cpu.limit,
        memory_mib=job.memory_per_node.limit,
        name=job.name,
        user=job.user_name,
        partition=job.partition,
        qos=job.qos,
        time_limit=job.time_limit.limit,
        priority=job.priority.limit,
        excluded=_nodes(job.excluded_nodes),
        exit_code=int(job.exit_code.return_code.value),
        exit_signal=int(job.exit_code.signal.id.value),
        mark=identity.parse(job.admin_comment),
        comment=job.admin_comment[:COMMENT_LIMIT],
        listed=identity.listed(job.admin_comment),
        required=_nodes(job.required_nodes),
    )


def whole(answer: wire.JobAnswer, job: JobId) -> JobRecord | None:
    """One full read, of a leader with its components. None: it is not in the answer. Raises UserError as `record`."""
    found = next((one for one in answer.jobs if one.job_id == job), None)
    if found is None or not (leader := int(found.het_job_id.value)):
        return None if found is None else record(found)
    if leader != job:
        return components.component(record(found))
    parts = (one for one in answer.jobs if one.het_job_id.value == leader)
    return components.joined([record(one) for one in sorted(parts, key=lambda one: one.het_job_offset.value)])


def accounted(answer: wire.AccountedAnswer, job: JobId) -> JobRecord | None:
    """The last submit of that id in our own Slurm cluster. Raises UserError when the node list can't be expanded."""
    ours = answer.meta.slurm.cluster
    rows = [row for row in answer.jobs if row.job_id == job and (not ours or row.cluster in ("", ours))]
    if not rows:
        return None
    last = max(rows, key=lambda row: row.time.submission)
    return JobRecord(
        id=job,
        states=states_of(last.state.current),
        submitted=last.time.submission,
        started=last.time.start,
        ended=last.time.end,
        nodes=_nodes("" if last.nodes == NO_NODES else last.nodes),
        name=last.name,
        user=last.user,
        partition=last.partition,
        time_limit=last.time.limit.limit,
        mark=identity.parse(last.comment.administrator),
        comment=last.comment.administrator[:COMMENT_LIMIT],
    )


# --- what doctor looks at -------------------------------------------------------------------------


def setup(conf: wire.ConfAnswer) -> SlurmSetup:
    found, parameters = (
        conf.slurm_conf,
        dict(p.partition("=")[::2] for p in conf.slurm_conf.SchedulerParameters),
    )
    delay = parameters.get("batch_sched_delay", "")
    return SlurmSetup(
        user=found.SlurmUser,
        next_job=int(conf.slurm_conf_meta.NEXT_JOB_ID.value),
        min_job_age=found.MinJobAge,
        max_nodes=found.MaxNodeCount,
        default_memory=bool(found.DefMemPerCPU.value or found.DefMemPerNode.value),
        state_cache="enable_job_state_cache" in found.SlurmctldParameters,
        start_delay=int(delay) if delay.isdigit() else START_DELAY,
        start_hooks=found.PrologSlurmctld,
        gres_types=found.GresTypes,
        preempts=found.PreemptType,
        mcs=found.MCSPlugin == "mcs/label",
    )
