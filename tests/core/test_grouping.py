"""Which pods share a job, and whose annotations count."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.core import grouping
from bridge.core.grouping.ranks import last
from bridge.core.model import GroupKey, Owner, Pod, Uid, Workload
from bridge.names import COMPLETION_INDEX


def pod(name: str = "p", **more: Any) -> Pod:
    return Pod(namespace="a", name=name, uid=Uid(f"uid-{name}"), **more)


def owner(kind: str = "Job", version: str = "batch/v1", *, controller: bool = True) -> Owner:
    return Owner(api_version=version, kind=kind, name="train", uid=Uid("j"), controller=controller)


def test_a_bare_pod_is_its_own_group() -> None:
    assert grouping.key_of(pod()) == GroupKey("a", "Pod", "p", "uid-p")
    assert grouping.owner_ref(pod()) is None


def test_a_pod_of_a_job_is_its_own_group_and_its_job_counts() -> None:
    member = pod(owners=(owner("Note", "v1", controller=False), owner()))
    assert grouping.key_of(member) == GroupKey("a", "Pod", "p", "uid-p")
    assert grouping.owner_ref(member) == owner()


@pytest.mark.parametrize(
    "other", [owner(controller=False), owner("ReplicaSet", "apps/v1"), owner("Job", "batch.example.com/v1")]
)
def test_other_owners_do_not_count(other: Owner) -> None:
    assert grouping.owner_ref(pod(owners=(other,))) is None


def test_nothing_is_dropped_and_ranks_follow_the_completion_index_then_the_name() -> None:
    members = [
        pod("b", owners=(owner(),), annotations={COMPLETION_INDEX: "10"}),
        pod("c", owners=(owner(),), annotations={COMPLETION_INDEX: "9"}),
        pod("a", owners=(owner(),), labels={COMPLETION_INDEX: "9"}),
        pod("z", owners=(owner(),), annotations={COMPLETION_INDEX: "nine"}),
    ]
    work = Workload(namespace="a", kind="Job", name="train", uid=Uid("j"))
    found = grouping.build(grouping.key_of(members[0]), members, work)
    assert [member.name for member in found.pods] == ["z", "a", "c", "b"]
    assert found.workload is work
    assert found.key == grouping.key_of(members[0])
    assert [p.name for p in grouping.build(found.key, [pod("b"), pod("a")]).pods] == ["a", "b"]


def test_who_came_for_a_lost_pod_counts_for_it_but_not_a_pod_of_another_job() -> None:
    """Two Jobs of one PodGroup both have an index 0."""

    def made(name: str, job: str, created: float) -> Pod:
        by = Owner(api_version="batch/v1", kind="Job", name=job, uid=Uid(job), controller=True)
        return pod(name, owners=(by,), created=created, annotations={COMPLETION_INDEX: "0"})

    lost, other, came = made("a", "one", 1.0), made("b", "two", 2.0), made("c", "one", 3.0)
    assert last([lost, other, came, pod("d")]) == [other, came, pod("d")]
