"""Slurm fails in every known way: running pods live on, and new ones run soon after, without a restart."""

from __future__ import annotations

import pytest

from tests.e2e.faulttable import RECOVERY, ROWS, SECONDS, FaultTable

# The table runs beside the other tests; run alone, the first of these waits for nearly all of it.
pytestmark = [pytest.mark.real, pytest.mark.timeout(len(ROWS) * (SECONDS + 2 * RECOVERY) + 1800)]


@pytest.mark.parametrize("fault", ROWS)
def test_fifty_running_pods_outlive_a_minute_of(fault: str, fault_table: FaultTable) -> None:
    print(f"new pods ran {fault_table.row(fault):.1f} s after the end of it")


def test_the_invariants_hold_through_all_of_it(fault_table: FaultTable) -> None:
    fault_table.end()
