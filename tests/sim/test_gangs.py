"""Pods that start together or not at all: the whole bridge in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bridge.core.model import is_ended
from bridge.names import (
    COMPLETION_INDEX,
    GPUS_ANNOTATION,
    NODE_ANNOTATION,
    OPTION_PREFIX,
    RANK_ANNOTATION,
)
from tests.sim.accidents import kube
from tests.sim.simulation import Simulation, mark_of
from tests.sim.test_story import play, running
from tests.sim.test_vanished import condition, forget, going, node_of

GANG = OPTION_PREFIX + "gang"


class Gang:
    """A Job that asks for a gang, and the pods that its controller would make."""

    def __init__(self, sim: Simulation, name: str, size: int, gpus: int = 2, **wishes: str) -> None:
        self._sim, self.name, self.size, self._gpus = sim, name, size, gpus
        notes = {GANG: "true"} | {OPTION_PREFIX + key.replace("_", "-"): text for key, text in wishes.items()}
        job = sim.kube.add(
            "jobs",
            {
                "metadata": {"name": name, "namespace": "default", "annotations": notes},
                "spec": {"parallelism": size, "completions": size},
            },
        )
        self._owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": name,
            "uid": job["metadata"]["uid"],
            "controller": True,
        }
        self.notes: dict[str, str] = {}  # annotations of its pods
        self._made = 0

    def pod(self, index: int, **meta: Any) -> str:
        """Makes the pod of that index, and returns its name."""
        self._made += 1
        name = f"{self.name}-{index}-{self._made}"
        notes = {COMPLETION_INDEX: str(index), **self.notes}
        self._sim.create(name, gpus=self._gpus, ownerReferences=[self._owner], annotations=notes, **meta)
        return name

    def pods(self) -> list[str]:
        return [self.pod(index) for index in range(self.size)]


def live(sim: Simulation) -> list[Any]:
    return [job for job in sim.slurm.jobs.values() if mark_of(job) is not None and not is_ended(job.states)]


def gpus(sim: Simulation, name: str) -> str:
    pod = sim.pod(name)
    assert pod is not None
    return str(pod["metadata"]["annotations"][GPUS_ANNOTATION])


def all_run(sim: Simulation, names: Sequence[str]) -> bool:
    return all(running(sim, name) for name in names)


def test_nothing_is_asked_of_slurm_before_all_pods_are_there_and_then_one_job(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        gang = Gang(sim, "g", 3, gpus=3)
        names = [gang.pod(0), gang.pod(1)]
        await sim.settle(30)
        assert not sim.slurm.jobs
        for name in names:
            assert "2 of 3 are there" in condition(sim, name, "slinky.slurm.net/SlurmJob")["message"]
        names.append(gang.pod(2))
        await sim.until(lambda: all_run(sim, names), 10)
        (job,) = live(sim)
        assert job.name == "g"
        assert [(node_of(sim, n), gpus(sim, n)) for n in names] == [
            ("n1", "0-2"),
            ("n1", "3-5"),
            ("n2", "0-2"),
        ]
        assert list(sim.slurm.jobs.values()) == [job]

    play(tmp_path, scene)


def test_the_job_ends_when_the_last_pod_has_and_with_the_worst_code(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        names = Gang(sim, "g", 2).pods()
        await sim.until(lambda: all_run(sim, names), 10)
        (job,) = live(sim)
        sim.kubelet.finish(names[1], 3)
        await sim.settle(30)
        assert live(sim) == [job]
        sim.kubelet.finish(names[0], 0)
        await sim.until(lambda: not live(sim), 10)
        assert sim.slurm.jobs[job.id].exit_code == 3

    play(tmp_path, scene)


def test_a_member_that_goes_while_the_gang_waits_is_replaced_in_the_next_job(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.held = True
        sim.start()
        gang = Gang(sim, "g", 2)
        names = gang.pods()
        await sim.until(lambda: live(sim), 10)
        (first,) = live(sim)
        sim.delete(names[1])
        await sim.until(lambda: not live(sim), 10)
        await sim.settle(20)
        assert not live(sim)
        names[1] = gang.pod(1)
        await sim.until(lambda: live(sim), 10)
        (second,) = live(sim)
        assert second.id != first.id
        sim.slurm.held = False
        await sim.until(lambda: all_run(sim, names), 10)

    play(tmp_path, scene)


def test_members_that_are_replaced_while_the_gang_waits_are_no_lost_grants(tmp_path: Path) -> None:
    """Of those it has a number, and each is waited for longer."""

    async def scene(sim: Simulation) -> None:
        sim.slurm.held = True
        sim.start()
        gang = Gang(sim, "g", 2)
        names = gang.pods()
        for _ in range(25):
            await sim.until(lambda: live(sim), 5)
            sim.delete(names[1])
            await sim.until(lambda: not live(sim), 5)
            names[1] = gang.pod(1)
        sim.slurm.held = False
        await sim.until(lambda: all_run(sim, names), 10)

    play(tmp_path, scene)


def test_who_comes_for_a_lost_member_gets_its_place_in_the_job_that_runs(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        gang = Gang(sim, "g", 4)
        names = gang.pods()
        await sim.until(lambda: all_run(sim, names), 10)
        (job,) = live(sim)
        place = node_of(sim, names[1]), gpus(sim, names[1])
        sim.kubelet.finish(names[1], 1)
        await sim.settle(5)
        names[1] = gang.pod(1)
        await sim.until(lambda: all_run(sim, names), 10)
        assert (node_of(sim, names[1]), gpus(sim, names[1])) == place
        assert [one.id for one in live(sim)] == [job.id]

    play(tmp_path, scene)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("gpus", [0, 2])
def test_those_that_come_for_several_lost_members_get_each_its_rank_whoever_comes_first(
    tmp_path: Path, gpus: int, restarted: bool
) -> None:
    async def scene(sim: Simulation) -> None:
        def told() -> list[tuple[str, ...]]:
            keys = (NODE_ANNOTATION, GPUS_ANNOTATION, RANK_ANNOTATION)
            notes = ((sim.pod(name) or {})["metadata"]["annotations"] for name in names)
            return [tuple(one.get(key, "") for key in keys) for one in notes]

        sim.start()
        gang = Gang(sim, "g", 4, gpus=gpus)
        gang.notes = {OPTION_PREFIX + "inject-env": "true"}
        names = gang.pods()
        await sim.until(lambda: all_run(sim, names), 10)
        before = told()
        assert [rank for *_, rank in before] == ["0", "1", "2", "3"]
        for first, last in ((2, 1), (3, 0)):
            for index in (first, last):
                sim.kubelet.finish(names[index], 1)
            await sim.settle(5)
            if restarted:
                await sim.crash()
                for index in (first, last):
                    sim.delete(names[index], force=True)
                sim.start()
            for index in (first, last):
                names[index] = gang.pod(index)
                await sim.settle(60)
            await sim.until(lambda: all_run(sim, names), 100)
            assert told() == before

    play(tmp_path, scene)


def test_a_gang_that_wants_it_restarts_as_a_whole(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        gang = Gang(sim, "g", 3, on_member_failure="restart-gang")
        names = gang.pods()
        await sim.until(lambda: all_run(sim, names), 10)
        (job,) = live(sim)
        sim.kubelet.finish(names[0], 1)
        await sim.until(lambda: all(going(sim, n) for n in names[1:]), 10)
        again = gang.pods()
        await sim.until(lambda: all_run(sim, again), 30)
        (other,) = live(sim)
        assert other.id != job.id

    play(tmp_path, scene)


def test_two_gangs_that_need_more_than_half_each_run_one_after_the_other(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        one, two = Gang(sim, "a", 5, gpus=3), Gang(sim, "b", 5, gpus=3)  # 3 nodes: six such pods at most
        names: dict[str, list[str]] = {"a": [], "b": []}
        for index in range(5):
            names["a"].append(one.pod(index))
            names["b"].append(two.pod(index))
        await sim.until(lambda: all_run(sim, names["a"]) or all_run(sim, names["b"]), 10)
        first, second = ("a", "b") if all_run(sim, names["a"]) else ("b", "a")
        await sim.settle(60)
        assert not any(node for n in names[second] if (node := (sim.pod(n) or {})["spec"].get("nodeName")))
        for name in names[first]:
            sim.kubelet.finish(name)
        await sim.until(lambda: all_run(sim, names[second]), 30)

    play(tmp_path, scene)


@pytest.mark.parametrize("lost", [False, True], ids=["there", "forgotten"])
def test_a_bridge_that_starts_anew_knows_its_gangs(tmp_path: Path, lost: bool) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        gang = Gang(sim, "g", 4)
        names = gang.pods()
        await sim.until(lambda: all_run(sim, names), 10)
        (job,) = live(sim)
        places = [(node_of(sim, n), gpus(sim, n)) for n in names]
        await sim.crash()
        if lost:
            forget(sim, job.id)
        sim.start()
        await sim.until(lambda: live(sim), 30)
        await sim.settle(60)
        (again,) = live(sim)
        assert [(node_of(sim, n), gpus(sim, n)) for n in names] == places
        assert (again.id == job.id) or lost
        assert all_run(sim, names)
        for name in names:
            sim.kubelet.finish(name)
        await sim.until(lambda: not live(sim), 10)

    play(tmp_path, scene)


def test_a_cancelled_job_takes_all_its_pods_along(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.held = True
        sim.start()
        names = Gang(sim, "g", 3).pods()
        await sim.until(lambda: live(sim), 10)
        await sim.settle(2)
        sim.slurm.end(live(sim)[0].id, "CANCELLED")
        await sim.until(lambda: all(sim.pod(n) is None for n in names), 10)

    play(tmp_path, scene)


@pytest.mark.parametrize("there", [True, False], ids=["unseen", "gone"])
def test_a_pod_whose_job_no_watch_has_shown_does_not_start_alone_before_it_is_known_to_be_gone(
    tmp_path: Path, there: bool
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        await sim.settle(1)
        sim.kube.drop_events("jobs")
        gang = Gang(sim, "g", 2)
        names = [gang.pod(0)]
        if not there:
            sim.kube.storage.delete("jobs", "default", "g", {})
        await sim.settle(30)
        assert bool(sim.slurm.jobs) is not there
        names.append(gang.pod(1))
        await sim.until(lambda: all_run(sim, names), 30)
        assert len(live(sim)) == (1 if there else 2)

    play(tmp_path, scene)


def test_the_end_of_a_job_costs_those_nothing_that_were_not_on_a_node_yet(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        gang = Gang(sim, "g", 2, gpus=5)
        names = gang.pods()
        sim.kube.faults.plan(kube("403"), verb="bind", name=names[1], times=20)
        await sim.until(lambda: running(sim, names[0]), 20)
        sim.slurm.end(live(sim)[0].id, "TIMEOUT")
        await sim.until(lambda: going(sim, names[0]), 10)
        assert not going(sim, names[1])
        names[0] = gang.pod(0)
        await sim.until(lambda: all_run(sim, names), 60)
        assert len(live(sim)) == 1

    play(tmp_path, scene)
