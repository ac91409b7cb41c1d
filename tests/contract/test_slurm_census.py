"""Which of all jobs are ours, where no id tells: on the world, in virtual time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import httpx

from bridge.config import SlurmSettings
from bridge.core import identity
from bridge.core.model import JobId, JobRecord
from bridge.slurm.census import FORGETFUL, PER_SECOND, RETRY, Census
from bridge.slurm.client import SlurmClient
from tests.contract.slurm_fixture import MARK
from tests.sim.accidents import slurm as slurm_fault
from tests.sim.loop import run
from tests.worlds.slurm import SlurmWorld
from tests.worlds.slurm_faults import Fault, Kind
from tests.worlds.slurm_jobs import WorldJob

READ = "GET job/{id}"


class Counted:
    """A census of one Slurm, whose polls the test makes."""

    def __init__(self, folder: Path) -> None:
        self.now = asyncio.get_running_loop().time
        self.world = SlurmWorld(clock=lambda: 1_700_000_000.0 + self.now())
        (folder / "token").write_text(self.world.token)
        settings = SlurmSettings(slurmRestApi="http://world", slurmTokenFile=folder / "token")
        client = SlurmClient(settings, transport=httpx.ASGITransport(self.world))
        self.found: list[JobRecord] = []
        self.census = Census(client, self.found.append, self.now, asyncio.sleep)
        self.census.resume()

    def poll(self, *, booted: bool = False) -> float:
        listed = {job.id: job.states for job in self.world.jobs.values()}
        self.census.count(listed, self.now(), booted=booted)
        return self.now()

    def ours(self, job: JobId) -> JobId:
        running = frozenset({"RUNNING"})
        self.world.add(
            WorldJob(id=job, states=running, submitted=self.now(), admin_comment=identity.render(MARK))
        )
        return job

    @property
    def reads(self) -> int:
        return self.world.count(READ)


def play(folder: Path, scene: Callable[[Counted], Awaitable[None]]) -> None:
    async def main() -> None:
        counted = Counted(folder)
        task = asyncio.create_task(counted.census.run())
        try:
            await scene(counted)
        finally:
            task.cancel()

    run(main())


def test_ours_are_found_by_their_mark_and_others_are_read_once(tmp_path: Path) -> None:
    async def scene(slurm: Counted) -> None:
        for _ in range(3):
            slurm.world.native()
        mine = slurm.ours(JobId(99))
        for _ in range(3):
            slurm.poll()
            await asyncio.sleep(1.0)
        assert (set(slurm.census.ours), [record.id for record in slurm.found], slurm.reads) == (
            {mine},
            [mine],
            4,
        )

    play(tmp_path, scene)


def test_a_poll_counts_as_known_once_each_job_of_it_is_read(tmp_path: Path) -> None:
    async def scene(slurm: Counted) -> None:
        assert slurm.census.known_until() == -math.inf
        for _ in range(10):
            slurm.world.native()
        first = slurm.poll()
        assert slurm.census.known_until() == -math.inf
        await asyncio.sleep(11 / PER_SECOND)
        assert slurm.census.known_until() == first
        slurm.world.native()
        second = slurm.poll()
        assert slurm.census.known_until() == first
        await asyncio.sleep(2 / PER_SECOND)
        assert slurm.census.known_until() == second

    play(tmp_path, scene)


def test_a_read_that_fails_is_tried_again_and_nothing_is_known_before(tmp_path: Path) -> None:
    async def scene(slurm: Counted) -> None:
        slurm.world.faults.add(Fault(pattern="GET job/", kind=Kind.DROP_BEFORE))
        slurm.ours(JobId(99))
        slurm.poll()
        await asyncio.sleep(RETRY / 2)
        assert (set(slurm.census.ours), slurm.census.known_until()) == (set(), -math.inf)
        await asyncio.sleep(RETRY)
        assert set(slurm.census.ours) == {99}

    play(tmp_path, scene)


def test_a_young_id_is_read_again_after_a_boot_of_slurmctld_that_may_have_given_it_to_us(
    tmp_path: Path,
) -> None:
    async def scene(slurm: Counted) -> None:
        old = slurm.world.native().id
        slurm.poll()
        await asyncio.sleep(FORGETFUL + 1)
        young = slurm.world.native().id
        slurm.poll()
        await asyncio.sleep(1.0)
        slurm.ours(young)
        slurm.ours(old)  # it can't be, and would cost a read of every job
        slurm.poll(booted=True)
        await asyncio.sleep(1.0)
        assert set(slurm.census.ours) == {young}

    play(tmp_path, scene)


def test_so_is_one_of_ours_whose_number_it_may_have_given_to_another(tmp_path: Path) -> None:
    async def scene(slurm: Counted) -> None:
        old, young = slurm.ours(JobId(98)), JobId(99)
        slurm.poll()
        await asyncio.sleep(FORGETFUL + 1)
        slurm.ours(young)
        slurm.poll()
        await asyncio.sleep(1.0)
        assert set(slurm.census.ours) == {old, young}
        for job in (old, young):
            slurm.world.add(replace(slurm.world.jobs[job], admin_comment=""))
        slurm.poll(booted=True)
        await asyncio.sleep(1.0)
        assert set(slurm.census.ours) == {old}

    play(tmp_path, scene)


def test_a_listed_job_that_slurm_denies_when_it_is_asked_is_asked_for_again(tmp_path: Path) -> None:
    async def scene(slurm: Counted) -> None:
        mine = slurm.ours(JobId(99))
        slurm.world.faults.add(slurm_fault("404", "GET job/", 3))
        for _ in range(3):
            slurm.poll()
            await asyncio.sleep(RETRY)
        assert slurm.census.known_until() == -math.inf
        await asyncio.sleep(2 * RETRY)
        assert set(slurm.census.ours) == {mine}
        slurm.world.faults.add(slurm_fault("404", "GET job/", 3))
        gone = slurm.world.native().id
        slurm.poll()
        await asyncio.sleep(0.1)
        slurm.world.lose(gone)
        last = slurm.poll()
        assert slurm.census.known_until() == last

    play(tmp_path, scene)


def test_while_slurm_cannot_be_polled_nothing_is_read(tmp_path: Path) -> None:
    async def scene(slurm: Counted) -> None:
        slurm.world.native()
        slurm.census.pause()
        slurm.poll()
        await asyncio.sleep(5.0)
        assert slurm.reads == 0
        slurm.census.resume()
        await asyncio.sleep(1.0)
        assert slurm.reads == 1

    play(tmp_path, scene)


def test_jobs_that_ended_before_the_first_poll_are_read_after_the_live_ones_and_later_ends_never(
    tmp_path: Path,
) -> None:
    async def scene(slurm: Counted) -> None:
        early, live, late = (slurm.ours(JobId(number)) for number in (7, 8, 9))
        slurm.world.end(early, "CANCELLED")
        slurm.world.end(late, "CANCELLED")
        unseen = slurm.world.jobs.pop(late)
        first = slurm.poll()
        assert slurm.census.behind()
        await asyncio.sleep(0.5 / PER_SECOND)
        assert [record.id for record in slurm.found] == [live]
        assert slurm.census.known_until() == first, "no submit waits for jobs that ended"
        slurm.world.add(unseen)
        slurm.poll()
        await asyncio.sleep(1.0)
        assert [record.id for record in slurm.found] == [live, early]
        assert not slurm.census.behind()

    play(tmp_path, scene)
