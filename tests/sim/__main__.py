"""`python -m tests.sim`: plays many seeds, or tells the story of one."""

from __future__ import annotations

import argparse
import sys
import time

from bridge import log
from tests.sim.play import play
from tests.sim.runner import run_seeds, silence, story
from tests.sim.schedule import draw

EVERY = 500  # seeds between two lines of progress
STORIES = 5  # failing seeds that are made shorter at the end


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--processes", type=int, default=0, help="0 = one a core")
    parser.add_argument("--seed", type=int, help="play this one only, with the log of the bridge")
    parser.add_argument("--story", type=int, help="make this failing one as short as it gets")
    given = parser.parse_args()
    if given.seed is not None:
        return _one(given.seed)
    if given.story is not None:
        silence()
        print(story(given.story))
        return 0
    return _many(range(given.first, given.first + given.seeds), given.processes)


def _one(seed: int) -> int:
    log.setup()
    schedule = draw(seed)
    print(schedule)
    seen = play(schedule)
    print(seen or "holds")
    return seen is not None


def _many(seeds: range, processes: int) -> int:
    begun, done = time.monotonic(), 0
    failed: list[int] = []
    for chunk, failures in run_seeds(seeds, processes):
        before, done = done, done + len(chunk)
        for seed, seen in failures:
            failed.append(seed)
            print(f"seed {seed}: {seen.violation}", flush=True)
        if done // EVERY > before // EVERY or done == len(seeds):
            rate = done / (time.monotonic() - begun)
            print(f"{done} of {len(seeds)} seeds, {len(failed)} failed, {rate:.1f} a second", flush=True)
    silence()
    for seed in sorted(failed)[:STORIES]:
        print(f"\n{story(seed)}", flush=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
