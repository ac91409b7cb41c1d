"""Where Slurm numbers our jobs: each state of a held job, and what the next look does about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bridge.core import held
from bridge.core.attempt import Attempt
from bridge.core.facts import Facts, Sight
from bridge.core.lifecycle import decide
from bridge.core.model import JobId, JobRecord, Pod, SlurmNode
from bridge.core.steps import DeletePod, EndJob, NameJob, Prioritize, SubmitHeld, Unhold
from bridge.core.verdict import Reason
from bridge.names import JOB_ID_LABEL, SUBMITTED_ANNOTATION
from tests.core.build import NOW, SPEC, bound, mark, pod, record, vanished
from tests.core.build import facts as chosen_facts

N1, N2 = JobId(41), JobId(42)


def facts(*pods: Pod, sights: tuple[Sight, ...] = (), **changes: Any) -> Facts:
    """Every job that Slurm shows here is of the current attempt, unless its mark says otherwise."""
    number = changes.get("attempt", Attempt()).number
    seen = tuple(
        replace(s, named=s.record is not None and any(held.names(p, s.record) for p in pods)) for s in sights
    )
    current = {s.id for s in seen if (m := s.record and s.record.mark) and m.attempt == number}
    return chosen_facts(*pods, sights=seen, **({"held": True, "current": frozenset(current)} | changes))


SUBMITTED = NOW - 5


def named(job: JobId, submitted: float = SUBMITTED) -> Pod:
    return pod(labels={JOB_ID_LABEL: str(job)}, annotations={SUBMITTED_ANNOTATION: f"{submitted:.0f}"})


def sits(job: JobId, submitted: float = SUBMITTED) -> Pod:
    one = bound(job)
    return replace(one, annotations={**one.annotations, SUBMITTED_ANNOTATION: f"{submitted:.0f}"})


def waits(job: JobId, reason: str = held.REASON, **changes: Any) -> Sight:
    return seen(record(job, "PENDING", reason=reason, **changes))


def seen(found: JobRecord) -> Sight:
    return Sight(id=found.id, states=found.states, record=found)


def test_the_first_submit_is_held_and_has_no_id() -> None:
    assert decide(facts(pod(), fast_allowed=True)).steps == (SubmitHeld(spec=SPEC),)


def test_nothing_is_submitted_while_a_job_of_the_group_may_be_unread() -> None:
    decision = decide(facts(pod(), unknown=True))
    assert decision.steps == ()
    assert decision.again is not None


def test_a_held_job_is_named_by_compare_and_set_and_then_released() -> None:
    one = pod()
    assert decide(facts(one, sights=(waits(N1),))).steps == (
        NameJob(pod=one, job=N1, submitted=SUBMITTED),
        Unhold(id=N1),
    )


def test_a_named_job_is_released() -> None:
    assert decide(facts(named(N1), sights=(waits(N1),))).steps == (Unhold(id=N1),)


def test_nothing_is_released_by_its_number_while_slurmctld_may_have_gone_back_in_time() -> None:
    for one in (pod(), named(N1)):
        decision = decide(facts(one, sights=(waits(N1),), steady=False))
        assert (decision.steps, decision.again is not None) == ((), True)


def test_it_is_released_with_the_priority_that_was_asked_for() -> None:
    spec = replace(SPEC, priority=7)
    assert decide(facts(named(N1), sights=(waits(N1),), spec=spec)).steps == (
        Unhold(id=N1),
        Prioritize(id=N1, priority=7),
    )


def test_of_two_held_jobs_the_lowest_is_named_before_the_other_is_ended() -> None:
    one = pod()
    name, end, release = decide(facts(one, sights=(waits(N2), waits(N1)))).steps
    assert name == NameJob(pod=one, job=N1, submitted=SUBMITTED)
    assert isinstance(end, EndJob)
    assert end.id == N2
    assert release == Unhold(id=N1)


def test_of_two_held_jobs_the_named_one_stays() -> None:
    end, release = decide(facts(named(N2), sights=(waits(N1), waits(N2)))).steps
    assert isinstance(end, EndJob)
    assert (end.id, release) == (N1, Unhold(id=N2))


@pytest.mark.parametrize("reason", ["JobHeldAdmin", "Resources", "Priority"])
def test_only_our_own_hold_is_taken_back(reason: str) -> None:
    decision = decide(facts(named(N1), sights=(waits(N1, reason),)))
    assert not any(isinstance(step, Unhold | NameJob) for step in decision.steps)
    assert decision.verdict.reason is Reason.QUEUED


def test_where_we_choose_ids_a_hold_is_a_persons() -> None:
    decision = decide(facts(named(N1), sights=(waits(N1),), held=False))
    assert not any(isinstance(step, Unhold | NameJob) for step in decision.steps)


@pytest.mark.parametrize("sights", [(), (waits(N2),)])
def test_a_named_job_that_no_list_shows_must_be_denied_before_another_is_submitted_or_named(
    sights: tuple[Sight, ...],
) -> None:
    asked = decide(facts(named(N1), sights=sights))
    assert (asked.steps, asked.reads) == ((), (N1,))
    denied = decide(facts(named(N1), sights=sights, denied=frozenset({N1})))
    assert any(isinstance(step, SubmitHeld | NameJob) for step in denied.steps)


def test_the_job_of_an_earlier_attempt_makes_way_for_the_next() -> None:
    later = Attempt(number=1, since=NOW - 100)
    (end,) = decide(facts(named(N1), sights=(waits(N1),), attempt=later)).steps
    assert isinstance(end, EndJob)
    gone = seen(record(N1, "CANCELLED", nodes=()))
    assert decide(facts(named(N1), sights=(gone,), attempt=later)).steps == (SubmitHeld(spec=SPEC),)


def test_a_cancelled_job_that_a_pod_names_takes_the_pod_along() -> None:
    decision = decide(facts(named(N1), sights=(seen(record(N1, "CANCELLED", nodes=())),)))
    assert any(isinstance(step, DeletePod) for step in decision.steps)


def test_a_vanished_job_is_claimed_again_held_and_pinned() -> None:
    claim = decide(facts(bound(N1), sights=(vanished(N1, record(N1, "RUNNING")),), denied=frozenset({N1})))
    (step,) = (s for s in claim.steps if isinstance(s, SubmitHeld))
    assert step.spec.required_nodes == (SlurmNode("n1"),)


def test_a_claim_is_named_and_goes_before_everybody() -> None:
    one = bound(N1)
    sights = (vanished(N1, record(N1, "RUNNING")), waits(N2, required=(SlurmNode("n1"),)))
    decision = decide(facts(one, sights=sights, denied=frozenset({N1})))
    assert decision.steps == (
        NameJob(pod=one, job=N2, submitted=SUBMITTED),
        Unhold(id=N2),
        Prioritize(id=N2, priority=held.FIRST),
    )


def test_a_job_of_an_earlier_attempt_that_is_back_on_the_place_keeps_it_and_the_claim_goes() -> None:
    """Ended, it would leave devices under containers that live, and the next in the queue might be another."""
    back = seen(record(N1, "RUNNING", mark=mark(0)))
    claim = waits(N2, required=(SlurmNode("n1"),), mark=mark(1))
    later = Attempt(number=1, since=NOW - 100)
    first = decide(facts(sits(N2), sights=(back, claim), attempt=later)).steps
    assert first == (Unhold(id=N2), Prioritize(id=N2, priority=held.FIRST))
    queued = waits(N2, "Resources", required=(SlurmNode("n1"),), mark=mark(1), priority=held.FIRST)
    then = decide(facts(sits(N2), sights=(back, queued), attempt=later)).steps
    (named,) = (step for step in then if isinstance(step, NameJob))
    assert (named.job, [step.id for step in then if isinstance(step, EndJob)]) == (N1, [N2])


def test_a_claim_that_was_named_and_not_released_is_released() -> None:
    decision = decide(facts(sits(N2), sights=(waits(N2, required=(SlurmNode("n1"),)),)))
    assert decision.steps == (Unhold(id=N2), Prioritize(id=N2, priority=held.FIRST))


@pytest.mark.parametrize(
    ("given", "missing"), [(4294901000, True), (held.FIRST, False), (0, False), (None, False)]
)
def test_a_claim_that_was_released_without_its_priority_gets_it(given: int | None, missing: bool) -> None:
    claim = waits(N2, "Priority", required=(SlurmNode("n1"),), priority=given, submitted=NOW - 3000)
    steps = decide(facts(sits(N2, NOW - 3000), sights=(claim,))).steps
    assert (Prioritize(id=N2, priority=held.FIRST) in steps) is missing


@pytest.mark.parametrize(("age", "missing"), [(5, True), (601, False)])
def test_so_does_a_waiting_job_while_it_is_young_enough_for_no_person_to_have_changed_it(
    age: int, missing: bool
) -> None:
    spec, waiting = replace(SPEC, priority=7), waits(N1, "Priority", priority=100, submitted=NOW - age)
    steps = decide(facts(named(N1, NOW - age), sights=(waiting,), spec=spec)).steps
    assert (Prioritize(id=N1, priority=7) in steps) is missing
    unasked = decide(facts(named(N1, NOW - age), sights=(waiting,))).steps
    assert not any(isinstance(step, Prioritize) for step in unasked)


@pytest.mark.parametrize(
    ("reason", "age", "ends"),
    [
        ("Resources", 61, True),
        ("Resources", 59, False),
        *((reason, 600, False) for reason in ("ReqNodeNotAvail", "Priority", "Licenses", "PartitionDown")),
    ],
)
def test_a_claim_that_waits_costs_the_pod_only_if_others_hold_the_place(
    reason: str, age: float, ends: bool
) -> None:
    claim = waits(N2, reason, required=(SlurmNode("n1"),), submitted=NOW - age)
    decision = decide(facts(bound(N2), sights=(claim,)))
    assert any(isinstance(step, DeletePod) for step in decision.steps) is ends


def test_before_that_the_job_whose_place_it_claims_is_asked_for_again_and_every_listed_job_read() -> None:
    claim = waits(N2, "Resources", required=(SlurmNode("n1"),), submitted=NOW - 61)
    sights = (vanished(N1, record(N1, "RUNNING")), claim)
    asked = decide(facts(sits(N2, NOW - 61), sights=sights))
    assert (asked.steps, asked.reads) == ((), (N1,))
    unread = decide(facts(sits(N2, NOW - 61), sights=sights, denied=frozenset({N1}), surveyed=False))
    assert (unread.steps, unread.again) == ((), held.LOOK)
    denied = decide(facts(sits(N2, NOW - 61), sights=sights, denied=frozenset({N1})))
    assert any(isinstance(step, DeletePod) for step in denied.steps)


@pytest.mark.parametrize("states", ["PENDING", "RUNNING"])
@pytest.mark.parametrize("again", [N2, JobId(12)], ids=["a higher number", "a lower number"])
def test_a_running_job_that_lists_lacked_for_a_while_is_named_again_before_its_claim_is_ended(
    states: str, again: JobId
) -> None:
    one, ran = sits(again), seen(record(N1, "RUNNING", submitted=NOW - 400, started=NOW - 399))
    claim = seen(record(again, states, reason="Resources", required=(SlurmNode("n1"),)))
    name, end, *_ = decide(facts(one, sights=(ran, claim), boot_age=10.0)).steps
    assert name == NameJob(pod=one, job=N1, submitted=NOW - 400)
    assert isinstance(end, EndJob)
    assert end.id == again


def test_nothing_is_named_in_place_of_a_job_that_nobody_has_read() -> None:
    ran = seen(record(N1, "RUNNING", submitted=NOW - 400, started=NOW - 399))
    unread = Sight(id=N2, states=frozenset({"RUNNING"}), record=None)
    decision = decide(facts(sits(N2), sights=(ran, unread), current=frozenset({N1, N2})))
    assert not decision.steps


def test_a_double_that_comes_back_is_no_running_pods_job_because_it_is_older() -> None:
    """A list lacked it before the pod was bound, and another was submitted: that one's devices are in use."""
    back = seen(record(N1, "RUNNING", submitted=NOW - 400, started=NOW - 399))
    steps = decide(facts(sits(N2), sights=(back, seen(record(N2, "RUNNING"))))).steps
    (end,) = (step for step in steps if isinstance(step, EndJob))
    assert end.id == N1
    assert not any(isinstance(step, NameJob) for step in steps)


def test_a_claim_that_is_known_from_our_own_submit_only_costs_nothing() -> None:
    claim = waits(N2, "", required=(SlurmNode("n1"),), submitted=0.0)
    assert not decide(facts(bound(N2), sights=(claim,))).steps


def test_an_id_that_went_to_a_native_job_means_that_ours_has_vanished() -> None:
    native = seen(record(N1, "RUNNING", mark=None))
    claim = decide(facts(sits(N1, SUBMITTED - 60), sights=(native,)))
    assert any(isinstance(step, SubmitHeld) for step in claim.steps)


@pytest.mark.parametrize("one", [bound(N1), sits(N1)])
def test_a_label_that_names_somebody_elses_job_claims_nothing(one: Pod) -> None:
    left = decide(facts(one, sights=(seen(record(N1, "RUNNING", mark=None)),)))
    assert left.verdict.reason is Reason.FOREIGN
    assert not any(isinstance(step, SubmitHeld) for step in left.steps)


def test_an_id_that_slurm_gave_out_twice_is_named_anew() -> None:
    stale = named(N1, SUBMITTED - 60)
    name, release = decide(facts(stale, sights=(waits(N1),))).steps
    assert (name, release) == (NameJob(pod=stale, job=N1, submitted=SUBMITTED), Unhold(id=N1))


def test_a_held_job_is_read_before_it_is_named() -> None:
    decision = decide(facts(pod(), sights=(waits(N1, submitted=0.0),)))
    assert (decision.steps, decision.reads) == ((), (N1,))


def test_a_job_of_the_go_project_that_a_person_holds_stays_held() -> None:
    adopted = pod(labels={JOB_ID_LABEL: str(N1)})
    decision = decide(facts(adopted, sights=(waits(N1),)))
    assert not any(isinstance(step, Unhold | NameJob) for step in decision.steps)


def test_a_pod_that_went_while_its_submit_is_in_doubt_is_not_settled() -> None:
    gone = pod(deleted=NOW - 1)
    assert not decide(facts(gone, unknown=True)).settled
    assert decide(facts(gone)).settled


def test_a_held_job_whose_pod_went_is_ended() -> None:
    (end,) = decide(facts(pod(deleted=NOW - 1), sights=(waits(N1),))).steps
    assert isinstance(end, EndJob)
    assert end.id == N1


def test_a_job_that_another_leader_named_under_a_reused_id_is_read_before_ours_is_named() -> None:
    theirs = named(N1, SUBMITTED)
    earlier = seen(record(N1, "RUNNING", mark=None, submitted=SUBMITTED - 60))
    asked = decide(facts(theirs, sights=(earlier, waits(N2))))
    assert (asked.steps, asked.reads) == ((), (N1,))
