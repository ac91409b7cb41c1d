"""The life of a group: facts in, one decision out.

decide(facts) classifies by ordered early returns and never stores a phase, so it can't disagree with the cluster:

    a job of the Go project's → takeover    made ours before anything else
    nobody left to run → wind_down     finish or cancel the job once the containers are known dead
    a pod sits on a node → placed      watch its job; delete the pod only on the job's own record
    otherwise → waiting                submit, wait for the grant, hand the pods to kube-scheduler

What must stay true: invariants 1–4 and 8 of docs/design.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bridge.core import attempt as attempts
from bridge.core import changed, gangs, held, takeover
from bridge.core.conditions import job_condition, waiting_job, worth_writing
from bridge.core.ends import END_TEXT, Exit, drains, end_doubles, end_pods, exit_of, recalled, taken_away
from bridge.core.facts import PATIENCE, Facts, Member, Sight
from bridge.core.ghosts import at_peace, at_rest
from bridge.core.grouping.ranks import last
from bridge.core.model import JobId, JobRecord, Pod, is_granted, torn
from bridge.core.placed import placed
from bridge.core.steps import (
    Decision,
    EndJob,
    Forsake,
    Notify,
    SetConditions,
    Step,
    SubmitJob,
)
from bridge.core.verdict import Reason, Verdict
from bridge.core.waiting import granted, lose, queued
from bridge.names import JOB_CONDITION, NODE_ANNOTATION, SCHEDULING_GATE

UNREAD_AGAIN = 5.0  # seconds between looks for what a pod names and nobody has made; its event comes first


def decide(facts: Facts) -> Decision:
    first = takeover.due(facts)
    if first is not None:
        return first
    margin = facts.limits.death_margin
    running = [
        m
        for m in facts.members
        if m.exists and not m.pod.ended and (m.pod.node or not m.pod.deleted) and not m.stranded(margin)
    ]
    if not running:
        return wind_down(facts)
    if any(m.pod.node for m in running):
        return placed(facts, running)
    return waiting(facts, running)


# --- nobody left ----------------------------------------------------------------------------------


def wind_down(facts: Facts) -> Decision:
    """Every pod ended, went, or will never start: end what still holds nodes, containers first."""
    unread = tuple(s.id for s in facts.sights.values() if s.live and s.record is None)
    if unread:
        return Decision(verdict=Verdict(Reason.FINISHING, "reading the job before it is ended"), reads=unread)
    live = [s for s in facts.sights.values() if s.live and facts.owns(s.record)]
    if not live and not facts.slurm_fresh:
        return Decision(
            verdict=Verdict(Reason.STALE, "Slurm can't be read; a job may be left to end"), again=2.0
        )
    if not live and facts.doubted:
        text = "a submit has no answer yet: its job, should it appear, is ended"
        return Decision(
            verdict=Verdict(Reason.FINISHING, text), reads=tuple(sorted(facts.doubted)), again=1.0
        )
    if not live and facts.unknown:
        text = "looking for a job of this group among those that Slurm lists: it is ended"
        return Decision(verdict=Verdict(Reason.FINISHING, text), again=held.LOOK)
    hidden = tuple(s.id for s in facts.sights.values() if facts.hidden(s.id) and facts.lived(s.id))
    if not live and hidden:
        text = f"asking Slurm for job {hidden[0]}, which its list lacks: a list proves nothing"
        return Decision(verdict=Verdict(Reason.FINISHING, text), reads=hidden, again=1.0)
    if not live and not all(s.polled for s in facts.sights.values() if facts.owns(s.record)):
        text = "the next state poll must agree that the job has ended"
        return Decision(verdict=Verdict(Reason.FINISHING, text), again=0.5)
    if not live and (first := _left_behind(facts)) is not None:
        return first
    live = live or [s for s in facts.sights.values() if _denied(facts, s)]
    if not live:
        return takeover.farewell(facts)
    stranded, alive = _not_known_dead(facts)
    if alive:
        return _draining(facts, alive)
    ran = [m.pod for m in facts.members if m.pod.node]
    why = (
        f"pods of {facts.group.key} ended"
        if ran
        else f"pods of {facts.group.key} were deleted before they started"
    )
    counting = last(ran) if facts.group.gang is not None else ran
    how = exit_of(counting, facts.group.workload) if ran else Exit(None)
    said = how.note or next(filter(None, map(taken_away, counting)), "")
    note = "; ".join(filter(None, (facts.spec.comment if facts.spec else "", said))) if said else ""
    there = (*facts.members, *facts.ghosts)
    silent = [m for m in there if m.pod not in stranded and not m.told_dead]
    working = tuple({m.pod.node: m.node_ready_since for m in silent}.items())
    members = {m.pod.uid for m in facts.members}
    ends = (
        EndJob(
            id=s.id,
            wait_status=how.status,
            why=why,
            waits="PENDING" in (s.states or ()),
            note=note,
            mark=at_rest(s.record, members),
            working=working,
        )
        for s in live
    )
    return Decision(
        verdict=Verdict(Reason.FINISHING, why), steps=(*drains(facts, stranded, *_records(live)), *ends)
    )


def _denied(facts: Facts, sight: Sight) -> bool:
    """For all that we know it lives, and Slurm says that it has none. It is told to end all the same: should that have
    been a lie, it is known how the job ended when it is seen again. An id that somebody else may have is left alone."""
    ours = sight.id in facts.current and not facts.held and facts.group.gang is None
    return ours and facts.lived(sight.id) and facts.absent(sight.id) and sight.id in facts.denied


def _not_known_dead(facts: Facts) -> tuple[list[Pod], list[Member]]:
    """Pods whose node has been dead for too long to tell, and members whose containers may live."""
    margin, there = facts.limits.death_margin, (*facts.members, *facts.ghosts)
    stranded = [m.pod for m in there if m.stranded(margin)]
    return stranded, [m for m in there if m.pod not in stranded and not m.containers_dead(margin)]


def _draining(facts: Facts, alive: list[Member]) -> Decision:
    names = ", ".join(dict.fromkeys(m.pod.ref for m in alive))
    text = f"containers of {names} are not known dead; the job keeps their devices"
    again = min(m.dead_in(facts.limits.death_margin) for m in alive)
    return Decision(verdict=Verdict(Reason.DRAINING, text), again=again)


def _left_behind(facts: Facts) -> Decision | None:
    """Not the bridge ended the job of pods that went with their node: what they may still use is free in Slurm."""
    lost = [m.pod for m in facts.members if m.out_of_reach]
    ours = [s for s in facts.sights.values() if facts.owns(s.record)] if lost else []
    unread = tuple(s.id for s in ours if not s.read and (s.states or s.id not in facts.denied))
    if unread:
        verdict = Verdict(Reason.FINISHING, "reading how the job ended, as its pod went with its node")
        return Decision(verdict=verdict, reads=unread, again=2.0)
    steps = drains(facts, lost, *(r for r in _records(ours) if r.nodes and not at_peace(r)), needed=False)
    if not steps:
        return None
    return Decision(verdict=Verdict(Reason.FINISHING, steps[0].reason), steps=steps, again=2.0)


def _records(sights: list[Sight]) -> list[JobRecord]:
    return [s.record for s in sights if s.record is not None]


# --- waiting --------------------------------------------------------------------------------------


def waiting(facts: Facts, running: list[Member]) -> Decision:
    """No pod has a node yet."""
    pods = [m.pod for m in running]
    foreign = sorted({gate for pod in pods for gate in pod.gates if gate != SCHEDULING_GATE})
    if foreign:
        text = f"waiting for other scheduling gates: {', '.join(foreign)}"
        return _waits(facts, pods, Verdict(Reason.GATHERING, text))
    if (others := gangs.gathering(facts, pods)) is not None and not facts.unread:
        return others
    if facts.unread:
        verdict, new = Verdict(Reason.GATHERING, facts.unread), facts.known_for <= PATIENCE
        steps = () if new else _waits(facts, pods, verdict).steps
        return Decision(verdict=verdict, steps=steps, again=0.2 if new else UNREAD_AGAIN)
    if facts.refusal is not None:
        return changed.impossible(facts, pods) or _refused(
            facts, pods, facts.refusal.text, facts.refusal.retry_in
        )
    if not facts.slurm_fresh:
        return _unavailable(facts, pods)
    unread = [s for s in facts.sights.values() if s.states is not None and s.record is None]
    urgent = tuple(s.id for s in unread if not (s.id in facts.current and "PENDING" in (s.states or ())))
    if urgent:
        return Decision(verdict=Verdict(Reason.READY, "reading jobs that may be this group's"), reads=urgent)
    if unread:  # after a restart: it waits, whatever else the watcher will read of it
        return Decision(verdict=Verdict(Reason.QUEUED, f"job {unread[0].id} is PENDING"))
    if why := gangs.broken(facts, running):
        return _taken_back(facts, pods, why)
    if facts.rivals:
        text = f"ending job {min(facts.rivals)}, which was for another set of these pods"
        return Decision(verdict=Verdict(Reason.READY, text), steps=gangs.rivals(facts), again=1.0)
    earlier = [
        s for s in facts.sights.values() if s.live and s.id not in facts.current and facts.owns(s.record)
    ]
    if earlier:
        why = f"its grant was given up; attempt {facts.attempt.number} follows"
        among = pods if facts.group.gang is not None else []
        behind = [pod for pod in among if attempts.of_pod(pod).number < facts.attempt.number]
        return Decision(
            verdict=Verdict(Reason.LOST_GRANT, why),
            steps=(
                *(Forsake(pod=pod, attempt=facts.attempt) for pod in behind),
                *(EndJob(id=s.id, wait_status=None, why=why) for s in earlier),
            ),
        )
    current = [s for s in facts.sights.values() if s.id in facts.current and s.states is not None]
    mine = [s for s in current if facts.owns(s.record) and not s.never_ran]
    if not facts.steady:  # what was granted may be undone by now, and another leader may know
        return _unavailable(facts, pods)
    if not mine:
        labelled = [job for pod in pods if (job := takeover.label_of(pod)) is not None]
        asked = (*facts.sights, *labelled, *_former(facts))
        hidden = tuple(job for job in dict.fromkeys(asked) if facts.hidden(job))
        if hidden:
            text = f"asking Slurm for job {hidden[0]}, which its list lacks"
            return Decision(verdict=Verdict(Reason.READY, text), reads=hidden, again=1.0)
        handed_over = (takeover.label_of(pod) for pod in pods if pod.annotations.get(NODE_ANNOTATION))
        vanished = next((job for job in handed_over if job in facts.current and facts.absent(job)), None)
        if vanished is not None:  # a pod that is bound by now, unseen, refuses that its grant is given up
            gone = JobRecord(id=vanished, states=frozenset())
            return lose(facts, pods, gone, f"job {vanished} vanished from Slurm before the pod was bound")
        return gangs.left_behind(facts, pods) or _forgotten(facts, pods) or _submit(facts, pods)
    holder = min(mine, key=lambda sight: sight.rank)
    if (again := takeover.marked_again(facts, holder)) is not None:
        return again
    doubles = end_doubles(facts, holder)
    if (first := held.onward(facts, pods, holder, doubles)) is not None:
        return first
    if doubles:
        return Decision(verdict=Verdict(Reason.QUEUED, "ending a second job of this group"), steps=doubles)
    record = holder.read
    if record is None:
        return Decision(verdict=Verdict(Reason.QUEUED, f"reading job {holder.id}"), reads=(holder.id,))
    if not holder.live or torn(record.states):
        return _ended_before_bound(facts, pods, record)
    if (given_up := changed.overtaken(facts, pods, record)) is not None:
        return given_up
    if is_granted(record.states) and not record.nodes:  # our own immediate allocation, not read yet
        return Decision(verdict=Verdict(Reason.QUEUED, f"reading job {holder.id}"), reads=(holder.id,))
    if is_granted(record.states):
        return granted(facts, pods, record)
    return queued(facts, pods, record)


def _taken_back(facts: Facts, pods: list[Pod], why: str) -> Decision:
    """The jobs of a gang that has lost a member; where its pods are on their way, none is bound any more first."""
    live = [s for s in facts.sights.values() if s.live and facts.owns(s.record)]
    current = [s for s in facts.sights.values() if s.id in facts.current and not s.never_ran]
    ended = (s.read for s in current if facts.owns(s.record))
    taken = next((r for r in ended if r is not None and r.states & {"CANCELLED", "DEADLINE"}), None)
    if taken is not None and not live:
        return _ended_before_bound(facts, pods, taken)
    hidden = tuple(s.id for s in facts.sights.values() if facts.hidden(s.id) and facts.lived(s.id))
    hidden = (*hidden, *sorted(facts.doubted))
    if hidden and not live:
        return Decision(verdict=Verdict(Reason.GATHERING, why), reads=hidden, again=1.0)
    tried = max((s.record.mark.attempt for s in live if s.record and s.record.mark), default=-1)
    following = facts.attempt.afresh(now=facts.now)
    # First, as for any grant that is given up: another leader must not take this end for a person's.
    left = [p for p in pods if attempts.of_pod(p).number <= tried]
    forsaken = tuple(Forsake(pod=pod, attempt=following) for pod in left)
    stranded, alive = _not_known_dead(facts)
    if alive and live:
        return replace(_draining(facts, alive), steps=forsaken)
    known = {m.pod.uid for m in facts.members}
    ends = (EndJob(id=s.id, wait_status=None, why=why, mark=at_rest(s.record, known)) for s in live)
    steps: tuple[Step, ...] = (*forsaken, *drains(facts, stranded, *_records(live)), *ends)
    return Decision(verdict=Verdict(Reason.GATHERING, why), steps=steps, again=1.0)


def _waits(facts: Facts, pods: list[Pod], verdict: Verdict) -> Decision:
    """Nothing to do but to say why, once."""
    shown = job_condition(None, facts.now, refused=verdict.text, reason=verdict.reason)
    told = [pod for pod in pods if worth_writing(pod, shown, facts.now)]
    return Decision(verdict=verdict, steps=tuple(SetConditions(pod=p, conditions=(shown,)) for p in told))


def _forgotten(facts: Facts, pods: list[Pod]) -> Decision | None:
    """Their job waited in Slurm when they were last looked at, and slurmctld has none: while no bridge ran, somebody
    may have cancelled it, and that would count for its pods. Slurm's accounting knows, where there is one."""
    job = next((job for pod in pods if (job := waiting_job(pod)) in facts.current), None)
    if job is None or not facts.absent(job):
        return None
    if job in facts.recallable:
        verdict = Verdict(
            Reason.READY, f"asking Slurm's accounting how job {job} ended, which slurmctld has forgotten"
        )
        told = _waits(facts, pods, verdict).steps if facts.recallable[job] else ()
        again = 10.0 if facts.recallable[job] else 2.0
        return Decision(verdict=verdict, steps=told, recalls=(job,), again=again)
    found = recalled(facts, pods, facts.sights.get(job, Sight(id=job, states=None, record=None)))
    if found is None or not found[0].states & {"CANCELLED", "DEADLINE"}:
        return None
    return _ended_before_bound(facts, pods, found[0])


def _submit(facts: Facts, pods: list[Pod]) -> Decision:
    """No job of this attempt exists: ask for one, under an id that nobody else has."""
    if facts.fit.hopeless:
        return _refused(facts, pods, facts.fit.hopeless)
    pause = facts.attempt.wait(facts.now)
    if pause > 0:
        text = f"attempt {facts.attempt.number} is submitted in {pause:.0f} s"
        return Decision(verdict=Verdict(Reason.READY, text), again=pause)
    # Nodes that were only closed are not held against the pod.
    if facts.attempt.lost - len(facts.attempt.closed) > facts.limits.max_attempts:
        return _refused(
            facts, pods, f"gave up after {facts.attempt.lost} lost grants; delete the pod to start over"
        )
    if facts.unseen:
        text = f"looking for a job of this gang among {len(facts.unseen)} that have not been read yet"
        return Decision(
            verdict=Verdict(Reason.READY, text), reads=facts.unseen[: gangs.READ_AT_ONCE], again=0.5
        )
    assert facts.spec is not None, "a group without a refusal has a spec"
    told = _waits(facts, pods, Verdict(Reason.UNAVAILABLE, facts.trouble)).steps if facts.trouble else ()
    if facts.held:
        return held.submit(facts, facts.spec, told)
    job = _next_id(facts)
    if job is None:
        text = "every job id of this group is taken by a job that Slurm still remembers; asked again when it forgets"
        return _refused(facts, pods, text, again=60.0)
    immediate = job == facts.fast_id and facts.fast_allowed
    text = f"asking for job {job} now" if immediate else f"submitting job {job}"
    step = SubmitJob(id=job, spec=facts.spec, immediate=immediate)
    return Decision(verdict=Verdict(Reason.READY, text), steps=(*told, step))


def _former(facts: Facts) -> Iterator[JobId]:
    """Ids that the attempt before may have a job under, as far as it can have come: it asks for one after the other."""
    for job in facts.former:
        yield job
        sight = facts.sights.get(job)
        taken = sight is not None and sight.record is not None and not facts.owns(sight.record)
        if not taken and (sight is None or not sight.never_ran):
            return


def _next_id(facts: Facts) -> JobId | None:
    """Once asked for, the same id, until Slurm lists it as ended: that a list lacks it proves nothing, and only the
    same id is refused if the job is there all the same. Else the first, whatever way it is asked for: two bridges that
    both believe to lead, and see different things, must ask for one id."""
    ids = [job for job in (facts.fast_id, *facts.probes) if job is not None]
    free = [job for job in ids if (s := facts.sights.get(job)) is None or s.states is None]
    asked = (job for job in free if job in facts.doubted or facts.lived(job))
    return next(asked, next(iter(free), None))


def _unavailable(facts: Facts, pods: list[Pod]) -> Decision:
    """A pod that says nothing yet says this; one that shows what Slurm last said keeps it."""
    verdict = Verdict(Reason.UNAVAILABLE, "Slurm does not answer; the pod waits")
    shown = job_condition(None, facts.now, refused=verdict.text, reason=verdict.reason)
    waited = min(facts.poll_age, facts.known_for)  # a process that has just started has not asked yet
    silent = [pod for pod in pods if pod.condition(JOB_CONDITION) is None and waited > PATIENCE]
    steps = tuple(SetConditions(pod=pod, conditions=(shown,)) for pod in silent)
    return Decision(verdict=verdict, steps=steps, again=1.0)


def _refused(facts: Facts, pods: list[Pod], text: str, again: float | None = None) -> Decision:
    """Nothing will happen by itself: the pod says so, and what would help."""
    verdict = Verdict(Reason.REFUSED, text)
    steps: list[Step] = []
    for pod in pods:
        shown = job_condition(None, facts.now, refused=text)
        if worth_writing(pod, shown, facts.now):
            steps += [SetConditions(pod=pod, conditions=(shown,)), Notify(pod=pod, verdict=verdict)]
    return Decision(verdict=verdict, steps=tuple(steps), again=again)


def _ended_before_bound(facts: Facts, pods: list[Pod], record: JobRecord) -> Decision:
    """Cancelled by a person, or too late by the user's own word: the pod goes too. Anything else is asked for again."""
    members = [m for m in facts.members if m.pod in pods]
    ends = record.states | torn(record.states)
    ours = record.mark is not None and record.mark.over
    if "CANCELLED" in ends and "REVOKED" not in ends and not ours:
        text = f"job {record.id} was cancelled in Slurm before the pod started; the pod is deleted with it"
        return end_pods(facts, members, record, Verdict(Reason.CANCELLED, text))
    if "DEADLINE" in ends:  # another job would be as late
        text = f"job {record.id} could no longer end before its deadline; the pod, not started, is deleted with it"
        return end_pods(facts, members, record, Verdict(Reason.JOB_ENDED, text))
    return lose(facts, pods, record, END_TEXT.format(job=record.id, state="+".join(sorted(record.states))))
