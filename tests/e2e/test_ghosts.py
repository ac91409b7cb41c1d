"""The bridge starts anew while containers of pods that it never saw may run (docs/safety.md, section 5)."""

from __future__ import annotations

import time

import pytest

from bridge.config import PlacementSettings
from tests.e2e import kube as k
from tests.e2e.kube import Object
from tests.e2e.scene import Scene

pytestmark = pytest.mark.real
GRACE = 5  # seconds that containers of a pod run on when its object is deleted by force
MARGIN = PlacementSettings().deathMargin


def whole_node(scene: Scene, name: str) -> Object:
    """All GPUs of n1."""
    return k.pod(name, gpus=8, grace=GRACE, options=scene.only("n1"))


def test_a_successor_waits_for_a_pod_that_was_deleted_by_force_while_the_bridge_was_away(
    scene: Scene,
) -> None:
    scene.create(whole_node(scene, "old"))
    number = k.job_label(scene.running("old"))
    with scene.stack.without("bridge"):
        scene.delete("old", gracePeriodSeconds=0)
        scene.gone("old")
        scene.slurm.scancel(number)
        scene.job_becomes(number, "CANCELLED")
        began = time.monotonic()
    scene.create(whole_node(scene, "next"))
    scene.says("next", f"not known dead: {scene.namespace}/old on n1: gpu 0-7")
    scene.running("next", within=GRACE + MARGIN + 30)
    assert time.monotonic() - began >= GRACE + MARGIN


def test_a_pod_that_the_bridge_saw_go_holds_nobody_up_after_a_restart(scene: Scene) -> None:
    scene.create(whole_node(scene, "old"))
    number = k.job_label(scene.running("old"))
    scene.delete("old")
    scene.gone("old")
    scene.job_becomes(number, "CANCELLED")
    scene.stack.restart("bridge")
    scene.create(whole_node(scene, "next"))
    began = time.monotonic()
    scene.running("next")
    assert time.monotonic() - began < MARGIN / 2
