"""Pods that are edited while their job waits: what starts is what they ask for then.

Goes in: facts. Comes out: the decision that gives up a job which no longer is what its pods ask for, or None. Not the
job itself is compared, as operators may change it in Slurm, but the digest of what it was asked for, in its mark. What
must stay true: only who edits a pod, or what it belongs to, costs it its place in the queue; other settings, another
version of the bridge, or a view of the cluster that is not whole yet, cost nobody his.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import fields, replace

from bridge.config import JobSettings
from bridge.core.facts import Facts
from bridge.core.model import JobId, JobRecord, JobSpec, KubeNode, Pod, States, is_granted
from bridge.core.steps import Decision, EndJob, Forsake, Nominate, Notify, Step
from bridge.core.verdict import Reason, Verdict
from bridge.names import JOB_ID_LABEL

# Which nodes are excluded is updated in the job that waits; texts for people are not worth its place in the queue; what
# is on top of the user's limit is ours; and whether Slurm takes a job of several sizes is no word of the pods'.
_ASIDE = frozenset({"mark", "excluded_nodes", "name", "comment", "notice", "warnings", "time_limit"})
_ASIDE |= {"size", "pods", "others", "most"}
_COUNTED = tuple(field for field in fields(JobSpec) if field.name not in _ASIDE)


SETTLED = 60.0  # seconds after a start: until then not all that says something of a pod may have been read
SKEW = 5.0  # seconds between our clock and the API server's


def epoch(settings: JobSettings, version: str) -> str:
    """By what rules pods become jobs. Digests of two epochs tell nothing."""
    return hashlib.blake2b(f"{version} {settings.model_dump_json()}".encode(), digest_size=4).hexdigest()


def stamped(spec: JobSpec, epoch: str = "") -> JobSpec:
    """The same job, whose mark says what it was asked for, and by which rules."""
    whole = spec.most or spec
    said = {f.name: value for f in _COUNTED if (value := getattr(whole, f.name)) != f.default}
    digest = hashlib.blake2b(json.dumps(said, sort_keys=True).encode(), digest_size=6).hexdigest()
    return spec.each(lambda one: replace(one, mark=replace(one.mark, asks=f"{epoch}-{digest}")))


def _comparable(facts: Facts, pods: Sequence[Pod], record: JobRecord | None) -> bool:
    """By the rules of today, and everything that counts has been read: a pod that was there before us is new to us."""
    asked = record.mark.asks if record is not None and record.mark is not None else ""
    met = facts.now - facts.known_for
    whole = facts.known_for >= SETTLED or all(pod.created >= met - SKEW for pod in pods)
    return whole and asked.partition("-")[0] == facts.epoch


def overtaken(facts: Facts, pods: Sequence[Pod], record: JobRecord) -> Decision | None:
    """The job waits, or is granted, for what the pods asked for before somebody edited them or their owner."""
    asked = record.mark.asks if record.mark is not None else ""
    now = facts.spec.mark.asks if facts.spec is not None else ""
    if not asked or not now or asked == now or not _comparable(facts, pods, record):
        return None
    why = f"what the pod asks for was changed after job {record.id} was asked for; another follows"
    return _given_up(facts, pods, (record.id,), Verdict(Reason.READY, why))


def impossible(facts: Facts, pods: Sequence[Pod]) -> Decision | None:
    """Nobody can use what the job holds, or will hold: its pods were edited into something that is no job. Where new
    settings may be why, one that waits keeps its place, as somebody may correct them."""
    if facts.spec is not None or facts.refusal is None or not facts.slurm_fresh:
        return None
    live = [s for s in facts.sights.values() if s.live]
    unread = tuple(s.id for s in live if s.record is None)
    ours = (s for s in live if facts.owns(s.record))
    mine = tuple(s.id for s in ours if is_granted(s.states or States()) or _comparable(facts, pods, s.record))
    verdict = Verdict(Reason.REFUSED, facts.refusal.text)
    if unread:
        return Decision(verdict=verdict, reads=unread, again=1.0)
    return _given_up(facts, pods, mine, verdict) if mine else None


def _given_up(facts: Facts, pods: Sequence[Pod], jobs: Sequence[JobId], verdict: Verdict) -> Decision:
    """The next attempt first: a cancelled job must never look like a person's cancel of the current attempt."""
    following = facts.attempt.afresh(now=facts.now)
    steps: list[Step] = []
    for pod in pods:
        steps.append(Forsake(pod=pod, attempt=following))
        if pod.nominated or JOB_ID_LABEL in pod.labels:
            steps.append(Nominate(pod=pod, node=KubeNode("")))
    steps += [EndJob(id=job, wait_status=None, why=verdict.text) for job in jobs]
    steps += [Notify(pod=pod, verdict=verdict) for pod in pods]
    return Decision(verdict=verdict, steps=tuple(steps), again=1.0)
