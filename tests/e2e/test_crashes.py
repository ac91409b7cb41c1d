"""The bridge is killed at the worst moments; the next look reaches the same end."""

from __future__ import annotations

import random

import pytest

from tests.e2e import kube as k
from tests.e2e.burst import bound_between_kills
from tests.e2e.scene import Scene
from tests.e2e.stages import CHOSEN, HELD, in_both_modes

pytestmark = pytest.mark.real
BURST = 25
MOST_CHANGES = 30  # that one life of the bridge may bring about; the burst needs 100 at least


@pytest.mark.parametrize(("scene", "kills"), [(CHOSEN, 10), (HELD, 4)], indirect=["scene"])
def test_a_burst_is_bound_once_although_the_bridge_is_killed_in_it(scene: Scene, kills: int) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    uids = bound_between_kills(
        scene, kills=kills, pods=BURST, changes=lambda: chance.randint(1, MOST_CHANGES)
    )
    pods = scene.all_running(len(uids), within=240)
    assert {k.uid(pod) for pod in pods} == uids
    jobs = scene.real_jobs_of(uids)
    assert len({k.job_label(pod) for pod in pods}) == len(uids)
    assert sorted(job.id for job in jobs) == sorted(k.job_label(pod) for pod in pods)
    assert all(job.running for job in jobs)

    scene.kube.must("DELETE", scene.pods_path)
    scene.no_live_jobs(uids, within=120)


@in_both_modes
def test_pods_that_end_while_the_bridge_is_away_end_their_jobs_with_their_exit_codes(scene: Scene) -> None:
    scene.create(k.pod("good"))
    scene.create(k.pod("bad"))
    good, bad = scene.running("good"), scene.running("bad")
    with scene.stack.without("bridge"):
        scene.finish("good")
        scene.finish("bad", exit_code=7)
        assert scene.job_of(good).live
    scene.job_becomes(k.job_label(good), "COMPLETED")
    assert scene.job_becomes(k.job_label(bad), "FAILED").exit_code == 7


@in_both_modes
def test_a_job_cancelled_while_the_bridge_is_away_still_ends_its_pod(scene: Scene) -> None:
    scene.create(k.pod("victim"))
    number = k.job_label(scene.running("victim"))
    with scene.stack.without("bridge"):
        scene.slurm.scancel(number)
        scene.job_becomes(number, "CANCELLED")
    scene.gone("victim")
