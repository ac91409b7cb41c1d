"""Schedules of accidents: new ones in every run, and every one that has ever failed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec
import pytest

from bridge.core.violation import Violation
from tests.sim.actions import Create, Delete, Kill
from tests.sim.play import play
from tests.sim.runner import Past, run_seeds, story
from tests.sim.schedule import Options, Schedule, Step, draw
from tests.sim.shrink import shrink
from tests.sim.witness import Seen

NEW = 500  # seeds a run; `make sim` plays thousands
SEED_ENV = "SIM_FIRST_SEED"  # plays the same seeds as an earlier run
HERE = Path(__file__).parent
PLAYED = (HERE.parents[1] / "bridge", HERE, HERE.parent / "worlds")
PAST = [msgspec.json.decode(line, type=Past) for line in (HERE / "past.jsonl").read_bytes().splitlines()]


def first_seed() -> int:
    """Another one for every change of what is played; on every machine the same, so that who made it sees it fail."""
    if SEED_ENV in os.environ:
        return int(os.environ[SEED_ENV])
    known = hashlib.sha256()
    for folder in PLAYED:
        for file in sorted(folder.rglob("*.py")):
            known.update(file.read_bytes())
    return int(known.hexdigest()[:7], 16) * NEW


def test_no_accident_of_new_schedules_costs_anybody_anything() -> None:
    first = first_seed()
    print(f"seeds {first} to {first + NEW - 1}; {SEED_ENV}={first} plays them again")
    failed = [f for _, failures in run_seeds(range(first, first + NEW)) for f in failures]
    stories = "\n\n".join(story(seed) for seed, _ in failed[:2])
    assert not failed, f"{len(failed)} of {NEW} from {first}: {[s for s, _ in failed]}\n{stories}"


@pytest.mark.parametrize("past", PAST, ids=[f"{past.schedule.seed}" for past in PAST])
def test_what_failed_once_holds_today(past: Past) -> None:
    seen = play(past.schedule)
    assert seen is None, f"{past.found}\n{past.schedule}\n{seen}"


def test_a_seed_is_played_the_same_way_twice() -> None:
    for seed in range(3):
        assert draw(seed) == draw(seed)


def test_a_failing_schedule_is_told_without_what_it_does_not_need() -> None:
    steps = (
        Step(at=0.0, action=Create(pod="a")),
        Step(at=1.0, action=Kill(down=0.0)),
        Step(at=2.0, action=Create(pod="b")),
        Step(at=3.0, action=Delete(pod="b")),
    )
    needed = {steps[0], steps[3]}

    def fails(schedule: Schedule) -> Seen | None:
        return Seen(Violation("one_job", "two"), 0.0) if needed <= set(schedule.steps) else None

    whole = Schedule(seed=1, options=Options(poll=0.5), steps=steps)
    shortest = shrink(whole, fails)
    assert shortest.steps == (steps[0], steps[3])
    assert shortest.options == Options()
