"""What may go wrong between the bridge and the API server, one value per accident."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Request:
    """What a fault is matched against. `verb` is list, get, watch, create, update, patch, patch_status,
    bind, delete.
    """

    verb: str
    resource: str
    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The request is not carried out; this comes back. `body` None = a fitting Status."""

    status: int
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class DropBefore:
    """The request never arrives."""


@dataclass(frozen=True, slots=True)
class DropAfter:
    """The request is carried out, its reply is lost."""


@dataclass(frozen=True, slots=True)
class Hang:
    """No answer until the caller's deadline; `done` says whether it was carried out all the same."""

    done: bool = False


@dataclass(frozen=True, slots=True)
class Truncate:
    """Carried out; only the first `keep` bytes of the reply arrive."""

    keep: int = 20


Effect = Answer | DropBefore | DropAfter | Hang | Truncate


@dataclass(slots=True)
class Fault:
    effect: Effect
    matches: Callable[[Request], bool]
    times: int  # how often it still strikes; negative = until removed


class Faults:
    def __init__(self) -> None:
        self._planned: list[Fault] = []

    def plan(
        self,
        effect: Effect,
        *,
        verb: str | None = None,
        resource: str | None = None,
        name: str | None = None,
        times: int = 1,
        when: Callable[[Request], bool] | None = None,
    ) -> Fault:
        """The next `times` requests that match suffer `effect`; None matches everything."""

        def matches(request: Request) -> bool:
            return (
                verb in (None, request.verb)
                and resource in (None, request.resource)
                and name in (None, request.name)
                and (when is None or when(request))
            )

        fault = Fault(effect, matches, times)
        self._planned.append(fault)
        return fault

    def clear(self) -> None:
        self._planned.clear()

    def strike(self, request: Request) -> Effect | None:
        for fault in self._planned:
            if fault.times != 0 and fault.matches(request):
                fault.times -= 1
                return fault.effect
        return None
