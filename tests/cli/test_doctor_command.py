"""`slurm-bridge doctor` as a person or a machine types it: what it prints, and its exit status."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bridge import doctor
from bridge.cli import main
from bridge.core.checkup import Finding
from bridge.core.report import Invariant, Report, Waiting
from tests.cli.surveyed import NOW

FOUND = Report(
    when=NOW,
    cluster="here",
    sides=(("Slurm", "26.05"),),
    invariants=(Invariant(name="one_job", promise="At most one.", violations=("group g has 2",)),),
    unseen=("quiet",),
    unfinished=("pod ai/a is still being deleted",),
    waiting=tuple(Waiting(pod=f"ai/w{i}", seconds=7200.0, why="Priority") for i in range(12)),
    findings=(Finding(text="the token ended", do="a new one", urgent=True), Finding(text="no cache")),
)


def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, found: Report, *words: str) -> int:
    async def looked(settings: object, **how: object) -> Report:
        assert how == {"kubeconfig": None, "page": "http://b", "timeout": 5.0}
        return found

    monkeypatch.setattr(doctor, "run", looked)
    config = tmp_path / "config.yaml"
    config.write_text("")
    return main(["doctor", "--config", str(config), "--bridge", "http://b", "--timeout", "5", *words])


def test_a_person_reads_it_from_top_to_bottom(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, tmp_path, FOUND) == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[:2] == ["Cluster here, 2027-01-15T08:00:00Z", "  Slurm      26.05"]
    at = [
        shown.index(line)
        for line in (
            "  BROKEN one_job             At most one.",
            "         - group g has 2",
            "  -      not to be seen in one look: quiet",
            "Pods that wait (12), longest first",
            "  ai/w0, 2 h: Priority",
            "  … and 2 more",
            "Under way (1); a person is needed only if it lasts",
            "A person is needed",
            "  - the token ended",
            "    → a new one",
            "Good to know",
            "  - no cache",
            "A person is needed.",
        )
    ]
    assert at == sorted(at)
    assert "  ai/w10, 2 h: Priority" not in shown


def test_a_machine_reads_the_same_and_all_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, tmp_path, FOUND, "--json") == 1
    body = json.loads(capsys.readouterr().out)
    assert body["exit_status"] == 1
    assert body["sides"] == {"Slurm": "26.05"}
    assert len(body["waiting"]) == 12
    assert body["invariants"][0]["violations"] == ["group g has 2"]


def test_good_to_know_alone_is_no_alarm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fine = replace(FOUND, invariants=(Invariant(name="one_job", promise=""),), findings=FOUND.findings[1:])
    assert run(monkeypatch, tmp_path, fine) == 0
    assert capsys.readouterr().out.rstrip().endswith("All is well.")
    assert run(monkeypatch, tmp_path, replace(fine, findings=FOUND.findings[:1])) == 1


@pytest.mark.parametrize("words", [[], ["--json"]])
def test_a_side_that_is_not_there_is_exit_status_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "{current-context: c, clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}],"
        " users: [{name: u, user: {token: t}}], contexts: [{name: c, context: {cluster: c, user: u}}]}"
    )
    token = tmp_path / "token"
    token.write_text("t")
    config = tmp_path / "config.yaml"
    config.write_text(f"slurmRestApi: http://127.0.0.1:1\nslurmTokenFile: {token}\n")
    assert main(["doctor", "--config", str(config), "--kubeconfig", str(kubeconfig), *words]) == 2
    shown = capsys.readouterr()
    sides = json.loads(shown.out)["cannot_look"] if words else shown.err.splitlines()
    assert [side.split()[0] for side in sides] == ["Kubernetes", "Slurm"]
    assert "check slurmRestApi (http://127.0.0.1:1)" in sides[1]


def test_a_configuration_that_is_not_there_is_exit_status_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "--config", str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml: cannot be read" in capsys.readouterr().err
