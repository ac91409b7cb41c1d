"""What a replica may do on a picture that is not the latest: nothing that only a later picture could undo."""

from __future__ import annotations

from dataclasses import replace

from bridge.core import jobid
from bridge.core.attempt import Attempt, of_group, render
from bridge.core.lifecycle import decide
from bridge.core.model import Group, JobRecord, SlurmNode
from bridge.core.steps import DeletePod, EndJob, Forsake, Nominate, Release, SetConditions, SubmitJob, onto
from bridge.core.verdict import Reason
from bridge.names import ATTEMPT_ANNOTATION
from tests.core.build import (
    CLUSTER,
    FAST,
    FIRST,
    IDS,
    KEY,
    bound,
    facts,
    mark,
    pod,
    record,
    released,
    sight,
    vanished,
)

NEXT = jobid.candidates(IDS, CLUSTER, KEY.uid, 1)
SECOND_TRY = Attempt(1, since=1.0)


def test_a_waiting_pod_goes_with_its_cancelled_job_only_if_it_is_still_as_it_was_seen() -> None:
    """Another leader that gives a grant up writes that on the pod before it cancels the job."""
    first, *_ = decide(facts(pod(), sights=(sight(record(FIRST, "CANCELLED")),))).steps
    assert isinstance(first, SetConditions)
    assert first.unchanged


def test_a_running_pod_goes_whatever_kubelet_has_written_on_it_meanwhile() -> None:
    steps = decide(facts(bound(FIRST), sights=(sight(record(FIRST, "CANCELLED")),))).steps
    assert [s.unchanged for s in steps if isinstance(s, SetConditions)] == [False]
    assert any(isinstance(s, DeletePod) for s in steps)


def test_before_another_attempt_asks_slurm_is_asked_for_the_job_of_the_last_one() -> None:
    """A process that has just started knows only what a list shows, and a list may lack it."""
    former = (FAST, FIRST)
    seen = facts(pod(), attempt=SECOND_TRY, former=former)
    assert (decide(seen).steps, decide(seen).reads) == ((), (FAST,))
    taken = JobRecord(id=FAST, states=frozenset({"RUNNING"}))  # somebody else's: the next id may be ours
    beyond = replace(seen, sights={FAST: sight(taken)})
    assert decide(beyond).reads == (FIRST,)
    denied = replace(beyond, denied=frozenset({FIRST}))
    assert [type(s) for s in decide(denied).steps] == [SubmitJob]


def test_who_saw_the_job_of_the_last_attempt_end_does_not_ask() -> None:
    ended = sight(record(FAST, "CANCELLED"))
    seen = facts(pod(), sights=(ended,), attempt=SECOND_TRY, former=(FAST, FIRST))
    assert [type(s) for s in decide(seen).steps] == [SubmitJob]


def test_an_end_that_a_crash_of_slurmctld_may_have_undone_is_asked_about() -> None:
    ended = replace(vanished(FAST, record(FAST, "CANCELLED")), read_age=5.0)
    seen = facts(pod(), sights=(ended,), attempt=SECOND_TRY, former=(FAST, FIRST))
    assert [type(s) for s in decide(seen).steps] == [SubmitJob]
    young = replace(seen, boot_age=4.0)
    assert (decide(young).steps, decide(young).reads) == ((), (FAST,))


def test_a_job_of_a_later_attempt_than_the_pod_shows_is_no_job_to_end() -> None:
    """The pod is seen as it was a moment ago, or its annotation was edited."""
    group = Group(key=KEY, pods=(pod(),))
    attempt = of_group(group, at_least=1)
    assert attempt.number == 1
    assert of_group(group).number == 0
    furthest = pod(annotations={ATTEMPT_ANNOTATION: render(Attempt(3, (SlurmNode("n1"),)))})
    assert of_group(Group(key=KEY, pods=(furthest,)), at_least=1) == Attempt(3, (SlurmNode("n1"),))
    later = sight(record(NEXT[0], "RUNNING", mark=mark(1)))
    decision = decide(facts(pod(), sights=(later,), attempt=attempt))
    assert not [s for s in decision.steps if isinstance(s, EndJob)]
    assert decision.verdict.reason is Reason.GRANTED


def test_a_pod_on_its_way_whose_job_vanished_gives_up_what_a_bound_one_would_refuse() -> None:
    """Giving up is refused if the pod has changed, and being bound is a change: its place is claimed then."""
    gone = vanished(FIRST, record(FIRST, "RUNNING"))
    asked = decide(facts(released(FIRST), sights=(gone,)))
    assert (asked.steps, asked.reads) == ((), (FIRST,))
    steps = decide(facts(released(FIRST), sights=(gone,), denied=frozenset({FIRST}))).steps
    assert isinstance(steps[0], Forsake)
    assert not [s for s in steps if isinstance(s, SubmitJob)]


def test_a_node_failure_that_a_young_slurmctld_told_and_forgot_again_costs_no_pod() -> None:
    """Its next crash has undone it, or the list was not complete."""
    forgotten = vanished(FIRST, record(FIRST, "NODE_FAIL"))
    young = decide(facts(bound(FIRST), sights=(forgotten,), boot_age=1.0))
    assert young.verdict.reason is Reason.JOB_ABSENT
    assert not [s for s in young.steps if isinstance(s, DeletePod)]
    settled = decide(facts(bound(FIRST), sights=(forgotten,)))
    assert [type(s) for s in settled.steps if isinstance(s, DeletePod)]


def test_an_earlier_job_that_came_back_to_life_is_not_taken_for_the_pods_own() -> None:
    """It holds other GPUs than the pod was told; the pod's own place is claimed first."""
    labelled = bound(NEXT[0], annotations={ATTEMPT_ANNOTATION: render(SECOND_TRY)})
    back = sight(record(FIRST, "RUNNING", mark=mark(0)))
    decision = decide(facts(labelled, sights=(back,), attempt=SECOND_TRY, denied=frozenset({NEXT[0]})))
    (claim,) = (s for s in decision.steps if isinstance(s, SubmitJob))
    assert claim.id == NEXT[0]
    assert claim.spec.required_nodes == ("n1",)
    assert not [s for s in decision.steps if isinstance(s, Release | EndJob)]


def test_steps_follow_the_pod_that_our_own_last_write_made() -> None:
    """So that only what others changed is a change."""
    seen, written = pod(), pod(version="101")
    step = Nominate(pod=seen, node=bound(FIRST).node)
    assert onto({}, step) == step
    assert onto({seen.uid: written}, step) == replace(step, pod=written)
    end = EndJob(id=FIRST, wait_status=None, why="")
    assert onto({seen.uid: written}, end) is end


def test_nothing_is_handed_over_or_given_back_while_slurmctld_may_have_gone_back_in_time() -> None:
    """Another leader, which has asked since, may take back what this one goes on handing over."""
    granted, cancelled = sight(record(FIRST, "RUNNING")), sight(record(FIRST, "CANCELLED"))
    for seen in (granted, cancelled):
        assert decide(facts(pod(), sights=(seen,))).steps
        decision = decide(facts(pod(), sights=(seen,), steady=False))
        assert (decision.steps, decision.verdict.reason) == ((), Reason.UNAVAILABLE)
        assert decision.again is not None
