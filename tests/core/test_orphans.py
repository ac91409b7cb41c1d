"""Which jobs may be ended although no pod was seen to go (invariant 3)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bridge.core.model import JobRecord, Uid
from bridge.core.orphans import Listing, Orphan, orphan
from tests.core.build import CLUSTER, FIRST, NOW, mark, record

RUNNING = replace(record(FIRST, "RUNNING"), submitted=NOW - 600)
EMPTY = Listing(NOW, frozenset())
LATER = Listing(NOW + 1, frozenset())


def judge(
    job: JobRecord = RUNNING, first: Listing = EMPTY, second: Listing = LATER, **changes: Any
) -> Orphan | None:
    base: dict[str, Any] = {
        "cluster": CLUSTER,
        "dead_for": lambda _: 0.0,
        "ready_for": lambda _: 3600.0,
        "view_age": 0.0,
        "since": NOW - 61.0,
        "now": NOW,
        "margin": 30.0,
        "over": False,
    }
    return orphan(job, first, second, **(base | changes))


def test_a_job_whose_pods_are_in_neither_list_is_ended_after_their_grace() -> None:
    assert judge() is not None
    assert judge(since=NOW - 59.0) is None


def test_one_that_we_have_ended_before_and_that_came_back_to_life_is_ended_at_once() -> None:
    """Its containers were dead then."""
    assert judge(over=True, since=NOW - 1.0) is not None
    assert judge(over=True, first=Listing(NOW, frozenset({Uid("uid-1")}))) is None


def test_a_node_that_has_not_been_seen_since_may_be_dead() -> None:
    assert judge(view_age=16.0) is not None
    assert judge(view_age=16.0 + 0.1) is None


def test_a_pending_job_holds_nothing_and_needs_no_grace() -> None:
    waiting = replace(record(FIRST, "PENDING"), submitted=NOW - 600)
    assert judge(waiting, since=NOW) is not None


@pytest.mark.parametrize("which", ["first", "second"])
def test_one_list_that_shows_a_pod_saves_the_job(which: str) -> None:
    seen = frozenset({Uid("uid-1")})
    first = replace(EMPTY, uids=seen) if which == "first" else EMPTY
    second = replace(LATER, uids=seen) if which == "second" else LATER
    assert judge(first=first, second=second) is None


@pytest.mark.parametrize("other", [None, mark(cluster="another")])
def test_jobs_of_others_are_never_orphans(other: Any) -> None:
    assert judge(replace(RUNNING, mark=other)) is None


def test_a_list_begun_before_the_job_was_read_proves_nothing() -> None:
    assert judge(first=replace(EMPTY, begun=NOW - 62.0)) is None
    assert judge(second=replace(LATER, begun=NOW - 1.0)) is None, "out of order"


def test_a_job_whose_submit_lies_in_the_future_as_after_a_clock_was_set_back_is_ended_all_the_same() -> None:
    assert judge(replace(RUNNING, submitted=NOW + 86400.0)) is not None


def test_a_job_on_a_node_that_has_just_died_is_kept() -> None:
    assert judge(dead_for=lambda _: 59.0) is None


def test_a_node_that_has_just_come_back_first_has_to_hear_of_the_deletion() -> None:
    assert judge(ready_for=lambda _: 59.0) is None
    assert judge(ready_for=lambda _: 60.0) is not None


def test_a_job_on_a_node_that_has_been_dead_for_long_names_it_to_be_drained_first() -> None:
    found = judge(dead_for=lambda _: 61.0)
    assert found is not None
    assert found.dead == ("n1",)
    healthy = judge()
    assert healthy is not None
    assert healthy.dead == ()


def test_a_job_that_was_never_read_is_no_orphan() -> None:
    assert judge(replace(RUNNING, submitted=0.0)) is None
