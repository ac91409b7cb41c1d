"""What a takeover asks of Slurm: the Go project's mark and candidates are read, and a live job gets another mark."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge.core.model import JobId
from bridge.errors import RefusedError
from tests.contract.slurm_fixture import MARK, Slurm, slurm_fixture, spec

__all__ = ["slurm_fixture"]

THEIRS = '{"pods":["team/web-0","team/web-1"]}'


async def theirs(slurm: Slurm, job: JobId) -> None:
    """A job as the Go project marks it, by whatever hand."""
    marked = replace(MARK, attempt=7)
    await slurm.client.submit(job, spec(priority=0, mark=marked, required_nodes=slurm.nodes[:1]))
    await slurm.client._update(job, {"admin_comment": THEIRS})


async def test_the_go_projects_mark_and_its_candidates_are_read(slurm: Slurm) -> None:
    job = slurm.id()
    await theirs(slurm, job)
    record = await slurm.client.job(job)
    assert record.mark is None
    assert record.listed == ("team/web-0", "team/web-1")
    assert record.required == slurm.nodes[:1]


async def test_a_live_job_gets_another_mark_as_often_as_it_is_written(slurm: Slurm) -> None:
    job = slurm.id()
    await theirs(slurm, job)
    for _ in range(2):
        await slurm.client.update_mark(job, MARK)
    record = await slurm.client.job(job)
    assert (record.mark, record.listed) == (MARK, ())
    assert "PENDING" in record.states


async def test_an_ended_job_keeps_the_mark_that_it_has(slurm: Slurm) -> None:
    job = slurm.id()
    await theirs(slurm, job)
    await slurm.client.cancel(job)
    with pytest.raises(RefusedError):
        await slurm.client.update_mark(job, MARK)
    assert (await slurm.client.job(job)).listed == ("team/web-0", "team/web-1")
