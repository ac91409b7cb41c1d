"""Pods whose objects had gone before the bridge began: which jobs have any, what they hold, and for how long."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bridge.core.facts import Member
from bridge.core.ghosts import at_rest
from bridge.core.identity import parse, render
from bridge.core.lifecycle import decide
from bridge.core.model import JobRecord, KubeNode, Node, Uid
from bridge.core.steps import EndJob
from bridge.core.verdict import Reason
from bridge.ledger import HAUNTED
from tests.core.build import FIRST, KEY, NODES, NOW, SECOND, SPEC, bound, facts, mark, pod, record, sight
from tests.core.test_holders import THEIRS, Desk
from tests.core.test_ledger import OLD, old

MARGIN = 30.0
THEIR_MARK = replace(THEIRS, grace=20)
ANY = [None]  # of the node's GPUs: that is all that can be said


@pytest.fixture
def desk() -> Desk:
    return Desk()


def read(desk: Desk, found: JobRecord) -> None:
    desk.records[found.id] = found
    desk.ledger.job_changed(found.id)


def ended(desk: Desk, *states: str, ago: float = 0.0, **changes: Any) -> JobRecord:
    """A job of the old pod's, as Slurm tells of one that is over: without its devices."""
    found = record(SECOND, *states, mark=THEIR_MARK, gres=())
    return replace(found, ended=NOW + desk.now - ago, **changes)


def running(**changes: Any) -> JobRecord:
    return replace(record(SECOND, "RUNNING", mark=THEIR_MARK), **changes)


def gpus(desk: Desk) -> list[frozenset[int] | None]:
    return [one.gpus for one in desk.ledger.holders(KubeNode("n1"))]


@pytest.mark.parametrize("state", ["CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "DEADLINE", "BOOT_FAIL"])
def test_a_job_that_others_ended_may_leave_containers_on_any_gpu_of_its_node(desk: Desk, state: str) -> None:
    read(desk, ended(desk, state))
    assert desk.holders() == ["default/old"]
    assert gpus(desk) == ANY
    assert desk.holders("n2") == []
    assert desk.busy() is not None


def test_a_live_job_without_its_pod_leaves_them_on_its_own_gpus_whatever_ends_it(desk: Desk) -> None:
    read(desk, running())
    assert gpus(desk) == [frozenset({0, 1})]
    read(desk, ended(desk, "FAILED"))
    assert gpus(desk) == [frozenset({0, 1})]


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "OUT_OF_MEMORY"])
def test_an_end_with_an_exit_code_is_ours_and_comes_after_the_containers(desk: Desk, state: str) -> None:
    read(desk, ended(desk, state))
    assert desk.holders() == []


def test_a_cancel_of_ours_says_that_the_containers_are_dead(desk: Desk) -> None:
    over = at_rest(running())
    assert over is not None
    assert parse(render(over)) == over
    read(desk, ended(desk, "CANCELLED", mark=over))
    assert desk.holders() == []


def test_nothing_is_written_on_a_job_that_is_not_ours_or_never_had_a_node() -> None:
    assert at_rest(None) is None
    assert at_rest(running(mark=None)) is None
    assert at_rest(running(nodes=())) is None
    assert at_rest(running(nodes=()), set(THEIR_MARK.uids)) is None


def test_who_else_waits_with_a_gang_is_told_that_its_job_was_ended_by_the_bridge() -> None:
    told = at_rest(running(nodes=()), {Uid("another")})
    assert told is not None
    assert told.over


@pytest.mark.parametrize(
    "changes",
    [{"mark": None}, {"mark": replace(THEIR_MARK, cluster="another")}, {"nodes": ()}],
    ids=["unmarked", "another cluster's", "never placed"],
)
def test_other_jobs_leave_nothing(desk: Desk, changes: dict[str, Any]) -> None:
    read(desk, ended(desk, "CANCELLED", **changes))
    assert desk.holders() == []


def test_a_live_job_without_gpus_leaves_nothing(desk: Desk) -> None:
    read(desk, running(gres=()))
    assert desk.holders() == []


def test_a_live_job_with_an_unreadable_gres_text_may_have_any_gpu(desk: Desk) -> None:
    read(desk, running(gres=("gpu:2(IDX:0)",)))
    assert gpus(desk) == ANY


def test_a_job_that_gets_its_node_later_is_judged_then(desk: Desk) -> None:
    read(desk, running(nodes=(), gres=()))
    read(desk, running())
    assert desk.holders() == ["default/old"]


def test_they_get_their_grace_and_a_margin_from_when_the_job_was_read(desk: Desk) -> None:
    """On a node that was cut off kubelet may have heard of the end only just."""
    read(desk, ended(desk, "CANCELLED", ago=10.0))
    desk.now += 20.0 + MARGIN - 1.0
    assert desk.holders() == ["default/old"]
    desk.now += 1.0
    assert desk.holders() == []
    read(desk, ended(desk, "CANCELLED", ago=10.0))
    assert desk.holders() == []


def test_a_job_that_ended_longer_ago_than_its_grace_and_a_margin_leaves_nothing(desk: Desk) -> None:
    read(desk, ended(desk, "CANCELLED", ago=20.0 + MARGIN))
    assert desk.holders() == []


@pytest.mark.parametrize(("ready", "ago", "left"), [(False, 0.0, 1), (True, 40.0, 1), (True, 60.0, 0)])
def test_however_long_ago_it_ended_its_kubelet_must_have_had_the_time(
    desk: Desk, ready: bool, ago: float, left: int
) -> None:
    since = NOW + desk.now - ago
    desk.store.nodes.put(Node(name=KubeNode("n1"), ready=ready, ready_since=since))
    read(desk, ended(desk, "CANCELLED", ago=3600.0))
    assert len(desk.holders()) == left


def test_on_a_node_that_does_not_answer_they_are_not_known_dead(desk: Desk) -> None:
    desk.store.nodes.put(Node(name=KubeNode("n1"), ready=False))
    read(desk, ended(desk, "NODE_FAIL"))
    desk.now += HAUNTED / 2
    assert desk.holders() == ["default/old"]
    desk.store.nodes.put(NODES[next(iter(NODES))])
    assert desk.holders() == []


def test_a_pod_that_is_seen_is_no_ghost(desk: Desk) -> None:
    told: list[object] = []
    desk.ledger.changed = told.append
    read(desk, ended(desk, "CANCELLED"))
    assert desk.busy() is not None
    desk.put(replace(old(), node=KubeNode("n2")))
    assert told == [KEY]
    assert desk.holders() == []


def test_a_pod_that_was_seen_once_is_no_ghost_either(desk: Desk) -> None:
    seen = replace(old(), node=KubeNode(""))
    desk.put(seen)
    desk.drop(seen)
    read(desk, ended(desk, "CANCELLED"))
    assert desk.holders() == []


def test_nobody_is_a_ghost_before_pods_were_listed() -> None:
    desk = Desk(listed=False)
    read(desk, running())
    desk.now += HAUNTED / 2
    assert desk.holders() == []
    desk.sync()
    assert desk.holders() == ["default/old"]
    desk.now += 20.0 + MARGIN
    assert desk.holders() == []


def test_a_pod_with_two_such_jobs_may_have_what_either_had(desk: Desk) -> None:
    read(desk, running())
    read(desk, running(id=FIRST, gres=("gpu:h100:1(IDX:4)",)))
    assert gpus(desk) == [frozenset({0, 1, 4})]
    read(desk, replace(ended(desk, "CANCELLED"), id=type(FIRST)(7)))
    assert gpus(desk) == ANY


def test_its_own_next_job_does_not_wait_for_a_pod_of_the_group(desk: Desk) -> None:
    whole = mark()
    read(desk, running(mark=whole))
    assert desk.holders() != []
    assert desk.busy(record(FIRST, "RUNNING", mark=whole)) is None


def test_an_hour_after_the_start_none_is_looked_for_and_nothing_is_kept(desk: Desk) -> None:
    desk.put(old(uid=Uid("another"), name="another"))
    desk.now += HAUNTED
    read(desk, ended(desk, "CANCELLED"))
    assert "default/old" not in desk.holders()
    assert not desk.ledger._seen | desk.ledger._judged
    assert OLD not in desk.ledger._ghosts


def test_a_grant_of_gpus_waits_until_jobs_that_ended_before_have_been_read() -> None:
    job = sight(record(FIRST, "RUNNING"))
    early = decide(facts(pod(), sights=(job,), catching_up=True))
    assert (early.verdict.reason, early.steps, early.again) == (Reason.STALE, (), 0.2)
    assert decide(facts(pod(), sights=(job,))).verdict.reason is Reason.GRANTED


def test_a_grant_without_gpus_waits_for_no_reads() -> None:
    job = sight(record(FIRST, "RUNNING", gres=()))
    spec = replace(SPEC, gres="")
    decision = decide(facts(pod(), sights=(job,), spec=spec, catching_up=True))
    assert decision.verdict.reason is Reason.GRANTED


def test_a_job_that_is_cancelled_after_its_containers_is_marked_so() -> None:
    gone = Member(pod=bound(FIRST), gone_age=100.0, node_ready=True)
    (end,) = decide(facts(gone, sights=(sight(record(FIRST, "RUNNING")),))).steps
    assert isinstance(end, EndJob)
    assert (end.wait_status, end.mark) == (None, replace(mark(), over=True))
