"""A promise as a predicate: its name, and the sentences that say where it is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import TypeVar


@dataclass(frozen=True, slots=True)
class Violation:
    invariant: str  # the name of the predicate
    text: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.text}"


S = TypeVar("S")
Predicate = Callable[[S], tuple[Violation, ...]]


def invariant(sentences: Callable[[S], Iterator[str]]) -> Predicate[S]:
    @wraps(sentences)
    def found(seen: S) -> tuple[Violation, ...]:
        return tuple(Violation(sentences.__name__, text) for text in sentences(seen))

    return found
