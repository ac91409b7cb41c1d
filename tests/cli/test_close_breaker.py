"""The verb that closes the breaker says why it cannot; what it does is tested with the guard and on real daemons."""

from __future__ import annotations

from pathlib import Path

import pytest

from bridge.cli import main


def run(tmp_path: Path, config: str, *words: str) -> int:
    file = tmp_path / "config.yaml"
    file.write_text(config)
    return main(["close-breaker", f"--config={file}", *words])


def test_without_a_lease_nobody_would_read_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "leaderElect: false\n") == 1
    assert "leaderElect is false" in capsys.readouterr().err


def test_a_kubeconfig_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "nowhere"
    assert run(tmp_path, "leaseNamespace: slurm\n", f"--kubeconfig={missing}") == 1
    assert str(missing) in capsys.readouterr().err
