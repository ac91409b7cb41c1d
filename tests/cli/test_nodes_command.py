"""`slurm-bridge nodes` and `nodes plan` as a person or a machine types them: what is printed, and the exit status."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from bridge import nodelist
from bridge.cli import main
from bridge.config import Settings
from bridge.errors import Unreachable
from bridge.kube.client import KubeClient
from bridge.names import EXTERNAL_NODE_LABEL, SLURM_NODENAME_LABEL
from bridge.nodelist import Look, Looker
from bridge.slurm.client import SlurmClient
from tests.cli.surveyed import NOW, Installation
from tests.worlds.slurm_jobs import WorldNode

Run = Callable[..., int]


@pytest.fixture
def here(tmp_path: Path) -> Installation:
    return Installation(tmp_path)


@pytest.fixture
def run(here: Installation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """The command, on the two clusters in memory."""

    async def look(settings: Settings, *, kubeconfig: str | None, timeout: float) -> Look:
        assert (kubeconfig, timeout) == ("k", 60.0)
        client = SlurmClient(here.settings.slurm, transport=httpx.ASGITransport(app=here.slurm))

        async def connect() -> KubeClient:
            if here.kube.git_version == "away":
                raise Unreachable("nobody there")
            return KubeClient(here.kube)

        merged = here.settings.model_copy(update={"nodes": settings.nodes})
        try:
            return await Looker(merged, connect, client, timeout, wall=lambda: NOW).look()
        finally:
            await client.close()

    monkeypatch.setattr(nodelist, "run", look)
    config = tmp_path / "config.yaml"

    def typed(*words: str, configured: str = "") -> int:
        config.write_text(configured)
        return main(["nodes", *words, "--config", str(config), "--kubeconfig", "k"])

    return typed


def pod(here: Installation, name: str, namespace: str, **changes: object) -> None:
    spec = {"nodeName": "n1", "containers": [{"name": "c"}], **changes}
    here.kube.add(
        "pods", {"metadata": {"name": name}, "spec": spec, "status": {"phase": "Running"}}, namespace
    )


def lines(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    return [line.split() for line in capsys.readouterr().out.splitlines()]


def test_both_sides_of_every_node_stand_in_one_line(
    here: Installation, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    here.slurm.set_node(WorldNode("n2", external=False, drained=True, reason="fan"))
    here.slurm.set_node(WorldNode("n3", external=False))
    assert run() == 0
    head, one, two, three = lines(capsys)
    assert head[:4] == ["NODE", "STATUS", "SLURM", "STATE"]
    assert one[:5] == ["n1", "Ready", "n1", "IDLE", "slurmd"]
    assert two[3] == "IDLE+DRAIN"
    assert "root: fan" in " ".join(two)
    assert three[:5] == ["-", "-", "n3", "IDLE", "slurmd"]


def test_only_differences_are_shown_where_they_are_asked_for(
    here: Installation, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    here.slurm.set_node(WorldNode("n3", external=False))
    quiet = "nodeStateToKubernetes: false\ntaintNodes: false\n"
    assert run("--differences", configured=quiet) == 0
    assert [line[2] for line in lines(capsys)] == ["SLURM", "n3"]
    assert run("--differences", "-o", "json", configured=quiet) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["cluster"], found["unread"], len(found["nodes"])) == ("here", [], 1)


def test_the_wide_table_and_json_tell_how_names_were_matched(
    here: Installation, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    meta = {"name": "k9", "labels": {SLURM_NODENAME_LABEL: "n3"}}
    here.kube.add("nodes", {"metadata": meta, "status": {"conditions": []}})
    here.slurm.set_node(WorldNode("n3", external=False))
    assert run("-o", "wide") == 0
    assert f"label {SLURM_NODENAME_LABEL}" in capsys.readouterr().out
    assert run("-o", "json") == 0
    (one,) = [row for row in json.loads(capsys.readouterr().out)["nodes"] if row["name"] == "n3"]
    assert (one["kubernetes"]["name"], one["kubernetes"]["status"]) == ("k9", "NotReady")


@pytest.mark.parametrize("words", [[], ["-o", "json"]])
def test_a_slurm_that_is_away_is_named_and_kubernetes_is_shown_all_the_same(
    here: Installation, run: Run, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    here.slurm.down = True
    assert run(*words) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("Slurm could not be read: ")
    if words:
        found = json.loads(shown.out)
        assert [row["slurm"] for row in found["nodes"]] == [None, None]
        assert found["unread"][0].startswith("Slurm could not be read: ")
    else:
        assert [line.split()[:4] for line in shown.out.splitlines()[1:]] == [
            ["n1", "Ready", "?", "?"],
            ["n2", "Ready", "?", "?"],
        ]


def test_a_kubernetes_that_is_away_is_named_and_slurm_is_shown_all_the_same(
    here: Installation, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    here.kube.git_version = "away"
    assert run() == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("Kubernetes could not be read: nobody there; check --kubeconfig")
    assert [line.split()[:4] for line in shown.out.splitlines()[1:]] == [
        ["?", "?", "n1", "IDLE"],
        ["?", "?", "n2", "IDLE"],
    ]
    assert run("plan") == 2
    assert capsys.readouterr().out == ""


def test_the_look_writes_nothing_and_asks_slurm_for_its_nodes_once(here: Installation, run: Run) -> None:
    here.kube.add("nodes", {"metadata": {"name": "k9", "labels": {EXTERNAL_NODE_LABEL: ""}}, "status": {}})
    asked: list[str] = []
    answer = here.slurm._answer

    def heard(request: str, *rest: object) -> object:
        asked.append(request)
        return answer(request, *rest)  # type: ignore[arg-type]

    here.slurm._answer = heard  # type: ignore[method-assign, assignment]
    assert run() == 0
    assert all(request.startswith("GET ") for request in asked)
    assert asked.count("GET nodes/") == 1


def test_the_plan_says_by_its_exit_status_whether_it_may_be_applied(
    here: Installation, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    here.kube.namespace("shop")
    pod(here, "web", "shop")
    assert run("plan") == 0
    assert "Nobody is evicted" in capsys.readouterr().out
    assert run("plan", configured="taintEffect: NoExecute\n") == 0
    assert "shop/web" in capsys.readouterr().out
    pod(here, "dns", "kube-system")
    assert run("plan", "--effect", "NoExecute") == 1
    assert "it would evict kube-system/dns" in capsys.readouterr().out
    assert run("plan", "--effect", "NoExecute", "-o", "json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["may_be_applied"] is False
    assert [one["node"] for one in found["nodes"]] == ["n1", "n2"]


def test_two_sides_that_are_not_there_are_both_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token = tmp_path / "token"
    token.write_text("t")
    config = tmp_path / "config.yaml"
    config.write_text(f"slurmRestApi: http://127.0.0.1:1\nslurmTokenFile: {token}\n")
    missing = str(tmp_path / "nowhere")
    assert main(["nodes", "--config", str(config), "--kubeconfig", missing]) == 2
    first, second = (line for line in capsys.readouterr().err.splitlines() if "could not be read" in line)
    assert missing in first
    assert "check slurmRestApi (http://127.0.0.1:1)" in second
    assert main(["nodes", "--config", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml: cannot be read" in capsys.readouterr().err
