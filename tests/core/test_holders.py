"""The ledger of one process: what it keeps of pods that come, go and are edited, and how long grants wait for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from bridge.core.attempt import Attempt, render
from bridge.core.ledger import Busy
from bridge.core.model import (
    Container,
    ContainerStatus,
    JobId,
    JobRecord,
    KubeNode,
    Mark,
    Node,
    Pod,
    Resources,
    SlurmNode,
    Uid,
)
from bridge.kube.store import Store
from bridge.ledger import LOOKED_LATELY, OLD_VIEW, SHOWN, Ledger
from bridge.metrics import DEVICE_WAITS_EXPIRED
from bridge.names import (
    ATTEMPT_ANNOTATION,
    JOB_ID_LABEL,
    NODE_ANNOTATION,
    SCHEDULER_NAME,
    SCHEDULING_GATE,
)
from tests.core.build import (
    CLUSTER,
    FIRST,
    KEY,
    NODES,
    NOW,
    SECOND,
    bound,
    facts,
    mark,
    pod,
    record,
    released,
    sight,
)
from tests.core.test_ledger import OLD, kube_name, old

THEIRS = Mark(
    cluster=CLUSTER, group=replace(KEY, name="old", uid="x"), attempt=0, uids=(OLD,), pods=("default/old",)
)
GPU_CONTAINER = Container(name="c", resources=Resources(limits={"nvidia.com/gpu": "2"}))


class Desk:
    """A store that a test fills, a clock that it moves, and a grant of one group over n1's GPUs 0 and 1."""

    def __init__(self, *, listed: bool = True) -> None:
        self._now = 1000.0
        self.catching_up = False
        self.records: dict[JobId, JobRecord] = {}
        self.live: dict[Uid, list[JobId]] = {}  # jobs of a pod's group
        self.store = Store(frozenset({SCHEDULER_NAME}), clock=lambda: self.now)
        self.ledger = Ledger(
            self.store,
            kube_name,
            lambda _: 3600.0,
            lambda: self.records,
            cluster=CLUSTER,
            resources=["nvidia.com/gpu"],
            margin=30.0,
            wait=900.0,
            clock=lambda: self.now,
            slurm_now=lambda: NOW + self.now,
            catching_up=lambda: self.catching_up,
            jobs_of=lambda uid: self.live.get(uid, []),
        )
        self.version = 1000
        self.blind = False  # nodes are no longer seen
        for table in (self.store.pods, self.store.nodes, self.store.jobs):
            table.begin()
        for node in NODES.values():
            self.store.nodes.put(node)
        if listed:
            self.sync()

    @property
    def now(self) -> float:
        return self._now

    @now.setter
    def now(self, moment: float) -> None:
        self._now = moment
        if not self.blind:
            self.store.nodes.fresh(moment)

    def sync(self) -> None:
        """The first complete lists, of what has been put so far."""
        for table in (self.store.pods, self.store.nodes, self.store.jobs):
            table.end()
            table.fresh(self.now)

    def put(self, found: Pod) -> None:
        self.version += 1
        self.store.pods.put(replace(found, version=str(self.version)))

    def drop(self, found: Pod) -> None:
        self.store.pods.drop(found)

    def holders(self, node: str = "n1") -> list[str]:
        return [one.pod for one in self.ledger.holders(KubeNode(node))]

    def busy(self, job: JobRecord | None = None, members: Iterable[Pod] = ()) -> Busy | None:
        job = job or record(FIRST, "RUNNING")
        view = facts(*(members or (pod(),)), sights=(sight(job),))
        return self.ledger.awaited(KEY, view.members, view.sights.values()).get(job.id)


@pytest.fixture
def desk() -> Desk:
    return Desk()


DEAD = (ContainerStatus(name="train", terminated=True, exit_code=137),)


def test_a_pod_holds_its_gpus_while_it_terminates_and_until_its_containers_are_dead(desk: Desk) -> None:
    desk.put(old())
    desk.put(old(deleted=NOW))
    desk.now += 3600.0
    assert desk.holders() == ["default/old"]
    desk.put(old(deleted=NOW, phase="Failed", statuses=DEAD))
    assert desk.holders() == []


def test_a_pod_deleted_by_force_holds_its_gpus_for_its_grace_and_the_margin(desk: Desk) -> None:
    desk.put(old(grace=20))
    desk.drop(old(grace=20))
    desk.store.pods.forget(OLD)  # its job has ended, so nobody else needs it any more
    desk.now += 49.0
    assert desk.holders() == ["default/old"]
    desk.now += 1.0
    assert desk.holders() == []


def test_while_nodes_are_not_seen_nobody_is_known_dead_by_time(desk: Desk) -> None:
    """The watch of nodes has failed since: that this one works was true then, and may no longer be."""
    desk.put(old(grace=20))
    desk.drop(old(grace=20))
    desk.now += 30.0
    desk.blind = True
    desk.now += 3600.0
    assert desk.holders() == ["default/old"]
    desk.blind = False
    desk.now += 1.0
    assert desk.holders() == []


def test_on_a_node_that_does_not_answer_nobody_is_known_dead(desk: Desk) -> None:
    desk.put(old(grace=20))
    desk.drop(old(grace=20))
    desk.store.nodes.put(Node(name=KubeNode("n1"), ready=False))
    desk.now += 3600.0
    assert desk.holders() == ["default/old"]


def test_an_annotation_that_somebody_edits_later_frees_no_gpu(desk: Desk) -> None:
    desk.put(old("0-1"))
    desk.put(old("7"))
    desk.put(old(""))
    assert [one.gpus for one in desk.ledger.holders(KubeNode("n1"))] == [frozenset({0, 1})]


def test_the_dead_of_a_node_that_nobody_asks_about_are_forgotten(desk: Desk) -> None:
    for i in range(50):
        one = old(uid=Uid(f"u{i}"), name=f"p{i}")
        desk.put(one)
        ended = replace(one, phase="Succeeded", statuses=DEAD)
        desk.put(ended)
        desk.drop(ended)
    assert sum(len(present) for present in desk.ledger._entries.values()) <= 2


def test_the_holders_of_several_nodes_are_named_with_their_gpus(desk: Desk) -> None:
    desk.put(old("0-1"))
    desk.put(old("zero", uid=Uid("u2"), name="edited"))
    found = desk.ledger.on([SlurmNode("n2"), SlurmNode("n1"), SlurmNode("no-twin")])
    assert [str(one) for one in found] == ["default/old on n1: gpu 0-1", "default/edited on n1: gpu any"]
    assert desk.ledger.on([SlurmNode("n2"), SlurmNode("no-twin")]) == ()


@pytest.mark.parametrize(
    ("states", "reason", "homeless"),
    [
        ("PENDING", "Resources", True),
        ("PENDING", "JobHeldUser", False),  # submitted held: not in the queue yet
        ("RUNNING", "None", False),
    ],
)
def test_a_grant_is_no_wait_while_a_pod_waits_in_the_queue_for_the_place_that_it_lost(
    desk: Desk, states: str, reason: str, homeless: bool
) -> None:
    desk.records[SECOND] = record(SECOND, states, mark=THEIRS, nodes=(), gres=(), reason=reason)
    desk.live[OLD] = [SECOND]
    for present, gives_way in ((old(), homeless), (replace(old(), deleted=NOW), False)):
        desk.put(present)
        seen = desk.busy()
        assert seen is not None
        assert seen.homeless is gives_way


def test_a_pod_is_told_that_a_grant_waits_for_its_devices_as_long_as_it_does(desk: Desk) -> None:
    desk.put(old())
    assert not desk.ledger.wanted([OLD])
    desk.busy()
    assert desk.ledger.wanted([OLD])
    assert not desk.ledger.wanted([Uid("another")])
    desk.now += 60.0
    assert not desk.ledger.wanted([OLD])


def test_a_grant_waits_from_when_it_was_first_seen_busy(desk: Desk) -> None:
    desk.put(old(deleted=NOW))
    first = desk.busy()
    desk.now += 5.0
    second = desk.busy()
    assert first is not None
    assert second is not None
    assert (first.waited, second.waited) == (0.0, 5.0)
    assert desk.ledger.notes() == [f"devices: job {FIRST} waits 5 s for pod default/old on n1: gpu 0-1"]
    desk.put(old(deleted=NOW, phase="Failed", statuses=DEAD))
    assert desk.busy() is None
    assert desk.ledger.notes() == []


def test_a_change_of_the_holder_makes_the_waiting_group_look_again(desk: Desk) -> None:
    told: list[object] = []
    desk.ledger.changed = told.append
    desk.put(old())
    desk.busy()
    assert told == []
    desk.put(old(uid=Uid("other"), name="other", annotations={}))
    assert told == []
    desk.put(old(phase="Failed", statuses=DEAD))
    assert told == [KEY]


def test_a_wait_is_overdue_after_its_limit_and_counted_once(desk: Desk) -> None:
    def counted() -> float:
        return float(DEVICE_WAITS_EXPIRED._value.get())

    before = counted()
    desk.put(old())
    desk.busy()
    desk.now += 900.0
    assert (found := desk.busy()) is not None
    assert not found.overdue
    for _ in range(3):
        desk.now += 1.0
        assert (found := desk.busy()) is not None
        assert found.overdue
    assert counted() == before + 1


def test_another_job_of_the_group_begins_to_wait_anew(desk: Desk) -> None:
    desk.put(old())
    desk.busy()
    desk.now += 899.0
    again = replace(record(FIRST, "RUNNING"), id=type(FIRST)(FIRST + 1))
    assert (found := desk.busy(again)) is not None
    assert found.waited == 0.0


@pytest.mark.parametrize(
    "job",
    [
        record(FIRST, "RUNNING", "CONFIGURING"),
        record(FIRST, "PENDING"),
        record(FIRST, "CANCELLED"),
        record(FIRST, "RUNNING", mark=None),
        record(FIRST, "RUNNING", mark=mark(key=replace(KEY, uid="another"))),
        record(FIRST, "RUNNING", gres=("gpu:2(IDX:0)",)),
    ],
    ids=["configuring", "pending", "ended", "unmarked", "another group's", "unreadable"],
)
def test_only_a_grant_of_the_group_itself_waits(desk: Desk, job: JobRecord) -> None:
    desk.put(old())
    assert desk.busy(job) is None


def test_a_group_whose_pod_is_bound_does_not_wait(desk: Desk) -> None:
    desk.put(old())
    assert desk.busy(members=(bound(FIRST),)) is None


def test_a_wait_that_nobody_looks_at_any_more_is_not_shown(desk: Desk) -> None:
    desk.put(old())
    desk.busy()
    desk.now += LOOKED_LATELY
    assert desk.ledger.notes() == []


def test_readyz_stays_short_however_many_wait(desk: Desk) -> None:
    desk.put(old())
    for i in range(SHOWN + 3):
        key = replace(KEY, uid=f"u{i}")
        mine = Mark(cluster=CLUSTER, group=key, attempt=0, uids=(), pods=())
        view = facts(pod(), sights=(sight(record(FIRST, "RUNNING", mark=mine)),))
        desk.ledger.awaited(key, view.members, view.sights.values())
    notes = desk.ledger.notes()
    assert len(notes) == SHOWN + 1
    assert notes[-1] == "devices: 3 more jobs wait"


def test_a_view_that_is_incomplete_or_old_says_so(desk: Desk) -> None:
    assert desk.ledger.blind() == ""
    desk.now += OLD_VIEW + 1
    assert "old" in desk.ledger.blind()
    assert "not been listed" in Desk(listed=False).ledger.blind()
    desk = Desk()
    desk.catching_up = True
    assert "not been read" in desk.ledger.blind()


def test_a_pod_that_was_handed_over_holds_what_its_job_has_before_it_is_seen_bound(desk: Desk) -> None:
    """By the record of its job: what stands on a pod anybody may have written."""
    desk.records[SECOND] = record(SECOND, "RUNNING", mark=THEIRS)
    waits = released(SECOND, uid=OLD, name="old")
    desk.put(replace(waits, gates=(SCHEDULING_GATE,)))
    assert desk.holders() == []
    desk.put(waits)
    assert [one.gpus for one in desk.ledger.holders(KubeNode("n1"))] == [frozenset({0, 1})]
    assert desk.busy() is not None
    for other in (
        replace(
            waits, annotations={**waits.annotations, ATTEMPT_ANNOTATION: render(Attempt(1))}
        ),  # given back
        replace(waits, labels={JOB_ID_LABEL: "7"}),
        replace(waits, annotations={**waits.annotations, NODE_ANNOTATION: "n2"}),  # where its job is not
        replace(waits, deleted=NOW),
    ):
        desk.put(other)
        assert desk.holders() == []
        assert desk.holders("n2") == []


def test_a_pod_whose_annotation_was_removed_holds_what_the_record_of_its_job_says(desk: Desk) -> None:
    silent = replace(old(), annotations={}, labels={JOB_ID_LABEL: str(SECOND)}, containers=(GPU_CONTAINER,))
    desk.put(silent)
    assert [one.gpus for one in desk.ledger.holders(KubeNode("n1"))] == [
        None
    ]  # any of them, as long as nobody knows
    desk.records[SECOND] = record(SECOND, "RUNNING", mark=THEIRS)
    desk.ledger.job_changed(SECOND)
    desk.records[SECOND] = record(SECOND, "CANCELLED", mark=THEIRS, gres=())
    desk.ledger.job_changed(SECOND)
    assert [one.gpus for one in desk.ledger.holders(KubeNode("n1"))] == [frozenset({0, 1})]


def test_what_a_job_counted_before_it_was_placed_anew_is_nobodys(desk: Desk) -> None:
    desk.put(replace(old("0-1"), labels={JOB_ID_LABEL: str(SECOND)}))
    for text in ("gpu:h100:2(IDX:4-5)", "gpu:h100:2(IDX:6-7)"):
        desk.records[SECOND] = record(SECOND, "RUNNING", mark=THEIRS, gres=(text,))
        desk.ledger.job_changed(SECOND)
    assert [one.gpus for one in desk.ledger.holders(KubeNode("n1"))] == [frozenset({0, 1, 6, 7})]


def test_a_pod_that_was_bound_and_went_out_of_our_sight_holds_what_it_was_sent_with(desk: Desk) -> None:
    sent = replace(
        old("0-1"), node=KubeNode(""), gates=(), phase="Pending", labels={JOB_ID_LABEL: str(SECOND)}
    )
    desk.put(replace(sent, annotations={**sent.annotations, NODE_ANNOTATION: "n1"}))
    desk.drop(replace(sent, node=KubeNode("n1")))  # its last state tells where it was
    assert [one.gpus for one in desk.ledger.holders(KubeNode("n1"))] == [frozenset({0, 1})]


def test_a_node_that_left_kubernetes_still_has_holders(desk: Desk) -> None:
    desk.put(old())
    desk.store.nodes.drop(NODES[SlurmNode("n1")])
    assert desk.ledger.on([SlurmNode("n1")])
    assert [str(claim) for claim in desk.ledger.blocking(record(FIRST, "RUNNING"))] == [
        "default/old on n1: gpu 0-1"
    ]
