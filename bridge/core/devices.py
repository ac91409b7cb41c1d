"""Slurm's GRES texts: which devices of a node a job holds.

`held("gpu:h100:2(IDX:0-1),nic:1(IDX:3)")` → one `Held` for each entry; `indices(text)` → the GPUs' indices,
which count through all types of one name on a node; `spell((0, 1, 4))` → "0-1,4", the form of the pod
annotation. A text that no Slurm writes is a ProtocolError: nothing may be concluded from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from bridge.core import hostlist
from bridge.errors import ProtocolError, UserError

GPU = "gpu"

_COUNT = r"[0-9]+[KMGTP]?(?![^,()\s])"  # a count, and not the beginning of a type such as 1g.5gb
_ENTRY = re.compile(
    rf"([^:,()\s]+)(?::(?!{_COUNT})([^:,()\s]+))?(?::([0-9]+)([KMGTP]?))?((?:\([^()]*\))*)",
)
_NOTE = re.compile(r"\(([^():]*):([^()]*)\)")
_WANTED = re.compile(r"(?:gres[/:])?([^:=/]+)(?::(?![0-9]+$)[^:=]+)?(?:[:=]([0-9]+))?")
_SCALE = {"": 1, **{letter: 1024**power for power, letter in enumerate("KMGTP", 1)}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One kind of device on one node."""

    name: str  # "gpu"
    type: str = ""  # "h100"; "" = untyped
    count: int = 0
    indices: tuple[int, ...] = ()  # ascending; () where Slurm counts without device files


def held(text: str) -> tuple[Held, ...]:
    """Every entry of a gres_detail (or gres, gres_used) text, in order; () for "" and "(null)".

    Raises ProtocolError for anything else, and if an entry has more or fewer indices than its count says.
    """
    if text in ("", "(null)"):
        return ()
    found: list[Held] = []
    at = 0
    while True:
        match = _ENTRY.match(text, at)
        if match is None:
            raise _unknown(text)
        found.append(_entry(match, text))
        at = match.end()
        if at == len(text):
            return tuple(found)
        if text[at] != ",":
            raise _unknown(text)
        at += 1


@lru_cache(maxsize=20_000)  # asked of each holder at every look
def indices(gres_detail: str, name: str = GPU) -> tuple[int, ...]:
    """Indices of the devices called `name`, over all their types, ascending.

    Raises ProtocolError for an unknown form and for an index that appears twice.
    """
    all_of_them = sorted(index for one in held(gres_detail) if one.name == name for index in one.indices)
    if len(set(all_of_them)) != len(all_of_them):
        raise ProtocolError(f"gres text {gres_detail!r}: names one device twice")
    return tuple(all_of_them)


def is_gpu(gres: str) -> bool:
    """Of a name with or without a type: "gpu:h100"."""
    return gres.partition(":")[0] == GPU


def wanted(tres_per_node: str, name: str = GPU) -> int:
    """How many devices called `name` a job asks for on each node: "gres/gpu:h100=2,gpu,gres/nic:1" → 3."""
    found = (_WANTED.fullmatch(entry.strip()) for entry in tres_per_node.split(","))
    return sum(int(match[2] or 1) for match in found if match is not None and match[1] == name)


def spell(numbers: Iterable[int]) -> str:
    """(0, 1, 4) → "0-1,4"; "" for none."""
    text = hostlist.compress(str(number) for number in sorted(set(numbers)))
    return text[1:-1] if text.startswith("[") else text


def unspell(text: str) -> tuple[int, ...]:
    """The inverse: "0-1,4" → (0, 1, 4). Raises UserError for anything else."""
    return tuple(int(number) for number in hostlist.expand(f"[{text}]")) if text else ()


def _entry(match: re.Match[str], text: str) -> Held:
    name, kind, digits, unit, notes = match.groups()
    count = int(digits) * _SCALE[unit] if digits else 1
    found: tuple[int, ...] = ()
    for label, value in _NOTE.findall(notes):
        if label == "IDX" and value not in ("", "N/A"):
            try:
                found = tuple(sorted(int(number) for number in hostlist.expand(f"[{value}]")))
            except UserError as error:
                raise _unknown(text) from error
            if len(found) != count:
                raise ProtocolError(f"gres text {text!r}: has {len(found)} indices for {count} devices")
    return Held(name=name, type=kind or "", count=count, indices=found)


def _unknown(text: str) -> ProtocolError:
    return ProtocolError(f"gres text {text!r}: is not a form that Slurm writes, such as gpu:h100:2(IDX:0-1)")
