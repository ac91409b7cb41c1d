"""Pods that are edited while their job waits or is granted."""

from __future__ import annotations

from dataclasses import replace

from bridge.core import identity
from bridge.core.attempt import Attempt
from bridge.core.changed import stamped
from bridge.core.facts import Refusal
from bridge.core.lifecycle import decide
from bridge.core.model import SlurmNode
from bridge.core.steps import EndJob, Forsake, Nominate
from bridge.core.verdict import Reason
from tests.core.build import FIRST, NOW, SPEC, facts, pod, record, released, sight

ASKED = stamped(SPEC)
EDITED = stamped(replace(SPEC, account="other"))
WAITS = record(FIRST, "PENDING", mark=ASKED.mark, reason="Resources")
RUNS = record(FIRST, "RUNNING", mark=ASKED.mark)
NEXT = Attempt(1, since=NOW, spared=1)


def test_a_job_is_given_up_when_its_pod_asks_for_something_else() -> None:
    decision = decide(facts(pod(), spec=EDITED, sights=(sight(WAITS),)))
    forsake, end = decision.steps[0], decision.steps[1]
    assert forsake == Forsake(pod=pod(), attempt=NEXT)
    assert isinstance(end, EndJob)
    assert end.id == FIRST


def test_a_grant_of_what_the_pod_no_longer_asks_for_is_given_back_before_the_binding() -> None:
    decision = decide(facts(released(FIRST), spec=EDITED, sights=(sight(RUNS),)))
    assert [type(step) for step in decision.steps[:3]] == [Forsake, Nominate, EndJob]


def test_a_pod_that_became_impossible_holds_no_job_and_is_deleted_by_no_cancel_of_ours() -> None:
    refusal = Refusal(text="timelimit: 'soon'", retry_in=None)
    decision = decide(facts(pod(), spec=None, refusal=refusal, sights=(sight(WAITS),)))
    assert [type(step) for step in decision.steps[:2]] == [Forsake, EndJob]
    assert decision.verdict.reason == Reason.REFUSED


def test_what_changes_no_job_gives_none_up() -> None:
    for spec in (
        ASKED,
        stamped(replace(SPEC, comment="another", excluded_nodes=(SlurmNode("n2"),), time_limit=77)),
        SPEC,  # nobody says what it asks for
    ):
        assert decide(facts(pod(), spec=spec, sights=(sight(WAITS),))).verdict.reason == Reason.QUEUED


def test_a_job_of_an_earlier_version_whose_mark_does_not_tell_is_kept() -> None:
    told = identity.parse(identity.render(replace(ASKED.mark, asks="")))
    waits = replace(WAITS, mark=told)
    assert decide(facts(pod(), spec=EDITED, sights=(sight(waits),))).verdict.reason == Reason.QUEUED


def test_other_settings_or_another_version_cost_nobody_his_place_in_the_queue() -> None:
    """They would cost it all pods that wait, at once."""
    now = stamped(replace(SPEC, account="other"), "of-today")
    assert (
        decide(facts(pod(), spec=now, epoch="of-today", sights=(sight(WAITS),))).verdict.reason
        == Reason.QUEUED
    )


def test_nor_does_a_setting_under_which_its_pod_is_impossible_but_a_grant_is_held_for_nobody() -> None:
    refusal = Refusal(text="nvidia.com/gpu: is not in gresByResource", retry_in=None)
    waits = decide(facts(pod(), spec=None, refusal=refusal, epoch="of-today", sights=(sight(WAITS),)))
    assert not [step for step in waits.steps if isinstance(step, EndJob)]
    runs = decide(facts(pod(), spec=None, refusal=refusal, epoch="of-today", sights=(sight(RUNS),)))
    assert [step for step in runs.steps if isinstance(step, EndJob)]


def test_just_after_a_start_nothing_is_taken_for_an_edit_of_a_pod_that_was_there_before() -> None:
    """What it belongs to may not have been read yet."""
    old = replace(pod(), created=NOW - 3600)
    fresh = facts(old, spec=EDITED, known_for=5.0, sights=(sight(WAITS),))
    assert decide(fresh).verdict.reason == Reason.QUEUED
    young = replace(old, created=NOW - 4)
    edited = facts(young, spec=EDITED, known_for=5.0, sights=(sight(WAITS),))
    assert isinstance(decide(edited).steps[0], Forsake)
