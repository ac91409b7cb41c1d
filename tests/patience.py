"""What a test bears from a busy machine, and what it doesn't."""

from __future__ import annotations

import os

PATIENCE = float(os.environ.get("SLURM_BRIDGE_PATIENCE", "4"))  # times the deadline that a test gives
broken: list[
    str
] = []  # what must always hold and did not, of all tests so far; after it nothing has a second try


def forgiving() -> bool:
    return not broken
