"""Bytes of the API server, or a manifest → `Workload`: the objects whose annotations count for pods.

Every kind and version is read by one shape (`shapes.WorkloadSpecView`). What the object is comes from the caller, as
the items of a list and bare metadata do not say it. Errors as in `bridge.kube.view`.
"""

from __future__ import annotations

from collections.abc import Mapping
from sys import intern
from typing import Any

import msgspec

from bridge.core.grouping.leaderworkerset import LEADER, WORKER
from bridge.core.grouping.wishes import asks
from bridge.core.model import DEADLINE_EXCEEDED, Uid, Workload
from bridge.kube import view
from bridge.kube.shapes import (
    ApiGroupsView,
    ApiResourcesView,
    ConditionView,
    JobTemplateView,
    LeaderWorkerTemplateView,
    ListView,
    PodGroupTemplateView,
    PolicyView,
    ReplicatedJobView,
    StartupPolicyView,
    TemplateView,
    WorkloadSpecView,
    WorkloadStatusView,
    WorkloadView,
)
from bridge.names import DEFAULT_SCHEDULER_NAME

JOB = ("batch/v1", "Job")
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"  # the whole object once more

_WORKLOAD = msgspec.json.Decoder(WorkloadView)
_WORKLOADS = msgspec.json.Decoder(ListView[WorkloadView])
_GROUPS = msgspec.json.Decoder(ApiGroupsView)
_RESOURCES = msgspec.json.Decoder(ApiResourcesView)


def workload(raw: bytes, api_version: str = JOB[0], kind: str = JOB[1]) -> Workload:
    return _workload(view.read(_WORKLOAD, raw, kind), api_version, kind)


def page(raw: bytes, api_version: str = JOB[0], kind: str = JOB[1]) -> view.Page[Workload]:
    """One chunk of a list."""
    found = view.read(_WORKLOADS, raw, f"{kind} list")
    items = tuple(_workload(item, api_version, kind) for item in found.items or ())
    return view.Page(items, found.metadata.version, found.metadata.more or "")


def event(line: bytes, api_version: str = JOB[0], kind: str = JOB[1]) -> view.Event[Workload]:
    """One line of a watch."""
    return view.event(line, _WORKLOAD, lambda found: _workload(found, api_version, kind))


def from_object(obj: Mapping[str, Any]) -> Workload:
    """A Job or another owner as written in a manifest; namespace and uid as for a pod. Raises UserError."""
    found = view.from_object(obj, WorkloadView)
    return _workload(found, found.api_version, found.kind)


def groups(raw: bytes) -> Mapping[str, tuple[str, ...]]:
    """Of GET /apis: API group → the versions that are served."""
    found = view.read(_GROUPS, raw, "list of API groups")
    return {group.name: tuple(v.version for v in group.versions or ()) for group in found.groups}


def resources(raw: bytes) -> frozenset[str]:
    """Of GET /apis/GROUP/VERSION: the plural names."""
    found = view.read(_RESOURCES, raw, "list of resources")
    return frozenset(resource.name for resource in found.resources)


def _workload(found: WorkloadView, api_version: str, kind: str) -> Workload:
    meta, spec = found.metadata, found.spec or WorkloadSpecView()
    status = found.status or WorkloadStatusView()
    annotations = dict(view.words(meta.annotations))
    annotations.pop(_LAST_APPLIED, None)
    return Workload(
        namespace=intern(meta.namespace or "default"),
        kind=intern(kind),
        name=meta.name,
        uid=Uid(meta.uid or view.OFFLINE_UID),
        api_version=intern(api_version),
        annotations=annotations,
        owners=view.owners(meta.owner_references),
        active_deadline=spec.active_deadline_seconds,
        overdue=next(filter(None, map(_overdue, status.conditions or ())), ""),
        size=_size(kind, spec, status, asks(annotations)),
        in_turn=_in_turn(spec),
        sizes=_sizes([*(spec.pod_groups or ()), *(spec.pod_group_templates or ())])
        if kind != "LeaderWorkerSet"
        else _roles(spec.leader_worker_template, asks(annotations)),
        timeout=spec.schedule_timeout_seconds,
        parent=_parent(spec),
    )


def _overdue(shown: ConditionView) -> str:
    """The Job controller says FailureTarget first, since 1.31, and Failed when the pods have gone."""
    late = shown.status == "True" and shown.reason == DEADLINE_EXCEEDED
    return shown.message or DEADLINE_EXCEEDED if late and shown.type in ("FailureTarget", "Failed") else ""


def _in_turn(spec: WorkloadSpecView) -> str:
    """What makes the controller wait with some of the pods until others run; "" = nothing."""
    policy = spec.startup_policy
    if policy == "LeaderReady":
        return "spec.startupPolicy: LeaderReady"
    if isinstance(policy, StartupPolicyView) and policy.startup_policy_order == "InOrder":
        return "spec.startupPolicy.startupPolicyOrder: InOrder"
    if any(replicated.depends_on for replicated in spec.replicated_jobs or ()):
        return "spec.replicatedJobs[].dependsOn"
    return ""


def _size(kind: str, spec: WorkloadSpecView, status: WorkloadStatusView, said: bool | None) -> int | None:
    """Pods that make one group complete, without those that need not run any more. `said`: what the object says about
    gangs; pods of templates that say otherwise are not waited for."""
    match kind:
        case "Job":
            done = (status.succeeded or 0) + _count(status.failed_indexes or "")
            return _at_once(spec.parallelism, spec.completions, done)
        case "JobSet":
            over = {one.name: one.succeeded or 0 for one in status.replicated_jobs_status or ()}
            jobs = spec.replicated_jobs or ()
            sizes = (sum(_of_jobs(one, over) for one in jobs if _asked(one, word)) for word in (said, True))
            return next(filter(None, sizes), 0) or sum(_of_jobs(one, over) for one in jobs)
        case "LeaderWorkerSet":
            roles, size = _roles(spec.leader_worker_template, said), _group_size(spec.leader_worker_template)
            return roles[LEADER] + roles[WORKER] * (size - 1)
        case "PodGroup":
            return _gang(spec.scheduling_policy) if spec.min_member is None else spec.min_member
    return None


def _count(indexes: str) -> int:
    """ "1,3-5" → 4; what the Job controller does not write counts for none."""
    found = (part.partition("-") for part in indexes.split(",") if part)
    ends = ((first, last or first) for first, _, last in found)
    return sum(int(last) - int(first) + 1 for first, last in ends if first.isdecimal() and last.isdecimal())


def _of_jobs(replicated: ReplicatedJobView, over: Mapping[str, int]) -> int:
    inner = replicated.template.spec if replicated.template else None
    pods = _at_once(inner.parallelism, inner.completions) if inner else 1
    jobs = 1 if replicated.replicas is None else replicated.replicas
    return pods * max(0, jobs - over.get(replicated.name, 0))


def _asked(replicated: ReplicatedJobView, said: bool | None) -> bool:
    """As `core.grouping.jobset` finds it of each pod."""
    job = replicated.template
    pod = _said(job.spec.template) if job is not None and job.spec is not None else None
    inner = _said(job) if pod is None else pod
    return bool(said if pod is None else pod) and inner is not False and not _elsewhere(job)


def _group_size(template: LeaderWorkerTemplateView | None) -> int:
    return 1 if template is None or template.size is None else template.size


def _roles(template: LeaderWorkerTemplateView | None, said: bool | None) -> Mapping[str, int]:
    """How many of the gang a leader and a worker are, as `core.grouping.leaderworkerset` finds it of each pod."""
    if template is None:
        return {LEADER: 1, WORKER: 1}
    workers = template.worker_template
    leader = template.leader_template or workers
    out = [
        _out(one) or (said if (word := _said(one)) is None else word) is False for one in (leader, workers)
    ]
    return {LEADER: 1, WORKER: 1} if all(out) else {LEADER: int(not out[0]), WORKER: int(not out[1])}


def _said(template: TemplateView | JobTemplateView | None) -> bool | None:
    meta = template.metadata if template is not None else None
    return asks(view.words(meta.annotations)) if meta is not None else None


def _elsewhere(job: JobTemplateView | None) -> bool:
    """Its pods name the cluster's own scheduler; without a name admission may set ours."""
    return _out(job.spec.template if job is not None and job.spec is not None else None)


def _out(template: TemplateView | None) -> bool:
    """The pods of that template are the cluster's own scheduler's."""
    named = template.spec.scheduler_name if template is not None and template.spec is not None else None
    return named == DEFAULT_SCHEDULER_NAME


def _at_once(parallelism: int | None, completions: int | None, done: int = 0) -> int:
    """Pods of a Job at one time."""
    most = 1 if parallelism is None else parallelism
    return most if completions is None else min(most, max(0, completions - done))


def _gang(policy: PolicyView | None) -> int | None:
    return policy.gang.min_count if policy is not None and policy.gang is not None else None


def _sizes(templates: list[PodGroupTemplateView]) -> Mapping[str, int]:
    found = {template.name: _gang(template.scheduling_policy or template.policy) for template in templates}
    return {name: size for name, size in found.items() if size is not None}


def _parent(spec: WorkloadSpecView) -> str:
    if spec.workload_ref is not None:
        return spec.workload_ref.workload_name
    ref = spec.pod_group_template_ref
    return ref.workload.workload_name if ref is not None and ref.workload is not None else ""
