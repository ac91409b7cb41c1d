"""Jobs and pods of the Go project: which are taken over, what follows, and what an edited label gains nobody."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bridge.core import takeover
from bridge.core.facts import Member
from bridge.core.lifecycle import decide
from bridge.core.model import Condition, GroupKey, JobId, JobRecord, KubeNode, Mark, Pod, SlurmNode, Uid
from bridge.core.steps import (
    AdoptJob,
    DeletePod,
    DropFinalizer,
    EndJob,
    Release,
    SetConditions,
    Step,
    SubmitJob,
)
from bridge.core.verdict import Reason, Verdict
from bridge.names import ATTEMPT_ANNOTATION, GPUS_ANNOTATION, JOB_ID_LABEL, UPSTREAM_FINALIZER
from tests.core.build import CLUSTER, FIRST, KEY, NODES, NOW, facts, pod, record, sight, vanished

NATIVE = JobId(4711)
SHARED = GroupKey("default", "SlurmJob", "4711", "uid-1")


def theirs(name: str = "train-0", **changes: Any) -> Pod:
    """A pod as the Go project leaves it: no gate, its label, its finalizer."""
    base: dict[str, Any] = {
        "name": name,
        "uid": Uid("uid-1" if name == "train-0" else f"uid-{name}"),
        "gates": (),
        "labels": {JOB_ID_LABEL: str(NATIVE)},
        "finalizers": (UPSTREAM_FINALIZER,),
        "created": NOW - 3600,
    }
    return pod(**(base | changes))


def on(node: str, name: str = "train-0", phase: str = "Running", **changes: Any) -> Pod:
    return theirs(name, node=KubeNode(node), phase=phase, **changes)


def old(*states: str, listed: tuple[str, ...] = ("default/train-0",), **changes: Any) -> JobRecord:
    """Its job: the Go project's mark, and the nodes it may get as `required`."""
    base: dict[str, Any] = {
        "mark": None,
        "listed": listed,
        "submitted": NOW - 3500,
        "required": (SlurmNode("n1"), SlurmNode("n2")),
        "gres": (),
    }
    return record(NATIVE, *states, **(base | changes))


def found_of(job: JobRecord, *pods: Pod) -> tuple[Step, ...] | Verdict:
    here = {(p.namespace, p.name): p for p in pods}
    return takeover.examine(job, cluster=CLUSTER, find=lambda *name: here.get(name), nodes=NODES)


def examine(job: JobRecord, *pods: Pod) -> Step | Verdict:
    """The last step, which makes the job ours or ends it."""
    found = found_of(job, *pods)
    return found if isinstance(found, Verdict) else found[-1]


def seen(job: JobRecord, *pods: Pod, **changes: Any) -> Any:
    """Facts of the first pod's own group, as the READ door fills them."""
    found = found_of(job, *pods)
    shown = takeover.counted(sight(job), found, KEY)
    return facts(pods[0], sights=(shown,), takeovers={job.id: found}, **changes)


# --- what is taken over ---------------------------------------------------------------------------


@pytest.mark.parametrize("member", [theirs(), on("n1"), on("n1", phase="Succeeded")])
def test_the_job_of_one_pod_is_adopted_under_the_pods_own_name(member: Pod) -> None:
    found = examine(old("RUNNING"), member)
    assert isinstance(found, AdoptJob)
    assert found.mark == Mark(
        cluster=CLUSTER, group=KEY, attempt=0, uids=(Uid("uid-1"),), pods=("default/train-0",), grace=30
    )


def test_a_waiting_job_keeps_its_place_in_the_queue() -> None:
    assert isinstance(examine(old("PENDING"), theirs()), AdoptJob)


def test_pods_that_share_a_job_become_one_group() -> None:
    listed = ("default/train-0", "default/train-1")
    job = old("RUNNING", listed=listed, nodes=(SlurmNode("n1"), SlurmNode("n2")))
    found = examine(job, on("n1"), on("n2", "train-1", grace=90))
    assert isinstance(found, AdoptJob)
    assert (found.mark.group, found.mark.uids) == (SHARED, (Uid("uid-1"), Uid("uid-train-1")))
    assert (found.mark.pods, found.mark.grace) == (listed, 90)


def test_a_job_that_several_pods_wait_for_is_ended_and_each_gets_its_own() -> None:
    found = examine(old("PENDING", listed=("default/train-0", "default/b")), theirs(), theirs("b"))
    assert isinstance(found, EndJob)
    assert "pods default/train-0, default/b get a job each" in found.note


def test_of_several_pods_only_those_on_nodes_run_in_the_adopted_job() -> None:
    found = examine(old("RUNNING", listed=("default/b", "default/train-0")), theirs("b"), on("n1"))
    assert isinstance(found, AdoptJob)
    assert (found.mark.group, found.mark.uids) == (KEY, (Uid("uid-1"),))


def test_the_mark_has_the_attempt_that_the_pod_has() -> None:
    found = examine(old("PENDING"), theirs(annotations={ATTEMPT_ANNOTATION: '{"attempt": 2}'}))
    assert isinstance(found, AdoptJob)
    assert found.mark.attempt == 2


def test_pods_on_gpus_of_the_job_say_so_before_it_is_adopted() -> None:
    listed = ("default/train-0", "default/b", "default/c")
    nodes = (SlurmNode("n1"), SlurmNode("n2"))
    job = old("RUNNING", listed=listed, nodes=nodes, gres=("gpu:h100:2(IDX:0-1)", "gpu:h100:4(IDX:0,2-3,5)"))
    told = on("n1", annotations={GPUS_ANNOTATION: "0-1"})
    found = found_of(job, told, on("n2", "b"), on("n2", "c"))
    assert isinstance(found, tuple)
    *releases, last = found
    assert isinstance(last, AdoptJob)
    assert [(r.pod.name, r.job, r.node, r.gpus) for r in releases if isinstance(r, Release)] == [
        ("b", NATIVE, "n2", "0,3"),
        ("c", NATIVE, "n2", "2,5"),
    ]
    assert len(releases) == 2


# --- what is left alone ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("job", "member", "why"),
    [
        (old("RUNNING", listed=()), on("n1"), "its admin_comment isn't the Go project's"),
        (old("RUNNING", listed=("default/train-0", "team/b")), on("n1"), "pod team/b, which isn't here"),
        (old("RUNNING"), on("n1", labels={JOB_ID_LABEL: "4712"}), "whose label names another job"),
        (old("RUNNING"), on("n1", created=NOW - 3000), "submitted before pod default/train-0 was created"),
        (old("RUNNING"), on("n2"), "it doesn't hold n2, where pod default/train-0 is"),
        (old("RUNNING", nodes=(SlurmNode("b1"),)), on("b1"), "it doesn't hold b1"),
        (old("RUNNING", nodes=(SlurmNode("b1"),)), theirs(), "a node of this cluster"),
        (old("PENDING", required=(SlurmNode("b1"), SlurmNode("b2"))), theirs(), "a node of this cluster"),
        (old("PENDING", required=()), theirs(), "a node of this cluster"),
        (old("RUNNING", gres=("gpu:h100:2(IDX:0)",)), on("n1"), "gpu:h100:2(IDX:0)"),
    ],
)
def test_a_job_that_a_label_alone_claims_is_left_alone(job: JobRecord, member: Pod, why: str) -> None:
    found = examine(job, member)
    assert isinstance(found, Verdict)
    assert found.reason is Reason.FOREIGN
    assert why in found.text


def test_clocks_that_differ_a_little_change_nothing() -> None:
    assert isinstance(examine(old("RUNNING"), on("n1", created=NOW - 3497)), AdoptJob)


# --- decisions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("member", [theirs(), on("n1"), on("n1", phase="Failed"), theirs(deleted=NOW)])
def test_adoption_comes_before_everything_else(member: Pod) -> None:
    decision = decide(seen(old("RUNNING"), member))
    (step,) = decision.steps
    assert isinstance(step, AdoptJob)
    assert decision.verdict.reason is Reason.TAKEN_OVER


@pytest.mark.parametrize("member", [theirs(), on("n1"), on("n1", phase="Failed"), theirs(deleted=NOW)])
@pytest.mark.parametrize("states", [(), ("PENDING",), ("CANCELLED",)])
def test_nothing_is_decided_before_the_job_of_the_label_has_been_read(
    member: Pod, states: tuple[str, ...]
) -> None:
    unread = Verdict(Reason.STALE, "is being read")
    listed = (replace(sight(old(*states)), record=None),) if states else ()
    decision = decide(facts(member, sights=listed, takeovers={NATIVE: unread}))
    assert (decision.verdict, decision.steps) == (unread, ())
    assert decision.reads == (
        (NATIVE,) if listed else ()
    )  # what no poll has looked for yet, the next one tells
    assert decision.again


def test_jobs_that_run_are_read_in_the_watchers_own_time() -> None:
    unread = Verdict(Reason.STALE, "is being read")
    running = replace(sight(old("RUNNING")), record=None)
    decision = decide(facts(on("n1"), sights=(running,), takeovers={NATIVE: unread}))
    assert (decision.steps, decision.reads) == ((), ())
    assert decision.again


def test_nothing_is_adopted_on_a_stale_picture() -> None:
    assert decide(seen(old("RUNNING"), on("n1"), poll_age=60.0)).steps == ()


def test_an_adopted_job_of_a_waiting_pod_is_waited_for_like_any_other() -> None:
    found = examine(old("PENDING"), theirs())
    assert isinstance(found, AdoptJob)
    job = replace(old("PENDING"), mark=found.mark, reason="Priority")
    decision = decide(facts(theirs(), sights=(sight(job),), current=frozenset({NATIVE})))
    assert decision.verdict.reason is Reason.QUEUED


@pytest.mark.parametrize("state", ["CANCELLED", "TIMEOUT", "NODE_FAIL"])
def test_a_job_that_ended_before_it_could_be_adopted_ends_its_pod_all_the_same(state: str) -> None:
    decision = decide(seen(old(state), on("n1")))
    assert [type(step) for step in decision.steps if isinstance(step, DeletePod)] == [DeletePod]


def test_the_end_of_a_job_that_is_left_alone_is_no_evidence_and_the_pod_says_so() -> None:
    decision = decide(seen(old("CANCELLED"), on("n2")))
    (step,) = decision.steps
    assert isinstance(step, SetConditions)
    assert "left alone: it doesn't hold n2" in step.conditions[0].message
    shown = replace(on("n2"), conditions=(replace(step.conditions[0], probed=0.0),))
    assert decide(seen(old("CANCELLED"), shown)).steps == ()


def test_a_pod_whose_live_job_is_left_alone_waits_and_says_what_to_do() -> None:
    job = old("PENDING", listed=("default/train-0", "default/gone"))
    decision = decide(seen(job, theirs()))
    (step,) = decision.steps
    assert isinstance(step, SetConditions)
    assert (
        "default/gone, which isn't here; the pod waits until it has ended: scancel 4711"
        in step.conditions[0].message
    )


def test_a_waiting_pod_that_is_labelled_with_a_strangers_job_gets_its_own() -> None:
    decision = decide(seen(old("RUNNING", listed=("team/other",)), theirs()))
    assert [type(step) for step in decision.steps] == [SubmitJob]


def test_a_job_of_several_that_ended_while_they_waited_costs_no_pod() -> None:
    job = old("CANCELLED", listed=("default/train-0", "default/b"), nodes=())
    decision = decide(seen(job, theirs(), theirs("b")))
    assert [type(step) for step in decision.steps] == [SubmitJob]


# --- the finalizer --------------------------------------------------------------------------------

ENDED = on("n1", phase="Succeeded")


@pytest.mark.parametrize("job", [sight(old("CANCELLED")), sight(old("RUNNING", listed=("team/other",)))])
def test_the_finalizer_goes_once_there_is_nothing_to_wait_for(job: Any) -> None:
    decision = decide(facts(ENDED, sights=(job,)))
    assert decision.steps == (DropFinalizer(pod=ENDED),)
    assert decision.settled


@pytest.mark.parametrize("known", [(), (vanished(NATIVE, old("RUNNING")),)])
def test_a_job_that_is_not_listed_is_asked_for_before_the_finalizer_goes(known: Any) -> None:
    unlisted = decide(facts(ENDED, sights=known))
    assert (unlisted.steps, unlisted.reads, unlisted.settled) == ((), (NATIVE,), False)
    denied = decide(facts(ENDED, sights=known, denied=frozenset({NATIVE})))
    assert denied.steps == (DropFinalizer(pod=ENDED),)


@pytest.mark.parametrize("label", ["", "0", "x", "67108863", "99999999999999999999", "\u0661"])
def test_the_finalizer_of_a_pod_whose_label_can_name_no_job_goes_too(label: str) -> None:
    bare = replace(ENDED, labels={JOB_ID_LABEL: label})
    assert decide(facts(bare)).steps == (DropFinalizer(pod=bare),)


def test_the_finalizer_stays_while_the_job_is_to_be_ended() -> None:
    found = examine(old("RUNNING"), ENDED)
    assert isinstance(found, AdoptJob)
    job = replace(old("RUNNING"), mark=found.mark)
    decision = decide(facts(ENDED, sights=(sight(job),), current=frozenset({NATIVE})))
    assert [type(step) for step in decision.steps] == [EndJob]


def test_a_job_is_read_before_its_pod_may_go() -> None:
    unread = replace(sight(old("CANCELLED")), record=None)
    decision = decide(facts(ENDED, sights=(unread,)))
    assert (decision.steps, decision.reads) == ((), (NATIVE,))


def test_absence_right_after_a_boot_of_slurmctld_frees_no_pod() -> None:
    decision = decide(facts(ENDED, boot_age=10.0, denied=frozenset({NATIVE})))
    assert (decision.steps, decision.settled) == ((), False)
    assert decision.again


def test_a_boot_of_slurmctld_holds_no_pods_whose_job_is_known_to_have_ended() -> None:
    other = replace(ENDED, uid=Uid("uid-2"), name="b")
    decision = decide(facts(ENDED, other, sights=(sight(old("CANCELLED")),), boot_age=10.0))
    assert decision.steps == (DropFinalizer(pod=ENDED), DropFinalizer(pod=other))


def test_only_pods_that_have_the_finalizer_and_still_exist_are_written() -> None:
    gone = Member(pod=replace(ENDED, uid=Uid("uid-2")), gone_age=100.0, node_ready=True)
    plain = replace(ENDED, uid=Uid("uid-3"), finalizers=())
    known = facts(ENDED, plain, gone, denied=frozenset({NATIVE}))
    assert decide(known).steps == (DropFinalizer(pod=ENDED),)


def test_no_condition_is_needed_to_wait_for_the_finalizers_job() -> None:
    quiet = replace(
        ENDED, conditions=(Condition(type="Ready", status="False"),), labels={JOB_ID_LABEL: str(FIRST)}
    )
    ours = sight(record(FIRST, "COMPLETED"))
    assert decide(facts(quiet, sights=(ours,))).steps == (DropFinalizer(pod=quiet),)
