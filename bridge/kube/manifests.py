"""Objects of a manifest as the API server and the controllers would complete them.

In: mappings from YAML. Out: the same with the names that a cluster would give, and `Made`: the pods that a controller
makes of an object's template. Nothing is fetched; an object that lacks its template is a UserError that names it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bridge.core import grouping
from bridge.core.grouping.owners import Chain
from bridge.errors import UserError
from bridge.kube import view, workload_view
from bridge.names import COMPLETION_INDEX

Object = Mapping[str, Any]

OFFLINE: Final = "offline"  # stands where only a cluster knows the value
SUFFIX: Final = "-xxxxx"  # what a controller appends to the names of its pods
GENERATION: Final = "-xxxxxxxxxx"  # to the name of a ReplicaSet or a Job that a controller makes


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """Pods that share one Slurm job, and the object that controls them. Kinds that are placed pod by pod show one."""

    pods: tuple[Object, ...]
    owner: Object
    notes: tuple[str, ...] = ()


def made(obj: Object) -> Made | None:
    """What the controllers make of it; None for a kind without a pod template that we know."""
    make = KINDS.get((str(obj.get("apiVersion")), str(obj.get("kind"))))
    return make(obj) if make is not None else None


def _job(job: Object) -> Made:
    workload, first = workload_view.from_object(named(job)), _pod(job, SUFFIX)
    family = grouping.family_of(view.pod_from_object(first), Chain((workload,)))
    if family is not None:
        pods = tuple(_indexed(job, index) for index in range(family.gang.wanted))
        return Made(pods=pods, owner=job)
    note = f"each pod of the Job is a Slurm job of its own, up to {workload.size} at a time"
    return Made(pods=(first,), owner=job, notes=(note,))


def _indexed(job: Object, index: int) -> Object:
    """The pod of that index, as an Indexed Job makes it."""
    pod = _pod(job, f"-{index}{SUFFIX}")
    notes = {**pod["metadata"].get("annotations", {}), COMPLETION_INDEX: str(index)}
    return {**pod, "metadata": {**pod["metadata"], "annotations": notes}}


def _cron_job(cron: Object) -> Made:
    """A Job each time, whose metadata and spec are those of the template."""
    template = _template(cron, "jobTemplate", "add the Job's template")
    return _job(_owned(cron, "batch/v1", "Job", _words(template.get("metadata")), template["spec"]))


def _deployment(deployment: Object) -> Made:
    """Its ReplicaSets carry its annotations."""
    _template(deployment, "template", _ADD_TEMPLATE)
    words = _words(deployment.get("metadata"))
    owner = _owned(deployment, "apps/v1", "ReplicaSet", words, deployment["spec"])
    return Made(pods=(_pod(owner, SUFFIX),), owner=owner, notes=_replicas(deployment))


def _replica_set(owner: Object) -> Made:
    return Made(pods=(_pod(owner, SUFFIX),), owner=owner, notes=_replicas(owner))


def _stateful_set(owner: Object) -> Made:
    _template(owner, "template", _ADD_TEMPLATE)
    ordinals = owner["spec"].get("ordinals")
    first = ordinals.get("start", 0) if isinstance(ordinals, Mapping) else 0
    return Made(pods=(_pod(owner, f"-{first}"),), owner=owner, notes=_replicas(owner))


# Kinds with a pod template. One whose pods share a job returns all of them.
KINDS: Final[Mapping[tuple[str, str], Callable[[Object], Made]]] = {
    ("batch/v1", "Job"): _job,
    ("batch/v1", "CronJob"): _cron_job,
    ("apps/v1", "Deployment"): _deployment,
    ("apps/v1", "ReplicaSet"): _replica_set,
    ("apps/v1", "StatefulSet"): _stateful_set,
}
_ADD_TEMPLATE = "add the pod template"


def _replicas(owner: Object) -> tuple[str, ...]:
    count = owner["spec"].get("replicas", 1)
    return (f"each pod of the {owner['kind']} is a Slurm job of its own, {count} at a time",)


def _template(obj: Object, field: str, fix: str) -> Object:
    """The template of a pod or a Job. Raises UserError if there is none."""
    spec = obj.get("spec")
    template = spec.get(field) if isinstance(spec, Mapping) else None
    if not isinstance(template, Mapping) or not isinstance(template.get("spec"), Mapping):
        raise UserError(f"{obj.get('kind')} {name(obj)}: spec.{field}.spec: is missing; {fix}")
    return template


def _pod(owner: Object, suffix: str) -> Object:
    """One pod as the controller makes it."""
    template = _template(owner, "template", _ADD_TEMPLATE)
    return _child(owner, "v1", "Pod", suffix, _words(template.get("metadata")), template["spec"])


def _owned(owner: Object, version: str, kind: str, words: Object, spec: object) -> Object:
    return _child(owner, version, kind, GENERATION, words, spec)


def _child(owner: Object, version: str, kind: str, suffix: str, words: Object, spec: object) -> Object:
    reference = {
        "apiVersion": owner.get("apiVersion"),
        "kind": owner.get("kind"),
        "name": name(owner),
        "uid": uid(owner),
        "controller": True,
    }
    meta = {
        **words,
        "name": name(owner) + suffix,
        "namespace": namespace(owner),
        "ownerReferences": [reference],
    }
    return named({"apiVersion": version, "kind": kind, "metadata": meta, "spec": spec})


def _words(meta: object) -> Object:
    """Labels and annotations."""
    found = meta if isinstance(meta, Mapping) else {}
    return {part: found[part] for part in ("labels", "annotations") if part in found}


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
