"""The breaker in the whole bridge: its command, from the Lease to the pods and back as an Event, and nodes that die."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge import names
from bridge.core.model import SlurmNode, is_ended
from bridge.metrics import BREAKER_NODES
from tests.sim.simulation import Simulation
from tests.sim.test_story import play, running
from tests.worlds.slurm_jobs import WorldNode

ELECTED = {"leaderElect": True, "leaseNamespace": "default"}


def annotate(sim: Simulation, value: str) -> None:
    patch = {"metadata": {"annotations": {names.CLOSE_BREAKER_ANNOTATION: value}}}
    sim.kube.storage.patch("leases", "default", names.COMPONENT, patch)


def told(sim: Simulation) -> list[str]:
    return [
        event["reason"]
        for event in sim.kube.storage.all("events")
        if event["involvedObject"]["kind"] == "Lease"
    ]


@pytest.mark.parametrize("before", ["", "please"])
def test_an_operator_lets_happen_what_the_breaker_holds_back(tmp_path: Path, before: str) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        uids = {f"p{i}": sim.create(f"p{i}", gpus=0) for i in range(30)}
        await sim.until(lambda: all(running(sim, name) for name in uids), 20.0)
        if before:  # meant for whoever was there before
            await sim.crash()
            annotate(sim, before)
            sim.start()
            await sim.settle(5.0)
        for name in uids:
            sim.slurm.end(sim.job_of(name), "NODE_FAIL")
        await sim.settle(8.0)
        assert sum(running(sim, name) for name in uids) == 20
        assert told(sim) == ["BreakerOpen"]
        annotate(sim, "go on")
        await sim.until(lambda: not any(running(sim, name) for name in uids), 10.0)
        await sim.settle(2.0)
        assert told(sim) == ["BreakerOpen", "BreakerClosed"]

    play(tmp_path, scene, bootGrace=0.0, **ELECTED)


def test_pods_that_wait_make_the_end_of_all_running_ones_no_smaller_accident(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.set_node(WorldNode("n1", cpus=20))
        sim.start()
        ends = [f"p{i}" for i in range(20)]
        for name in ends:
            sim.create(name, gpus=0)
        await sim.until(lambda: all(running(sim, name) for name in ends), 20.0)
        for i in range(100):
            sim.create(f"w{i}", gpus=0)
        await sim.settle(30.0)
        sim.slurm.held = True  # nobody moves up
        for name in ends:
            sim.slurm.end(sim.job_of(name), "NODE_FAIL")
        await sim.settle(8.0)
        assert sum(running(sim, name) for name in ends) == 10

    play(tmp_path, scene, nodes=1, bootGrace=0.0)


def test_nodes_that_die_at_once_are_drained_ten_at_a_time(tmp_path: Path) -> None:
    nodes = [f"n{i}" for i in range(1, 15)]

    async def scene(sim: Simulation) -> None:
        sim.start()
        names_of_pods = [f"p{i}" for i in range(len(nodes))]
        for name in names_of_pods:
            sim.create(name, gpus=8)  # a node each
        await sim.until(lambda: all(running(sim, name) for name in names_of_pods), 30.0)
        for node in nodes:
            sim.set_ready(node, False)
        for name in names_of_pods:
            sim.delete(name)
        await sim.until(lambda: BREAKER_NODES._value.get() == 4, 90.0)
        drained = [node for node in nodes if sim.slurm.nodes[SlurmNode(node)].drained]
        live = [job for job in sim.slurm.jobs.values() if not is_ended(job.states)]
        assert len(drained) == 10
        assert len(live) == 4, "a job ends after its node is drained, and not before"
        await sim.until(lambda: all(sim.slurm.nodes[SlurmNode(node)].drained for node in nodes), 60.0)

    play(tmp_path, scene, nodes=len(nodes))
