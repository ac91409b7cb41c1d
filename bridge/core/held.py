"""A group's job where Slurm numbers it: submitted held, named on the pods by compare-and-set, then released.

Goes in: facts. Comes out: a Decision. What must stay true: a job runs only after every pod of its mark names it, and
naming is refused if the pod has changed since it was read. So of two jobs of one group (a lost reply, two leaders) at
most one is ever named; a job is ended as a double only by who has just named, or sees named, the other. Each look goes
on from what it finds: a held job of ours is named, a named one is released.
"""

from __future__ import annotations

from collections.abc import Sequence

from bridge.core.facts import Facts, Sight
from bridge.core.model import JobId, JobRecord, JobSpec, Pod, is_ended
from bridge.core.steps import Decision, NameJob, Prioritize, Step, SubmitHeld, Unhold
from bridge.core.takeover import label_of
from bridge.core.verdict import Reason, Verdict
from bridge.names import SUBMITTED_ANNOTATION

REASON = (
    "JobHeldUser"  # what a job waits for that was submitted held; one that an admin holds says JobHeldAdmin
)
FIRST = 0xFFFFFFFD  # Slurm's highest priority
ASK = 2.0  # seconds between questions for a job that no list shows
LOOK = 0.5  # seconds between looks at what has been read of Slurm's jobs
WISHED = (
    600.0  # seconds from a submit in which the priority is the pod's; later an administrator's word counts
)


def names(pod: Pod, record: JobRecord) -> bool:
    """Does the pod name this very job? A slurmctld that lost a job gives its id out again: the submit time tells."""
    return label_of(pod) == record.id and not reissued([pod], record)


def reissued(pods: Sequence[Pod], record: JobRecord) -> bool:
    """Does a pod name an earlier job of that id?"""
    noted = (pod.annotations.get(SUBMITTED_ANNOTATION) for pod in pods if label_of(pod) == record.id)
    return any(text not in (None, f"{record.submitted:.0f}") for text in noted)


def _outdated(pod: Pod, sight: Sight | None) -> bool:
    """What is known under the id that the pod names is of an earlier job."""
    noted = pod.annotations.get(SUBMITTED_ANNOTATION, "")
    record = sight.record if sight is not None else None
    return record is not None and noted.isascii() and noted.isdigit() and round(record.submitted) < int(noted)


def disputed(facts: Facts, pods: Sequence[Pod], record: JobRecord) -> JobId | None:
    """Another job that a pod names, and that may be alive: the name is the lock, and is not written over.

    But for a claim's, where the job whose place it claims is here after all.
    """
    for pod in pods if facts.held else ():
        other = label_of(pod)
        if other in (None, record.id) or other in facts.denied:
            continue
        sight = facts.sights.get(other)
        known = sight.read if sight is not None and not _outdated(pod, sight) else None
        if known is None:
            return other
        if facts.owns(known) and not is_ended(known.states) and not yields(known, record):
            return other
    return None


def yields(claim: JobRecord, ran: JobRecord) -> bool:
    """Was the one named for a pod that has had the other all the time, while a list lacked that one?"""
    waits, began_later = "PENDING" in claim.states, (ran.started, ran.id) < (claim.started, claim.id)
    return "PENDING" not in ran.states and (waits or (claim.claims and began_later))


def submit(facts: Facts, spec: JobSpec, told: Sequence[Step] = ()) -> Decision:
    """No job of this attempt is known."""
    if (asked := _ask(facts, [m.pod for m in facts.members])) is not None:
        return asked
    if facts.unknown:
        text = "looking for a job of this group among those that Slurm lists"
        return Decision(verdict=Verdict(Reason.READY, text), steps=tuple(told), again=LOOK)
    text = "submitting a job, held until its pod names it"
    return Decision(verdict=Verdict(Reason.READY, text), steps=(*told, SubmitHeld(spec=spec)))


def onward(facts: Facts, pods: Sequence[Pod], job: Sight, doubles: Sequence[Step]) -> Decision | None:
    """The next steps of a job that is held, or has not got its priority yet; None for any other. One that claims a
    place goes before all."""
    record = job.read
    if not facts.held or record is None or "PENDING" not in record.states:
        return None
    if not facts.steady:  # a slurmctld that comes back may have given the id to another that waits
        return Decision(
            verdict=Verdict(Reason.QUEUED, f"job {job.id} is released when Slurm answers"), again=LOOK
        )
    if record.reason != REASON:
        return _prioritized(facts, pods, record)
    if not record.submitted:  # known from our own submit only
        return Decision(verdict=Verdict(Reason.QUEUED, f"reading job {job.id}"), reads=(job.id,))
    unnamed = [pod for pod in pods if not names(pod, record)]
    if not all(SUBMITTED_ANNOTATION in pod.annotations for pod in pods if pod not in unnamed):
        return None  # named by the Go project: a person holds it
    if unnamed and (asked := _ask(facts, unnamed)) is not None:
        return asked
    naming = (NameJob(pod=pod, job=job.id, submitted=record.submitted) for pod in unnamed)
    text = f"job {job.id} is named on its pod and released"
    steps = (*naming, *doubles, Unhold(id=job.id), *_priority(facts, record))
    return Decision(verdict=Verdict(Reason.QUEUED, text), steps=steps)


def _priority(facts: Facts, record: JobRecord) -> tuple[Prioritize, ...]:
    wished = FIRST if record.claims else facts.spec.priority if facts.spec else None
    return () if wished is None else (Prioritize(id=record.id, priority=wished),)


def _prioritized(facts: Facts, pods: Sequence[Pod], record: JobRecord) -> Decision | None:
    """A job that was released by who died before it gave it its priority."""
    if not all(names(pod, record) and SUBMITTED_ANNOTATION in pod.annotations for pod in pods):
        return None
    late = not record.claims and facts.slurm_now - record.submitted > WISHED
    steps = () if late or not record.priority else _priority(facts, record)
    if all(step.priority == record.priority for step in steps):
        return None
    return Decision(verdict=Verdict(Reason.QUEUED, f"job {record.id} is given its priority"), steps=steps)


def _ask(facts: Facts, pods: Sequence[Pod]) -> Decision | None:
    """A list may lack what is there. A job that this group had, and that is not listed, must be denied to our face."""
    had = {s.id for s in facts.sights.values() if facts.owns(s.record)}
    had |= {job for pod in pods if (job := label_of(pod)) is not None}
    listed = {s.id for s in facts.sights.values() if s.states is not None}
    listed -= {
        job for pod in pods if (job := label_of(pod)) is not None and _outdated(pod, facts.sights.get(job))
    }
    missing = tuple(sorted(had - listed - facts.denied))
    if not missing:
        return None
    text = f"job {missing[0]} is not in Slurm's list; it is asked for before another is submitted"
    return Decision(verdict=Verdict(Reason.READY, text), reads=missing, again=ASK)
