"""Limits of a QOS or a partition that leave no room for grace and margin on top of the user's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge.core.attempt import Attempt, parse, render
from bridge.core.lifecycle import decide
from bridge.core.limits import TOO_LONG
from bridge.core.model import JobRecord
from bridge.core.steps import DeletePod, EndJob, Forsake, SetConditions
from tests.core.build import FIRST, NOW, SPEC, bound, facts, pod, record, sight

LIMITED = replace(SPEC, user_limit=10, time_limit=12)


def waits(reason: str, minutes: int) -> JobRecord:
    return record(FIRST, "PENDING", reason=reason, time_limit=minutes)


@pytest.mark.parametrize("reason", sorted(TOO_LONG))
def test_a_job_that_is_too_long_with_our_share_is_asked_for_again_without_it(reason: str) -> None:
    decision = decide(facts(pod(), sights=(sight(waits(reason, 12)),), spec=LIMITED))
    following = Attempt(1, since=NOW, bare=True)
    assert decision.steps == (
        Forsake(pod=pod(), attempt=following),
        EndJob(id=FIRST, wait_status=None, why=decision.verdict.text),
    )
    assert parse(render(following)) == following
    assert following.next(now=NOW).bare


@pytest.mark.parametrize("other", [waits("Resources", 12), waits("QOSMaxWallDurationPerJobLimit", 10)])
def test_one_that_waits_for_something_else_or_for_the_users_own_limit_is_left_in_the_queue(
    other: JobRecord,
) -> None:
    decision = decide(facts(pod(), sights=(sight(other),), spec=LIMITED))
    (step,) = decision.steps
    assert isinstance(step, SetConditions)
    assert "no more than" not in step.conditions[0].message or other.reason == "Resources"


def test_nor_is_one_whose_user_named_no_limit() -> None:
    found = waits("PartitionTimeLimit", 12)
    assert not [s for s in decide(facts(pod(), sights=(sight(found),))).steps if isinstance(s, EndJob)]


@pytest.mark.parametrize(("passed", "ends"), [(560.0, False), (575.0, True)])
@pytest.mark.parametrize("spec", [LIMITED, replace(LIMITED, time_limit=10)], ids=["as before", "as sent"])
def test_its_pod_ends_grace_and_margin_before_its_limit_by_the_jobs_own_record(
    passed: float, ends: bool, spec: object
) -> None:
    """No grace in this pod, a margin of 30 s."""
    started = NOW - passed
    runs = record(FIRST, "RUNNING", started=started, ended=started + 600, time_limit=10)
    decision = decide(facts(bound(FIRST, grace=0), sights=(sight(runs),), spec=spec))
    assert any(isinstance(s, DeletePod) for s in decision.steps) is ends
    assert ("no more than 10 min" in decision.verdict.text) is ends


def test_of_a_very_short_limit_half_is_left_to_the_pod() -> None:
    short = replace(SPEC, user_limit=1, time_limit=3)
    runs = record(FIRST, "RUNNING", started=NOW - 20, ended=NOW + 40, time_limit=1)
    decision = decide(facts(bound(FIRST), sights=(sight(runs),), spec=short))
    assert not [s for s in decision.steps if isinstance(s, DeletePod)]


def test_a_pod_that_named_no_limit_is_told_of_the_one_that_its_job_has() -> None:
    runs = record(FIRST, "RUNNING", started=NOW - 119, ended=NOW + 1, time_limit=2)
    decision = decide(facts(bound(FIRST, grace=0), sights=(sight(runs),), spec=SPEC))
    assert "has 2 min, and the pod is ended 30 s before that" in decision.verdict.text
