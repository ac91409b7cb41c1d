"""What can go wrong on the way to the Slurm world: one Fault a kind, put in front of the requests that match."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto


class Kind(Enum):
    STATUS = auto()  # an answer of the test's choosing; nothing is done
    DROP_BEFORE = auto()  # the connection breaks and nothing was done
    DROP_AFTER = auto()  # it was done, and the answer is lost
    TRUNCATE = auto()  # it was done; half of the answer, well framed
    HTML = auto()  # somebody else's page with status 200
    EDIT = auto()  # it was done; `edit` changes the answer, well framed
    HANG = auto()  # nothing happens until the fault is released, then it is done, whoever gave up meanwhile


@dataclass(kw_only=True)
class Fault:
    """Applies to `times` requests (0: until removed) whose "METHOD route" matches the pattern."""

    pattern: str
    kind: Kind
    times: int = 1
    status: int = 500
    body: bytes = b""
    content_type: str = "application/json"
    edit: Callable[[bytes], bytes] = bytes
    released: asyncio.Event = field(default_factory=asyncio.Event)
    hits: int = 0


class Faults:
    """The list; first match wins."""

    def __init__(self) -> None:
        self._list: list[Fault] = []

    def add(self, fault: Fault) -> Fault:
        self._list.append(fault)
        return fault

    def remove(self, fault: Fault) -> None:
        """It strikes no more, and what it held up goes on."""
        fault.released.set()
        if fault in self._list:
            self._list.remove(fault)

    def clear(self) -> None:
        for fault in self._list:
            fault.released.set()
        self._list.clear()

    def take(self, request: str) -> Fault | None:
        for fault in self._list:
            if re.search(fault.pattern, request):
                fault.hits += 1
                if fault.times and fault.hits >= fault.times:
                    self._list.remove(fault)
                return fault
        return None
