"""Rows in; an aligned table for people and JSON for machines out. Also the few statistics that all rows share."""

from __future__ import annotations

import json
import math
import statistics
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HEADINGS = ("", "measured", "limit (same run)", "ratio", "budget")
MISSING = "–"
WIDTH = 118
INDENT = " " * 6


@dataclass(frozen=True)
class Row:
    """One figure. `limit` is what the same machine did in the same run without the bridge; `ratio` = figure : limit."""

    what: str
    measured: str
    limit: str = ""
    ratio: str = ""
    budget: str = ""
    values: dict[str, Any] = field(default_factory=dict)  # for JSON
    note: str = ""  # printed below, over all columns


@dataclass
class Report:
    facts: dict[str, str]
    sections: dict[str, list[Row]] = field(default_factory=dict)

    def add(self, section: str, *rows: Row) -> None:
        self.sections.setdefault(section, []).extend(rows)

    def text(self) -> str:
        table = [HEADINGS, *(_cells(row) for rows in self.sections.values() for row in rows)]
        widths = [max(len(row[i]) for row in table) for i in range(len(HEADINGS))]
        facts = " · ".join(f"{key} {value}" for key, value in self.facts.items())
        lines = [*textwrap.wrap(facts, WIDTH), "", _line(HEADINGS, widths)]
        for section, rows in self.sections.items():
            lines += ["", section]
            for row in rows:
                lines.append(_line(_cells(row), widths))
                lines += textwrap.wrap(row.note, WIDTH, initial_indent=INDENT, subsequent_indent=INDENT)
        return "\n".join(lines)

    def write(self, path: Path) -> None:
        body = {
            "facts": self.facts,
            "sections": {k: [asdict(r) for r in v] for k, v in self.sections.items()},
        }
        path.write_text(json.dumps(body, indent=2, ensure_ascii=False) + "\n")


def _cells(row: Row) -> tuple[str, ...]:
    return f"  {row.what}", row.measured, row.limit, row.ratio, row.budget


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


# --- statistics -----------------------------------------------------------------------------------


def quantile(values: Iterable[float], share: float) -> float:
    """The smallest value that so large a share does not exceed; nan of nothing."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


def summary(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {"n": 0}
    return {
        "n": len(values),
        "p50": statistics.median(values),
        "p95": quantile(values, 0.95),
        "p99": quantile(values, 0.99),
        "max": max(values),
    }


def spread(values: Sequence[float], *names: str) -> str:
    """p50 0.12 · p95 0.31 s"""
    found = summary(values)
    if not values:
        return MISSING
    return " · ".join(f"{name} {seconds(found[name])}" for name in names) + " s"


def seconds(value: float) -> str:
    return MISSING if math.isnan(value) else f"{value:.3f}" if value < 1 else f"{value:.2f}"


def rate(value: float) -> str:
    return MISSING if math.isnan(value) else f"{value:.1f}/s"


def percent(value: float, limit: float) -> str:
    return f"{100 * value / limit:.0f} %" if limit > 0 else MISSING


def times(value: float, limit: float) -> str:
    return f"{value / limit:.2f}×" if limit > 0 else MISSING
