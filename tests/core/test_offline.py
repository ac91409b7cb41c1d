"""`slurm-bridge translate`: what is read, what is shown, and that one mistake hides nothing else."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from bridge.config import Settings
from bridge.errors import UserError
from bridge.offline import Translation, read, render, translate

POD = """
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec: {schedulerName: slurm-bridge, containers: [{name: main}]}
"""


def said(text: str) -> Translation:
    return read(text, name="f.yaml", settings=Settings())


def errors(text: str) -> list[str]:
    return [f"{entry.where}: {entry.error}" for entry in said(text).entries if entry.error]


def test_a_file_is_read_and_named_in_every_line(tmp_path: Path) -> None:
    path = tmp_path / "pod.yaml"
    path.write_text(POD % "a")
    found = translate(path, Settings())
    assert not found.failed
    assert found.text.startswith(f"# {path}: document 1: Pod default/a\n")
    assert "POST /slurm/v0.0.45/job/submit" in found.text
    assert "no time limit" in found.text


def test_a_dash_reads_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(POD % "a"))
    assert translate("-", Settings()).entries[0].where == "stdin: document 1: Pod default/a"


def test_a_file_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nothing\.yaml: cannot be read: No such file"):
        translate(tmp_path / "nothing.yaml", Settings())
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="is not UTF-8"):
        translate(tmp_path / "binary", Settings())


def test_a_mistake_hides_no_other_document() -> None:
    found = said("---".join([POD % "a", "\nkind: [\n", POD % "b", "\nkind: Pod\n", POD % "c"]))
    assert [entry.spec.name if entry.spec else "" for entry in found.entries] == ["a", "", "b", "", "c"]
    assert found.failed


def test_a_syntax_error_names_the_line_of_the_file() -> None:
    assert errors("---\na: 1\n---\nb: {\n---\n")[1].startswith("f.yaml: document 2: line 5: is not YAML")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "f.yaml: holds no object"),
        ("# nothing\n---\n", "f.yaml: holds no object"),
        ("- 1", "document 1: is a list, not an object"),
        ("kind: List\nitems: [1]", "document 1: an item is a int"),
        ("metadata: {name: a}", "document 1: kind: is missing"),
        ("apiVersion: v1\nkind: Pod", "Pod default/(no name): Pod (no name): has no metadata"),
        ("a: 2026-13-45T00:00:00Z", "document 1: is not YAML: month must be"),
        ("a: \x00", "document 1: is not YAML: "),
        (
            "apiVersion: v1\nkind: Pod\nmetadata: {name: a, labels: {x: yes}}",
            "labels: x: true is no text; write it in quotes: 'true'",
        ),
        (
            "apiVersion: batch/v1\nkind: Job\nmetadata: {name: a}",
            "Job a: spec.template.spec: is missing",
        ),
    ],
)
def test_each_kind_of_mistake_names_file_document_object_and_fix(text: str, message: str) -> None:
    found = errors(text)
    assert len(found) == 1
    assert message in found[0]


def test_objects_of_other_kinds_are_skipped_and_said_so() -> None:
    (entry,) = said("apiVersion: apps/v1\nkind: DaemonSet\nmetadata: {name: d, namespace: x}").entries
    known = "Pod, Job, CronJob, Deployment, ReplicaSet, StatefulSet, JobSet, LeaderWorkerSet"
    assert entry.notes == (f"skipped: apps/v1 DaemonSet: translate reads {known}",)
    assert entry.where.endswith("DaemonSet x/d")
    assert "POST" not in render(entry)


def test_a_generated_name_is_shown_with_a_stand_in() -> None:
    (entry,) = said(
        "apiVersion: v1\nkind: Pod\nmetadata: {generateName: run-}\nspec: {containers: []}"
    ).entries
    assert entry.spec is not None
    assert entry.spec.name == "run-xxxxx"


def test_a_pod_for_another_scheduler_is_translated_and_told() -> None:
    (entry,) = said("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: []}").entries
    assert any("not ours unless its namespace is managed; set slurm-bridge" in note for note in entry.notes)
    (ours,) = said(POD % "a").entries
    assert not any("schedulerName" in note for note in ours.notes)
