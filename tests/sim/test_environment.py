"""A pod that asks for Slurm's variables has them before it is bound, and nobody pays for it with another write."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from bridge.apply import WriteDoor
from bridge.core import environment
from bridge.core.attempt import Attempt
from bridge.core.model import JobId, KubeNode, Pod
from bridge.core.steps import Forsake, Release
from bridge.names import (
    ATTEMPT_ANNOTATION,
    ENVIRONMENT_PREFIX,
    GPUS_ANNOTATION,
    NODE_ANNOTATION,
    STARTED_ANNOTATION,
)
from tests.core.build import FIRST, pod, released
from tests.sim.simulation import Simulation
from tests.sim.test_story import play, running


def variables(found: Any) -> dict[str, str]:
    marked = found["metadata"]["annotations"].items()
    return {
        name.removeprefix(ENVIRONMENT_PREFIX): value
        for name, value in marked
        if name.startswith(ENVIRONMENT_PREFIX)
    }


def test_it_runs_with_its_variables_after_the_same_three_writes(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        sim.create("asks", gpus=2, annotations={environment.ASKED: "true"})
        await sim.until(lambda: running(sim, "asks"), 5.0)
        assert sum(sim.kube.writes.values()) == 3, dict(sim.kube.writes)
        sim.create("silent", gpus=2)
        await sim.until(lambda: running(sim, "silent"), 5.0)
        job = sim.slurm.jobs[sim.job_of("asks")]
        assert variables(sim.pod("asks")) == {
            "SLURM_JOB_NODELIST": job.nodes[0],
            "SLURM_NNODES": "1",
            "SLURM_NTASKS": "1",
            "SLURM_PROCID": "0",
            "SLURM_JOB_GPUS": "0,1",
        }
        assert variables(sim.pod("silent")) == {}

    play(tmp_path, scene)


class Patched:
    """Remembers the last PATCH of a pod."""

    async def patch_pod(self, pod: Pod, **changes: Any) -> Pod:
        self.changes = changes
        return pod


async def test_a_grant_that_is_given_back_takes_the_variables_along() -> None:
    kube = Patched()
    door = WriteDoor(cast(Any, None), cast(Any, kube), cast(Any, None), completion=None, leading=lambda: True)
    name = f"{ENVIRONMENT_PREFIX}SLURM_JOB_NODELIST"
    there = released(FIRST, annotations={NODE_ANNOTATION: "n1", name: "n1", "mine": "1"})
    await door.apply(Forsake(pod=there, attempt=Attempt(1)))
    gone = {key for key, value in kube.changes["annotations"].items() if value is None}
    assert gone == {NODE_ANNOTATION, GPUS_ANNOTATION, STARTED_ANNOTATION, name}
    assert kube.changes["annotations"][ATTEMPT_ANNOTATION]

    await door.apply(Release(pod=pod(), job=JobId(1), node=KubeNode("n1"), environment={name: "n[1-2]"}))
    assert kube.changes["annotations"] == {NODE_ANNOTATION: "n1", GPUS_ANNOTATION: None, name: "n[1-2]"}
