"""With a token that may not choose job ids: an administrator's in Slurm's accounting, who isn't SlurmUser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e import kube as k
from tests.e2e.burst import bound_between_kills
from tests.e2e.scene import Scene
from tests.e2e.slurm import Job
from tests.e2e.stack import Stack, command
from tests.e2e.stages import own, staged
from tests.e2e.waiting import eventually

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]  # the first start on a machine unpacks a database
OURS = 0x02000000  # where ids begin that a bridge chooses
BURST, KILLS = 20, 4


@pytest.fixture(scope="module")
def administrated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with own("held", "--accounting") as found:
        found.run("sacctmgr", "-i", "modify", "user", "alice", "set", "adminlevel=Administrator")
        token = tmp_path_factory.mktemp("held") / "token"
        token.write_text(found.run("scontrol", "token", "username=alice", "lifespan=86400"))
        command("up", found.name, "--set", f"slurmTokenFile={token}")
        found.wait_leading()
        yield found


@pytest.fixture
def scene(administrated: Stack) -> Iterator[Scene]:
    with staged(administrated) as found:
        yield found


def test_pods_get_jobs_of_the_tokens_user_that_end_with_their_exit_codes(scene: Scene) -> None:
    eventually("the bridge says so", lambda: "submitted held" in scene.stack.bridge.get("/readyz").text)
    batch = scene.slurm.sbatch("--mem=1000", "--constraint=slurmd")
    scene.create(k.pod("good", gpus=1, run=1))
    scene.create(k.pod("bad", gpus=1, run=1, exit_code=3))
    for name, state, code in (("good", "COMPLETED", 0), ("bad", "FAILED", 3)):
        number = k.job_label(scene.ended(name))
        assert number < OURS
        assert scene.job_becomes(number, state).exit_code == code
        owner = scene.stack.run("squeue", "-h", "-t", "all", "-j", str(number), "-o", "%u")
        assert owner == "alice"
    scene.job_becomes(batch, "RUNNING")


def test_a_burst_runs_once_although_the_bridge_is_killed_in_it(scene: Scene) -> None:
    uids = bound_between_kills(scene, kills=KILLS, pods=BURST, changes=lambda: BURST // 2)
    pods = scene.all_running(len(uids), within=240)
    assert sorted(job.id for job in started(scene, uids)) == sorted(k.job_label(pod) for pod in pods)


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
    assert [job.id for job in started(scene, {uid})] == [k.job_label(pod)]


def test_a_waiting_job_that_a_person_cancels_takes_its_pod_along(scene: Scene) -> None:
    batch = scene.slurm.sbatch("--exclusive", "-w", scene.stack.hybrid[0])
    scene.job_becomes(batch, "RUNNING")
    uid = scene.create(k.pod("waits", options=scene.only(scene.stack.hybrid[0])))
    number = k.job_label(scene.when("waits", "names its job", lambda pod: k.job_label(pod) != 0))
    scene.job_becomes(number, "PENDING")
    eventually("it waits for the node", lambda: scene.waiting_job(uid).reason != "JobHeldUser")
    scene.slurm.scancel(number)
    scene.gone("waits")


def started(scene: Scene, uids: set[str]) -> list[Job]:
    """Every job that these pods ever had, and that had a node."""
    return [job for job in scene.slurm.jobs_of(*uids) if job.nodes]
