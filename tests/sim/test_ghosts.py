"""Pods that go while no bridge runs, and restarts after ends of ours: who waits for whom, in virtual time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bridge.config import JobSettings
from bridge.core import identity
from bridge.core.model import JobId
from tests.sim.simulation import Simulation
from tests.sim.test_story import play, running
from tests.sim.test_vanished import alone


def crowd(sim: Simulation, count: int = 100) -> None:
    """Jobs that ended, with ids like ours and with Slurm's own: reading them all takes seconds."""
    for i in range(2 * count):
        other = sim.slurm.native()
        sim.slurm.end(other.id, "CANCELLED")
        if i < count:
            sim.slurm.add(replace(sim.slurm.jobs[other.id], id=JobId(JobSettings().jobIdFirst + i)))


def over(sim: Simulation, job: JobId) -> bool:
    mark = identity.parse(sim.slurm.jobs[job].admin_comment)
    assert mark is not None
    return mark.over


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("ended", [False, True], ids=["after the start", "before the start"])
def test_a_successor_waits_for_a_pod_that_went_by_force_while_no_bridge_ran(
    tmp_path: Path, *, ended: bool, held: bool
) -> None:
    async def scene(sim: Simulation) -> None:
        crowd(sim)
        sim.start()
        await alone(sim, "old", gpus=8)
        job = sim.job_of("old")
        await sim.crash()
        sim.delete("old", force=True)
        if ended:
            sim.slurm.end(job, "CANCELLED")
            sim.start()
        else:
            sim.start()
            await sim.settle(2.0)
            sim.slurm.end(job, "TIMEOUT")
        sim.create("next", gpus=8)
        await sim.settle(30.0)
        assert not running(sim, "next")
        await sim.until(lambda: running(sim, "next"), 90.0)

    play(tmp_path, scene, nodes=1, **({"jobIds": "held"} if held else {}))


def test_so_it_does_where_the_job_was_suspended_long_before_it_ended(tmp_path: Path) -> None:
    """Slurm gives the moment of the suspension as its end."""

    async def scene(sim: Simulation) -> None:
        sim.start()
        await alone(sim, "old", gpus=8)
        job = sim.job_of("old")
        sim.slurm.set_states(job, "SUSPENDED")
        await sim.settle(600.0)
        await sim.crash()
        sim.delete("old", force=True)
        sim.slurm.end(job, "CANCELLED")
        sim.start()
        sim.create("next", gpus=8)
        await sim.settle(30.0)
        assert not running(sim, "next")
        await sim.until(lambda: running(sim, "next"), 90.0)

    play(tmp_path, scene, nodes=1)


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "found by the sweep"])
def test_a_job_that_the_bridge_cancelled_holds_nobody_up_after_a_restart(
    tmp_path: Path, *, seen: bool
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        await alone(sim, "old", gpus=8)
        job = sim.job_of("old")
        if not seen:
            await sim.crash()
        sim.delete("old", force=True)
        if not seen:
            sim.start()
        await sim.until(lambda: sim.slurm.jobs[job].states == {"CANCELLED"}, 200.0)
        assert over(sim, job)
        await sim.crash()
        sim.start()
        sim.create("next", gpus=8)
        await sim.until(lambda: running(sim, "next"), 5.0)

    play(tmp_path, scene, nodes=1)
