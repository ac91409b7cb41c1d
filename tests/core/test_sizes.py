"""Pods of different sizes: which components their job has, who gets which place, and what is read of such a job."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.config import JobSettings
from bridge.core import devices
from bridge.core.grouping import build
from bridge.core.jobspec import avoiding, translate
from bridge.core.model import (
    Gang,
    Group,
    GroupKey,
    JobId,
    JobRecord,
    JobSpec,
    KubeNode,
    Pod,
    SlurmNode,
    is_ended,
    is_granted,
    torn,
)
from bridge.core.placement import PlacementError, place, shortfall
from bridge.core.quantity import ceil_mib, parse
from bridge.errors import UserError
from bridge.names import GPUS_ANNOTATION, JOB_ID_LABEL, NODE_ANNOTATION
from bridge.slurm import components
from tests.core.test_gangs import member

OLD = "Slurm 25.11 takes no placeholder of several sizes, 26.05 does"
UNEQUAL = (member(0, "1", "1Gi", 0), member(1, "4", "8Gi", 2), member(2, "4", "8Gi", 2))


def group(*pods: Pod, kind: str = "JobSet") -> Group:
    gang = Gang(wanted=len(pods), timeout=300, complete=True)
    return build(GroupKey("a", kind, "g", "w.1"), pods, gang=gang)


def spec(*pods: Pod, kind: str = "JobSet", undivided: str = "") -> JobSpec:
    return translate(group(*pods, kind=kind), settings=JobSettings(), cluster="c", undivided=undivided)


def every(found: JobSpec) -> tuple[JobSpec, ...]:
    return (found, *found.others)


def granted(found: JobSpec, *nodes: tuple[str, ...]) -> JobRecord:
    """The job as it runs, each component on nodes of its own, as many tasks on each as fit evenly."""
    parts = []
    for at, (one, names) in enumerate(zip(every(found), nodes, strict=True)):
        tasks, gpus = one.tasks // len(names), devices.wanted(one.gres_per_task) * one.tasks // len(names)
        parts.append(
            JobRecord(
                id=JobId(100 + at),
                states=frozenset({"RUNNING"}),
                nodes=tuple(map(SlurmNode, names)),
                gres=tuple(f"gpu:{gpus}(IDX:0-{gpus - 1})" for _ in names) if gpus else (),
                tasks=one.tasks,
                cpus=one.tasks * one.cpus_per_task,
                cpus_by_node=tuple(tasks * one.cpus_per_task for _ in names),
                mark=one.mark,
            )
        )
    return components.joined(parts)


def twin(name: SlurmNode) -> KubeNode:
    return KubeNode(name)


# --- the job --------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.integers(1, 9000), st.integers(1, 2**36), st.integers(0, 4)), min_size=1, max_size=9
    )
)
def test_what_the_components_ask_for_is_what_their_pods_ask_for(asked: list[tuple[int, int, int]]) -> None:
    pods = [member(i, f"{cpu}m", str(memory), gpus) for i, (cpu, memory, gpus) in enumerate(asked)]
    found = every(spec(*pods))
    assert sum(one.tasks for one in found) == len(pods)
    assert Counter(uid for one in found for uid in one.pods) == (
        {} if len(found) == 1 else Counter(p.uid for p in pods)
    )
    by_uid = {pod.uid: one for one in found for pod in pods if pod.uid in one.pods or len(found) == 1}
    for pod, (cpu, memory, gpus) in zip(pods, asked, strict=True):
        one = by_uid[pod.uid]
        assert one.cpus_per_task == -(-cpu // 1000)
        assert devices.wanted(one.gres_per_task) == gpus
        counted = (
            one.memory_mib if one.memory_mib is not None else (one.memory_per_cpu or 0) * one.cpus_per_task
        )
        assert counted >= ceil_mib(parse(str(memory), "memory"))
    assert len({one.size for one in found}) == len(found), "one component for each size"
    assert len({one.mark for one in found}) == 1


def test_each_component_avoids_what_its_own_pods_can_not_use() -> None:
    first = replace(UNEQUAL[0], annotations={"slurmjob.slinky.slurm.net/exclude-nodes": "n9"})
    asked = spec(first, *UNEQUAL[1:])
    n1, n2 = SlurmNode("n1"), SlurmNode("n2")
    found = avoiding(asked, {"": (n1, n2), asked.size: (n1,), asked.others[0].size: (n2,)})
    assert [one.excluded_nodes for one in every(found)] == [("n9", "n1"), ("n9", "n2")]
    assert found.most is not None
    assert found.most.excluded_nodes == ("n9", "n1", "n2"), "one job for all"


def test_licenses_are_asked_for_once() -> None:
    first = replace(UNEQUAL[0], annotations={"slurmjob.slinky.slurm.net/licenses": "matlab:1"})
    assert [one.licenses for one in every(spec(first, *UNEQUAL[1:]))] == ["matlab:1", ""]


def test_whole_nodes_are_one_for_each_pod_of_each_size() -> None:
    first = replace(UNEQUAL[0], annotations={"slurmjob.slinky.slurm.net/exclusive": "true"})
    found = every(spec(first, *UNEQUAL[1:]))
    assert [(one.nodes_min, one.nodes_max, one.exclusive) for one in found] == [(1, 1, True), (2, 2, True)]


def test_where_slurm_takes_no_such_job_a_jobset_is_refused_and_a_leader_worker_set_gets_the_most_of_each() -> (
    None
):
    with pytest.raises(UserError, match=r"pods of 2 sizes .*Slurm 25\.11.*sizes: most"):
        spec(*UNEQUAL, undivided=OLD)
    found = spec(*UNEQUAL, kind="LeaderWorkerSet", undivided=OLD)
    assert (found.tasks, found.cpus_per_task, found.others) == (3, 4, ())
    assert any(OLD in warning for warning in found.warnings)
    assert not spec(*UNEQUAL[1:], undivided=OLD).others, "pods of one size need no component"


def test_pods_that_only_name_a_group_get_the_most_of_each_unless_they_want_their_own() -> None:
    assert not spec(*UNEQUAL, kind="PodGroup").others
    first = replace(UNEQUAL[0], annotations={"slurmjob.slinky.slurm.net/sizes": "own"})
    assert spec(first, *UNEQUAL[1:], kind="PodGroup").others
    most = replace(UNEQUAL[0], annotations={"slurmjob.slinky.slurm.net/sizes": "most"})
    assert not spec(most, *UNEQUAL[1:]).others


# --- the places -----------------------------------------------------------------------------------


def test_each_pod_gets_a_place_of_the_component_of_its_size_and_ranks_go_on_through_them() -> None:
    found = spec(*UNEQUAL)
    slots = place(group(*UNEQUAL), granted(found, ("n3",), ("n1", "n2")), twin, found)
    assert [(slot.node, slot.gpus, slot.rank) for slot in slots] == [
        ("n3", "", 0),
        ("n1", "0-1", 1),
        ("n2", "0-1", 2),
    ]


def test_who_comes_for_a_lost_pod_gets_its_place_and_one_of_another_size_gets_none() -> None:
    found = spec(*UNEQUAL)
    record = granted(found, ("n3",), ("n1", "n2"))
    there = {JOB_ID_LABEL: "100"}
    kept = replace(
        UNEQUAL[2],
        labels=there,
        node=KubeNode("n2"),
        annotations={NODE_ANNOTATION: "n2", GPUS_ANNOTATION: "0-1"},
    )
    new = (UNEQUAL[0], member(3, "4", "8Gi", 2), kept)
    slots = {slot.pod: slot for slot in place(group(*new), record, twin, spec(*new))}
    assert slots[new[1].uid].node == "n1"
    assert slots[kept.uid].node == "n2"
    other = (UNEQUAL[0], member(3, "9", "8Gi", 2), kept)
    with pytest.raises(PlacementError, match="no places of the size"):
        place(group(*other), record, twin, spec(*other))


def test_a_job_from_before_that_has_the_most_of_each_is_placed_as_the_one_job_that_it_is() -> None:
    found = spec(*UNEQUAL)
    assert found.most is not None
    one = replace(granted(replace(found.most), ("n1",)), id=JobId(100))
    slots = place(group(*UNEQUAL), one, twin, found)
    assert [slot.gpus for slot in slots] == ["0-1", "2-3", "4-5"]


def test_a_component_that_somebody_made_smaller_is_told() -> None:
    found = spec(*UNEQUAL)
    record = granted(found, ("n3",), ("n1", "n2"))
    assert shortfall(found, record) == ""
    small, large = record.parts
    less = components.joined([small, replace(large, gres=("gpu:2(IDX:0-1)", "gpu:1(IDX:0)"))])
    assert shortfall(found, less) == "3 of 4 GPUs"


# --- what is read ---------------------------------------------------------------------------------

RUNS, WAITS, GONE = frozenset({"RUNNING"}), frozenset({"PENDING"}), frozenset({"CANCELLED"})


def test_nothing_less_than_all_components_running_is_a_grant_and_one_that_ended_tears_the_job() -> None:
    assert is_granted(components.states((RUNS, RUNS)))
    for other in (WAITS, GONE, RUNS | {"CONFIGURING"}):
        for both in ((RUNS, other), (other, RUNS)):
            assert not is_granted(components.states(both)), both
            assert torn(components.states(both)) == (other & GONE)
            assert not is_ended(components.states(both))
    assert is_ended(components.states((GONE, frozenset({"COMPLETED"}))))


@given(st.permutations([("7", RUNS), ("100+0", RUNS), ("101+1", GONE), ("200+0", WAITS), ("5_3", WAITS)]))
def test_the_list_tells_of_a_leader_what_its_whole_job_is_in_whatever_order(
    listed: list[tuple[str, frozenset[str]]],
) -> None:
    ids = {"7": 7, "100+0": 100, "101+1": 101, "200+0": 200, "5_3": 5}
    found = components.by_job((text, JobId(ids[text]), states) for text, states in listed)
    assert found == {7: RUNS, 100: RUNS | {"PART_CANCELLED"}, 101: GONE, 200: WAITS, 5: WAITS}


def test_a_mark_that_somebody_wrote_over_is_known_by_the_other_components() -> None:
    small, large = granted(spec(*UNEQUAL), ("n3",), ("n1", "n2")).parts
    read = components.joined([replace(small, mark=None, comment="a note"), large])
    assert (read.mark, read.overwritten) == (large.mark, True)
