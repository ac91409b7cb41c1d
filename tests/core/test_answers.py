"""What the extender may say: only the node that the pod's own running job holds (invariant 1)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bridge.core.answers import Asked, allowed
from bridge.core.model import GroupKey, KubeNode, SlurmNode, Uid
from bridge.core.verdict import Reason, Verdict
from bridge.names import ATTEMPT_ANNOTATION, GPUS_ANNOTATION, JOB_ID_LABEL, NODE_ANNOTATION
from tests.core.build import CLUSTER, FIRST, NODES, mark, record, released

POD = released(FIRST)
ASKED = Asked(uid=POD.uid, labels=POD.labels, annotations=POD.annotations)
RUNNING = record(FIRST, "RUNNING")


def ask(asked: Asked = ASKED, **changes: Any) -> KubeNode | Verdict:
    base: dict[str, Any] = {
        "cluster": CLUSTER,
        "states": RUNNING.states,
        "record": RUNNING,
        "nodes": NODES,
    }
    return allowed(asked, **(base | changes))


def test_the_granted_node_is_allowed() -> None:
    assert ask() == "n1"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"states": None}, Reason.STALE),
        ({"record": None}, Reason.STALE),
        ({"states": frozenset({"CANCELLED"})}, Reason.STALE),
        ({"cluster": "another"}, Reason.FOREIGN),
        ({"record": replace(RUNNING, mark=None)}, Reason.FOREIGN),
        ({"record": replace(RUNNING, nodes=(SlurmNode("n2"),))}, Reason.OTHER_NODE),
        ({"nodes": {}}, Reason.OTHER_NODE),
    ],
)
def test_anything_less_than_a_running_job_of_the_pod_on_that_node_is_refused(
    changes: dict[str, Any], reason: Reason
) -> None:
    answer = ask(**changes)
    assert isinstance(answer, Verdict)
    assert answer.reason is reason


@pytest.mark.parametrize(
    "states",
    [("PENDING",), ("RUNNING", "CONFIGURING"), ("SUSPENDED",), ("CANCELLED",), ("COMPLETING", "RUNNING")],
)
def test_a_job_that_does_not_run_allows_nothing(states: tuple[str, ...]) -> None:
    found = record(FIRST, *states)
    answer = ask(record=found, states=found.states)
    assert isinstance(answer, Verdict)
    assert answer.reason is Reason.NOT_GRANTED


@pytest.mark.parametrize("missing", [JOB_ID_LABEL, NODE_ANNOTATION])
def test_a_pod_that_the_leader_has_not_released_is_told_to_wait(missing: str) -> None:
    labels = {k: v for k, v in POD.labels.items() if k != missing}
    annotations = {k: v for k, v in POD.annotations.items() if k != missing}
    answer = ask(Asked(uid=POD.uid, labels=labels, annotations=annotations))
    assert isinstance(answer, Verdict)
    assert answer.reason is Reason.NOT_GRANTED


def test_a_tenant_who_copies_the_label_of_another_pods_job_gets_nothing() -> None:
    answer = ask(Asked(uid=Uid("thief"), labels=POD.labels, annotations=POD.annotations))
    assert isinstance(answer, Verdict)
    assert answer.reason is Reason.FOREIGN


def test_a_label_that_is_no_number_is_no_grant() -> None:
    for text in ("", "x", "-1", "１２"):
        answer = ask(Asked(uid=POD.uid, labels={JOB_ID_LABEL: text}, annotations=POD.annotations))
        assert isinstance(answer, Verdict)


def test_a_grant_that_was_given_back_allows_nothing_although_its_job_still_runs() -> None:
    given_back = {**POD.annotations, ATTEMPT_ANNOTATION: '{"attempt":1,"excluded":["n1"],"since":1}'}
    answer = ask(Asked(uid=POD.uid, labels=POD.labels, annotations=given_back))
    assert isinstance(answer, Verdict)
    assert answer.reason is Reason.LOST_GRANT


def test_the_job_of_a_successor_with_the_same_name_allows_nothing() -> None:
    successor = mark(key=GroupKey("default", "Pod", "train-0", "uid-2"))
    answer = ask(record=replace(RUNNING, mark=successor))
    assert isinstance(answer, Verdict)
    assert answer.reason is Reason.FOREIGN


@pytest.mark.parametrize(("told", "fits"), [("0-1", True), ("2-3", False), ("0", False), ("x", False)])
def test_a_pod_that_is_told_other_gpus_than_its_job_holds_is_not_bound(told: str, fits: bool) -> None:
    """A slurmctld that lost the job may have given the same one other GPUs, under the same id."""
    answer = ask(replace(ASKED, annotations={**POD.annotations, GPUS_ANNOTATION: told}))
    assert (answer == KubeNode("n1")) is fits
