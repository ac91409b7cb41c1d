"""Pods that start together or not at all: what is particular about them, before, at and after the start.

Nothing is asked of Slurm before all are there; a loss before the start takes the job back; half a gang that has started
waits for the rest no longer than its time; who comes for a lost member gets that one's place in the job that runs.
Goes in: facts. Comes out: decisions and steps. Which pods are a gang is told by core.grouping.gangs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from bridge.core.attempt import of_pod
from bridge.core.conditions import job_condition, worth_writing
from bridge.core.facts import Facts, Member
from bridge.core.grouping import build
from bridge.core.grouping.gangs import digest, family_uid, generation_of
from bridge.core.grouping.ranks import rank
from bridge.core.heirs import heirs
from bridge.core.model import JobRecord, KubeNode, Pod, Uid, is_granted
from bridge.core.steps import AdoptJob, Decision, EndJob, Forsake, Nominate, SetConditions, Step
from bridge.core.verdict import Reason, Verdict
from bridge.names import NODE_ANNOTATION

READ_AT_ONCE = 50  # jobs
KEPT = 3  # pods that ended, for each one that lives, in the mark of their job


def gathering(facts: Facts, pods: Sequence[Pod]) -> Decision | None:
    """The pods wait for others; None: they are complete, or no gang."""
    gang = facts.group.gang
    if gang is None:
        return None
    if not gang.complete:
        whose = f"{facts.group.key.kind} {facts.group.key.name}"
        text = f"waiting for all pods of {whose}: {len(pods)} of {gang.wanted} are there"
        if gang.begun:
            text = f"waiting for the first {gang.wanted} pods of {whose} to start"
        return told(facts, pods, Verdict(Reason.GATHERING, text))
    return None


def broken(facts: Facts, running: Sequence[Member]) -> str:
    """Which member went before the start, so that what was asked for is taken back and the others wait for who comes
    next; "" = none, or no gang."""
    if facts.group.gang is None:
        return ""
    lost = [m.pod.ref for m in facts.members if m not in running]
    if lost:
        return f"pod {lost[0]} went before its gang started"
    if digest(m.pod.uid for m in running) != generation_of(facts.group.key):
        return "a pod went before its gang started"
    gang, key = facts.group.gang, facts.group.key
    if len(running) >= gang.wanted:
        return ""
    return f"{key.kind} {key.name} was made larger before its pods started: {gang.wanted} of them now"


def passed_on(facts: Facts, record: JobRecord) -> bool:
    """The id of these pods' job is that of another generation now: Slurm lost theirs, and gave it to the next."""
    mark = record.mark
    if mark is None or mark.cluster != facts.cluster or mark.group == facts.group.key:
        return False
    return bool(generation_of(facts.group.key)) and family_uid(mark.group) == family_uid(facts.group.key)


def left_behind(facts: Facts, pods: Sequence[Pod]) -> Decision | None:
    """Pods that were let go under a job that is no longer theirs may be bound at any moment: not any more first."""
    late = (
        [pod for pod in pods if pod.annotations.get(NODE_ANNOTATION)] if facts.group.gang is not None else []
    )
    if not late:
        return None
    text = f"pod {late[0].ref} was on its way under a job that its gang has lost"
    steps: list[Step] = []
    for pod in late:
        steps += [Forsake(pod=pod, attempt=facts.attempt), Nominate(pod=pod, node=KubeNode(""))]
    return Decision(verdict=Verdict(Reason.LOST_GRANT, text), steps=tuple(steps), again=1.0)


def rivals(facts: Facts) -> tuple[Step, ...]:
    """Jobs for another set of these pods, from before one of them was replaced."""
    why = f"its pods are of {facts.group.key} now"
    return tuple(
        EndJob(id=job, wait_status=None, why=why, group=group) for job, group in facts.rivals.items()
    )


def told(facts: Facts, pods: Sequence[Pod], verdict: Verdict, again: float | None = None) -> Decision:
    """Nothing to do but to say why, once."""
    shown = job_condition(None, facts.now, refused=verdict.text, reason=verdict.reason)
    silent = [pod for pod in pods if worth_writing(pod, shown, facts.now)]
    steps = tuple(SetConditions(pod=pod, conditions=(shown,)) for pod in silent)
    return Decision(verdict=verdict, steps=steps, again=again)


def unbound(running: Sequence[Member]) -> list[Pod]:
    """Members without a node, while others run."""
    return [m.pod for m in running if not m.pod.node and not m.pod.deleted]


def at_home(facts: Facts) -> list[Member]:
    """Members that may still use what the job holds, and those that are to get something of it."""
    margin = facts.limits.death_margin
    return [
        m
        for m in facts.members
        if not (m.pod.node and m.containers_dead(margin)) and (m.pod.node or _lives(m))
    ]


def _lives(member: Member) -> bool:
    return member.exists and not member.pod.deleted and not member.pod.ended


def haunted(facts: Facts) -> float:
    """Seconds for which a place of the job may be that of a pod that this process never saw, and that went."""
    margin = facts.limits.death_margin
    alive = (m for m in facts.ghosts if not (m.containers_dead(margin) or m.stranded(margin)))
    return min((m.dead_in(margin) for m in alive), default=0.0)


def roll(facts: Facts, record: JobRecord) -> Iterator[Step]:
    """The job's mark names who came for a lost member, in that one's place, once there is one. It names its pods in the
    order of their places; a lost one stays there until somebody comes."""
    mark = record.mark
    if mark is None or facts.group.gang is None or not is_granted(record.states):
        return
    home, known = {m.pod.uid: m for m in at_home(facts)}, set(mark.uids)
    came = [m.pod for uid, m in home.items() if uid not in known]
    seats = [*zip(mark.uids, mark.pods, strict=False)]
    places = record.tasks or len(seats)
    seats, over = seats[:places], seats[places:]
    found, waiting = _heirs(facts, record, home, seats, came)
    rest = [pod for pod in came if pod.uid not in found.keys() | waiting]
    if len(home) > places:
        rest = [pod for pod in rest if pod.node]
    # Where there is room, but none of their size, they are told so when they are to be sent there.
    here = [m.pod for uid, m in home.items() if uid in known or uid in found or m.pod in rest]
    attempt = max(mark.attempt, *(of_pod(pod).number for pod in here), 0)
    if attempt == mark.attempt and not found and not rest:
        return
    for pod in (pod for pod in came if pod.uid in found):
        over, seats[found[pod.uid]] = [*over, seats[found[pod.uid]]], (pod.uid, pod.ref)
    # Also those that have ended or gone, as the job was theirs; a workload that goes on for ever must not fill it.
    named = (*seats, *((pod.uid, pod.ref) for pod in rest), *over[-KEPT * len(here) :])
    uids, refs = tuple(uid for uid, _ in named), tuple(ref for _, ref in named)
    yield AdoptJob(id=record.id, mark=replace(mark, attempt=attempt, uids=uids, pods=refs))


def _heirs(
    facts: Facts,
    record: JobRecord,
    home: Mapping[Uid, Member],
    seats: Sequence[tuple[Uid, str]],
    came: Sequence[Pod],
) -> tuple[dict[Uid, int], set[Uid]]:
    """Of those that came the place of each that gets one, and who waits for one."""
    sizes = record.mark.sizes if record.mark is not None else ()
    size_at = [size for size, part in zip(sizes, record.parts, strict=False) for _ in range(part.tasks or 0)]
    spec = facts.spec
    size_of = {uid: one.size for one in (spec, *spec.others) for uid in one.pods} if spec is not None else {}
    only = spec.size if spec is not None else ""
    # Of a Job whoever comes for nobody in particular comes for a pod that ended well; of a PodGroup nobody does.
    last = facts.group.gang is not None and facts.group.gang.at_least
    succeeded = {m.pod.uid for m in facts.members if m.pod.phase == "Succeeded"}
    lost = [at for at, (uid, _) in enumerate(seats) if uid not in home]
    return heirs(
        [ref for _, ref in seats],
        sorted(lost, key=lambda at: (seats[at][0] in succeeded) is last),
        {at for at, (uid, _) in enumerate(seats) if uid in home and not _lives(home[uid])},
        sorted(came, key=lambda pod: (not pod.node, rank(pod))),
        lambda pod, at: not size_at or size_at[at : at + 1] == [size_of.get(pod.uid, only)],
    )


def seated(facts: Facts, record: JobRecord) -> Facts:
    """The same facts about those alone that have a place in the job, by its mark."""
    group, named = facts.group, set(record.mark.uids) if record.mark is not None else ()
    pods = [m.pod for m in at_home(facts) if m.pod.uid in named]
    return replace(facts, group=build(group.key, pods, group.workload, group.owners, group.gang))


def half_started(facts: Facts, running: Sequence[Member], record: JobRecord) -> list[Pod]:
    """Those of the first hour without a node, beside whom others have held theirs for longer than gang-timeout."""
    gang = facts.group.gang
    if gang is None or not is_granted(record.states) or facts.granted_age <= gang.timeout:
        return []
    first = min((m.pod.bound_at for m in running if m.pod.bound_at), default=0.0)
    return [pod for pod in unbound(running) if pod.created <= first]  # whoever came for a lost one came later


def bereft(facts: Facts, running: Sequence[Member], record: JobRecord) -> Verdict | None:
    """on-member-failure: restart-gang: one is lost, so all begin anew."""
    gang = facts.group.gang
    if gang is None or not gang.restart:
        return None
    lost = next((m.pod for m in facts.members if _lost(m)), None)
    if lost is None or all(m.pod.deleted for m in running):
        return None
    return Verdict(
        Reason.MEMBER_LOST, f"pod {lost.ref} of the gang was lost; its others are restarted with it"
    )


def _lost(member: Member) -> bool:
    """Without having succeeded."""
    gone = not member.exists or bool(member.pod.deleted) or member.pod.ended
    return gone and member.pod.phase != "Succeeded"
