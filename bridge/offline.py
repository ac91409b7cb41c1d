"""`slurm-bridge translate`: manifests in, the job that each pod would become out. Neither cluster is asked.

In: YAML with any number of documents: Pods, objects with a pod template (`bridge.kube.manifests`: one pod is made of
it), Lists of them. Out: for each pod the JSON that would be POSTed, the rule behind each field, every warning; for each
mistake its file, document, object, field and fix. A mistake in one object hides no other object.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import yaml

from bridge.config import Settings
from bridge.core import environment, grouping, jobspec, overrides
from bridge.core.grouping.gangs import digest, family_uid
from bridge.core.grouping.owners import Chain
from bridge.core.jobid import IdRange, job_id
from bridge.core.jobspec import Rule
from bridge.core.model import Group, JobSpec, Pod, Workload
from bridge.errors import UserError
from bridge.kube import manifests, view, workload_view
from bridge.kube.manifests import Object
from bridge.slurm import translate as wire

STDIN: Final = "-"
NEWEST: Final = 45  # data_parser v0.0.45: what the shown JSON is for

_Named = tuple[str, str, str]  # kind, namespace, name
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
    known = _known(documents)
    entries: list[Entry] = []
    for number, document in enumerate(documents, 1):
        where = f"{name}: document {number}"
        if isinstance(document, UserError):
            entries.append(Entry(where=where, error=str(document)))
            continue
        for obj in _objects(document):
            entries.append(_entry(obj, where, known, settings))
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


def _known(documents: list[Any]) -> Mapping[_Named, Object]:
    """The objects of the file by kind, namespace and name: a Pod beside its Job finds it, as in a cluster."""
    found: dict[_Named, Object] = {}
    for document in documents:
        for obj in _objects(document) if isinstance(document, Mapping) else ():
            if isinstance(obj, Mapping):
                found[str(obj.get("kind")), manifests.namespace(obj), manifests.name(obj)] = obj
    return found


# --- object → entry ---------------------------------------------------------------------------------


def _entry(obj: Any, where: str, known: Mapping[_Named, Object], settings: Settings) -> Entry:
    if not isinstance(obj, Mapping):
        return Entry(where=where, error=f"an item is a {type(obj).__name__}, not an object; give it a kind")
    kind = obj.get("kind")
    if not isinstance(kind, str) or not kind:
        return Entry(where=where, error="kind: is missing; add apiVersion and kind")
    where = f"{where}: {kind} {manifests.namespace(obj)}/{manifests.name(obj) or '(no name)'}"
    try:
        if obj.get("apiVersion") == "v1" and kind == "Pod":
            pod = view.pod_from_object(manifests.named(obj))
            owner = grouping.owner_ref(pod)
            found = known.get((owner.kind, pod.namespace, owner.name)) if owner is not None else None
            return _translated(where, [pod], found, (), settings)
        if (made := manifests.made(obj)) is not None:
            pods = [view.pod_from_object(pod) for pod in made.pods]
            return _translated(where, pods, made.owner, made.notes, settings)
    except UserError as error:
        return Entry(where=where, error=str(error))
    kinds = ", ".join(name for _, name in manifests.KINDS)
    version = obj.get("apiVersion")
    return Entry(where=where, notes=(f"skipped: {version} {kind}: translate reads Pod, {kinds}",))


def _translated(
    where: str, pods: Sequence[Pod], owner: Object | None, notes: tuple[str, ...], settings: Settings
) -> Entry:
    """`pods` share one job, or are one of them for many; `owner` controls them."""
    pod = pods[0]
    workload, ignored = _workload(pod, owner)
    family = grouping.family_of(pod, Chain((workload,) if workload is not None else ()))
    if family is None:
        group = grouping.build(grouping.key_of(pod), pods, workload)
    else:
        key = family.generation(digest(pod.uid for pod in pods))
        group = grouping.build(key, pods, workload, gang=family.gang.as_of(complete=True))
        notes = (f"one Slurm job for all pods, {len(pods)} of them: they start together, or none does",)
    cluster = settings.cluster.clusterId or manifests.OFFLINE
    spec = jobspec.translate(group, settings=settings.jobs, cluster=cluster)
    ids = IdRange(settings.jobs.jobIdFirst, settings.jobs.jobIdStop)
    notes += ignored
    if pod.scheduler not in settings.cluster.schedulers:
        named = pod.scheduler or "the default scheduler"
        wanted = settings.cluster.schedulerName
        notes += (f"schedulerName: {named}: not ours unless its namespace is managed; set {wanted}",)
    if environment.asks(pod):
        notes += (f"each container gets {', '.join(environment.SOURCES)}, unless its manifest sets them",)
    return Entry(
        where=where,
        group=group,
        spec=spec,
        body=wire.submit_body(job_id(ids, cluster, family_uid(group.key), 0, 0), spec, NEWEST),
        rules=jobspec.explain(group, settings=settings.jobs),
        notes=(*notes, "job_id, cluster and uids are stand-ins: only the cluster knows them"),
    )


def _workload(pod: Pod, owner: Object | None) -> tuple[Workload | None, tuple[str, ...]]:
    """The owner, if the bridge asks it for options; else a word about those that it has in vain."""
    if owner is None:
        return None, ()
    found = workload_view.from_object(manifests.named(owner))
    if grouping.owner_ref(pod) is not None:
        return found, ()
    vain = ", ".join(key for key in found.annotations if overrides.counts(key))
    what = f"{found.kind} {found.namespace}/{found.name}"
    return None, (f"{what}: {vain} has no effect there; write it into the pod template",) if vain else ()
