"""The rules of the house, held by machine: layers, sizes, names, and words that must not be in the repository."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge import names

ROOT = Path(__file__).resolve().parents[2]
MODULE_LINES = 400
PYTHON = ["bridge", "tests", "benchmarks", "deploy"]


def files(*suffixes: str) -> Iterator[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert listed.returncode == 0, listed.stderr
    for line in listed.stdout.splitlines():
        path = ROOT / line
        if path.is_file() and (not suffixes or path.suffix in suffixes):
            yield path


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        pytest.param("lint-imports", ["--no-cache"], id="imports-point-inwards"),
        pytest.param("ruff", ["check", "."], id="lint"),
        pytest.param("ruff", ["format", "--check", "."], id="format"),
        pytest.param("mypy", [], id="strict-types"),
    ],
)
def test_the_tools_have_nothing_to_say(tool: str, arguments: list[str]) -> None:
    program = Path(sys.executable).with_name(tool)
    checked = subprocess.run([str(program), *arguments], cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_ring_is_named_in_the_layer_contract() -> None:
    """A new module at the top of `bridge` must find its ring, or nothing would hold it."""
    contract = (ROOT / "pyproject.toml").read_text()
    for path in (ROOT / "bridge").iterdir():
        name = path.stem
        if name.startswith("__") or path.suffix not in ("", ".py"):
            continue
        assert re.search(rf'"[^"]*\bbridge\.{name}\b', contract), f"bridge/{path.name} is in no layer"


@pytest.mark.parametrize("folder", PYTHON)
def test_modules_stay_small(folder: str) -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in files(".py")
        if path.is_relative_to(ROOT / folder) and (lines := len(path.read_text().splitlines())) > MODULE_LINES
    }
    assert not long, f"over {MODULE_LINES} lines: {long}"


def test_every_module_of_the_bridge_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in files(".py")
        if path.is_relative_to(ROOT / "bridge") and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not silent


def test_every_well_known_name_is_used() -> None:
    text = "\n".join(
        path.read_text()
        for path in files(".py")
        if path.is_relative_to(ROOT / "bridge") and path.name != "names.py"
    )
    unused = [name for name in vars(names) if name.isupper() and not re.search(rf"\b{name}\b", text)]
    assert not unused


def test_well_known_names_are_written_nowhere_else() -> None:
    """A literal copy of a name would not follow when the constant changes."""
    values = [value for name, value in vars(names).items() if name.isupper() and "/" in str(value)]
    copies = [
        f"{path.relative_to(ROOT)}: {value}"
        for path in files(".py")
        if path.is_relative_to(ROOT / "bridge") and path.name != "names.py"
        for value in values
        if re.search(rf'"{re.escape(value)}"', path.read_text())
    ]
    assert not copies


def test_the_repository_names_no_host_or_path_of_the_machine_it_was_written_on() -> None:
    hosts = [r"deb\.debian\.org", r"pypi\.org", r"proxy\.golang\.org", r"files\.pythonhosted\.org"]
    paths = [r"(?<![\w.}])/" + "work/", r"(?<![\w.}])/" + "root/"]
    words = re.compile("|".join([*hosts, *paths]))
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files()
        if path.name != Path(__file__).name and path.suffix not in (".gz", ".png")
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if words.search(line)
    ]
    assert not found
