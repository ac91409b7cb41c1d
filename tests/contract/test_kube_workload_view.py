"""Bytes to workloads: how many pods make a group complete, in every kind and version that says so."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bridge.core.grouping import wishes
from bridge.core.model import Owner, Uid, Workload
from bridge.errors import ProtocolError
from bridge.kube import view, workload_view


def raw(obj: Any) -> bytes:
    return json.dumps(obj).encode()


def read(kind: str, spec: Any, version: str = "x/v1") -> Workload:
    return workload_view.workload(raw({"metadata": {"name": "a"}, "spec": spec}), version, kind)


def replicated(replicas: int | None = None, **job: int) -> dict[str, Any]:
    found: dict[str, Any] = {"name": "r", "template": {"spec": {**job, "template": {"spec": {}}}}}
    return found if replicas is None else {**found, "replicas": replicas}


@pytest.mark.parametrize(
    ("kind", "spec", "size"),
    [
        ("Job", {}, 1),
        ("Job", {"parallelism": 4}, 4),
        ("Job", {"parallelism": 4, "completions": 3}, 3),
        ("Job", {"parallelism": 2, "completions": 8}, 2),
        ("Job", {"completions": 8}, 1),
        ("Job", {"parallelism": 0}, 0),
        ("JobSet", {"replicatedJobs": [replicated()]}, 1),
        ("JobSet", {"replicatedJobs": [replicated(), replicated(2, parallelism=4, completions=4)]}, 9),
        ("JobSet", {"replicatedJobs": [replicated(0, parallelism=4), replicated(parallelism=3)]}, 3),
        ("LeaderWorkerSet", {"replicas": 3, "leaderWorkerTemplate": {"size": 4}}, 4),
        ("LeaderWorkerSet", {"leaderWorkerTemplate": {}}, 1),
        ("PodGroup", {"minMember": 5}, 5),
        ("PodGroup", {"schedulingPolicy": {"gang": {"minCount": 3}}}, 3),
        ("PodGroup", {"schedulingPolicy": {"basic": {}}}, None),
        ("ReplicaSet", None, None),
    ],
)
def test_what_makes_one_group_complete(kind: str, spec: Any, size: int | None) -> None:
    assert read(kind, spec).size == size


def test_jobs_of_a_jobset_that_are_over_or_of_another_scheduler_are_not_waited_for() -> None:
    other = {**replicated(parallelism=4), "name": "cpu"}
    other["template"]["spec"]["template"]["spec"]["schedulerName"] = "default-scheduler"
    workers = {**replicated(3, parallelism=2), "name": "w"}
    obj = {
        "metadata": {"name": "a", "annotations": {wishes.GANG: "true"}},
        "spec": {"replicatedJobs": [other, workers]},
        "status": {"replicatedJobsStatus": [{"name": "w", "succeeded": 1}, {"name": "cpu", "succeeded": 0}]},
    }
    assert workload_view.workload(raw(obj), "x/v1", "JobSet").size == 4


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("LeaderWorkerSet", {"startupPolicy": "LeaderReady"}),
        ("JobSet", {"startupPolicy": {"startupPolicyOrder": "InOrder"}}),
        ("JobSet", {"replicatedJobs": [{**replicated(), "dependsOn": [{"name": "x", "status": "Ready"}]}]}),
    ],
)
def test_workloads_whose_pods_are_made_one_after_the_other_say_by_what(kind: str, spec: Any) -> None:
    assert read(kind, spec).in_turn.startswith("spec.")


def test_workloads_whose_pods_are_made_at_once() -> None:
    assert not read("LeaderWorkerSet", {"startupPolicy": "LeaderCreated"}).in_turn
    assert not read("JobSet", {"startupPolicy": {"startupPolicyOrder": "AnyOrder"}}).in_turn


@pytest.mark.parametrize(("failed", "size"), [("1,3-5", 4), ("1,3-5,7-8", 2), ("", 4), ("all", 4), (None, 4)])
def test_indexes_of_a_job_that_have_failed_for_good_are_not_waited_for(failed: str | None, size: int) -> None:
    obj = {"metadata": {"name": "a"}, "spec": {"parallelism": 4, "completions": 8}}
    assert workload_view.workload(raw({**obj, "status": {"failedIndexes": failed}})).size == size


YES, NO = ({"metadata": {"annotations": {wishes.GANG: said}}} for said in ("true", "false"))


def jobs(pods: int, *, pod: dict[str, Any] | None = None, job: dict[str, Any] | None = None) -> Any:
    inner = {"parallelism": pods, "template": {"spec": {}, **(pod or {})}}
    return {"name": "r", "template": {"spec": inner, **(job or {})}}


@pytest.mark.parametrize(
    ("kind", "said", "spec", "size"),
    [
        ("JobSet", YES, {"replicatedJobs": [jobs(1, pod=NO), jobs(4)]}, 4),
        ("JobSet", YES, {"replicatedJobs": [jobs(1, job=NO), jobs(4, job=YES)]}, 4),
        ("JobSet", YES, {"replicatedJobs": [jobs(1, job=NO, pod=YES), jobs(4)]}, 5),
        ("JobSet", {}, {"replicatedJobs": [jobs(1), jobs(4, pod=YES)]}, 4),
        ("JobSet", NO, {"replicatedJobs": [jobs(1), jobs(4, pod=YES)]}, 4),
        ("LeaderWorkerSet", {}, {"size": 4, "leaderTemplate": NO}, 3),
        ("LeaderWorkerSet", {}, {"size": 4, "leaderTemplate": {}, "workerTemplate": NO}, 1),
        ("LeaderWorkerSet", NO, {"size": 4, "workerTemplate": YES}, 4),
    ],
)
def test_pods_whose_template_says_that_they_are_of_no_gang_are_not_waited_for(
    kind: str, said: dict[str, Any], spec: Any, size: int
) -> None:
    meta = {"name": "a", **said.get("metadata", {})}
    whole = (
        {"leaderWorkerTemplate": spec}
        if kind == "LeaderWorkerSet"
        else {"replicatedJobs": spec["replicatedJobs"]}
    )
    assert workload_view.workload(raw({"metadata": meta, "spec": whole}), "x/v1", kind).size == size


def test_pods_of_a_job_that_have_succeeded_are_not_waited_for() -> None:
    obj = {"metadata": {"name": "a"}, "spec": {"parallelism": 4, "completions": 6}}
    sizes = [
        workload_view.workload(raw({**obj, "status": {"succeeded": done}})).size for done in (0, 2, 5, 6)
    ]
    assert sizes == [4, 4, 1, 0]


@pytest.mark.parametrize(
    "spec",
    [
        {"podGroups": [{"name": "w", "policy": {"gang": {"minCount": 4}}},
                       {"name": "b", "policy": {"basic": {}}}]},
        {"podGroupTemplates": [{"name": "w", "schedulingPolicy": {"gang": {"minCount": 4}}},
                               {"name": "b", "schedulingPolicy": {"basic": {}}}]},
    ],
    ids=["1.35", "1.36-and-later"],
)  # fmt: skip
def test_a_built_in_workload_says_the_size_of_each_of_its_gangs(spec: Any) -> None:
    found = read("Workload", spec)
    assert (found.size, found.sizes) == (None, {"w": 4})


@pytest.mark.parametrize(
    "spec",
    [
        {"podGroupTemplateRef": {"workload": {"workloadName": "plan", "podGroupTemplateName": "w"}}},
        {"workloadRef": {"workloadName": "plan", "templateName": "w"}},
    ],
    ids=["1.36", "1.37"],
)
def test_a_built_in_pod_group_names_its_workload(spec: Any) -> None:
    assert read("PodGroup", spec).parent == "plan"


def test_an_item_of_a_list_is_what_was_asked_for_and_knows_its_owners() -> None:
    meta = {
        "name": "j", "namespace": "n", "uid": "u",
        "annotations": {"a": "b", "kubectl.kubernetes.io/last-applied-configuration": "{…}"},
        "ownerReferences": [{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "s",
                             "uid": "su", "controller": True}],
    }  # fmt: skip
    bare = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": meta}
    page = workload_view.page(
        raw({"metadata": {"resourceVersion": "7"}, "items": [bare]}), "apps/v1", "ReplicaSet"
    )
    line = raw({"type": "ADDED", "object": bare})
    expected = Workload(
        namespace="n", kind="ReplicaSet", name="j", uid=Uid("u"), api_version="apps/v1",
        annotations={"a": "b"},
        owners=(Owner(api_version="jobset.x-k8s.io/v1alpha2", kind="JobSet", name="s", uid=Uid("su"),
                      controller=True),),
    )  # fmt: skip
    assert (page.items, page.version) == ((expected,), "7")
    assert workload_view.event(line, "apps/v1", "ReplicaSet").object == expected
    assert (expected.group, expected.owners[0].group) == ("apps", "jobset.x-k8s.io")


def test_a_coscheduling_pod_group_says_how_long_it_waits() -> None:
    assert read("PodGroup", {"minMember": 2, "scheduleTimeoutSeconds": 90}).timeout == 90


@pytest.mark.parametrize(
    ("spec", "group"),
    [
        ({"schedulingGroup": {"podGroupName": "g"}}, "g"),
        ({"schedulingGroup": {}}, ""),
        ({"workloadRef": {"name": "plan", "podGroup": "w", "podGroupReplicaKey": "3"}}, "plan/w/3"),
        ({"workloadRef": {"name": "plan", "podGroup": "w"}}, "plan/w/"),
        ({}, ""),
    ],
)
def test_a_pod_names_its_built_in_group(spec: Any, group: str) -> None:
    assert view.pod(raw({"metadata": {"name": "a"}, "spec": spec})).scheduling_group == group


def test_what_is_served_is_read_and_what_is_no_answer_is_a_protocol_error() -> None:
    listed = {"kind": "APIGroupList", "groups": [{"name": "apps", "versions": [{"version": "v1"}]}]}
    assert workload_view.groups(raw(listed)) == {"apps": ("v1",)}
    assert workload_view.resources(raw({"resources": [{"name": "a"}, {"name": "a/status"}]})) == {
        "a",
        "a/status",
    }
    for answer in (b"{}", b"404 page not found"):
        with pytest.raises(ProtocolError):
            workload_view.groups(answer)
        with pytest.raises(ProtocolError):
            workload_view.resources(answer)
