"""What people may write to pods and nodes, by mistake or on purpose, must cost nobody else anything."""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bridge import names
from bridge.core.model import JobId, is_ended
from tests.sim.loop import run
from tests.sim.simulation import Simulation
from tests.worlds.slurm_faults import Fault, Kind
from tests.worlds.slurm_jobs import WorldNode

NO_SUCH_JOB = (
    b'{"errors": [{"error_number": 2017, "error": "Invalid job id specified"}], "warnings": [], "meta": {}}'
)
Scene = Callable[[Simulation], Awaitable[None]]


def play(tmp_path: Path, scene: Scene, **options: Any) -> None:
    async def main() -> None:
        sim = Simulation(tmp_path, **options)
        try:
            await scene(sim)
        finally:
            await sim.close()

    run(main())


def running(sim: Simulation, name: str) -> bool:
    pod = sim.pod(name)
    return pod is not None and pod["status"].get("phase") == "Running"


def patch(sim: Simulation, name: str, **meta: Any) -> None:
    sim.kube.storage.patch("pods", "default", name, {"metadata": meta})


def test_pods_that_only_claim_to_be_granted_hold_nobody_back(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.slurm.native(cpus=1, gpus=8)  # so that nothing of theirs is ever granted on that node
        sim.start()
        for i in range(3):
            sim.create(f"claims-{i}", gpus=9, gated=False, labels={names.JOB_ID_LABEL: "1"})
        await sim.settle(5.0)
        sim.create("good")
        await sim.until(lambda: running(sim, "good"), 20.0)
        pod = sim.pod("good")
        assert pod is not None
        assert names.ATTEMPT_ANNOTATION not in pod["metadata"].get("annotations", {})

    play(tmp_path, scene, ungatedLimit=2)


def test_a_changed_job_label_saves_no_pod_from_the_end_of_its_job(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        sim.create("p")
        await sim.until(lambda: running(sim, "p"), 5.0)
        job = sim.job_of("p")
        patch(sim, "p", labels={names.JOB_ID_LABEL: "7"})
        await sim.until(lambda: sim.job_of("p") == job, 5.0)  # repaired
        patch(sim, "p", labels={names.JOB_ID_LABEL: "7"})
        sim.slurm.end(job, "CANCELLED")
        await sim.until(lambda: sim.pod("p") is None, 10.0)

    play(tmp_path, scene)


@pytest.mark.parametrize("text", ['{"attempt": Infinity}', '{"attempt": 700}', "[" * 90_000, "x"])
def test_a_changed_attempt_leaks_no_job(tmp_path: Path, text: str) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        uid = sim.create("p")
        await sim.until(lambda: running(sim, "p"), 5.0)
        job = sim.job_of("p")
        patch(sim, "p", annotations={names.ATTEMPT_ANNOTATION: text})
        await sim.settle(5.0)
        assert running(sim, "p")
        sim.kubelet.finish("p")
        await sim.until(lambda: is_ended(sim.slurm.jobs[job].states), 60.0)
        assert not sim.jobs_of(uid)

    play(tmp_path, scene)


@pytest.mark.parametrize("change", ["another-node-claims-it", "its-own-label"])
def test_a_changed_node_label_ends_no_running_pod(tmp_path: Path, change: str) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        sim.create("p")
        await sim.until(lambda: running(sim, "p"), 5.0)
        pod = sim.pod("p")
        assert pod is not None
        node = pod["spec"]["nodeName"]
        other = next(f"n{i}" for i in (1, 2, 3) if f"n{i}" != node)
        target, name = (other, node) if change == "another-node-claims-it" else (node, other)
        label = {"metadata": {"labels": {names.SLURM_NODENAME_LABEL: name}}}
        sim.kube.storage.patch("nodes", "", target, label)
        await sim.settle(90.0)
        assert running(sim, "p")
        assert len(sim.jobs_of(pod["metadata"]["uid"])) == 1

    play(tmp_path, scene, bootGrace=0.0)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (
            422,
            b'{"errors":[{"error_number":11,"error":"Resource temporarily unavailable","description":"x"}]}',
        ),
        (502, b'{"errors":[{"error_number":1800,"error":"Unable to contact slurm controller"}]}'),
        (511, b'{"errors":[{"error_number":1007,"error":"Protocol authentication error"}]}'),
        (429, b""),
    ],
)
def test_a_job_that_cannot_be_submitted_is_told_on_the_pod_and_starts_when_it_can(
    tmp_path: Path, status: int, body: bytes
) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        await sim.settle(1.0)
        route = "POST job/(submit|allocate)"
        sim.slurm.faults.add(Fault(pattern=route, kind=Kind.STATUS, times=0, status=status, body=body))
        sim.create("p")

        def told() -> bool:
            conditions = (sim.pod("p") or {}).get("status", {}).get("conditions", [])
            return any(
                c["type"] == names.JOB_CONDITION and "can't be submitted" in c["message"] for c in conditions
            )

        await sim.until(told, 60.0)
        sim.slurm.faults.clear()
        await sim.until(lambda: running(sim, "p"), 60.0)

    play(tmp_path, scene)


def test_a_refused_job_costs_no_attempt_and_starts_when_it_fits(tmp_path: Path) -> None:
    """Slurm leaves a FAILED record under our id for each refusal: that is no lost grant."""

    async def scene(sim: Simulation) -> None:
        sim.start()
        sim.create("big", gpus=9)
        await sim.settle(200.0)
        pod = sim.pod("big")
        assert pod is not None
        assert names.ATTEMPT_ANNOTATION not in pod["metadata"].get("annotations", {})
        for name in ("n1", "n2", "n3"):
            sim.slurm.set_node(WorldNode(name, gpus=16))
        await sim.until(lambda: running(sim, "big"), 200.0)

    play(tmp_path, scene)


def test_another_users_token_writes_nothing_where_job_ids_must_be_chosen_and_says_so(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        sim.create("p")
        await sim.until(lambda: running(sim, "p"), 5.0)
        job = sim.job_of("p")
        claims = base64.urlsafe_b64encode(json.dumps({"sun": "alice"}).encode()).decode()
        (tmp_path / "token").write_text(f"x.{claims}.y")
        sim.slurm.token = f"x.{claims}.y"
        before = len([r for r in sim.slurm.requests if not r.startswith("GET")])
        sim.delete("p")
        sim.create("q")

        def told() -> bool:
            conditions = (sim.pod("q") or {}).get("status", {}).get("conditions", [])
            return any(c["type"] == names.JOB_CONDITION and "alice" in c["message"] for c in conditions)

        await sim.until(told, 60.0)
        assert not is_ended(sim.slurm.jobs[job].states)
        assert len([r for r in sim.slurm.requests if not r.startswith("GET")]) == before

    play(tmp_path, scene, jobIds="chosen")


@pytest.mark.parametrize("ids", ["chosen", "held"])
def test_a_job_that_slurm_lists_and_denies_when_it_is_asked_for_is_asked_for_again(
    tmp_path: Path, ids: str
) -> None:
    """Else nobody would ever learn that it is ours, and an orphan would hold its nodes for ever."""

    async def scene(sim: Simulation) -> None:
        sim.start()
        uid = sim.create("p")
        await sim.until(lambda: running(sim, "p"), 5.0)
        await sim.crash()
        sim.delete("p", force=True)
        sim.slurm.faults.add(
            Fault(pattern="GET job/", kind=Kind.STATUS, status=404, body=NO_SUCH_JOB, times=3)
        )
        sim.start()
        await sim.until(lambda: not sim.jobs_of(uid), 180.0)

    play(tmp_path, scene, jobIds=ids)


def overwrite(sim: Simulation, job: JobId) -> None:
    """scontrol update AdminComment="looked at by bob"."""
    sim.slurm.jobs[job] = replace(sim.slurm.jobs[job], admin_comment="looked at by bob")


@pytest.mark.parametrize("held", [False, True])
def test_a_job_whose_mark_an_operator_overwrites_still_ends_its_pod(tmp_path: Path, *, held: bool) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        sim.create("p")
        await sim.until(lambda: running(sim, "p"), 20.0)
        overwrite(sim, sim.job_of("p"))
        sim.slurm.end(sim.job_of("p"), "CANCELLED")
        await sim.until(lambda: sim.pod("p") is None, 10.0)

    play(tmp_path, scene, **({"jobIds": "held"} if held else {}))


def test_so_is_one_known_after_a_restart_marked_again_and_ended_with_its_pod(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        uid = sim.create("p")
        await sim.until(lambda: running(sim, "p"), 5.0)
        job = sim.job_of("p")
        await sim.crash()
        overwrite(sim, job)
        sim.start()
        await sim.until(lambda: uid in sim.slurm.jobs[job].admin_comment, 20.0)
        await sim.crash()
        overwrite(sim, job)
        sim.kubelet.finish("p", 3)
        sim.start()
        await sim.until(lambda: is_ended(sim.slurm.jobs[job].states), 60.0)
        assert sim.slurm.jobs[job].exit_code == 3
        assert running(sim, "p") is False

    play(tmp_path, scene)


def test_a_waiting_job_whose_mark_is_overwritten_gets_no_second_one_beside_it(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        other = sim.slurm.native(gpus=8)
        sim.start()
        uid = sim.create("p", gpus=8)
        await sim.until(lambda: bool(sim.jobs_of(uid)), 10.0)
        (waits,) = sim.jobs_of(uid)
        await sim.settle(5.0)
        overwrite(sim, waits.id)
        sim.slurm.end(other.id, "CANCELLED")
        await sim.until(lambda: running(sim, "p"), 20.0)
        assert sim.job_of("p") == waits.id
        assert [job.id for job in sim.jobs_of(uid)] == [waits.id]

    play(tmp_path, scene, nodes=1)


def test_a_job_without_a_mark_under_an_id_like_ours_is_left_alone(tmp_path: Path) -> None:
    """Only a pod that noted its very start makes it the bridge's."""

    async def scene(sim: Simulation) -> None:
        sim.start()
        sim.create("p")
        await sim.until(lambda: running(sim, "p"), 5.0)
        job = sim.job_of("p")
        await sim.crash()
        overwrite(sim, job)
        patch(sim, "p", annotations={names.STARTED_ANNOTATION: "1"})
        sim.start()
        sim.kubelet.finish("p")
        await sim.settle(60.0)
        assert not is_ended(sim.slurm.jobs[job].states)

    play(tmp_path, scene)
