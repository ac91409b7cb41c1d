"""The life of one pod, decision by decision. Test names are the promises of docs/design.md."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge.core import jobid
from bridge.core.attempt import Attempt
from bridge.core.facts import NEVER, Refusal
from bridge.core.ledger import Busy
from bridge.core.lifecycle import decide
from bridge.core.model import Condition, KubeNode, Pod, SlurmNode
from bridge.core.steps import (
    EndJob,
    Forsake,
    Nominate,
    Release,
    SetConditions,
    SubmitJob,
)
from bridge.core.verdict import Reason
from bridge.names import (
    JOB_CONDITION,
    SCHEDULING_GATE,
)
from tests.core.build import (
    CLUSTER,
    FAST,
    FIRST,
    IDS,
    KEY,
    NODES,
    NOW,
    SPEC,
    UNSCHEDULABLE,
    facts,
    mark,
    pod,
    record,
    released,
    sight,
    vanished,
)


def kinds(decision: object) -> list[str]:
    return [type(step).__name__ for step in decision.steps]  # type: ignore[attr-defined]


# --- submit ---------------------------------------------------------------------------------------


def test_a_new_pod_is_submitted_under_its_own_job_id() -> None:
    decision = decide(facts(pod()))
    assert decision.steps == (SubmitJob(id=FAST, spec=SPEC),)


def test_the_fast_path_asks_for_the_same_id_as_the_queue_would() -> None:
    """Two bridges that both believe to lead may differ in what they think of the fast path: Slurm must see one id."""
    decision = decide(facts(pod(), fast_allowed=True))
    assert decision.steps == (SubmitJob(id=FAST, spec=SPEC, immediate=True),)


def test_a_failed_fast_path_is_followed_by_the_queue_and_never_ends_the_pod() -> None:
    decision = decide(facts(pod(), sights=(sight(record(FAST, "FAILED")),), fast_allowed=True))
    assert decision.steps == (SubmitJob(id=FIRST, spec=SPEC),)


def test_nothing_is_submitted_while_a_foreign_gate_is_left() -> None:
    decision = decide(facts(pod(gates=(SCHEDULING_GATE, "kueue.x-k8s.io/admission"))))
    assert kinds(decision) == ["SetConditions"]
    assert decision.verdict.reason == Reason.GATHERING
    assert "kueue.x-k8s.io/admission" in decision.verdict.text


def test_nothing_is_submitted_while_slurm_cannot_be_read() -> None:
    decision = decide(facts(pod(), poll_age=30.0))
    assert not [step for step in decision.steps if isinstance(step, SubmitJob)]
    assert decision.again is not None


def test_a_job_id_of_somebody_else_is_stepped_around() -> None:
    foreign = sight(record(FAST, "RUNNING", mark=mark(cluster="another")))
    decision = decide(facts(pod(), sights=(foreign,)))
    assert decision.steps == (SubmitJob(id=FIRST, spec=SPEC),)


def test_a_job_that_may_be_ours_is_read_before_anything_is_submitted() -> None:
    unread = replace(sight(record(FIRST, "RUNNING")), record=None)
    decision = decide(facts(pod(), sights=(unread,)))
    assert decision.steps == ()
    assert decision.reads == (FIRST,)


def test_after_a_restart_a_thousand_waiting_pods_cause_no_urgent_read() -> None:
    unread = replace(sight(record(FIRST, "PENDING")), record=None)
    decision = decide(facts(pod(), sights=(unread,)))
    assert (decision.steps, decision.reads) == ((), ())
    assert decision.verdict.reason == Reason.QUEUED


def test_a_refused_job_is_explained_once_and_tried_again_rarely() -> None:
    refused = Refusal(text="partition nope: Invalid partition name specified", retry_in=60.0)
    decision = decide(facts(pod(), refusal=refused))
    assert kinds(decision) == ["SetConditions", "Notify"]
    assert decision.again == 60.0
    shown = decision.steps[0].conditions[0]  # type: ignore[union-attr]
    again = decide(facts(pod(conditions=(shown,)), refusal=refused))
    assert again.steps == ()


# --- queued ---------------------------------------------------------------------------------------


def test_a_waiting_pod_shows_slurms_reason_and_estimate() -> None:
    waiting = record(FIRST, "PENDING", reason="Resources", started=NOW + 600)
    decision = decide(facts(pod(), sights=(sight(waiting),)))
    (step,) = decision.steps
    assert isinstance(step, SetConditions)
    assert step.conditions[0].type == JOB_CONDITION
    assert "(Resources)" in step.conditions[0].message
    assert "expected to start" in step.conditions[0].message


def test_the_condition_is_written_at_most_once_a_minute() -> None:
    old = Condition(type=JOB_CONDITION, status="False", reason="Pending", message="before", probed=NOW - 30)
    waiting = sight(record(FIRST, "PENDING", reason="Priority"))
    assert decide(facts(pod(conditions=(old,)), sights=(waiting,))).steps == ()
    older = replace(old, probed=NOW - 61)
    assert kinds(decide(facts(pod(conditions=(older,)), sights=(waiting,)))) == ["SetConditions"]


def test_an_estimate_that_moves_alone_is_written_every_ten_minutes() -> None:
    def shows(estimate: float, age: float) -> bool:
        waiting = record(FIRST, "PENDING", reason="Resources", started=NOW + estimate)
        (step,) = decide(facts(pod(), sights=(sight(waiting),))).steps
        old = replace(step.conditions[0], probed=NOW - age)  # type: ignore[union-attr]
        later = replace(waiting, started=NOW + estimate + 120)
        return bool(decide(facts(pod(conditions=(old,)), sights=(sight(later),))).steps)

    assert not shows(600, age=120)
    assert shows(600, age=601)


def test_an_unchanged_condition_is_never_written_again() -> None:
    waiting = sight(record(FIRST, "PENDING", reason="Priority"))
    (step,) = decide(facts(pod(), sights=(waiting,))).steps
    shown = replace(step.conditions[0], probed=NOW - 3600)  # type: ignore[union-attr]
    assert decide(facts(pod(conditions=(shown,)), sights=(waiting,))).steps == ()


def test_a_person_who_cancels_a_waiting_job_takes_the_pod_along() -> None:
    decision = decide(facts(pod(), sights=(sight(record(FIRST, "CANCELLED", nodes=())),)))
    assert kinds(decision) == ["SetConditions", "Notify", "DeletePod"]
    assert decision.verdict.reason == Reason.CANCELLED


# --- granted --------------------------------------------------------------------------------------


def test_a_grant_is_nominated_and_released_in_two_writes() -> None:
    decision = decide(facts(pod(), sights=(sight(record(FIRST, "RUNNING")),)))
    nominate, release = decision.steps
    assert isinstance(nominate, Nominate)
    assert nominate.node == "n1"
    assert nominate.conditions[0].status == "True"
    assert release == Release(pod=pod(), job=FIRST, node=KubeNode("n1"), gpus="0-1", started=int(NOW) - 4)


@pytest.mark.parametrize("flag", ["CONFIGURING", "COMPLETING", "POWER_UP_NODE"])
def test_running_with_a_prolog_or_boot_under_way_is_no_grant(flag: str) -> None:
    decision = decide(facts(pod(), sights=(sight(record(FIRST, "RUNNING", flag)),)))
    assert not {"Nominate", "Release"} & set(kinds(decision))


def test_an_ungated_pod_gets_its_label_before_the_nomination() -> None:
    decision = decide(facts(pod(gates=()), sights=(sight(record(FIRST, "RUNNING")),)))
    assert kinds(decision) == ["Release", "Nominate"]


def test_a_lost_nomination_is_written_again_and_nothing_else() -> None:
    granted = sight(record(FIRST, "RUNNING"))
    assert decide(facts(released(FIRST), sights=(granted,))).steps == ()
    decision = decide(facts(released(FIRST, nominated=KubeNode("")), sights=(granted,)))
    assert kinds(decision) == ["Nominate"]


def test_enough_pods_on_their_way_hold_further_grants_back() -> None:
    decision = decide(facts(pod(), sights=(sight(record(FIRST, "RUNNING")),), room=False))
    assert decision.steps == ()
    assert decision.verdict.reason == Reason.THROTTLED


# --- lost grant -----------------------------------------------------------------------------------


def refused() -> Pod:
    return released(FIRST, conditions=(UNSCHEDULABLE,))


def test_a_pod_not_bound_in_time_gives_its_grant_back_and_excludes_the_node() -> None:
    decision = decide(facts(refused(), sights=(sight(record(FIRST, "RUNNING")),), granted_age=31.0))
    assert kinds(decision) == ["Forsake", "Nominate", "EndJob", "Notify"]
    forsake = decision.steps[0]
    assert isinstance(forsake, Forsake)
    assert forsake.attempt == Attempt(1, (SlurmNode("n1"),), since=NOW)
    back = decision.steps[1]
    assert isinstance(back, Nominate)
    assert back.node == ""
    assert "given back" in back.conditions[0].message


@pytest.mark.parametrize(
    "shown", [(), (Condition(type="PodScheduled", status="False", reason="SchedulingGated"),)]
)
def test_a_kube_scheduler_that_says_nothing_of_the_pod_is_told_and_no_node_is_to_blame(
    shown: tuple[Condition, ...],
) -> None:
    waits, running = released(FIRST, conditions=shown), (sight(record(FIRST, "RUNNING")),)
    (told,) = decide(facts(waits, sights=running, granted_age=31.0)).steps
    assert isinstance(told, SetConditions)
    assert "kube-scheduler has not looked at the pod" in told.conditions[0].message
    back = decide(facts(waits, sights=running, granted_age=301.0))
    assert kinds(back) == ["Forsake", "Nominate", "EndJob", "Notify"]
    assert isinstance(back.steps[0], Forsake)
    assert back.steps[0].attempt.excluded == ()


def test_a_hand_over_that_the_api_server_refuses_is_told_and_then_gives_its_grant_back() -> None:
    why = "the API server does not let the pod go to its node: denied by policy"
    running = (sight(record(FIRST, "RUNNING")),)
    told = decide(facts(pod(), sights=running, barred=why)).steps[0]
    assert isinstance(told, SetConditions)
    assert why in told.conditions[0].message
    stuck = decide(facts(pod(), sights=running, barred=why, stuck=why))
    assert kinds(stuck) == ["Forsake", "Nominate", "EndJob", "Notify"]
    assert stuck.verdict.text == why


def test_a_grant_over_the_place_of_a_pod_that_lost_its_job_is_given_back_at_once() -> None:
    running = (sight(record(FIRST, "RUNNING")),)
    decision = decide(facts(pod(), sights=running, busy={FIRST: Busy(claims=(), homeless=True)}))
    assert kinds(decision) == ["Forsake", "Nominate", "EndJob", "Notify"]
    assert "gets its place back" in decision.verdict.text


@pytest.mark.parametrize(("left", "given_back"), [(1.0, False), (0.0, True)])
def test_a_grant_that_waits_for_its_gpus_is_given_back_when_the_pods_limit_is_over(
    left: float, given_back: bool
) -> None:
    """The job itself lasts longer, for the pod's grace: the pod would be started only to be ended."""
    granted = record(FIRST, "RUNNING", time_limit=3, started=NOW - 60.0 + left, ended=NOW + 120.0 + left)
    spec = replace(SPEC, user_limit=1, time_limit=3)
    decision = decide(facts(pod(), sights=(sight(granted),), spec=spec, busy={FIRST: Busy(claims=())}))
    assert ("Forsake" in kinds(decision)) is given_back


def test_the_attempt_is_written_before_the_job_ends_or_our_cancel_would_look_like_a_persons() -> None:
    names = kinds(decide(facts(refused(), sights=(sight(record(FIRST, "RUNNING")),), granted_age=31.0)))
    assert names.index("Forsake") < names.index("EndJob")


@pytest.mark.parametrize("state", ["NODE_FAIL", "PREEMPTED", "TIMEOUT", "BOOT_FAIL"])
def test_a_grant_that_slurm_took_back_before_the_bind_is_asked_for_again(state: str) -> None:
    decision = decide(facts(released(FIRST), sights=(sight(record(FIRST, state)),)))
    assert kinds(decision) == ["Forsake", "Nominate", "Notify"]


@pytest.mark.parametrize(("ready", "cordoned"), [(True, True), (False, False)])
def test_a_grant_on_a_node_that_kubernetes_closed_is_given_back_at_once(ready: bool, cordoned: bool) -> None:
    closed = {SlurmNode("n1"): replace(NODES[SlurmNode("n1")], ready=ready, cordoned=cordoned)}
    decision = decide(facts(pod(), sights=(sight(record(FIRST, "RUNNING")),), nodes=closed))
    assert decision.steps[0].attempt.closed == ("n1",)  # type: ignore[union-attr]
    assert kinds(decision) == ["Forsake", "Nominate", "EndJob", "Notify"]


def test_a_grant_on_a_node_without_a_kubernetes_twin_is_given_back() -> None:
    decision = decide(facts(pod(), sights=(sight(record(FIRST, "RUNNING")),), nodes={}))
    assert kinds(decision) == ["Forsake", "Nominate", "EndJob", "Notify"]


def test_the_next_attempt_waits_and_then_uses_a_new_id() -> None:
    attempt = Attempt(2, (SlurmNode("n1"),), since=NOW - 1.5)
    early = decide(facts(pod(gates=()), attempt=attempt))
    assert early.steps == ()
    assert early.again == pytest.approx(0.5)
    later = decide(facts(pod(gates=()), attempt=replace(attempt, since=NOW - 3)))
    assert later.steps[0].id == jobid.job_id(IDS, CLUSTER, KEY.uid, 2, jobid.FAST)  # type: ignore[union-attr]


def test_a_live_job_of_an_earlier_attempt_ends_before_the_next_submit() -> None:
    old = sight(record(FIRST, "RUNNING"))
    decision = decide(facts(pod(gates=()), sights=(old,), attempt=Attempt(1, since=NOW - 100)))
    assert [s.id for s in decision.steps if isinstance(s, EndJob)] == [FIRST]
    assert not [s for s in decision.steps if isinstance(s, SubmitJob)]


def test_of_two_live_jobs_the_running_one_is_kept() -> None:
    two = (sight(record(FIRST, "PENDING")), sight(record(FAST, "RUNNING")))
    decision = decide(facts(pod(), sights=two))
    assert [s.id for s in decision.steps if isinstance(s, EndJob)] == [FIRST]


def test_a_double_that_we_cancelled_is_not_taken_for_a_persons_cancel() -> None:
    two = (sight(record(FIRST, "CANCELLED", nodes=())), sight(record(FAST, "NODE_FAIL")))
    decision = decide(facts(released(FAST), sights=two))
    assert decision.verdict.reason == Reason.LOST_GRANT


def test_nothing_is_submitted_before_the_owner_has_been_read_and_the_pod_says_so_after_a_while() -> None:
    decision = decide(facts(pod(), unread="Job default/train", known_for=1.0))
    assert decision.steps == ()
    assert "Job default/train" in decision.verdict.text
    assert kinds(decide(facts(pod(), unread="Job default/train", known_for=11.0))) == ["SetConditions"]


def test_after_too_many_lost_grants_the_pod_says_that_it_waits_for_a_person() -> None:
    decision = decide(facts(pod(gates=()), attempt=Attempt(21, since=NOW - 1000)))
    assert kinds(decision) == ["SetConditions", "Notify"]
    assert "delete the pod" in decision.verdict.text


def test_a_pod_that_arrives_while_slurm_is_away_says_so_after_a_while() -> None:
    assert decide(facts(pod(), poll_age=8.0)).steps == ()
    (step,) = decide(facts(pod(), poll_age=11.0)).steps
    assert isinstance(step, SetConditions)
    assert "does not answer" in step.conditions[0].message
    shown = pod(conditions=step.conditions)
    assert decide(facts(shown, poll_age=600.0)).steps == ()


def test_an_immediate_allocation_without_an_answer_is_asked_for_again_under_the_same_id() -> None:
    decision = decide(facts(pod(), doubted=frozenset({FAST}), fast_allowed=False))
    assert decision.steps == (SubmitJob(id=FAST, spec=SPEC),)


def test_a_job_that_one_list_lacks_is_asked_for_again_under_its_own_id() -> None:
    lacking = (vanished(FIRST, record(FIRST, "PENDING")), sight(record(FAST, "FAILED")))
    first = decide(facts(pod(), sights=lacking))
    assert (first.steps, first.reads) == ((), (FIRST,))
    denied = decide(facts(pod(), sights=lacking, denied=frozenset({FIRST})))
    assert denied.steps == (SubmitJob(id=FIRST, spec=SPEC),)


def test_a_grant_that_had_to_wait_for_its_turn_is_not_given_back() -> None:
    """Enough other pods were on their way: kube-scheduler never had this one."""
    decision = decide(facts(pod(), sights=(sight(record(FIRST, "RUNNING")),), room=False, granted_age=500.0))
    assert decision.steps == ()
    assert decision.verdict.reason == Reason.THROTTLED


def test_a_submit_that_keeps_failing_is_told_on_the_pod_and_tried_again() -> None:
    decision = decide(facts(pod(), trouble="the job can't be submitted, and is tried again: MaxJobCount"))
    assert kinds(decision) == ["SetConditions", "SubmitJob"]
    assert "MaxJobCount" in decision.steps[0].conditions[0].message  # type: ignore[union-attr]


def test_a_bridge_that_has_just_started_does_not_say_that_slurm_is_silent() -> None:
    """It has not been asked yet; what is said stands for a minute."""
    unread = facts(pod(), poll_age=NEVER)
    assert kinds(decide(unread)) == ["SetConditions"]
    assert kinds(decide(replace(unread, known_for=0.5))) == []


def test_what_the_author_of_a_pod_should_know_stands_beside_what_slurm_says_about_its_job() -> None:
    noticed = replace(SPEC, notice="slinky.slurm.net/qos is an old name")
    waiting = sight(record(FIRST, "PENDING", reason="Resources"))
    (told,) = decide(facts(pod(), sights=(waiting,), spec=noticed)).steps
    assert isinstance(told, SetConditions)
    assert told.conditions[0].message.endswith("(Resources); slinky.slurm.net/qos is an old name")
