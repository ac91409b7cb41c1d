"""A node dies under a pod: its devices are nobody's until a person has looked, and held by no job for ever."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.e2e import kube as k
from tests.e2e.scene import Scene
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.real
NODE = "k0004"


@contextmanager
def _dead(scene: Scene) -> Iterator[None]:
    """Nobody plays its kubelet any more, and the control plane has noticed."""
    path = f"/api/v1/nodes/{NODE}"
    scene.kube.must("PATCH", path, {"metadata": {"labels": {"type": None}}}, kind=k.MERGE)
    silent = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
    scene.kube.must("PATCH", f"{path}/status", {"status": {"conditions": [silent]}}, kind=k.MERGE)
    try:
        yield
    finally:
        scene.kube.ask(
            "DELETE", scene.pods_path, {"gracePeriodSeconds": 0}
        )  # the old kubelet's: no new one ends them
        scene.kube.must("PATCH", path, {"metadata": {"labels": {"type": "kwok"}}}, kind=k.MERGE)
        eventually(f"{NODE} is Ready again", lambda: _ready(scene), within=120)
        scene.stack.run("scontrol", "update", f"nodename={NODE}", "state=undrain", check=False)
        eventually(f"{NODE} takes jobs again", lambda: "DRAIN" not in _in_slurm(scene)["state"])


def _ready(scene: Scene) -> bool:
    node = scene.kube.must("GET", f"/api/v1/nodes/{NODE}")
    return k.shown(node, "Ready")["status"] == "True" and not node["spec"].get("taints")


def _in_slurm(scene: Scene) -> dict[str, Any]:
    node: dict[str, Any] = scene.slurm.ask("GET", f"node/{NODE}").json()["nodes"][0]
    return node


def test_the_node_is_drained_before_the_job_of_a_pod_that_died_with_it_is_ended(scene: Scene) -> None:
    scene.create(k.pod("stranded", gpus=2, grace=1, options=scene.only(NODE)))
    job = scene.job_of(scene.running("stranded"))
    with _dead(scene):
        scene.delete("stranded")
        # Its grace of one second and the bridge's margin of sixty, in which the node may come back.
        ended = scene.job_becomes(job.id, "CANCELLED", "COMPLETED", "FAILED", within=200)
        node = _in_slurm(scene)
        assert "DRAIN" in node["state"]
        assert node["reason"].startswith("slurm-bridge:")
        assert f"{scene.namespace}/stranded" in node["reason"]
        assert node["reason_changed_at"]["number"] <= ended.ended
        assert scene.find("stranded") is not None, "the pod is kubelet's to remove"
