"""What the hook of a native job is told while Slurm takes a pod's GPUs away, in virtual time."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from bridge.core.model import JobId
from tests.sim.simulation import Simulation
from tests.sim.test_story import play
from tests.sim.test_vanished import alone

WAIT = 120.0  # seconds that the hook waits for one who is named


async def told(sim: Simulation, job: JobId, nodes: str) -> tuple[int, dict[str, Any]]:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    query = f"job={job}&nodes={nodes}".encode()
    scope = {"type": "http", "method": "GET", "path": "/slurm/handover", "query_string": query, "headers": []}
    await sim.app()(scope, receive, send)
    return sent[0]["status"], json.loads(sent[-1]["body"])


def test_a_native_job_with_the_number_of_a_job_that_slurmctld_lost_waits_for_its_pod(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.asker = "alice"
        sim.start()
        _, node = await alone(sim, gpus=8)
        lost = sim.job_of("p")
        await sim.settle(2.0)
        sim.slurm.crash(5.0)
        native = sim.slurm.native(gpus=8)
        assert (native.id, native.nodes) == (lost, (node,))
        for _ in range(60):
            status, answer = await told(sim, native.id, node)
            assert (status, answer["clear"]) == (200, False)
            await asyncio.sleep(1.0)
        assert sim.pod("p") is not None

    play(tmp_path, scene, nodes=1, jobIds="held")


@pytest.mark.parametrize("away", ["refuses", "hangs"])
def test_while_slurmrestd_is_away_a_native_job_waits_for_the_pods_on_its_nodes(
    tmp_path: Path, away: str
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        _, node = await alone(sim, "old", gpus=8)
        job = sim.job_of("old")
        if away == "refuses":
            sim.slurm.down = True
        else:
            sim.slurm.latency = 600.0
        sim.slurm.end(job, "CANCELLED")  # by a person; slurmctld itself works on
        native = sim.slurm.native(gpus=8)
        assert native.nodes == (node,)
        for _ in range(int(WAIT)):
            before = sim.wall()
            status, answer = await told(sim, native.id, node)
            assert sim.wall() - before < 2.0, "the hook has given up"
            assert (status, answer["clear"]) == (200, False)
            assert answer["holders"] == [f"default/old on {node}: gpu 0-7"]
            await sim.settle(1.0)
        sim.slurm.down, sim.slurm.latency = False, 0.0
        await sim.until(lambda: sim.pod("old") is None, 90.0)
        await sim.settle(30.0)
        assert await told(sim, native.id, node) == (200, {"clear": True})

    play(tmp_path, scene, nodes=1)


def test_a_native_job_whose_hook_waits_no_longer_is_told_for_as_long_as_a_pod_may_use_its_gpus(
    tmp_path: Path,
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        _, node = await alone(sim, "old", gpus=8)
        job = sim.job_of("old")
        sim.slurm.end(job, "CANCELLED")
        native = sim.slurm.native(gpus=8)
        for _ in range(3):
            assert await told(sim, native.id, node) == (
                200,
                {"clear": False, "holders": [f"default/old on {node}: gpu 0-7"]},
            )
            await sim.settle(1.0)
        assert not [note for note in sim.notes() if "native" in note]
        await sim.settle(6.0)
        said = f"native job {native.id} runs, though a pod may still use its GPUs: default/old on {node}: gpu 0-7"
        assert f"devices: {said}" in sim.notes()
        await sim.until(lambda: sim.pod("old") is None, 90.0)
        await sim.settle(2.0)
        assert not [note for note in sim.notes() if "native" in note]

    play(tmp_path, scene, nodes=1, dying=6.0)
