"""Kubernetes quantities, exactly: "500m", "1.5Gi", "2e3" → numbers that never round down.

Text in, `Fraction` or a whole number out. Stays true: what we ask Slurm for is never less than what the pod
asked Kubernetes for. Every error is a UserError that names the field it was given.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

from bridge.errors import UserError, trim

MIB = 2**20
LARGEST = 2**63 - 1  # beyond this Kubernetes itself stops counting

_FORM = re.compile(r"([+-]?)([0-9]+\.?[0-9]*|\.[0-9]+)([KMGTPE]i|[numkMGTPE]?|[eE][+-]?[0-9]{1,3})")
_LONGEST = 100  # characters; nobody writes more, and long digits cost time
_SCALES = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "k": Fraction(10**3),
    **{letter: Fraction(10 ** (3 * power)) for power, letter in enumerate("MGTPE", 2)},
    **{f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", 1)},
}


def parse(text: str, field: str = "quantity") -> Fraction:
    """The exact amount, ≥ 0, in the resource's own unit (cores, bytes, pieces).

    Raises UserError naming `field` for malformed, negative and absurdly large text.
    """
    match = _FORM.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        raise _refusal(field, text, "is not a Kubernetes quantity; write one such as 500m, 2 or 1.5Gi")
    sign, digits, suffix = match[1], match[2], match[3]
    scale = _SCALES.get(suffix)
    if scale is None:  # an exponent: 2e3, 1E-2
        scale = Fraction(10) ** int(suffix[1:])
    amount = Fraction(digits.rstrip(".")) * scale
    if sign == "-" and amount:
        raise _refusal(field, text, "is negative; write 0 or more")
    if amount > LARGEST:
        raise _refusal(field, text, "is larger than any quantity that Kubernetes counts; write a smaller one")
    return amount


def cpus(text: str, field: str = "cpu") -> int:
    """Whole CPUs, rounded up: "200m" → 1."""
    return math.ceil(parse(text, field))


def mib(text: str, field: str = "memory") -> int:
    """Whole MiB, rounded up: "1" (a byte) → 1."""
    return ceil_mib(parse(text, field))


def ceil_mib(amount: Fraction) -> int:
    """Bytes → whole MiB, rounded up."""
    return math.ceil(amount / MIB)


def _refusal(field: str, text: str, why: str) -> UserError:
    return UserError(f"{field}: {trim(repr(text), 60)} {why}")
