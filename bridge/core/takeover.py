"""Taking over from the Go project (SlinkyProject/slurm-bridge): which of its jobs are ours, and what becomes of them.

Its pods carry the id of a job with Slurm's own numbering in their label, and the job's admin_comment lists the pods by
name. Goes in: the record of such a job, and what is here. Comes out: the step that makes it ours, or why it is left
alone. What must stay true: a label proves nothing, as anybody may edit it. A job is taken over only if its mark lists
pods that are all here, are older than the job and name it, and if it has, or asks for, nodes of this very cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from bridge.core import attempt as attempts
from bridge.core import devices, grouping
from bridge.core.conditions import job_condition, worth_writing
from bridge.core.facts import Facts, Member, Sight
from bridge.core.grouping.ranks import rank
from bridge.core.ledger import started
from bridge.core.model import (
    Group,
    GroupKey,
    JobId,
    JobRecord,
    Mark,
    Node,
    Pod,
    SlurmNode,
    is_ended,
    is_granted,
)
from bridge.core.steps import AdoptJob, Decision, DropFinalizer, EndJob, Release, SetConditions, Step
from bridge.core.verdict import Reason, Verdict
from bridge.errors import ProtocolError
from bridge.names import GPUS_ANNOTATION, JOB_ID_LABEL, SUBMITTED_ANNOTATION, UPSTREAM_FINALIZER

KIND = "SlurmJob"  # of the group of several pods that run in one job of the Go project's
CLOCK_SKEW = 5.0  # seconds that slurmctld's clock may be behind that of the API server
READ_LOOK = 0.5  # seconds between looks while a job is being read
BEYOND = 0x03FFFFFF  # Slurm has no job with this id or a higher one
LABEL_LOOK = 30.0  # seconds between looks at a pod whose own job is somebody else's business

Find = Callable[[str, str], Pod | None]  # namespace, name → a pod of ours that exists


def label_of(pod: Pod) -> JobId | None:
    """None: no label, or none that Slurm could have given."""
    text = pod.labels.get(JOB_ID_LABEL, "")
    number = int(text) if text.isascii() and text.isdigit() else 0
    return JobId(number) if 0 < number < BEYOND else None


def examine(
    record: JobRecord, *, cluster: str, find: Find, nodes: Mapping[SlurmNode, Node]
) -> tuple[Step, ...] | Verdict:
    """What becomes of a job without a mark of any bridge of ours. Verdict: nothing, and why."""
    if not record.listed:
        return _left(record, "its admin_comment isn't the Go project's")
    pods: list[Pod] = []
    for ref in record.listed:
        pod = find(*ref.split("/"))
        if pod is None:
            return _left(record, f"it is also marked with pod {ref}, which isn't here")
        if label_of(pod) != record.id:
            return _left(record, f"it is also marked with pod {ref}, whose label names another job")
        if pod.created > record.submitted + CLOCK_SKEW:
            return _left(record, f"it was submitted before pod {ref} was created")
        pods.append(pod)
    held = {node.name for name in record.nodes if (node := nodes.get(name)) is not None}
    placed = [pod for pod in pods if pod.node]
    stray = next((pod for pod in placed if pod.node not in held), None)
    if stray is not None:
        return _left(record, f"it doesn't hold {stray.node}, where pod {stray.ref} is")
    if not any(name in nodes for name in record.nodes or record.required):
        return _left(record, "it neither holds nor asks for a node of this cluster")
    if len(pods) > 1 and not placed:
        why = f"taken over from the Go project: pods {', '.join(record.listed)} get a job each"
        return (EndJob(id=record.id, wait_status=None, why=why, note=why),)
    try:
        told = tuple(_tell(record, placed, nodes))
    except ProtocolError as error:  # nobody can say which devices these pods have: a person must look
        return _left(record, str(error))
    return (*told, AdoptJob(id=record.id, mark=_mark(record, cluster, placed or pods)))


def _tell(record: JobRecord, placed: Sequence[Pod], nodes: Mapping[SlurmNode, Node]) -> Iterator[Step]:
    """Pods that sit on GPUs of the job say so from now on, so that nobody else is given them while they live."""
    for position, name in enumerate(record.nodes):
        here = [pod for pod in placed if (node := nodes.get(name)) is not None and node.name == pod.node]
        text = record.gres[position] if position < len(record.gres) else ""
        held = devices.indices(text) if here else ()
        for at, pod in enumerate(here):
            gpus = devices.spell(held[at :: len(here)])
            if gpus and pod.annotations.get(GPUS_ANNOTATION) != gpus:
                yield Release(pod=pod, job=record.id, node=pod.node, gpus=gpus)


def _mark(record: JobRecord, cluster: str, pods: Sequence[Pod]) -> Mark:
    """Pods that are on no node yet, while others are, get jobs of their own."""
    key = grouping.pod.key_of(pods[0])
    if len(pods) > 1:
        key = GroupKey(namespace=key.namespace, kind=KIND, name=str(record.id), uid=key.uid)
    return Mark(
        cluster=cluster,
        group=key,
        attempt=attempts.of_group(Group(key=key, pods=tuple(pods))).number,
        uids=tuple(pod.uid for pod in pods),
        pods=record.listed,
        grace=max(pod.grace for pod in pods),
    )


def _left(record: JobRecord, why: str) -> Verdict:
    return Verdict(Reason.FOREIGN, f"job {record.id} is not this bridge's, and is left alone: {why}")


def counted(sight: Sight, found: tuple[Step, ...] | Verdict | None, key: GroupKey) -> Sight:
    """A job that ended before it could be adopted says to each of its pods what its own job would say."""
    match found:
        case (*_, AdoptJob(mark=mark)) if sight.record is not None and is_ended(sight.record.states):
            return replace(sight, record=replace(sight.record, mark=replace(mark, group=key)))
    return sight


def recognized(
    sight: Sight, group: GroupKey, pods: Sequence[Pod], *, cluster: str, attempt: int, owner: str = ""
) -> Sight:
    """A job without a mark under an id that the bridge chose for this group: the pods' own, if one of them noted this
    very start of it. Slurm lets nobody but SlurmUser choose ids. Where Slurm numbers our jobs all of them are
    `owner`'s, and the pod has noted the submit, too."""
    record = sight.record
    if record is None or record.mark is not None or not record.started:
        return sight
    mine = [p for p in pods if p.node and label_of(p) == record.id and started(p) == int(record.started)]
    if owner:
        noted = f"{record.submitted:.0f}"
        mine = [p for p in mine if p.annotations.get(SUBMITTED_ANNOTATION) == noted and record.user == owner]
    if not mine:
        return sight
    pods = sorted(pods, key=rank)  # who has which place is not known any more
    uids, refs = tuple(pod.uid for pod in pods), tuple(pod.ref for pod in pods)
    grace = max(pod.grace for pod in pods)
    mark = Mark(cluster=cluster, group=group, attempt=attempt, uids=uids, pods=refs, grace=grace)
    return replace(sight, record=replace(record, mark=mark, overwritten=True))


def marked_again(facts: Facts, sight: Sight) -> Decision | None:
    """Somebody has written something else over the mark by which everybody knows whose the job is."""
    record = sight.record
    if record is None or record.mark is None or not record.overwritten or not sight.live:
        return None
    text = (
        f"{record.comment[:80]!r} was written over the bridge's mark in the admin_comment of job {record.id}"
    )
    step = AdoptJob(id=record.id, mark=record.mark)
    return Decision(verdict=Verdict(Reason.TAKEN_OVER, f"{text}: the mark is written again"), steps=(step,))


def due(facts: Facts) -> Decision | None:
    """What has to happen before anything is decided about pods that come from the Go project."""
    if not facts.slurm_fresh:
        return None
    unread = {
        job: v for job, v in facts.takeovers.items() if isinstance(v, Verdict) and v.reason is Reason.STALE
    }
    if unread:  # the watcher reads running jobs by itself, in its own time
        listed = ((job, s.states) for job in unread if (s := facts.sights.get(job)) and s.states is not None)
        urgent = tuple(job for job, states in listed if not is_granted(states))
        return Decision(verdict=unread[min(unread)], reads=urgent, again=READ_LOOK)
    live = {
        job: found for job, found in facts.takeovers.items() if job in facts.sights and facts.sights[job].live
    }
    ours = {job: steps for job, steps in live.items() if not isinstance(steps, Verdict)}
    if ours:
        text = f"job {', '.join(map(str, ours))} is taken over from the Go project"
        steps = tuple(step for found in ours.values() for step in found)
        return Decision(verdict=Verdict(Reason.TAKEN_OVER, text), steps=steps)
    for job, found in live.items():
        record = facts.sights[job].record
        waiting = [m.pod for m in facts.members if m.exists and not m.pod.node and not m.pod.deleted]
        if record is not None and isinstance(found, Verdict) and any(p.ref in record.listed for p in waiting):
            text = f"{found.text}; the pod waits until it has ended: scancel {job}"
            return _told(facts, waiting, Verdict(Reason.FOREIGN, text))
    return None


def alone(facts: Facts, running: Sequence[Member], job: JobId) -> Decision:
    """A bound pod whose label names a job that isn't ours: nothing is done to either, and the pod says so."""
    found = facts.takeovers.get(job)
    text = found.text if isinstance(found, Verdict) else f"job {job} carries another mark; nothing is done"
    return _told(facts, [m.pod for m in running], Verdict(Reason.FOREIGN, text))


def _told(facts: Facts, pods: Sequence[Pod], verdict: Verdict) -> Decision:
    shown = job_condition(None, facts.now, refused=verdict.text, reason=verdict.reason)
    silent = [pod for pod in pods if worth_writing(pod, shown, facts.now)]
    steps = tuple(SetConditions(pod=pod, conditions=(shown,)) for pod in silent)
    return Decision(verdict=verdict, steps=steps, again=LABEL_LOOK)


def farewell(facts: Facts) -> Decision:
    """Nothing is left to run and no job of ours is live: pods may go, whatever their finalizer waited for.

    The Go project's finalizer keeps a pod's object until its job has ended. A job that Slurm has forgotten, or that
    isn't ours, is nothing to wait for.
    """
    verdict = Verdict(Reason.DONE, "no job is left")
    held = [m.pod for m in facts.members if m.exists and UPSTREAM_FINALIZER in m.pod.finalizers]
    jobs = {job for pod in held if (job := label_of(pod)) is not None}
    sights = {job: facts.sights.get(job) for job in sorted(jobs - facts.denied)}
    absent = [job for job, sight in sights.items() if sight is None or sight.states is None]
    unread = [job for job, sight in sights.items() if sight is not None and sight.record is None]
    if absent or unread:
        text = "Slurm is asked for the job before its pods may go"
        return Decision(verdict=Verdict(Reason.FINISHING, text), reads=(*absent, *unread), again=READ_LOOK)
    if jobs & facts.denied and facts.boot_grace:
        text = "slurmctld has just come up, and may still find the job that the pod's finalizer waits for"
        return Decision(verdict=Verdict(Reason.FINISHING, text), again=LABEL_LOOK)
    steps: tuple[Step, ...] = tuple(DropFinalizer(pod=pod) for pod in held)
    return Decision(verdict=verdict, steps=steps, settled=True)
