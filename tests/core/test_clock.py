"""Which time counts when slurmctld's clock, or ours, jumps."""

from __future__ import annotations

from bridge.core.clock import DRIFT, STOOD, SlurmClock
from bridge.core.lifecycle import decide
from bridge.core.model import Condition
from bridge.core.steps import SetConditions
from tests.core.build import FIRST, NOW, bound, facts, record, sight

OURS = SlurmClock(1000.0)
DAY = 86400.0


def test_a_small_drift_counts_at_once() -> None:
    assert OURS.told(1000.0 + DRIFT, 0.0).earliest == 1000.0 + DRIFT


def test_a_step_ahead_counts_when_it_has_stood() -> None:
    clock = OURS
    for at in range(int(STOOD)):
        clock = clock.told(1000.0 + DAY, float(at))
        assert clock.earliest == 1000.0
    assert clock.told(1000.0 + DAY, STOOD).earliest == 1000.0 + DAY


def test_steps_that_come_and_go_or_change_never_count() -> None:
    clock = OURS
    for at in range(1000):
        clock = clock.told(1000.0 + (DAY if at % 59 else 0.0), float(at))
        assert clock.earliest == 1000.0
    for at in range(1000, 2000):
        clock = clock.told(1000.0 + at % 2 * DAY + DAY, float(at))
        assert clock.earliest == 1000.0


def test_of_a_clock_that_was_set_back_the_earlier_time_counts_at_once() -> None:
    """What starts from now on starts by that."""
    clock = OURS.told(1000.0 - DAY, 0.0)
    assert clock.earliest == 1000.0 - DAY
    assert clock.told(1000.0, 3.0).earliest == 1000.0
    assert clock.told(1000.0 - DAY, STOOD).told(1000.0, STOOD + 1.0).earliest == 1000.0 - DAY


def test_an_answer_that_takes_long_is_no_step() -> None:
    assert OURS.told(970.0, 30.0, 30.0) == OURS
    assert OURS.told(970.0, 30.0).earliest == 970.0


def test_a_bind_that_is_told_late_is_never_told_to_be_older_than_the_start_of_the_job() -> None:
    """It would look as if the job had begun anew under its pod; a clock that is in doubt counts as early."""
    late = Condition(type="PodScheduled", status="False")
    running = record(FIRST, "RUNNING")
    decision = decide(facts(bound(FIRST, conditions=(late,)), sights=(sight(running),), slurm_now=NOW - 60))
    (told,) = (s for s in decision.steps if isinstance(s, SetConditions))
    assert told.conditions[0].changed == running.started
