"""`slurm-bridge translate`: manifests in, the job that each pod would become out. Neither cluster is asked.

In: YAML with any number of documents: Pods, Jobs (one pod is made from the template), Lists of them. Out: for
each pod the JSON that would be POSTed, the rule behind each field, every warning; for each mistake its file,
document, object, field and fix. A mistake in one object hides no other object.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import yaml

from bridge.config import Settings
from bridge.core import grouping, jobspec
from bridge.core.jobid import IdRange, job_id
from bridge.core.jobspec import Rule
from bridge.core.model import Group, JobSpec, Pod, Workload
from bridge.errors import UserError
from bridge.kube import view, workload_view
from bridge.slurm import translate as wire

STDIN: Final = "-"
NEWEST: Final = 45  # data_parser v0.0.45: what the shown JSON is for
OFFLINE: Final = "offline"  # stands where only a cluster knows the value
SUFFIX: Final = "-xxxxx"  # what a controller appends to the names of its pods

_SEPARATOR = re.compile(r"^---(?=\s|$)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One object of a file: translated, skipped (`notes` alone) or wrong (`error`)."""

    where: str  # "train.yaml: document 2: Job default/train"
    group: Group | None = None
    spec: JobSpec | None = None
    body: Mapping[str, Any] | None = None  # of POST job/submit
    rules: tuple[Rule, ...] = ()
    notes: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    entries: tuple[Entry, ...]

    @property
    def failed(self) -> bool:
        return any(entry.error for entry in self.entries)

    @property
    def text(self) -> str:
        return "\n".join(render(entry) for entry in self.entries)


def translate(file: Path | Literal["-"], settings: Settings) -> Translation:
    """Read and translate a file, or standard input for "-". Raises UserError if it can't be read."""
    try:
        text = sys.stdin.read() if file == STDIN else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}; give a file, or - for stdin") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{file}: is not UTF-8 text; give a YAML manifest") from error
    return read(text, name="stdin" if file == STDIN else str(file), settings=settings)


def read(text: str, *, name: str, settings: Settings) -> Translation:
    """Translate the text of a file called `name`. Mistakes become entries; nothing is raised for them."""
    documents = list(_documents(text))
    jobs = _jobs(documents)
    entries: list[Entry] = []
    for number, document in enumerate(documents, 1):
        where = f"{name}: document {number}"
        if isinstance(document, UserError):
            entries.append(Entry(where=where, error=str(document)))
            continue
        for obj in _objects(document):
            entries.append(_entry(obj, where, jobs, settings))
    if not entries:
        entries.append(Entry(where=name, error="holds no object; give Pods, Jobs or Lists of them"))
    return Translation(entries=tuple(entries))


def render(entry: Entry, *, with_body: bool = True) -> str:
    """The entry as people read it, ending in a new line."""
    lines = [f"# {entry.where}"]
    if entry.body is not None and with_body:
        lines += ["", f"POST /slurm/v0.0.{NEWEST}/job/submit", json.dumps(entry.body, indent=2)]
    if entry.rules:
        width = max(len(rule.field) for rule in entry.rules)
        value = max(len(rule.value) for rule in entry.rules)
        lines += ["", "why:"]
        lines += [f"  {r.field:<{width}}  {r.value:<{value}}  {r.layer}: {r.why}" for r in entry.rules]
    if entry.spec is not None and entry.spec.warnings:
        lines += ["", "warnings:", *(f"  {warning}" for warning in entry.spec.warnings)]
    if entry.notes:
        lines += ["", "notes:", *(f"  {note}" for note in entry.notes)]
    if entry.error:
        lines += ["", f"error: {entry.error}"]
    return "\n".join(lines) + "\n"


# --- YAML → objects ---------------------------------------------------------------------------------


def _documents(text: str) -> Iterator[Any]:
    """Each document by itself, or the UserError about it: a syntax error must not hide those after it."""
    starts = [0, *(match.start() for match in _SEPARATOR.finditer(text))]
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        try:
            # As many empty lines as were cut off: the line numbers in errors are those of the file.
            document = yaml.safe_load("\n" * text.count("\n", 0, start) + text[start:end])
        except yaml.MarkedYAMLError as error:
            line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
            yield UserError(f"{line}is not YAML: {error.problem}; correct it there")
            continue
        except (yaml.YAMLError, ValueError) as error:  # ValueError: an impossible date or number
            yield UserError(f"is not YAML: {error}; correct it there")
            continue
        if document is None:
            continue
        if isinstance(document, Mapping):
            yield document
        else:
            kind = type(document).__name__
            yield UserError(f"is a {kind}, not an object; start it with apiVersion and kind")


def _objects(document: Mapping[str, Any]) -> Iterator[Any]:
    """The document, or what a List holds."""
    items = document.get("items")
    if str(document.get("kind", "")).endswith("List") and isinstance(items, list):
        for item in items:
            if isinstance(item, Mapping):
                yield from _objects(item)
            else:
                yield item
    else:
        yield document


def _jobs(documents: list[Any]) -> Mapping[tuple[str, str], Mapping[str, Any]]:
    """The Jobs of the file by namespace and name: a Pod beside its Job finds it, as in a cluster."""
    found: dict[tuple[str, str], Mapping[str, Any]] = {}
    for document in documents:
        for obj in _objects(document) if isinstance(document, Mapping) else ():
            if isinstance(obj, Mapping) and _is(obj, "batch/v1", "Job"):
                found[_namespace(obj), _name(obj)] = obj
    return found


# --- object → entry ---------------------------------------------------------------------------------


def _entry(
    obj: Any, where: str, jobs: Mapping[tuple[str, str], Mapping[str, Any]], settings: Settings
) -> Entry:
    if not isinstance(obj, Mapping):
        return Entry(where=where, error=f"an item is a {type(obj).__name__}, not an object; give it a kind")
    kind = obj.get("kind")
    if not isinstance(kind, str) or not kind:
        return Entry(where=where, error="kind: is missing; add apiVersion and kind")
    where = f"{where}: {kind} {_namespace(obj)}/{_name(obj) or '(no name)'}"
    try:
        if _is(obj, "v1", "Pod"):
            pod = view.pod_from_object(_named(obj))
            owner = grouping.owner_ref(pod)
            job = jobs.get((pod.namespace, owner.name)) if owner is not None else None
            return _translated(
                where, pod, workload_view.from_object(_named(job)) if job else None, (), settings
            )
        if _is(obj, "batch/v1", "Job"):
            workload = workload_view.from_object(_named(obj))
            return _translated(where, view.pod_from_object(_pod_of(obj)), workload, _shape(obj), settings)
    except UserError as error:
        return Entry(where=where, error=str(error))
    version = obj.get("apiVersion")
    return Entry(where=where, notes=(f"skipped: {version} {kind} is neither a v1 Pod nor a batch/v1 Job",))


def _translated(
    where: str, pod: Pod, workload: Workload | None, notes: tuple[str, ...], settings: Settings
) -> Entry:
    group = grouping.build(grouping.key_of(pod), [pod], workload)
    cluster = settings.cluster.clusterId or OFFLINE
    spec = jobspec.translate(group, settings=settings.jobs, cluster=cluster)
    ids = IdRange(settings.jobs.jobIdFirst, settings.jobs.jobIdStop)
    if pod.scheduler not in settings.cluster.schedulers:
        named = pod.scheduler or "the default scheduler"
        wanted = settings.cluster.schedulerName
        notes += (f"schedulerName: {named}: not ours unless its namespace is managed; set {wanted}",)
    return Entry(
        where=where,
        group=group,
        spec=spec,
        body=wire.submit_body(job_id(ids, cluster, group.key.uid, 0, 0), spec, NEWEST),
        rules=jobspec.explain(group, settings=settings.jobs),
        notes=(*notes, "job_id, cluster and uids are stand-ins: only the cluster knows them"),
    )


def _pod_of(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """One pod as the Job controller makes it. Raises UserError if there is no template."""
    spec = job.get("spec")
    template = spec.get("template") if isinstance(spec, Mapping) else None
    if not isinstance(template, Mapping) or not isinstance(template.get("spec"), Mapping):
        raise UserError(f"Job {_name(job)}: spec.template.spec: is missing; add the pod template")
    meta = template.get("metadata")
    name = _name(job)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": _uid(name), "controller": True}
    return _named(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                **(meta if isinstance(meta, Mapping) else {}),
                "name": name + SUFFIX,
                "namespace": _namespace(job),
                "ownerReferences": [owner],
            },
            "spec": template["spec"],
        }
    )


def _shape(job: Mapping[str, Any]) -> tuple[str, ...]:
    parallelism = job["spec"].get("parallelism", 1)
    return (f"each pod of the Job is a Slurm job of its own, up to {parallelism} at a time",)


def _named(obj: Mapping[str, Any]) -> Mapping[str, Any]:
    """With the name and uid that the API server would give. Raises UserError for unquoted values."""
    meta = obj.get("metadata")
    if not isinstance(meta, Mapping):
        return obj
    name = _name(obj)
    for part in ("annotations", "labels"):
        words = meta.get(part)
        for key, value in words.items() if isinstance(words, Mapping) else ():
            if not isinstance(value, str):
                shown = json.dumps(value, default=str)
                where = f"{obj.get('kind')} {name}: metadata.{part}: {key}"
                raise UserError(f"{where}: {shown} is no text; write it in quotes: '{shown}'")
    return {**obj, "metadata": {**meta, "name": name, "uid": meta.get("uid") or _uid(name)}}


def _uid(name: str) -> str:
    return f"{OFFLINE}-{name}"


def _is(obj: Mapping[str, Any], version: str, kind: str) -> bool:
    return obj.get("apiVersion") == version and obj.get("kind") == kind


def _name(obj: Mapping[str, Any]) -> str:
    meta = obj.get("metadata")
    if not isinstance(meta, Mapping):
        return ""
    start = meta.get("generateName")
    return str(meta.get("name") or (f"{start}xxxxx" if start else ""))


def _namespace(obj: Mapping[str, Any]) -> str:
    meta = obj.get("metadata")
    return str((meta.get("namespace") if isinstance(meta, Mapping) else None) or "default")
