"""Jobs that Slurm numbers: held until they are released; and what the token of anybody but SlurmUser may do."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bridge.core import held
from bridge.core.model import JobId, JobSpec, is_granted
from bridge.errors import Denied, Invalid, NotFound
from bridge.slurm.client import SlurmClient
from tests.contract.slurm_fixture import MARK, Slurm, eventually, slurm_fixture, spec

__all__ = ["slurm_fixture"]


@asynccontextmanager
async def submitted(slurm: Slurm, what: JobSpec) -> AsyncIterator[JobId]:
    job = (await slurm.client.submit_held(what)).job_id
    try:
        yield job
    finally:
        await slurm.client.cancel(job)


async def runs(slurm: Slurm, job: JobId) -> bool:
    return is_granted((await slurm.client.job(job)).states)


@pytest.mark.parametrize("priority", [None, 77])
async def test_a_held_job_has_our_mark_and_a_number_of_slurms_and_runs_once_it_is_released(
    slurm: Slurm, priority: int | None
) -> None:
    async with submitted(slurm, spec(priority=priority)) as job:
        assert job < 0x02000000
        later = slurm.id()
        await slurm.client.submit(later, spec())
        await eventually(lambda: runs(slurm, later))
        record = await slurm.client.job(job)
        assert ("PENDING" in record.states, record.reason, record.mark) == (True, held.REASON, MARK)
        await slurm.client.unhold(job)
        await eventually(lambda: runs(slurm, job))
        assert (await slurm.client.job(job)).reason != held.REASON


async def test_a_priority_is_refused_while_the_job_is_held_and_told_once_it_is_given(slurm: Slurm) -> None:
    async with submitted(slurm, spec(priority=77)) as job:
        assert (await slurm.client.job(job)).priority == 0
        with pytest.raises(Invalid):
            await slurm.client.update_priority(job, 77)
        await slurm.client.unhold(job)
        assert (await slurm.client.job(job)).priority not in (None, 0, 77)
        await slurm.client.update_priority(job, held.FIRST)
        assert (await slurm.client.job(job)).priority == held.FIRST


async def test_to_release_twice_does_no_harm_and_what_has_ended_is_told(slurm: Slurm) -> None:
    async with submitted(slurm, spec()) as job:
        await slurm.client.unhold(job)
        await slurm.client.unhold(job)
        await slurm.client.cancel(job)
        with pytest.raises(Invalid):
            await slurm.client.unhold(job)
    with pytest.raises(NotFound):
        await slurm.client.unhold(slurm.id())


async def test_a_held_job_can_be_ended(slurm: Slurm) -> None:
    async with submitted(slurm, spec()) as job:
        await slurm.client.cancel(job)
        assert "CANCELLED" in (await slurm.client.job(job)).states


async def test_a_plain_user_submits_neither_a_chosen_id_nor_a_mark(slurm: Slurm, tmp_path: Path) -> None:
    client = as_user(slurm, "bob", tmp_path)
    before = await slurm.client.states()
    with pytest.raises((NotFound, Invalid, Denied)):  # without accounting Slurm minds the mark first
        await client.submit(slurm.id(), spec())
    with pytest.raises(Denied) as refused:
        await client.submit_held(spec())
    assert "AdminLevel=Administrator" in refused.value.said
    assert not (await slurm.client.states()).keys() - before.keys()
    await client.close()


async def test_whose_the_token_is_decides_who_numbers_jobs_where_slurm_tells_its_user(
    slurm: Slurm, tmp_path: Path
) -> None:
    await slurm.client.boot_time()
    assert not slurm.client.rights.held
    client = as_user(slurm, "bob", tmp_path)
    await client.boot_time()
    told = client.version == "v0.0.45"  # older ones don't say who SlurmUser is
    assert client.rights.held is told
    assert ("bob" in client.rights.note()) is told
    assert not client.stranger()
    chosen = as_user(slurm, "bob", tmp_path, jobIds="chosen")
    await chosen.boot_time()
    assert ("SlurmUser" in chosen.stranger()) is told
    await client.close()
    await chosen.close()


def as_user(slurm: Slurm, user: str, folder: Path, **settings: Any) -> SlurmClient:
    """A client with a token of that user's, who is no administrator."""
    key = Path(slurm.facts["jwt_key"]).read_bytes() if slurm.world is None else b""
    claims = {"sun": user, "iat": int(time.time()), "exp": int(time.time()) + 3600}
    text = ".".join(_encoded(json.dumps(p).encode()) for p in ({"alg": "HS256", "typ": "JWT"}, claims))
    token = folder / user
    token.write_text(f"{text}.{_encoded(hmac.new(key, text.encode(), hashlib.sha256).digest())}")
    if slurm.world is not None:
        slurm.world.users_of_tokens[token.read_text()] = user
    return slurm.connect(slurmTokenFile=token, **settings)


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
