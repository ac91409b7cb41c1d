"""The command line as a person types it: what it prints, and its exit status."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from bridge.cli import main
from bridge.config import Settings, from_mapping
from bridge.configfile import load
from bridge.errors import ConfigError
from bridge.names import (
    ATTEMPT_ANNOTATION,
    JOB_CONDITION,
    JOB_ID_LABEL,
    NODE_ANNOTATION,
    OPTION_PREFIX,
    SCHEDULER_NAME,
    SCHEDULING_GATE,
)


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "train", "namespace": "ai", "annotations": {}, "labels": {}},
        "spec": {
            "schedulerName": SCHEDULER_NAME,
            "schedulingGates": [{"name": SCHEDULING_GATE}],
            "containers": [{"name": "c", "resources": {"limits": {"cpu": "2", "nvidia.com/gpu": "1"}}}],
        },
    }
    return write(tmp_path, pod)


def write(folder: Path, obj: object) -> Path:
    path = folder / "pod.yaml"
    path.write_text(yaml.safe_dump(obj))
    return path


def change(path: Path, **parts: object) -> None:
    obj = yaml.safe_load(path.read_text())
    for dotted, value in parts.items():
        section, key = dotted.split("__", 1)
        obj.setdefault(section, {})[key] = value
    path.write_text(yaml.safe_dump(obj))


def explained(path: Path, capsys: pytest.CaptureFixture[str], name: str = "train") -> str:
    assert main(["explain", name, "-f", str(path)]) == 0
    return capsys.readouterr().out


def test_explain_says_that_a_gated_pod_waits_for_slurm(
    manifest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = explained(manifest, capsys, "ai/train")
    assert "waits for Slurm" in text
    assert SCHEDULING_GATE in text


def test_explain_repeats_what_slurm_last_said(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = {
        "type": JOB_CONDITION,
        "status": "False",
        "reason": "Pending",
        "message": "job 5 is PENDING (Priority)",
    }
    change(manifest, status__conditions=[said])
    assert "job 5 is PENDING (Priority)" in explained(manifest, capsys)


def test_explain_names_a_mistake_in_an_annotation(manifest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    obj = yaml.safe_load(manifest.read_text())
    obj["metadata"]["annotations"][OPTION_PREFIX + "timelimt"] = "5"
    manifest.write_text(yaml.safe_dump(obj))
    text = explained(manifest, capsys)
    assert "timelimt" in text
    assert "timelimit" in text.replace("timelimt", "")


def test_explain_tells_granted_bound_lost_and_foreign_pods_apart(
    manifest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    obj = yaml.safe_load(manifest.read_text())
    obj["metadata"]["labels"][JOB_ID_LABEL] = "40000000"
    obj["metadata"]["annotations"] = {
        NODE_ANNOTATION: "n1",
        ATTEMPT_ANNOTATION: '{"attempt":2,"excluded":["n7"]}',
    }
    manifest.write_text(yaml.safe_dump(obj))
    granted = explained(manifest, capsys)
    assert "Slurm granted n1" in granted
    assert "n7" in granted
    change(manifest, spec__nodeName="n1")
    assert "held by Slurm job 40000000" in explained(manifest, capsys)
    change(manifest, spec__schedulerName="default-scheduler")
    assert "not ours" in explained(manifest, capsys)


def test_explain_of_a_pod_that_is_not_there_names_those_that_are(
    manifest: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "nobody", "-f", str(manifest)]) == 1
    assert "ai/train" in capsys.readouterr().err


def test_check_config_prints_yaml_that_means_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "schedulerName: slurm-bridge\npartition: gpu\nslurmctldAddress: ctl:6817\nsharedx: 1\n"
        "priorityClasses: {high: {qos: fast}, low: {nice: 500}}\n"
    )
    assert main(["check-config", "--config", str(path)]) == 0
    shown = capsys.readouterr()
    assert "sharedx" in shown.err
    again = from_mapping(yaml.safe_load(shown.out))
    assert again.model_dump(exclude={"warnings"}) == load(path, {}).model_dump(exclude={"warnings"})


@pytest.mark.parametrize("written", ["'ctl-0:6817, ctl-1:6817'", "[ctl-0:6817, ctl-1:6817]"])
def test_several_addresses_of_slurmctld_are_a_list_or_a_text_with_commas(
    tmp_path: Path, written: str
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"slurmctldAddress: {written}\n")
    assert load(path, {}).slurm.slurmctldAddress == ("ctl-0:6817", "ctl-1:6817")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("- a\n- b\n", "must be a mapping"),
        ("{", "is not YAML"),
        ("submitTimeout: soon\n", "submitTimeout"),
        ("jobIdFirst: 9\njobIdStop: 5\n", "jobIdFirst"),
        ("pollInterval: -1\n", "pollInterval"),
        ("bindTimeout: .inf\n", "bindTimeout"),
        ("slurmctldAddress: controller\n", "slurmctldAddress"),
        ("slurmctldAddress: controller:no\n", "slurmctldAddress"),
        ("slurmctldAddress: ctl-0:6817, ctl-1\n", "'ctl-1' must be host:port"),
        ("slurmRestApi: ftp://x\n", "slurmRestApi"),
        ("schedulerName: default-scheduler\n", "schedulerName"),
        ("schedulerNames: [default-scheduler]\n", "schedulerName"),
    ],
)
def test_a_wrong_configuration_names_file_key_and_value(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_the_go_projects_file_works_unchanged() -> None:
    old = {
        "SchedulerName": "slurm-bridge-scheduler",
        "slurmrestapi": "http://slurm-restapi.slurm:6820",
        "managedNamespaces": ["slurm-bridge"],
        "mcsLabel": "kubernetes",
        "partition": "slurm-bridge",
    }
    settings = from_mapping(old)
    assert settings.cluster.schedulerName == "slurm-bridge-scheduler"
    assert settings.jobs.mcsLabel == "kubernetes"


def test_the_environment_names_the_token_file_as_for_the_go_project(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("")
    settings: Settings = load(path, {"SLURM_JWT_FILE": "/somewhere/token"})
    assert settings.slurm.slurmTokenFile == Path("/somewhere/token")
