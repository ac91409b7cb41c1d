"""Quantities: every form that Kubernetes takes, and never a bit less than was asked."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bridge.core.quantity import LARGEST, MIB, cpus, mib, parse
from bridge.errors import UserError

SCALES = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    "k": Fraction(1000),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
    "e3": Fraction(1000),
    "E-2": Fraction(1, 100),
    "e+1": Fraction(10),
}


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("0", 0),
        ("-0", 0),
        ("+2", 2),
        ("2.", 2),
        (".5", Fraction(1, 2)),
        ("100m", Fraction(1, 10)),
        ("1.5Gi", 3 * 2**29),
        ("1E", 10**18),
        ("1E3", 1000),
        ("1e-07", Fraction(1, 10**7)),
        ("0.1", Fraction(1, 10)),
        ("128974848", 128974848),
    ],
)
def test_a_quantity_is_read_exactly(text: str, amount: Fraction) -> None:
    assert parse(text) == amount


@given(st.integers(0, 10**6), st.integers(0, 999), st.sampled_from(sorted(SCALES)))
def test_every_suffix_scales_exactly(whole: int, thousandths: int, suffix: str) -> None:
    amount = (whole + Fraction(thousandths, 1000)) * SCALES[suffix]
    assume(amount <= LARGEST)
    assert parse(f"{whole}.{thousandths:03}{suffix}") == amount


@given(st.integers(0, 10**6), st.sampled_from(["m", "", "k", "u", "n"]))
def test_cpus_are_rounded_up_and_by_less_than_one(number: int, suffix: str) -> None:
    asked = parse(f"{number}{suffix}")
    assert asked <= cpus(f"{number}{suffix}") < asked + 1


@given(st.integers(0, 10**12), st.sampled_from(["", "k", "Ki", "Mi", "m"]))
def test_memory_is_rounded_up_to_mib_and_by_less_than_one(number: int, suffix: str) -> None:
    asked = parse(f"{number}{suffix}")
    assert asked <= mib(f"{number}{suffix}") * MIB < asked + MIB


@given(st.integers(0, 10**12), st.integers(0, 10**12))
def test_more_is_never_translated_to_less(one: int, other: int) -> None:
    low, high = sorted((one, other))
    assert mib(f"{low}") <= mib(f"{high}")
    assert cpus(f"{low}m") <= cpus(f"{high}m")


@pytest.mark.parametrize(
    ("text", "whole"), [("1", 1), ("0", 0), ("1Mi", 1), ("1048577", 2), ("1G", 954), ("1m", 1)]
)
def test_a_byte_more_is_a_mib_more(text: str, whole: int) -> None:
    assert mib(text) == whole


@pytest.mark.parametrize(
    "text",
    [
        "",
        " 1",
        "1 ",
        "one",
        "1Q",
        "1K",
        "1Kib",
        "1e",
        "1e1000",
        "--1",
        "1_0",
        "1,5",
        ".",
        "١",
        "0x1",
        "1" * 101,
    ],
)
def test_malformed_text_is_refused_naming_the_field(text: str) -> None:
    with pytest.raises(
        UserError, match=r"^container main: resources\.limits\.cpu: .*is not a Kubernetes quantity"
    ):
        parse(text, "container main: resources.limits.cpu")


def test_negative_and_absurd_amounts_are_refused_naming_the_field() -> None:
    with pytest.raises(UserError, match=r"^memory: '-1Gi' is negative"):
        mib("-1Gi")
    with pytest.raises(UserError, match=r"^cpu: '1e999' is larger"):
        cpus("1e999")
    assert parse(str(LARGEST)) == LARGEST
