"""The breaker: ten may go, the eleventh opens it, and two further reads close it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core import breaker as rules
from bridge.core.breaker import (
    CONFIRMATIONS,
    EXPIRY,
    MOST,
    PAUSE,
    SHARE,
    WINDOW,
    Breaker,
    admit,
    commanded,
    prune,
    release,
    relent,
)
from bridge.core.model import JobId

JOBS = [JobId(i) for i in range(1, 60)]


def strike(count: int, population: int) -> tuple[Breaker, list[bool]]:
    breaker = Breaker()
    answers = []
    for job in JOBS[:count]:
        breaker, through = admit(breaker, job, population, now=100.0)
        answers.append(through)
    return breaker, answers


def test_ten_jobs_of_a_small_cluster_go_and_the_eleventh_opens_it() -> None:
    breaker, answers = strike(12, population=50)
    assert answers == [True] * 10 + [False] * 2
    assert breaker.open


def test_a_fifth_of_a_large_cluster_goes() -> None:
    _, answers = strike(41, population=200)
    assert answers == [True] * 40 + [False]


def test_slow_losses_never_open_it() -> None:
    breaker = Breaker()
    for step, job in enumerate(JOBS):
        breaker, through = admit(breaker, job, 50, now=step * WINDOW / MOST)
        assert through


def test_two_further_reads_of_every_held_job_close_it() -> None:
    breaker, _ = strike(13, population=50)
    held = JOBS[10:13]
    now = 100.0
    for _ in range(2):
        now += PAUSE
        answers = []
        for job in held:
            breaker, through = admit(breaker, job, 50, now)
            answers.append(through)
    assert answers == [False, False, True]  # the last of them to be confirmed closes it
    assert not breaker.open
    for job in held:
        breaker, through = admit(breaker, job, 50, now)
        assert through


def test_a_job_that_recovers_no_longer_keeps_it_open() -> None:
    breaker, _ = strike(11, population=50)
    assert not relent(breaker, JOBS[10]).open


def test_a_look_at_the_same_record_is_no_further_read() -> None:
    breaker, _ = strike(10, population=50)
    record, now = object(), 100.0
    for _ in range(2 * CONFIRMATIONS):
        breaker, through = admit(breaker, JOBS[10], 50, now, record)
        assert not through
        now += PAUSE
    assert breaker.held[JOBS[10]].confirmations == 0
    for fresh in (object(), object()):
        now += PAUSE
        breaker, through = admit(breaker, JOBS[10], 50, now, fresh)
    assert through


def test_looks_without_news_keep_it_open() -> None:
    """Slurm is down, say: nobody could read the job again, and that is no reason to let ten more go."""
    breaker, _ = strike(10, population=50)
    record = object()
    for look in range(20):
        breaker, through = admit(breaker, JOBS[10], 50, 100.0 + look * (EXPIRY - 1), record)
        assert not through


def test_what_was_let_through_stays_so_while_it_is_open() -> None:
    breaker, _ = strike(12, population=50)
    _, through = admit(breaker, JOBS[0], 50, 101.0)
    assert through


def test_a_release_lets_through_what_is_held_now_and_nothing_else() -> None:
    breaker, _ = strike(15, population=50)
    breaker = release(breaker, 101.0)
    assert not breaker.open
    for job in JOBS[10:15]:
        breaker, through = admit(breaker, job, 50, 102.0)
        assert through
    breaker, through = admit(breaker, JOBS[15], 50, 102.0)
    assert not through
    assert breaker.open


def test_a_release_of_nothing_changes_nothing() -> None:
    breaker, _ = strike(5, population=50)
    assert release(breaker, 101.0) == breaker


def test_its_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "REMEMBERED", 3)
    breaker, answers = strike(40, population=50)
    assert answers == [True] * 10 + [False] * 30
    assert list(breaker.held) == JOBS[10:13]
    later = prune(breaker, 100.0 + max(WINDOW, EXPIRY))
    assert (later.struck, later.held) == ({}, {})


def test_the_oldest_come_first_so_that_pruning_looks_at_one() -> None:
    breaker, _ = strike(13, population=50)
    breaker, _ = admit(breaker, JOBS[10], 50, 130.0)
    assert list(prune(breaker, 100.0 + EXPIRY).held) == [JOBS[10]]


STARTED = 1_700_000_000.0  # 2023-11-14T22:13:20Z


@pytest.mark.parametrize(
    ("value", "before", "answer"),
    [
        pytest.param("2023-11-14T22:14:00Z", "", True, id="the-first-command"),
        pytest.param("2023-11-14T22:14:00Z", "2023-11-14T22:13:30Z", True, id="another-one"),
        pytest.param("2023-11-14T23:14:00+01:00", "", True, id="in-another-zone"),
        pytest.param("2023-11-14T22:14:00", "", True, id="without-a-zone"),
        pytest.param("please", "now", True, id="any-new-word"),
        pytest.param("please", "please", False, id="an-old-word"),
        pytest.param("2023-11-14T22:14:00Z", None, False, id="found-at-the-first-look"),
        pytest.param("2023-11-14T22:13:00Z", "", False, id="older-than-the-process"),
        pytest.param("2023-11-14T22:14:00+01:00", "", False, id="older-by-its-zone"),
        pytest.param("", "please", False, id="taken-back"),
    ],
)
def test_a_command_is_new_and_meant_for_this_process(value: str, before: str | None, answer: bool) -> None:
    assert commanded(value, before, STARTED) is answer


def test_asking_again_at_once_is_no_confirmation() -> None:
    breaker, _ = strike(11, population=50)
    for _ in range(50):
        breaker, through = admit(breaker, JOBS[10], 50, now=101.0)
        assert not through


def test_a_held_job_that_nobody_asks_about_any_more_does_not_keep_it_open() -> None:
    breaker, _ = strike(11, population=50)
    assert breaker.open
    assert not prune(breaker, 100.0 + EXPIRY).open
    later, through = admit(breaker, JOBS[40], 50, now=100.0 + EXPIRY)
    assert through
    assert not later.open


@given(st.lists(st.tuples(st.sampled_from(JOBS), st.floats(0, 5)), max_size=80), st.integers(0, 100))
def test_within_a_minute_it_never_lets_through_more_than_it_says(
    asks: list[tuple[JobId, float]], population: int
) -> None:
    """Without confirmations, which need ten quiet seconds a job."""
    breaker, now, let = Breaker(), 0.0, set()
    for job, pause in asks:
        now += min(pause, (PAUSE - 1) / len(asks))
        breaker, through = admit(breaker, job, population, now)
        if through:
            let.add(job)
    assert len(let) <= max(MOST, SHARE * population)
