"""Manifests as people have them from the Go project, in its forms, run unchanged: `tests/e2e/samples`.

`tasks.json` tells the tasks of each job that a sample becomes, while as many of its pods run as may at one time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bridge.config import Settings
from bridge.offline import translate
from tests.e2e import kube as k
from tests.e2e.scene import HAUNTED, Scene
from tests.e2e.waiting import eventually

SAMPLES = Path(__file__).parent / "samples"
TASKS: dict[str, list[int]] = json.loads((SAMPLES / "tasks.json").read_text())


@contextmanager
def applied(scene: Scene, sample: Path) -> Iterator[None]:
    try:
        scene.kubectl("apply", "-f", str(sample))
        yield
    finally:
        words = (
            "--wait=false",
            "--cascade=background",
            "--ignore-not-found",
        )  # of one that was applied in part
        scene.kubectl("delete", "-f", str(sample), *words)


def test_each_sample_has_its_tasks_on_record() -> None:
    assert TASKS.keys() == {path.name for path in SAMPLES.glob("*.yaml")}


@pytest.mark.parametrize("name", TASKS)
def test_translate_shows_the_jobs_that_a_sample_becomes(name: str) -> None:
    found = translate(SAMPLES / name, Settings())
    assert not found.failed, found.text
    assert {entry.spec.tasks for entry in found.entries if entry.spec} == set(TASKS[name])


@pytest.mark.real
@pytest.mark.parametrize("name", sorted(TASKS))
def test_all_pods_of_a_sample_run_as_the_jobs_that_it_is_known_for(scene: Scene, name: str) -> None:
    def jobs() -> list[tuple[int, bool]]:
        """Of all pods, once they run: tasks, and whether it is the job of all the pods that say so."""
        pods = scene.pods()
        if len(pods) != sum(TASKS[name]) or any(k.phase(pod) != "Running" for pod in pods):
            return []
        found = [scene.slurm.job(number) for number in {k.job_label(pod) for pod in pods}]
        return sorted(
            (
                job.tasks,
                job.running and job.uids == {k.uid(pod) for pod in pods if k.job_label(pod) == job.id},
            )
            for job in found
            if job is not None
        )

    wanted = [(tasks, True) for tasks in TASKS[name]]
    with applied(scene, SAMPLES / name):
        eventually("its pods run as these jobs", lambda: jobs() == wanted, HAUNTED, every=0.2)
