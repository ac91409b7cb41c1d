"""Which pods of a workload share the next job, and what their job asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.config import JobSettings
from bridge.core import devices
from bridge.core.constraints import Constraints, HostPort
from bridge.core.grouping import build
from bridge.core.grouping.gangs import Family, Seat, Vacancy, assign, digest, family_uid, generation_of
from bridge.core.jobspec import translate
from bridge.core.model import (
    Condition,
    Container,
    Gang,
    Group,
    GroupKey,
    JobId,
    JobRecord,
    JobSpec,
    KubeNode,
    Pod,
    Resources,
    SlurmNode,
    Uid,
)
from bridge.core.overrides import key
from bridge.core.placement import PlacementError, place
from bridge.errors import UserError
from bridge.names import COMPLETION_INDEX, GANG_ANNOTATION

FAMILY = Family(namespace="a", kind="Job", name="g", uid="w", gang=Gang(wanted=3, timeout=300))


def pod(index: int, **more: Any) -> Pod:
    return Pod(
        namespace="a",
        name=f"g-{index}",
        uid=Uid(f"u{index}"),
        annotations={COMPLETION_INDEX: str(index)} | more.pop("annotations", {}),
        **more,
    )


def seats(*indices: int, **more: Any) -> list[Seat]:
    return [Seat(pod=pod(index), **more) for index in indices]


def whole(*indices: int) -> GroupKey:
    return FAMILY.generation(digest(Uid(f"u{index}") for index in indices))


def bound(index: int, key: GroupKey, **more: Any) -> Seat:
    notes = {GANG_ANNOTATION: generation_of(key)}
    return Seat(pod=pod(index, node=KubeNode("n1"), annotations=notes, **more), present=key)


def test_pods_gather_until_all_are_there() -> None:
    assert set(assign(FAMILY, seats(0, 1)).values()) == {FAMILY.gathering}
    assert set(assign(FAMILY, seats(0, 1, 2)).values()) == {whole(0, 1, 2)}


def test_a_pod_on_its_way_out_is_no_member() -> None:
    leaving = Seat(pod=pod(2, deleted=1.0))
    ended = Seat(pod=pod(2, phase="Failed"))
    for out in (leaving, ended):
        assert assign(FAMILY, [*seats(0, 1), out]) == dict.fromkeys(["u0", "u1"], FAMILY.gathering)


def test_pods_that_a_job_names_stay_together_whoever_comes() -> None:
    key = whole(0, 1, 2)
    found = assign(FAMILY, [*seats(0, 1, 2, named=key), *seats(3)])
    assert [found[Uid(f"u{i}")] for i in range(4)] == [key, key, key, FAMILY.gathering]


def test_pods_that_run_count_for_those_that_come_later() -> None:
    key = whole(0, 1, 2)
    found = assign(FAMILY, [*(bound(i, key) for i in (0, 1, 2)), *seats(3)])
    assert found[Uid("u3")] == whole(3)


def test_the_first_of_a_pod_group_are_enough_and_each_of_the_others_starts_beside_them_on_its_own() -> None:
    group = replace(FAMILY, gang=replace(FAMILY.gang, at_least=True))
    key = whole(0, 1, 2)
    waiting = assign(group, seats(4, 1, 0, 3, 2))
    assert [waiting[Uid(f"u{i}")] for i in range(5)] == [key, key, key, FAMILY.gathering, FAMILY.gathering]
    started = assign(group, [*(bound(i, key) for i in (0, 1, 2)), *seats(3, 4)])
    assert (started[Uid("u3")], started[Uid("u4")]) == (whole(3), whole(4))
    at = (Condition(type="PodScheduled", status="True", changed=5.0),)
    over = [bound(i, key, phase="Succeeded", conditions=at) for i in (0, 1, 2)]
    left = assign(group, [*over, Seat(pod=pod(3, created=1.0))])
    assert left[Uid("u3")] == whole(3), "who was there when they started waits for nobody"
    anew = assign(
        group, [*over[:2], bound(2, key), Seat(pod=pod(3, created=9.0))], [Vacancy(group=key, tasks=3)]
    )
    assert anew[Uid("u3")] == FAMILY.gathering, "who comes for the next run gets nobody's place"


def test_who_comes_for_a_lost_pod_gets_its_place_while_others_run() -> None:
    key = whole(0, 1, 2)
    lost = bound(2, key, phase="Failed")
    running = [bound(0, key), bound(1, key), lost]
    found = assign(FAMILY, [*running, *seats(3)], [Vacancy(group=key, tasks=3)])
    assert found[Uid("u3")] == key
    over = [replace(seat, pod=replace(seat.pod, phase="Succeeded")) for seat in running]
    found = assign(FAMILY, [*over, *seats(3)], [Vacancy(group=key, tasks=3)])
    assert found[Uid("u3")] == FAMILY.gathering


def test_after_a_restart_running_pods_are_known_by_their_annotation() -> None:
    key = whole(0, 1)
    fresh = [replace(bound(i, key), present=None) for i in (0, 1)]
    assert set(assign(FAMILY, fresh).values()) == {key}
    alone = Seat(pod=pod(5, node=KubeNode("n1")))
    assert assign(FAMILY, [alone])[Uid("u5")] == GroupKey("a", "Pod", "g-5", "u5")


@given(st.lists(st.integers(0, 9), unique=True, min_size=3), st.randoms())
def test_whoever_sees_the_same_pods_asks_for_the_same_job(indices: list[int], rng: Any) -> None:
    shuffled = list(indices)
    rng.shuffle(shuffled)
    first, second = assign(FAMILY, seats(*indices)), assign(FAMILY, seats(*shuffled))
    assert first == second
    assert {family_uid(key) for key in first.values()} == {"w"}


# --- the job --------------------------------------------------------------------------------------


def member(index: int, cpu: str, memory: str, gpus: int, **options: str) -> Pod:
    asks = {"cpu": cpu, "memory": memory} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    notes = {key(name.replace("_", "-")): text for name, text in options.items()}
    container = Container(name="c", resources=Resources(limits=asks))
    return replace(pod(index, annotations=notes), containers=(container,))


def gang(*members: Pod) -> Group:
    return build(
        whole(*range(len(members))), members, gang=Gang(wanted=len(members), timeout=300, complete=True)
    )


def spec(*members: Pod) -> JobSpec:
    return translate(gang(*members), settings=JobSettings(), cluster="c")


@given(st.integers(1, 9), st.integers(1, 64_000), st.integers(1, 2**45), st.integers(0, 8))
def test_each_task_has_at_least_what_its_pod_asks_for(pods: int, cpu: int, memory: int, gpus: int) -> None:
    found = spec(*(member(i, f"{cpu}m", str(memory), gpus) for i in range(pods)))
    assert found.tasks == pods
    assert found.cpus_per_task * 1000 >= cpu
    counted = found.memory_mib if pods == 1 else (found.memory_per_cpu or 0) * found.cpus_per_task
    assert counted is not None
    assert memory <= counted * 2**20 < memory + (found.cpus_per_task + 1) * 2**20
    assert devices.wanted(found.gres_per_task) == gpus
    assert not found.gres


def test_of_different_pods_the_most_of_each_counts_for_every_one() -> None:
    found = spec(member(0, "1", "8Gi", 1, sizes="most"), member(1, "4", "1Gi", 2))
    assert (found.cpus_per_task, found.memory_per_cpu, found.gres_per_task) == (4, 2048, "gres/gpu=2")
    assert any("different amounts" in warning for warning in found.warnings)


def test_whole_nodes_are_one_for_each_pod() -> None:
    found = spec(*(member(i, "1", "1Gi", 0, exclusive="true") for i in range(3)))
    assert (found.nodes_min, found.nodes_max, found.tasks_per_node) == (3, 3, 1)


def test_pods_share_whole_nodes_evenly_and_memory_is_counted_by_the_node() -> None:
    """By the CPU it would count for every one of the node's, as all are the job's."""
    wishes = {"exclusive": "true", "min_nodes": "2", "max_nodes": "2"}
    found = spec(*(member(i, "1", "100Gi", 0, **wishes) for i in range(6)))
    assert (found.nodes_min, found.nodes_max, found.tasks_per_node) == (2, 2, 3)
    assert (found.memory_mib, found.memory_per_cpu) == (300 * 1024, None)


@pytest.mark.parametrize(("asked", "own", "most"), [(4, 2, 2), (5, 2, 2), (2, 0, 2), (8, 3, 2)])
def test_a_node_gets_no_more_pods_than_its_gpus_are_enough_for(asked: int, own: int, most: int) -> None:
    found = spec(*(member(i, "1", "1Gi", own, gres=f"gres/gpu={asked}") for i in range(4)))
    assert (found.gres, found.gres_per_task, found.tasks_per_node) == (f"gres/gpu={asked}", "", most)


def test_pods_that_use_one_host_port_are_one_on_each_node() -> None:
    ports = Constraints(ports=(HostPort(8080),))
    members = [replace(member(i, "1", "1Gi", 0), constraints=ports) for i in range(3)]
    found = spec(*members)
    assert (found.nodes_min, found.nodes_max, found.tasks_per_node) == (3, 3, 1)
    others = [replace(members[0], constraints=Constraints(ports=(HostPort(8081),))), member(1, "1", "1Gi", 0)]
    assert spec(*others).nodes_min == 1


def test_pods_that_use_one_host_port_on_fewer_nodes_are_refused() -> None:
    ports = Constraints(ports=(HostPort(8080),))
    members = [replace(member(i, "1", "1Gi", 0, max_nodes="2"), constraints=ports) for i in range(3)]
    with pytest.raises(UserError, match="max-nodes: 2 nodes for 3 pods that use host port 8080/TCP"):
        spec(*members)


def test_more_nodes_than_pods_are_refused() -> None:
    with pytest.raises(UserError, match="min-nodes: 4 nodes for 2 pods"):
        spec(*(member(i, "1", "1Gi", 0, min_nodes="4") for i in range(2)))


# --- the places -----------------------------------------------------------------------------------


@st.composite
def grants(draw: st.DrawFn) -> tuple[list[Pod], JobRecord]:
    """Pods, and a job that holds as many tasks for them, packed as Slurm likes."""
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    gpus, cpus = draw(st.integers(0, 2)), draw(st.integers(1, 4))
    members = [member(i, str(cpus), "1Gi", gpus) for i in range(sum(counts))]
    texts = tuple(f"gpu:h100:{n * gpus}(IDX:0-{n * gpus - 1})" if gpus else "" for n in counts)
    return members, JobRecord(
        id=JobId(7),
        states=frozenset({"RUNNING"}),
        nodes=tuple(SlurmNode(f"n{i}") for i in range(len(counts))),
        gres=texts if gpus else (),
        cpus_by_node=tuple(n * cpus for n in counts),
        tasks=len(members),
    )


@given(grants())
def test_every_pod_has_a_place_and_no_device_two(found: tuple[list[Pod], JobRecord]) -> None:
    members, record = found
    group = gang(*members)
    slots = place(group, record, lambda name: KubeNode(name), spec(*members))
    assert [slot.pod for slot in slots] == [member.uid for member in group.pods]
    order = [record.nodes.index(SlurmNode(slot.node)) for slot in slots]
    assert order == sorted(order)  # ranks follow Slurm's order of nodes
    used = [(slot.node, part) for slot in slots for part in slot.gpus.split(",") if part]
    assert len(set(used)) == len(used)


@pytest.mark.parametrize(("tasks", "gpus", "wanted"), [(2, 5, ["0-2", "3-4"]), (3, 4, ["0-1", "2", "3"])])
def test_gpus_by_the_node_that_do_not_divide_go_to_the_first_in_rank(
    tasks: int, gpus: int, wanted: list[str]
) -> None:
    """Given back, the next grant would be no other, for ever."""
    members = [member(i, "1", "1Gi", 0, gres=f"gres/gpu={gpus}") for i in range(tasks)]
    record = JobRecord(
        id=JobId(7),
        states=frozenset({"RUNNING"}),
        nodes=(SlurmNode("n1"),),
        gres=(f"gpu:h100:{gpus}(IDX:0-{gpus - 1})",),
        cpus_by_node=(tasks,),
        tasks=tasks,
    )
    slots = place(gang(*members), record, lambda name: KubeNode(name), spec(*members))
    assert [slot.gpus for slot in slots] == wanted


def test_a_job_without_room_for_all_is_given_back() -> None:
    members = [member(i, "2", "1Gi", 0) for i in range(3)]
    record = JobRecord(
        id=JobId(7), states=frozenset({"RUNNING"}), nodes=(SlurmNode("n1"),), cpus_by_node=(4,), tasks=3
    )
    with pytest.raises(PlacementError, match="has room for 2 of its 3 pods: 2 on n1"):
        place(gang(*members), record, lambda name: KubeNode(name), spec(*members))
