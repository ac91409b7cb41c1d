"""Time limits: when a pod ends ahead of its job, and what becomes of a limit that Slurm does not allow.

Goes in: facts, a job's record. Comes out: a moment, a sentence. What must stay true: the containers are dead
before Slurm frees their devices. So grace and margin are put on top of the user's limit, or, where Slurm allows no more
than that, taken off it. The job's own record says which, as people may change it.
"""

from __future__ import annotations

import math
from dataclasses import replace

from bridge.core.facts import Facts
from bridge.core.model import JobRecord, JobSpec

# Why a job waits whose limit is longer than its QOS, its association or its partition allows: it would wait for ever.
TOO_LONG = frozenset(
    {"QOSMaxWallDurationPerJobLimit", "AssocMaxWallDurationPerJobLimit", "PartitionTimeLimit"}
)

# Of a time limit that is over before a pod is placed: with more than that it is asked for again, and gets all of it.
SPENT, SPENT_SHARE = 10.0, 0.25  # seconds, and of the whole


def too_long(facts: Facts, record: JobRecord) -> bool:
    """The job waits for ever, and perhaps only for what we put on top of the user's limit."""
    own = facts.spec.user_limit if facts.spec else None
    padded = own is not None and record.time_limit is not None and record.time_limit > own
    return padded and record.reason in TOO_LONG


def user_end(facts: Facts, record: JobRecord) -> float | None:
    """When the pod is to end: ahead of Slurm's end of the job, which knows of suspensions and of an extended limit, by
    what was put on top of the user's limit, or is to be taken off it. A preemption has a rule of its own.

    A claim has asked for what was left, and while it waits the pod runs.
    """
    spec, span = facts.spec, _span(facts, record)
    if span is None or record.preempted:
        return None
    started, ended = span
    if spec is not None and spec.user_limit is not None and spec.time_limit is not None:
        if not _bare(facts, record):
            return ended - (spec.time_limit - spec.user_limit) * 60
    elif record.time_limit is None:
        return None
    return ended - _ahead(facts, ended - started)


def asked_end(facts: Facts, record: JobRecord) -> float | None:
    """When the pod's own limit is over, whatever Slurm's is now: who extended it may have taken that back."""
    own = facts.spec.user_limit if facts.spec else None
    if own is None or record.claims or "RUNNING" not in record.states or not record.started:
        return None
    return record.started + own * 60


def spent(facts: Facts, record: JobRecord) -> str:
    """Why the pod would have too little of its time, if it started now: Slurm counts from the start of the job, and
    nobody was there to place the pod; "" = it has enough."""
    end, gone = user_end(facts, record), facts.slurm_now - record.started
    if end is None or gone <= SPENT or gone <= SPENT_SHARE * (end - record.started):
        return ""
    return f"job {record.id} has run for {gone:.0f} s of the pod's {end - record.started:.0f} s without it"


def _span(facts: Facts, record: JobRecord) -> tuple[float, float] | None:
    """From when to when the pod may use what the job holds, or would hold."""
    claim = record.claims
    if "RUNNING" in record.states and record.started and record.ended:
        waited = max(0.0, record.started - record.submitted) if claim and record.submitted else 0.0
        return record.started - waited, record.ended - waited
    if claim and record.submitted and record.time_limit is not None:
        return record.submitted, record.submitted + record.time_limit * 60
    return None


def rest(facts: Facts, last: JobRecord | None) -> float | None:
    """Seconds that its limit leaves to a job that vanished, by its last record and by what claims of its place asked
    for; None = no limit, or nobody can tell.

    Without a record, as after a restart, nobody can: the pod's own limit says nothing of suspensions, nor of an
    administrator who extended it.
    """
    refused = (s.record for s in facts.sights.values() if s.never_ran and s.id in facts.current)
    known = [r for r in (last, *refused) if r is not None and facts.owns(r)]
    ends = [end for record in known if (end := user_end(facts, record)) is not None]
    return min(ends) - facts.slurm_now if ends else None


def resumed(spec: JobSpec, left: float | None) -> JobSpec:
    """The same job with what is left of its limit, in whole minutes and at least one; what is on top stays on top."""
    if left is None or spec.user_limit is None or spec.time_limit is None:
        return spec
    minutes = max(1, math.ceil(left / 60))
    sent = spec.time_limit - spec.user_limit + minutes
    return spec.each(lambda one: replace(one, user_limit=minutes, time_limit=sent))


def told(facts: Facts, record: JobRecord) -> str:
    """For the pod's condition: what Slurm does not say; "" = nothing."""
    notice = facts.spec.notice if facts.spec is not None else ""
    return "; ".join(filter(None, (early(facts, record), notice)))


def early(facts: Facts, record: JobRecord) -> str:
    """That the pod ends before its limit; "" = it doesn't."""
    limit = record.time_limit
    if limit is None or record.reason in TOO_LONG:
        return ""
    ahead = _ahead(facts, limit * 60.0)
    if facts.spec is not None and facts.spec.user_limit is None:
        return f"without a limit of its own the job has {limit} min, and the pod is ended {ahead:.0f} s before that"
    if not _bare(facts, record):
        return ""
    return f"Slurm allows the job no more than {limit} min, so the pod is ended {ahead:.0f} s before that"


def _bare(facts: Facts, record: JobRecord) -> bool:
    """Nothing is on top of the user's limit. What is shorter may be a claim, with what was left of it."""
    own = facts.spec.user_limit if facts.spec else None
    if own is None or record.time_limit is None:
        return False
    return record.time_limit == own or (record.time_limit < own and not record.claims)


def _ahead(facts: Facts, lasts: float) -> float:
    """Seconds that the containers need to die, at most half of the job's time."""
    grace = max(member.pod.grace for member in facts.members)
    return min(grace + facts.limits.death_margin, lasts / 2)
