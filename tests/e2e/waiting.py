"""Waiting for the real daemons: a condition and its deadline, never a number of seconds to sit out.

A deadline says how long a machine that is ours alone may take. It is stretched here, in one place, as one that runs
three stacks on two cores takes longer and is not wrong for that: how fast the product is, benchmarks/ measures. What
the product itself promises to do in time (`promised`) is not stretched.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tests.patience import PATIENCE

T = TypeVar("T")
EVERY = 0.05  # seconds between two looks


def eventually(
    what: str, look: Callable[[], T], within: float = 30.0, every: float = EVERY, *, promised: bool = False
) -> T:
    """The first true value of `look`. Fails with the last value that it gave after `within` seconds, stretched."""
    within *= 1 if promised else PATIENCE
    deadline = time.monotonic() + within
    while not (found := look()):
        assert time.monotonic() < deadline, f"not within {within:.0f} s: {what}; last seen: {found!r}"
        time.sleep(every)
    return found


def throughout(what: str, seconds: float, look: Callable[[], object], every: float = 0.25) -> None:
    """`look` stays true, however often it is asked, until `seconds` are over."""
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        assert look(), f"no longer so after {passed:.1f} s: {what}"
        time.sleep(every)
