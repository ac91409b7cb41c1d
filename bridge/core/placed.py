"""A group whose pods sit on nodes: watch their job, show what Slurm says, and end them on the job's own record only.

Goes in: facts, the members that run. Comes out: a Decision. What must stay true: invariants 1–5 of docs/design.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from bridge.core import gangs, held, waiting
from bridge.core.claims import SETTLED, claim, miscounted
from bridge.core.conditions import job_condition, scheduled_repair, utc, worth_writing
from bridge.core.ends import TAKEN, end_doubles, end_pods, evidence, failed_elsewhere, unkillable
from bridge.core.facts import NEVER, Facts, Member, Sight
from bridge.core.limits import asked_end, early, told, user_end
from bridge.core.model import JobId, JobRecord, Pod, is_ended, is_granted
from bridge.core.steps import Decision, NameJob, Release, SetConditions, Step
from bridge.core.strays import stray
from bridge.core.takeover import alone, label_of, marked_again
from bridge.core.verdict import Reason, Verdict
from bridge.names import GPUS_ANNOTATION, JOB_CONDITION, JOB_ID_LABEL, SUBMITTED_ANNOTATION

PENDING_LOOK = 5.0  # seconds: its patience ends without an event
LIMIT_LOOK = 60.0  # seconds between looks at a job with a time limit
# A changed limit changes no state, so the record is read again for it: for a longer one before a pod is ended, for a
# shorter one now and then, which is spread as all jobs are read at once after a start.
LIMIT_FRESH = 5.0  # seconds: an older record ends no pod at its limit
LIMIT_READ, LIMIT_SPREAD = 300.0, 300


def placed(facts: Facts, running: list[Member]) -> Decision:
    """Pods run. Positive evidence from their job's own record, and nothing else, ends them."""
    sight = _job_of(facts, running)
    if sight is None:
        return stray(facts, running)
    if not facts.slurm_fresh:
        return Decision(verdict=Verdict(Reason.STALE, "Slurm can't be read; running pods run on"), again=2.0)
    last = _ended_and_forgotten(facts, sight, [m.pod for m in running])
    if last is not None:
        text = f"job {sight.id} ended ({'+'.join(sorted(last.states))}), and Slurm has forgotten it since"
        return end_pods(facts, running, last, Verdict(Reason.JOB_ENDED, text))
    astray = failed_elsewhere(facts, sight.record, [m.pod for m in running])
    if sight.states is None or sight.never_ran or astray:
        return claim(facts, running, sight)
    record = sight.read
    if record is None and sight.record is None and is_granted(sight.states):
        # After a restart: nothing is wrong, so the watcher's unhurried reading of all our jobs will do.
        return Decision(verdict=Verdict(Reason.RUNNING, f"job {sight.id} runs"))
    if record is None or (is_granted(record.states) and not record.nodes):
        return Decision(verdict=Verdict(Reason.RUNNING, f"reading job {sight.id}"), reads=(sight.id,))
    if not facts.owns(record):
        anew = held.reissued([m.pod for m in running], record) or gangs.passed_on(facts, record)
        return claim(facts, running, sight) if anew else alone(facts, running, sight.id)
    if (again := marked_again(facts, sight)) is not None:
        return again
    pods = [m.pod for m in running]
    if (first := held.onward(facts, pods, sight, end_doubles(facts, sight, idle=True))) is not None:
        return first
    ended = evidence(facts, record, [pod for pod in pods if not pod.deleted] or pods)
    if ended is not None and not sight.polled:
        return Decision(
            verdict=Verdict(Reason.STALE, f"{ended.text}; the next state poll must agree"), again=0.5
        )
    if ended is not None and "PENDING" in record.states and (doubt := _in_doubt(facts, record)) is not None:
        return doubt
    over = _over_limit(facts, record)
    if ended is None and over is not None and not _read_since(facts, sight, record):
        text = f"{over.text}, by an older record: it is read again"
        return Decision(verdict=Verdict(Reason.RUNNING, text), reads=(sight.id,), again=1.0)
    ended = ended or over or _preempting(record)
    ended = ended or gangs.bereft(facts, running, record)
    if ended is not None:
        return end_pods(facts, running, record, ended)
    if late := gangs.half_started(facts, running, record):
        return waiting.begin_anew(facts, running, record, late)
    joining = waiting.joining(facts, running, record)
    return Decision(
        verdict=joining.verdict if joining is not None else _running_verdict(facts, running, record),
        steps=(
            *gangs.rivals(facts),
            *gangs.roll(facts, record),
            *_renamed(facts, running, record),
            *end_doubles(facts, sight, idle=not is_granted(record.states)),
            *miscounted(facts, running, record),
            *unkillable(facts, running),
            *_upkeep(facts, running if joining is None else [m for m in running if m.pod.node], record),
            *(joining.steps if joining is not None else ()),
        ),
        reads=_limit_read(facts, sight, record) or _dispute_read(facts, pods, record),
        again=_again(facts, running, record, joining),
    )


def _ended_and_forgotten(facts: Facts, sight: Sight, pods: Sequence[Pod]) -> JobRecord | None:
    """The last record of a job that ended, and that nobody lists any more; not if a crash may have undone the end."""
    last = sight.record
    if last is None or sight.states is not None or not sight.over or not facts.owns(last):
        return None
    return last if sight.read_age < facts.boot_age and evidence(facts, last, pods) else None


def _in_doubt(facts: Facts, record: JobRecord) -> Decision | None:
    """The job that waits may wait for one of the same pods, which a list has lacked since: then that one is theirs."""
    hidden = tuple(job for job in facts.sights if job != record.id and facts.hidden(job))
    if not hidden and facts.surveyed:
        return None
    text = f"job {record.id} waits; other jobs of the pod that the last list may lack are asked for"
    return Decision(verdict=Verdict(Reason.BOUND, text), reads=hidden, again=held.LOOK)


def _job_of(facts: Facts, running: list[Member]) -> Sight | None:
    """The job that holds the pods. The label is a hint that anybody may edit; chosen id and mark decide."""
    labelled: Sight | None = None
    known = (s for s in facts.sights.values() if s.live or s.id in facts.current)
    holding = [s for s in known if _held_by(facts, s, running)]
    live = [s for s in holding if s.live]
    alive = [s for s in live if s.id in facts.current]
    refused = facts.claim_refused is not None
    for member in running:
        job = label_of(member.pod)
        if job is None or not member.pod.node:
            continue
        labelled = facts.sights.get(job, Sight(id=job, states=None, record=None))
        lost = labelled.record is not None and gangs.passed_on(facts, labelled.record)
        if labelled.never_ran or lost or failed_elsewhere(facts, labelled.record, [m.pod for m in running]):
            continue  # what a refused claim left under that id; or another generation of the gang has it
        if labelled.live and labelled.id in facts.current and (named := labelled.record) is not None:
            # A crash may have brought an earlier attempt's job back to the very place that is claimed.
            mine = live if named.claims and named.reason == TAKEN else alive
            ran = (s.record for s in mine if s.record is not None and "PENDING" not in (s.states or ()))
            before = [one for one in ran if held.yields(named, one)]
            if before:
                return facts.sights[min(before, key=lambda one: one.started).id]
        if labelled.states is None and (alive or (live and refused)):
            continue  # somebody edited the label; or an earlier attempt's job, come back to life, is all that is left
        if job in facts.current:
            return labelled  # an id that we chose: if it is absent, another job's end proves nothing
        if labelled.states is not None and (labelled.record is None or facts.owns(labelled.record)):
            return labelled
    found = live or holding
    return min(found, key=lambda sight: sight.rank) if found else labelled


def _held_by(facts: Facts, sight: Sight, running: list[Member]) -> bool:
    """Ours, and it holds or held a node of these pods: a grant that was given back, or a double, never did."""
    record = sight.record
    if sight.states is None or record is None or not facts.owns(record):
        return False
    held = {node.name for name in record.nodes if (node := facts.nodes.get(name)) is not None}
    return any(member.pod.node in held for member in running)


def _running_verdict(facts: Facts, running: list[Member], record: JobRecord) -> Verdict:
    if "SUSPENDED" in record.states:
        return Verdict(Reason.SUSPENDED, f"Slurm suspended job {record.id}; the pod lives on")
    if not is_granted(record.states):
        ended = is_ended(record.states) and not facts.boot_grace
        why = (
            "; Kubernetes does not list the pod's node" if ended else " after a restart of slurmctld; waiting"
        )
        text = f"job {record.id} is {'+'.join(sorted(record.states))}{why}"
        return Verdict(Reason.BOUND, text)
    places = ",".join(record.nodes)
    if all(member.pod.deleted for member in running):
        text = f"job {record.id} holds {places} until the containers of the pod, which is being deleted, are dead"
        return Verdict(Reason.DRAINING, text)
    return Verdict(Reason.RUNNING, f"job {record.id} holds {places}")


def _renamed(facts: Facts, running: list[Member], record: JobRecord) -> Iterator[Step]:
    """Label the pods with their job. Before a double is ended: where Slurm numbers jobs the name tells which is one."""
    for pod in (member.pod for member in running):
        label = pod.labels.get(JOB_ID_LABEL, "")
        if not pod.node or label == str(record.id) or held.disputed(facts, [pod], record) is not None:
            continue
        if facts.held and SUBMITTED_ANNOTATION in pod.annotations:
            yield NameJob(pod=pod, job=record.id, submitted=record.submitted)
        else:
            gpus = pod.annotations.get(GPUS_ANNOTATION, "")
            yield Release(pod=pod, job=record.id, node=pod.node, gpus=gpus)


def _upkeep(facts: Facts, running: list[Member], record: JobRecord) -> tuple[Step, ...]:
    """Repair PodScheduled after a late bind reply, and show what Slurm says, at most once a minute."""
    steps: list[Step] = []
    for member in running:
        bound = max(facts.slurm_now, record.started)  # a clock that is in doubt is too early
        bound = min(bound, record.ended) if is_ended(record.states) and record.ended else bound
        # Of a job that waits no start is known, and the binding must not look as if it had been before that.
        repair = scheduled_repair(member.pod, bound) if "PENDING" not in record.states else None
        wanted = [repair] if repair is not None else []
        shown = job_condition(record, facts.now, note=told(facts, record))
        if member.pod.condition(JOB_CONDITION) is not None and worth_writing(member.pod, shown, facts.now):
            wanted.append(shown)
        if wanted:
            steps.append(SetConditions(pod=member.pod, conditions=tuple(wanted)))
    return tuple(steps)


def _preempting(record: JobRecord) -> Verdict | None:
    """Slurm has begun the job's grace time: the pod gets its signal now, inside it, and can write a checkpoint."""
    if not record.preempted or "RUNNING" not in record.states:
        return None
    until = f" at {utc(record.ended)}" if record.ended else ""
    text = f"job {record.id} is being preempted by a job of higher priority; its grace time ends{until}"
    return Verdict(Reason.PREEMPTING, text)


def _over_limit(facts: Facts, record: JobRecord) -> Verdict | None:
    end = user_end(facts, record)
    if end is None or facts.slurm_now < end:
        return None
    if "RUNNING" not in record.states:
        text = f"job {record.id} still waits for the pod's place, and the time limit of the pod is over"
        return Verdict(Reason.TIME_LIMIT, text)
    minutes = round((end - record.started) / 60)
    if ahead := early(facts, record):
        return Verdict(Reason.TIME_LIMIT, f"job {record.id} is about to reach its time limit: {ahead}")
    return Verdict(Reason.TIME_LIMIT, f"job {record.id} reached its time limit of {minutes} min")


def _read_since(facts: Facts, sight: Sight, record: JobRecord) -> bool:
    """After the limit was over: somebody may have extended it in the last moment."""
    end = user_end(facts, record) or 0.0
    return sight.read_age <= LIMIT_FRESH and facts.slurm_now - sight.read_age >= end


def _again(facts: Facts, running: list[Member], record: JobRecord, joining: Decision | None) -> float | None:
    """The nearest moment at which time alone may change the decision."""
    margin = facts.limits.death_margin
    waits = [member.dead_in(margin) for member in running if member.pod.deleted and member.node_dead_for]
    if joining is not None and joining.again is not None:
        waits.append(joining.again)
    waits += [max(1.0, m.dies_in) for m in running if m.pod.deleted and m.node_ready and m.dies_in > 0]
    if "PENDING" in record.states or (is_ended(record.states) and not facts.boot_grace):
        waits.append(PENDING_LOOK)  # nobody may tell
    if facts.boot_grace and evidence(replace(facts, boot_age=NEVER), record, [m.pod for m in running]):
        waits.append(max(1.0, facts.limits.boot_grace - facts.boot_age))
    if facts.boot_grace and (young := SETTLED - (facts.slurm_now - record.started)) > 0:
        waits.append(young + 1.0)  # then a miscount counts
    if (limit := _until_limit(facts, record)) is not None:
        waits.append(limit)
    return min(waits, default=None)


def _limit_read(facts: Facts, sight: Sight, record: JobRecord) -> tuple[JobId, ...]:
    """Somebody may have shortened the limit, or taken back that it was extended."""
    end, asked = user_end(facts, record), asked_end(facts, record)
    if end is None and asked is None:
        return ()
    due = LIMIT_READ + sight.id % LIMIT_SPREAD
    passed = asked is not None and sight.read_age > facts.slurm_now - asked >= 0.0
    return (sight.id,) if sight.read_age > due or passed else ()


def _dispute_read(facts: Facts, pods: list[Pod], record: JobRecord) -> tuple[JobId, ...]:
    other = held.disputed(facts, pods, record)
    return () if other is None else (other,)


def _until_limit(facts: Facts, record: JobRecord) -> float | None:
    end, asked = user_end(facts, record), asked_end(facts, record)
    if end is None and asked is None:
        return None
    rests = [LIMIT_LOOK]
    if end is not None:
        rests.append(max(1.0, end - facts.slurm_now))
    if asked is not None and asked > facts.slurm_now:
        rests.append(max(1.0, asked - facts.slurm_now))
    return min(rests)
