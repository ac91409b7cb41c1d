"""Who comes for a lost pod of a gang gets that one's place, in whatever order they come, and nobody moves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.facts import Facts, Member
from bridge.core.gangs import roll, seated
from bridge.core.grouping import build
from bridge.core.model import (
    Gang,
    JobId,
    JobRecord,
    JobSpec,
    Pod,
    Uid,
)
from bridge.core.placement import Slot, place
from bridge.core.steps import AdoptJob
from bridge.names import GPUS_ANNOTATION, JOB_ID_LABEL, NODE_ANNOTATION, RANK_ANNOTATION
from tests.core.build import facts, sight
from tests.core.test_gangs import member
from tests.core.test_sizes import granted, spec, twin

ID = JobId(100)
STARTED = 1_000.0


def settled(
    record: JobRecord, pods: Iterable[Pod | Member], asked: JobSpec, *, at_least: bool = False
) -> tuple[JobRecord, Facts]:
    """The job's mark, and those that have a place in it, once the bridge has looked at these members."""
    known = tuple(m if isinstance(m, Member) else Member(pod=m, node_ready=True) for m in pods)
    assert record.mark is not None
    gang = Gang(wanted=asked.tasks, timeout=300, complete=True, at_least=at_least)
    group = build(record.mark.group, [m.pod for m in known], gang=gang)
    there = facts(*known, group=group, spec=asked, sights=(sight(record),), cluster="c")
    for step in roll(there, record):
        assert isinstance(step, AdoptJob)
        record = replace(record, mark=step.mark)
    assert not [*roll(there, record)], "it is told once"
    return record, seated(there, record)


def slots(record: JobRecord, seen: Facts) -> dict[Uid, Slot]:
    found = place(seen.group, record, twin, seen.spec)
    assert len({slot.rank for slot in found}) == len(found)
    return {slot.pod: slot for slot in found}


def bound(pod: Pod, slot: Slot) -> Pod:
    notes = {NODE_ANNOTATION: slot.node, GPUS_ANNOTATION: slot.gpus, RANK_ANNOTATION: str(slot.rank)}
    return replace(
        pod, node=slot.node, labels={JOB_ID_LABEL: str(ID)}, annotations={**pod.annotations, **notes}
    )


class Play:
    """A gang of so many pods with and without GPUs; `named`: the name of the pod of an index, the n-th that is made."""

    def __init__(self, sizes: list[int], named: str) -> None:
        self._sizes, self._named, self._made = sizes, named, 0
        first = [self.pod(index) for index in range(len(sizes))]
        self.asked = spec(*first)
        nodes = [(f"n{at}",) for at, _ in enumerate((self.asked, *self.asked.others))]
        self.record = granted(self.asked, *nodes)
        self.home: dict[int, Pod] = {}
        self.come(first)

    def pod(self, index: int) -> Pod:
        self._made += 1
        name = self._named.format(index=index, made=f"x{self._made:04}")
        one = member(index, "1", "1Gi", self._sizes[index])
        return replace(one, name=name, uid=Uid(f"v{self._made}"))

    def come(self, new: list[Pod], indices: list[int] | None = None) -> None:
        there = (*self.home.values(), *new)
        self.record, seen = settled(self.record, there, replace(spec(*there)))
        found = slots(self.record, seen)
        for index, pod in self.home.items():
            slot = found[pod.uid]
            assert (slot.node, slot.gpus, str(slot.rank)) == tuple(
                pod.annotations[name] for name in (NODE_ANNOTATION, GPUS_ANNOTATION, RANK_ANNOTATION)
            ), f"{index} moves"
        for index, pod in zip(indices if indices is not None else range(len(new)), new, strict=True):
            self.home[index] = bound(pod, found[pod.uid])

    def ranks(self) -> dict[int, str]:
        return {index: pod.annotations[RANK_ANNOTATION] for index, pod in self.home.items()}


@pytest.mark.parametrize("named", ["w-{index}", "g-{index}-{made}"], ids=["names", "indices"])
@given(sizes=st.lists(st.integers(0, 2), min_size=2, max_size=6), data=st.data())
def test_who_comes_for_a_lost_pod_gets_its_rank_in_whatever_order_they_come(
    named: str, sizes: list[int], data: st.DataObject
) -> None:
    play = Play(sizes, named)
    before = play.ranks()
    assert sorted(before.values()) == [str(at) for at in range(len(sizes))]
    for _ in range(3):
        lost = data.draw(st.lists(st.sampled_from(sorted(play.home)), unique=True, max_size=len(sizes) - 1))
        for index in lost:
            del play.home[index]
        for index in data.draw(st.permutations(lost)):
            play.come([play.pod(index)], [index])
        assert play.ranks() == before


@given(
    data=st.data(), told=st.lists(st.text(max_size=3) | st.integers(-1, 9).map(str), min_size=4, max_size=4)
)
def test_whatever_anybody_writes_on_pods_no_two_have_one_rank_and_the_others_keep_theirs(
    data: st.DataObject, told: list[str]
) -> None:
    play = Play([0, 0, 0, 0, 0, 0], "w-{index}")
    before = play.ranks()
    for index, text in enumerate(told[:-2]):
        pod = play.home[index]
        play.home[index] = replace(pod, annotations={**pod.annotations, RANK_ANNOTATION: text})
    del play.home[data.draw(st.sampled_from([4, 5]))]
    play.record, seen = settled(play.record, play.home.values(), play.asked)
    found = slots(play.record, seen)
    kept = {index: str(found[pod.uid].rank) for index, pod in play.home.items()}
    assert all(kept[index] == before[index] for index in kept if index in (2, 3, 4, 5))


@given(order=st.permutations(range(4)), lost=st.integers(0, 3))
def test_pods_keep_the_ranks_that_they_were_told_whatever_order_a_new_mark_has(
    order: list[int], lost: int
) -> None:
    """Slurm forgot the job, or somebody wrote over its mark: who came for whom is no longer known."""
    play = Play([0, 0, 0, 0], "w-{index}")
    mark = play.record.mark
    assert mark is not None
    mixed = replace(
        mark, uids=tuple(mark.uids[at] for at in order), pods=tuple(mark.pods[at] for at in order)
    )
    play.record = replace(play.record, mark=mixed)
    before = play.ranks()
    del play.home[lost]
    play.come([play.pod(lost)], [lost])
    assert play.ranks() == before


def test_who_comes_for_a_pod_whose_containers_may_live_waits_for_its_place_though_another_is_free() -> None:
    play = Play([1, 1, 1, 1], "g-{index}-{made}")
    dying = replace(play.home.pop(2), deleted=STARTED)
    del play.home[1]
    late, new = play.pod(2), play.pod(1)
    record, seen = settled(play.record, [*play.home.values(), dying, late], play.asked)
    assert record.mark is not None
    assert late.uid not in record.mark.uids
    record, seen = settled(record, [*play.home.values(), dying, late, new], play.asked)
    assert slots(record, seen)[new.uid].rank == 1, "nobody waits for another's place"
    record, seen = settled(record, [*play.home.values(), late, new], play.asked)
    found = slots(record, seen)
    assert (found[late.uid].rank, found[new.uid].rank) == (2, 1)


@pytest.mark.parametrize(("at_least", "rank"), [(False, 1), (True, 0)])
def test_the_place_of_a_pod_that_ended_well_goes_first_but_of_a_pod_group_last(
    at_least: bool, rank: int
) -> None:
    play = Play([0, 0, 0], "g-{index}-{made}")
    del play.home[0]
    done = Member(pod=replace(play.home.pop(1), phase="Succeeded"), node_ready=True)
    new = replace(play.pod(2), name="g-7-y")
    there: list[Pod | Member] = [*play.home.values(), done, new]
    record, seen = settled(play.record, there, play.asked, at_least=at_least)
    assert slots(record, seen)[new.uid].rank == rank
