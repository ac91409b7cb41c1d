"""Pods of ours that run where no job of ours ever was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bridge.core.lifecycle import decide
from bridge.core.model import KubeNode, Pod
from bridge.core.steps import Decision, Notify, SetConditions
from bridge.core.verdict import Reason
from bridge.names import NODE_ANNOTATION
from tests.core.build import FIRST, NOW, facts, pod, record, sight

STRAY = pod(gates=(), node=KubeNode("n1"), phase="Running")


def told(decision: Decision) -> Pod:
    """The pod as the decision leaves it."""
    (shown,) = [c for step in decision.steps if isinstance(step, SetConditions) for c in step.conditions]
    return replace(STRAY, conditions=(shown,))


def test_a_pod_that_came_with_its_node_is_told_so_once_and_left_alone() -> None:
    decision = decide(facts(STRAY))
    assert decision.verdict.reason == Reason.FOREIGN
    assert [type(step) for step in decision.steps] == [SetConditions, Notify]
    (shown,) = told(decision).conditions
    assert (shown.status, shown.reason) == ("False", "Foreign")
    assert "spec.nodeName" in shown.message
    assert decide(facts(told(decision), now=NOW + 86400.0)).steps == ()


@pytest.mark.parametrize("changes", [{"annotations": {NODE_ANNOTATION: "n1"}}, {"deleted": NOW}])
def test_a_pod_that_may_have_had_a_job_is_not_told_that_it_has_none(changes: dict[str, Any]) -> None:
    assert decide(facts(replace(STRAY, **changes))).steps == ()


def test_nor_is_one_whose_condition_tells_of_a_job_though_somebody_took_its_label() -> None:
    (shown,) = told(decide(facts(STRAY))).conditions
    ran = replace(STRAY, conditions=(replace(shown, status="True", reason="Running"),))
    assert decide(facts(ran, now=NOW + 3600.0)).steps == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"poll_age": float("inf")},
        {"sights": (sight(record(FIRST, "PENDING")),)},
        {"held": True, "unknown": True},
    ],
)
def test_nor_while_a_job_of_its_may_be_there_unseen(changes: dict[str, Any]) -> None:
    assert decide(facts(STRAY, **changes)).steps == ()
