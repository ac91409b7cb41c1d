"""What `doctor` found, and how a person or a machine reads it.

In: a `Report`. Out: text, or plain values for JSON. What must stay true: the exit status says whether a person is
needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

from bridge.core.checkup import Finding, span
from bridge.core.conditions import utc

SHOWN: Final = 10  # waiting pods, and pieces of unfinished business, in the text; JSON has all


@dataclass(frozen=True, slots=True, kw_only=True)
class Invariant:
    name: str
    promise: str
    violations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    pod: str
    seconds: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    when: float
    cluster: str
    sides: tuple[tuple[str, str], ...]  # what was looked at → a sentence
    invariants: tuple[Invariant, ...]
    unseen: tuple[str, ...]  # names of those about changes, of which one look shows nothing
    unfinished: tuple[str, ...]  # seen twice, some seconds apart
    waiting: tuple[Waiting, ...]  # longest first
    findings: tuple[Finding, ...]  # urgent ones first

    @property
    def exit_status(self) -> int:
        """1: a person is needed."""
        broken = any(each.violations for each in self.invariants)
        return int(broken or any(finding.urgent for finding in self.findings))


def body(report: Report) -> dict[str, Any]:
    """For JSON."""
    return {**asdict(report), "sides": dict(report.sides), "exit_status": report.exit_status}


def text(report: Report) -> str:
    return "\n".join(_lines(report))


def _lines(report: Report) -> Iterator[str]:
    yield f"Cluster {report.cluster}, {utc(report.when)}"
    for side, sentence in report.sides:
        yield f"  {side:<11}{sentence}"
    yield ""
    yield "What must always hold"
    for each in report.invariants:
        yield f"  {'BROKEN' if each.violations else 'ok':<7}{each.name:<20}{each.promise}"
        yield from (f"         - {violation}" for violation in each.violations)
    yield f"  -      not to be seen in one look: {', '.join(report.unseen)}"
    if report.waiting:
        yield ""
        yield f"Pods that wait ({len(report.waiting)}), longest first"
        yield from _first(f"{each.pod}, {span(each.seconds)}: {each.why}" for each in report.waiting)
    if report.unfinished:
        yield ""
        yield f"Under way ({len(report.unfinished)}); a person is needed only if it lasts"
        yield from _first(report.unfinished)
    for title, urgent in (("A person is needed", True), ("Good to know", False)):
        findings = [finding for finding in report.findings if finding.urgent is urgent]
        if findings:
            yield ""
            yield title
        for finding in findings:
            yield f"  - {finding.text}"
            if finding.do:
                yield f"    → {finding.do}"
    yield ""
    yield "A person is needed." if report.exit_status else "All is well."


def _first(lines: Iterator[str] | tuple[str, ...]) -> Iterator[str]:
    for number, line in enumerate(lines):
        if number < SHOWN:
            yield f"  {line}"
    if (more := number + 1 - SHOWN) > 0:
        yield f"  … and {more} more"
