"""Pod conditions that we write: what Slurm says, why a pod is about to be deleted, and one repair.

Each function returns a Condition to write. Rate: a condition is written on change and at most once a minute per pod,
so that 10,000 waiting pods don't load the API server.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from bridge.core.model import Condition, JobId, JobRecord, Pod, is_ended, is_granted
from bridge.core.verdict import Reason, Verdict
from bridge.names import DISRUPTION_CONDITION, JOB_CONDITION, SCHEDULED_CONDITION

QUIET = 60.0  # seconds between two writes of one condition
ESTIMATE_QUIET = (
    600.0  # seconds, if only Slurm's estimate changed: the backfill scheduler moves it at every pass
)
GATED = "SchedulingGated"  # of PodScheduled: kube-scheduler has not looked at the pod since it was let go
LONGEST = 300  # characters of what kube-scheduler says
ESTIMATE = ", expected to start at "
_WAITS = re.compile(r"job ([0-9]{1,9}) is PENDING\b", re.ASCII)


def utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def job_condition(
    record: JobRecord | None,
    now: float,
    *,
    refused: str = "",
    reason: Reason = Reason.REFUSED,
    note: str = "",
) -> Condition:
    """`slinky.slurm.net/SlurmJob`: True while the job holds nodes; reason = Slurm's state in CamelCase."""
    if record is None:
        return Condition(
            type=JOB_CONDITION, status="False", reason=reason.value, message=refused, probed=now, changed=now
        )
    base = next((s for s in sorted(record.states) if s == "RUNNING" or s == "PENDING"), "")
    base = base or next(iter(sorted(record.states)), "UNKNOWN")
    return Condition(
        type=JOB_CONDITION,
        status="True" if is_granted(record.states) else "False",
        reason="".join(part.capitalize() for part in base.split("_")),
        message=_sentence(record) + (f"; {note}" if note else ""),
        probed=now,
        changed=now,
    )


def _sentence(record: JobRecord) -> str:
    state = "+".join(sorted(record.states))
    if "PENDING" in record.states:
        text = f"job {record.id} is {state}"
        if record.reason and record.reason != "None":
            text += f" ({record.reason})"
        return text + (f"{ESTIMATE}{utc(record.started)}" if record.started else "")
    where = f" on {','.join(record.nodes)}" if record.nodes else ""
    text = f"job {record.id} is {state}{where}"
    if is_ended(record.states):
        text += f", exit code {record.exit_code}" + (
            f", signal {record.exit_signal}" if record.exit_signal else ""
        )
    return text


def waiting_job(pod: Pod) -> JobId | None:
    """The job that the pod has shown as waiting in Slurm: all that is known of it after a restart."""
    shown = pod.condition(JOB_CONDITION)
    found = _WAITS.match(shown.message) if shown is not None else None
    return JobId(int(found[1])) if found else None


def worth_writing(pod: Pod, wanted: Condition, now: float) -> bool:
    """Changed, and not written within the last minute (a clock set back counts as long ago). That all are there, and
    what Slurm says then, is news, and so is the binding of a pod that said why it had none."""
    present = pod.condition(wanted.type)
    if present is None:
        return True
    if (present.status, present.reason, present.message) == (wanted.status, wanted.reason, wanted.message):
        return False
    if present.reason in (Reason.GATHERING, Reason.GRANTED) and present.reason != wanted.reason:
        return True
    said, says = present.message.partition(ESTIMATE)[0], wanted.message.partition(ESTIMATE)[0]
    same = (present.status, present.reason, said) == (wanted.status, wanted.reason, says)
    return not 0 <= now - present.probed < (ESTIMATE_QUIET if same else QUIET)


def unbound_because(pod: Pod) -> str:
    """What kube-scheduler says of a pod that was let go to its node, and that it can't bind; "" = nothing."""
    said = pod.condition(SCHEDULED_CONDITION)
    if pod.gates or said is None or said.status != "False" or said.reason == GATED:
        return ""
    text = " ".join(said.message.split())
    return text if len(text) <= LONGEST else text[:LONGEST] + "…"


def disruption(verdict: Verdict, now: float) -> Condition:
    """`DisruptionTarget`: lets podFailurePolicy ignore a pod that Slurm took away."""
    return Condition(
        type=DISRUPTION_CONDITION,
        status="True",
        reason=f"Slurm{verdict.reason}",
        message=verdict.text,
        probed=now,
        changed=now,
    )


def scheduled_repair(pod: Pod, now: float) -> Condition | None:
    """A bind reply that came too late leaves PodScheduled=False on a bound pod: set it right.

    `now` by slurmctld's clock: this time is compared with the start of the job, and our own clock may have jumped.
    """
    present = pod.condition(SCHEDULED_CONDITION)
    if not pod.node or present is None or present.status != "False":
        return None
    return Condition(type=SCHEDULED_CONDITION, status="True", probed=now, changed=now)
