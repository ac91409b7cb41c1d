"""`slurm-bridge translate`: manifests in, the job that each pod would become out. Neither cluster is asked.

In: YAML with any number of documents: Pods, objects with pod templates (`bridge.kube.manifests`: pods are made of
them), PodGroups beside them, Lists. Out: for each job the JSON that would be POSTed, the rule behind each field, every
warning; for each mistake its file, document, object, field and fix. A mistake in one object hides no other object.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import yaml

from bridge.config import Settings
from bridge.core import environment, grouping, jobspec, overrides
from bridge.core.grouping.gangs import Family, digest, family_uid
from bridge.core.grouping.owners import Chain, above_all, chain, merged
from bridge.core.grouping.ranks import rank
from bridge.core.jobid import IdRange, job_id
from bridge.core.jobspec import Rule
from bridge.core.model import Group, GroupKey, JobSpec, Pod
from bridge.errors import UserError
from bridge.kube import manifests, view, workload_view
from bridge.kube.beside import NAMED, POD, READ, Beside, kind_of
from bridge.kube.manifests import Batch, Object
from bridge.names import DEFAULT_SCHEDULER_NAME
from bridge.slurm import translate as wire

STDIN: Final = "-"
NEWEST: Final = 45  # data_parser v0.0.45: what the shown JSON is for

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
    sources = list(_sources(text, name))
    beside = Beside(one.obj for one in sources if isinstance(one, _Source))
    made = [one if isinstance(one, Entry) else _made(one, beside) for one in sources]
    entries = [
        one if isinstance(one, Entry) else _translated(one, beside, settings) for one in _shares(made, beside)
    ]
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


def _sources(text: str, name: str) -> Iterator[_Source | Entry]:
    """Every object of the file, and an entry for what is none."""
    for number, document in enumerate(_documents(text), 1):
        where = f"{name}: document {number}"
        if isinstance(document, UserError):
            yield Entry(where=where, error=str(document))
            continue
        for obj in _objects(document):
            if not isinstance(obj, Mapping):
                error = f"an item is a {type(obj).__name__}, not an object; give it a kind"
                yield Entry(where=where, error=error)
            elif not isinstance(kind := obj.get("kind"), str) or not kind:
                yield Entry(where=where, error="kind: is missing; add apiVersion and kind")
            else:
                called = f"{kind} {manifests.namespace(obj)}/{manifests.name(obj) or '(no name)'}"
                yield _Source(where=f"{where}: {called}", obj=obj)


# --- objects → the pods that share a job ------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """An object of the file."""

    where: str
    obj: Object


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """The pods that an object is, or becomes."""

    source: _Source
    batches: tuple[Batch, ...]


@dataclass(slots=True, kw_only=True)
class _Share:
    """Pods that share a job; without a family a pod on its own, or one of many alike."""

    where: str
    family: Family | None
    pods: list[Pod]
    notes: tuple[str, ...] = ()


def _made(source: _Source, beside: Beside) -> _Made | Entry:
    """What stands between the object and its pods joins those beside it."""
    obj = source.obj
    try:
        if kind_of(obj) == POD:
            pod = manifests.named(obj)
            return _Made(source=source, batches=(Batch(count=1, make=lambda _: pod, sample=pod),))
        found = manifests.made(obj)
    except UserError as error:
        return Entry(where=source.where, error=str(error))
    if found is not None:
        beside.add(found.owners)
        return _Made(source=source, batches=found.batches)
    what = f"{obj.get('apiVersion')} {obj.get('kind')}"
    kinds = [name for _, name in manifests.KINDS]
    note = f"skipped: {what}: translate reads Pod, {', '.join(kinds)}"
    if kind_of(obj) in READ and obj["kind"] not in kinds:  # else a version of it that is not read
        whose = "the pods that name it" if kind_of(obj) in NAMED else "what it controls"
        note = f"{what}: what it says counts for {whose}"
    return Entry(where=source.where, notes=(note,))


def _shares(found: Sequence[_Made | Entry], beside: Beside) -> Sequence[_Share | Entry]:
    """In the order of the file; a gang stands where its first pod does."""
    shares: list[_Share | Entry] = []
    gangs: dict[GroupKey, _Share] = {}
    for made in found:
        if isinstance(made, Entry):
            shares.append(made)
            continue
        for batch in made.batches:
            where = ": ".join(filter(None, (made.source.where, batch.what)))
            try:
                shares += _batch(where, made.source, batch, gangs, beside)
            except UserError as error:
                shares.append(Entry(where=where, error=str(error)))
    return shares


def _batch(
    where: str, source: _Source, batch: Batch, gangs: dict[GroupKey, _Share], beside: Beside
) -> Sequence[_Share | Entry]:
    """What the batch begins. Its pods join the gangs that they are of."""
    sample = view.pod_from_object(batch.sample)
    family = _family(sample, beside)
    if family is None or sample.scheduler == DEFAULT_SCHEDULER_NAME:
        return [_Share(where=where, family=None, pods=[sample], notes=(batch.note,) if batch.note else ())]
    if (shown := beside.written_above(source.obj)) is not None:
        return [Entry(where=where, notes=(f"its job is shown for {shown}",))]
    if not batch.count:
        return [Entry(where=where, notes=("has no pods: it is scaled to none",))]
    begun: list[_Share] = []
    for pod in map(view.pod_from_object, batch.pods):
        mine = _family(pod, beside) or family
        if pod.ended or pod.deleted:
            return [Entry(where=where, notes=("is of no gang any more: it has ended, or is being deleted",))]
        if (share := gangs.get(mine.gathering)) is None:
            whose = f"{mine.kind} {mine.namespace}/{mine.name}"
            shown = source.where if source.obj.get("kind") == mine.kind else f"{source.where}: {whose}"
            share = gangs[mine.gathering] = _Share(where=shown, family=mine, pods=[])
            begun.append(share)
        share.pods.append(pod)
    if not begun and not (whole := gangs[family.gathering]).where.startswith(source.where):
        return [Entry(where=where, notes=(f"with the pods shown above: {whole.where}",))]
    if len(begun) > 1:
        begun[0].notes = (f"{len(begun)} Slurm jobs like this one in all",)
    return begun[:1]


def _family(pod: Pod, beside: Beside) -> Family | None:
    return grouping.family_of(pod, chain(pod, beside.lookup))


# --- pods → entry -----------------------------------------------------------------------------------


def _translated(share: _Share, beside: Beside, settings: Settings) -> Entry:
    pods, family, notes = sorted(share.pods, key=rank), share.family, share.notes
    pod = pods[0]
    above = chain(pod, beside.lookup)
    if family is None:
        group = grouping.build(grouping.key_of(pod), pods, above.nearest, above.workloads)
    elif len(pods) < family.gang.wanted:
        text = f"{len(pods)} of {family.gang.wanted} pods are here: Slurm is asked for nothing before all are there"
        return Entry(where=share.where, notes=(text,))
    else:
        later = pods[family.gang.wanted :] if family.gang.at_least else []
        if later:
            pods = pods[: family.gang.wanted]
            text = f"{family.gang.wanted} are enough: {len(later)} more start beside them, each with a job of its own"
            notes = (*notes, text)
        key, gang = family.generation(digest(pod.uid for pod in pods)), replace(family.gang, complete=True)
        others = above_all(pods, beside.lookup)
        group = grouping.build(key, pods, above.nearest, above.workloads, gang, others)
        notes = (
            f"one Slurm job for all pods, {len(pods)} of them: they start together, or none does",
            *notes,
        )
    cluster = settings.cluster.clusterId or manifests.OFFLINE
    ids = IdRange(settings.jobs.jobIdFirst, settings.jobs.jobIdStop)
    try:
        spec = jobspec.translate(group, settings=settings.jobs, cluster=cluster)
        rules = jobspec.explain(group, settings=settings.jobs)
    except UserError as error:
        return Entry(where=share.where, error=str(error))
    return Entry(
        where=share.where,
        group=group,
        spec=spec,
        body=wire.submit_body(job_id(ids, cluster, family_uid(group.key), 0, 0), spec, NEWEST),
        rules=rules,
        notes=(
            *notes,
            *_in_vain(pod, above, beside),
            *_asides(pod, settings),
            "job_id, cluster and uids are stand-ins: only the cluster knows them",
        ),
    )


def _in_vain(pod: Pod, above: Chain, beside: Beside) -> Iterator[str]:
    """What stands above the pod, and says what the bridge will not hear."""
    if above.awaited and not above.awaited.startswith("Job "):  # of a Job the job's own warnings tell
        yield f"{above.awaited} is not in this file: what it says is left out here"
    heard = merged(above.workloads)
    for obj in beside.unheard(pod):
        work = workload_view.from_object(manifests.named(obj))
        if vain := ", ".join(key for key in work.annotations if overrides.counts(key) and key not in heard):
            yield f"{work.ref}: {vain} has no effect there; write it into the pod template"


def _asides(pod: Pod, settings: Settings) -> Iterator[str]:
    if pod.scheduler not in settings.cluster.schedulers:
        named = pod.scheduler or "the default scheduler"
        wanted = settings.cluster.schedulerName
        yield f"schedulerName: {named}: not ours unless its namespace is managed; set {wanted}"
    if environment.asks(pod):
        yield f"each container gets {', '.join(environment.SOURCES)}, unless its manifest sets them"
