"""A gang of which some pods run and another gets no node: what is said, and what its next job must not get."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import pytest

from bridge.core.attempt import Attempt, render
from bridge.core.facts import Facts
from bridge.core.fit import Taken
from bridge.core.grouping.gangs import digest
from bridge.core.lifecycle import decide
from bridge.core.model import Condition, Container, Gang, Group, JobRecord, Pod, Resources, SlurmNode, Uid
from bridge.core.steps import Decision, DeletePod, Forsake, Release, SetConditions
from bridge.names import ATTEMPT_ANNOTATION, JOB_CONDITION, SCHEDULED_CONDITION
from tests.core.build import FIRST, KEY, NODES, NOW, bound, facts, mark, pod, record, released, sight

SAID = "0/8 nodes are available: 1 node(s) didn't satisfy existing pods anti-affinity rules"
TIMEOUT = 60
N1, N2 = SlurmNode("n1"), SlurmNode("n2")


def half(*, since: float, tried: int = 0) -> Facts:
    """One of two runs on n1 for so many seconds, and kube-scheduler does not take the other on n2. `tried`: attempts
    that the other knows of."""
    first = bound(
        FIRST, "n1", conditions=(Condition(type=SCHEDULED_CONDITION, status="True", changed=NOW - since),)
    )
    late = replace(
        released(FIRST, "n2"),
        name="train-1",
        uid=Uid("uid-2"),
        created=NOW - 1000,
        conditions=(
            Condition(type=SCHEDULED_CONDITION, status="False", reason="Unschedulable", message=SAID),
        ),
    )
    if tried:
        notes = {**late.annotations, ATTEMPT_ANNOTATION: render(Attempt(tried, (N2,), (), NOW))}
        late = replace(late, annotations=notes)
    return seen(first, late, since, tried)


def seen(first: Pod, late: Pod, since: float, tried: int) -> Facts:
    named = replace(mark(), uids=(first.uid, late.uid), pods=(first.ref, late.ref))
    job: JobRecord = record(
        FIRST, "RUNNING", mark=named, nodes=(SlurmNode("n1"), N2), gres=("gpu:2(IDX:0-1)",) * 2, tasks=2
    )
    gang = Gang(wanted=2, timeout=TIMEOUT, complete=True)
    return facts(
        first,
        late,
        sights=(sight(job),),
        group=Group(key=KEY, pods=(first, late), gang=gang),
        attempt=Attempt(tried),
        granted_age=since,
        spec=None,
    )


def forsaken(decision: Decision) -> list[Forsake]:
    return [step for step in decision.steps if isinstance(step, Forsake)]


def test_a_pod_of_a_gang_that_is_not_bound_says_what_kube_scheduler_says() -> None:
    (step,) = (one for one in decide(half(since=20)).steps if isinstance(one, SetConditions))
    (shown,) = (one for one in step.conditions if one.type == JOB_CONDITION)
    assert (step.pod.uid, shown.status, shown.reason) == ("uid-2", "False", "Granted")
    assert shown.message == (
        f"job {FIRST} holds node n2, and the pod is not bound there: kube-scheduler says: {SAID}"
    )


def test_half_a_gang_runs_on_until_its_timeout_and_not_just_until_bind_timeout() -> None:
    assert not [step for step in decide(half(since=TIMEOUT - 1)).steps if isinstance(step, DeletePod)]


def test_half_a_gang_that_begins_anew_avoids_the_node_that_it_did_not_get_which_counts_as_a_lost_grant() -> (
    None
):
    decision = decide(half(since=TIMEOUT + 1))
    (step,) = forsaken(decision)
    assert (step.pod.uid, step.attempt.excluded, step.attempt.lost) == ("uid-2", ("n2",), 1)
    (gone,) = (one for one in decision.steps if isinstance(one, DeletePod))
    assert gone.pod.uid == "uid-1"
    assert SAID in gone.verdict.text
    order = [step for step in decision.steps if isinstance(step, Forsake | DeletePod)]
    assert order == [step, gone], "what the pod knows must not go with those that run"


def test_a_lost_grant_of_half_a_gang_is_counted_once_however_often_it_is_looked_at() -> None:
    decision = decide(half(since=TIMEOUT + 5, tried=1))
    assert not forsaken(decision)
    assert [step for step in decision.steps if isinstance(step, DeletePod)]


@pytest.mark.parametrize(
    ("has", "why"),
    [
        (
            {"cpu": "4", "pods": "9"},
            "too little left for 2 pods, beside those that Slurm does not count (cpu)",
        ),
        ({"cpu": "5", "pods": "2"}, "no room for 2 pods more"),
        ({"cpu": "5", "pods": "9"}, ""),
    ],
)
def test_a_node_that_has_room_for_one_of_two_pods_is_given_back_before_one_of_them_starts(
    has: Mapping[str, str], why: str
) -> None:
    asks = (Container(name="c", resources=Resources(requests={"cpu": "1"})),)
    first, other = (
        pod(name=name, uid=Uid(uid), containers=asks) for name, uid in (("a", "uid-1"), ("b", "uid-2"))
    )
    key = replace(KEY, uid=f"{KEY.uid}.{digest([first.uid, other.uid])}")
    job = record(FIRST, "RUNNING", gres=(), tasks=2, cpus_by_node=(2,), mark=mark(key=key))
    decision = decide(
        facts(
            first,
            other,
            sights=(sight(job),),
            group=Group(key=key, pods=(first, other), gang=Gang(wanted=2, timeout=TIMEOUT, complete=True)),
            spec=None,
            nodes=NODES | {N1: replace(NODES[N1], allocatable=has)},
            beside={N1: Taken(pods=1, amounts={"cpu": Fraction(3)})},
        )
    )
    assert why in decision.verdict.text
    assert {step.attempt.excluded for step in forsaken(decision)} == ({("n1",)} if why else set())
    assert any(isinstance(step, Release) for step in decision.steps) is not bool(why)
