"""Hints from outside: they make the watcher look sooner, and can't make it look too often or at anything else."""

from __future__ import annotations

import pytest

from bridge.core.model import JobId, States
from bridge.slurm.pause import HURRY
from tests.contract.slurm_watched import IDS, A, Watched, watched_fixture

__all__ = ["watched_fixture"]

FAR = JobId(IDS.first + 77)  # in our range, and nobody has it


async def rarely(watched: Watched) -> None:
    """A watcher whose next poll is seconds away."""
    watched.watcher.pace = 20.0
    await watched.submit(A)
    await watched.start()
    await watched.pass_time(5.05)


async def test_a_hint_brings_the_next_poll_forward(watched: Watched) -> None:
    await rarely(watched)
    polls = watched.polls()
    await watched.pass_time(0.2)
    assert watched.polls() == polls
    watched.watcher.hint(FAR)
    await watched.pass_time(0.1)
    assert watched.polls() > polls


async def test_a_hint_about_a_known_job_reads_it_at_once(watched: Watched) -> None:
    await rarely(watched)
    reads = watched.reads()
    watched.watcher.hint(A)
    await watched.pass_time(0.0)
    assert watched.reads() == reads + 1


async def test_a_hint_about_an_unknown_job_reads_nothing(watched: Watched) -> None:
    await rarely(watched)
    reads = watched.reads()
    watched.watcher.hint(FAR)
    await watched.pass_time(0.1)
    assert watched.reads() == reads


async def test_after_a_hint_polls_hurry_for_a_moment_only(watched: Watched) -> None:
    """The word may be ahead of the change: the hook still runs when it is sent."""
    await rarely(watched)
    watched.watcher.hint(A)
    await watched.pass_time(HURRY + 2.0)
    polls = watched.polls()
    await watched.pass_time(10.0)
    assert watched.polls() - polls == pytest.approx(5, abs=1)


async def test_however_many_hints_come_polls_keep_their_share(watched: Watched) -> None:
    cost, states = 0.05, watched.client.states

    async def slow() -> dict[JobId, States]:
        watched.time.jump(cost)
        return await states()

    watched.client.states = slow  # type: ignore[method-assign]
    await rarely(watched)
    watched.watcher.pace = 1.0
    await watched.pass_time(2.0)
    polls, began = watched.polls(), watched.time.now()
    for _ in range(100):
        watched.watcher.hint(FAR)
        await watched.pass_time(0.05)
    passed = watched.time.now() - began
    assert 0.15 * passed <= (watched.polls() - polls) * cost <= 0.21 * passed


async def test_hints_do_not_hurry_a_watcher_that_cannot_read_slurm(watched: Watched) -> None:
    await rarely(watched)
    watched.world.down = True
    await watched.pass_time(20.0)
    asked = len(watched.world.requests)
    for _ in range(100):
        watched.watcher.hint(FAR)
        await watched.pass_time(0.01)
    assert len(watched.world.requests) - asked <= 2
