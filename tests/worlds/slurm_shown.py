"""A job of the Slurm world as GET job/{id} tells it."""

from __future__ import annotations

from typing import Any

from bridge.core.model import is_ended
from tests.worlds.slurm_books import QOS, number
from tests.worlds.slurm_jobs import WorldJob

PRIORITY = 4294901000  # about what priority/basic gives to a job that asks for none


def shown(job: WorldJob) -> dict[str, Any]:
    """As GET job/{id} tells it."""
    exit_code = {"return_code": number(job.exit_code), "signal": {"id": number(job.exit_signal or None)}}
    ended = is_ended(job.states)
    held = [{"name": node, "cpus": {"count": job.cpus_on(node)}} for node in job.nodes]
    gres = [f"gpu:{job.gpu_type}:{len(i)}(IDX:{_ranges(i)})" if i else "" for i in job.gpus.values()]
    return {
        "job_id": job.id,
        "job_state": sorted(job.states),
        "submit_time": number(int(job.submitted)),
        "start_time": number(int(job.started)),
        "end_time": number(int(job.paused if ended and job.paused else job.ended or planned_end(job))),
        "suspend_time": number(int(job.paused)),
        "preempt_time": number(int(job.preempted)),
        "state_reason": job.reason,
        "nodes": ",".join(job.nodes),
        "cpus": number(job.cpus * (job.tasks or job.node_count)),
        "tasks": number(job.tasks or 1),
        "cpus_per_task": number(job.cpus if job.tasks else None),
        "memory_per_cpu": number(None if job.by_node else job.memory // job.cpus),
        "job_resources": {"nodes": {"allocation": held}} if held else None,
        "memory_per_node": number(job.memory if job.by_node else None),
        "gres_detail": [] if ended or not any(gres) else gres,
        "name": job.name,
        "user_name": job.user,
        "partition": job.partition,
        "qos": QOS,
        "time_limit": number(job.time_limit),
        "priority": number(0 if job.on_hold else job.priority or PRIORITY),
        "excluded_nodes": ",".join(sorted(job.excluded)),
        "required_nodes": ",".join(sorted(job.required)),
        "het_job_id": number(job.leader),
        "het_job_offset": number(job.id - job.leader if job.leader else None),
        "exit_code": exit_code,
        "admin_comment": job.admin_comment,
        "comment": job.comment,
        "flags": ["EXTERNAL_JOB"] if job.external else [],
    }


def _ranges(indices: tuple[int, ...]) -> str:
    """(0, 1, 2, 5) → "0-2,5"."""
    parts: list[list[int]] = []
    for i in sorted(indices):
        if parts and parts[-1][-1] == i - 1:
            parts[-1].append(i)
        else:
            parts.append([i])
    return ",".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


def planned_end(job: WorldJob) -> float:
    """Of a job that runs: what Slurm tells as its end."""
    return job.started + job.time_limit * 60 if job.started and job.time_limit is not None else 0.0
