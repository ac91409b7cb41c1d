"""A simulation whose nodes are external ones of ours, and looks at both sides of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from bridge.core.model import SlurmNode
from bridge.names import (
    EXTERNAL_NODE_LABEL,
    SLURM_NODE_CONDITION,
)
from tests.sim.simulation import CLUSTER, NO_MIRROR, Simulation
from tests.sim.test_story import play
from tests.worlds.kube_merge import Object
from tests.worlds.slurm_jobs import WorldNode

N1, N2 = SlurmNode("n1"), SlurmNode("n2")
PROMISED = 1.0  # seconds
CORDONED = "slurm-bridge: cordoned in Kubernetes"
FAN = "fan broken"
SIZE = {"cpu": "64", "memory": "512000Mi", "nvidia.com/gpu": "8", "pods": "110"}
MIRROR: dict[str, Any] = dict.fromkeys(NO_MIRROR, True) | {"gresByResource": {"nvidia.com/gpu": "gpu:h100"}}
Scene = Callable[[Simulation], Awaitable[None]]


def stage(tmp_path: Path, scene: Scene, *, nodes: int = 2, **changes: Any) -> None:
    """Every node is external and labelled, as large on both sides, and the bridge has begun."""

    async def begun(sim: Simulation) -> None:
        for name in list(sim.slurm.nodes):
            sim.label(name, **{EXTERNAL_NODE_LABEL: ""})
            status = {"allocatable": SIZE, "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}
            sim.kube.storage.patch("nodes", "", name, {"status": status}, subresource="status")
        sim.start()
        await sim.until(lambda: all(marked(sim, name) for name in sim.slurm.nodes), 10.0)
        await asyncio.sleep(5.0)
        await scene(sim)

    play(tmp_path, begun, nodes=nodes, **MIRROR | changes)


def marked(sim: Simulation, name: str) -> bool:
    return f'"cluster":"{CLUSTER}"' in slurm(sim, name).comment


def slurm(sim: Simulation, name: str) -> WorldNode:
    return sim.slurm.nodes[name]


def kube(sim: Simulation, name: str) -> Object:
    found = sim.kube.get("nodes", name)
    assert found is not None
    return found


def shown(sim: Simulation, name: str) -> tuple[str, str]:
    """Reason and message of our condition."""
    found = [c for c in kube(sim, name)["status"]["conditions"] if c["type"] == SLURM_NODE_CONDITION]
    return (found[0]["reason"], found[0]["message"]) if found else ("", "")


def taints(sim: Simulation, name: str) -> set[str]:
    return {taint["key"] for taint in kube(sim, name)["spec"].get("taints") or ()}


def alter(sim: Simulation, name: str, **changes: Any) -> None:
    """What an admin, an operator or a health check does in Slurm."""
    sim.slurm.set_node(replace(slurm(sim, name), **changes))


def writes(sim: Simulation) -> Counter[str]:
    kubernetes = Counter(
        {f"{verb} {what}": n for (verb, what), n in sim.kube.writes.items() if what == "nodes"}
    )
    return kubernetes + Counter(r for r in sim.slurm.requests if "node/" in r and not r.startswith("GET"))
