"""slurmctld loses the start of a job whose pod runs, and places it anew on the same node with other GPUs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.core.model import SlurmNode
from tests.sim.simulation import Simulation
from tests.sim.test_story import play, running


@pytest.mark.parametrize("boots", [1, 2])
def test_the_node_is_drained_however_often_slurmctld_starts_meanwhile(tmp_path: Path, boots: int) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.held = True
        sim.start()
        await asyncio.sleep(8.0)
        uid = sim.create("p", gpus=2)
        await sim.until(lambda: sim.jobs_of(uid), 5.0)
        await asyncio.sleep(8.0)  # it waits, and slurmctld has saved that
        sim.slurm.held = False
        sim.slurm.native(gpus=0)
        await sim.until(lambda: running(sim, "p"), 5.0)
        sim.slurm.held = True
        await asyncio.sleep(1.5)
        sim.slurm.crash(4.0)
        job = sim.slurm.jobs[sim.job_of("p")]
        assert "PENDING" in job.states
        sim.slurm.held = False
        native = sim.slurm.native(gpus=2)
        ours, theirs = sim.slurm.jobs[job.id], sim.slurm.jobs[native.id]
        if ours.gpus == {"n1": (0, 1)}:  # the queue in another order
            sim.slurm._put(replace(ours, gpus=theirs.gpus))
            sim.slurm._put(replace(theirs, gpus=ours.gpus))
        for _ in range(boots - 1):
            await asyncio.sleep(5.0)
            sim.slurm.restart()
        await asyncio.sleep(60.0)
        assert running(sim, "p")
        assert sim.slurm.nodes[SlurmNode("n1")].reason.startswith("slurm-bridge: pod default/p uses GPUs 0-1")

    play(tmp_path, scene, nodes=1, fastPath=False)


@pytest.mark.parametrize("ahead", [-5.0, 0.0, 3600.0])
def test_the_node_is_drained_whatever_the_clock_of_the_api_server_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    async def scene(sim: Simulation) -> None:
        monkeypatch.setattr(sim.witness, "fail", lambda _: None)  # it reads this clock, which is in doubt
        monkeypatch.setattr(sim.kube, "now", lambda: sim.wall() + ahead)
        monkeypatch.setattr(sim.kube.storage, "_now", lambda: sim.wall() + ahead)
        first = sim.slurm.native(gpus=1)
        sim.start()
        await asyncio.sleep(3.0)
        sim.slurm.start_delay = 1.0
        uid = sim.create("p", gpus=1)
        await sim.until(lambda: running(sim, "p"), 20.0)
        job = sim.jobs_of(uid)[0]
        await asyncio.sleep(0.1)
        sim.slurm.crash(sim.wall() - job.started + 0.3)
        sim.slurm.down = True
        sim.slurm.start_delay = 2.0
        await asyncio.sleep(2.0)
        sim.slurm.down = False
        sim.slurm.end(first.id, "COMPLETED")  # so the GPU of this one is the first that is free
        await asyncio.sleep(60.0)
        assert running(sim, "p")
        assert sim.slurm.jobs[job.id].gpus != job.gpus
        assert sim.slurm.nodes[SlurmNode("n1")].reason.startswith("slurm-bridge: pod default/p uses GPUs 1")

    play(tmp_path, scene, nodes=1, gpus=2, fastPath=False)
