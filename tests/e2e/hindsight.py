"""What must have held all through a test, judged at its end.

In: pods as a witness saw them, and every job as Slurm remembers it. Out: violations of `bridge.core.invariants`. Bytes
are decoded as the bridge decodes them, so that both speak of the same things.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import msgspec

from bridge.core.invariants import no_shared_gpu, placed_by_slurm, positive_evidence, violations
from bridge.core.model import JobId, JobRecord, KubeNode, Node, Pod, SlurmNode, is_ended
from bridge.core.picture import Change, Picture
from bridge.core.takeover import label_of
from bridge.core.twins import by_slurm_name
from bridge.core.violation import Violation
from bridge.kube import node_view, view
from bridge.names import DISRUPTION_CONDITION, JOB_CONDITION, SCHEDULED_CONDITION
from bridge.slurm import translate, wire
from tests.e2e import kube as k
from tests.e2e.kube import Kube, Object
from tests.e2e.slurm import Slurm


@dataclass(frozen=True, kw_only=True)
class Story:
    """What a witness has seen of our pods: as they were when they first had a node, and last."""

    bindings: tuple[Pod, ...]
    last: tuple[Pod, ...]
    gone: frozenset[str]  # UIDs

    @classmethod
    def of(cls, bindings: Mapping[str, Object], last: Mapping[str, Object], gone: Iterable[str]) -> Story:
        return cls(bindings=_ours(bindings.values()), last=_ours(last.values()), gone=frozenset(gone))


def judge(story: Story, kube: Kube, slurm: Slurm, now: float) -> tuple[Violation, ...]:
    """At the moment at which each thing happened, as far as times tell; the rest at the moment of asking."""
    here = tuple(pod for pod in story.last if pod.uid not in story.gone)
    present = Picture(
        cluster=kube.cluster_id(),
        now=now,
        pods=here,
        jobs=_jobs(slurm, story),
        nodes=_nodes(kube),
        booted=_booted(slurm),
    )
    # Of a pod that was bound before slurmctld's last boot Slurm may have forgotten the job, or have placed it anew.
    remembered = tuple(p for p in story.bindings if _bound_at(p) > present.booted)
    found = violations(present) + placed_by_slurm(replace(present, pods=remembered))
    for pod in story.last:
        # Slurm tells whole seconds: within one, a job may have ended before the pod was deleted, or because of it.
        if positive_evidence(_deletion(present, pod, story.last)):
            found += positive_evidence(_deletion(present, pod, story.last, earlier=1.0))
    return tuple(dict.fromkeys(found))


def shared(pods: Iterable[Pod], now: float) -> tuple[Violation, ...]:
    """The pods of one moment among themselves: what Slurm will have forgotten when the test is over."""
    return no_shared_gpu(Picture(cluster="", now=now, pods=tuple(pods)))


def is_ours(pod: Object) -> bool:
    return pod["spec"].get("schedulerName") in (k.SCHEDULER, k.ALIAS)


def _bound_at(pod: Pod) -> float:
    shown = pod.condition(SCHEDULED_CONDITION)
    return shown.changed if shown is not None else 0.0


def _deletion(present: Picture, pod: Pod, all_pods: Iterable[Pod], earlier: float = 0.0) -> Change:
    """The moment before the bridge deleted it, and after. Without the bridge's condition it was somebody else."""
    said = pod.condition(DISRUPTION_CONDITION)
    if said is None or not said.reason.startswith("Slurm"):
        return Change(before=replace(present, pods=()), after=present)
    jobs = tuple(_as_of(job, said.changed - earlier) for job in present.jobs)
    there = (p for p in all_pods if p.created <= said.changed and p.uid != pod.uid)
    others = tuple(_of_then(other, said.changed) for other in there)  # the rest of a gang may be why
    before = replace(present, now=said.changed, pods=(replace(pod, deleted=0.0), *others), jobs=jobs)
    return Change(before=before, after=replace(before, pods=others))


def _of_then(pod: Pod, moment: float) -> Pod:
    later = pod.bound_at > moment
    return replace(pod, deleted=0.0, node=KubeNode("") if later else pod.node)


def _as_of(job: JobRecord, moment: float) -> JobRecord:
    """What Slurm said then, in whole seconds."""
    if is_ended(job.states) and 0 < job.ended <= moment:
        return job  # of one that never started, the books tell when it might have
    if job.started > moment:
        return replace(job, states=frozenset({"PENDING"}), nodes=(), ended=0.0)
    if is_ended(job.states) and job.ended > moment:
        limit = job.started + job.time_limit * 60 if job.time_limit else 0.0
        return replace(job, states=frozenset({"RUNNING"}), ended=limit)
    return job


def _ours(pods: Iterable[Object]) -> tuple[Pod, ...]:
    return tuple(view.pod_from_object(pod) for pod in pods if is_ours(pod))


def _jobs(slurm: Slurm, story: Story) -> tuple[JobRecord, ...]:
    """All that slurmctld has, and what accounting knows of jobs that pods name and slurmctld has forgotten."""
    reply = slurm.ask("GET", "jobs/")
    assert reply.is_success, f"all jobs: {reply.status_code} {reply.text[:300]}"
    answer = msgspec.json.decode(reply.content, type=wire.JobAnswer)
    wholes = (
        translate.whole(answer, JobId(job.job_id)) if job.het_job_id.value else translate.record(job)
        for job in answer.jobs
        if job.het_job_id.value in (0, job.job_id)
    )
    listed = [record for record in wholes if record is not None]
    named = {job for pod in story.last for job in (label_of(pod), _shown(pod)) if job is not None}
    named -= {job.id for job in listed}
    asked = {job: raw for job in named if (raw := slurm.books(job))}
    found = (
        translate.accounted(msgspec.json.decode(raw, type=wire.AccountedAnswer), job)
        for job, raw in asked.items()
    )
    return (*listed, *(record for record in found if record is not None and is_ended(record.states)))


def _shown(pod: Pod) -> JobId | None:
    """The job that a pod which waited, and has no label, spoke of last."""
    shown = pod.condition(JOB_CONDITION)
    found = re.match(r"job ([0-9]+) is ", shown.message) if shown is not None else None
    return JobId(int(found[1])) if found else None


def _nodes(kube: Kube) -> dict[SlurmNode, Node]:
    return by_slurm_name(node_view.page(kube.ask("GET", "/api/v1/nodes").content).items)[0]


def _booted(slurm: Slurm) -> float:
    """Slurm 26.05 says when it started; of an older one nothing is forgiven."""
    reply = slurm.ask("GET", "conf")
    if not reply.is_success:
        return 0.0
    return float(msgspec.json.decode(reply.content, type=wire.ConfAnswer).slurm_conf_meta.BOOT_TIME)
