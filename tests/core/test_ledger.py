"""Who may still use a GPU: holders, what stands in a grant's way, and how long a grant waits for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bridge.core.answers import Asked, allowed
from bridge.core.facts import Facts
from bridge.core.ledger import Busy, Claim, Holder, blocking, holding
from bridge.core.lifecycle import decide
from bridge.core.model import (
    Condition,
    JobRecord,
    KubeNode,
    Pod,
    SlurmNode,
    Uid,
)
from bridge.core.steps import EndJob, Forsake, Release, SetConditions
from bridge.core.verdict import Reason, Verdict
from bridge.errors import ProtocolError
from bridge.names import (
    GPUS_ANNOTATION,
    JOB_CONDITION,
)
from tests.core.build import (
    CLUSTER,
    FIRST,
    KEY,
    NODES,
    NOW,
    bound,
    facts,
    pod,
    record,
    released,
    sight,
)

OLD = Uid("old")


def kube_name(name: SlurmNode) -> KubeNode:
    return KubeNode(name)


def old(gpus: str = "0-1", node: str = "n1", **changes: Any) -> Pod:
    """A pod of another group, on a node."""
    base = bound(FIRST, node, uid=OLD, name="old", annotations={GPUS_ANNOTATION: gpus})
    return replace(base, **changes)


def holder(gpus: str = "0-1", node: str = "n1") -> Holder:
    found = holding(old(gpus, node))
    assert found is not None
    return found


def on(*holders: Holder) -> Any:
    return lambda node: [one for one in holders if one.node == node]


# --- what a pod holds, and what stands in the way --------------------------------------------------


def test_a_pod_holds_the_gpus_that_were_written_on_it() -> None:
    assert holder("0-1,4") == Holder(
        uid=OLD, pod="default/old", node=KubeNode("n1"), gpus=frozenset({0, 1, 4})
    )


@pytest.mark.parametrize("found", [pod(), old(""), released(FIRST)])
def test_a_pod_without_node_or_gpus_holds_nothing(found: Pod) -> None:
    assert holding(found) is None


@pytest.mark.parametrize("text", ["all", "0]x[1", "3-1", "0-999999999", "1,,2"])
def test_a_pod_whose_gpus_cannot_be_told_may_hold_any_of_them(text: str) -> None:
    assert holder(text).shared((6, 7)) == "6-7"


@pytest.mark.parametrize(
    ("gpus", "node", "shared"),
    [("0-1", "n1", "0-1"), ("1-5", "n1", "1"), ("2-7", "n1", ""), ("0-1", "n2", "")],
)
def test_a_holder_stands_in_the_way_on_its_own_node_with_its_own_gpus(
    gpus: str, node: str, shared: str
) -> None:
    found = blocking(record(FIRST, "RUNNING"), kube_name, on(holder(gpus, node)))
    assert [claim.gpus for claim in found] == ([shared] if shared else [])


def test_a_job_of_several_nodes_is_looked_at_on_each_of_them() -> None:
    job = record(
        FIRST, "RUNNING", nodes=(SlurmNode("n1"), SlurmNode("n2")), gres=("gpu:1(IDX:0)", "gpu:1(IDX:7)")
    )
    found = blocking(job, kube_name, on(holder("7", "n1"), holder("0,7", "n2")))
    assert [str(claim) for claim in found] == ["default/old on n2: gpu 7"]


def test_pods_of_the_job_itself_never_stand_in_its_way() -> None:
    """A member of a gang that is bound already, or a bind that is asked for twice."""
    mine = replace(holder(), uid=Uid(KEY.uid))
    assert blocking(record(FIRST, "RUNNING"), kube_name, on(mine)) == ()


def test_native_jobs_have_no_pods_of_their_own() -> None:
    native = record(FIRST, "RUNNING", mark=None)
    assert [claim.gpus for claim in blocking(native, kube_name, on(holder()))] == ["0-1"]


@pytest.mark.parametrize("gres", ["", "(null)", "nic:2(IDX:0-1)", "gpu:2"])
def test_a_job_without_gpus_or_without_their_indices_waits_for_nobody(gres: str) -> None:
    assert blocking(record(FIRST, "RUNNING", gres=(gres,)), kube_name, on(holder())) == ()


def test_a_gres_text_that_slurm_does_not_write_is_no_answer() -> None:
    with pytest.raises(ProtocolError):
        blocking(record(FIRST, "RUNNING", gres=("gpu:2(IDX:0)",)), kube_name, on(holder()))


# --- the grant waits -------------------------------------------------------------------------------

CLAIM = Claim(holder=holder(), gpus="0-1")


def waiting(*pods: Pod, busy: Busy | None = None, **changes: Any) -> Facts:
    job = record(FIRST, "RUNNING")
    found = busy or Busy(claims=(CLAIM,), waited=5.0)
    return facts(*pods, sights=(sight(job),), busy={FIRST: found}, **changes)


def test_a_grant_over_gpus_of_a_living_pod_is_not_handed_over_and_names_the_pod() -> None:
    decision = decide(waiting(pod()))
    assert decision.verdict.reason == Reason.DEVICES_BUSY
    assert "default/old on n1: gpu 0-1" in decision.verdict.text
    assert decision.again == 1.0
    (step,) = decision.steps
    assert isinstance(step, SetConditions)
    assert (step.conditions[0].type, step.conditions[0].status) == (JOB_CONDITION, "True")
    assert decision.verdict.text in step.conditions[0].message


def test_the_condition_changes_at_once_from_waiting_to_granted_and_then_stays() -> None:
    queued = Condition(type=JOB_CONDITION, status="False", reason="Pending", message="…", probed=NOW - 1)
    (step,) = decide(waiting(pod(conditions=(queued,)))).steps
    assert isinstance(step, SetConditions)
    assert decide(waiting(pod(conditions=step.conditions))).steps == ()


def test_the_bind_time_out_does_not_count_while_the_gpus_are_busy() -> None:
    decision = decide(waiting(released(FIRST), granted_age=600.0))
    assert decision.verdict.reason == Reason.DEVICES_BUSY


def test_the_grant_is_handed_over_when_the_gpus_are_free() -> None:
    decision = decide(facts(pod(), sights=(sight(record(FIRST, "RUNNING")),)))
    assert any(isinstance(step, Release) for step in decision.steps)


def test_a_grant_that_has_waited_too_long_goes_elsewhere() -> None:
    late = Busy(claims=(CLAIM,), waited=901.0, overdue=True)
    decision = decide(waiting(pod(), busy=late))
    assert decision.verdict.reason == Reason.LOST_GRANT
    assert "default/old" in decision.verdict.text
    forsake = next(step for step in decision.steps if isinstance(step, Forsake))
    assert SlurmNode("n1") in forsake.attempt.avoided(lambda name: True, NOW)
    assert any(isinstance(step, EndJob) and step.id == FIRST for step in decision.steps)


def test_only_the_nodes_whose_gpus_are_in_use_are_avoided_after_that() -> None:
    """Of a large gang one may be."""
    late = Busy(claims=(CLAIM,), waited=901.0, overdue=True)
    both = record(
        FIRST, "RUNNING", nodes=(SlurmNode("n1"), SlurmNode("n2")), gres=("gpu:h100:2(IDX:0-1)",) * 2
    )
    decision = decide(facts(pod(), sights=(sight(both),), busy={FIRST: late}))
    forsake = next(step for step in decision.steps if isinstance(step, Forsake))
    assert forsake.attempt.avoided(lambda name: True, NOW) == (SlurmNode("n1"),)


# --- bind refuses ----------------------------------------------------------------------------------


def asked(*holders: Holder, job: JobRecord | None = None, gpus: str = "0-1") -> KubeNode | Verdict:
    job = job or record(FIRST, "RUNNING")
    who = released(FIRST)
    told = {**who.annotations, GPUS_ANNOTATION: gpus}
    return allowed(
        Asked(uid=who.uid, labels=who.labels, annotations=told),
        cluster=CLUSTER,
        states=job.states,
        record=job,
        nodes=NODES,
        holders=on(*holders),
    )


def test_no_pod_is_bound_to_gpus_that_another_may_still_use() -> None:
    answer = asked(holder("1"))
    assert isinstance(answer, Verdict)
    assert answer.reason == Reason.DEVICES_BUSY
    assert "default/old on n1: gpu 1" in answer.text
    assert asked(holder("2-7")) == KubeNode("n1")


def test_only_the_pods_own_node_counts_for_its_binding() -> None:
    gang = record(
        FIRST, "RUNNING", nodes=(SlurmNode("n1"), SlurmNode("n2")), gres=("gpu:1(IDX:0)", "gpu:1(IDX:0)")
    )
    assert asked(holder("0", "n2"), job=gang, gpus="0") == KubeNode("n1")


def test_no_pod_is_bound_while_its_gpus_cannot_be_told() -> None:
    answer = asked(job=record(FIRST, "RUNNING", gres=("gpu:2(IDX:0)",)))
    assert isinstance(answer, Verdict)
    assert answer.reason == Reason.REFUSED
