"""A time limit that is changed in Slurm while the pod runs: the pod follows, and ends before Slurm ends its job."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bridge import names
from bridge.core.model import SlurmNode
from tests.sim.simulation import Simulation
from tests.sim.test_story import play, running
from tests.sim.test_vanished import forget, node_of
from tests.worlds.slurm_faults import Fault, Kind

LIMIT = "slurmjob.slinky.slurm.net/timelimit"


def change(sim: Simulation, minutes: int) -> None:
    """What `scontrol update JobId=… TimeLimit=…` does: no state shows it."""
    job = sim.slurm.jobs[sim.job_of("p")]
    sim.slurm.jobs[job.id] = replace(job, time_limit=minutes, ended=job.started + minutes * 60)


def test_a_longer_limit_counts_at_once(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        sim.create("p", annotations={LIMIT: "2"})
        await sim.until(lambda: running(sim, "p"), 5.0)
        change(sim, 60)
        await sim.settle(1200.0)
        assert running(sim, "p")

    play(tmp_path, scene)


def test_a_shorter_limit_ends_the_pod_before_slurm_ends_its_job(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        uid = sim.create("p", annotations={LIMIT: "60"})
        await sim.until(lambda: running(sim, "p"), 5.0)
        change(sim, 20)
        await sim.until(lambda: sim.pod("p") is None, 1300.0)
        assert all("TIMEOUT" not in job.states for job in sim.jobs_of(uid, live=False))

    play(tmp_path, scene)


def test_a_limit_that_just_fits_the_partition_is_sent_as_it_allows_and_the_pod_ends_earlier(
    tmp_path: Path,
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.longest = 20
        sim.start()
        await sim.settle(1.0)
        uid = sim.create("p", annotations={LIMIT: "20"})
        await sim.until(lambda: running(sim, "p"), 5.0)
        assert sim.slurm.jobs[sim.job_of("p")].time_limit == 20
        await sim.until(lambda: sim.pod("p") is None, 1300.0)
        assert all("TIMEOUT" not in job.states for job in sim.jobs_of(uid, live=False))

    play(tmp_path, scene)


def test_a_pod_without_a_limit_ends_before_the_one_that_its_partition_gave_its_job(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.longest = 20
        sim.start()
        uid = sim.create("p")
        await sim.until(lambda: running(sim, "p"), 5.0)
        await sim.until(lambda: sim.pod("p") is None, 1300.0)
        assert all("TIMEOUT" not in job.states for job in sim.jobs_of(uid, live=False))

    play(tmp_path, scene)


@pytest.mark.parametrize("refused", [False, True])
def test_a_limit_that_just_fits_the_qos_is_what_the_job_gets_and_the_pod_tells_that_it_ends_earlier(
    tmp_path: Path, refused: bool
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.max_wall, sim.slurm.deny_on_limit = 20, refused
        sim.start()
        uid = sim.create("p", annotations={LIMIT: "20"})
        await sim.until(lambda: running(sim, "p"), 15.0)
        job = sim.slurm.jobs[sim.job_of("p")]
        assert job.time_limit == 20
        await sim.until(lambda: "no more than 20 min" in told(sim), 70.0)
        await sim.crash()
        sim.start()
        await sim.until(lambda: sim.pod("p") is None, 1200.0)
        assert job.started + 1100.0 < sim.slurm.clock() < job.started + 1200.0
        assert all("TIMEOUT" not in job.states for job in sim.jobs_of(uid, live=False))

    play(tmp_path, scene)


@pytest.mark.parametrize("refused", [False, True])
def test_a_limit_that_no_qos_allows_is_left_to_slurms_own_words(tmp_path: Path, refused: bool) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.max_wall, sim.slurm.deny_on_limit = 19, refused
        sim.start()
        uid = sim.create("p", annotations={LIMIT: "20"})
        says = "2050" if refused else "QOSMaxWall"
        await sim.until(lambda: says in told(sim), 70.0)
        asked = sim.slurm.count("POST job/submit")
        await sim.settle(300.0)
        assert sim.slurm.count("POST job/submit") <= asked + (2 * 10 + 2 if refused else 0), "twice in 30 s"
        assert sim.slurm.count("POST job/{id}") == 0, (
            "an administrator's word would free the job from the limit"
        )
        assert len(sim.jobs_of(uid)) == (0 if refused else 1)
        sim.slurm.max_wall = 22  # with grace and margin
        sim.slurm.native()  # slurmctld looks at what waits
        await sim.until(lambda: running(sim, "p"), 70.0)

    play(tmp_path, scene)


@pytest.mark.parametrize("extended", [False, True])
def test_a_job_that_slurmctld_loses_goes_on_with_the_rest_of_its_limit(
    tmp_path: Path, extended: bool
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        sim.create("p", annotations={LIMIT: "30"})
        await sim.until(lambda: running(sim, "p"), 5.0)
        if extended:
            change(sim, 92)  # an administrator, who knows nothing of grace and margin
        await sim.settle(20 * 60.0)
        forget(sim, sim.job_of("p"))
        await sim.settle(9 * 60.0)
        assert running(sim, "p")
        await sim.settle(3 * 60.0)
        assert running(sim, "p") is extended
        await sim.settle(55 * 60.0)
        assert running(sim, "p") is extended
        await sim.settle(6 * 60.0)
        assert not running(sim, "p")

    play(tmp_path, scene)


def test_a_pod_whose_claims_are_refused_ends_at_its_limit_all_the_same(tmp_path: Path) -> None:
    """Each leaves a record under the id that it asked for, the first under that of the job that vanished."""

    async def scene(sim: Simulation) -> None:
        sim.start()
        sim.create("p", annotations={LIMIT: "10"})
        await sim.until(lambda: running(sim, "p"), 5.0)
        whole = sim.slurm.nodes[SlurmNode("n1")]
        sim.slurm.set_node(replace(whole, drained=True))
        forget(sim, sim.job_of("p"))
        await sim.settle(9 * 60.0)
        assert running(sim, "p")
        await sim.until(lambda: not running(sim, "p"), 4 * 60.0)

    play(tmp_path, scene, nodes=1)


def test_a_pod_with_a_short_limit_goes_elsewhere_when_the_gpus_that_it_was_granted_do_not_come_free(
    tmp_path: Path,
) -> None:
    """Its grants end before `deviceWait`, and Slurm would give it the same node again and again."""

    async def scene(sim: Simulation) -> None:
        sim.start()
        sim.create("lingers", gpus=8, grace=1800)
        await sim.until(lambda: running(sim, "lingers"), 5.0)
        sim.slurm.end(sim.job_of("lingers"), "CANCELLED")
        await sim.settle(2.0)
        sim.create("p", gpus=1, annotations={LIMIT: "1"})
        await sim.until(lambda: running(sim, "p"), 180.0)
        assert sim.pod("lingers") is not None

    play(tmp_path, scene, dying=1.0)


def test_a_pod_whose_job_ran_without_it_while_no_bridge_was_there_gets_its_whole_time(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        before = sim.slurm.native(gpus=8)
        sim.start()
        uid = sim.create("p", gpus=8, annotations={LIMIT: "10"})
        await sim.until(lambda: bool(sim.jobs_of(uid)), 10.0)
        await sim.settle(5.0)
        await sim.crash()
        sim.slurm.end(before.id, "CANCELLED")
        await sim.settle(200.0)
        sim.start()
        await sim.until(lambda: running(sim, "p"), 30.0)
        await sim.settle(590.0)
        assert running(sim, "p")
        await sim.settle(30.0)
        assert not running(sim, "p")

    play(tmp_path, scene, nodes=1)


def a_day_ahead(body: bytes) -> bytes:
    told = json.loads(body)
    told["slurm_conf_meta"]["LastUpdate"] += 86400
    return json.dumps(told).encode()


@pytest.mark.parametrize("restarted", [False, True])
def test_a_clock_of_slurmctld_that_jumps_ahead_for_half_a_minute_ends_nobody(
    tmp_path: Path, restarted: bool
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        names = [f"p{i}" for i in range(20)]
        for name in names:
            sim.create(name, gpus=1, annotations={LIMIT: "600"})
        await sim.until(lambda: all(running(sim, name) for name in names), 30.0)
        await sim.settle(60.0)
        sim.slurm.faults.add(Fault(pattern="GET conf", kind=Kind.EDIT, edit=a_day_ahead, times=30))
        if restarted:
            await sim.crash()
            sim.start()
        await sim.settle(120.0)
        assert all(running(sim, name) for name in names)

    play(tmp_path, scene)


@pytest.mark.parametrize("seconds", [-86400.0, 86400.0])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_clock_of_the_bridges_machine_that_jumps_moves_no_limit(
    tmp_path: Path, seconds: float, restarted: bool
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        sim.create("p", annotations={LIMIT: "10"})
        await sim.until(lambda: running(sim, "p"), 5.0)
        sim.jump = seconds
        if restarted:
            await sim.crash()
            sim.start()
        await sim.settle(9 * 60.0)
        assert running(sim, "p")
        await sim.until(lambda: not running(sim, "p"), 2 * 60.0)

    play(tmp_path, scene)


@pytest.mark.parametrize(
    ("way", "opens"),
    [
        ("at once or not at all", False),
        *((way, opens) for way in ("as another user", "numbered by Slurm") for opens in (False, True)),
    ],
)
def test_a_pod_that_waits_for_its_lost_place_ends_at_its_time_limit(
    tmp_path: Path, way: str, opens: bool
) -> None:
    async def scene(sim: Simulation) -> None:
        user = {"slurmjob.slinky.slurm.net/user-id": "bob"} if way == "as another user" else {}
        sim.slurm.asker = "alice" if way == "numbered by Slurm" else "slurm"
        sim.start()
        sim.create("p", annotations={LIMIT: "30"} | user)
        await sim.until(lambda: running(sim, "p"), 5.0)
        await sim.settle(10 * 60.0)
        whole = sim.slurm.nodes[SlurmNode(node_of(sim, "p"))]
        sim.slurm.set_node(type(whole)(whole.name, drained=True))
        forget(sim, sim.job_of("p"))
        await sim.settle(14 * 60.0)
        if opens:
            sim.slurm.set_node(whole)
        await sim.settle(5 * 60.0)
        assert running(sim, "p")
        assert bool(sim.slurm.jobs[sim.job_of("p")].nodes) is opens
        await sim.until(lambda: sim.pod("p") is None, 3 * 60.0)

    play(tmp_path, scene, jobIds="held" if way == "numbered by Slurm" else "chosen")


def told(sim: Simulation) -> str:
    conditions = (sim.pod("p") or {}).get("status", {}).get("conditions", [])
    return next((str(c["message"]) for c in conditions if c["type"] == names.JOB_CONDITION), "")
