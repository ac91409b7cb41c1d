"""What only real daemons can show: frozen ones, jobs made late, and the watcher beside them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bridge.core.jobid import IdRange
from bridge.core.model import JobId, is_granted
from bridge.errors import Conflict, Denied, UnknownOutcome
from bridge.slurm.completion import Completion
from bridge.slurm.watch import JobWatcher
from tests.contract.slurm_fixture import IDS_PER_TEST, MARK, Slurm, eventually, real_fixture, spec, states_are

__all__ = ["real_fixture"]
pytestmark = pytest.mark.real


def signed(facts: dict[str, object], **claims: object) -> str:
    """A JWT with the cluster's own key."""

    def part(value: dict[str, object]) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")

    head = part({"alg": "HS256", "typ": "JWT"}) + b"." + part(claims)
    signature = hmac.new(Path(str(facts["jwt_key"])).read_bytes(), head, hashlib.sha256).digest()
    return (head + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()


async def answers(slurm: Slurm) -> bool:
    with contextlib.suppress(UnknownOutcome):
        return await slurm.client.ping()
    return False


async def exists(slurm: Slurm, job: JobId) -> bool:
    return job in await slurm.client.states()


async def test_a_frozen_slurmctld_makes_the_job_late_and_only_once(real: Slurm) -> None:
    job = real.id()
    hasty = real.connect(submitTimeout=3.0)
    await hasty.connect()
    with real.stopped("slurmctld"), pytest.raises(UnknownOutcome):
        await hasty.submit(job, spec())
    await eventually(lambda: exists(real, job))
    with pytest.raises(Conflict):
        await hasty.submit(job, spec())
    assert (await real.client.job(job)).mark == MARK
    ours = [j for j in await real.client.states() if real.base <= j < real.base + IDS_PER_TEST]
    assert ours == [job]
    await hasty.close()


async def test_a_frozen_slurmctld_answers_no_ping_within_its_deadline(real: Slurm) -> None:
    with real.stopped("slurmctld"):
        began = time.monotonic()
        with pytest.raises(UnknownOutcome):
            await real.client.ping(timeout=0.5)
        assert time.monotonic() - began < 5.0  # slurmrestd itself would wait for ten
    await eventually(lambda: answers(real))


async def test_an_expired_token_is_denied_by_every_door(real: Slurm, tmp_path: Path) -> None:
    if not real.facts["jwt_key"]:
        pytest.skip("the key of this Slurm is not known")
    now = int(time.time())
    expired = signed(real.facts, sun="slurm", iat=now - 100, exp=now - 10)
    file = tmp_path / "token"
    file.write_text(expired)
    client = real.connect(slurmTokenFile=file)
    job = real.id()
    with pytest.raises(Denied):
        await client.states()
    with pytest.raises(Denied):
        await client.submit(job, spec())
    assert not await client.ping()
    with pytest.raises(Denied):
        await completion(real, expired).complete(job, 0)
    file.write_text("SLURM_JWT=" + signed(real.facts, sun="slurm", iat=now, exp=now + 60))
    await client.submit(job, spec(priority=0))
    await client.close()


def completion(real: Slurm, token: str) -> Completion:
    address = real.facts["slurmctld_address"]
    return Completion([address], lambda: token, lambda: real.client.release, real.client.partitions)


async def test_a_users_token_may_neither_choose_an_id_nor_complete_anothers_job(
    real: Slurm, tmp_path: Path
) -> None:
    if not real.facts["jwt_key"]:
        pytest.skip("the key of this Slurm is not known")
    now = int(time.time())
    file = tmp_path / "token"
    file.write_text(signed(real.facts, sun="alice", iat=now, exp=now + 60))
    client = real.connect(slurmTokenFile=file)
    refused, foreign = real.id(), real.id()
    with pytest.raises(Denied):
        await client.submit(refused, spec())
    await real.client.submit(foreign, spec(priority=0))
    # No DELETE of the foreign job here: slurmctld 26.05.5 without accounting answers that by a deadlock.
    with pytest.raises(Denied):
        await completion(real, file.read_text()).complete(foreign, 0)
    assert (await real.client.job(foreign)).states == {"PENDING"}
    await client.close()


@pytest.mark.parametrize("release", [(26, 5), (25, 11), (25, 5), (24, 11), (0, 0)])
async def test_slurmctld_takes_every_protocol_up_to_its_own(real: Slurm, release: tuple[int, int]) -> None:
    if release > real.client.release:
        pytest.skip("newer than this Slurm")
    job = real.id()
    await real.client.allocate(job, spec())
    address, alive = real.facts["slurmctld_address"], real.client.partitions
    older = Completion([address], real.client.token.read, lambda: release, alive)
    await older.complete(job, 3 << 8)
    record = await real.client.job(job)
    assert record.states >= {"FAILED"}
    assert (record.exit_code, record.exit_signal) == (3, 0)


async def test_who_else_listens_there_is_passed_over(real: Slurm) -> None:
    """slurmrestd is asked in slurmctld's protocol, then slurmctld."""
    addresses = ["127.0.0.1:9", real.facts["slurm_url"].rpartition("/")[2], real.facts["slurmctld_address"]]
    job = real.id()
    await real.client.allocate(job, spec())
    ending = Completion(
        addresses, real.client.token.read, lambda: real.client.release, real.client.partitions
    )
    assert await ending.complete(job, 0)
    assert (await real.client.job(job)).states >= {"COMPLETED"}


@pytest.fixture
async def watching(real: Slurm) -> AsyncIterator[tuple[JobWatcher, list[JobId]]]:
    told: list[JobId] = []
    ids = IdRange(real.base, real.base + IDS_PER_TEST)
    watcher = JobWatcher(real.client, real.settings, ids, told.append)
    task = asyncio.create_task(watcher.run())
    await eventually(lambda: watcher.healthy)
    yield watcher, told
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_the_watcher_sees_a_grant_and_an_end_at_once(
    real: Slurm, watching: tuple[JobWatcher, list[JobId]]
) -> None:
    watcher, told = watching
    job = real.id()
    await real.client.submit(job, spec())

    def granted() -> bool:
        record = watcher.records.get(job)
        return record is not None and is_granted(record.states) and job in told

    await eventually(granted)
    assert watcher.records[job].nodes
    assert watcher.records[job].mark == MARK
    await eventually(lambda: watcher.age() < 2.0)
    told.clear()
    await real.client.cancel(job)
    await eventually(lambda: job in told and "CANCELLED" in watcher.records[job].states, within=5.0)


@pytest.mark.parametrize("daemon", ["slurmrestd", "slurmctld"])
async def test_the_watcher_outlives_a_frozen_daemon(
    real: Slurm, watching: tuple[JobWatcher, list[JobId]], daemon: str
) -> None:
    watcher, told = watching
    job = real.id()
    await real.client.submit(job, spec(priority=0))
    await eventually(lambda: job in watcher.records)
    with real.stopped(daemon):
        await eventually(lambda: watcher.age() > 2.5)
        assert job in watcher.states
        told.clear()
    await eventually(lambda: watcher.healthy and watcher.age() < 2.0, within=10.0)
    assert watcher.states[job] == {"PENDING"}
    assert watcher.boot_age() == float("inf")
    assert await states_are(real, job, "PENDING")
