"""Leader election as pure decisions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge.core.lease import Decision, LeaseRecord, acquired, decide, released, renewed

OTHERS = LeaseRecord(holder="other", duration=15, acquired=1e9, renewed=1e9, transitions=3, version="7")
MINE = replace(OTHERS, holder="me")
OURS = {MINE.generation}
NEVER = float("-inf")


def test_a_lease_that_was_never_seen_is_made_at_once() -> None:
    assert decide(None, 0.0, NEVER, leading=False, ours=()) == Decision("acquire")


def test_a_lease_that_a_person_deleted_may_still_have_a_leader() -> None:
    assert decide(None, 104.0, 100.0, leading=False, ours=()) == Decision("wait", 6.0)
    assert decide(None, 110.0, 100.0, leading=False, ours=()) == Decision("acquire")


def test_a_leader_whose_lease_was_deleted_makes_it_anew() -> None:
    assert decide(None, 104.0, 100.0, leading=True, ours=OURS) == Decision("acquire")


def test_a_released_lease_is_taken_at_once() -> None:
    assert decide(released(OTHERS, 2e9), 0.0, 0.0, leading=False, ours=()) == Decision("acquire")


def test_the_lease_of_another_is_respected_for_its_duration_since_we_saw_it_change() -> None:
    assert decide(OTHERS, 104.0, 100.0, leading=False, ours=OURS) == Decision("wait", 11.0)
    assert decide(OTHERS, 114.99, 100.0, leading=False, ours=OURS).action == "wait"
    assert decide(OTHERS, 115.0, 100.0, leading=False, ours=OURS) == Decision("acquire")


@pytest.mark.parametrize("when", [0.0, 1e9, 4e9])
def test_the_clock_of_the_other_does_not_matter(when: float) -> None:
    record = replace(OTHERS, renewed=when, acquired=when)
    assert decide(record, 101.0, 100.0, leading=False, ours=()) == Decision("wait", 14.0)


def test_a_record_without_a_duration_gets_the_default() -> None:
    record = replace(OTHERS, duration=0)
    assert decide(record, 100.0, 100.0, leading=False, ours=()) == Decision("wait", 10.0)


def test_the_leader_renews() -> None:
    assert decide(MINE, 999.0, 0.0, leading=True, ours=OURS) == Decision("renew")


def test_a_leader_that_missed_its_deadline_and_was_not_replaced_begins_a_new_generation() -> None:
    assert decide(MINE, 100.0, 100.0, leading=False, ours=OURS) == Decision("acquire")


@pytest.mark.parametrize(
    "record",
    [
        OTHERS,
        released(MINE, 2e9),
        replace(MINE, transitions=4),
        replace(MINE, acquired=1e9 + 0.000001),
    ],
    ids=["another-holder", "released", "another-term-of-our-name", "made-again-under-our-name"],
)
def test_a_leader_that_finds_another_generation_has_lost(record: LeaseRecord) -> None:
    assert decide(record, 100.0, 100.0, leading=True, ours=OURS) == Decision("lost")


def test_another_generation_of_our_own_name_is_waited_for_like_anybodys() -> None:
    record = replace(MINE, transitions=4)
    assert decide(record, 100.0, 100.0, leading=False, ours=OURS) == Decision("wait", 15.0)


@pytest.mark.parametrize("before", [OTHERS, MINE])
def test_each_acquisition_is_a_new_generation_and_keeps_the_precondition(before: LeaseRecord) -> None:
    got = acquired(before, "me", 2e9, 15)
    assert got == LeaseRecord(holder="me", duration=15, acquired=2e9, renewed=2e9, transitions=4, version="7")
    assert got.generation != before.generation


def test_renewing_changes_only_the_renewal() -> None:
    assert renewed(MINE, 2e9, 15) == replace(MINE, renewed=2e9)


def test_the_first_record_has_no_version() -> None:
    assert acquired(None, "me", 2e9, 15) == LeaseRecord(holder="me", duration=15, acquired=2e9, renewed=2e9)


def test_what_others_wrote_beside_the_spec_is_kept() -> None:
    record = replace(OTHERS, uid="u", labels={"a": "b"}, annotations={"c": "d"})
    for wanted in (acquired(record, "me", 2e9, 15), renewed(record, 2e9, 15), released(record, 2e9)):
        assert (wanted.uid, wanted.labels, wanted.annotations) == ("u", {"a": "b"}, {"c": "d"})


def test_an_edit_of_metadata_is_no_renewal() -> None:
    assert OTHERS.same_renewal(replace(OTHERS, version="8", annotations={"a": "b"}))
    assert not OTHERS.same_renewal(replace(OTHERS, renewed=1e9 + 2))
    assert not OTHERS.same_renewal(None)
