"""The bridge and slurm-operator on the same nodes: neither undoes what the other has done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from bridge.core.model import SlurmNode, is_ended
from bridge.names import MANAGED_NODE_TAINT, UNAVAILABLE_TAINT
from tests.sim.nodes import FAN, MIRROR, SIZE, alter, shown, slurm, taints, writes
from tests.sim.simulation import Simulation
from tests.sim.test_fit import says
from tests.sim.test_story import play, running
from tests.worlds.slurm_operator import PREFIX, Operator


async def synced(sim: Simulation, operator: Operator, seconds: float) -> None:
    for _ in range(int(seconds)):
        operator.sync()
        await sim.settle(1.0)


def told(sim: Simulation) -> set[str]:
    """By the conditions of the slurmd pod: only the operator's, as the bridge writes nothing there."""
    pod = sim.kube.get("pods", "slurm-worker-n1", "slurm")
    assert pod is not None
    assert set(pod["metadata"].get("annotations", {})) == set()
    return {c["type"].removeprefix("SlurmNodeState") for c in pod["status"].get("conditions", ())}


def stage(tmp_path: Path, story: Callable[[Simulation, Operator], Awaitable[None]]) -> None:
    """n1 is a node of the operator's, with its slurmd pod."""

    async def begun(sim: Simulation) -> None:
        operator = Operator(sim.slurm, sim.kube)
        operator.join("n1", "n1", tolerates={"key": MANAGED_NODE_TAINT, "operator": "Exists"})
        status = {"allocatable": SIZE, "nodeInfo": {"bootID": "boot-1"}}
        sim.kube.storage.patch("nodes", "", "n1", {"status": status}, subresource="status")
        sim.start()
        await sim.until(lambda: shown(sim, "n1")[0] == "Usable", 10.0)
        await story(sim, operator)

    play(tmp_path, begun, nodes=1, **MIRROR)


def test_a_cordon_is_the_operators_to_mirror_and_what_it_does_shows_on_the_node(tmp_path: Path) -> None:
    async def story(sim: Simulation, operator: Operator) -> None:
        before = slurm(sim, "n1")
        for _ in range(10):
            sim.cordon("n1", True)
            await synced(sim, operator, 5)
            assert slurm(sim, "n1").reason == f"{PREFIX}Node (n1) was cordoned"
            assert shown(sim, "n1")[0] == "Drained"
            assert told(sim) == {"Idle", "Drain"}
            sim.cordon("n1", False)
            await synced(sim, operator, 5)
            assert not slurm(sim, "n1").drained
            assert told(sim) == {"Idle"}
            assert shown(sim, "n1")[0] == "Usable"
        assert replace(slurm(sim, "n1"), reason_at=0.0) == replace(before, reason_at=0.0)
        assert not [request for request in writes(sim) if "node/" in request]

    stage(tmp_path, story)


def test_a_pod_of_slurmd_that_ends_leaves_the_node_down_until_slurmd_is_back(tmp_path: Path) -> None:
    async def story(sim: Simulation, operator: Operator) -> None:
        operator.terminate("n1")
        await sim.until(lambda: shown(sim, "n1")[0] == "Down", 1.0)
        assert "Pod is terminating" in shown(sim, "n1")[1]
        await sim.settle(600.0)
        assert slurm(sim, "n1").down
        alter(sim, "n1", down=False, reason="")
        await sim.until(lambda: shown(sim, "n1")[0] == "Usable", 1.0)
        assert not [request for request in writes(sim) if "node/" in request]

    stage(tmp_path, story)


@pytest.mark.parametrize("meanwhile", ["", FAN])
def test_a_node_that_rejects_pods_is_drained_and_the_operator_has_it_back_after_its_next_boot(
    tmp_path: Path, meanwhile: str
) -> None:
    """`meanwhile`: what an admin says over it, who has then the last word."""

    async def story(sim: Simulation, operator: Operator) -> None:
        for name in ("a", "b", "c"):
            sim.create(name, asks={"tolerations": [{"operator": "Exists"}]})
            await sim.until(partial(running, sim, name), 20.0)
            rejected = {"phase": "Failed", "reason": "OutOfcpu", "containerStatuses": None}
            sim.kube.storage.patch("pods", "default", name, {"status": rejected}, subresource="status")
            await sim.until(lambda: all(is_ended(job.states) for job in sim.slurm.jobs.values()), 20.0)
        await sim.until(lambda: slurm(sim, "n1").drained, 2.0)
        assert slurm(sim, "n1").reason.startswith(
            "slurm-bridge: pods do not start: default/a, default/b, default/c"
        )
        await synced(sim, operator, 10)
        assert operator.skipped == {"n1"}
        if meanwhile:
            alter(sim, "n1", reason=meanwhile, reason_by="root")
        booted = {"status": {"nodeInfo": {"bootID": "boot-2"}}}
        sim.kube.storage.patch("nodes", "", "n1", booted, subresource="status")
        await sim.settle(5.0)
        assert (slurm(sim, "n1").drained, slurm(sim, "n1").reason) == (bool(meanwhile), meanwhile)
        if not meanwhile:
            sim.cordon("n1", True)
            await synced(sim, operator, 5)
            assert slurm(sim, "n1").reason.startswith(PREFIX)
            assert shown(sim, "n1")[0] == "Drained"
            assert UNAVAILABLE_TAINT not in taints(sim, "n1"), "its slurmd pod does not bear that"

    stage(tmp_path, story)


def test_no_pod_of_ours_gets_a_machine_whose_slurmds_together_offer_more_than_it_has(tmp_path: Path) -> None:
    async def story(sim: Simulation, operator: Operator) -> None:
        operator.join("worker-1", "n1")
        await sim.settle(5.0)
        sim.create("p", asks={"tolerations": [{"operator": "Exists"}]})
        await sim.settle(30.0)
        assert "slurmds offer more together than it has" in says(sim, "p")
        assert not sim.slurm.jobs
        for name in ("n1", "worker-1"):
            alter(sim, name, cpus=32, memory=200_000, gpus=4)
        await sim.until(lambda: running(sim, "p"), 30.0)
        pod = sim.pod("p")
        assert pod is not None
        assert pod["spec"]["nodeName"] == "n1"

    stage(tmp_path, story)


@pytest.mark.parametrize("comment", ["kept", "lost"])
def test_a_pod_runs_on_the_machine_that_the_operators_comment_names_and_stays_there_whatever_becomes_of_the_comment(
    tmp_path: Path, comment: str
) -> None:
    """Slurm calls the node gpu-0. A restart of the bridge, with a comment that is not there, is no move of the job."""

    async def story(sim: Simulation) -> None:
        del sim.slurm.nodes["n1"]
        operator = Operator(sim.slurm, sim.kube)
        operator.join("gpu-0", "n1")
        sim.start()
        sim.create("p", gpus=1, asks={"tolerations": [{"operator": "Exists"}]})
        await sim.until(lambda: running(sim, "p"), 10.0)
        pod = sim.pod("p")
        assert pod is not None
        assert pod["spec"]["nodeName"] == "n1"
        assert sim.slurm.jobs[sim.job_of("p")].nodes == ("gpu-0",)
        if comment == "lost":
            sim.slurm.set_node(replace(sim.slurm.nodes[SlurmNode("gpu-0")], comment=""))
            await sim.settle(60.0)
        await sim.crash()
        sim.start()
        await sim.settle(600.0)
        assert running(sim, "p")
        sim.kubelet.finish("p", 3)
        await sim.until(lambda: is_ended(sim.slurm.jobs[sim.job_of("p")].states), 20.0)

    play(tmp_path, story, nodes=1, **MIRROR)
