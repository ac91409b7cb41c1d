"""Pods on nodes that are out of reach: what is drained, and when their jobs end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge.core.facts import Member
from bridge.core.lifecycle import decide
from bridge.core.model import SlurmNode
from bridge.core.steps import DrainNode, EndJob
from bridge.core.verdict import Reason
from tests.core.build import FIRST, NOW, bound, facts, record, sight
from tests.core.test_ends import kinds


def test_a_pod_gone_from_a_node_that_has_just_died_keeps_its_job() -> None:
    member = Member(pod=bound(FIRST), gone_age=9_999.0, node_ready=False, node_dead_for=59.0)
    decision = decide(facts(member, sights=(sight(record(FIRST, "RUNNING")),)))
    assert decision.steps == ()
    assert decision.verdict.reason == Reason.DRAINING


@pytest.mark.parametrize("gone_age", [None, 61.0])
def test_a_dead_node_is_drained_before_the_job_of_its_deleted_pod_ends(gone_age: float | None) -> None:
    there = gone_age is None
    member = Member(
        pod=bound(FIRST, deleted=NOW * there), gone_age=gone_age, deleted_for=61.0 * there, node_dead_for=61.0
    )
    drain, end = decide(facts(member, sights=(sight(record(FIRST, "RUNNING")),))).steps
    assert isinstance(drain, DrainNode)
    assert drain.node == "n1"
    assert drain.reason.startswith("slurm-bridge: ")
    assert "default/train-0" in drain.reason
    assert isinstance(end, EndJob)
    assert end.wait_status is None


def test_how_long_a_pod_is_being_deleted_is_told_by_no_wall_clock() -> None:
    """One that is an hour ahead of the API server's must not call containers dead that have their grace."""
    member = Member(pod=bound(FIRST, deleted=NOW - 3_600.0), node_dead_for=61.0, deleted_for=59.0)
    assert decide(facts(member, sights=(sight(record(FIRST, "RUNNING")),))).steps == ()


def test_a_node_that_left_kubernetes_is_drained_under_the_name_that_slurm_knows() -> None:
    member = Member(pod=bound(FIRST), gone_age=61.0, node_dead_for=61.0)
    drain, _ = decide(facts(member, sights=(sight(record(FIRST, "RUNNING")),), nodes={})).steps
    assert isinstance(drain, DrainNode)
    assert drain.node == "n1"


def test_a_running_pod_on_a_dead_node_is_left_alone() -> None:
    """Nobody asked it to go, and its node may come back with it."""
    member = Member(pod=bound(FIRST), node_dead_for=9_999.0)
    assert decide(facts(member, sights=(sight(record(FIRST, "RUNNING")),))).steps == ()


def test_a_node_out_of_reach_is_drained_at_once_when_slurm_ends_the_job_of_its_pod() -> None:
    """Its devices are free in Slurm from that moment, and nobody is there to end the containers."""
    member = Member(pod=bound(FIRST), node_dead_for=1.0)
    decision = decide(facts(member, sights=(sight(record(FIRST, "CANCELLED")),)))
    assert kinds(decision) == ["DrainNode", "SetConditions", "Notify", "DeletePod"]
    again = replace(member, pod=bound(FIRST, deleted=NOW))
    assert kinds(decide(facts(again, sights=(sight(record(FIRST, "CANCELLED")),)))) == ["DrainNode"]
    done_once = facts(
        again, sights=(sight(record(FIRST, "CANCELLED")),), drained=frozenset({SlurmNode("n1")})
    )
    assert kinds(decide(done_once)) == []


def test_a_node_that_left_kubernetes_is_drained_when_slurm_ends_the_job_of_its_pod() -> None:
    member = Member(pod=bound(FIRST), node_dead_for=1.0)
    decision = decide(facts(member, sights=(sight(record(FIRST, "CANCELLED")),), nodes={}))
    assert kinds(decision) == ["DrainNode", "SetConditions", "Notify", "DeletePod"]


def test_a_node_that_has_just_come_back_first_has_to_hear_that_the_pod_is_gone() -> None:
    running = (sight(record(FIRST, "RUNNING")),)
    back = Member(pod=bound(FIRST), gone_age=9_999.0, node_ready=True, node_ready_for=59.0)
    assert decide(facts(back, sights=running)).steps == ()
    assert kinds(decide(facts(replace(back, node_ready_for=60.0), sights=running))) == ["EndJob"]
