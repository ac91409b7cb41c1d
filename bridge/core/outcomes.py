"""What an answer to a submit means: one table, read by the loop, rendered into docs/outcomes.md, one test a row.

Goes in: the exception class and Slurm's error_number that `bridge.slurm.client` raised (None = it succeeded).
Comes out: `Outcome`. Never branches on message text.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from bridge import errors
from bridge.core import hostlist
from bridge.core.jobspec import WITHOUT_LIMIT, padded
from bridge.core.model import JobSpec
from bridge.core.overrides import key
from bridge.core.steps import SubmitHeld, SubmitJob


class Outcome(StrEnum):
    CREATED = "created"  # the job exists under our id
    TAKEN = "taken"  # the id exists already: read it; ours = adopt, foreign = next probe
    NO_ROOM = "no-room"  # an immediate allocation found no place: queue instead
    UNKNOWN = "unknown"  # it may exist: read the id, then send the same again
    RETRY = "retry"  # it does not exist: send the same again later
    DENIED = "denied"  # our token is the problem, not this job
    REFUSED = "refused"  # this job cannot be as it is written: tell the user, try again rarely


DUPLICATE_ID = 2011
NO_SUCH_NODES = 2014  # no set of nodes is as large as what is asked for
OVER_LIMITS = frozenset({2050, 2051})  # a limit of a QOS, association or partition


@dataclass(frozen=True, slots=True)
class Row:
    error: type[errors.BridgeError]
    codes: frozenset[int] | None  # None = any
    immediate: bool | None  # None = both kinds of submit
    outcome: Outcome
    meaning: str


# The first row that fits decides.
TABLE: tuple[Row, ...] = (
    Row(errors.Conflict, frozenset({DUPLICATE_ID}), None, Outcome.TAKEN, "422/2011: the id is in use"),
    Row(
        errors.Invalid,
        frozenset({0}),
        True,
        Outcome.RETRY,
        "200 without a job id: nothing was submitted, and the id may still be free",
    ),
    Row(
        errors.Invalid,
        None,
        True,
        Outcome.NO_ROOM,
        "any refusal of an immediate allocation: the queue decides",
    ),
    Row(errors.Unreachable, None, None, Outcome.RETRY, "connection refused, no route"),
    Row(errors.Busy, None, None, Outcome.RETRY, "429, 503: asked to come back"),
    Row(
        errors.UnknownOutcome, None, None, Outcome.UNKNOWN, "time-out, reset after sending, 500/-1, 502, 504"
    ),
    Row(errors.ProtocolError, None, None, Outcome.UNKNOWN, "HTML, truncated JSON, another job id than asked"),
    Row(errors.Denied, None, None, Outcome.DENIED, "401, 511: token missing, wrong or expired"),
    Row(
        errors.NotFound, None, None, Outcome.RETRY, "404 with a Slurm body: slurmctld lost something it needs"
    ),
    Row(errors.Invalid, None, None, Outcome.REFUSED, "any other error_number; 200 without a job id"),
    Row(errors.RefusedError, None, None, Outcome.REFUSED, "any other refusal"),
    Row(errors.BridgeError, None, None, Outcome.UNKNOWN, "anything else: nothing is concluded"),
)


def of_submit(error: errors.BridgeError | None, *, immediate: bool) -> Outcome:
    if error is None:
        return Outcome.CREATED
    for row in TABLE:
        if (
            isinstance(error, row.error)
            and (row.codes is None or error.code in row.codes)
            and (row.immediate is None or row.immediate == immediate)
        ):
            return row.outcome
    raise AssertionError("the last row takes every BridgeError")


def too_long(step: SubmitJob | SubmitHeld, outcome: Outcome, error: errors.BridgeError) -> bool:
    """What we put on top of the time limit may be why.

    A new pod's immediate allocation is refused also for limits that the queue waits for.
    """
    asked = outcome is Outcome.REFUSED or bool(step.spec.required_nodes)
    return asked and error.code in OVER_LIMITS and padded(step.spec)


def refusal(step: SubmitJob | SubmitHeld, error: errors.BridgeError) -> str:
    """For the pod's author."""
    text = f"Slurm refuses the job: {error.said or error}"
    if error.code in OVER_LIMITS and step.spec.deadline and step.spec.time_limit is None:
        text += f"; {WITHOUT_LIMIT}"
    if error.code == NO_SUCH_NODES and step.spec.memory_per_cpu is not None:
        text += f"; {_asked(step.spec)}"
    each = dict.fromkeys(hostlist.compress(one.excluded_nodes) for one in (step.spec, *step.spec.others))
    avoided = " / ".join(names or "-" for names in each)
    return f"{text}; nodes excluded: {avoided}" if any(each) else text


def _asked(spec: JobSpec) -> str:
    """Of a gang, in Slurm's terms: a partition may count otherwise than its pods' author thinks."""
    each = (
        f"{one.tasks} tasks of {one.cpus_per_task} CPUs, {one.memory_per_cpu} MiB a CPU"
        + (f", {one.gres_per_task}" if one.gres_per_task else "")
        for one in (spec, *spec.others)
    )
    exclusive = f'{key("exclusive")}: "true"'
    text = f"asked for were {' and '.join(each)}; where the partition gives whole nodes every CPU of a node counts"
    return f"{text}, and {exclusive} helps"
