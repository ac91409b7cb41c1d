"""A group with a job and without nodes under its pods: queued, granted, or a grant that no longer holds.

The way of a granted pod is three writes: nominate (with the condition), then label + annotations + gate in one, then
the binding by kube-scheduler. A pod that is un-gated already gets its label before the nomination, as every update
wakes kube-scheduler.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from bridge.core import environment, gangs, held
from bridge.core.attempt import Attempt, of_pod
from bridge.core.conditions import job_condition, unbound_because, worth_writing
from bridge.core.ends import end_pods
from bridge.core.facts import PATIENCE, Facts, Member
from bridge.core.fit import crowded, unfit
from bridge.core.grouping.gangs import generation_of
from bridge.core.ledger import Busy, started
from bridge.core.limits import spent, told, too_long, user_end
from bridge.core.model import Condition, JobRecord, KubeNode, Pod, SlurmNode, is_ended, is_granted
from bridge.core.placement import PlacementError, Slot, cramped, of_record, place, shortfall
from bridge.core.steps import (
    Decision,
    EndJob,
    Forsake,
    Nominate,
    Notify,
    Release,
    SetConditions,
    Step,
    UpdateExclusions,
)
from bridge.core.verdict import Reason, Verdict
from bridge.errors import ProtocolError
from bridge.names import (
    GANG_ANNOTATION,
    GPUS_ANNOTATION,
    JOB_ID_LABEL,
    NODE_ANNOTATION,
    SCHEDULING_GATE,
)

SILENCE = 10.0  # times bindTimeout that a grant waits for a kube-scheduler that says nothing
NOMINATE_AGAIN = 2.0  # seconds between looks at a pod that is un-gated and not yet bound
BARRED_AGAIN = 30.0  # seconds between looks at one that can't go to its place: gang-timeout may be over


def queued(facts: Facts, pods: Sequence[Pod], record: JobRecord) -> Decision:
    """Slurm has the job and has not started it: say what Slurm says."""
    if too_long(facts, record):
        return _shorten(facts, pods, record)
    shown = job_condition(record, facts.now, note=facts.fit.hopeless or told(facts, record))
    steps = tuple(
        SetConditions(pod=pod, conditions=(shown,)) for pod in pods if worth_writing(pod, shown, facts.now)
    )
    if not record.reason:  # known from our own submit only: nothing to tell yet
        return Decision(verdict=Verdict(Reason.QUEUED, shown.message))
    return Decision(
        verdict=Verdict(Reason.QUEUED, shown.message), steps=(*_exclusions(facts, record), *steps)
    )


def _shorten(facts: Facts, pods: Sequence[Pod], record: JobRecord) -> Decision:
    """Asked for again without what was put on top of the user's limit.

    An update of this job would be an administrator's word: it frees a job from its QOS's limit (measured with 26.05).
    """
    following = replace(facts.attempt.next(now=facts.now), bare=True)
    why = f"job {record.id} is too long with grace and margin on top ({record.reason}); one without them follows"
    steps: list[Step] = [Forsake(pod=pod, attempt=following) for pod in pods]
    steps.append(EndJob(id=record.id, wait_status=None, why=why))
    return Decision(verdict=Verdict(Reason.READY, why), steps=tuple(steps), again=1.0)


def _exclusions(facts: Facts, record: JobRecord) -> tuple[Step, ...]:
    """A node that could not take the pod when the job was submitted may take it now, and the other way round.

    A job that may run nowhere loses its priority in Slurm (BadConstraints, measured with 26.05): then the old list
    stands, and a grant is given back.
    """
    if facts.fit.hopeless or facts.spec is None:
        return ()
    asked = of_record(facts.spec, record)
    outdated = {
        part.id: own.excluded_nodes for part, own in asked if set(own.excluded_nodes) != set(part.excluded)
    }
    return (UpdateExclusions(id=record.id, excluded=outdated),) if outdated else ()


def granted(facts: Facts, pods: Sequence[Pod], record: JobRecord) -> Decision:
    """Slurm runs the job: send each pod to its node, or give the grant back."""
    if record.preempted:
        return lose(facts, pods, record, f"job {record.id} is being preempted by a job of higher priority")
    try:
        slots = place(facts.group, record, lambda name: _twin(facts, name), facts.spec)
        lacks = shortfall(facts.spec, record) if facts.spec is not None else ""
    except PlacementError as error:
        return lose(facts, pods, record, str(error), refused=record.nodes)
    except ProtocolError as error:  # we can't tell which devices these are: a person must look
        shown = job_condition(record, facts.now, note=str(error))
        explain = [pod for pod in pods if worth_writing(pod, shown, facts.now)]
        return Decision(
            verdict=Verdict(Reason.REFUSED, str(error)),
            steps=tuple(SetConditions(pod=pod, conditions=(shown,)) for pod in explain),
            again=30.0,
        )
    if lacks:
        return lose(facts, pods, record, f"job {record.id} was changed in Slurm and has only {lacks}")
    unusable = unfit(facts.fit, record)
    if unusable:  # kube-scheduler would find out, and take longer
        text = "; ".join(f"node {name} {why}" for name, why in unusable.items())
        return lose(facts, pods, record, text, closed=tuple(unusable))
    if full := _crowded(facts, record, slots):
        text = "; ".join(f"node {name} {why}" for name, why in full.items())
        return lose(facts, pods, record, text, refused=tuple(full))
    if facts.catching_up and any(slot.gpus for slot in slots):
        text = f"job {record.id} is granted; reading whose containers may be left on its nodes"
        return Decision(verdict=Verdict(Reason.STALE, text), again=0.2)
    if (busy := facts.busy.get(record.id)) is not None:
        return _devices_busy(facts, pods, record, busy)
    known = any(pod.labels.get(JOB_ID_LABEL) == str(record.id) for pod in pods)
    if not known and (why := spent(facts, record)):
        return lose(facts, pods, record, why)
    if facts.stuck:
        return lose(facts, pods, record, facts.stuck)
    if (other := held.disputed(facts, pods, record)) is not None:
        text = f"job {record.id} is granted, and the pod names job {other}: that is read first"
        return Decision(verdict=Verdict(Reason.STALE, text), reads=(other,), again=held.LOOK)
    on_the_way = all(SCHEDULING_GATE not in pod.gates for pod in pods)
    if on_the_way and facts.granted_age > facts.limits.bind_timeout:
        places, said = ",".join(record.nodes), next(filter(None, map(unbound_because, pods)), "")
        if not said:
            return _unheard(facts, pods, record, places)
        text = f"not bound {facts.limits.bind_timeout:.0f} s after job {record.id} got {places}"
        return lose(facts, pods, record, f"{text}; kube-scheduler says: {said}", refused=record.nodes)
    by_uid = {slot.pod: slot for slot in slots}
    steps: list[Step] = list(_told(facts, pods, record)) if facts.barred else []
    held_back = False
    for pod in pods:
        slot = by_uid[pod.uid]
        gated = SCHEDULING_GATE in pod.gates
        if gated and not facts.room:
            held_back = True
            continue
        steps += _hand_over(facts, pod, slot, record, gated=gated)
    reason, text = Reason.GRANTED, f"job {record.id} holds {','.join(record.nodes)}; the pod is being bound"
    if held_back:
        reason, text = Reason.THROTTLED, f"job {record.id} is granted; enough pods are on their way already"
    again = 0.2 if held_back else NOMINATE_AGAIN
    return Decision(verdict=Verdict(reason, text), steps=tuple(steps), again=again)


def _unheard(facts: Facts, pods: Sequence[Pod], record: JobRecord, places: str) -> Decision:
    """kube-scheduler has not looked at the pods: it is away, as in a roll-out, and no node is to blame."""
    text = (
        f"job {record.id} holds {places}, and kube-scheduler has not looked at the pod since: is it running?"
    )
    if facts.granted_age > SILENCE * facts.limits.bind_timeout:
        return lose(facts, pods, record, text)
    shown = job_condition(None, facts.now, refused=text, reason=Reason.GRANTED)
    told = [pod for pod in pods if worth_writing(pod, shown, facts.now)]
    steps = tuple(SetConditions(pod=pod, conditions=(shown,)) for pod in told)
    return Decision(verdict=Verdict(Reason.GRANTED, text), steps=steps, again=NOMINATE_AGAIN)


def _crowded(facts: Facts, record: JobRecord, slots: Sequence[Slot]) -> dict[SlurmNode, str]:
    """Nodes where not all of the pods would start that are to go there: each by itself might."""
    members = {pod.uid: pod for pod in facts.group.pods}
    there: dict[KubeNode, list[Pod]] = {}
    for slot in slots:
        there.setdefault(slot.node, []).append(members[slot.pod])
    found: dict[SlurmNode, str] = {}
    for name in record.nodes:
        node, taken = facts.nodes.get(name), facts.beside.get(name)
        if node is not None and taken is not None and len(pods := there.get(node.name, [])) > 1:
            found[name] = crowded(pods, node, taken)
    return {name: why for name, why in found.items() if why}


def joining(facts: Facts, running: Sequence[Member], record: JobRecord) -> Decision | None:
    """Members without a node, of a gang of which others run: each goes to its place in the job."""
    pods = gangs.unbound(running)
    if facts.group.gang is None or not pods or record.preempted or is_ended(record.states):
        return None
    if not is_granted(record.states):
        text = f"job {record.id}, which has the pod's place, is {'+'.join(sorted(record.states))}"
        return gangs.told(facts, pods, Verdict(Reason.GATHERING, text))
    if any(record.gres) and (wait := gangs.haunted(facts)) > 0:
        text = f"containers of pods that went while no bridge ran may live on nodes of job {record.id}"
        return gangs.told(facts, pods, Verdict(Reason.GATHERING, text), again=wait)
    if any(gangs.roll(facts, record)):
        text = f"job {record.id} is told which pod came for a lost one"
        return Decision(verdict=Verdict(Reason.GRANTED, text), again=NOMINATE_AGAIN)
    named = record.mark.uids if record.mark is not None else ()
    waiting = [pod for pod in pods if pod.uid not in named]
    text = f"job {record.id}: has no place for it yet; containers of lost ones may live"
    waits = gangs.told(facts, waiting, Verdict(Reason.GATHERING, text), again=NOMINATE_AGAIN)
    pods = [pod for pod in pods if pod.uid in named]
    if not pods:
        return waits
    if facts.spec is not None and (less := cramped(facts.spec, record)):
        text = f"job {record.id} has only {less}: too little for who came for a lost one"
        return gangs.told(facts, pods, Verdict(Reason.GATHERING, text), again=NOMINATE_AGAIN)
    try:
        group = gangs.seated(facts, record).group
        slots = {slot.pod: slot for slot in place(group, record, lambda n: _twin(facts, n), facts.spec)}
    except (PlacementError, ProtocolError) as error:
        return gangs.told(facts, pods, Verdict(Reason.GATHERING, str(error)), again=NOMINATE_AGAIN)
    if (busy := facts.busy.get(record.id)) is not None:
        return gangs.told(facts, pods, Verdict(Reason.DEVICES_BUSY, busy.text), again=NOMINATE_AGAIN)
    shut = {_twin(facts, name): why for name, why in unfit(facts.fit, record).items()}
    unusable = [(node, why) for pod in pods if (why := shut.get(node := slots[pod.uid].node, ""))]
    if unusable:
        text = "; ".join(f"node {node} of job {record.id} {why}" for node, why in unusable)
        return gangs.told(facts, pods, Verdict(Reason.GATHERING, text), again=BARRED_AGAIN)
    steps = [*waits.steps, *(_told(facts, pods, record) if facts.barred else ())]
    for pod in pods:
        gated = SCHEDULING_GATE in pod.gates
        if facts.room or not gated:
            steps += _hand_over(facts, pod, slots[pod.uid], record, gated=gated)
    text = f"job {record.id} holds {','.join(record.nodes)}; {len(pods)} of its pods are being bound"
    return Decision(verdict=Verdict(Reason.GRANTED, text), steps=tuple(steps), again=NOMINATE_AGAIN)


def _told(facts: Facts, pods: Sequence[Pod], record: JobRecord) -> Iterator[Step]:
    shown = job_condition(record, facts.now, note=facts.barred)
    for pod in pods:
        if worth_writing(pod, shown, facts.now):
            yield SetConditions(pod=pod, conditions=(shown,))


def _devices_busy(facts: Facts, pods: Sequence[Pod], record: JobRecord, busy: Busy) -> Decision:
    """What Slurm ends is free in Slurm at once, while the containers have their grace (docs/handover.md)."""
    end = user_end(facts, record)
    held_by = {claim.holder.node for claim in busy.claims}
    taken = [name for name in record.nodes if _twin(facts, name) in held_by]
    if busy.overdue or (end is not None and facts.slurm_now >= end):  # the pod would start only to be ended
        return lose(facts, pods, record, f"after {busy.waited:.0f} s {busy.text}", refused=taken)
    if busy.homeless:
        why = f"Slurm has lost the job of a pod that runs there, which gets its place back: {busy.text}"
        return lose(facts, pods, record, why, refused=taken)
    shown = job_condition(record, facts.now, note=busy.text)
    steps = tuple(SetConditions(pod=pod, conditions=(shown,)) for pod in pods if _news(facts, pod, shown))
    return Decision(verdict=Verdict(Reason.DEVICES_BUSY, busy.text), steps=steps, again=1.0)


def _news(facts: Facts, pod: Pod, shown: Condition) -> bool:
    """That the job has started is told at once."""
    present = pod.condition(shown.type)
    started = present is not None and present.status != shown.status
    return started or worth_writing(pod, shown, facts.now)


def _hand_over(facts: Facts, pod: Pod, slot: Slot, record: JobRecord, *, gated: bool) -> list[Step]:
    gang = generation_of(facts.group.key)
    variables = environment.of_pod(facts.group, pod, slot, record)
    release = Release(
        pod=pod,
        job=record.id,
        node=slot.node,
        gpus=slot.gpus,
        started=int(record.started),
        gang=gang,
        environment=variables,
    )
    released = (
        not gated
        and pod.labels.get(JOB_ID_LABEL) == str(record.id)
        and pod.annotations.get(NODE_ANNOTATION) == slot.node
        and pod.annotations.get(GPUS_ANNOTATION, "") == slot.gpus
        and started(pod) >= release.started
        and (not gang or pod.annotations.get(GANG_ANNOTATION) == gang)
        and variables.items() <= pod.annotations.items()
    )
    shown = _on_its_way(facts, pod, slot.node, record)
    nominate = Nominate(pod=pod, node=slot.node, conditions=(shown,))
    nominated = pod.nominated == slot.node
    if gated:
        return [release] if nominated else [nominate, release]
    steps: list[Step] = [] if released else [release]
    if shown.reason == Reason.GRANTED:
        # A refusal takes the nomination back, and the next one would wake kube-scheduler only to refuse again.
        # One that believes to lead and sees something else may just have written that.
        present = pod.condition(shown.type)
        young = present is not None and 0 <= facts.now - present.probed < PATIENCE
        tell = not young and _news(facts, pod, shown)
        return [*steps, SetConditions(pod=pod, conditions=(shown,))] if tell else steps
    return steps if nominated else [*steps, nominate]


def _on_its_way(facts: Facts, pod: Pod, node: KubeNode, record: JobRecord) -> Condition:
    """Whoever is not bound after a while says why."""
    said = unbound_because(pod) if facts.granted_age > PATIENCE else ""
    if not said:
        return job_condition(record, facts.now, note=told(facts, record))
    text = f"job {record.id} holds node {node}, and the pod is not bound there: kube-scheduler says: {said}"
    return job_condition(None, facts.now, refused=text, reason=Reason.GRANTED)


def _twin(facts: Facts, name: SlurmNode) -> KubeNode | None:
    node = facts.nodes.get(name)
    return node.name if node else None


def lose(
    facts: Facts,
    pods: Sequence[Pod],
    record: JobRecord,
    why: str,
    *,
    refused: Sequence[SlurmNode] = (),
    closed: Sequence[SlurmNode] = (),
) -> Decision:
    """Write the next attempt first: a cancelled job must never look like a person's cancel of the current attempt."""
    following = facts.attempt.next(refused=refused, closed=closed, now=facts.now)
    verdict = Verdict(Reason.LOST_GRANT, why)
    steps = list(_forsaken(facts, pods, following, verdict))
    sight = facts.sights.get(record.id)
    if sight is not None and sight.live:
        steps.append(EndJob(id=record.id, wait_status=None, why=f"grant given back: {why}"))
    steps += [Notify(pod=pod, verdict=verdict) for pod in pods]
    return Decision(verdict=verdict, steps=tuple(steps), again=1.0)


def _forsaken(facts: Facts, pods: Sequence[Pod], following: Attempt, verdict: Verdict) -> Iterator[Step]:
    text = f"grant given back: {verdict.text}"
    for pod in pods:
        shown = job_condition(None, facts.now, refused=text, reason=verdict.reason)
        yield Forsake(pod=pod, attempt=following)
        yield Nominate(pod=pod, node=KubeNode(""), conditions=(shown,))


def begin_anew(facts: Facts, running: Sequence[Member], record: JobRecord, late: Sequence[Pod]) -> Decision:
    """Half a gang runs, and `late` get no node: for those it is a lost grant, and their next job avoids the nodes that
    did not take them. First, as those that run take what they know with them."""
    said = next(filter(None, map(unbound_because, late)), "")
    within = facts.group.gang.timeout if facts.group.gang is not None else 0
    text = f"pod {late[0].ref} got no node within {within} s of job {record.id}"
    text += f" (kube-scheduler says: {said})" if said else ""
    verdict = Verdict(Reason.LOST_GRANT, f"{text}; its gang begins anew")
    tried = record.mark.attempt if record.mark is not None else facts.attempt.number
    waits = [pod for pod in late if of_pod(pod).number <= tried]
    sent = {
        pod.annotations.get(NODE_ANNOTATION)
        for pod in waits
        if pod.labels.get(JOB_ID_LABEL) == str(record.id)
    }
    taught = [name for name in record.nodes if _twin(facts, name) in sent]
    shut = unfit(facts.fit, record)
    closed = [name for name in taught if name in shut]
    refused = [name for name in taught if name not in shut]
    following = facts.attempt.next(refused=refused, closed=closed, now=facts.now)
    ends = end_pods(facts, running, record, verdict)
    notes = (Notify(pod=pod, verdict=verdict) for pod in waits)
    return replace(ends, steps=(*_forsaken(facts, waits, following, verdict), *notes, *ends.steps))
