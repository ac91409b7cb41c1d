"""`slurm-bridge nodes` and `nodes plan` on the real daemons, beside what kubectl and scontrol say of the same nodes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.names import SLURM_NODE_CONDITION
from tests.e2e import kube as k
from tests.e2e.scene import Scene
from tests.e2e.stack import Stack
from tests.e2e.test_nodes import condition, drained, in_kubernetes, in_slurm, say, unavailable
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.real
PROGRAM = Path(sys.executable).with_name("slurm-bridge")
CORDONED, DRAINED, MADE, ONLY_KUBERNETES, ONLY_SLURM = "k0004", "n4", "n3", "e2e-only-k", "e2e-only-s"


def nodes(stack: Stack, *words: str, config: str = "") -> tuple[int, str, str]:
    """Exit status, output and errors, with the bridge's own rights."""
    files = ("--config", config or stack.facts["bridge_config"])
    done = subprocess.run(
        [str(PROGRAM), "nodes", *words, *files, "--kubeconfig", stack.facts["kubeconfigs"]["bridge"]],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def told(stack: Stack, *words: str) -> dict[str, dict[str, Any]]:
    """The rows, by name."""
    status, text, error = nodes(stack, "-o", "json", *words)
    assert status == 0, error
    return {row["name"]: row for row in json.loads(text)["nodes"]}


def of_scontrol(scene: Scene) -> dict[str, dict[str, str]]:
    lines = scene.stack.run("scontrol", "show", "node", "-o").splitlines()
    found = (dict(re.findall(r"(\w+)=(\S*)", line)) | {"line": line} for line in lines)
    return {one["NodeName"]: one for one in found}


@pytest.fixture
def odd(scene: Scene) -> Iterator[None]:
    """One node is cordoned, one drained by a person, and each side has one that the other lacks."""
    path = "/api/v1/nodes"
    conf = f"NodeName={ONLY_SLURM} NodeAddr=127.0.0.1 State=EXTERNAL CPUs=4 RealMemory=1000"
    scene.kube.must("POST", path, {"metadata": {"name": ONLY_KUBERNETES, "labels": {"type": "kwok"}}})
    try:
        assert scene.slurm.ask("POST", "new/node/", {"node_conf": conf}).is_success
        scene.kube.cordon(CORDONED, True)
        say(scene, DRAINED, "drain", "fan broken")
        eventually("it shows", lambda: condition(scene, DRAINED) == "Drained", within=10)
        yield
    finally:
        scene.kube.cordon(CORDONED, False)
        say(scene, DRAINED, "resume")
        scene.kube.must("DELETE", f"{path}/{ONLY_KUBERNETES}")
        scene.slurm.ask("DELETE", f"node/{ONLY_SLURM}")
        eventually("the taint is gone", lambda: not unavailable(scene, DRAINED), within=10)


@pytest.mark.usefixtures("odd")
def test_the_table_agrees_with_kubectl_and_scontrol_about_every_node(scene: Scene) -> None:
    rows = told(scene.stack)
    there = of_scontrol(scene)
    statuses = dict(
        line.split()[:2] for line in scene.stack.run("kubectl", "get", "nodes", "--no-headers").splitlines()
    )
    assert {
        row["kubernetes"]["name"]: row["kubernetes"]["status"] for row in rows.values() if row["kubernetes"]
    } == {name: status.replace("Unknown", "NotReady") for name, status in statuses.items()}
    shown = {name: row["slurm"] for name, row in rows.items() if row["slurm"]}
    assert {name: set(one["states"]) for name, one in shown.items()} == {
        name: set(one["State"].split("+")) for name, one in there.items()
    }
    assert {
        name: (str(one["size"]["cpus"]), str(one["size"]["memory_mib"])) for name, one in shown.items()
    } == {name: (one["CPUEfctv"], one["RealMemory"]) for name, one in there.items()}
    assert f"Reason={shown[DRAINED]['reason']} [{shown[DRAINED]['drained_by']}@" in there[DRAINED]["line"]
    assert rows[ONLY_KUBERNETES]["differs"] == "only in Kubernetes"
    assert rows[ONLY_SLURM]["differs"].startswith("only in Slurm")
    assert rows[CORDONED]["kubernetes"]["status"] == "Ready,SchedulingDisabled"
    status, text, _ = nodes(scene.stack, "--differences")
    assert status == 0
    names = {line.split()[0] for line in text.splitlines()}
    assert {DRAINED, ONLY_KUBERNETES} <= names
    assert "n1" not in names


def test_the_table_says_what_the_bridge_does_as_soon_as_it_is_back(scene: Scene) -> None:
    try:
        with scene.stack.without("bridge"):
            say(scene, MADE, "drain", "disk")
            row = told(scene.stack)[MADE]
            assert row["next"] == [
                "add taint slinky.slurm.net/slurm-unavailable:NoSchedule",
                "condition Drained",
            ]
            assert condition(scene, MADE) != "Drained"
            assert not unavailable(scene, MADE)
        eventually("it is tainted", lambda: unavailable(scene, MADE), within=30)
        eventually("it shows", lambda: condition(scene, MADE) == "Drained", within=10)
        assert told(scene.stack)[MADE]["next"] == []
    finally:
        say(scene, MADE, "resume")
        eventually("the taint is gone", lambda: not unavailable(scene, MADE), within=30)
    assert not drained(scene, MADE)
    assert in_slurm(scene, MADE)["reason"] == ""
    assert k.condition(in_kubernetes(scene, MADE), SLURM_NODE_CONDITION) is not None


def test_the_plan_lists_the_pods_that_a_no_execute_taint_would_evict_and_refuses_the_systems(
    scene: Scene, tmp_path: Path
) -> None:
    text = Path(scene.stack.facts["bridge_config"]).read_text()
    config = tmp_path / "config.yaml"
    config.write_text("\n".join(line for line in text.splitlines() if not line.startswith("taintNodes")))
    web = k.pod("web", scheduler="default-scheduler")
    web["spec"]["nodeName"] = MADE
    scene.create(web)
    ref = f"{scene.namespace}/web"
    status, shown, error = nodes(scene.stack, "plan", config=str(config))
    assert (status, error) == (0, "")
    assert "Nobody is evicted" in shown
    assert ref not in shown
    config.write_text(config.read_text() + "\ntaintEffect: NoExecute\n")
    status, shown, _ = nodes(scene.stack, "plan", config=str(config))
    assert status == 0
    assert [MADE, MADE, "set", ref, "-"] in [line.split() for line in shown.splitlines()]
    system = k.pod("e2e-system", scheduler="default-scheduler")
    system["spec"]["nodeName"] = MADE
    path = "/api/v1/namespaces/kube-system/pods"
    eventually(
        "the namespace is usable",
        lambda: scene.kube.find("/api/v1/namespaces/kube-system/serviceaccounts/default"),
        within=90,
    )
    scene.kube.must("POST", path, system)
    try:
        status, shown, _ = nodes(scene.stack, "plan", "-o", "json", config=str(config))
        assert status == 1
        (one,) = [one for one in json.loads(shown)["nodes"] if one["node"] == MADE]
        assert "it would evict kube-system/e2e-system" in one["refused"]
        assert {victim["pod"] for victim in one["evicts"]} >= {ref, "kube-system/e2e-system"}
    finally:
        scene.kube.must("DELETE", f"{path}/e2e-system", {"gracePeriodSeconds": 0})


def test_a_slurmctld_that_hangs_is_named_and_kubernetes_is_shown_all_the_same(scene: Scene) -> None:
    with scene.stack.stopped("slurmctld"):
        status, text, error = nodes(scene.stack, "--timeout", "30")
    assert status == 2
    assert error.startswith("Slurm could not be read: ")
    assert {line.split()[0]: line.split()[1] for line in text.splitlines()}["n1"] == "Ready"
    eventually("the bridge leads again", scene.stack.ready)
