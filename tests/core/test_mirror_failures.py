"""A node on which pods do not start is drained, and its restart or a person gives it back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge.core.drains import Cause, cause_of
from bridge.core.model import Condition, KubeNode, Pod, SlurmNode, Uid
from bridge.core.nodes import StartFailure
from bridge.core.startfailures import failure
from bridge.core.steps import NotifyNode
from bridge.core.verdict import Reason
from bridge.names import SCHEDULED_CONDITION
from tests.core.nodeworld import World, by_hand, kube, operated, record

N1, K1 = SlurmNode("n1"), KubeNode("n1")


def failed(world: World, *pods: str) -> None:
    new = tuple(StartFailure(pod=Uid(f"uid-{pod}"), ref=f"default/{pod}", at=world.now) for pod in pods)
    world.failures[K1] = (*world.failures.get(K1, ()), *new)


@pytest.fixture(params=["external", "operator", "by hand"])
def world(request: pytest.FixtureRequest) -> World:
    if request.param == "external":
        world = World.of(kube("n1"), record("n1"))
    else:
        world = World.of(
            kube("n1", labels={}), operated("n1") if request.param == "operator" else by_hand("n1")
        )
    world.settle()
    world.now += 10
    return world


def test_three_pods_that_kubelet_rejects_drain_their_node_and_an_event_says_so(world: World) -> None:
    failed(world, "a", "b")
    failed(world, "b")  # told twice
    assert world.look() == []
    failed(world, "c")
    world.settle()
    reason = world.records[N1].reason
    assert reason == "slurm-bridge: pods do not start: default/a, default/b, default/c, boot boot-1"
    (event,) = world.events
    assert isinstance(event, NotifyNode)
    assert event.verdict.reason is Reason.PODS_DO_NOT_START
    assert "default/b" in event.verdict.text
    world.now += 10_000
    assert world.settle() == []


def test_failures_apart_in_time_are_no_pattern(world: World) -> None:
    for pod in ("a", "b", "c"):
        failed(world, pod)
        world.settle()
        world.now += 400
    assert not world.records[N1].drained


def test_a_new_boot_lifts_only_our_own_drain_and_old_failures_count_no_more(world: World) -> None:
    failed(world, "a", "b", "c")
    world.settle()
    world.now += 60
    world.kubernetes(K1, boot_id="boot-2")
    world.settle()
    assert not world.records[N1].drained
    world.now += 1
    assert world.settle() == []
    failed(world, "d", "e", "f")
    world.settle()
    world.drain(N1, "bad disk")
    world.kubernetes(K1, boot_id="boot-3")
    world.settle()
    assert world.records[N1].reason == "bad disk"
    assert world.records[N1].drained


def test_a_person_who_resumes_the_node_has_the_last_word(world: World) -> None:
    failed(world, "a", "b", "c")
    world.settle()
    world.now += 5
    world.resume(N1)
    world.settle()
    world.restart()
    world.now += 5
    assert world.settle() == []
    assert not world.records[N1].drained
    failed(world, "d", "e", "f")
    world.settle()
    assert cause_of(world.records[N1].reason) is Cause.UNSTARTABLE


def test_many_nodes_that_fail_at_once_are_rather_an_accident() -> None:
    world = World.of(*(kube(f"n{i}") for i in range(10)), *(record(f"n{i}") for i in range(10)))
    world.settle()
    world.now += 10
    for name in world.nodes:
        failures = (StartFailure(pod=Uid(f"{name}-{i}"), ref=f"x/{i}", at=world.now) for i in range(3))
        world.failures[name] = tuple(failures)
    world.settle()
    assert sum(r.drained for r in world.records.values()) == 2


@pytest.mark.parametrize(
    ("reason", "counts"),
    [
        ("OutOfcpu", True),
        ("UnexpectedAdmissionError", True),
        ("Evicted", False),
        ("Error", False),
        ("", False),
    ],
)
def test_only_what_kubelet_rejects_is_the_nodes_fault(reason: str, counts: bool) -> None:
    bound = Condition(type=SCHEDULED_CONDITION, status="True", changed=100.0)
    pod = Pod(
        namespace="x", name="a", uid=Uid("u"), node=K1, phase="Failed", reason=reason, conditions=(bound,)
    )
    found = failure(pod)
    assert (found is not None) is counts
    assert found is None or found.at == 100.0
    assert failure(replace(pod, phase="Running")) is None
