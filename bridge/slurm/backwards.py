"""Which news of a job take something back, as a slurmctld does that was killed and came up with an older state.

In: its states before and now. Out: whether a boot must be looked for before anybody hears of it. Pure.
"""

from __future__ import annotations

from typing import Final

from bridge.core.model import States, is_ended, torn

DOUBTFUL: Final = ("PENDING", "NODE_FAIL", "BOOT_FAIL")


def backwards(before: States, after: States | None) -> bool:
    """Gone; live again after its end, or a part of it; waiting again after it had started; or what a new boot must
    discount first."""
    if is_ended(before):
        return after is not None and not is_ended(after)
    if after is None:
        return True
    lost, loses = (torn(states) if len(states) > 1 else frozenset() for states in (before, after))
    if lost - loses and not is_ended(after):
        return True
    return any((state in after or state in loses) and state not in before for state in DOUBTFUL)
