"""Objects of a manifest as the API server and the controllers would complete them.

In: mappings from YAML. Out: the same with the names that a cluster would give, and `Made`: the pods that a controller
makes of an object's templates, with what it puts between them. Nothing is fetched; an object that lacks its template is
a UserError that names it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from bridge.errors import UserError
from bridge.kube import workload_view
from bridge.names import COMPLETION_INDEX, JOBSET_JOB_INDEX, LWS_GROUP_INDEX, LWS_WORKER_INDEX, POD_INDEX

Object = Mapping[str, Any]

OFFLINE: Final = "offline"  # stands where only a cluster knows the value
SUFFIX: Final = "-xxxxx"  # what a controller appends to the names of its pods
_OF_JOBSET: Final = "jobset.sigs.k8s.io/"
_OF_LWS: Final = "leaderworkerset.sigs.k8s.io/"
GENERATION: Final = "-xxxxxxxxxx"  # to the name of a ReplicaSet or a Job that a controller makes


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The pods that a controller makes of one template and has at one time; none of what is scaled to nothing."""

    count: int
    make: Callable[[int], Object]  # from 0
    sample: Object  # any one of them
    note: str = ""  # if each is a Slurm job of its own
    what: str = ""  # which template, where the object has several

    @property
    def pods(self) -> Iterator[Object]:
        return (self.make(index) for index in range(self.count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What becomes of an object. `owners`: all that stands above the pods and is not in the manifest."""

    batches: tuple[Batch, ...]
    owners: tuple[Object, ...] = ()


def _job(job: Object) -> Made:
    first, size = _pod(job, SUFFIX), workload_view.from_object(named(job)).size or 0
    note = f"each pod of the Job is a Slurm job of its own, up to {size} at a time"
    batch = Batch(count=size, make=lambda index: _pod_of_job(job, index), sample=first, note=note)
    return Made(batches=(batch,))


def _pod_of_job(job: Object, index: int) -> Object:
    """The pod of that index. A Job that is not Indexed numbers nothing: its names tell an order, in vain."""
    if job["spec"].get("completionMode") != "Indexed":
        return _pod(job, f"-{index:05}")
    number = {COMPLETION_INDEX: str(index)}
    return _pod(job, f"-{index}{SUFFIX}", labels=number, annotations=number)


def _cron_job(cron: Object) -> Made:
    """A Job each time, whose metadata and spec are those of the template."""
    inner = _template(cron, "jobTemplate", "add the Job's template")
    owner = _child(cron, "batch/v1", "Job", GENERATION, _words(inner.get("metadata")), inner["spec"])
    return Made(batches=_job(owner).batches, owners=(owner,))


def _deployment(deployment: Object) -> Made:
    """Its ReplicaSets carry its annotations."""
    _template(deployment, "template", _ADD_TEMPLATE)
    meta = _words(deployment.get("metadata"))
    owner = _child(deployment, "apps/v1", "ReplicaSet", GENERATION, meta, deployment["spec"])
    return Made(batches=(_replicas(deployment, owner, SUFFIX, lambda at: f"-{at:05}"),), owners=(owner,))


def _replica_set(owner: Object) -> Made:
    return Made(batches=(_replicas(owner, owner, SUFFIX, lambda at: f"-{at:05}"),))


def _stateful_set(owner: Object) -> Made:
    _template(owner, "template", _ADD_TEMPLATE)
    ordinals = owner["spec"].get("ordinals")
    first = ordinals.get("start", 0) if isinstance(ordinals, Mapping) else 0
    return Made(batches=(_replicas(owner, owner, f"-{first}", lambda at: f"-{first + at}"),))


_ADD_TEMPLATE = "add the pod template"


def _replicas(said: Object, owner: Object, sample: str, suffix: Callable[[int], str]) -> Batch:
    first = _pod(owner, sample)
    count = _count(said, said["spec"], "replicas")
    return Batch(
        count=count,
        make=lambda index: _pod(owner, suffix(index)),
        sample=first,
        note=f"each pod of the {said['kind']} is a Slurm job of its own, {count} at a time",
    )


def _template(obj: Object, field: str, fix: str, above: str = "") -> Object:
    """The template of a pod or a Job. `above`: how its path begins, under spec. Raises UserError if there is none."""
    spec = obj.get("spec")
    found = spec.get(field) if isinstance(spec, Mapping) else None
    if not isinstance(found, Mapping) or not isinstance(found.get("spec"), Mapping):
        raise UserError(f"{obj.get('kind')} {name(obj)}: spec.{above}{field}.spec: is missing; {fix}")
    return found


def _pod(owner: Object, suffix: str, **more: Mapping[str, str]) -> Object:
    """One pod as the controller makes it. `more`: labels and annotations that it adds."""
    inner = _template(owner, "template", _ADD_TEMPLATE)
    return _child(owner, "v1", "Pod", suffix, _words(inner.get("metadata"), **more), inner["spec"])


def _child(owner: Object, version: str, kind: str, suffix: str, meta: Object, spec: object) -> Object:
    """An object that `owner` controls, called after it."""
    reference = {
        "apiVersion": owner.get("apiVersion"),
        "kind": owner.get("kind"),
        "name": name(owner),
        "uid": uid(owner),
        "controller": True,
    }
    whole = {
        **meta,
        "name": name(owner) + suffix,
        "namespace": namespace(owner),
        "ownerReferences": [reference],
    }
    return named({"apiVersion": version, "kind": kind, "metadata": whole, "spec": spec})


def _words(meta: object, **more: Mapping[str, str]) -> dict[str, Any]:
    """Labels and annotations, and what is added to them."""
    found = meta if isinstance(meta, Mapping) else {}
    kept = {part: found[part] for part in ("labels", "annotations") if part in found}
    return kept | {part: {**(kept.get(part) or {}), **added} for part, added in more.items()}


# --- sets of them -----------------------------------------------------------------------------------


def _job_set(jobs: Object) -> Made:
    """Jobs, numbered over all ReplicatedJobs, whose pods have their Job's number and their own."""
    batches: list[Batch] = []
    owners: list[Object] = []
    before = 0
    for said in _listed(jobs, "replicatedJobs"):
        what, replicas = str(said.get("name") or ""), _count(jobs, said, "replicas")
        mine = [_job_of_set(jobs, said, what, at, before + at) for at in range(max(1, replicas))]
        (one,) = _job(mine[0]).batches
        batches.append(
            Batch(
                count=one.count * replicas,
                make=partial(_nth_of_jobs, mine, max(1, one.count)),
                sample=_pod_of_job(mine[0], 0),
                note=f"each pod of {what} is a Slurm job of its own, up to {one.count * replicas} at a time",
                what=what,
            )
        )
        owners += mine
        before += replicas
    return Made(batches=tuple(batches), owners=tuple(owners))


def _job_of_set(jobs: Object, said: Object, what: str, at: int, overall: int) -> Object:
    numbers = {
        f"{_OF_JOBSET}jobset-name": name(jobs),
        f"{_OF_JOBSET}replicatedjob-name": what,
        f"{_OF_JOBSET}job-index": str(at),
        JOBSET_JOB_INDEX: str(overall),
    }
    both: dict[str, Mapping[str, str]] = {"labels": numbers, "annotations": numbers}
    inner = said.get("template")
    spec = inner.get("spec") if isinstance(inner, Mapping) else None
    if not isinstance(inner, Mapping) or not isinstance(spec, Mapping):
        where = f"JobSet {name(jobs)}: spec.replicatedJobs: {what or '(no name)'}"
        raise UserError(f"{where}: template.spec: is missing; add the Job's template")
    whole = {"kind": "JobSet", "metadata": jobs.get("metadata"), "spec": spec}
    pods = _template(
        whole, "template", _ADD_TEMPLATE, f"replicatedJobs: {what or '(no name)'}: template.spec."
    )
    inside = {
        "completionMode": "Indexed",
        **spec,
        "template": {**pods, "metadata": _words(pods.get("metadata"), **both)},
    }
    return _child(jobs, "batch/v1", "Job", f"-{what}-{at}", _words(inner.get("metadata"), **both), inside)


def _nth_of_jobs(jobs: Sequence[Object], each: int, index: int) -> Object:
    return _pod_of_job(jobs[index // each], index % each)


def _leader_worker_set(owner: Object) -> Made:
    """A StatefulSet of leaders; each leader, number 0 of its group, controls one of workers."""
    spec: Object = owner.get("spec") or {}
    inner: Object = spec.get("leaderWorkerTemplate") or {}
    whole = {**owner, "spec": inner}
    workers = _template(whole, "workerTemplate", _ADD_TEMPLATE, "leaderWorkerTemplate.")
    leads = workers
    if inner.get("leaderTemplate") is not None:
        leads = _template(whole, "leaderTemplate", _ADD_TEMPLATE, "leaderWorkerTemplate.")
    replicas, size = _count(owner, spec, "replicas"), _count(owner, inner, "size")
    above = _stateful(owner, leads)
    leaders = [_of_group(owner, above, group, group, 0) for group in range(max(1, replicas))]
    below = [_stateful(leader, workers) for leader in leaders]

    def worker(index: int) -> Object:
        group, number = divmod(index, size - 1)
        return _of_group(owner, below[group], group, number + 1, number + 1)

    parts = [("leader", replicas, leaders.__getitem__)] + (
        [("workers", replicas * (size - 1), worker)] if size > 1 else []
    )
    batches = tuple(
        Batch(
            count=count,
            make=make,
            sample=make(0),
            note=f"each pod is a Slurm job of its own, {count} at a time",
            what=what,
        )
        for what, count, make in parts
    )
    return Made(batches=batches, owners=(above, *leaders, *below))


def _stateful(owner: Object, inner: Object) -> Object:
    """It has the name of what controls it, and a uid of its own."""
    meta = {"uid": f"{uid(owner)}-set"}
    return _child(owner, "apps/v1", "StatefulSet", "", meta, {"template": inner})


def _of_group(owner: Object, above: Object, group: int, ordinal: int, worker: int) -> Object:
    """The leader is number 0."""
    labels = {
        f"{_OF_LWS}name": name(owner),
        LWS_GROUP_INDEX: str(group),
        LWS_WORKER_INDEX: str(worker),
        POD_INDEX: str(ordinal),
    }
    return _pod(above, f"-{ordinal}", labels=labels)


def _count(owner: Object, said: Object, field: str) -> int:
    """1 where nobody says. Raises UserError for what is no count."""
    found = said.get(field)
    if found is None:
        return 1
    if not isinstance(found, int) or found < 0:
        shown = json.dumps(found, default=str)
        raise UserError(
            f"{owner.get('kind')} {name(owner)}: {field}: {shown} is no whole number; write one such as 1"
        )
    return found


def _listed(obj: Object, field: str) -> Sequence[Object]:
    spec = obj.get("spec")
    found = spec.get(field) if isinstance(spec, Mapping) else None
    if not isinstance(found, list) or not found or not all(isinstance(one, Mapping) for one in found):
        raise UserError(f"{obj.get('kind')} {name(obj)}: spec.{field}: is missing; add one with its template")
    return found


# Kinds with a pod template.
KINDS: Final[Mapping[tuple[str, str], Callable[[Object], Made]]] = {
    ("batch/v1", "Job"): _job,
    ("batch/v1", "CronJob"): _cron_job,
    ("apps/v1", "Deployment"): _deployment,
    ("apps/v1", "ReplicaSet"): _replica_set,
    ("apps/v1", "StatefulSet"): _stateful_set,
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): _job_set,
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"): _leader_worker_set,
}


def made(obj: Object) -> Made | None:
    """What the controllers make of it; None for a kind without a pod template that we know."""
    make = KINDS.get(_kind(obj))
    return make(obj) if make is not None else None


def has_template(obj: Object) -> bool:
    """A kind with a pod template that we know."""
    return _kind(obj) in KINDS


def _kind(obj: Object) -> tuple[str, str]:
    return str(obj.get("apiVersion")), str(obj.get("kind"))


# --- names ------------------------------------------------------------------------------------------


def named(obj: Object) -> Object:
    """With the name and uid that the API server would give. Raises UserError for unquoted values."""
    meta = obj.get("metadata")
    if not isinstance(meta, Mapping):
        return obj
    for part in ("annotations", "labels"):
        words = meta.get(part)
        for key, value in words.items() if isinstance(words, Mapping) else ():
            if not isinstance(value, str):
                shown = json.dumps(value, default=str)
                where = f"{obj.get('kind')} {name(obj)}: metadata.{part}: {key}"
                raise UserError(f"{where}: {shown} is no text; write it in quotes: '{shown}'")
    return {**obj, "metadata": {**meta, "name": name(obj), "uid": uid(obj)}}


def uid(obj: Object) -> str:
    meta = obj.get("metadata")
    given = meta.get("uid") if isinstance(meta, Mapping) else None
    return str(given or f"{OFFLINE}-{name(obj)}")


def name(obj: Object) -> str:
    meta = obj.get("metadata")
    if not isinstance(meta, Mapping):
        return ""
    start = meta.get("generateName")
    return str(meta.get("name") or (f"{start}xxxxx" if start else ""))


def namespace(obj: Object) -> str:
    meta = obj.get("metadata")
    return str((meta.get("namespace") if isinstance(meta, Mapping) else None) or "default")
