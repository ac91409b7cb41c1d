"""What Slurm's accounting says of a job that slurmctld has forgotten: when it ends a pod, and when it says nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bridge.core.attempt import Attempt
from bridge.core.lifecycle import decide
from bridge.core.model import JobRecord
from bridge.core.steps import Decision, DeletePod, SetConditions, SubmitJob
from bridge.core.verdict import Reason
from bridge.names import SUBMITTED_ANNOTATION
from tests.core.build import FIRST, NOW, bound, facts, mark, record, vanished

HOUR_AGO = NOW - 3600.0


def past(*states: str, **changes: Any) -> JobRecord:
    base: dict[str, Any] = {"submitted": HOUR_AGO - 60, "started": HOUR_AGO - 60, "ended": HOUR_AGO}
    return record(FIRST, *(states or ("CANCELLED",)), **(base | changes))


def look(found: JobRecord | None, **changes: Any) -> Decision:
    base: dict[str, Any] = {
        "sights": (vanished(FIRST),),
        "denied": frozenset({FIRST}),
        "recalled": {} if found is None else {FIRST: found},
    }
    return decide(facts(bound(FIRST), **(base | changes)))


def ends(decision: Decision) -> bool:
    return any(isinstance(s, DeletePod) for s in decision.steps)


def claims(decision: Decision) -> bool:
    return any(isinstance(s, SubmitJob) for s in decision.steps)


@pytest.mark.parametrize(
    "state", ["CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "DEADLINE", "OUT_OF_MEMORY"]
)
def test_a_job_that_was_taken_from_its_pod_takes_the_pod_along(state: str) -> None:
    decision = look(past(state))
    assert [type(s).__name__ for s in decision.steps] == ["SetConditions", "Notify", "DeletePod"]
    assert decision.verdict.reason == Reason.JOB_ENDED
    (delete,) = (s for s in decision.steps if isinstance(s, DeletePod))
    assert delete.guarded, "the breaker is asked: nobody here saw it run"


@pytest.mark.parametrize(
    "found",
    [
        None,
        past("RUNNING", ended=0.0),
        past("COMPLETED"),
        past("FAILED", nodes=past().nodes),
        past(ended=0.0),
        past(mark=None),
        past(mark=mark(cluster="another")),
        past(mark=mark(attempt=1)),
        past(mark=replace(mark(), uids=())),
        past(mark=replace(mark(), over=True)),
    ],
    ids=[
        "nothing", "runs", "tidied up", "ended by us", "no end", "no mark", "of others", "attempt", "pods", "dead",
    ],
)  # fmt: skip
def test_anything_else_changes_nothing(found: JobRecord | None) -> None:
    decision = look(found)
    assert (ends(decision), claims(decision)) == (False, True)


def test_a_later_attempt_counts_by_its_own_mark() -> None:
    later = Attempt(1, since=1.0)
    assert ends(look(past(mark=mark(attempt=1)), attempt=later))
    assert not ends(look(past(), attempt=later))


def test_while_slurmctld_settles_a_node_failure_says_nothing_and_a_cancel_does() -> None:
    assert not ends(look(past("NODE_FAIL"), boot_age=100.0))
    assert claims(look(past("NODE_FAIL"), boot_age=100.0))
    assert ends(look(past("CANCELLED"), boot_age=100.0))


@pytest.mark.parametrize(("after", "counts"), [(59.0, True), (61.0, False), (3000.0, False)])
def test_an_end_after_which_another_leader_watched_and_left_the_pod_does_not_count(
    after: float, counts: bool
) -> None:
    """A crash of slurmctld undid it, and what it had told stays on the books."""
    assert ends(look(past(), watched=HOUR_AGO + after)) is counts


@pytest.mark.parametrize("before", [2.0, 59.0, 61.0, -5.0])
def test_one_shortly_before_a_start_of_slurmctld_does(before: float) -> None:
    """Had the start undone it, slurmctld would have the job."""
    for boot_age in (100.0, 3000.0):
        ended = NOW - boot_age - before
        seen = look(past(ended=ended), boot_age=boot_age, booted=NOW - boot_age)
        assert ends(seen)


def test_nor_does_one_after_which_the_job_was_seen_alive() -> None:
    alive = replace(vanished(FIRST, past("RUNNING", ended=0.0)), read_age=1800.0)
    assert not ends(look(past(), sights=(alive,)))
    assert ends(look(past(), sights=(replace(alive, read_age=3700.0),)))


def test_another_submit_of_the_id_does_not_count() -> None:
    other = replace(vanished(FIRST, past("RUNNING", ended=0.0, submitted=HOUR_AGO - 90)), read_age=3700.0)
    assert not ends(look(past(), sights=(other,)))
    label = bound(FIRST).labels
    for noted, counts in ((HOUR_AGO - 60, True), (HOUR_AGO - 90, False)):
        pod = bound(FIRST, labels=label, annotations={SUBMITTED_ANNOTATION: f"{noted:.0f}"})
        seen = facts(
            pod,
            sights=(vanished(FIRST),),
            denied=frozenset({FIRST}),
            recalled={FIRST: past()},
            held=True,
        )
        assert ends(decide(seen)) is counts


def test_accounting_is_asked_while_slurmctld_is_and_a_claim_waits_for_the_answer() -> None:
    first = look(None, denied=frozenset(), recallable={FIRST: ""})
    assert (first.reads, first.recalls, first.steps) == ((FIRST,), (FIRST,), ())
    second = look(None, recallable={FIRST: ""})
    assert (second.reads, second.recalls, second.steps) == ((), (FIRST,), ())
    assert claims(look(None))


def test_an_answer_that_fails_to_come_is_waited_for_and_the_pod_says_so() -> None:
    decision = look(None, recallable={FIRST: "Unable to connect to database"})
    (told,) = decision.steps
    assert isinstance(told, SetConditions)
    assert "has not answered: Unable to connect to database" in told.conditions[0].message
    assert decision.recalls == (FIRST,)


def test_nobody_is_asked_for_a_job_that_slurm_lists() -> None:
    live = facts(
        bound(FIRST), sights=(replace(vanished(FIRST, past("RUNNING")), states=frozenset({"RUNNING"})),)
    )
    assert decide(live).recalls == ()
