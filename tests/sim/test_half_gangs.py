"""Gangs of which only some pods got their nodes: how long that lasts, what is said, and what comes next."""

from __future__ import annotations

from pathlib import Path

from bridge.core.attempt import parse
from bridge.core.model import is_ended
from bridge.names import ATTEMPT_ANNOTATION
from tests.sim.accidents import kube
from tests.sim.simulation import Simulation
from tests.sim.test_gangs import Gang, all_run, live
from tests.sim.test_story import play, running
from tests.sim.test_vanished import condition, forget, going, node_of

JOB = "slinky.slurm.net/SlurmJob"


def test_half_a_gang_holds_its_nodes_no_longer_than_gang_timeout(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        names = Gang(sim, "g", 2, gpus=5, gang_timeout="120").pods()
        sim.kube.faults.plan(kube("403"), verb="bind", name=names[1], times=10_000)
        await sim.until(lambda: running(sim, names[0]), 20)
        await sim.settle(100)
        assert running(sim, names[0])
        assert not running(sim, names[1])
        await sim.until(lambda: going(sim, names[0]), 60)
        await sim.settle(60)
        assert not live(sim), "nothing is held for it"
        assert not going(sim, names[1]), "who had nothing of the job waits for the next"

    play(tmp_path, scene)


def test_half_a_gang_begins_anew_without_the_node_that_was_not_given_and_says_why_meanwhile(
    tmp_path: Path,
) -> None:
    """Slurm would give them the same nodes again, for ever."""

    async def scene(sim: Simulation) -> None:
        sim.start()
        gang = Gang(sim, "g", 2, gpus=5, gang_timeout="120")
        names = gang.pods()
        sim.scheduler.full.add("n2")
        await sim.until(lambda: running(sim, names[0]), 20)
        await sim.settle(25)
        shown = condition(sim, names[1], JOB)
        assert (shown["status"], "not bound there: kube-scheduler says: no node" in shown["message"]) == (
            "False",
            True,
        )
        before = sum(sim.kube.writes.values())
        await sim.settle(80)
        assert sum(sim.kube.writes.values()) == before, "and says it once"
        await sim.until(lambda: not running(sim, names[0]), 60)
        assert "grant given back" in condition(sim, names[1], JOB)["message"]
        names[0] = gang.pod(0)
        await sim.until(lambda: all_run(sim, names), 60)
        assert {node_of(sim, name) for name in names} == {"n1", "n3"}
        found = parse((sim.pod(names[1]) or {})["metadata"]["annotations"][ATTEMPT_ANNOTATION])
        assert (found.lost, found.excluded) == (1, ("n2",)), "it counts towards maxAttempts"
        assert condition(sim, names[1], JOB)["status"] == "True"

    play(tmp_path, scene, nodes=3)


def test_a_gang_that_its_controller_makes_anew_as_a_whole_avoids_the_node_that_it_did_not_get(
    tmp_path: Path,
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        gang = Gang(sim, "g", 2, gpus=5, gang_timeout="60")
        names = gang.pods()
        sim.scheduler.full.add("n2")
        await sim.until(lambda: running(sim, names[0]), 20)
        await sim.until(lambda: not running(sim, names[0]), 90)
        sim.delete(names[1])
        await sim.settle(5)
        names = gang.pods()
        await sim.until(lambda: all_run(sim, names), 30)
        assert {node_of(sim, name) for name in names} == {"n1", "n3"}

    play(tmp_path, scene, nodes=3)


def test_half_a_gang_whose_job_vanishes_begins_anew_as_one(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        names = Gang(sim, "g", 2, gpus=5, gang_timeout="120").pods()
        sim.kube.faults.plan(kube("403"), verb="bind", name=names[1], times=10_000)
        await sim.until(lambda: running(sim, names[0]), 20)
        await sim.settle(5)
        forget(sim, live(sim)[0].id)
        await sim.settle(400)
        assert not running(sim, names[0]), "half a gang still runs: " + sim.picture()
        assert not [job for job in live(sim) if not is_ended(job.states)]

    play(tmp_path, scene)
