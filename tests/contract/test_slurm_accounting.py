"""What Slurm's accounting remembers of a job, on the world and, where the stack has slurmdbd, on the real daemons."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge.core.model import JobId, JobRecord
from bridge.errors import BridgeError
from tests.contract.slurm_fixture import MARK, Slurm, eventually, slurm_fixture, spec

__all__ = ["slurm_fixture"]


@pytest.fixture
async def books(slurm: Slurm) -> Slurm:
    if slurm.world is not None:
        slurm.world.books.open = True
    await slurm.client.connect()
    if not slurm.client.accounting:
        pytest.skip("this stack has no slurmdbd: up --accounting, and name it in SLURM_BRIDGE_STACK")
    return slurm


async def asked(slurm: Slurm, job: JobId) -> JobRecord | None:
    return await slurm.client.accounted(job, 5.0)


async def shows(slurm: Slurm, job: JobId, state: str) -> bool:
    found = await asked(slurm, job)
    return found is not None and state in found.states


async def test_the_end_of_a_job_is_told_with_its_mark_and_the_times_that_slurmctld_told(books: Slurm) -> None:
    job = books.id()
    await books.client.allocate(job, spec())
    await eventually(lambda: shows(books, job, "RUNNING"))
    known = await books.client.job(job)
    before = await asked(books, job)
    assert before is not None
    assert (before.ended, before.submitted, before.nodes) == (0.0, known.submitted, known.nodes)
    assert before.mark is None, "slurmctld sends it with the end"
    await books.client.cancel(job)
    await eventually(lambda: shows(books, job, "CANCELLED"))
    after = await asked(books, job)
    assert after is not None
    assert (after.mark, after.submitted, after.nodes) == (MARK, known.submitted, known.nodes)
    assert after.ended >= known.started


async def test_of_two_submits_of_one_id_the_last_one_counts(books: Slurm) -> None:
    """As after a claim. Only the world forgets a job within seconds."""
    if books.world is None:
        pytest.skip("MinJobAge is longer than a test")
    job = books.id()
    await books.client.allocate(job, spec())
    await books.client.cancel(job)
    books.world.lose(job)
    later = books.world.clock() + 10.0
    books.world.clock = lambda: later
    await books.client.allocate(job, spec(mark=replace(MARK, attempt=1)))
    found = await asked(books, job)
    assert found is not None
    assert found.states == {"RUNNING"}


async def test_a_job_that_never_was_is_no_error(books: Slurm) -> None:
    assert await asked(books, books.id()) is None


async def test_the_qos_say_what_preemption_leaves(books: Slurm) -> None:
    if books.world is not None:
        books.world.books.graces["normal"] = 20
    found = await books.client.graces_of_qos(5.0)
    assert found["normal"] >= 0.0
    assert {"normal", "high"} <= found.keys()
    job = books.id()
    await books.client.allocate(job, spec())
    assert (await books.client.job(job)).qos == "normal"


async def test_without_accounting_nobody_is_asked(slurm: Slurm) -> None:
    await slurm.client.connect()
    if slurm.client.accounting:
        pytest.skip("this stack has slurmdbd")
    with pytest.raises(BridgeError):
        await asked(slurm, slurm.id())
