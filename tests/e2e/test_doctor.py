"""`slurm-bridge doctor` as an operator runs it: on a healthy site, on one where something is wrong, on half a site."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import kube as k
from tests.e2e.scene import Scene
from tests.e2e.stack import Stack
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.real
PROGRAM = Path(sys.executable).with_name("slurm-bridge")


def doctor(stack: Stack, *words: str) -> tuple[int, str]:
    """Exit status and all that it says, with the bridge's own rights."""
    files = ("--config", stack.facts["bridge_config"], "--kubeconfig", stack.facts["kubeconfigs"]["bridge"])
    done = subprocess.run(
        [str(PROGRAM), "doctor", *files, *words], capture_output=True, text=True, timeout=100, check=False
    )
    return done.returncode, done.stdout + done.stderr


def examined(stack: Stack, *words: str) -> dict[str, Any]:
    status, text = doctor(stack, "--json", *words)
    found: dict[str, Any] = json.loads(text)
    assert found["exit_status"] == status
    return found


def broken(found: dict[str, Any]) -> dict[str, list[str]]:
    return {each["name"]: each["violations"] for each in found["invariants"] if each["violations"]}


def test_a_healthy_site_is_fine_and_hears_what_its_slurm_conf_means(scene: Scene) -> None:
    scene.create(k.pod("runs", gpus=2))
    scene.running("runs")
    status, text = doctor(scene.stack, "--bridge", scene.stack.facts["bridge_url"])
    assert status == 0, text
    assert "26.05 (v0.0.45)" in text
    assert "who is SlurmUser" in text
    assert "/readyz: 200" in text
    assert text.count("\n  ok ") == 5
    assert "not guaranteed on nodes with slurmd (n1, n2, n3, n4)" in text
    assert "All is well." in text


def test_a_pod_that_is_told_other_gpus_than_it_has_needs_a_person(scene: Scene) -> None:
    scene.create(k.pod("told", gpus=1))
    right = k.annotation(scene.running("told"), k.GPUS)
    scene.patch("told", {"metadata": {"annotations": {k.GPUS: "7" if right != "7" else "6"}}})
    try:
        found = examined(scene.stack)
    finally:
        scene.patch("told", {"metadata": {"annotations": {k.GPUS: right}}})
    (text,) = broken(found)["devices_as_granted"]
    assert f"{scene.namespace}/told" in text
    assert found["exit_status"] == 1


def test_a_pod_that_waits_is_listed_with_slurms_reason(scene: Scene) -> None:
    scene.create(k.pod("waits", options={"begin": str(int(time.time()) + 3600)}))
    scene.says("waits", "BeginTime")
    waiting = examined(scene.stack)["waiting"]
    (why,) = [each["why"] for each in waiting if each["pod"] == f"{scene.namespace}/waits"]
    assert "BeginTime" in why


def test_a_bridge_that_is_away_needs_a_person_and_a_slurmctld_that_hangs_is_named(scene: Scene) -> None:
    stack = scene.stack
    with stack.without("bridge"):
        found = examined(stack, "--bridge", stack.facts["bridge_url"])
        assert found["exit_status"] == 1
        assert any("does not answer at" in finding["text"] for finding in found["findings"])
    with stack.stopped("slurmctld"):
        status, text = doctor(stack)
        assert status == 2
        assert text.startswith("Slurm could not be read: ")
    eventually("the bridge leads again", stack.ready)
