"""Gangs in trouble: who is replaced, who can't join, and how the job ends."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from bridge.core.model import SlurmNode, States
from tests.sim.accidents import kube
from tests.sim.simulation import Simulation
from tests.sim.test_gangs import Gang, all_run, gpus, live
from tests.sim.test_story import play, running
from tests.sim.test_vanished import condition, forget, node_of

JOB = "slinky.slurm.net/SlurmJob"


@pytest.mark.parametrize("index", [0, 1])
def test_a_gang_that_restarts_as_a_whole_ends_its_job_with_the_code_of_the_pod_that_failed(
    tmp_path: Path, index: int
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        names = Gang(sim, "g", 3, on_member_failure="restart-gang").pods()
        await sim.until(lambda: all_run(sim, names), 10)
        (job,) = live(sim)
        sim.kubelet.finish(names[index], 7)
        await sim.until(lambda: not live(sim), 30)
        ended = sim.slurm.jobs[job.id]
        assert ("FAILED" in ended.states, ended.exit_code) == (True, 7)

    play(tmp_path, scene)


@pytest.mark.parametrize("how", ["deleted", "failed"])
def test_a_gang_whose_lost_pod_was_replaced_and_all_of_whose_pods_end_well_completes(
    tmp_path: Path, how: str
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        gang = Gang(sim, "g", 3)
        names = gang.pods()
        await sim.until(lambda: all_run(sim, names), 10)
        (job,) = live(sim)
        sim.delete(names[0]) if how == "deleted" else sim.kubelet.finish(names[0], 7)
        await sim.settle(5)
        names[0] = gang.pod(0)
        await sim.until(lambda: all_run(sim, names), 30)
        for name in names:
            sim.kubelet.finish(name)
        await sim.until(lambda: not live(sim), 30)
        assert "COMPLETED" in sim.slurm.jobs[job.id].states

    play(tmp_path, scene)


@pytest.mark.parametrize("silent", [False, True], ids=["node works", "node is silent"])
def test_the_job_of_a_gang_outlives_pods_that_went_by_force_while_no_bridge_ran(
    tmp_path: Path, *, silent: bool
) -> None:
    """The last pod that is left ends: what the others had may still be in use."""

    async def scene(sim: Simulation) -> None:
        sim.start()
        names = Gang(sim, "g", 2, gpus=5).pods()
        await sim.until(lambda: all_run(sim, names), 10)
        (job,), node = live(sim), node_of(sim, names[1])
        await sim.crash()
        sim.delete(names[1], force=True)
        if silent:
            sim.set_ready(node, False)
        sim.start()
        await sim.settle(2)
        sim.kubelet.finish(names[0])
        await sim.settle(20)
        assert [one.id for one in live(sim)] == [job.id]
        await sim.until(lambda: not live(sim), 120)
        assert sim.slurm.nodes[node].drained is silent

    play(tmp_path, scene, nodes=2)


def test_a_waiting_gang_whose_pods_are_replaced_often_does_not_give_up(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        natives = [sim.slurm.native(gpus=8) for _ in range(3)]
        sim.start()
        gang = Gang(sim, "g", 2, gpus=5)
        names = gang.pods()
        for _ in range(22):
            await sim.until(lambda: live(sim), 130)
            sim.delete(names[1])
            await sim.settle(2)
            names[1] = gang.pod(1)
        await sim.settle(130)
        for job in natives:
            sim.slurm.end(job.id, "COMPLETED")
        await sim.until(lambda: all_run(sim, names), 130)

    play(tmp_path, scene)


@pytest.mark.parametrize("how", ["cordoned", "silent"])
def test_who_comes_for_a_lost_member_and_cannot_start_says_why(tmp_path: Path, how: str) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        gang = Gang(sim, "g", 2, gpus=5)
        names = gang.pods()
        await sim.until(lambda: all_run(sim, names), 10)
        node = node_of(sim, names[1])
        if how == "cordoned":
            sim.cordon(node, True)
            sim.kubelet.finish(names[1], 1)
        else:
            sim.set_ready(node, False)
            sim.delete(names[1], force=True)
        await sim.settle(5)
        new = gang.pod(1)
        await sim.settle(200)
        said = condition(sim, new, JOB)["message"]
        assert ("cordoned" if how == "cordoned" else "containers of lost ones may live") in said, said
        before = sum(sim.kube.writes.values())
        await sim.settle(600)
        assert sum(sim.kube.writes.values()) == before, "and says it once"

    play(tmp_path, scene)


def test_who_comes_for_a_lost_member_waits_for_its_place_in_a_job_that_is_suspended(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        gang = Gang(sim, "g", 2, gpus=5)
        names = gang.pods()
        await sim.until(lambda: all_run(sim, names), 10)
        (job,) = live(sim)
        sim.slurm.jobs[job.id] = dataclasses.replace(job, states=States({"SUSPENDED"}))
        sim.kubelet.finish(names[0], 1)
        await sim.settle(2)
        names[0] = gang.pod(0)
        await sim.settle(200)
        assert len(live(sim)) == 1, sim.picture()

    play(tmp_path, scene)


def test_a_gang_whose_lost_member_can_not_be_replaced_ends_at_its_time_limit_all_the_same(
    tmp_path: Path,
) -> None:
    """Nothing else happens that would have it looked at."""

    async def scene(sim: Simulation) -> None:
        sim.start()
        gang = Gang(sim, "g", 2, gpus=5, timelimit="10")
        names = gang.pods()
        await sim.until(lambda: all_run(sim, names), 10)
        (job,) = live(sim)
        sim.cordon(node_of(sim, names[1]), True)
        sim.kubelet.finish(names[1], 1)
        await sim.settle(5)
        gang.pod(1)
        await sim.settle(590)
        assert running(sim, names[0])
        await sim.settle(15)
        assert not running(sim, names[0])
        assert "TIMEOUT" not in sim.slurm.jobs[job.id].states

    play(tmp_path, scene)


def test_the_job_of_half_a_gang_is_not_ended_before_the_containers_of_the_other_half_are_dead(
    tmp_path: Path,
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        names = Gang(sim, "g", 2, gpus=5).pods()
        sim.kube.faults.plan(kube("403"), verb="bind", name=names[1], times=10_000)
        await sim.until(lambda: running(sim, names[0]), 20)
        await sim.settle(5)
        (job,) = live(sim)
        sim.delete(names[0], force=True)
        await sim.settle(20)
        assert "RUNNING" in sim.slurm.jobs[job.id].states, "its containers have 30 s"
        await sim.until(lambda: job.id not in {one.id for one in live(sim)}, 60)

    play(tmp_path, scene, dying=1.0)


@pytest.mark.parametrize("restarted", [False, True])
def test_who_comes_for_a_lost_member_while_the_job_is_lost_waits_for_its_place_in_the_gangs_next_one(
    tmp_path: Path, restarted: bool
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        gang = Gang(sim, "g", 2, gpus=5)
        names = gang.pods()
        await sim.until(lambda: all_run(sim, names), 10)
        (job,) = live(sim)
        node = SlurmNode(node_of(sim, names[0]))
        place = node_of(sim, names[1]), gpus(sim, names[1])
        whole = sim.slurm.nodes[node]
        sim.slurm.set_node(type(whole)(node, drained=True))
        forget(sim, job.id)
        sim.kubelet.finish(names[1], 1)
        await sim.settle(5)
        late = gang.pod(1)
        if restarted:
            await sim.crash()
            sim.start()
        await sim.settle(60)
        assert not [one for one in live(sim) if one.nodes], "it has begun beside its gang"
        assert "asked for again" in condition(sim, late, JOB)["message"]
        sim.slurm.set_node(whole)
        await sim.until(lambda: running(sim, late), 400)
        (again,) = live(sim)
        assert running(sim, names[0])
        assert (node_of(sim, late), gpus(sim, late)) == place
        assert set(again.nodes) == set(job.nodes)

    play(tmp_path, scene)


def test_who_runs_gets_its_place_back_though_that_of_a_lost_member_went_to_others(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        gang = Gang(sim, "g", 2, gpus=5)
        names = gang.pods()
        await sim.until(lambda: all_run(sim, names), 10)
        (job,) = live(sim)
        sim.kubelet.finish(names[1], 1)
        await sim.settle(5)
        await sim.crash()
        forget(sim, job.id)
        here = SlurmNode(node_of(sim, names[0]))
        whole = sim.slurm.nodes[here]
        sim.slurm.set_node(type(whole)(here, drained=True))
        natives = [sim.slurm.native(gpus=8) for _ in range(2)]  # the two other nodes are full
        sim.slurm.set_node(whole)
        late = gang.pod(1)
        sim.start()
        await sim.settle(300)
        assert running(sim, names[0])
        assert here in {node for one in live(sim) for node in one.nodes}
        assert not running(sim, late)
        sim.slurm.end(natives[0].id, "COMPLETED")
        await sim.until(lambda: running(sim, late), 100)

    play(tmp_path, scene, bootGrace=0.0)


def test_gangs_that_want_to_restart_do_so_however_many_at_once(tmp_path: Path) -> None:
    """Their own rule and pods that Kubernetes says are lost: the breaker has nothing to doubt."""

    async def scene(sim: Simulation) -> None:
        sim.start()
        gangs = [Gang(sim, f"g{i}", 2, gpus=0, on_member_failure="restart-gang").pods() for i in range(14)]
        await sim.until(lambda: all(all_run(sim, names) for names in gangs), 60)
        for lost, _ in gangs:
            sim.kubelet.finish(lost, 1)
        await sim.until(lambda: not any(running(sim, name) for _, name in gangs), 5)

    play(tmp_path, scene)


@pytest.mark.parametrize("first", ["size", "pods"])
def test_a_gang_that_is_made_larger_while_it_waits_starts_as_one_job_of_all(
    tmp_path: Path, first: str
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.held = True
        sim.start()
        gang = Gang(sim, "g", 2)
        names = gang.pods()
        await sim.until(lambda: live(sim), 10)
        (before,) = live(sim)

        def grow() -> None:
            sim.kube.storage.patch("jobs", "default", "g", {"spec": {"parallelism": 4, "completions": 4}})

        if first == "size":
            grow()
            await sim.until(lambda: not live(sim), 10)
            assert "2 of 4 are there" in condition(sim, names[0], JOB)["message"]
        names += [gang.pod(2), gang.pod(3)]
        if first == "pods":
            grow()
        await sim.until(lambda: live(sim) and live(sim)[0].id != before.id, 20)
        sim.slurm.held = False
        await sim.until(lambda: all_run(sim, names), 20)
        (job,) = live(sim)
        assert job.tasks == 4

    play(tmp_path, scene, fastPath=False)


def test_a_gang_beside_pods_of_its_job_that_run_already_is_not_taken_for_too_small(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        gang = Gang(sim, "g", 2)
        names = gang.pods()
        await sim.until(lambda: all_run(sim, names), 10)
        sim.slurm.held = True
        sim.kube.storage.patch("jobs", "default", "g", {"spec": {"parallelism": 3, "completions": 3}})
        late = gang.pod(2)
        await sim.until(lambda: len(live(sim)) == 2, 20)
        await sim.settle(30)
        jobs = {job.id for job in live(sim)}
        sim.slurm.held = False
        await sim.until(lambda: running(sim, late), 20)
        assert {job.id for job in live(sim)} == jobs

    play(tmp_path, scene, fastPath=False)


def test_who_comes_for_a_lost_member_of_a_gang_whose_job_has_ended_is_not_deleted_with_it(
    tmp_path: Path,
) -> None:
    """A NODE_FAIL counts after the grace only; meanwhile the job has no place for anybody."""

    async def scene(sim: Simulation) -> None:
        sim.start()
        gang = Gang(sim, "g", 2, gpus=0)
        names = gang.pods()
        await sim.until(lambda: all_run(sim, names), 10)
        (job,) = live(sim)
        sim.slurm.restart()
        await sim.settle(5)
        sim.kubelet.finish(names[1], 1)
        sim.slurm.end(job.id, "NODE_FAIL")
        await sim.settle(5)
        late = gang.pod(1)
        await sim.until(lambda: running(sim, late), 30)
        assert running(sim, names[0])
        await sim.until(lambda: not running(sim, names[0]), 400)
        assert running(sim, late)

    play(tmp_path, scene)
