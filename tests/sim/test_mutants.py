"""Would the simulation notice? A dozen bugs, planted one at a time in the real functions; schedules must find each.

A mutant counts as caught when a schedule fails with it that holds without it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import pytest
from msgspec import structs

from bridge.apply import WriteDoor
from bridge.core import answers, drains, held, jobid, lifecycle, mirror, placed, rooms, waiting
from bridge.core.ends import end_pods, evidence
from bridge.core.facts import Facts, Member, Sight
from bridge.core.grouping import pod as pod_kind
from bridge.core.model import GroupKey, JobId, JobRecord, KubeNode, Pod
from bridge.core.nodes import Room
from bridge.core.steps import Decision, EndJob, Forsake, NameJob, Release
from bridge.core.verdict import Reason, Verdict
from bridge.errors import NotFound
from bridge.kube import store
from bridge.kube.client import KubeClient
from bridge.ledger import Ledger
from bridge.loops.nodes import NodesLoop
from bridge.names import DRAIN_PREFIX, NODE_ANNOTATION, SUBMITTED_ANNOTATION
from bridge.slurm.client import SlurmClient
from bridge.slurm.watch import JobWatcher
from tests.sim.actions import Create, JobEnds, SlurmDown
from tests.sim.play import play
from tests.sim.runner import silence
from tests.sim.schedule import Options, Schedule, Step, draw

SEEDS = 150  # that a mutant may survive at most
Patch = pytest.MonkeyPatch


@dataclass(frozen=True, slots=True)
class Mutant:
    """`plant` puts the bug in; `more` makes what it needs less rare in the schedules."""

    name: str
    plant: Callable[[Patch], None]
    more: tuple[str, ...] = ()
    first: Schedule | None = None  # played before those that are drawn, where these seldom find it
    held: bool = False  # where Slurm numbers the jobs


# The job ends between the grant and a slow kube-scheduler's binding, while Slurm is away.
ENDS_UNSEEN = Schedule(
    seed=75,
    options=Options(poll=1.0, latency=0.04, thinking=4.0, start_delay=2.0),
    steps=(
        Step(at=0.0, action=Create(pod="p0")),
        Step(at=0.2, action=SlurmDown(seconds=20.0)),
        Step(at=0.25, action=JobEnds(pod="p0", state="NODE_FAIL")),
    ),
)


def _absent_is_gone(patch: Patch) -> None:
    def claim(facts: Facts, running: list[Member], sight: Sight) -> Decision:
        gone = JobRecord(id=sight.id, states=frozenset())
        return end_pods(facts, running, gone, Verdict(Reason.JOB_ENDED, "not in the list"))

    patch.setattr(placed, "claim", claim)


def _404_is_an_end(patch: Patch) -> None:
    read = SlurmClient.job

    async def job(self: SlurmClient, number: JobId) -> JobRecord:
        try:
            return await read(self, number)
        except NotFound:
            return JobRecord(id=number, states=frozenset({"CANCELLED"}))

    patch.setattr(SlurmClient, "job", job)
    patch.setattr("bridge.snapshot.Sight", lambda **known: Sight(**known | {"polled": True}))


def _chosen_ids_are_forgotten(patch: Patch) -> None:
    def candidates(*_: object) -> tuple[JobId, ...]:
        return tuple(JobId(random.randrange(0x02000000, 0x03FD0000)) for _ in range(13))

    patch.setattr(jobid, "candidates", candidates)


def _keyed_by_name(patch: Patch) -> None:
    def key_of(pod: Pod) -> GroupKey:
        return GroupKey(pod.namespace, "Pod", pod.name, pod.name)

    patch.setattr(pod_kind, "key_of", key_of)


def _a_deleted_pod_is_dead(patch: Patch) -> None:
    dead = Member.containers_dead
    patch.setattr(Member, "containers_dead", lambda m, margin: bool(m.pod.deleted) or dead(m, margin))
    running = lifecycle.decide

    def decide(facts: Facts) -> Decision:
        return lifecycle.wind_down(facts) if all(m.pod.deleted for m in facts.members) else running(facts)

    patch.setattr("bridge.loops.groups.decide", decide)


def _a_gone_object_is_dead(patch: Patch) -> None:
    dead = Member.containers_dead
    patch.setattr(Member, "containers_dead", lambda m, margin: not m.exists or dead(m, margin))


def _living_holders_block_nobody(patch: Patch) -> None:
    for user in ("bridge.ledger", "bridge.core.ledger"):
        patch.setattr(f"{user}.blocking", lambda *_, **__: ())


def _one_list_is_enough(patch: Patch) -> None:
    gone = store.Gone
    patch.setattr(store, "Gone", lambda pod, at, deleted: gone(pod, at, True))


def _a_stale_poll_is_fresh(patch: Patch) -> None:
    patch.setattr(JobWatcher, "age", lambda self: 0.0 if self.polls else float("inf"))


def _a_boot_means_nothing(patch: Patch) -> None:
    patch.setattr(Facts, "boot_grace", False)


def _handed_over_before_the_grant(patch: Patch) -> None:
    def allowed(pod: answers.Asked, **_: object) -> KubeNode | Verdict:
        node = pod.annotations.get(NODE_ANNOTATION, "")
        return KubeNode(node) if node else Verdict(Reason.NOT_GRANTED, "no node yet")

    patch.setattr("bridge.grants.allowed", allowed)
    told = waiting.queued

    def queued(facts: Facts, pods: Any, record: JobRecord) -> Decision:
        node = next(iter(facts.nodes.values())).name
        release = tuple(Release(pod=pod, job=record.id, node=node) for pod in pods)
        return replace(told(facts, pods, record), steps=release)

    patch.setattr(lifecycle, "queued", queued)


def _every_mark_is_ours(patch: Patch) -> None:
    patch.setattr(Facts, "owns", lambda self, record: record is not None and record.mark is not None)


def _suspended_is_over(patch: Patch) -> None:
    def judge(facts: Facts, record: JobRecord, pods: Any) -> Verdict | None:
        if "SUSPENDED" in record.states:
            return Verdict(Reason.JOB_ENDED, f"job {record.id} is suspended")
        return evidence(facts, record, pods)

    patch.setattr(placed, "evidence", judge)


def _given_back_before_it_is_written(patch: Patch) -> None:
    lose = waiting.lose

    def backwards(*args: Any, **kwargs: Any) -> Decision:
        decision = lose(*args, **kwargs)
        ends = [step for step in decision.steps if isinstance(step, EndJob)]
        return replace(decision, steps=(*ends, *(step for step in decision.steps if step not in ends)))

    patch.setattr(waiting, "lose", backwards)
    patch.setattr(lifecycle, "lose", backwards)


def _no_attempt_is_written(patch: Patch) -> None:
    apply = WriteDoor.apply

    async def without(self: WriteDoor, step: Any) -> Any:
        return None if isinstance(step, Forsake) else await apply(self, step)

    patch.setattr(WriteDoor, "apply", without)


def _any_record_tells_the_limit(patch: Patch) -> None:
    patch.setattr(placed, "_read_since", lambda *_: True)


def _slurm_ends_pods_at_their_limits(patch: Patch) -> None:
    patch.setattr(placed, "user_end", lambda *_: None)


# --- of nodes --------------------------------------------------------------------------------------


def _our_prefix_anywhere(patch: Patch) -> None:
    known = drains.cause_of

    def cause_of(reason: str) -> drains.Cause | None:
        return known(reason[reason.find(DRAIN_PREFIX) :]) if DRAIN_PREFIX in reason else None

    patch.setattr(drains, "cause_of", cause_of)


def _a_list_without_nodes_is_believed(patch: Patch) -> None:
    async def there(*_: object) -> bool:
        return False

    patch.setattr(NodesLoop, "_there", there)


def _nothing_lingers(patch: Patch) -> None:
    patch.setattr(Ledger, "lingering", lambda *_: "")


def _there_is_always_room(patch: Patch) -> None:
    patch.setattr(rooms, "room", lambda *_: Room(drains=99, recreations=99))


def _every_node_is_ours(patch: Patch) -> None:
    patch.setattr(mirror, "_stranger", lambda *_: "")


def _one_cause_at_a_time(patch: Patch) -> None:
    decide = drains.decide

    def hasty(record: Any, present: Any, known: Any, **others: Any) -> Any:
        ours = drains.standing(record)
        rest = [one for one in present if ours in (None, one.cause)]
        return decide(record, rest, known, **others)

    patch.setattr(drains, "decide", hasty)


def _what_was_not_ours_is_lifted(patch: Patch) -> None:
    patch.setattr(drains, "by_others", lambda *_: False)
    patch.setattr(drains, "standing", lambda record: drains.Cause.CORDONED if record.drained else None)


def _released_before_it_is_named(patch: Patch) -> None:
    onward = held.onward

    def unnamed(*args: Any) -> Decision | None:
        decision = onward(*args)
        if decision is None:
            return None
        return replace(decision, steps=tuple(s for s in decision.steps if not isinstance(s, NameJob)))

    patch.setattr(held, "onward", unnamed)


def _a_name_is_no_lock(patch: Patch) -> None:
    patch.setattr(held, "disputed", lambda *_: None)
    write = KubeClient.patch_pod

    async def patch_pod(self: KubeClient, pod: Pod, **changes: Any) -> Pod:
        named = SUBMITTED_ANNOTATION in (changes.get("annotations") or {})
        return await write(self, pod, **(changes | ({"version": ""} if named else {})))

    patch.setattr(KubeClient, "patch_pod", patch_pod)


def _a_number_is_given_out_once(patch: Patch) -> None:
    patch.setattr(held, "reissued", lambda *_: False)


def _doubles_stay(patch: Patch) -> None:
    for user in ("lifecycle", "claims", "placed"):
        patch.setattr(f"bridge.core.{user}.end_doubles", lambda *_, **__: ())


MUTANTS: Iterable[Mutant] = (
    Mutant("our prefix counts anywhere", _our_prefix_anywhere, ("admin", "node_cordon")),
    Mutant("a list without a node is believed", _a_list_without_nodes_is_believed, ("node_list", "compact")),
    Mutant("nothing lingers on a node", _nothing_lingers, ("node_cordon", "ends")),
    Mutant("there is always room for one more drain", _there_is_always_room, ("silence",)),
    Mutant("every external node is ours", _every_node_is_ours, ("node_cordon",)),
    Mutant("a drain goes with its first cause", _one_cause_at_a_time, ("node_cordon", "node_taint")),
    Mutant("drains of others are lifted", _what_was_not_ours_is_lifted, ("admin",)),
    Mutant("a job that is not listed has ended", _absent_is_gone, ("crash", "slurm_fault")),
    Mutant("404 is the end of a job", _404_is_an_end, ("crash", "slurm_fault")),
    Mutant("chosen ids are forgotten", _chosen_ids_are_forgotten),
    Mutant("groups are keyed by name", _keyed_by_name, ("again",)),
    Mutant("a deletionTimestamp means dead containers", _a_deleted_pod_is_dead, ("delete",)),
    Mutant("an object that is gone means dead containers", _a_gone_object_is_dead, ("delete",)),
    Mutant("a living holder of a GPU blocks nobody", _living_holders_block_nobody, ("ends",)),
    Mutant("one list without a pod is enough", _one_list_is_enough, ("kube_fault", "compact")),
    Mutant("a stale poll is fresh", _a_stale_poll_is_fresh, ("ends", "hung", "down"), ENDS_UNSEEN),
    Mutant("a boot of slurmctld means nothing", _a_boot_means_nothing, ("crash", "restart", "ends")),
    Mutant("pods are handed over before the grant", _handed_over_before_the_grant, ("native",)),
    Mutant("every mark is ours", _every_mark_is_ours, ("foreign",)),
    Mutant("a suspended job is over", _suspended_is_over, ("suspend",)),
    Mutant(
        "the job ends before the attempt is written",
        _given_back_before_it_is_written,
        ("cordon", "kill_at_write"),
    ),
    Mutant("a pod ends by the limit that its job once had", _any_record_tells_the_limit, ("retime",)),
    Mutant("a pod ends with Slurm's limit, not ahead of it", _slurm_ends_pods_at_their_limits, ("retime",)),
    Mutant("no attempt is ever written", _no_attempt_is_written, ("cordon",)),
    Mutant("a held job is released unnamed", _released_before_it_is_named, ("kill",), held=True),
    Mutant("a name may be written over", _a_name_is_no_lock, ("rival",), held=True),
    Mutant("a number is given out once", _a_number_is_given_out_once, ("crash", "native"), held=True),
    Mutant("of two held jobs both stay", _doubles_stay, ("rival",), held=True),
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_found(mutant: Mutant) -> None:
    silence()
    drawn = (draw(seed, more=mutant.more) for seed in range(SEEDS))
    if mutant.held:
        drawn = (structs.replace(one, options=structs.replace(one.options, held=True)) for one in drawn)
    for schedule in chain([mutant.first] if mutant.first else [], drawn):
        with pytest.MonkeyPatch.context() as patch:
            mutant.plant(patch)
            seen = play(schedule)
        assert seen is None or seen.violation.invariant != "no_bug", seen
        if seen is not None and play(schedule) is None:
            print(f"{mutant.name}: seed {schedule.seed}: {seen.violation}")
            return
    pytest.fail(f"{mutant.name}: {SEEDS} schedules did not notice")
