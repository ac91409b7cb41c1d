"""From a granted job to the slot of each pod."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.devices import indices
from bridge.core.model import Group, GroupKey, JobId, JobRecord, KubeNode, Pod, SlurmNode, Uid
from bridge.core.placement import PlacementError, Slot, place, shortfall
from bridge.errors import ProtocolError, UserError
from tests.core.build import SPEC


def group(pods: int = 1) -> Group:
    members = tuple(Pod(namespace="a", name=f"p-{n}", uid=Uid(f"u{n}")) for n in range(pods))
    return Group(key=GroupKey("a", "Pod", "p-0", "u0"), pods=members)


def record(*nodes: str, gres: tuple[str, ...] = (), **changes: Any) -> JobRecord:
    names = tuple(SlurmNode(n) for n in nodes)
    return JobRecord(id=JobId(7), states=frozenset({"RUNNING"}), nodes=names, gres=gres, **changes)


def twin(node: SlurmNode) -> KubeNode | None:
    return KubeNode(f"{node}.example.com") if node.startswith("n") else None


def test_one_pod_gets_the_node_and_the_gpus_of_its_job() -> None:
    found = place(group(), record("n4", gres=("gpu:h100:2(IDX:3,5)",)), twin)
    assert found == (Slot(pod=Uid("u0"), node=KubeNode("n4.example.com"), gpus="3,5"),)


def test_a_pod_without_gpus_has_no_indices() -> None:
    assert place(group(), record("n1"), twin) == (Slot(pod=Uid("u0"), node=KubeNode("n1.example.com")),)
    assert place(group(), record("n1", gres=("nic:1(IDX:0)",)), twin)[0].gpus == ""


def test_ranks_follow_the_order_in_which_slurm_names_the_nodes() -> None:
    found = place(group(4), record("n9", "n2", gres=("gpu:4(IDX:0-3)", "gpu:4(IDX:4-7)")), twin)
    assert [(slot.pod, slot.node, slot.gpus) for slot in found] == [
        ("u0", "n9.example.com", "0-1"),
        ("u1", "n9.example.com", "2-3"),
        ("u2", "n2.example.com", "4-5"),
        ("u3", "n2.example.com", "6-7"),
    ]


def test_a_pod_that_holds_several_nodes_runs_on_the_first() -> None:
    assert [slot.node for slot in place(group(), record("n3", "n1"), twin)] == ["n3.example.com"]


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 3))
def test_no_gpu_is_in_two_slots_and_every_pod_has_one_slot(
    nodes: int, pods_each: int, gpus_each: int
) -> None:
    per_node = pods_each * gpus_each
    text = f"gpu:{per_node}(IDX:0-{per_node - 1})" if per_node else ""
    members = group(nodes * pods_each)
    found = place(members, record(*(f"n{n}" for n in range(nodes)), gres=(text,) * nodes), twin)
    assert [slot.pod for slot in found] == [pod.uid for pod in members.pods]
    held = [(slot.node, gpu) for slot in found for gpu in _numbers(slot.gpus)]
    assert len(held) == len(set(held)) == nodes * per_node


def _numbers(text: str) -> tuple[int, ...]:
    size = sum(int(b or a) - int(a) + 1 for a, _, b in (part.partition("-") for part in text.split(",")) if a)
    return indices(f"gpu:{size}(IDX:{text})") if text else ()


@pytest.mark.parametrize(
    ("pods", "job", "word"),
    [
        (1, record(), "names no node"),
        (1, record("x1"), "no node of this Kubernetes cluster"),
        (3, record("n1", "n2"), "3 pods don't spread evenly over its 2 nodes"),
    ],
)
def test_a_grant_that_cannot_hold_the_group_is_named_with_its_job(
    pods: int, job: JobRecord, word: str
) -> None:
    with pytest.raises(PlacementError, match=r"^job 7: ") as caught:
        place(group(pods), job, twin)
    assert word in str(caught.value)
    assert isinstance(caught.value, UserError)


ASKED = replace(SPEC, gres="gres/gpu:h100=2,gres/nic=1", cpus_per_task=4, memory_mib=1000)
TWO = ("gpu:h100:2(IDX:0-1)",)


@pytest.mark.parametrize(
    ("job", "lacks"),
    [
        (record("n1", gres=TWO, cpus=4, memory_mib=1000), ""),
        (record("n1", gres=("gpu:3(CNT:3)",), cpus=8, memory_mib=0), ""),  # more; all of the node's memory
        (record("n1", gres=TWO), ""),  # not told
        (record("n1", gres=("gpu:h100:1(IDX:0)",)), "1 of 2 GPUs on n1"),
        (record("n1", "n2", gres=TWO), "0 of 2 GPUs on n2"),
        (record("n1", gres=TWO, cpus=3), "3 of 4 CPUs"),
        (
            record("n1", cpus=1, memory_mib=999),
            "0 of 2 GPUs on n1 and 1 of 4 CPUs and 999 of 1000 MiB of memory",
        ),
    ],
)
def test_a_job_that_somebody_made_smaller_is_told_from_one_that_is_as_asked_for(
    job: JobRecord, lacks: str
) -> None:
    assert shortfall(ASKED, job) == lacks


def test_an_unknown_gres_text_is_no_reason_to_give_a_grant_back() -> None:
    with pytest.raises(ProtocolError):
        place(group(), record("n1", gres=("gpu:2(",)), twin)


def test_a_group_without_pods_has_no_slots() -> None:
    assert place(group(0), record("n1"), twin) == ()
