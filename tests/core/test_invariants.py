"""Each invariant about one moment with a picture that violates it and one that nearly does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bridge.core import held, invariants
from bridge.core.invariants import (
    converged,
    devices_as_granted,
    explained,
    no_shared_gpu,
    one_job,
    placed_by_slurm,
    violations,
)
from bridge.core.model import (
    Condition,
    GroupKey,
    JobId,
    JobRecord,
    KubeNode,
    Node,
    Pod,
    SlurmNode,
)
from bridge.core.picture import Picture
from bridge.names import GPUS_ANNOTATION, JOB_CONDITION, JOB_ID_LABEL
from tests.core import build
from tests.core.build import KEY, NOW
from tests.core.pictures import (
    BOUND,
    HEALTHY,
    NATIVE,
    WAITS,
    another,
    change,
    gang,
    job,
    of_another,
    picture,
    running,
)


def test_a_running_pod_with_its_job_violates_nothing() -> None:
    assert violations(HEALTHY) == violations(change(HEALTHY, HEALTHY)) == converged(HEALTHY) == ()


def test_every_predicate_is_listed_once_and_says_what_it_promises() -> None:
    listed = [predicate.__name__ for predicate in invariants.ALL]
    assert len(set(listed)) == len(listed)
    assert all((predicate.__doc__ or "").strip() for predicate in invariants.ALL)
    assert set(invariants.ALL) >= {*invariants.STANDING, *invariants.MOVING}


def test_a_violation_names_its_invariant_and_the_objects() -> None:
    (found,) = violations(picture(pods=(running(),)))
    assert str(found) == (
        "placed_by_slurm: pod default/train-0 is on n1, where no job of its own is: it has none"
    )


# --- placed by Slurm ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "jobs",
    [
        pytest.param((), id="no-job"),
        pytest.param((job(nodes=(SlurmNode("n2"),)),), id="its-job-is-elsewhere"),
        pytest.param((job("PENDING"),), id="its-job-waits"),
        pytest.param((of_another(8),), id="the-job-of-another-pod"),
        pytest.param((job(mark=build.mark(cluster="cluster-2")),), id="the-mark-of-another-cluster"),
        pytest.param((job(mark=None),), id="no-mark"),
        pytest.param((job(started=BOUND + 2),), id="bound-before-the-job-started"),
        pytest.param((job("CANCELLED", ended=BOUND - 4),), id="bound-after-the-job-had-ended"),
    ],
)
def test_a_pod_on_a_node_without_its_own_job_was_not_placed_by_slurm(jobs: tuple[JobRecord, ...]) -> None:
    assert len(placed_by_slurm(picture(*jobs, pods=(running(),)))) == 1


@pytest.mark.parametrize(
    "jobs",
    [
        pytest.param((job(started=BOUND + 1),), id="whole-seconds"),
        pytest.param((job("CANCELLED", ended=BOUND - 3),), id="the-look-at-slurm-was-two-seconds-old"),
        pytest.param((job("TIMEOUT", ended=BOUND + 1),), id="its-job-has-ended-since"),
        pytest.param((job("SUSPENDED"),), id="its-job-is-suspended"),
        pytest.param(
            (job("FAILED", "COMPLETING", nodes=(), ended=NOW),), id="slurm-lists-no-node-while-it-completes"
        ),
        pytest.param((job("CANCELLED", ended=NOW - 9), job(id=JobId(101))), id="an-earlier-job-beside-it"),
        pytest.param((job("PENDING", nodes=(), required=(SlurmNode("n1"),)),), id="its-place-is-asked-for"),
    ],
)
def test_a_pod_whose_job_held_its_node_was_placed_by_slurm(jobs: tuple[JobRecord, ...]) -> None:
    assert placed_by_slurm(picture(*jobs, pods=(running(),))) == ()


@pytest.mark.parametrize("left", [{"deleted": NOW}, {"phase": "Succeeded"}, {"node": KubeNode("")}])
def test_a_pod_that_is_over_or_nowhere_needs_no_job(left: dict[str, Any]) -> None:
    assert placed_by_slurm(picture(pods=(replace(running(), **left),))) == ()


def test_a_node_is_known_by_the_name_that_slurm_has_for_it() -> None:
    nodes = {SlurmNode("n1"): Node(name=KubeNode("worker-1"))}
    there = running(node=KubeNode("worker-1"))
    assert placed_by_slurm(picture(job(), pods=(there,), nodes=nodes)) == ()
    assert placed_by_slurm(picture(job(), pods=(running(),), nodes=nodes))


def test_what_slurmctld_forgot_is_not_counted_until_it_has_settled() -> None:
    fresh = {"booted": BOUND, "boot_grace": 300.0}
    for jobs in ((), (job("PENDING"),), (job(nodes=(SlurmNode("n2"),)),)):
        assert placed_by_slurm(picture(*jobs, pods=(running(),), **fresh)) == ()
        assert placed_by_slurm(picture(*jobs, pods=(running(),), **(fresh | {"boot_grace": 3.0})))
    restarted = job(started=BOUND + 2.5)
    assert placed_by_slurm(picture(restarted, pods=(running(),), booted=BOUND + 2)) == ()
    assert placed_by_slurm(picture(restarted, pods=(running(),), booted=BOUND - 2))


def test_a_pod_that_was_bound_after_the_boot_has_a_job_that_slurmctld_knows() -> None:
    fresh = {"boot_grace": 300.0}
    assert placed_by_slurm(picture(pods=(running(),), booted=BOUND - 3, **fresh)) == ()
    assert placed_by_slurm(picture(pods=(running(),), booted=BOUND - 3.1, **fresh))


# --- one job --------------------------------------------------------------------------------------


def test_two_live_jobs_of_a_group_are_one_too_many() -> None:
    (found,) = one_job(picture(job(), job("PENDING", id=JobId(101))))
    assert found.text == f"group {KEY} has 2 live jobs: 100, 101"


def test_a_pod_in_the_marks_of_two_groups_has_two_jobs() -> None:
    other = replace(build.mark(), group=GroupKey("default", "Job", "train", "uid-9"))
    (found,) = one_job(picture(job(), job(id=JobId(101), mark=other)))
    assert found.text == "pod uid-1 has 2 live jobs: 100, 101"


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(job("CANCELLED", id=JobId(101)), id="one-has-ended"),
        pytest.param(job(id=JobId(101), mark=build.mark(cluster="cluster-2")), id="of-another-cluster"),
        pytest.param(of_another(101), id="of-another-pod"),
    ],
)
def test_one_live_job_and_something_else_is_one_job(second: JobRecord) -> None:
    assert one_job(picture(job(), second)) == ()


def test_a_job_that_slurmctld_brought_back_is_not_counted_until_it_has_settled() -> None:
    back, new = job(submitted=NOW - 20), job("PENDING", id=JobId(101), submitted=NOW - 2)
    assert one_job(picture(back, new, booted=NOW - 10, boot_grace=300.0)) == ()
    assert one_job(picture(back, new, booted=NOW - 10, boot_grace=5.0))
    assert one_job(picture(back, new, booted=NOW - 30, boot_grace=300.0)), "both are from after the boot"


# --- no shared GPU --------------------------------------------------------------------------------


def test_two_pods_with_one_gpu_share_it() -> None:
    (found,) = no_shared_gpu(
        picture(pods=(running(), another(annotations={GPUS_ANNOTATION: "1-2"}))),
    )
    assert found.text == "GPU 1 of n1 is used by pods default/train-0 and default/uid-2"


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(running(deleted=NOW), id="being-deleted"),
        pytest.param(running(phase="Failed"), id="failed-says-the-control-plane-alone"),
    ],
)
def test_a_pod_that_is_not_known_dead_still_uses_its_gpus(first: Pod) -> None:
    assert no_shared_gpu(picture(pods=(first, another())))
    assert no_shared_gpu(picture(pods=(another(),), gone=(first,)))
    assert no_shared_gpu(picture(pods=(another(),), gone=(first,), dead=frozenset({first.uid}))) == ()


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(another(annotations={GPUS_ANNOTATION: "2-3"}), id="other-gpus"),
        pytest.param(replace(another(), node=KubeNode("n2")), id="another-node"),
        pytest.param(replace(another(), node=KubeNode("")), id="not-bound-yet"),
        pytest.param(replace(another(), phase="Succeeded", statuses=()), id="it-has-ended"),
        pytest.param(another(annotations={GPUS_ANNOTATION: "all"}), id="said-by-another-invariant"),
    ],
)
def test_pods_with_different_gpus_share_none(second: Pod) -> None:
    assert no_shared_gpu(picture(pods=(running(), second))) == ()


def test_two_running_jobs_with_one_gpu_share_it() -> None:
    (found,) = no_shared_gpu(picture(job(), NATIVE))
    assert found.text == "GPU 1 of n1 is held by jobs 100 and 7"
    for free in ("PENDING", "TIMEOUT", "SUSPENDED"):
        assert no_shared_gpu(picture(job(), replace(NATIVE, states=frozenset({free})))) == ()


def test_a_native_job_that_runs_on_the_gpu_of_a_living_pod_shares_it() -> None:
    over = job("TIMEOUT")
    (found,) = no_shared_gpu(picture(over, NATIVE, pods=(running(deleted=NOW),)))
    assert found.text == "GPU 1 of n1 is used by pod default/train-0 and held by job 7"
    held_back = replace(NATIVE, states=frozenset({"RUNNING", "CONFIGURING"}))
    assert no_shared_gpu(picture(over, held_back, pods=(running(deleted=NOW),))) == ()
    assert no_shared_gpu(picture(over, NATIVE, pods=(running(deleted=NOW),), handover=False)) == ()


def test_a_successor_of_ours_shares_no_gpu_while_its_pod_waits_for_it() -> None:
    over, next_job = job("TIMEOUT"), of_another(101)
    waits = another(node=KubeNode(""))
    assert no_shared_gpu(picture(over, next_job, pods=(running(deleted=NOW), waits))) == ()
    first = running(annotations={GPUS_ANNOTATION: "0"}, deleted=NOW)
    its_own = another(annotations={}, labels={JOB_ID_LABEL: "101"})
    (found,) = no_shared_gpu(picture(over, next_job, pods=(first, its_own)))
    assert found.text == "GPU 0 of n1 is used by pod default/train-0 and held by job 101"
    came_back = another(annotations={}, labels={JOB_ID_LABEL: "102"})  # to life, in Slurm
    assert no_shared_gpu(picture(over, next_job, pods=(first, came_back))) == ()


# --- devices as granted ---------------------------------------------------------------------------


@pytest.mark.parametrize("told", ["0", "0-2", "1-2", "", "all", "[0"])
def test_a_pod_that_is_told_other_gpus_than_its_job_holds_is_named(told: str) -> None:
    (found,) = devices_as_granted(picture(job(), pods=(running(annotations={GPUS_ANNOTATION: told}),)))
    assert f"default/train-0 ({told or 'none'})" in found.text


@pytest.mark.parametrize("text", ["gpu:h100:2(IDX:0-2)", "a gpu"])
def test_a_gres_text_that_slurm_does_not_write_is_named(text: str) -> None:
    (found,) = devices_as_granted(picture(job(gres=(text,)), pods=(running(),)))
    assert text in found.text


def test_the_pods_of_a_job_are_told_all_of_its_gpus_between_them() -> None:
    for gpus, wrong in ((("0-1", "2-3"), 0), (("0-1", "2"), 1), (("0-1", "1-2"), 1), (("0-1",), 0)):
        shared, pods = gang(*gpus)
        assert len(devices_as_granted(picture(shared, pods=pods))) == wrong, gpus
    shared, pods = gang("0-1", "2-4")
    assert devices_as_granted(picture(shared, pods=pods[1:])), "one that is there is told a GPU too many"


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(picture(job("TIMEOUT"), pods=(running(annotations={}),)), id="the-job-is-over"),
        pytest.param(picture(job(), pods=(running(annotations={}, deleted=NOW),)), id="the-pod-is-over"),
        pytest.param(picture(job(), pods=(replace(running(), node=KubeNode("n2")),)), id="on-another-node"),
        pytest.param(
            picture(job(), pods=(running(annotations={}),), booted=NOW - 1, boot_grace=300.0),
            id="slurmctld-settles",
        ),
        pytest.param(picture(job(gres=()), pods=(running(annotations={}),)), id="no-gpus-at-all"),
        pytest.param(picture(replace(NATIVE, mark=None), pods=(running(),)), id="not-ours"),
    ],
)
def test_only_what_runs_now_is_compared(seen: Picture) -> None:
    assert devices_as_granted(seen) == ()


# --- explained ------------------------------------------------------------------------------------


def test_a_pod_that_waits_in_silence_is_named() -> None:
    (found,) = explained(picture(pods=(build.pod(created=NOW - 11),)))
    assert found.text == "pod default/train-0 has waited 11 s and does not say why"
    empty = Condition(type=JOB_CONDITION, status="False")
    assert explained(picture(pods=(build.pod(created=NOW - 11, conditions=(empty,)),)))


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(build.pod(created=NOW - 10), id="not-for-long"),
        pytest.param(
            build.pod(
                created=0.0, conditions=(Condition(type=JOB_CONDITION, status="False", message="no room"),)
            ),
            id="with-a-reason",
        ),
        pytest.param(build.pod(created=0.0, deleted=NOW), id="being-deleted"),
        pytest.param(running(created=0.0), id="bound"),
    ],
)
def test_a_pod_that_says_why_it_waits_is_explained(pod: Pod) -> None:
    assert explained(picture(pods=(pod,))) == ()


# --- converged ------------------------------------------------------------------------------------

REFUSED = Condition(type=JOB_CONDITION, status="False", reason="Refused", message="no such partition")


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        pytest.param(picture(job(), pods=(running(deleted=NOW),)), "still being deleted", id="deleting"),
        pytest.param(picture(job("TIMEOUT"), pods=(running(),)), "its job does not", id="its-job-has-ended"),
        pytest.param(
            picture(job(), job("PENDING", id=JobId(101), reason=held.REASON), pods=(running(),)),
            "job 101 is still held beside job 100",
            id="a-double-is-left",
        ),
        pytest.param(
            picture(job("PENDING", nodes=(SlurmNode("n1"),)), pods=(running(),)),
            "its job does not",
            id="its-job-waits-again",
        ),
        pytest.param(picture(job(), pods=(WAITS,)), "has a grant and is not bound", id="not-bound"),
        pytest.param(picture(pods=(WAITS,)), "waits without a job", id="not-submitted"),
        pytest.param(picture(job()), "none of default/train-0 needs it", id="an-orphan"),
        pytest.param(
            picture(job(), pods=(running(phase="Succeeded", statuses=()),)),
            "needs it",
            id="its-pod-has-ended",
        ),
    ],
)
def test_business_that_is_left_is_named(seen: Picture, text: str) -> None:
    (found,) = converged(seen)
    assert text in found.text


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(picture(job("PENDING"), pods=(WAITS,)), id="waits-with-its-job"),
        pytest.param(picture(job("PENDING", reason=held.REASON), pods=(WAITS,)), id="a-person-holds-it"),
        pytest.param(picture(pods=(build.pod(conditions=(REFUSED,)),)), id="waits-for-a-person"),
        pytest.param(picture(job("SUSPENDED"), pods=(running(),)), id="suspended"),
        pytest.param(picture(job("COMPLETED"), pods=(running(phase="Succeeded"),)), id="over"),
        pytest.param(picture(job(), gone=(running(deleted=NOW),)), id="held-for-containers-not-known-dead"),
        pytest.param(
            picture(job("COMPLETED"), job(mark=build.mark(cluster="cluster-2"))), id="jobs-of-no-concern"
        ),
        pytest.param(picture(NATIVE), id="native-jobs"),
    ],
)
def test_where_nothing_is_left_to_do_it_has_converged(seen: Picture) -> None:
    assert converged(seen) == ()


def test_a_member_may_wait_for_a_place_on_a_node_that_is_drained_as_others_use_its_devices() -> None:
    whole, (one, other) = gang("0-1", "2-3")
    waits = replace(other, node=KubeNode(""), phase="Pending")
    seen = picture(whole, pods=(one, waits))
    assert converged(seen)
    assert converged(replace(seen, drained=frozenset({SlurmNode("n1")}))) == ()
