"""The attempt annotation and its back-off."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.attempt import EXCLUSION_LIFE, LONGEST_WAIT, Attempt, of_group, parse, render
from bridge.core.model import Group, GroupKey, SlurmNode
from bridge.names import ATTEMPT_ANNOTATION
from tests.core.build import NOW, pod

N1, N2 = SlurmNode("n1"), SlurmNode("n2")
NODES = st.lists(st.text("abcn0123456789-", min_size=1, max_size=8).map(SlurmNode), unique=True, max_size=5)


@given(st.integers(0, 1000), NODES, NODES, st.floats(0, 4e9).map(lambda x: round(x, 3)))
def test_what_is_written_is_read_back(
    number: int, nodes: list[SlurmNode], closed: list[SlurmNode], since: float
) -> None:
    attempt = Attempt(number, tuple(nodes), tuple(closed), since)
    assert parse(render(attempt)) == attempt


HOSTILE = [
    '{"attempt": Infinity}',
    '{"attempt": 1e400}',
    '{"attempt": NaN}',
    "[" * 99_000,
    '{"attempt": 1, "since": Infinity}',
    '{"attempt": 1, "since": NaN}',
    '{"attempt": 1, "since": 1e999}',
    '{"attempt": 1, "since": "x"}',
    '{"attempt": 1, "excluded": 5}',
    '{"attempt": 1, "excluded": {"a": 1}}',
    '{"attempt": {"attempt": 1}}',
    "null",
    "[]",
    "1" * 90_000,
    "x" * 500_000,
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_whatever_a_tenant_writes_is_an_attempt_with_a_finite_wait(text: str) -> None:
    attempt = parse(text)
    assert 0 <= attempt.wait(NOW) <= LONGEST_WAIT
    assert attempt.number >= 0


@given(st.text(max_size=40))
def test_unreadable_text_is_attempt_zero_and_never_an_error(text: str) -> None:
    assert isinstance(parse(text), Attempt)


@pytest.mark.parametrize(("number", "pause"), [(1, 1), (2, 2), (3, 4), (7, 60), (40, 60)])
def test_the_pause_doubles_from_one_second_to_a_minute(number: int, pause: float) -> None:
    assert Attempt(number, since=NOW).wait(NOW) == pause


def test_the_first_attempt_never_waits() -> None:
    assert Attempt().wait(NOW) == 0


@given(st.integers(1, 50), st.floats(-1e6, 1e6))
def test_a_clock_that_jumps_never_makes_a_group_wait_longer_than_a_minute(number: int, jump: float) -> None:
    assert 0 <= Attempt(number, since=NOW).wait(NOW + jump) <= LONGEST_WAIT


def test_the_furthest_attempt_of_any_member_counts() -> None:
    texts = [render(Attempt(n, since=NOW)) for n in (1, 3, 2)]
    pods = tuple(pod(annotations={ATTEMPT_ANNOTATION: text}) for text in texts)
    assert of_group(Group(key=GroupKey("d", "Pod", "p", "u"), pods=pods)).number == 3


def test_excluded_nodes_add_up_without_repeats() -> None:
    attempt = Attempt(1, (N1,)).next(refused=(N2, N1), closed=(N2,), now=NOW)
    assert attempt == Attempt(2, (N1, N2), (N2,), NOW)


def test_a_node_that_was_closed_is_avoided_only_while_it_is() -> None:
    attempt = Attempt(1, (), (N1,), NOW)
    assert attempt.avoided(lambda name: name != N1, NOW + 9999) == (N1,)
    assert attempt.avoided(lambda name: True, NOW) == ()


def test_a_node_that_refused_the_pod_is_tried_again_after_a_while() -> None:
    attempt = Attempt(1, (N1,), (), NOW)
    assert attempt.avoided(lambda name: True, NOW + 60) == (N1,)
    assert attempt.avoided(lambda name: True, NOW + EXCLUSION_LIFE) == ()


def test_a_clock_that_was_set_back_stops_nobody_until_it_has_caught_up() -> None:
    assert Attempt(1, since=NOW).wait(NOW - 3600.0) == 0.0
