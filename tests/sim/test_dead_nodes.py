"""Pods that go with their nodes: nobody gets their GPUs before a person has looked, whatever becomes of the job."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bridge.core.model import SlurmNode, is_ended
from tests.sim.simulation import Simulation
from tests.sim.test_story import play
from tests.sim.test_vanished import alone, forget


def drained(sim: Simulation, node: str) -> bool:
    return sim.slurm.nodes[SlurmNode(node)].reason.startswith("slurm-bridge: node not Ready")


@pytest.mark.parametrize("job", ["vanishes", "is cancelled"])
@pytest.mark.parametrize("force", [False, True], ids=["deleted", "deleted by force"])
def test_a_node_that_died_with_a_deleted_pod_is_drained_when_its_job_is_lost(
    tmp_path: Path, job: str, force: bool
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        uid, node = await alone(sim, gpus=8)
        number = sim.job_of("p")
        sim.set_ready(node, False)
        await asyncio.sleep(2.0)
        sim.delete("p", force=force)
        await asyncio.sleep(2.0)
        assert sim.jobs_of(uid)
        if job == "vanishes":
            forget(sim, number)
        else:
            sim.slurm.end(number, "CANCELLED")
        await asyncio.sleep(3.0)
        assert drained(sim, node)
        native = sim.slurm.native(gpus=8)
        await asyncio.sleep(600.0)
        assert "PENDING" in sim.slurm.jobs[native.id].states

    play(tmp_path, scene, nodes=1)


@pytest.mark.parametrize("force", [False, True], ids=["deleted", "deleted by force"])
def test_a_node_that_a_person_resumed_is_not_drained_again_for_a_job_that_the_bridge_ended(
    tmp_path: Path, force: bool
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        _, node = await alone(sim)
        number = sim.job_of("p")
        whole = sim.slurm.nodes[SlurmNode(node)]
        sim.set_ready(node, False)
        sim.delete("p", force=force)
        await sim.until(lambda: is_ended(sim.slurm.jobs[number].states), 120.0)
        assert drained(sim, node)
        sim.slurm.set_node(whole)
        await asyncio.sleep(1200.0)
        assert not drained(sim, node)

    play(tmp_path, scene)


def test_a_node_whose_kubelet_can_not_end_a_pod_is_drained_after_an_hour_and_the_job_keeps_its_gpus(
    tmp_path: Path,
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        _, node = await alone(sim, gpus=2)
        job = sim.job_of("p")
        sim.kubelet._dying = 1e9
        sim.delete("p")
        await sim.settle(3500.0)
        assert not sim.slurm.nodes[SlurmNode(node)].drained
        await sim.settle(200.0)
        assert "containers of default/p live on 60 min" in sim.slurm.nodes[SlurmNode(node)].reason
        assert "RUNNING" in sim.slurm.jobs[job].states

    play(tmp_path, scene, nodes=1)
