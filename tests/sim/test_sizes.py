"""Gangs of pods of different sizes: the whole bridge in virtual time."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bridge.core.model import is_ended
from bridge.names import GPUS_ANNOTATION
from tests.sim.simulation import Simulation
from tests.sim.test_gangs import Gang, all_run, gpus, live
from tests.sim.test_story import play, running
from tests.sim.test_vanished import condition, forget, going, node_of
from tests.worlds.slurm_jobs import WorldJob


class Mixed(Gang):
    """The first pod asks for other GPUs than the rest."""

    def __init__(
        self, sim: Simulation, name: str, size: int, *, first: int = 0, rest: int = 2, **wishes: str
    ) -> None:
        super().__init__(sim, name, size, gpus=rest, **({"sizes": "own"} | wishes))
        self._first, self._rest = first, rest
        self.kinds: tuple[str, str] | None = None  # of the nodes for the first, and for the rest

    def pod(self, index: int, **meta: Any) -> str:
        self._gpus = self._rest if index else self._first
        if self.kinds is not None:
            meta["asks"] = {"nodeSelector": {"kind": self.kinds[min(index, 1)]}}
        return super().pod(index, **meta)


def parts(sim: Simulation) -> tuple[WorldJob, WorldJob]:
    """The two components of the one job that lives."""
    first, second = sorted(live(sim), key=lambda job: job.id)
    assert (first.leader, second.leader) == (first.id, first.id)
    return first, second


async def started(sim: Simulation, gang: Gang) -> list[str]:
    names = gang.pods()
    await sim.until(lambda: all_run(sim, names), 30)
    return names


def gone(sim: Simulation, name: str) -> bool:
    return sim.pod(name) is None


def places(sim: Simulation, names: list[str]) -> list[tuple[str, str]]:
    told = [(sim.pod(name) or {})["metadata"]["annotations"].get(GPUS_ANNOTATION, "") for name in names]
    return [(node_of(sim, name), gpu) for name, gpu in zip(names, told, strict=True)]


def test_each_pod_gets_what_it_asks_for_and_the_one_job_ends_with_their_exit_code(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        names = await started(sim, Mixed(sim, "g", 4))
        small, large = parts(sim)
        assert {node_of(sim, name) for name in names[:1]} == set(small.nodes)
        assert {node_of(sim, name) for name in names[1:]} == set(large.nodes)
        assert sorted(gpus(sim, name) for name in names[1:]) == ["0-1", "2-3", "4-5"]
        assert sim.job_of(names[0]) == sim.job_of(names[-1]) == small.id
        for name in names[:-1]:
            sim.kubelet.finish(name)
        await sim.settle(5)
        assert len(live(sim)) == 2, "its parts stay with the job until the last pod has ended"
        sim.kubelet.finish(names[-1], 3)
        await sim.until(lambda: not live(sim), 10)
        assert [sim.slurm.jobs[job.id].exit_code for job in (small, large)] == [3, 3]

    play(tmp_path, scene)


def test_pods_of_each_size_get_the_nodes_that_they_can_use_and_a_job_that_waits_follows_each_change(
    tmp_path: Path,
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.held = True
        sim.label("n1", kind="cpu")
        sim.label("n2", kind="gpu")
        sim.start()
        gang = Mixed(sim, "g", 3)
        gang.kinds = ("cpu", "gpu")
        names = gang.pods()
        await sim.until(lambda: len(live(sim)) == 2, 30)
        before = parts(sim)
        assert [job.excluded for job in before] == [{"n2", "n3"}, {"n1", "n3"}]
        await sim.settle(20)
        sim.label("n3", kind="gpu")
        await sim.until(lambda: [job.excluded for job in parts(sim)] == [{"n2", "n3"}, {"n1"}], 20)
        assert [job.id for job in parts(sim)] == [job.id for job in before]
        sim.label("n2", kind="none")
        await sim.settle(20)
        sim.slurm.held = False
        await sim.until(lambda: all_run(sim, names), 60)
        assert [node_of(sim, name) for name in names] == ["n1", "n3", "n3"]
        assert [job.id for job in parts(sim)] == [job.id for job in before]

    play(tmp_path, scene, nodes=3)


def test_where_pods_of_one_size_find_no_node_all_are_told_which_and_start_when_there_is_one(
    tmp_path: Path,
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.label("n1", kind="cpu")
        sim.start()
        gang = Mixed(sim, "g", 3)
        gang.kinds = ("cpu", "gpu")
        names = gang.pods()
        told = partial(condition, sim, names[0], "slinky.slurm.net/SlurmJob")
        await sim.until(lambda: told().get("reason") == "Refused", 30)
        assert f"can take pod default/{names[1]} and 1 other: 3 nodes do not match" in told()["message"]
        assert not live(sim)
        sim.label("n2", kind="gpu")
        await sim.until(lambda: all_run(sim, names), 60)

    play(tmp_path, scene, nodes=3)


def test_with_sizes_most_it_is_one_job_with_the_most_of_each_for_every_pod(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        await started(sim, Mixed(sim, "g", 3, first=1, sizes="most"))
        (job,) = live(sim)
        assert sum(map(len, job.gpus.values())) == 6

    play(tmp_path, scene)


@pytest.mark.parametrize("which", [0, 1], ids=["the first part", "another part"])
@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "running"])
def test_a_person_who_cancels_a_part_of_the_job_ends_the_gang(
    tmp_path: Path, which: int, waits: bool
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.held = waits
        sim.start()
        names = Mixed(sim, "g", 3).pods()
        await sim.until(lambda: live(sim) if waits else all_run(sim, names), 30)
        await sim.settle(2)
        sim.slurm.end(parts(sim)[which].id, "CANCELLED")
        await sim.until(lambda: all(going(sim, name) for name in names), 10)
        if not waits:
            assert "cancelled in Slurm" in condition(sim, names[0], "DisruptionTarget").get(
                "message", "cancelled in Slurm"
            )
        await sim.until(lambda: not live(sim) and not sim.kubelet.containers, 30)

    play(tmp_path, scene)


def test_a_part_that_reaches_its_time_limit_alone_takes_the_others_along(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        names = await started(sim, Mixed(sim, "g", 3))
        leader, _ = parts(sim)
        sim.slurm.end(leader.id, "TIMEOUT")
        await sim.until(lambda: all(going(sim, name) for name in names), 10)
        await sim.until(lambda: not live(sim), 30)

    play(tmp_path, scene)


@pytest.mark.parametrize("lost", [False, True], ids=["there", "forgotten"])
@pytest.mark.parametrize("anew", [False, True], ids=["the same bridge", "another bridge"])
def test_its_pods_keep_their_places_over_a_new_bridge_and_a_slurmctld_that_forgot_the_job(
    tmp_path: Path, lost: bool, anew: bool
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        names = await started(sim, Mixed(sim, "g", 4, first=1))
        before = places(sim, names)
        small, large = parts(sim)
        if anew:
            await sim.crash()
        if lost:
            forget(sim, small.id)
        if anew:
            sim.start()
        await sim.until(
            lambda: (len(live(sim)) == 2 and not lost) or (live(sim) and live(sim)[0].started), 60
        )
        await sim.settle(400)
        assert all_run(sim, names)
        assert places(sim, names) == before
        again = parts(sim)
        assert (again[0].nodes, again[1].nodes) == (small.nodes, large.nodes)
        for name in names:
            sim.kubelet.finish(name)
        await sim.until(lambda: not live(sim), 30)

    play(tmp_path, scene)


def test_where_only_pods_of_one_size_are_left_their_part_alone_is_claimed(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        names = await started(sim, Mixed(sim, "g", 3, first=1))
        before = places(sim, names[1:])
        small, large = parts(sim)
        sim.kubelet.finish(names[0])
        await sim.settle(5)
        forget(sim, small.id)
        await sim.until(lambda: live(sim), 60)
        await sim.settle(400)
        (again,) = live(sim)
        assert again.nodes == large.nodes
        assert places(sim, names[1:]) == before
        assert all_run(sim, names[1:])

    play(tmp_path, scene)


def test_one_who_comes_for_a_lost_member_gets_a_place_of_its_own_size(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        gang = Mixed(sim, "g", 3, first=1)
        names = await started(sim, gang)
        before = places(sim, names)
        for index in (0, 2):
            sim.delete(names[index])
            await sim.until(partial(gone, sim, names[index]), 30)
            names[index] = gang.pod(index)
            await sim.until(partial(running, sim, names[index]), 60)
        assert places(sim, names) == before
        assert len(live(sim)) == 2

    play(tmp_path, scene)


def test_a_crash_of_slurmctld_that_undoes_its_start_costs_the_gang_nothing(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        names = Mixed(sim, "g", 3).pods()
        await sim.until(lambda: live(sim), 30)
        sim.slurm.crash(5.0)
        await sim.until(lambda: all_run(sim, names), 120)
        await sim.settle(60)
        assert len(live(sim)) == 2

    play(tmp_path, scene)


def test_where_another_job_has_the_second_id_other_ids_are_asked_for_and_no_pod_goes(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.held = True
        sim.start()
        gang = Mixed(sim, "g", 3)
        await sim.settle(1)
        names = gang.pods()
        await sim.until(lambda: live(sim), 30)
        first = parts(sim)[0].id
        await sim.crash()
        sim.slurm.lose(first)
        await sim.settle(5)  # two jobs of one id are told apart by the second of their submit
        other = sim.slurm.native()
        sim.slurm.lose(other.id)
        sim.slurm.add(WorldJob(**{**vars(other), "id": first + 1}))
        sim.start()
        sim.slurm.held = False
        await sim.until(lambda: all_run(sim, names), 120)
        assert parts(sim)[0].id != first
        assert not is_ended(sim.slurm.jobs[first + 1].states)  # type: ignore[index]

    play(tmp_path, scene)


@pytest.mark.parametrize("held", [True, False])
def test_where_slurm_takes_no_such_job_a_wish_for_it_is_refused_with_the_fix(
    tmp_path: Path, held: bool
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.version = 45 if held else 44
        sim.start()
        names = Mixed(sim, "g", 2).pods()
        await sim.until(lambda: condition(sim, names[0], "slinky.slurm.net/SlurmJob"), 30)
        said = condition(sim, names[0], "slinky.slurm.net/SlurmJob")["message"]
        assert "pods of 2 sizes" in said
        assert "slurmjob.slinky.slurm.net/sizes: most" in said
        assert not sim.slurm.jobs

    play(tmp_path, scene, jobIds="held" if held else "chosen")
