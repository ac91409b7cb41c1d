"""Bound pods and how they end: what is evidence, and what is not. The exit status: test_exits.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bridge.core import jobid
from bridge.core.attempt import Attempt
from bridge.core.facts import Facts, Member
from bridge.core.lifecycle import decide
from bridge.core.model import (
    Condition,
    ContainerStatus,
    Gang,
    Group,
    GroupKey,
    JobId,
    KubeNode,
    Pod,
    SlurmNode,
    Uid,
)
from bridge.core.steps import (
    DeletePod,
    DropFinalizer,
    EndJob,
    Notify,
    Release,
    SetConditions,
)
from bridge.core.verdict import Reason
from bridge.names import (
    DISRUPTION_CONDITION,
    SCHEDULED_CONDITION,
    UPSTREAM_FINALIZER,
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
    bound,
    facts,
    mark,
    pod,
    record,
    sight,
)


def kinds(decision: object) -> list[str]:
    return [type(step).__name__ for step in decision.steps]  # type: ignore[attr-defined]


# --- placed: evidence -----------------------------------------------------------------------------

ENDS = [
    "CANCELLED",
    "TIMEOUT",
    "PREEMPTED",
    "NODE_FAIL",
    "DEADLINE",
    "OUT_OF_MEMORY",
    "BOOT_FAIL",
    "COMPLETED",
]


@pytest.mark.parametrize("state", ENDS)
def test_a_bound_pod_goes_with_its_ended_job_condition_first(state: str) -> None:
    decision = decide(facts(bound(FIRST), sights=(sight(record(FIRST, state)),)))
    condition, notify, delete = decision.steps
    assert isinstance(condition, SetConditions)
    assert condition.conditions[0].type == DISRUPTION_CONDITION
    assert isinstance(notify, Notify)
    assert isinstance(delete, DeletePod)
    assert str(FIRST) in notify.verdict.text


def test_a_stale_picture_never_deletes_a_pod_even_if_it_shows_an_end() -> None:
    decision = decide(facts(bound(FIRST), sights=(sight(record(FIRST, "CANCELLED")),), poll_age=60.0))
    assert decision.steps == ()


def test_an_end_that_was_not_read_in_full_never_deletes_a_pod() -> None:
    running = record(FIRST, "RUNNING")
    decision = decide(facts(bound(FIRST), sights=(sight(running, frozenset({"CANCELLED"})),)))
    assert decision.steps == ()
    assert decision.reads == (FIRST,)


def test_after_a_restart_a_thousand_running_pods_cause_no_urgent_read() -> None:
    unread = replace(sight(record(FIRST, "RUNNING")), record=None)
    decision = decide(facts(bound(FIRST), sights=(unread,)))
    assert (decision.steps, decision.reads) == ((), ())


def test_a_job_with_another_mark_never_deletes_a_pod() -> None:
    successor = GroupKey("default", "Pod", "train-0", "uid-2")
    for other in (mark(cluster="another"), mark(key=successor), None):
        (told,) = decide(facts(bound(FIRST), sights=(sight(record(FIRST, "CANCELLED", mark=other)),))).steps
        assert isinstance(told, SetConditions)


@pytest.mark.parametrize("states", [("SUSPENDED",), ("RUNNING", "SIGNALING"), ("RUNNING", "STOPPED")])
def test_a_suspended_or_stopped_job_leaves_its_pod_alone(states: tuple[str, ...]) -> None:
    decision = decide(facts(bound(FIRST), sights=(sight(record(FIRST, *states)),)))
    assert not [s for s in decision.steps if isinstance(s, DeletePod | EndJob)]


def test_a_rolled_back_job_is_no_evidence_within_the_grace_of_a_boot() -> None:
    for rolled in (
        record(FIRST, "PENDING", submitted=NOW - 90),
        record(FIRST, "RUNNING", nodes=(SlurmNode("n2"),)),
    ):
        young = decide(facts(bound(FIRST), sights=(sight(rolled),), boot_age=10.0))
        assert not [s for s in young.steps if isinstance(s, DeletePod)]
        old = decide(facts(bound(FIRST), sights=(sight(rolled),), boot_age=400.0))
        assert [s for s in old.steps if isinstance(s, DeletePod)]


def test_node_fail_right_after_a_boot_is_no_evidence() -> None:
    decision = decide(facts(bound(FIRST), sights=(sight(record(FIRST, "NODE_FAIL")),), boot_age=10.0))
    assert not [s for s in decision.steps if isinstance(s, DeletePod)]


def test_a_failed_node_is_no_evidence_while_nobody_can_tell_if_it_was_the_pods() -> None:
    other = replace(record(FIRST, "NODE_FAIL"), nodes=(SlurmNode("n9"),))
    decision = decide(facts(bound(FIRST), sights=(sight(other),), nodes={}))
    assert kinds(decision) == []
    assert "Kubernetes does not list the pod's node" in decision.verdict.text


def test_a_failed_fast_path_record_is_no_evidence_about_a_bound_pod() -> None:
    failed = record(FAST, "FAILED", nodes=())
    decision = decide(facts(bound(FAST), sights=(sight(failed),)))
    assert not [s for s in decision.steps if isinstance(s, DeletePod)]


def test_a_pod_being_deleted_is_not_deleted_twice() -> None:
    decision = decide(facts(bound(FIRST, deleted=NOW), sights=(sight(record(FIRST, "CANCELLED")),)))
    assert decision.steps == ()


def test_steady_state_writes_nothing() -> None:
    decision = decide(facts(bound(FIRST), sights=(sight(record(FIRST, "RUNNING")),)))
    assert decision.steps == ()


def test_a_late_bind_reply_is_repaired() -> None:
    wrong = Condition(type=SCHEDULED_CONDITION, status="False", reason="SchedulerError")
    decision = decide(facts(bound(FIRST, conditions=(wrong,)), sights=(sight(record(FIRST, "RUNNING")),)))
    (step,) = decision.steps
    assert isinstance(step, SetConditions)
    assert (step.conditions[0].type, step.conditions[0].status) == (SCHEDULED_CONDITION, "True")


def test_a_late_bind_reply_is_not_repaired_by_a_job_that_seems_to_wait() -> None:
    """Its start is not known, and the binding must not look older."""
    wrong = Condition(type=SCHEDULED_CONDITION, status="False", reason="SchedulerError")
    decision = decide(facts(bound(FIRST, conditions=(wrong,)), sights=(sight(record(FIRST, "PENDING")),)))
    assert not [s for s in decision.steps if isinstance(s, SetConditions)]


def test_a_second_live_job_of_a_bound_pod_is_ended() -> None:
    two = (sight(record(FIRST, "RUNNING")), sight(record(FAST, "PENDING")))
    decision = decide(facts(bound(FIRST), sights=two))
    assert [s.id for s in decision.steps if isinstance(s, EndJob)] == [FAST]


LIMITED = replace(SPEC, user_limit=10, time_limit=12)


def limited(seconds_left: float, *states: str) -> Facts:
    """Slurm ends the job two minutes after the user's limit, which is `seconds_left` away."""
    running = record(FIRST, *(states or ("RUNNING",)), started=NOW - 3600, ended=NOW + seconds_left + 120)
    return facts(bound(FIRST), sights=(sight(running),), spec=LIMITED)


def test_the_users_time_limit_ends_the_pod_before_slurm_does() -> None:
    before = decide(limited(30))
    assert (before.steps, before.again) == ((), 30.0)
    after = decide(limited(0))
    assert after.verdict.reason == Reason.TIME_LIMIT
    assert [s for s in after.steps if isinstance(s, DeletePod)]


def test_a_limit_that_was_extended_in_slurm_counts_and_is_noticed_within_a_minute() -> None:
    decision = decide(limited(36_000))
    assert (decision.steps, decision.again) == ((), 60.0)


def test_a_limit_that_was_extended_is_read_again_when_the_pods_own_is_over() -> None:
    seen = limited(36_000)
    (asked,) = [s.record for s in seen.sights.values() if s.record is not None]
    assert seen.spec is not None
    over = asked.started + (seen.spec.user_limit or 0) * 60
    late = replace(sight(asked), read_age=30.0)
    assert decide(replace(seen, sights={FIRST: late}, slurm_now=over + 10)).reads == (FIRST,)
    assert decide(replace(seen, sights={FIRST: late}, slurm_now=over + 40)).reads == ()


def test_a_suspended_job_has_no_time_limit() -> None:
    assert not [s for s in decide(limited(-600, "SUSPENDED")).steps if isinstance(s, DeletePod)]


def test_a_label_that_somebody_changed_hides_no_end_and_is_repaired() -> None:
    stranger = bound(JobId(7))
    over = decide(facts(stranger, sights=(sight(record(FIRST, "CANCELLED")),)))
    assert [s for s in over.steps if isinstance(s, DeletePod)]
    alive = decide(facts(stranger, sights=(sight(record(FIRST, "RUNNING")),)))
    (step,) = alive.steps
    assert isinstance(step, Release)
    assert step.job == FIRST


def test_a_node_label_that_somebody_changed_is_no_evidence() -> None:
    """Node n3 now claims to be Slurm's n1, or n1 claims to be another: the pod on n1 is not elsewhere for that."""
    running = (sight(record(FIRST, "RUNNING")),)
    n3 = NODES[SlurmNode("n3")]
    for nodes in ({**NODES, SlurmNode("n1"): n3}, {SlurmNode("n9"): NODES[SlurmNode("n1")]}, {}):
        decision = decide(facts(bound(FIRST), sights=running, nodes=nodes))
        assert not [s for s in decision.steps if isinstance(s, DeletePod)]


@pytest.mark.parametrize(("since", "ends"), [(61.0, True), (59.0, False)])
def test_a_job_that_began_anew_elsewhere_is_evidence_whatever_its_nodes_are_called(
    since: float, ends: bool
) -> None:
    """Also for a process that never saw it on the pod's node; clocks may differ by a minute."""
    twins = {SlurmNode(f"s{i}"): NODES[SlurmNode(f"n{i}")] for i in (1, 2)}
    anew = record(FIRST, "RUNNING", nodes=(SlurmNode("s2"),), started=NOW - 100)
    at = Condition(type="PodScheduled", status="True", changed=NOW - 100 - since)
    decision = decide(facts(bound(FIRST, conditions=(at,)), sights=(sight(anew),), nodes=twins))
    assert bool([s for s in decision.steps if isinstance(s, DeletePod)]) is ends


def test_of_a_gang_whose_job_began_anew_on_other_nodes_those_go_that_have_no_place_in_it() -> None:
    stays, goes = bound(FIRST), bound(FIRST, "n2", name="train-1", uid=Uid("uid-2"))

    def ended(other: Pod, **changes: Any) -> list[Pod]:
        gang = Group(key=KEY, pods=(stays, other), gang=Gang(wanted=2, timeout=300))
        held = (sight(record(FIRST, "RUNNING", **changes)),)
        steps = decide(facts(stays, other, sights=held, group=gang)).steps
        return [step.pod for step in steps if isinstance(step, DeletePod)]

    assert ended(goes) == [goes]
    assert ended(replace(goes, deleted=NOW)) == []
    assert ended(replace(goes, deleted=NOW), preempted=NOW) == [stays]


def test_where_only_time_tells_that_containers_are_dead_the_node_must_not_have_been_away_unseen() -> None:
    running = (sight(record(FIRST, "RUNNING")),)
    forced = Member(pod=bound(FIRST, grace=20), gone_age=61.0, node_ready=True, node_ready_since=NOW - 500)
    (step,) = decide(facts(forced, sights=running)).steps
    assert isinstance(step, EndJob)
    assert step.working == ((KubeNode("n1"), NOW - 500),)
    told = Member(pod=bound(FIRST, phase="Failed"), gone_age=61.0, node_ready=True)
    (step,) = decide(facts(told, sights=running)).steps
    assert isinstance(step, EndJob)
    assert step.working == ()


# --- ends -----------------------------------------------------------------------------------------


def done(code: int, phase: str, **changes: Any) -> Member:
    status = ContainerStatus(name="c", terminated=True, exit_code=code)
    return Member(pod=bound(FIRST, phase=phase, statuses=(status,), **changes), node_ready=True)


@pytest.mark.parametrize(
    ("code", "phase", "status"), [(0, "Succeeded", 0), (3, "Failed", 3 << 8), (255, "Failed", 255 << 8)]
)
def test_a_finished_pod_ends_its_job_with_its_exit_code(code: int, phase: str, status: int) -> None:
    decision = decide(facts(done(code, phase), sights=(sight(record(FIRST, "RUNNING")),)))
    (step,) = decision.steps
    assert isinstance(step, EndJob)
    assert (step.id, step.wait_status) == (FIRST, status)


def test_a_deleted_pod_ends_its_job_as_cancelled_once_its_containers_are_dead() -> None:
    killed = done(143, "Failed", deleted=NOW)
    (step,) = decide(facts(killed, sights=(sight(record(FIRST, "RUNNING")),))).steps
    assert isinstance(step, EndJob)
    assert step.wait_status is None


def test_a_pod_with_a_long_grace_keeps_its_job_while_it_terminates() -> None:
    decision = decide(facts(bound(FIRST, deleted=NOW), sights=(sight(record(FIRST, "RUNNING")),)))
    assert not [s for s in decision.steps if isinstance(s, EndJob)]


def test_a_force_deleted_pod_keeps_its_job_for_grace_and_margin_on_a_ready_node() -> None:
    running = (sight(record(FIRST, "RUNNING")),)
    early = decide(facts(Member(pod=bound(FIRST), gone_age=59.0, node_ready=True), sights=running))
    assert (early.steps, early.again) == ((), 1.0)
    late = decide(facts(Member(pod=bound(FIRST), gone_age=60.0, node_ready=True), sights=running))
    assert kinds(late) == ["EndJob"]


def test_a_pod_gets_its_signal_inside_the_grace_time_of_a_preemption() -> None:
    doomed = record(FIRST, "RUNNING", preempted=NOW - 1, ended=NOW + 59)
    running = frozenset({FIRST})
    decision = decide(facts(bound(FIRST), sights=(sight(doomed),), seen_running=running))
    assert kinds(decision) == ["SetConditions", "Notify", "DeletePod"]
    assert decision.verdict.reason == Reason.PREEMPTING
    delete = decision.steps[-1]
    assert isinstance(delete, DeletePod)
    assert not delete.guarded


def test_a_pod_deleted_while_it_waits_ends_its_job_at_once() -> None:
    member = Member(pod=pod(), gone_age=0.0)
    (step,) = decide(facts(member, sights=(sight(record(FIRST, "PENDING")),))).steps
    assert isinstance(step, EndJob)
    assert step.wait_status is None


def test_the_job_of_another_pod_with_the_same_name_is_not_ended() -> None:
    successor = mark(key=GroupKey("default", "Pod", "train-0", "uid-2"))
    decision = decide(facts(done(0, "Succeeded"), sights=(sight(record(FIRST, "RUNNING", mark=successor)),)))
    assert decision.steps == ()


def test_a_finished_group_is_settled_and_loses_the_other_projects_finalizer() -> None:
    member = done(0, "Succeeded", finalizers=(UPSTREAM_FINALIZER,))
    decision = decide(facts(member, sights=(sight(record(FIRST, "COMPLETED")),)))
    assert decision.settled
    assert [type(s) for s in decision.steps] == [DropFinalizer]


def test_ids_of_groups_are_inside_the_range_and_differ_by_attempt_and_probe() -> None:
    found = [jobid.job_id(IDS, CLUSTER, KEY.uid, a, p) for a in range(5) for p in (jobid.FAST, 0, 1, 2, 3)]
    assert all(job in IDS for job in found)
    assert len(set(found)) == len(found)
    assert JobId(5) not in IDS


@pytest.mark.parametrize(
    "status",
    [ContainerStatus(name="c", running=True), ContainerStatus(name="c", reason="CrashLoopBackOff")],
    ids=["running", "about to start again"],
)
def test_a_pod_that_only_the_control_plane_calls_failed_keeps_its_job(status: ContainerStatus) -> None:
    """Its node is out of reach: kubelet has not reported a single container as ended."""
    lost = Member(pod=bound(FIRST, phase="Failed", deleted=NOW, statuses=(status,)), node_ready=False)
    assert decide(facts(lost, sights=(sight(record(FIRST, "RUNNING")),))).steps == ()


def test_a_group_with_an_unanswered_submit_is_not_settled() -> None:
    """A hung slurmctld may still make the job: somebody must be there to end it."""
    decision = decide(facts(Member(pod=pod(), gone_age=1.0), doubted=frozenset({FIRST})))
    assert not decision.settled
    assert decision.reads == (FIRST,)


def test_the_end_of_an_earlier_attempt_is_no_evidence_when_the_pods_own_job_is_absent() -> None:
    """The grant of attempt 0 was given back by us; a rolled-back slurmctld has forgotten the job of attempt 1."""
    second = jobid.job_id(IDS, CLUSTER, KEY.uid, 1, 0)
    given_back = sight(record(FIRST, "CANCELLED"))
    for label in (second, JobId(7)):
        decision = decide(facts(bound(label), sights=(given_back,), attempt=Attempt(1, since=NOW - 100)))
        assert not [s for s in decision.steps if isinstance(s, DeletePod)]
        assert decision.verdict.reason == Reason.JOB_ABSENT


def test_the_end_of_a_double_is_no_evidence_when_the_pods_own_job_is_absent() -> None:
    double = sight(record(FAST, "CANCELLED", nodes=()))
    decision = decide(facts(bound(FIRST), sights=(double,)))
    assert not [s for s in decision.steps if isinstance(s, DeletePod)]


@pytest.mark.parametrize(("since", "read_age", "goes"), [(10, 1.0, True), (10, 6.0, False), (1, 2.0, False)])
def test_a_record_that_is_old_or_from_before_its_limit_ends_no_pod_there_and_is_read_again(
    since: float, read_age: float, goes: bool
) -> None:
    """An administrator may extend it in the last second."""
    limited = replace(SPEC, user_limit=1, time_limit=3)
    over = record(FIRST, "RUNNING", started=NOW - 60 - since, ended=NOW - 60 - since + 180)
    seen = replace(sight(over), read_age=read_age)
    decision = decide(facts(bound(FIRST), sights=(seen,), spec=limited))
    assert bool([s for s in decision.steps if isinstance(s, DeletePod)]) is goes
    assert decision.reads == (() if goes else (FIRST,))
