"""Where Slurm numbers our jobs: the place of one that vanished, or that Slurm denies, is claimed through the queue."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bridge.core.model import JobId, Pod, SlurmNode
from bridge.core.steps import Step, Unhold
from tests.sim.simulation import Simulation
from tests.sim.test_held import only, play
from tests.sim.test_story import running
from tests.sim.test_vanished import alone, forget, node_of
from tests.worlds.slurm_faults import Fault, Kind


def test_a_vanished_job_gets_its_place_back_under_another_number(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        uid = sim.create("p", gpus=2)
        await sim.until(lambda: running(sim, "p"), 5.0)
        node, lost = node_of(sim, "p"), sim.job_of("p")
        forget(sim, lost)
        await sim.until(lambda: sim.jobs_of(uid) and only(sim.jobs_of(uid)).nodes == (node,), 30.0)
        assert sim.job_of("p") == only(sim.jobs_of(uid)).id != lost
        await sim.settle(120.0)
        assert running(sim, "p")

    play(tmp_path, scene, bootGrace=30.0)


def test_the_place_of_a_vanished_job_that_others_took_costs_the_pod_after_a_minute(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        sim.create("p", gpus=8)
        await sim.until(lambda: running(sim, "p"), 5.0)
        await sim.crash()
        forget(sim, sim.job_of("p"))
        for _ in range(3):
            sim.slurm.native(gpus=8)
        sim.start()
        await sim.settle(40.0)
        assert running(sim, "p")
        await sim.until(lambda: sim.pod("p") is None, 60.0)

    play(tmp_path, scene, bootGrace=30.0)


@asynccontextmanager
async def lying(sim: Simulation, job: JobId) -> AsyncIterator[None]:
    """Lists lack that job, and asked for it slurmctld says that it has none."""

    def without(raw: bytes) -> bytes:
        body = json.loads(raw)
        body["jobs"] = [one for one in body["jobs"] if one["job_id"] != str(job)]
        return json.dumps(body).encode()

    serve = sim.slurm.serve

    async def denies(method: str, path: str, headers: dict[str, str], raw: bytes) -> tuple[int, str, bytes]:
        if method == "GET" and path.endswith(f"/job/{job}"):
            raw, path = b"", path.removesuffix(str(job)) + "999999"
        return await serve(method, path, headers, raw)

    fault = sim.slurm.faults.add(Fault(pattern="jobs/state", kind=Kind.EDIT, edit=without, times=0))
    sim.slurm.serve = denies  # type: ignore[method-assign]
    try:
        yield
    finally:
        sim.slurm.faults.remove(fault)
        sim.slurm.serve = serve  # type: ignore[method-assign]


@pytest.mark.parametrize("seconds", [0.6, 20.0, 60.0])
@pytest.mark.parametrize("others", [1, 200])
@pytest.mark.parametrize("gpus", [8, 2], ids=["for whose place a claim waits", "beside which a claim runs"])
def test_a_job_that_slurm_denies_for_a_while_is_its_pods_again_and_its_claim_is_ended(
    tmp_path: Path, seconds: float, others: int, gpus: int
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        uid, _ = await alone(sim, gpus=gpus)
        job = sim.job_of("p")
        for _ in range(others):
            sim.slurm.native(gpus=8)
        await sim.settle(20.0)
        async with lying(sim, job):
            await asyncio.sleep(seconds)
        await asyncio.sleep(
            100.0
        )  # no settling: that there were two live jobs is what the witness has to say
        assert running(sim, "p")
        assert sim.job_of("p") == only(sim.jobs_of(uid)).id == job

    play(tmp_path, scene, nodes=1)


def test_an_id_that_slurm_gives_to_another_after_a_crash_costs_no_pod(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        uid = sim.create("p", gpus=1)
        await sim.until(lambda: running(sim, "p"), 5.0)
        lost = sim.job_of("p")
        await sim.settle(2.0)  # faster than a second no slurmctld is up again
        sim.slurm.crash(30.0)
        native = sim.slurm.native()
        assert native.id == lost
        await sim.until(
            lambda: sim.jobs_of(uid) and only(sim.jobs_of(uid)).nodes == (node_of(sim, "p"),), 60.0
        )
        await sim.settle(120.0)
        assert running(sim, "p")
        assert "RUNNING" in sim.slurm.jobs[lost].states

    play(tmp_path, scene, bootGrace=30.0)


@pytest.mark.parametrize("write", range(1, 9))
def test_a_crash_at_any_write_costs_neither_a_job_its_priority_nor_a_pod_its_place(
    tmp_path: Path, write: int
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        kept, _ = await alone(sim, "p", gpus=8)
        await sim.crash()
        forget(sim, sim.job_of("p"))
        first, *_ = [sim.slurm.native(gpus=8) for _ in range(3)]
        sim.kill_at_write = write
        sim.start()
        uid = sim.create("q", annotations={"slurmjob.slinky.slurm.net/priority": "77"}, gpus=8)
        await sim.until(lambda: not sim.up(), 5.0)
        sim.start()
        await sim.until(lambda: sim.jobs_of(uid) and only(sim.jobs_of(uid)).priority == 77, 20.0)
        sim.slurm.end(first.id, "COMPLETED")
        await sim.settle(120.0)
        assert running(sim, "p")
        assert only(sim.jobs_of(kept)).nodes == ("n1",)

    play(tmp_path, scene, nodes=1, bootGrace=30.0)


def test_a_number_that_slurm_gives_to_another_before_the_release_releases_nobody_elses_job(
    tmp_path: Path,
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        door = sim._replicas["a"].bridge._groups._door
        apply = door.apply
        natives: list[JobId] = []

        async def applying(step: Step) -> Pod | JobId | SlurmNode | None:
            if isinstance(step, Unhold) and not natives:
                sim.slurm.lose(step.id)
                await asyncio.sleep(2.0)  # slurmctld was away
                sim.slurm._next_native = step.id
                natives.append(sim.slurm.native(user="bob", gpus=99).id)
                sim.slurm.hold(natives[0], "JobHeldUser")
            return await apply(step)

        door.apply = applying  # type: ignore[method-assign]
        uid = sim.create("p")
        await sim.until(lambda: bool(natives), 5.0)
        await sim.until(lambda: running(sim, "p"), 60.0)
        assert sim.slurm.jobs[natives[0]].on_hold
        assert only(sim.jobs_of(uid)).id != natives[0]

    play(tmp_path, scene, nodes=1)
