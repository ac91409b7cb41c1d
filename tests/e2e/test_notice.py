"""Preemption that leaves time to say goodbye: the pod's signal comes inside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e import kube as k
from tests.e2e.scene import Scene
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.real
GRACE = 40  # seconds that the partition leaves


@pytest.fixture
def notice(scene: Scene) -> Iterator[Scene]:
    scene.stack.run("scontrol", "update", "partitionname=slurm-bridge", f"GraceTime={GRACE}")
    yield scene
    scene.stack.run("scontrol", "update", "partitionname=slurm-bridge", "GraceTime=0")


def test_a_preempted_pod_is_told_while_slurm_still_leaves_it_its_node(notice: Scene) -> None:
    scene = notice
    uid = scene.create(k.pod("checkpoints", grace=5, options=scene.only("n1")))
    number = k.job_label(scene.running("checkpoints"))
    reads = scene.stack.metric(
        "slurm_bridge_slurm_request_seconds_count", route="GET partitions/", status="200"
    )
    eventually(
        "the bridge has read what the partition leaves",
        lambda: (
            scene.stack.metric(
                "slurm_bridge_slurm_request_seconds_count", route="GET partitions/", status="200"
            )
            > reads
        ),
        within=120,
    )
    scene.slurm.sbatch("--partition=hi", "--exclusive", "--nodelist=n1", "--mem=1000")
    scene.gone("checkpoints")
    assert k.shown(scene.last_of(uid), "DisruptionTarget")["reason"] == "SlurmPreempting"
    ended = scene.job_becomes(number, "CANCELLED", "COMPLETED", "PREEMPTED")
    assert "PREEMPTED" not in ended.states, (
        "the pod was gone, and its job with it, before Slurm had to end it"
    )
    assert "is being preempted" in scene.told("checkpoints", "Preempting")
