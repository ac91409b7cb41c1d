"""A pod whose job vanished from Slurm: its place is claimed again, before anything else happens to it.

The claim asks for exactly the pod's nodes, at once or not at all, ahead of whatever waits. It reuses the vanished job's
id where we chose it: should that job exist after all, Slurm itself refuses a second one, so there are never two. Only
when Slurm says several times that others hold the nodes is the pod ended; any other answer leaves it where it is.
Where Slurm numbers our jobs, or another pod of ours waits for the place, the claim goes through the queue, ahead of
everybody, and has a minute to start.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from bridge.core import devices, gangs, held
from bridge.core.attempt import of_pod
from bridge.core.conditions import job_condition, worth_writing
from bridge.core.ends import drains, end_doubles, end_pods, evidence, recalled, restarted
from bridge.core.facts import ClaimRefused, Facts, Member, Sight
from bridge.core.ledger import holding, started
from bridge.core.limits import rest, resumed
from bridge.core.model import JobId, JobRecord, JobSpec, KubeNode, Mark, Pod, SlurmNode, Uid
from bridge.core.steps import Decision, DrainNode, EndJob, SetConditions, Step, SubmitJob
from bridge.core.verdict import Reason, Verdict
from bridge.errors import ProtocolError
from bridge.names import DRAIN_PREFIX, NODE_ANNOTATION

PAUSE, LONGEST = 15.0, 120.0  # seconds between two claims; longer each time, but where the next may decide
FRESH = 60.0  # seconds: an older refusal says nothing of today
REFUSALS = 3  # answers "others hold it", one after the other, that cost a pod its place
CLOCK_SKEW = 2.0  # seconds: with another annotation on top a drain is all that it may cost
SETTLED = 20.0  # seconds in which others on that node may get their places back: not on a drained one
NOTHING = Sight(id=JobId(0), states=None, record=None)


def claim(facts: Facts, running: list[Member], sight: Sight) -> Decision:
    """`sight`: the job that the pods are labelled with, and that Slurm does not have."""
    if all(member.pod.deleted for member in running):
        text = f"job {sight.id} is no longer in Slurm, and the pod is being deleted: its place is not asked for again"
        away = [m.pod for m in running if m.out_of_reach]
        known = [r for r in (sight.record,) if r is not None and facts.owns(r)]
        if away and known and sight.states is None and sight.id not in facts.denied:
            return Decision(verdict=Verdict(Reason.DRAINING, text), reads=(sight.id,), again=2.0)
        return Decision(
            verdict=Verdict(Reason.DRAINING, text), steps=drains(facts, away, *known, needed=False)
        )
    text = f"job {sight.id} is no longer in Slurm; the pod is kept and its place asked for again"
    absent = Verdict(Reason.JOB_ABSENT, text)
    unasked = (sight.id,) if sight.id in facts.recallable and sight.id not in facts.doubted else ()
    if sight.states is None and sight.id not in facts.denied and sight.id not in facts.doubted:
        return Decision(verdict=absent, reads=(sight.id,), recalls=unasked, again=2.0)
    if (end := recalled(facts, [m.pod for m in running], sight)) is not None:
        return end_pods(facts, running, *end)
    if unasked:
        return _unheard(facts, running, sight.id)
    left = rest(facts, facts.ran or sight.record)
    certain = sight.states is None or facts.claim_refused is not None
    if left is not None and left <= 0 and certain and not facts.boot_grace:
        over = f"job {sight.id} is no longer in Slurm, and the time limit of the pod is over"
        return end_pods(facts, running, _gone(sight), Verdict(Reason.TIME_LIMIT, over))
    refused = facts.claim_refused
    if refused is not None:
        text += f"; Slurm says: {refused.text}"
    verdict = Verdict(Reason.JOB_ABSENT, text)
    told = () if facts.boot_grace and refused is None else _tell(facts, running, text)
    fresh = refused is not None and refused.age < FRESH
    settled = not (facts.boot_grace or facts.wanted)
    late = gangs.unbound(running)  # the first answer was about their places, too
    if refused is not None and refused.taken >= REFUSALS + bool(late) and fresh and settled:
        lost = f"job {sight.id} vanished from Slurm, and others hold its place now: {refused.text}"
        return end_pods(facts, running, _gone(sight), Verdict(Reason.JOB_ENDED, lost))
    if refused is not None and refused.age < (pause := _pause(facts, refused)):
        return Decision(verdict=verdict, steps=told, again=pause - refused.age)
    unread = tuple(
        s.id for s in facts.sights.values() if s.id in facts.current and s.live and s.record is None
    )
    if unread:  # another leader may have claimed the place already
        return Decision(verdict=verdict, steps=told, reads=unread, again=2.0)
    # An earlier attempt's job that came back to life holds what the pod doesn't use: it goes when this place is back.
    mine = (s for s in facts.sights.values() if s.id in facts.current or refused is not None)
    under_way = [s for s in mine if s.live and facts.owns(s.record)]
    if under_way:
        best = min(under_way, key=lambda one: one.rank)
        first = held.onward(facts, [m.pod for m in running], best, end_doubles(facts, best, idle=True))
        if first is not None:
            return first
        claimed = best.read if best.polled and best.read is not None and best.read.claims else None
        if claimed is not None and (waits := evidence(facts, claimed, ())) is not None:
            return end_pods(facts, running, claimed, waits)
        astray = tuple(
            EndJob(id=s.id, wait_status=None, why="it holds nodes where none of its pods is")
            for s in under_way
            if s.read is not None and s.read.nodes and all(name in facts.nodes for name in s.read.nodes)
        )
        return Decision(verdict=verdict, steps=astray, reads=tuple(s.id for s in under_way), again=2.0)
    nodes = _nodes_of(facts, running)
    pods = [pod for pod, _ in _seats(facts, running)]
    asks = _without(facts.spec, {m.pod.uid for m in running}.difference(pod.uid for pod in pods))
    wanted = None if asks is None else _claimed(asks, facts.ran or sight.record, pods, nodes)
    if facts.held and wanted is not None and nodes:
        asked = held.submit(facts, resumed(wanted, left), told)
        return replace(asked, verdict=verdict)
    job = _free_id(facts, sight)
    if wanted is None or not nodes or job is None:
        return Decision(verdict=verdict, steps=told, again=PAUSE)
    spec = resumed(wanted, left)
    # What is wanted for another pod of ours is given back, and would go to whoever is first in the queue.
    step = SubmitJob(id=job, spec=spec, immediate=not (spec.user or facts.wanted or spec.others))
    return Decision(verdict=verdict, steps=(*told, step), again=2.0)


def miscounted(facts: Facts, running: list[Member], record: JobRecord) -> tuple[Step, ...]:
    """Where Slurm gave the place back with other GPUs than the pod still uses, nothing more may start on the node.

    Only of a job that began anew under its pod: for any other an annotation, which may be edited, is no ground.
    """
    steps: list[Step] = []
    if facts.slurm_now - record.started < SETTLED:
        return ()
    for name, text in zip(record.nodes, record.gres, strict=False):
        twin = facts.nodes.get(name)
        if twin is None or name in facts.drained:
            continue
        here = [m.pod for m in running if m.pod.node == twin.name and _anew(facts, record, m.pod)]
        try:
            counted = set(devices.indices(text))
        except ProtocolError:
            continue  # which devices these are can't be told
        for pod, used in ((pod, holder.gpus) for pod in here if (holder := holding(pod)) is not None):
            if used is None or used <= counted:
                continue
            told = f"pod {pod.ref} uses GPUs {devices.spell(used)}, its job {record.id} counts {devices.spell(counted)}"
            steps.append(DrainNode(node=name, reason=f"{DRAIN_PREFIX} {told}, until the pod is gone"))
    return tuple(steps[:1])


def _unheard(facts: Facts, running: list[Member], job: JobId) -> Decision:
    """Nobody is told of an answer that is on its way."""
    text = f"job {job} is no longer in Slurm; the pod is kept, and Slurm's accounting asked first how the job ended"
    if why := facts.recallable[job]:
        text += f"; the accounting has not answered: {why}"
    told = _tell(facts, running, text) if why else ()
    verdict = Verdict(Reason.JOB_ABSENT, text)
    return Decision(verdict=verdict, steps=told, recalls=(job,), again=10.0 if why else 2.0)


def _pause(facts: Facts, refused: ClaimRefused) -> float:
    """Each claim that is refused uses up an id until Slurm forgets it."""
    often = refused.taken and not facts.boot_grace
    return PAUSE if often else min(PAUSE * 2.0 ** (min(refused.times, 10) - 1), LONGEST)


def _anew(facts: Facts, record: JobRecord, pod: Pod) -> bool:
    """A claim, or a start that slurmctld had lost."""
    # slurmctld came up since the binding: a start that is later is another one, whichever boot undid the first.
    skew = 0.0 if pod.bound_at < facts.booted else CLOCK_SKEW
    mark = record.mark
    # An earlier attempt's, that a crash brought back.
    back = mark is not None and mark.attempt < of_pod(pod).number
    # Both by slurmctld's clock. Only after a boot: the annotation may be edited.
    noted = started(pod)
    again = bool(noted) and noted < int(record.started) and facts.booted >= record.submitted
    return back or again or record.claims or restarted(facts, record, pod, skew)


def pinned(spec: JobSpec, nodes: tuple[SlurmNode, ...]) -> JobSpec:
    """The same job, on exactly these nodes: of a gang one for each pod."""
    count = len(set(nodes))
    return replace(
        spec,
        tasks=len(nodes) if spec.memory_per_cpu or spec.gres_per_task or spec.tasks_per_node else spec.tasks,
        tasks_per_node=None if count < len(nodes) else spec.tasks_per_node,
        mark=replace(spec.mark, place=True),
        required_nodes=nodes,
        excluded_nodes=(),
        nodes_min=count,
        nodes_max=count,
        priority=held.FIRST,  # the place was this pod's before anybody waited for it
        nice=None,
        begin="",
        dependency="",
    )


def _claimed(
    spec: JobSpec, ran: JobRecord | None, pods: Sequence[Pod], nodes: tuple[SlurmNode, ...]
) -> JobSpec:
    """Of a job of several sizes each component on the nodes of its own pods, of those that run; as one job, where it
    was one, or where pods of different sizes share a node. `nodes`: of each of `pods` in turn."""
    if spec.most is None or not nodes:
        return pinned(spec, nodes)
    places = dict(zip((pod.uid for pod in pods), nodes, strict=True))
    own = {
        one.size: (one, at)
        for one in (spec, *spec.others)
        if (at := tuple(places[u] for u in one.pods if u in places))
    }
    shared = sum(len(set(at)) for _, at in own.values()) > len(set(nodes))
    if shared or (ran is not None and ran.nodes and not ran.parts):
        return pinned(spec.most, nodes)
    mark = replace(spec.mark, sizes=tuple(own), place=True)
    first, *others = (replace(pinned(one, at), mark=mark, others=()) for one, at in own.values())
    return replace(first, others=tuple(others), most=pinned(spec.most, nodes))


def _gone(sight: Sight) -> JobRecord:
    """All that Slurm has of it."""
    return JobRecord(id=sight.id, states=frozenset())


def _tell(facts: Facts, running: list[Member], text: str) -> tuple[Step, ...]:
    shown = job_condition(None, facts.now, refused=text, reason=Reason.JOB_ABSENT)
    told = [m.pod for m in running if worth_writing(m.pod, shown, facts.now)]
    return tuple(SetConditions(pod=pod, conditions=(shown,)) for pod in told)


def _seats(facts: Facts, running: list[Member]) -> list[tuple[Pod, KubeNode]]:
    """Where the pods sit; of a gang also who has been sent to its node, and the places of lost ones for who came for
    them, unless others have those."""
    gang = facts.group.gang is not None
    sent = NODE_ANNOTATION if gang else ""
    found = [(m.pod, m.pod.node or KubeNode(m.pod.annotations.get(sent, ""))) for m in running]
    seats = [(pod, node) for pod, node in found if node]
    if gang and not (facts.claim_refused and facts.claim_refused.taken):
        lost = (m.pod.node for m in facts.members if m.pod.node and m not in running)
        seats += zip((pod for pod, node in found if not node), lost, strict=False)
    return seats


def _without(spec: JobSpec | None, outside: Collection[Uid]) -> JobSpec | None:
    """The same job, whose mark does not name those that it has no place for."""
    if spec is None or not outside:
        return spec

    def unnamed(mark: Mark) -> Mark:
        named = [one for one in zip(mark.uids, mark.pods, strict=True) if one[0] not in outside]
        return replace(mark, uids=tuple(uid for uid, _ in named), pods=tuple(ref for _, ref in named))

    return spec.each(lambda one: replace(one, mark=unnamed(one.mark)))


def _nodes_of(facts: Facts, running: list[Member]) -> tuple[SlurmNode, ...]:
    """Where they sit, as Slurm calls it; of a gang each pod's, in its order; () if a node has no twin."""
    names = {node.name: slurm for slurm, node in facts.nodes.items()}
    placed = [node for _, node in _seats(facts, running)]
    held = placed if facts.group.gang is not None else dict.fromkeys(placed)
    return tuple(names[name] for name in held) if all(name in names for name in held) else ()


def _free_id(facts: Facts, sight: Sight) -> JobId | None:
    """The vanished job's own, else the next of this attempt that no record in Slurm holds."""
    ids = [facts.fast_id, *facts.probes]
    own = [sight.id] if sight.id in facts.current and sight.states is None else []
    free = (job for job in (*own, *ids) if job is not None and facts.sights.get(job, NOTHING).states is None)
    return next(free, None)
