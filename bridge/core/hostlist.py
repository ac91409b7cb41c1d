"""Slurm's hostlists: `expand("n[1-2,07]")` ↔ `compress(["n1", "n2", "n07"])`.

Text in, node names out, in the order written, which is the order of Slurm's ranks; and back.
Stays true: `expand(compress(names)) == names` for all valid names; order, padding and repeats included.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import product
from math import prod

from bridge.errors import UserError

LIMIT = 100_000  # names; no cluster has more, and a typing error must not fill the memory
_ITEM = re.compile(r"(?:[^\[\],\s]+|\[[^\[\]\s]*\])+")
_PART = re.compile(r"\[([^\]]*)\]|([^\[]+)")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_NAME = re.compile(r"[^\[\],\s]+")
_NUMBERED = re.compile(r"(.*?)([0-9]{1,18})([^0-9]*)", re.DOTALL)


def expand(text: str) -> tuple[str, ...]:
    """Every name, in the order written; () for the empty text.

    Raises UserError for malformed text and for more than `LIMIT` names.
    """
    if not text:
        return ()
    names: list[str] = []
    at = 0
    while True:
        item = _ITEM.match(text, at)
        if item is None:
            raise _malformed(text, f"a node name is missing or broken at character {at + 1}")
        parts = [_choices(match, text) for match in _PART.finditer(item[0])]
        if len(names) + prod(len(part) for part in parts) > LIMIT:
            raise _too_many(text)
        names.extend("".join(choice) for choice in product(*parts))
        at = item.end()
        if at == len(text):
            return tuple(names)
        if text[at] != ",":
            raise _malformed(text, f"{text[at]!r} at character {at + 1} is not expected")
        at += 1


def compress(names: Iterable[str]) -> str:
    """The shortest text of neighbours with one prefix and suffix; the order is kept.

    Raises UserError for a name that no hostlist can hold (empty, or with a comma, bracket or space).
    """
    done: list[str] = []
    stem: tuple[str, str] | None = None  # prefix and suffix of the open bracket
    runs: list[list[str]] = []  # first and last number of each run of the open bracket, as written
    for name in names:
        if not _NAME.fullmatch(name):
            raise UserError(
                f"node name {name!r}: cannot stand in a hostlist; remove commas, brackets and spaces"
            )
        match = _NUMBERED.fullmatch(name)
        if match is None:
            done.extend(_close(stem, runs))
            stem, runs = None, []
            done.append(name)
            continue
        here, number = (match[1], match[3]), match[2]
        if here != stem:
            done.extend(_close(stem, runs))
            stem, runs = here, [[number, number]]
        elif _follows(runs[-1][0], runs[-1][1], number):
            runs[-1][1] = number
        else:
            runs.append([number, number])
    done.extend(_close(stem, runs))
    return ",".join(done)


def _choices(part: re.Match[str], text: str) -> tuple[str, ...]:
    """The alternatives of one piece of a name: plain text has one, a bracket has its numbers."""
    if part[1] is None:
        return (part[2],)
    found: list[str] = []
    for piece in part[1].split(","):
        match = _RANGE.fullmatch(piece)
        if match is None:
            raise _malformed(text, f"[{part[1]}] must hold numbers and ranges such as [1-4,7]")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise _malformed(text, f"the range {piece} runs backwards")
        if len(found) + last - first >= LIMIT:
            raise _too_many(text)
        width = len(match[1])
        found.extend(str(number).zfill(width) for number in range(first, last + 1))
    return tuple(found)


def _follows(first: str, last: str, number: str) -> bool:
    """`number` is what the range that begins with `first` writes after `last`."""
    return int(number) == int(last) + 1 and number == str(int(number)).zfill(len(first))


def _close(stem: tuple[str, str] | None, runs: list[list[str]]) -> Iterator[str]:
    if stem is None:
        return
    if len(runs) == 1 and runs[0][0] == runs[0][1]:
        yield f"{stem[0]}{runs[0][0]}{stem[1]}"
        return
    inside = ",".join(first if first == last else f"{first}-{last}" for first, last in runs)
    yield f"{stem[0]}[{inside}]{stem[1]}"


def _malformed(text: str, why: str) -> UserError:
    return UserError(f"hostlist {text!r}: {why}; write names as in n[01-04,07],login1")


def _too_many(text: str) -> UserError:
    return UserError(f"hostlist {text!r}: names more than {LIMIT} nodes; write a smaller range")
