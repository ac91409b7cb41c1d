"""The mark survives its way through Slurm, and nothing else passes for one."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.identity import listed, parse, render
from bridge.core.model import GroupKey, Mark, Uid

word = st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1, max_size=20)
marks = st.builds(
    Mark,
    cluster=word,
    group=st.builds(GroupKey, namespace=word, kind=word, name=word, uid=word),
    attempt=st.integers(0, 1000),
    uids=st.lists(word.map(Uid), max_size=5).map(tuple),
    pods=st.lists(word, max_size=5).map(tuple),
    grace=st.integers(0, 100_000),
    over=st.booleans(),
)
MARK = Mark(
    cluster="c1",
    group=GroupKey(namespace="team", kind="Job", name="train", uid="u0"),
    attempt=2,
    uids=(Uid("u1"), Uid("u2")),
    pods=("team/train-0", "team/train-1"),
    grace=60,
)


@given(marks)
def test_a_mark_reads_back_as_it_was_written(mark: Mark) -> None:
    assert parse(render(mark)) == mark


def test_the_written_form_is_the_published_one() -> None:
    assert json.loads(render(MARK)) == {
        "pods": ["team/train-0", "team/train-1"],
        "bridge": {
            "v": 1,
            "cluster": "c1",
            "group": "Job/team/train/u0",
            "attempt": 2,
            "uids": ["u1", "u2"],
            "grace": 60,
        },
    }


def test_only_a_mark_whose_containers_are_dead_says_so() -> None:
    assert "over" not in render(MARK)
    assert json.loads(render(replace(MARK, over=True)))["bridge"]["over"] is True


@given(st.text())
def test_no_foreign_comment_raises(text: str) -> None:
    assert parse(text) is None or text.startswith("{")


def changed(**changes: Any) -> str:
    body = json.loads(render(MARK))
    body["bridge"].update(changes)
    return json.dumps(body)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a note of the admin",
        "{",
        "[]",
        "{}",
        "null",
        '{"bridge": null}',
        '{"bridge": []}',
        '{"bridge": {}}',
        '{"pods": ["team/train-0"]}',  # the Go project's: not a mark of ours
        " " + render(MARK),
        changed(v=2),
        changed(group="Job/team/train"),
        changed(group="Job//train/u0"),
        changed(group=7),
        changed(attempt="many"),
        changed(uids=None),
        changed(grace=None),
    ],
)
def test_what_is_not_exactly_a_mark_is_none(text: str) -> None:
    assert parse(text) is None


def test_the_go_projects_mark_is_the_list_of_its_pods() -> None:
    assert listed('{"pods":["team/train-0","other/train-1"]}') == ("team/train-0", "other/train-1")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "team/train-0",
        "{",
        "{}",
        "null",
        '["team/train-0"]',
        '{"pods": []}',
        '{"pods": null}',
        '{"pods": "team/train-0"}',
        '{"pods": [["team/train-0"]]}',
        '{"pods": ["train-0"]}',
        '{"pods": ["a/b/c"]}',
        '{"pods": ["/b"]}',
        '{"pods": ["team/train-0"], "owner": "somebody"}',
        " " + '{"pods": ["team/train-0"]}',
        render(MARK),
        "{" * 100_000,
    ],
)
def test_what_is_not_exactly_the_go_projects_mark_lists_nothing(text: str) -> None:
    assert listed(text) == ()


@given(st.text())
def test_listing_never_raises(text: str) -> None:
    assert listed(text) == () or text.startswith("{")
    assert listed('{"pods":' + text) == () or text.startswith("[")
