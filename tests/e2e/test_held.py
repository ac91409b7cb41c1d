"""With a token that may not choose job ids, what is particular about that. Much else is tested in both modes, where it
stands: `in_both_modes`."""

from __future__ import annotations

import pytest

from tests.e2e import kube as k
from tests.e2e.scene import Scene
from tests.e2e.slurm import CHOSEN_IDS
from tests.e2e.stages import HELD
from tests.e2e.waiting import eventually

pytestmark = [pytest.mark.real, pytest.mark.parametrize("scene", [HELD], indirect=True)]


def test_pods_get_jobs_of_the_tokens_user_that_end_with_their_exit_codes(scene: Scene) -> None:
    eventually("the bridge says so", lambda: "submitted held" in scene.stack.bridge.get("/readyz").text)
    batch = scene.slurm.sbatch("--mem=1000", "--constraint=slurmd")
    scene.create(k.pod("good", gpus=1, run=1))
    scene.create(k.pod("bad", gpus=1, run=1, exit_code=3))
    for name, state, code in (("good", "COMPLETED", 0), ("bad", "FAILED", 3)):
        number = k.job_label(scene.ended(name))
        assert number < CHOSEN_IDS
        assert scene.job_becomes(number, state).exit_code == code
        owner = scene.stack.run("squeue", "-h", "-t", "all", "-j", str(number), "-o", "%u")
        assert owner == "alice"
    scene.job_becomes(batch, "RUNNING")


def test_a_submit_without_an_answer_makes_no_second_job_that_runs(scene: Scene) -> None:
    def unanswered() -> float:
        return scene.stack.metric("slurm_bridge_submits_total", outcome="unknown")

    before = unanswered()
    with scene.stack.stopped("slurmctld"):
        uid = scene.create(k.pod("lost"))
        eventually("the submit has no answer", lambda: unanswered() > before, within=90)
    pod = scene.running("lost", within=120)
    eventually(
        "no other job is left", lambda: [j.id for j in scene.slurm.live_jobs_of(uid)] == [k.job_label(pod)]
    )
    assert [job.id for job in scene.real_jobs_of({uid})] == [k.job_label(pod)]


def test_a_waiting_job_that_a_person_cancels_takes_its_pod_along(scene: Scene) -> None:
    batch = scene.slurm.sbatch("--exclusive", "-w", scene.stack.hybrid[0])
    scene.job_becomes(batch, "RUNNING")
    uid = scene.create(k.pod("waits", options=scene.only(scene.stack.hybrid[0])))
    number = k.job_label(scene.when("waits", "names its job", lambda pod: k.job_label(pod) != 0))
    scene.job_becomes(number, "PENDING")
    eventually("it waits for the node", lambda: scene.waiting_job(uid).reason != "JobHeldUser")
    scene.slurm.scancel(number)
    scene.gone("waits")
