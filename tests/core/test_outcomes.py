"""One test a row of the table of submit outcomes (bridge/core/outcomes.py)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge import errors
from bridge.core.model import JobId
from bridge.core.outcomes import TABLE, Outcome, of_submit, refusal
from bridge.core.steps import SubmitJob
from tests.core.build import SPEC

ROWS = [
    (None, True, Outcome.CREATED),
    (None, False, Outcome.CREATED),
    (errors.Conflict("Duplicate job id", status=422, code=2011), False, Outcome.TAKEN),
    (errors.Conflict("Duplicate job id", status=500, code=2011), True, Outcome.TAKEN),
    (errors.Invalid("Requested nodes are busy", status=422, code=2016), True, Outcome.NO_ROOM),
    (errors.Invalid("insufficient priority", status=422, code=2013), True, Outcome.NO_ROOM),
    (errors.Invalid("configuration is not available", status=422, code=2014), True, Outcome.NO_ROOM),
    (errors.Invalid("partition configuration not available", status=422, code=2015), True, Outcome.NO_ROOM),
    (errors.Invalid("configuration is not available", status=422, code=2014), False, Outcome.REFUSED),
    (errors.Invalid("required node not available", status=422, code=2068), True, Outcome.NO_ROOM),
    (errors.Invalid("invalid partition", status=422, code=2000), True, Outcome.NO_ROOM),
    (errors.Invalid("invalid partition", status=422, code=2000), False, Outcome.REFUSED),
    (errors.Invalid("200 without a job id", status=200, code=0), False, Outcome.REFUSED),
    (errors.Unreachable("connection refused"), False, Outcome.RETRY),
    (errors.Busy("come back", status=429), False, Outcome.RETRY),
    (errors.Busy("come back", status=503), True, Outcome.RETRY),
    (errors.UnknownOutcome("time-out"), False, Outcome.UNKNOWN),
    (errors.UnknownOutcome("slurmctld did not answer", status=504, code=5004), False, Outcome.UNKNOWN),
    (errors.UnknownOutcome("bad gateway", status=502, code=1800), True, Outcome.UNKNOWN),
    (errors.ProtocolError("a login page", status=200), False, Outcome.UNKNOWN),
    (errors.Denied("Protocol authentication error", status=511, code=1007), False, Outcome.DENIED),
    (errors.Denied("Authentication failure", status=401), False, Outcome.DENIED),
    (errors.NotFound("no such thing", status=404, code=2017), False, Outcome.RETRY),
    (errors.Gone("odd", status=410), False, Outcome.REFUSED),
    (errors.StaleView("odd"), False, Outcome.UNKNOWN),
    (errors.Invalid("nothing was submitted", status=200), True, Outcome.RETRY),
]


@pytest.mark.parametrize(("error", "immediate", "outcome"), ROWS)
def test_every_answer_to_a_submit_has_its_row(
    error: errors.BridgeError | None, immediate: bool, outcome: Outcome
) -> None:
    assert of_submit(error, immediate=immediate) is outcome


def test_no_row_of_the_table_is_unreachable() -> None:
    """Each row decides at least one case above."""
    hit = set()
    for error, immediate, _ in ROWS:
        if error is not None:
            hit.add(
                next(
                    i
                    for i, row in enumerate(TABLE)
                    if isinstance(error, row.error)
                    and (row.codes is None or error.code in row.codes)
                    and (row.immediate is None or row.immediate == immediate)
                )
            )
    assert hit == set(range(len(TABLE)))


def test_an_unknown_outcome_is_never_taken_for_a_refusal() -> None:
    """A refusal is shown to the user and slows retries down; a lost reply must do neither."""
    for error in (
        errors.UnknownOutcome("x"),
        errors.ProtocolError("x"),
        errors.Unreachable("x"),
        errors.Busy("x"),
    ):
        assert of_submit(error, immediate=False) not in (Outcome.REFUSED, Outcome.CREATED)


def test_a_gang_that_no_nodes_can_take_is_told_what_was_asked_for_it() -> None:
    spec = replace(SPEC, tasks=4, memory_mib=None, memory_per_cpu=16000, gres="", gres_per_task="gres/gpu=1")
    error = errors.Invalid("Requested node configuration is not available", status=422, code=2014)
    text = refusal(SubmitJob(id=JobId(5), spec=spec, immediate=False), error)
    assert "4 tasks of 1 CPUs, 16000 MiB a CPU, gres/gpu=1" in text
    assert "16000" not in refusal(SubmitJob(id=JobId(5), spec=SPEC, immediate=False), error)
