"""How long each wait has lasted, as alerts see it."""

from __future__ import annotations

from bridge.core.model import GroupKey
from bridge.core.verdict import Reason, Verdict
from bridge.loops.verdicts import Verdicts
from bridge.metrics import GROUPS, LONGEST

KEYS = [GroupKey("default", "Pod", f"p{i}", f"uid-{i}") for i in range(3)]


def measured(verdicts: Verdicts, reason: Reason) -> tuple[float, float]:
    verdicts.measure()
    return (
        GROUPS.labels(reason.value)._value.get(),
        LONGEST.labels(reason.value)._value.get(),
    )


def test_the_longest_wait_of_each_reason_is_shown_and_ends_with_it() -> None:
    now = [100.0]
    verdicts = Verdicts(lambda: now[0])
    for key in KEYS:
        verdicts.say(key, Verdict(Reason.QUEUED, "job 1 is PENDING"))
        now[0] += 10
    assert measured(verdicts, Reason.QUEUED) == (3, 30.0)
    verdicts.say(KEYS[0], Verdict(Reason.RUNNING, "job 1 holds n1"))
    assert measured(verdicts, Reason.QUEUED) == (2, 20.0)
    verdicts.forget(KEYS[0])
    assert measured(verdicts, Reason.RUNNING) == (0, 0.0)


def test_another_sentence_for_the_same_reason_starts_no_new_wait() -> None:
    now = [0.0]
    verdicts = Verdicts(lambda: now[0])
    verdicts.say(KEYS[0], Verdict(Reason.QUEUED, "job 1 is PENDING"))
    now[0] = 50.0
    verdicts.say(KEYS[0], Verdict(Reason.QUEUED, "job 1 is PENDING (Resources)"))
    assert measured(verdicts, Reason.QUEUED) == (1, 50.0)
    verdicts.forget_all()
    assert measured(verdicts, Reason.QUEUED) == (0, 0.0)
