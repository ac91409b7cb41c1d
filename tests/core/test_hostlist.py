"""Slurm's hostlists: what expands to what, and that nothing is lost on the way back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.hostlist import LIMIT, compress, expand
from bridge.errors import UserError

NAMES = st.from_regex(r"[a-z]{0,2}[0-9]{1,3}(-[a-z]|\.x[0-9]{1,2})?", fullmatch=True) | st.from_regex(
    r"[^\[\],\s]{1,25}", fullmatch=True
)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("login", ("login",)),
        ("n1,n2", ("n1", "n2")),
        ("n[1-4,7]", ("n1", "n2", "n3", "n4", "n7")),
        ("n[4,1]", ("n4", "n1")),
        ("n[08-11]", ("n08", "n09", "n10", "n11")),
        ("n[9-11]", ("n9", "n10", "n11")),
        ("r[1-2]n[01-03]", ("r1n01", "r1n02", "r1n03", "r2n01", "r2n02", "r2n03")),
        ("n[1-2].rack", ("n1.rack", "n2.rack")),
        ("a,n[1-2],b[3]", ("a", "n1", "n2", "b3")),
        ("n1,n1", ("n1", "n1")),
    ],
)
def test_a_hostlist_expands_in_the_order_written(text: str, names: tuple[str, ...]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ((), ""),
        (("n1", "n2", "n3", "n7"), "n[1-3,7]"),
        (("n08", "n09", "n10"), "n[08-10]"),
        (("n9", "n10"), "n[9-10]"),
        (("n09", "n10", "n9"), "n[09-10,9]"),
        (("n3", "n1"), "n[3,1]"),
        (("n1", "m1", "n2"), "n1,m1,n2"),
        (("login", "n1.x", "n2.x"), "login,n[1-2].x"),
        (("n1-a", "n2-a"), "n[1-2]-a"),
    ],
)
def test_neighbours_are_compressed_and_the_order_is_kept(names: tuple[str, ...], text: str) -> None:
    assert compress(names) == text


@given(st.lists(NAMES, max_size=40))
def test_expanding_what_was_compressed_gives_the_same_names(names: list[str]) -> None:
    assert expand(compress(names)) == tuple(names)


@given(
    st.integers(0, 2000), st.integers(0, 60), st.integers(1, 6), st.sampled_from(["", "n", "r1-", "gpu0x"])
)
def test_a_run_of_numbers_becomes_one_range(first: int, more: int, width: int, prefix: str) -> None:
    names = [f"{prefix}{number:0{width}}" for number in range(first, first + more + 1)]
    assert compress(names).count(",") == 0
    assert expand(compress(names)) == tuple(names)


@pytest.mark.parametrize(
    "text",
    [
        "n[",
        "n]",
        "n[]",
        "n[1,]",
        "n[-3]",
        "n[1-]",
        "n[a]",
        "n[1--2]",
        "n[4-1]",
        ",a",
        "a,",
        "a,,b",
        "a b",
        " a",
        "n[1-2",
        "n[1[2]]",
        "n[1 2]",
        "n[٣]",
    ],
)
def test_malformed_text_is_refused_with_the_text_in_the_message(text: str) -> None:
    with pytest.raises(UserError, match="hostlist") as caught:
        expand(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    "text", [f"n[0-{LIMIT}]", "[0-999][0-999]", "n[1-99999],m[1-99999]", "n[0-99999999999999999]"]
)
def test_a_list_of_too_many_names_is_refused_before_it_fills_the_memory(text: str) -> None:
    with pytest.raises(UserError, match="more than"):
        expand(text)


def test_as_many_names_as_the_limit_are_fine() -> None:
    assert len(expand(f"n[1-{LIMIT}]")) == LIMIT


@pytest.mark.parametrize("name", ["", "a,b", "n[1]", "a b"])
def test_a_name_that_no_hostlist_can_hold_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="cannot stand in a hostlist"):
        compress(["n1", name])
