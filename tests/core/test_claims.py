"""Bound pods whose job vanished from Slurm: the place is claimed again, and nothing is lost on the way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bridge.core.attempt import Attempt
from bridge.core.facts import ClaimRefused, Sight
from bridge.core.lifecycle import decide
from bridge.core.model import Condition, JobId, JobRecord, SlurmNode
from bridge.core.steps import Decision, DeletePod, DrainNode, EndJob, SetConditions, SubmitJob
from bridge.core.verdict import Reason
from bridge.names import GPUS_ANNOTATION
from tests.core.build import FAST, FIRST, NOW, SECOND, SPEC, bound, facts, record, sight, vanished

GONE = (vanished(FIRST, record(FIRST, "RUNNING")),)


def look(**changes: Any) -> Decision:
    base: dict[str, Any] = {"sights": GONE, "denied": frozenset({FIRST})}
    return decide(facts(bound(FIRST), **(base | changes)))


def claimed(decision: Decision) -> SubmitJob:
    (step,) = (s for s in decision.steps if isinstance(s, SubmitJob))
    return step


def busy(times: int, age: float = 20.0) -> ClaimRefused:
    return ClaimRefused(text="Requested nodes are busy", age=age, taken=times)


def test_an_absent_job_is_asked_for_by_its_id_before_anything_else() -> None:
    decision = look(denied=frozenset())
    assert (decision.steps, decision.reads) == ((), (FIRST,))
    assert decision.verdict.reason == Reason.JOB_ABSENT


def test_the_place_is_claimed_under_the_same_id_on_the_same_node_ahead_of_the_queue() -> None:
    """The same id: should the job exist after all, Slurm refuses a second one."""
    step = claimed(look(spec=replace(SPEC, excluded_nodes=(SlurmNode("n1"),), begin="now+1hour", nice=5)))
    assert (step.id, step.immediate) == (FIRST, True)
    assert step.spec.required_nodes == ("n1",)
    assert step.spec.excluded_nodes == ()
    assert (step.spec.begin, step.spec.nice) == ("", None)
    assert step.spec.priority is not None


def test_a_job_that_runs_as_another_user_is_claimed_through_the_queue() -> None:
    """An immediate allocation always belongs to the token's user."""
    assert not claimed(look(spec=replace(SPEC, user="alice"))).immediate


def test_a_claim_does_not_wait_for_the_grace_of_a_boot_and_says_nothing_alarming_in_it() -> None:
    decision = look(boot_age=10.0)
    assert claimed(decision)
    assert not [s for s in decision.steps if isinstance(s, SetConditions)]


def test_a_pod_that_waits_for_its_place_says_so() -> None:
    (told,) = (s for s in look().steps if isinstance(s, SetConditions))
    assert "no longer in Slurm" in told.conditions[0].message


def test_a_refused_claim_is_repeated_after_a_pause_under_another_id_of_the_attempt() -> None:
    """What the first left under its id is FAILED and holds that id."""
    left = sight(record(FIRST, "FAILED"))
    young = look(sights=(left,), claim_refused=busy(1, age=5.0))
    assert not [s for s in young.steps if isinstance(s, SubmitJob)]
    assert young.again == 10.0
    assert claimed(look(sights=(left,), claim_refused=busy(1))).id == FAST
    both = (left, sight(record(FAST, "FAILED")))
    assert claimed(look(sights=both, claim_refused=busy(2))).id == SECOND


def test_a_pod_is_ended_only_when_slurm_says_three_times_that_others_hold_its_place() -> None:
    left = sight(record(FIRST, "FAILED"))
    for refused in (
        busy(2),
        replace(busy(0), text="Required node not available (down, drained or reserved)"),
    ):
        assert not [s for s in look(sights=(left,), claim_refused=refused).steps if isinstance(s, DeletePod)]
    in_grace = look(sights=(left,), claim_refused=busy(3), boot_age=10.0)
    assert not [s for s in in_grace.steps if isinstance(s, DeletePod)]
    ended = look(sights=(left,), claim_refused=busy(3))
    (delete,) = (s for s in ended.steps if isinstance(s, DeletePod))
    assert delete.guarded
    assert "others hold its place" in delete.verdict.text


def test_a_claim_without_an_answer_is_sent_again_under_the_same_id() -> None:
    assert claimed(look(denied=frozenset(), doubted=frozenset({FIRST}))).id == FIRST


def test_a_job_under_another_id_of_the_attempt_is_read_before_the_place_is_claimed_once_more() -> None:
    """Another leader may have claimed it, and its job waits."""
    other = Sight(id=SECOND, states=frozenset({"PENDING"}), record=None)
    decision = look(sights=(*GONE, other))
    assert not [s for s in decision.steps if isinstance(s, SubmitJob)]
    assert decision.reads == (SECOND,)


def test_a_claim_that_succeeded_is_read_and_no_second_one_is_sent() -> None:
    fresh = record(FAST, "RUNNING", nodes=(), gres=())
    decision = look(sights=(sight(record(FIRST, "FAILED")), sight(fresh)))
    assert not [s for s in decision.steps if isinstance(s, SubmitJob)]
    assert decision.reads == (FAST,)


def test_once_the_place_is_held_again_the_pod_belongs_to_the_new_job() -> None:
    decision = look(sights=(sight(record(FIRST, "FAILED")), sight(record(FAST, "RUNNING"))))
    assert decision.verdict.reason == Reason.RUNNING
    assert [type(s).__name__ for s in decision.steps] == ["Release"]


def test_a_job_of_the_group_that_runs_elsewhere_is_ended_before_the_place_is_claimed() -> None:
    astray = record(SECOND, "RUNNING", nodes=(SlurmNode("n3"),))
    (step,) = (s for s in look(sights=(*GONE, sight(astray))).steps if isinstance(s, EndJob))
    assert step.id == SECOND


@pytest.mark.parametrize("nodes", [{}])
def test_a_pod_on_a_node_that_slurm_has_no_name_for_is_kept(nodes: dict[str, str]) -> None:
    decision = look(nodes=nodes)
    assert not [s for s in decision.steps if isinstance(s, SubmitJob | DeletePod)]


@pytest.mark.parametrize("drained", [frozenset(), frozenset({SlurmNode("n1")})])
def test_a_place_that_came_back_with_other_gpus_is_drained_once(drained: frozenset[SlurmNode]) -> None:
    """The pod goes on with GPUs 0-1; to Slurm these are free now."""
    at = Condition(type="PodScheduled", status="True", changed=NOW - 300)
    again = record(
        FIRST, "RUNNING", gres=("gpu:h100:2(IDX:2-3)",), required=(SlurmNode("n1"),), started=NOW - 30
    )
    decision = decide(facts(bound(FIRST, conditions=(at,)), sights=(sight(again),), drained=drained))
    found = [s for s in decision.steps if isinstance(s, DrainNode)]
    assert [s.node for s in found] == ([] if drained else ["n1"])
    assert all("uses GPUs 0-1" in s.reason and "counts 2-3" in s.reason for s in found)


@pytest.mark.parametrize(
    ("since", "booted", "anew"),
    [
        (70, 0, True),
        (2, 31, True),
        (2, 33, False),
        (2, 0, False),
        (2, 20, True),
        (2, 1, True),
        (-1, 20, False),
    ],
)
def test_a_job_that_began_anew_under_its_pod_and_counts_other_gpus_drains_its_node(
    since: float, booted: float, anew: bool
) -> None:
    """slurmctld came up without the start of the job, and started it again on the same node; or it was requeued. It may
    have come up once more since."""
    at = Condition(type="PodScheduled", status="True", changed=NOW - 30 - since)
    again = record(FIRST, "RUNNING", gres=("gpu:h100:2(IDX:2-3)",), started=NOW - 30)
    seen = facts(bound(FIRST, conditions=(at,)), sights=(sight(again),), booted=booted and NOW - booted)
    drained = [s.node for s in decide(seen).steps if isinstance(s, DrainNode)]
    assert drained == (["n1"] if anew else [])


@pytest.mark.parametrize("nodes", [(), (SlurmNode("n1"),)], ids=["anywhere", "steered by a person"])
@pytest.mark.parametrize("job", [FIRST, JobId(4711)], ids=["ours", "of the Go project"])
def test_an_edited_annotation_drains_no_node(job: JobId, nodes: tuple[SlurmNode, ...]) -> None:
    at = Condition(type="PodScheduled", status="True", changed=NOW - 300)
    edited = bound(job, annotations={GPUS_ANNOTATION: "6-7"}, conditions=(at,))
    running = replace(record(job, "RUNNING", started=NOW - 301), required=nodes)
    decision = decide(facts(edited, sights=(sight(running),)))
    assert decision.verdict.reason == Reason.RUNNING
    assert not [s for s in decision.steps if isinstance(s, DrainNode)]


def test_a_job_that_a_person_steered_while_it_waited_gives_its_pod_all_of_its_time() -> None:
    """ReqNodeList is what people may set; only our own mark says that a job asks for a place again."""
    waited = replace(
        record(
            FIRST, "RUNNING", submitted=NOW - 7200, started=NOW - 1, ended=NOW - 1 + 62 * 60, time_limit=62
        ),
        required=(SlurmNode("n1"),),
    )
    decision = decide(facts(bound(FIRST), sights=(sight(waited),), spec=LIMITED))
    assert decision.verdict.reason == Reason.RUNNING


def test_a_label_that_was_edited_to_a_free_id_costs_the_running_job_nothing() -> None:
    real = sight(record(FAST, "RUNNING"))
    decision = decide(facts(bound(SECOND), sights=(real,), denied=frozenset({SECOND})))
    assert [type(s).__name__ for s in decision.steps] == ["Release"]
    assert decision.verdict.reason == Reason.RUNNING


def test_a_job_on_nodes_that_we_do_not_know_is_never_called_astray() -> None:
    elsewhere = record(SECOND, "RUNNING", nodes=(SlurmNode("renamed"),))
    decision = look(sights=(*GONE, sight(elsewhere)))
    assert not [s for s in decision.steps if isinstance(s, EndJob)]


def test_a_failed_job_that_is_still_completing_is_no_vanished_one() -> None:
    """Slurm lists no nodes of it any more; its end is real, and nothing is claimed."""
    ending = record(FIRST, "FAILED", "COMPLETING", nodes=(), gres=())
    decision = decide(facts(bound(FIRST), sights=(sight(ending),)))
    assert [type(s).__name__ for s in decision.steps] == ["SetConditions", "Notify", "DeletePod"]


def test_an_edited_attempt_makes_no_second_job_for_a_running_pod() -> None:
    """The job of attempt 0 is known by its mark, whatever the pod's annotations say by now."""
    edited = Attempt(100, since=1.0)
    real = sight(record(FIRST, "RUNNING"))
    decision = decide(facts(bound(JobId(7)), sights=(real,), attempt=edited, denied=frozenset({JobId(7)})))
    assert not [s for s in decision.steps if isinstance(s, SubmitJob)]
    assert decision.verdict.reason == Reason.RUNNING


def test_a_pod_that_is_being_deleted_asks_for_no_place() -> None:
    decision = decide(facts(bound(FIRST, deleted=NOW), sights=GONE, denied=frozenset({FIRST})))
    assert decision.steps == ()


def test_a_job_that_ended_and_was_forgotten_since_is_no_vanished_one() -> None:
    """MinJobAge is over; what its own record said last still counts."""
    over = (vanished(FIRST, record(FIRST, "CANCELLED")),)
    decision = look(sights=over)
    assert [type(s).__name__ for s in decision.steps] == ["SetConditions", "Notify", "DeletePod"]


def test_what_slurm_said_minutes_ago_costs_no_pod_its_place() -> None:
    """Every id of the attempt may be used up by refused claims; others may have gone since."""
    assert [type(s) for s in look(claim_refused=busy(3)).steps if isinstance(s, DeletePod)]
    assert not [s for s in look(claim_refused=replace(busy(3), age=61.0)).steps if isinstance(s, DeletePod)]


def test_a_place_that_is_held_for_another_pod_of_ours_is_claimed_through_the_queue_and_never_given_up() -> (
    None
):
    """That grant is given back, and what comes free goes to whoever is first in the queue."""
    left = sight(record(FIRST, "FAILED"))
    assert not claimed(look(wanted=True)).immediate
    assert not claimed(look(sights=(left,), claim_refused=busy(3), wanted=True)).immediate


@pytest.mark.parametrize(
    ("reason", "waited", "ends"),
    [("Resources", 61.0, True), ("Resources", 30.0, False), ("Licenses", 61.0, False)],
)
def test_a_claim_under_another_id_that_waits_because_others_hold_the_place_ends_the_pod(
    reason: str, waited: float, ends: bool
) -> None:
    required = (SlurmNode("n1"),)
    waits = record(
        FAST, "PENDING", nodes=(), gres=(), reason=reason, required=required, submitted=NOW - waited
    )
    decision = look(sights=(sight(record(FIRST, "FAILED")), sight(waits)), claim_refused=busy(1))
    assert any(isinstance(s, DeletePod) for s in decision.steps) is ends


# --- time limits ----------------------------------------------------------------------------------

LIMITED = replace(SPEC, user_limit=60, time_limit=62)


def read_before(minutes: float, limit: int = 62) -> JobRecord:
    """The last that is known of a job that started so long ago."""
    started = NOW - minutes * 60
    return record(FIRST, "RUNNING", started=started, ended=started + limit * 60, time_limit=limit)


def placed_for(minutes: float, *, sights: tuple[Sight, ...] = (), **changes: Any) -> Decision:
    """A look at a pod that was bound so long ago, and whose job has vanished since."""
    told = Condition(type="PodScheduled", status="True", changed=NOW - minutes * 60)
    known = sights or (vanished(FIRST, read_before(minutes)),)
    base: dict[str, Any] = {"sights": known, "denied": frozenset({FIRST}), "spec": LIMITED}
    return decide(facts(bound(FIRST, conditions=(told,)), **(base | changes)))


def test_a_pod_whose_job_vanished_is_ended_at_its_time_limit_and_asks_for_no_place() -> None:
    decision = placed_for(60.5)
    assert [type(s).__name__ for s in decision.steps] == ["SetConditions", "Notify", "DeletePod"]
    assert decision.verdict.reason == Reason.TIME_LIMIT
    (delete,) = (s for s in decision.steps if isinstance(s, DeletePod))
    assert delete.guarded, "an absence: the breaker is asked"


def test_so_is_one_whose_claims_slurm_refuses() -> None:
    closed = replace(busy(0), text="Required node not available (down, drained or reserved)")
    assert placed_for(61.0, claim_refused=closed).verdict.reason == Reason.TIME_LIMIT


@pytest.mark.parametrize(("minutes", "limit"), [(0.0, 62), (20.5, 42), (59.9, 3)])
def test_a_claim_asks_for_what_is_left_of_the_time_limit(minutes: float, limit: int) -> None:
    assert claimed(placed_for(minutes)).spec.time_limit == limit


def test_while_slurmctld_settles_the_place_is_claimed_for_a_minute_and_the_pod_lives() -> None:
    decision = placed_for(90.0, boot_age=10.0)
    assert claimed(decision).spec.time_limit == 3
    assert not [s for s in decision.steps if isinstance(s, DeletePod)]


def test_a_limit_that_somebody_changed_counts_as_the_last_record_of_the_job_has_it() -> None:
    extended = placed_for(90.0, sights=(vanished(FIRST, read_before(90.0, limit=180)),))
    assert claimed(extended).spec.time_limit == 90
    shorter = placed_for(90.0, sights=(vanished(FIRST, read_before(90.0, limit=70)),))
    assert shorter.verdict.reason == Reason.TIME_LIMIT


def test_where_nobody_knows_the_limit_of_the_job_none_is_over() -> None:
    """After a restart of the bridge: an administrator may have extended it."""
    assert claimed(placed_for(9000.0, sights=(vanished(FIRST),))).spec.time_limit == 62
    assert claimed(placed_for(9000.0, sights=(vanished(FIRST),), spec=SPEC)).spec.time_limit is None


@pytest.mark.parametrize(("passed", "ends"), [(60.0, False), (121.0, True)])
def test_a_claim_for_the_rest_of_a_limit_ends_its_pod_where_the_limit_does(passed: float, ends: bool) -> None:
    started = NOW - passed
    again = record(
        FIRST,
        "RUNNING",
        started=started,
        ended=started + 4 * 60,  # two minutes were left
        time_limit=4,
        required=(SlurmNode("n1"),),
    )
    decision = placed_for(60.0, sights=(sight(again),))
    assert any(isinstance(s, DeletePod) for s in decision.steps) is ends
    assert "no more than" not in decision.verdict.text


@pytest.mark.parametrize(("passed", "ends"), [(119.0, False), (121.0, True)])
@pytest.mark.parametrize("state", ["PENDING", "FAILED"])
def test_a_claim_that_has_no_place_yet_ends_its_pod_where_the_limit_does(
    state: str, passed: float, ends: bool
) -> None:
    """Two minutes were left, and two are on top; slurmctld said no, or makes it wait."""
    again = record(
        FIRST, state, submitted=NOW - passed, time_limit=4, required=(SlurmNode("n1"),), reason="Licenses"
    )
    decision = placed_for(60.0, sights=(sight(again),), claim_refused=busy(0))
    assert any(isinstance(s, DeletePod) for s in decision.steps) is ends
    assert (decision.verdict.reason == Reason.TIME_LIMIT) is ends


def test_a_claim_that_waited_before_it_ran_ends_its_pod_no_later_for_that() -> None:
    started = NOW - 30
    again = record(
        FIRST,
        "RUNNING",
        submitted=NOW - 121,
        started=started,
        ended=started + 4 * 60,
        time_limit=4,
        required=(SlurmNode("n1"),),
    )
    assert any(isinstance(s, DeletePod) for s in placed_for(60.0, sights=(sight(again),)).steps)
