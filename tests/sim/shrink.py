"""The shortest story: a failing schedule without everything that it doesn't need to fail in the same way.

In: a schedule that violates an invariant, and how to play one. Out: one that violates the same invariant and of which
no part can be left out (delta debugging).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tests.sim.schedule import Options, Schedule, Step
from tests.sim.witness import Seen

Play = Callable[[Schedule], Seen | None]


def shrink(schedule: Schedule, play: Play) -> Schedule:
    failure = play(schedule)
    if failure is None:
        return schedule
    name = failure.violation.invariant

    def fails(candidate: Schedule) -> bool:
        seen = play(candidate)
        return seen is not None and seen.violation.invariant == name

    steps = schedule.steps
    size = max(1, len(steps) // 2)
    while True:
        shorter = _without_one_piece(schedule, steps, size, fails)
        if shorter is not None:
            steps = shorter
        elif size == 1:
            break
        else:
            size = max(1, size // 2)
    return _plainer(msgspec.structs.replace(schedule, steps=steps), fails)


def _without_one_piece(
    schedule: Schedule, steps: tuple[Step, ...], size: int, fails: Callable[[Schedule], bool]
) -> tuple[Step, ...] | None:
    for start in range(0, len(steps), size):
        rest = steps[:start] + steps[start + size :]
        if fails(msgspec.structs.replace(schedule, steps=rest)):
            return rest
    return None


def _plainer(schedule: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    """Each option at its default, where that fails as well."""
    for name in Options.__struct_fields__:
        options = msgspec.structs.replace(schedule.options, **{name: getattr(Options(), name)})
        candidate = msgspec.structs.replace(schedule, options=options)
        if options != schedule.options and fails(candidate):
            schedule = candidate
    return schedule
