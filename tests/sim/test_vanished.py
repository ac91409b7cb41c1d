"""Jobs that vanish from Slurm, nodes that die, preemption with notice: the whole bridge in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bridge.core.model import JobId, SlurmNode, is_ended
from tests.sim.accidents import kube
from tests.sim.simulation import Simulation
from tests.sim.test_story import play, running
from tests.worlds.slurm_faults import Fault, Kind


def node_of(sim: Simulation, name: str) -> str:
    pod = sim.pod(name)
    assert pod is not None
    return str(pod["spec"]["nodeName"])


def condition(sim: Simulation, name: str, kind: str) -> dict[str, Any]:
    pod = sim.pod(name)
    assert pod is not None
    found = [c for c in pod["status"].get("conditions", []) if c["type"] == kind]
    return dict(found[0]) if found else {}


def going(sim: Simulation, name: str) -> bool:
    """Deleted, or gone already."""
    pod = sim.pod(name)
    return pod is None or bool(pod["metadata"].get("deletionTimestamp"))


async def alone(sim: Simulation, name: str = "p", gpus: int = 2) -> tuple[str, str]:
    """A running pod: its UID and its node."""
    uid = sim.create(name, gpus=gpus)
    await sim.until(lambda: running(sim, name), 5.0)
    return uid, node_of(sim, name)


def forget(sim: Simulation, *jobs: JobId) -> None:
    """slurmctld comes up without them."""
    sim.slurm.restart()
    for job in jobs:
        sim.slurm.lose(job)


def test_a_forgotten_job_is_back_on_its_node_within_seconds_under_its_own_id(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        pods = {f"p{i}": (await alone(sim, f"p{i}", gpus=1)) for i in range(4)}
        jobs = {name: sim.job_of(name) for name in pods}
        forget(sim, *jobs.values())
        await sim.until(lambda: all(sim.jobs_of(uid) for uid, _ in pods.values()), 10.0)
        for name, (uid, node) in pods.items():
            assert running(sim, name)
            (job,) = sim.jobs_of(uid)
            assert (job.id, job.nodes) == (jobs[name], (node,))
        writes = dict(sim.kube.writes)
        await sim.settle(100.0)
        assert sum(sim.kube.writes.values()) - sum(writes.values()) <= len(pods), "at most a condition each"

    play(tmp_path, scene)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_pod_whose_place_went_to_others_runs_on_until_slurm_has_said_so_three_times(
    tmp_path: Path, restarted: bool
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        await alone(sim, gpus=8)
        await sim.crash()
        forget(sim, sim.job_of("p"))
        native = sim.slurm.native(gpus=8)
        sim.start()
        await sim.settle(25.0)
        assert running(sim, "p")
        if restarted:
            await sim.crash()
            sim.start()
            await sim.settle(25.0)
            assert running(sim, "p"), "a restarted bridge asks anew"
        await sim.until(lambda: sim.pod("p") is None, 120.0)
        assert not is_ended(sim.slurm.jobs[native.id].states)

    play(tmp_path, scene, nodes=1, bootGrace=0.0)


def test_a_pod_whose_node_is_drained_in_slurm_is_kept_and_gets_its_place_back(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        uid, node = await alone(sim)
        whole = sim.slurm.nodes[SlurmNode(node)]
        sim.slurm.set_node(type(whole)(node, drained=True))
        forget(sim, sim.job_of("p"))
        await sim.settle(200.0)
        assert running(sim, "p")
        sim.slurm.set_node(whole)
        await sim.until(lambda: sim.jobs_of(uid), 400.0)
        assert sim.jobs_of(uid)[0].nodes == (node,)

    play(tmp_path, scene)


@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize("held", [False, True])
def test_a_lost_place_that_went_to_a_waiting_pod_of_ours_comes_back_before_a_native_job_gets_it(
    tmp_path: Path, held: bool, down: bool
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.asker = "alice" if held else "slurm"
        sim.start()
        await alone(sim, gpus=8)
        waiting = sim.create("waiting", gpus=8)
        await sim.until(lambda: sim.jobs_of(waiting), 10.0)
        sim.slurm.native(gpus=8)
        await sim.settle(3.0)
        if down:
            await sim.crash()
        forget(sim, sim.job_of("p"))
        if down:
            sim.start()
        await sim.settle(600.0)
        assert running(sim, "p")

    play(tmp_path, scene, nodes=1, jobIds="held" if held else "chosen")


def test_what_slurm_said_of_a_place_is_forgotten_when_it_came_back_though_the_answer_was_lost(
    tmp_path: Path,
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        uid, _ = await alone(sim, gpus=8)
        await sim.crash()
        forget(sim, sim.job_of("p"))
        native = sim.slurm.native(gpus=8)
        sim.start()
        await sim.settle(190.0)  # at least three refusals
        sim.slurm.end(native.id, "COMPLETED")
        sim.slurm.faults.add(Fault(pattern="POST job/allocate", kind=Kind.DROP_AFTER, times=1))
        await sim.until(lambda: sim.jobs_of(uid), 130.0)
        await sim.settle(50.0)
        sim.slurm.lose(sim.jobs_of(uid)[0].id)
        sim.slurm.native(gpus=8)
        await sim.settle(25.0)
        assert running(sim, "p"), "asked for anew: it was refused twice"

    play(tmp_path, scene, nodes=1, bootGrace=200.0)


def test_a_deleted_pod_on_a_dead_node_frees_its_job_only_after_the_node_is_drained(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        uid, node = await alone(sim)
        sim.set_ready(node, False)
        sim.delete("p")
        await sim.settle(25.0)
        assert sim.jobs_of(uid), "its grace and the margin are not over"
        assert not sim.slurm.nodes[SlurmNode(node)].drained
        await sim.until(lambda: not sim.jobs_of(uid), 120.0)
        assert sim.slurm.nodes[SlurmNode(node)].reason.startswith("slurm-bridge: ")

    play(tmp_path, scene)


def test_a_preempted_pod_gets_its_signal_well_inside_the_grace_time(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.grace_time = 60
        sim.start()
        await alone(sim, gpus=8)
        await sim.settle(100.0)
        sim.slurm.native(gpus=8)  # it waits for the pod's node
        job = sim.job_of("p")
        sim.slurm.preempt_at(job, sim.wall())
        await sim.until(lambda: condition(sim, "p", "DisruptionTarget"), 20.0)
        assert condition(sim, "p", "DisruptionTarget")["reason"] == "SlurmPreempting"
        await sim.until(lambda: going(sim, "p"), 1.0)
        assert not is_ended(sim.slurm.jobs[job].states), "Slurm itself has not ended it yet"

    play(tmp_path, scene, nodes=1)


@pytest.mark.parametrize("partitions", [0, 600], ids=["", "whatever the partition leaves"])
def test_so_does_one_whose_qos_leaves_the_time(tmp_path: Path, partitions: int) -> None:
    """preempt/qos asks the job's QOS only."""

    async def scene(sim: Simulation) -> None:
        sim.slurm.grace_time, sim.slurm.preempts = partitions, "preempt/qos"
        sim.slurm.books.open = True
        sim.slurm.books.graces["normal"] = 60
        sim.start()
        await alone(sim, gpus=8)
        await sim.settle(100.0)
        sim.slurm.native(gpus=8)
        job = sim.job_of("p")
        await sim.settle(30.0)
        sim.slurm.preempt_at(job, sim.wall())
        await sim.until(lambda: condition(sim, "p", "DisruptionTarget"), 20.0)
        assert condition(sim, "p", "DisruptionTarget")["reason"] == "SlurmPreempting"
        assert sim.slurm.count("GET slurmdb/qos/") == 1, "every five minutes"

    play(tmp_path, scene, nodes=1)


@pytest.mark.parametrize("preempts", ["preempt/qos", "preempt/partition_prio"])
def test_where_the_qos_counts_and_cannot_be_read_readyz_says_what_to_set(
    tmp_path: Path, preempts: str
) -> None:
    async def scene(sim: Simulation) -> str:
        sim.slurm.preempts = preempts
        sim.start()
        await alone(sim, gpus=8)
        await sim.settle(30.0)
        return "; ".join(sim.notes())

    async def unset(sim: Simulation) -> None:
        assert ("set preemptionGrace" in await scene(sim)) is (preempts == "preempt/qos")

    async def given(sim: Simulation) -> None:
        assert "preemptionGrace" not in await scene(sim)

    (tmp_path / "given").mkdir()
    play(tmp_path, unset)
    play(tmp_path / "given", given, preemptionGrace=60.0)


def test_on_an_api_server_that_takes_seconds_for_a_write_a_pod_still_goes_with_its_job(
    tmp_path: Path,
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        await alone(sim)
        sim.kube.latency = 1.5
        sim.slurm.end(sim.job_of("p"), "CANCELLED")
        await sim.until(lambda: going(sim, "p"), 20.0)

    play(tmp_path, scene, nodes=1)


def test_running_jobs_are_read_again_only_where_preemption_gives_notice_and_somebody_waits(
    tmp_path: Path,
) -> None:
    async def scene(sim: Simulation, grace: int, crowded: bool) -> int:
        sim.slurm.grace_time = grace
        sim.start()
        await alone(sim, gpus=8)
        if crowded:
            sim.slurm.native(gpus=8)
        await sim.settle(70.0)
        before = sim.slurm.count("GET job/{id}")
        await sim.settle(100.0)
        return sim.slurm.count("GET job/{id}") - before

    async def quiet(sim: Simulation) -> None:
        assert await scene(sim, 60, crowded=False) == 0

    async def without(sim: Simulation) -> None:
        assert await scene(sim, 0, crowded=True) == 0

    async def watched(sim: Simulation) -> None:
        assert 5 <= await scene(sim, 60, crowded=True) <= 10

    for number, each in enumerate((quiet, without, watched)):
        (tmp_path / str(number)).mkdir()
        play(tmp_path / str(number), each, nodes=1)


def test_an_orphan_on_a_dead_node_is_ended_only_after_the_node_is_drained(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        uid, node = await alone(sim)
        await sim.crash()
        sim.set_ready(node, False)
        sim.delete("p", force=True)
        sim.start()
        await sim.settle(20.0)
        assert sim.jobs_of(uid), "its grace and the margin are not over"
        await sim.until(lambda: not sim.jobs_of(uid), 120.0)
        assert sim.slurm.nodes[SlurmNode(node)].reason.startswith("slurm-bridge: ")

    play(tmp_path, scene)


def test_a_pod_that_lists_deny_costs_neither_its_job_nor_its_node(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        uid, node = await alone(sim)
        await sim.crash()
        sim.set_ready(node, False)
        sim.kube.faults.plan(kube("empty-list"), verb="list", resource="pods", times=1000)
        sim.start()
        await sim.settle(300.0)
        assert sim.jobs_of(uid)
        assert not sim.slurm.nodes[SlurmNode(node)].drained

    play(tmp_path, scene)


def test_a_node_that_failed_right_after_a_boot_costs_its_pod_only_when_the_grace_is_over(
    tmp_path: Path,
) -> None:
    """The first poll under the new boot shows NODE_FAIL already, and no poll has failed in between."""

    async def scene(sim: Simulation) -> None:
        sim.start()
        await alone(sim)
        await sim.settle(5.0)
        sim.slurm.restart()
        sim.slurm.end(sim.job_of("p"), "NODE_FAIL")
        await sim.settle(25.0)
        assert running(sim, "p")
        await sim.until(lambda: going(sim, "p"), 10.0)

    play(tmp_path, scene, bootGrace=30.0)


def test_an_end_that_slurmctld_loses_in_a_crash_is_told_again_as_it_was(tmp_path: Path) -> None:
    """The pod is gone by then, and nobody else knows how it ended."""

    async def scene(sim: Simulation) -> None:
        sim.start()
        await alone(sim)
        job = sim.job_of("p")
        await sim.settle(20.0)
        sim.kubelet.finish("p", 3)
        await sim.until(lambda: is_ended(sim.slurm.jobs[job].states), 20.0)
        sim.delete("p", force=True)
        await sim.settle(1.0)
        sim.slurm.crash(5.0)
        await sim.settle(5.0)
        assert not is_ended(sim.slurm.jobs[job].states)
        await sim.until(lambda: is_ended(sim.slurm.jobs[job].states), 30.0)
        ended = sim.slurm.jobs[job]
        assert ("FAILED" in ended.states, ended.exit_code) == (True, 3)

    play(tmp_path, scene)


NOBODY = b'{"jobs": [], "errors": [], "warnings": [], "meta": {}}'
NONE_SUCH = (
    b'{"errors": [{"error_number": 2017, "error": "Invalid job id specified"}], "warnings": [], "meta": {}}'
)


@pytest.mark.parametrize("lies", ["the list", "the job", "both"])
@pytest.mark.parametrize("code", [0, 3, None], ids=["succeeded", "failed", "deleted"])
def test_a_pod_that_ends_while_slurm_denies_its_job_leaves_a_job_that_ended_as_it_did(
    tmp_path: Path, lies: str, code: int | None
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        await alone(sim)
        job = sim.job_of("p")
        await sim.settle(5.0)
        if lies != "the job":
            sim.slurm.faults.add(
                Fault(pattern="GET jobs/state", kind=Kind.EDIT, edit=lambda _: NOBODY, times=0)
            )
        if lies != "the list":
            lie = Fault(
                pattern="(GET|POST|DELETE) job/", kind=Kind.STATUS, times=0, status=404, body=NONE_SUCH
            )
            sim.slurm.faults.add(lie)
        await sim.settle(3.0)
        if code is not None:
            sim.kubelet.finish("p", code)
            await sim.settle(2.0)
        sim.delete("p")
        await sim.settle(10.0)
        sim.slurm.faults.clear()
        await sim.until(lambda: is_ended(sim.slurm.jobs[job].states), 40.0)
        state, exit_code = {0: ("COMPLETED", 0), 3: ("FAILED", 3), None: ("CANCELLED", 0)}[code]
        ended = sim.slurm.jobs[job]
        assert (state in ended.states, ended.exit_code) == (True, exit_code)
        assert "unknown" not in ended.comment

    play(tmp_path, scene)
