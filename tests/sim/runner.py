"""Many seeds on all cores, and the story of each that fails.

In: seeds. Out: what failed, as it happens; and as text the shortest schedule that fails in the same way.
"""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

import msgspec

from tests.sim.play import play
from tests.sim.schedule import Schedule, draw
from tests.sim.shrink import shrink
from tests.sim.witness import Seen

CHUNK = 25  # seeds that one process plays before it reports


class Past(msgspec.Struct, frozen=True):
    """A schedule that once failed, as one line of past.jsonl. It keeps its meaning when the drawing changes."""

    found: str  # in words
    schedule: Schedule


def run_seeds(seeds: Sequence[int], processes: int = 0) -> Iterator[tuple[list[int], list[tuple[int, Seen]]]]:
    """For each chunk: its seeds, and those of them that fail."""
    chunks = [list(seeds[start : start + CHUNK]) for start in range(0, len(seeds), CHUNK)]
    with ProcessPoolExecutor(processes or os.cpu_count(), initializer=_prepare) as pool:
        for done in as_completed([pool.submit(_play_all, chunk) for chunk in chunks]):
            yield done.result()


def _prepare() -> None:
    silence()
    gc.freeze()  # the code itself is no garbage: no need to look


def _play_all(seeds: list[int]) -> tuple[list[int], list[tuple[int, Seen]]]:
    failed = [(seed, seen) for seed in seeds if (seen := play(draw(seed))) is not None]
    return seeds, failed


def silence() -> None:
    """What the bridge says in its log is of interest in one story, not in thousands."""
    log = logging.getLogger("bridge")
    log.setLevel(logging.ERROR)  # an exception that it caught must still be seen
    log.propagate = False


def story(seed: int) -> str:
    """The shortest schedule that fails as this seed does, how, and its line for past.jsonl."""
    shortest = shrink(draw(seed), play)
    seen = play(shortest)
    if seen is None:
        return f"seed {seed} does not fail"
    line = msgspec.json.encode(Past(found=str(seen.violation), schedule=shortest)).decode()
    return f"{shortest}\n{seen}\n{line}"
