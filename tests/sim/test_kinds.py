"""What stands above a pod, as the whole bridge sees it: in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bridge.core.overrides import key
from tests.sim.simulation import Simulation
from tests.sim.test_story import play, running
from tests.worlds.kube_merge import Object

JOBSETS = "jobset.x-k8s.io/v1alpha2"
Owner = dict[str, Any]


def add(sim: Simulation, resource: str, name: str, *above: Owner, **options: str) -> Owner:
    """Returns the reference to it."""
    annotations = {key(suffix): said for suffix, said in options.items()}
    made = sim.kube.add(
        resource, {"metadata": {"name": name, "annotations": annotations, "ownerReferences": list(above)}}
    )
    return reference(made)


def reference(made: Object) -> Owner:
    meta = made["metadata"]
    return {
        "apiVersion": made["apiVersion"],
        "kind": made["kind"],
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
    }


def jobs(sim: Simulation, uid: str) -> list[tuple[str, str]]:
    """Comment and name of each live job of that pod."""
    return [(job.comment, job.name) for job in sim.jobs_of(uid)]


def test_what_a_jobset_says_counts_for_its_pods_and_its_job_says_it_louder(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        jobsets = sim.kube.install("jobsets", "JobSet", JOBSETS)
        sim.start()
        whole = add(sim, jobsets, "train", **{"comment": "theirs", "job-name": "whole"})
        job = add(sim, "jobs", "train-a", whole, **{"job-name": "part"})
        uid = sim.create("p", ownerReferences=[job])
        await sim.until(lambda: running(sim, "p"), 5.0)
        assert jobs(sim, uid) == [("theirs", "part")]

    play(tmp_path, scene)


def test_a_kind_that_appears_counts_from_its_first_object_on(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        sim.create("before")
        await sim.until(lambda: running(sim, "before"), 5.0)
        jobsets = sim.kube.install("jobsets", "JobSet", JOBSETS)
        whole = add(sim, jobsets, "train", comment="theirs")
        uid = sim.create("p", ownerReferences=[add(sim, "jobs", "train-a", whole)])
        await sim.until(lambda: running(sim, "p"), 12.0)  # somebody refers to it: looked for at once
        assert jobs(sim, uid) == [("theirs", "p")]

    play(tmp_path, scene)


def test_a_kind_that_goes_away_or_may_not_be_read_harms_no_pod(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        jobsets = sim.kube.install("jobsets", "JobSet", JOBSETS)
        sets = sim.kube.install("statefulsets", "StatefulSet", "apps/v1")
        sim.kube.denied |= {("list", sets), ("watch", sets)}
        sim.start()
        whole = add(sim, jobsets, "train", comment="theirs")
        uid = sim.create("p", ownerReferences=[whole])
        await sim.until(lambda: running(sim, "p"), 5.0)
        sim.kube.uninstall(jobsets)
        await sim.settle(200)
        assert running(sim, "p")
        assert jobs(sim, uid) == [("theirs", "p")]
        sim.create("q", ownerReferences=[add(sim, sets, "s")])
        await sim.until(lambda: running(sim, "q"), 5.0)  # without the patience for what will be read

    play(tmp_path, scene)


def test_an_option_that_comes_late_to_an_owner_is_seen_at_once(tmp_path: Path) -> None:
    async def scene(sim: Simulation) -> None:
        sim.start()
        job = add(sim, "jobs", "train", nonsense="1")
        uid = sim.create("p", ownerReferences=[job])
        await sim.settle(5)
        assert not jobs(sim, uid)
        annotations = {key("nonsense"): None, key("comment"): "theirs"}
        sim.kube.storage.patch("jobs", "default", "train", {"metadata": {"annotations": annotations}})
        await sim.until(lambda: running(sim, "p"), 5.0)  # not at the next round of looks
        assert jobs(sim, uid) == [("theirs", "p")]

    play(tmp_path, scene)
