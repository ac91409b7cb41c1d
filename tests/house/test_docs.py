"""The public words stay true: links resolve, generated tables are current, named files and tests exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge import config, names, offline
from bridge.core import invariants, outcomes, overrides
from bridge.core.verdict import Reason
from docs import render

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + list(render.PAGES)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """As GitHub makes them from headings."""
    headings = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def row(cells: list[str] | tuple[str, ...]) -> str:
    return render.table(cells, []).splitlines()[0]


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_inside_the_repository_resolve(page: Path) -> None:
    broken = []
    for link in _LINK.findall(_FENCE.sub("", page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("page", render.PAGES, ids=page_id)
def test_generated_tables_are_current(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert page.read_text() == render.rendered(page), "out of date: run .venv/bin/python docs/render.py"


def test_every_generated_block_stands_in_a_page() -> None:
    text = "".join(page.read_text() for page in render.PAGES)
    assert [name for name in render.BLOCKS if f"<!-- generated: {name} -->" not in text] == []


@pytest.mark.parametrize("option", overrides.TABLE, ids=lambda option: option.suffix)
def test_every_job_option_is_documented(option: overrides.Option) -> None:
    assert row(tuple(render.option_row(option))) in (ROOT / "docs/compatibility.md").read_text()


def test_every_submit_outcome_is_documented_and_says_what_follows() -> None:
    text = (ROOT / "docs/outcomes.md").read_text()
    assert [
        line for each in outcomes.TABLE if (line := row(tuple(render.outcome_row(each)))) not in text
    ] == []
    assert [each for each in outcomes.Outcome if f"\n| `{each.value}` |" not in text] == []


def test_every_setting_is_documented_with_its_consequence() -> None:
    text = (ROOT / "docs/configuration.md").read_text()
    for name, group in render.setting_groups():
        assert f"### {name}\n" in text
        for cells in render.setting_rows(group):
            assert row(tuple(cells)) in text
            assert cells[-1], f"{cells[0]} has no description"


def test_every_well_known_name_is_documented() -> None:
    text = (ROOT / "docs/compatibility.md").read_text()
    known = [str(value) for name, value in vars(names).items() if name.isupper()]
    assert [value for value in known if f"`{value}`" not in text] == []


def test_every_reason_is_documented() -> None:
    text = (ROOT / "docs/operations.md").read_text()
    assert [reason.value for reason in Reason if f"`{reason.value}`" not in text] == []


def test_every_invariant_is_told_to_operators() -> None:
    text = (ROOT / "docs/safety.md").read_text()
    assert [holds.__name__ for holds in invariants.ALL if f"`{holds.__name__}`" not in text] == []


def named(pattern: str) -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for found in re.findall(pattern, page.read_text()):
            yield page_id(page), found


def test_named_files_exist() -> None:
    pattern = r"`((?:bridge|deploy|docs|scheduler-config|tests)/[\w./-]+)`"
    assert [where for where in named(pattern) if not (ROOT / where[1]).exists()] == []


def test_named_tests_exist() -> None:
    """docs/design.md names the test of each promise: whoever renames the test renames it there."""
    text = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    known = set(re.findall(r"def (test_\w+)", text))
    assert [where for where in named(r"`(test_\w+)`") if where[1] not in known] == []


def test_manifests_in_the_pages_translate_without_a_warning() -> None:
    manifests = [
        (page_id(page), body)
        for page in PAGES
        for language, body in _FENCE.findall(page.read_text())
        if language == "yaml" and "schedulerName" in body
    ]
    assert manifests
    for where, body in manifests:
        found = offline.read(body, name=where, settings=config.Settings())
        assert not found.failed, found.text
        assert not any(entry.spec is None or entry.spec.warnings for entry in found.entries), found.text


def test_the_researchers_example_is_the_one_that_the_pages_translate() -> None:
    _, manifest = next(
        found for found in _FENCE.findall((ROOT / "README.md").read_text()) if found[0] == "yaml"
    )
    without_comments = re.sub(r" +#.*", "", manifest)
    assert without_comments == (ROOT / "docs/examples/train.yaml").read_text()
