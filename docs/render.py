"""Writes the tables of docs/ that are generated from the code, between `<!-- generated: NAME -->` and `<!-- end -->`.

`python docs/render.py` rewrites the pages in place; tests/house/test_docs.py fails while one of them is out of date.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from bridge import config, explain, metrics, offline
from bridge.core import outcomes, overrides
from bridge.kube import wire as kube_wire
from bridge.slurm import faults
from bridge.slurm.translate import FIELDS

DOCS = Path(__file__).resolve().parent
PAGES = tuple(sorted(DOCS.glob("*.md")))
_BLOCK = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(head: Sequence[str], rows: Iterator[Sequence[str]] | Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


def code(text: str) -> str:
    return f"`{text}`"


# --- the annotations ------------------------------------------------------------------------------

_FORMATS: Mapping[str, str] = {
    "_verbatim": "text, sent as it is",
    "_gres": "text, `gres/` put before each entry that lacks it",
    "_name": f"text, at most {overrides.TEXT_LIMIT:,} bytes; empty says nothing",
    "_short": f"text of at most {overrides.TEXT_LIMIT:,} characters",
    "_cpus": "Kubernetes quantity (`2`, `500m`), rounded up",
    "_mib": "Kubernetes quantity (`4Gi`), rounded up to MiB",
    "_exclusive": '`"false"` shares the node, any other word does not',
    "flag": '`"true"` or `"false"`',
    "_moment": "RFC 3339 with a zone, or Unix seconds",
    "_hosts": "hostlist (`n[01-04],n7`)",
}


def _format(read: Callable[[str], Any]) -> str:
    if read.__name__ in _FORMATS:
        return _FORMATS[read.__name__]
    known = inspect.getclosurevars(read).nonlocals
    if "words" in known:
        return " or ".join(f'`"{word}"`' for word in known["words"])
    limit = "" if known["high"] == overrides.INT32 else f", at most {known['high']:,}"
    return f"whole number of {known['unit']}, at least {known['low']}{limit}"


def option_row(option: overrides.Option) -> Sequence[str]:
    in_slurm = {field: key for field, key, _ in FIELDS} | {"user_limit": "time_limit"}
    target = code(in_slurm[option.field]) if option.field in in_slurm else "-"
    return (code(option.suffix), target, _format(option.read), option.doc)


def _options() -> str:
    return table(
        ("suffix", "field of the job", "format", "meaning"), [option_row(o) for o in overrides.TABLE]
    )


# --- answers and errors ---------------------------------------------------------------------------


def outcome_row(row: outcomes.Row) -> Sequence[str]:
    kinds = {None: "both", True: "immediate", False: "queued"}
    numbers = ", ".join(str(n) for n in sorted(row.codes)) if row.codes else "any"
    return (row.error.__name__, numbers, kinds[row.immediate], row.meaning, code(row.outcome.value))


def _submit_outcomes() -> str:
    head = ("error class", "error_number", "submit", "what came back", "outcome")
    return table(head, [outcome_row(row) for row in outcomes.TABLE])


def _tables_of(module: object) -> str:
    """The docstring of a module without its first paragraph: the tables and what stands between them."""
    text = inspect.getdoc(module) or ""
    return text.partition("\n\n")[2].rstrip() + "\n"


# --- settings -------------------------------------------------------------------------------------


def setting_groups() -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in config.Settings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield name, field.annotation


def setting_rows(group: type[BaseModel]) -> Iterator[Sequence[str]]:
    values = group().model_dump(mode="json")
    for key, field in group.model_fields.items():
        yield code(key), code(_shown(values[key])), field.description or ""


def _shown(value: object) -> str:
    """As one writes it in YAML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_shown(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_shown(item) for item in value) + "]"
    words: Mapping[object, str] = {"": '""', True: "true", False: "false", None: "null"}
    return words[value] if isinstance(value, (bool, type(None))) or value == "" else str(value)


def _settings() -> str:
    parts = []
    for name, group in setting_groups():
        rows = table(("key", "default", "what follows from it"), list(setting_rows(group)))
        parts.append(f"### {name}\n\n{(group.__doc__ or '').strip()}\n\n{rows}")
    return "\n".join(parts)


# --- metrics --------------------------------------------------------------------------------------


def metric_rows() -> Iterator[Sequence[str]]:
    for found in vars(metrics).values():
        kind = type(found).__name__
        if kind in ("Counter", "Gauge", "Histogram"):
            name = found._name + ("_total" if kind == "Counter" else "")
            labels = ", ".join(code(label) for label in found._labelnames)
            yield code(name), kind.lower(), labels or "-", found._documentation


def _metrics() -> str:
    return table(("name", "type", "labels", "meaning"), list(metric_rows()))


# --- every state of a job and of its pod ----------------------------------------------------------

_ROW = ("the pod", "the bridge", "and says")


@cache
def lifecycle() -> Mapping[str, Any]:
    """The table that tests/core/test_lifecycle_table.py holds the code to."""
    return tomllib.loads((DOCS.parent / "tests/core/lifecycle.toml").read_text())


def _lifecycle_pods() -> str:
    groups = lifecycle()["pods"].items()
    return table(
        ("group", "name", "the pod"),
        [(f"*{group}*", name, meaning) for group, pods in groups for name, meaning in pods.items()],
    )


def _lifecycle_closing() -> str:
    return table(_ROW, [lifecycle_row(row) for row in lifecycle()["closing"]["live"]["rows"]])


def _lifecycle_families() -> str:
    return "\n".join(_lifecycle_family(family) for family in lifecycle()["family"])


def _lifecycle_family(family: Mapping[str, Any]) -> str:
    head = ("the job", "means", *(("the pod's Event says",) if "says" in family["states"][0] else ()))
    rows = [lifecycle_row(row) for row in family["rows"]]
    rows += [lifecycle_row(row, ", slurmctld has just started") for row in family.get("just_booted", ())]
    parts = (
        f"### {family['title']}",
        family["words"].strip(),
        table(head, [_lifecycle_state(state) for state in family["states"]]),
        table(_ROW, rows),
    )
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _lifecycle_state(state: Mapping[str, Any]) -> Sequence[str]:
    name = code(state["is"]) + state.get("name", state["is"]).removeprefix(state["is"])
    flags = ", ".join(map(code, state.get("with", ())))
    says = (f"job … {state['says']}",) if "says" in state else ()
    return (f"{name}, also with {flags}" if flags else name, state["means"], *says)


def lifecycle_row(row: Sequence[str], when: str = "") -> Sequence[str]:
    pods, does, reason, *words = row
    named = (f"*{name}*" if name in lifecycle()["pods"] else name for name in pods.split(", "))
    says = code(reason) + "".join(f": … {part} …" for part in words)
    return (", ".join(named) + when, lifecycle()["does"][does]["words"], says)


# --- who owns which fact about a node ---------------------------------------------------------------


def _nodes() -> str:
    """The table that tests/core/test_mirror_table.py holds the code to."""
    facts = tomllib.loads((DOCS.parent / "tests/core/nodes.toml").read_text())["facts"]
    head = ("fact", "its owner", "external node", "node with a slurmd")
    cells = [(f["fact"], f["owner"], node_cell(f["external"]), node_cell(f["slurmd"])) for f in facts]
    return table(head, cells)


def node_cell(cell: Mapping[str, Any]) -> str:
    reason = f" (`{cell['reason']}`)" if "reason" in cell else ""
    return f"{cell['words']}{reason}"


# --- the command line, on the files of docs/examples ----------------------------------------------


def _fenced(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```\n"


def _translated() -> str:
    return _fenced(offline.translate(Path("docs/examples/train.yaml"), config.Settings()).text)


def _explained() -> str:
    return _fenced(explain.explain(Path("docs/examples/waiting.yaml"), "train", config.Settings()))


BLOCKS: Mapping[str, Callable[[], str]] = {
    "options": _options,
    "outcomes": _submit_outcomes,
    "slurm-errors": lambda: _tables_of(faults),
    "kubernetes-errors": lambda: _tables_of(kube_wire),
    "settings": _settings,
    "metrics": _metrics,
    "lifecycle-pods": _lifecycle_pods,
    "lifecycle-closing": _lifecycle_closing,
    "lifecycle-families": _lifecycle_families,
    "node-facts": _nodes,
    "translate": _translated,
    "explain": _explained,
}


def rendered(page: Path) -> str:
    """What the page should hold."""
    return _BLOCK.sub(lambda m: f"{m[1]}\n{BLOCKS[m[2]]()}\n{m[3]}", page.read_text())


def main() -> int:
    os.chdir(DOCS.parent)
    for page in PAGES:
        text = rendered(page)
        if text != page.read_text():
            page.write_text(text)
            sys.stdout.write(f"{page.relative_to(DOCS.parent)}: rewritten\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
