"""What Slurm says of a node shows in Kubernetes, with the whole bridge at work; and nodes of others."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bridge.names import (
    MANAGED_NODE_TAINT,
    UNAVAILABLE_TAINT,
)
from tests.sim.nodes import (
    CORDONED,
    FAN,
    PROMISED,
    alter,
    kube,
    shown,
    slurm,
    stage,
    taints,
    writes,
)
from tests.sim.simulation import Simulation
from tests.sim.test_story import play
from tests.worlds.slurm_faults import Fault, Kind

# --- Slurm → Kubernetes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [
        ({"drained": True, "reason": FAN}, "Drained", FAN),
        ({"down": True, "reason": "power"}, "Down", "power"),
        ({"failing": True, "reason": "disk"}, "Failed", "disk"),
        ({"silent": True}, "NotResponding", "NOT_RESPONDING"),
        ({"reservation": "maint"}, "Reserved", "maint"),
    ],
)
def test_what_slurm_says_of_a_node_shows_on_it_within_a_second_and_goes_with_it(
    tmp_path: Path, change: dict[str, Any], reason: str, words: str
) -> None:
    async def scene(sim: Simulation) -> None:
        assert shown(sim, "n1")[0] == "Usable"
        before = slurm(sim, "n1")
        alter(sim, "n1", **change)
        await sim.until(
            lambda: shown(sim, "n1")[0] == reason and UNAVAILABLE_TAINT in taints(sim, "n1"), PROMISED
        )
        assert words in shown(sim, "n1")[1]
        assert not kube(sim, "n1")["spec"].get("unschedulable")
        sim.slurm.set_node(replace(before, comment=slurm(sim, "n1").comment))
        await sim.until(lambda: shown(sim, "n1")[0] == "Usable", 2 * PROMISED)
        await sim.until(lambda: taints(sim, "n1") == {MANAGED_NODE_TAINT}, PROMISED)

    stage(tmp_path, scene, recreationShare=0.01, bootGrace=100_000.0)


@pytest.mark.parametrize("lacks", [{"n1"}, {"n1", "n2"}], ids=["one", "all"])
def test_a_list_of_slurms_that_lacks_nodes_takes_no_taint_and_no_drain(
    tmp_path: Path, lacks: set[str]
) -> None:
    def shortened(raw: bytes) -> bytes:
        body = json.loads(raw) if raw else {"nodes": []}
        body["nodes"] = [node for node in body["nodes"] if node["name"] not in lacks]
        return json.dumps(body).encode() if raw else raw

    async def scene(sim: Simulation) -> None:
        sim.cordon("n1", True)
        await asyncio.sleep(5.0)
        before = dict(sim.slurm.nodes)
        fault = sim.slurm.faults.add(Fault(pattern="^GET nodes/", kind=Kind.EDIT, edit=shortened, times=0))
        sim.slurm.nodes_changed = sim.slurm.clock()
        await asyncio.sleep(120.0)
        assert MANAGED_NODE_TAINT in taints(sim, "n1")
        sim.slurm.faults.remove(fault)
        sim.slurm.nodes_changed = sim.slurm.clock()
        await asyncio.sleep(10.0)
        assert sim.slurm.nodes == before
        sim.cordon("n1", False)
        await sim.until(lambda: not slurm(sim, "n1").drained, PROMISED)

    stage(tmp_path, scene)


def test_that_slurms_nodes_cannot_be_read_is_a_note_and_changes_nothing(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        before = writes(sim)
        fault = sim.slurm.faults.add(Fault(pattern="^GET nodes/", kind=Kind.STATUS, status=502, times=0))
        await asyncio.sleep(60.0)
        assert any(text.startswith("nodes: ") for text in sim.notes())
        assert writes(sim) == before
        assert shown(sim, "n1")[0] == "Usable"
        sim.slurm.faults.remove(fault)
        await asyncio.sleep(5.0)
        assert not [text for text in sim.notes() if text.startswith("nodes: ")]

    stage(tmp_path, scene)


def test_with_nothing_changing_nothing_is_written(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.cordon("n1", True)
        alter(sim, "n2", drained=True, reason=FAN)
        await asyncio.sleep(10.0)
        before = writes(sim)
        await asyncio.sleep(900.0)
        assert writes(sim) == before

    stage(tmp_path, scene)


@pytest.mark.parametrize("dies_at", range(1, 8))
def test_killed_after_any_write_the_next_bridge_comes_to_the_same_end(tmp_path: Path, dies_at: int) -> None:
    async def scene(sim: Simulation) -> None:
        sim.cordon("n1", True)
        alter(sim, "n2", drained=True, reason=FAN)
        sim.kill_at_write = dies_at
        await asyncio.sleep(3.0)
        sim.kill_at_write = None
        if not sim.up():
            sim.start()
        await asyncio.sleep(5.0)
        assert slurm(sim, "n1").reason == CORDONED
        assert shown(sim, "n2")[0] == "Drained"
        assert UNAVAILABLE_TAINT in taints(sim, "n2")
        sim.cordon("n1", False)
        alter(sim, "n2", drained=False, reason="")
        await asyncio.sleep(5.0)
        assert not slurm(sim, "n1").drained
        assert (shown(sim, "n2")[0], taints(sim, "n2")) == ("Usable", {MANAGED_NODE_TAINT})

    stage(tmp_path, scene)


# --- nodes of another bridge ---------------------------------------------------------------------------------


def test_the_nodes_of_another_clusters_bridge_are_left_alone(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        theirs = json.dumps({"bridge": {"v": 1, "cluster": "other", "node": "n1"}})
        alter(sim, "n1", comment=theirs)
        await asyncio.sleep(5.0)
        before = slurm(sim, "n1")
        sim.cordon("n1", True)
        await asyncio.sleep(30.0)
        sim.kube.storage.delete("nodes", "", "n1", {})
        await asyncio.sleep(600.0)
        assert slurm(sim, "n1") == before

    stage(tmp_path, scene)


def test_switched_off_the_mirror_reads_and_writes_nothing(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        sim.cordon("n1", True)
        alter(sim, "n2", drained=True, reason=FAN)
        await asyncio.sleep(60.0)
        assert not slurm(sim, "n1").drained
        assert shown(sim, "n2") == ("", "")
        assert sim.slurm.count("GET nodes/") == 0

    play(tmp_path, scene, nodes=2)
