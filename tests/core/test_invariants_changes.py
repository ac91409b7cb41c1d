"""The invariants about a change, each with one that violates it and one that nearly does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge.core.invariants import (
    ahead_of_limits,
    bound_on_a_grant,
    containers_first,
    ours_only,
    positive_evidence,
    quiet,
    violations,
)
from bridge.core.model import (
    JobId,
    JobRecord,
    SlurmNode,
    Uid,
)
from bridge.core.picture import Picture
from tests.core import build
from tests.core.build import NOW
from tests.core.pictures import (
    BOUND,
    HEALTHY,
    JOB,
    NATIVE,
    WAITS,
    change,
    job,
    of_another,
    picture,
    running,
)

# --- bound on a grant -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param((job("PENDING"),), (job("PENDING"),), id="waiting"),
        pytest.param((job("RUNNING", "CONFIGURING"),), (job("RUNNING", "CONFIGURING"),), id="configuring"),
        pytest.param((), (), id="no-job"),
        pytest.param((job(nodes=(SlurmNode("n2"),)),), (), id="elsewhere"),
        pytest.param((job("CANCELLED", ended=NOW - 2.1),), (job("CANCELLED", ended=NOW - 2.1),), id="ended"),
    ],
)
def test_a_binding_without_a_grant_is_named(
    before: tuple[JobRecord, ...], after: tuple[JobRecord, ...]
) -> None:
    for waits in ((WAITS,), ()):  # it may have come and been bound in between
        seen = change(picture(*before, pods=waits), picture(*after, pods=(running(),)))
        (found,) = bound_on_a_grant(seen)
        assert found in violations(seen)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(job(), job(), id="granted"),
        pytest.param(job("PENDING"), job(), id="granted-in-between"),
        pytest.param(job(), job("CANCELLED", ended=NOW), id="ended-in-between"),
        pytest.param(
            job("CANCELLED", ended=NOW - 2),
            job("CANCELLED", ended=NOW - 2),
            id="the-look-was-two-seconds-old",
        ),
    ],
)
def test_a_binding_in_the_time_of_a_grant_is_right(before: JobRecord, after: JobRecord) -> None:
    seen = change(picture(before, pods=(WAITS,)), picture(after, pods=(running(),)))
    assert bound_on_a_grant(seen) == ()


def test_a_pod_that_was_bound_before_is_no_new_binding() -> None:
    assert bound_on_a_grant(change(picture(pods=(running(),)), picture(pods=(running(),)))) == ()


# --- ours only ------------------------------------------------------------------------------------


@pytest.mark.parametrize("foreign", [NATIVE, job(mark=build.mark(cluster="cluster-2"))])
def test_a_job_of_others_that_the_bridge_touched_is_named(foreign: JobRecord) -> None:
    seen = change(picture(foreign), picture(), touched=frozenset({foreign.id}))
    (found,) = ours_only(seen)
    assert f"job {foreign.id}" in found.text
    assert ours_only(replace(seen, touched=frozenset())) == (), "somebody else may"
    ours = change(picture(job()), picture(), touched=frozenset({JOB}))
    assert ours_only(ours) == ()


# --- positive evidence ----------------------------------------------------------------------------

FRESH = {"booted": NOW - 10, "boot_grace": 300.0}


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(picture(job(), pods=(running(),)), id="its-job-runs"),
        pytest.param(picture(pods=(running(),)), id="its-job-is-absent"),
        pytest.param(picture(job("SUSPENDED"), pods=(running(),)), id="its-job-is-suspended"),
        pytest.param(picture(of_another(8, "CANCELLED"), pods=(running(),)), id="another-pods-job-ended"),
        pytest.param(picture(job("CANCELLED", nodes=(SlurmNode("n2"),)), pods=(running(),)), id="elsewhere"),
        pytest.param(picture(job("CANCELLED", ended=BOUND - 4), pods=(running(),)), id="an-earlier-job"),
        pytest.param(
            picture(job("CANCELLED", id=JobId(101), nodes=()), pods=(running(),), **FRESH),
            id="an-unnamed-double",
        ),
        pytest.param(
            picture(job("CANCELLED", id=JobId(101)), job(), pods=(running(),)), id="a-double-was-ended"
        ),
        pytest.param(picture(job("FAILED", submitted=BOUND - 1), pods=(running(),)), id="a-refused-submit"),
        pytest.param(picture(job("PENDING"), pods=(running(),), **FRESH), id="rolled-back-just-now"),
        pytest.param(
            picture(job("NODE_FAIL", ended=NOW), pods=(running(),), **FRESH), id="slurmctld-has-not-heard-it"
        ),
        pytest.param(picture(job(ended=NOW + 151), pods=(running(),)), id="far-from-its-limit"),
        pytest.param(picture(job("PENDING"), pods=(WAITS,)), id="it-waits"),
        pytest.param(picture(pods=(WAITS,)), id="it-waits-without-a-job"),
        pytest.param(picture(job("TIMEOUT"), pods=(WAITS,)), id="it-lost-a-grant"),
    ],
)
def test_a_pod_deleted_without_evidence_is_named(seen: Picture) -> None:
    (pod,) = seen.pods
    for left in ((replace(pod, deleted=NOW),), ()):
        after = replace(seen, pods=left)
        (found,) = positive_evidence(change(seen, after))
        assert pod.ref in found.text
        assert positive_evidence(change(seen, after, removed=frozenset({pod.uid}))) == (), "by somebody else"
        assert positive_evidence(change(after, after)) == (), "it was told when it happened"
    assert positive_evidence(change(seen, seen)) == ()


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(picture(job("CANCELLED", ended=NOW), pods=(running(),)), id="cancelled"),
        pytest.param(picture(job("TIMEOUT", ended=NOW), pods=(running(),), **FRESH), id="after-a-boot"),
        pytest.param(
            picture(job("CANCELLED", nodes=()), pods=(running(),), **FRESH),
            id="cancelled-as-its-start-was-lost",
        ),
        pytest.param(picture(job("NODE_FAIL", ended=NOW), pods=(running(),)), id="node-fail"),
        pytest.param(picture(job("PENDING"), pods=(running(),)), id="rolled-back"),
        pytest.param(picture(job(nodes=(SlurmNode("n2"),)), pods=(running(),)), id="placed-anew"),
        pytest.param(picture(job("FAILED", submitted=NOW - 1), pods=(running(),)), id="claimed-in-vain"),
        pytest.param(picture(job(preempted=NOW - 1), pods=(running(),)), id="being-preempted"),
        pytest.param(
            picture(job(ended=NOW + 150), pods=(running(),)), id="grace-and-margin-before-its-limit"
        ),
        pytest.param(picture(job("CANCELLED"), pods=(WAITS,)), id="cancelled-while-it-waited"),
    ],
)
def test_a_pod_whose_own_job_lost_its_place_may_be_deleted(seen: Picture) -> None:
    healthy = replace(seen, jobs=(job(),))
    for before, after in ((seen, seen), (healthy, seen), (seen, replace(seen, jobs=()))):
        assert positive_evidence(change(before, replace(after, pods=()))) == ()


# --- containers first -----------------------------------------------------------------------------


def test_a_job_that_is_ended_over_living_containers_is_named() -> None:
    after = picture(job("CANCELLED", ended=NOW), pods=(running(deleted=NOW),))
    mine = change(HEALTHY, after, touched=frozenset({JOB}))
    (found,) = containers_first(mine)
    assert found.text == (
        "pod default/train-0 may still run on n1 and its job was ended: job 100 CANCELLED on n1"
    )
    force_deleted = replace(after, pods=(), gone=(running(deleted=NOW),))
    assert containers_first(replace(mine, after=force_deleted))
    assert containers_first(replace(mine, touched=frozenset())) == (), "Slurm, or a person, ended it"
    assert containers_first(replace(mine, after=replace(after, dead=frozenset({Uid("uid-1")})))) == ()
    assert containers_first(replace(mine, before=after)) == (), "it had ended before"
    other = of_another(8, "CANCELLED")
    elsewhere = change(
        replace(HEALTHY, jobs=(of_another(8), job("TIMEOUT"))),
        replace(after, jobs=(other, job("TIMEOUT"))),
        touched=frozenset({other.id}),
    )
    assert containers_first(elsewhere) == (), (
        "the job of a pod that is gone was ended, beside one that Slurm ended"
    )


def test_a_pod_that_outlives_its_jobs_time_is_named_where_nothing_kept_the_bridge() -> None:
    heeding = replace(HEALTHY, heeds_limits=True)
    after = replace(heeding, jobs=(job("TIMEOUT"),))
    (found,) = ahead_of_limits(change(heeding, after))
    assert found.text == (
        "pod default/train-0 still runs on n1, and Slurm ended its job for its time: job 100 TIMEOUT on n1"
    )
    assert ahead_of_limits(change(HEALTHY, after)) == (), "Slurm could not be asked a moment ago"
    assert ahead_of_limits(change(heeding, replace(after, dead=frozenset({Uid("uid-1")})))) == ()
    assert ahead_of_limits(change(heeding, replace(after, jobs=(job("CANCELLED"),)))) == ()


def test_a_double_may_be_ended_while_the_pod_runs_on_with_its_job() -> None:
    double = JobId(101)
    before = picture(job(), job(id=double), pods=(running(),))
    after = replace(before, jobs=(job(), job("CANCELLED", id=double)))
    assert containers_first(change(before, after, touched=frozenset({double}))) == ()


# --- quiet ----------------------------------------------------------------------------------------


def test_a_write_while_nothing_changes_is_named_with_what_it_changed() -> None:
    told = replace(HEALTHY, pods=(running(version="101"),), jobs=(job(reason="None"),))
    (found,) = quiet(change(HEALTHY, told, writes=2))
    assert found.text == "2 writes although nothing changed: default/train-0, job 100"
    (unseen,) = quiet(change(HEALTHY, HEALTHY, writes=1))
    assert unseen.text == "1 writes although nothing changed: to nothing we see"
    assert quiet(change(HEALTHY, told)) == ()
