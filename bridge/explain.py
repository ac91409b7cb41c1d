"""`slurm-bridge explain POD`: why a pod is where it is, from its manifest alone (kubectl get pod -o yaml).

Goes in: a manifest, the pod's name, settings. Comes out: sentences for a person. Nothing is asked of any server, so it
works on a pod that a user pastes into a ticket; what Slurm last said stands in the pod's own condition.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from bridge.config import Settings
from bridge.core import attempt as attempts
from bridge.core import grouping
from bridge.core.facts import Facts, Member, Refusal
from bridge.core.jobspec import translate
from bridge.core.lifecycle import decide
from bridge.core.model import Group, JobSpec, Pod
from bridge.core.verdict import Reason, Verdict
from bridge.errors import UserError
from bridge.kube.view import pod_from_object
from bridge.names import (
    DISRUPTION_CONDITION,
    GPUS_ANNOTATION,
    JOB_CONDITION,
    JOB_ID_LABEL,
    NODE_ANNOTATION,
    SCHEDULING_GATE,
)


def explain(file: Path, wanted: str, settings: Settings) -> str:
    """Raises UserError if the file can't be read or holds no such pod."""
    pod = _find(file, wanted)
    lines = [f"Pod {pod.ref} (uid {pod.uid})", f"  {verdict(pod, settings)}"]
    lines += [f"  {line}" for line in _details(pod)]
    return "\n".join(lines)


def verdict(pod: Pod, settings: Settings) -> Verdict:
    """The same decision as the running bridge takes, as far as the manifest alone carries it."""
    if pod.scheduler not in settings.cluster.schedulers:
        names = " or ".join(sorted(settings.cluster.schedulers))
        return Verdict(
            Reason.FOREIGN,
            f"schedulerName is {pod.scheduler or 'default-scheduler'!r}, not {names}: not ours",
        )
    if pod.ended:
        return Verdict(Reason.DONE, f"the pod {pod.phase.lower()}; its job ends with its exit code")
    if pod.node and JOB_ID_LABEL in pod.labels:
        return Verdict(Reason.RUNNING, f"on {pod.node}, held by Slurm job {pod.labels[JOB_ID_LABEL]}")
    if not pod.node and pod.annotations.get(NODE_ANNOTATION):
        where = pod.annotations[NODE_ANNOTATION]
        return Verdict(Reason.GRANTED, f"Slurm granted {where}; kube-scheduler has yet to bind the pod there")
    spec, refusal = _spec(pod, settings)
    key = grouping.key_of(pod) if refusal is None else grouping.pod.key_of(pod)
    facts = Facts(
        group=Group(key=key, pods=(pod,)),
        members=(Member(pod=pod),),
        attempt=attempts.of_group(Group(key=key, pods=(pod,))),
        cluster="",
        now=0.0,
        spec=spec,
        refusal=refusal,
        poll_age=float("inf"),
    )
    decided = decide(facts).verdict
    if decided.reason is Reason.UNAVAILABLE:  # nothing in the manifest is in the way
        return Verdict(Reason.QUEUED, "waits for Slurm to grant nodes")
    return decided


def _spec(pod: Pod, settings: Settings) -> tuple[JobSpec | None, Refusal | None]:
    try:
        group = grouping.build(grouping.key_of(pod), (pod,))
        return translate(group, settings=settings.jobs, cluster=""), None
    except UserError as error:
        return None, Refusal(text=str(error), retry_in=None)


def _details(pod: Pod) -> Iterator[str]:
    if SCHEDULING_GATE in pod.gates:
        yield f"gate {SCHEDULING_GATE} is on: kube-scheduler doesn't look at the pod until the grant"
    elif not pod.node and not pod.ended:
        yield "no gate: kube-scheduler asks about the pod again and again, and is told to wait"
    attempt = attempts.of_group(Group(key=grouping.pod.key_of(pod), pods=(pod,)))
    if attempt.number:
        excluded = ", ".join((*attempt.excluded, *attempt.closed)) or "none"
        yield f"attempt {attempt.number}: earlier grants were given back; excluded nodes: {excluded}"
    if GPUS_ANNOTATION in pod.annotations:
        yield f"GPUs (Slurm's indices): {pod.annotations[GPUS_ANNOTATION]}"
    for kind in (JOB_CONDITION, DISRUPTION_CONDITION):
        condition = pod.condition(kind)
        if condition is not None:
            yield f"condition {kind}={condition.status} {condition.reason}: {condition.message}"
    if pod.condition(JOB_CONDITION) is None:
        yield f"no {JOB_CONDITION} condition yet: the bridge has nothing to tell that takes a while"


def _find(file: Path, wanted: str) -> Pod:
    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text()
        documents = list(yaml.safe_load_all(text))
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"{file}: cannot be read as YAML: {error}") from error
    pods = [pod_from_object(obj) for document in documents for obj in _pods(document)]
    found = [pod for pod in pods if wanted in (pod.name, pod.ref)]
    if not found:
        have = ", ".join(pod.ref for pod in pods) or "no pod at all"
        raise UserError(f"{file}: no pod {wanted!r}; it holds {have}")
    return found[0]


def _pods(document: Any) -> Iterator[Mapping[str, Any]]:
    if not isinstance(document, Mapping):
        return
    if document.get("kind") == "Pod":
        yield document
    for item in document.get("items") or ():
        yield from _pods(item)
