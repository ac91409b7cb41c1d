"""Every request about pods, on the world and on a real API server."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge import names
from bridge.core.model import Condition, KubeNode, Uid
from bridge.errors import Conflict, Invalid, NotFound, ProtocolError
from bridge.kube.kinds import Kind, pods
from bridge.kube.view import pod_event, pods_page
from tests.contract import kube_fixture
from tests.contract.kube_fixture import SCHEDULER, Side

side = kube_fixture.side

NODE = KubeNode("contract-no-such-node")
OTHER_UID = Uid("00000000-0000-0000-0000-000000000000")
FOREIGN_GATE = "example.com/hold"


async def test_a_pod_comes_back_as_it_was_posted(side: Side) -> None:
    pod = await side.pod(labels={"app": "x"}, annotations={"note": "1"}, requests={"cpu": "500m"})
    assert (pod.namespace, pod.name, pod.scheduler) == (side.namespace, "a", SCHEDULER)
    assert pod.labels["app"] == "x"
    assert pod.annotations["note"] == "1"
    assert pod.containers[0].resources.requests == {"cpu": "500m"}
    assert pod.gates == (names.SCHEDULING_GATE,)
    assert pod.phase == "Pending"
    assert pod.uid
    assert pod.version
    assert pod.created > 0
    assert pod.grace == 30
    gated = pod.condition(names.SCHEDULED_CONDITION)
    assert gated is not None
    assert (gated.status, gated.reason) == ("False", "SchedulingGated")


async def test_a_pod_that_is_not_there_is_not_found(side: Side) -> None:
    with pytest.raises(NotFound) as found:
        await side.client.pod(side.namespace, "nobody")
    assert (found.value.status, found.value.code) == (404, "NotFound")


@pytest.mark.parametrize("path", ["/apis/nobody.example.com/v1/pods", "/api/v1/nosuchresource"])
async def test_an_unknown_route_says_nothing_about_objects(side: Side, path: str) -> None:
    with pytest.raises(ProtocolError):
        [page async for page in side.client.pages(Kind("pods", path, pods_page, pod_event))]


async def test_a_list_in_chunks_has_every_pod_once_and_one_version(side: Side) -> None:
    for i in range(7):
        await side.pod(f"p{i}")
    pages = [page async for page in side.client.pages(pods(), limit=3)]
    mine = [p.name for page in pages for p in page.items if p.namespace == side.namespace]
    assert sorted(mine) == [f"p{i}" for i in range(7)]
    assert len(pages) >= 3
    assert len({page.version for page in pages}) == 1
    whole = await side.client.list_pods(limit=3)
    assert [p.name for p in whole.items if p.namespace == side.namespace] == mine


async def test_label_annotation_and_gate_go_in_one_patch(side: Side) -> None:
    pod = await side.pod(gates=(FOREIGN_GATE, names.SCHEDULING_GATE), labels={"app": "x", "old": "1"})
    got = await side.client.patch_pod(
        pod,
        labels={names.JOB_ID_LABEL: "42", "old": None},
        annotations={names.NODE_ANNOTATION: "n1"},
        drop_gate=names.SCHEDULING_GATE,
        version=pod.version,
    )
    assert got.labels == {"app": "x", names.JOB_ID_LABEL: "42"}
    assert got.annotations[names.NODE_ANNOTATION] == "n1"
    assert got.gates == (FOREIGN_GATE,)
    assert got.version != pod.version
    assert side.writes() == [("patch", "pods")]
    assert got == await side.client.pod(side.namespace, "a")


async def test_a_patch_that_changes_nothing_makes_no_new_version(side: Side) -> None:
    pod = await side.pod(labels={"app": "x"}, gates=())
    got = await side.client.patch_pod(pod, labels={"app": "x"}, drop_gate=names.SCHEDULING_GATE)
    assert got.version == pod.version


async def test_one_finalizer_goes_and_the_others_stay(side: Side) -> None:
    pod = await side.pod(finalizers=(names.UPSTREAM_FINALIZER, "example.com/keep"))
    got = await side.client.patch_pod(pod, drop_finalizer=names.UPSTREAM_FINALIZER)
    assert got.finalizers == ("example.com/keep",)
    last = await side.client.patch_pod(got, drop_finalizer="example.com/keep")
    assert last.finalizers == ()


async def test_a_patch_for_another_uid_is_a_conflict_and_changes_nothing(side: Side) -> None:
    pod = await side.pod()
    with pytest.raises(Conflict):
        await side.client.patch_pod(replace(pod, uid=OTHER_UID), labels={"a": "b"})
    with pytest.raises(Conflict):
        await side.client.patch_pod_status(replace(pod, uid=OTHER_UID), nominated=NODE)
    assert await side.client.pod(side.namespace, "a") == pod


async def test_a_patch_at_an_old_version_is_a_conflict(side: Side) -> None:
    pod = await side.pod()
    await side.change("a", {"metadata": {"labels": {"moved": "on"}}})
    with pytest.raises(Conflict) as found:
        await side.client.patch_pod(pod, labels={"a": "b"}, version=pod.version)
    assert (found.value.status, found.value.code) == (409, "Conflict")
    with pytest.raises(Conflict):
        await side.client.patch_pod_status(pod, nominated=NODE, version=pod.version)


async def test_a_patch_of_a_pod_that_is_not_there_is_not_found(side: Side) -> None:
    pod = await side.pod()
    with pytest.raises(NotFound):
        await side.client.patch_pod(replace(pod, name="nobody"), labels={"a": "b"})


async def test_a_malformed_label_is_invalid(side: Side) -> None:
    pod = await side.pod()
    with pytest.raises(Invalid) as found:
        await side.client.patch_pod(pod, labels={"not a label": "x"})
    assert found.value.status == 422


async def test_a_gate_cannot_be_added_again(side: Side) -> None:
    await side.pod(gates=())
    body = {"spec": {"schedulingGates": [{"name": names.SCHEDULING_GATE}]}}
    patch = "application/strategic-merge-patch+json"
    status, _ = await side.send("PATCH", f"{side.pods}/a", body, content_type=patch)
    assert status == 422


async def test_nomination_is_set_kept_and_cleared(side: Side) -> None:
    pod = await side.pod()
    assert pod.nominated == ""
    set_ = await side.client.patch_pod_status(pod, nominated=NODE)
    assert set_.nominated == NODE
    kept = await side.client.patch_pod_status(
        pod, conditions=[Condition(type="example.com/x", status="True")]
    )
    assert kept.nominated == NODE
    cleared = await side.client.patch_pod_status(pod, nominated="")
    assert cleared.nominated == ""
    assert side.writes() == [("patch_status", "pods")] * 3


async def test_conditions_merge_by_type(side: Side) -> None:
    pod = await side.pod()
    waits = Condition(
        type=names.JOB_CONDITION, status="False", reason="Priority", message="soon", probed=1e9, changed=1.1e9
    )
    first = await side.client.patch_pod_status(pod, conditions=[waits])
    assert first.condition(names.JOB_CONDITION) == waits
    assert first.condition(names.SCHEDULED_CONDITION) == pod.condition(names.SCHEDULED_CONDITION)
    runs = Condition(type=names.JOB_CONDITION, status="True", reason="Running", probed=1.2e9, changed=1.2e9)
    second = await side.client.patch_pod_status(pod, conditions=[runs])
    assert second.condition(names.JOB_CONDITION) == runs
    assert len(second.conditions) == 2


async def test_the_status_door_leaves_the_spec_alone(side: Side) -> None:
    pod = await side.pod()
    body = {"spec": {"schedulingGates": [{"$patch": "delete", "name": names.SCHEDULING_GATE}]}}
    await side.must(
        "PATCH", f"{side.pods}/a/status", body, content_type="application/strategic-merge-patch+json"
    )
    await side.change("a", {"status": {"nominatedNodeName": "x"}})
    after = await side.client.pod(side.namespace, "a")
    assert (after.gates, after.nominated) == (pod.gates, "")


async def test_a_bound_pod_has_its_node_and_no_nomination(side: Side) -> None:
    pod = await side.pod(gates=())
    pod = await side.client.patch_pod_status(pod, nominated=NODE)
    await side.client.bind(pod.namespace, pod.name, pod.uid, NODE, version=pod.version)
    after = await side.client.pod(side.namespace, "a")
    assert (after.node, after.nominated) == (NODE, "")
    scheduled = after.condition(names.SCHEDULED_CONDITION)
    assert scheduled is not None
    assert scheduled.status == "True"


@pytest.mark.parametrize("node", [NODE, KubeNode("another-node")])
async def test_a_second_binding_is_a_conflict_even_to_the_same_node(side: Side, node: KubeNode) -> None:
    pod = await side.bound("a")
    with pytest.raises(Conflict):
        await side.client.bind(pod.namespace, pod.name, pod.uid, node)
    assert (await side.client.pod(side.namespace, "a")).node == NODE


async def test_a_gated_pod_cannot_be_bound(side: Side) -> None:
    pod = await side.pod()
    with pytest.raises(Conflict):
        await side.client.bind(pod.namespace, pod.name, pod.uid, NODE)


async def test_a_binding_for_another_uid_is_a_conflict(side: Side) -> None:
    pod = await side.pod(gates=())
    with pytest.raises(Conflict):
        await side.client.bind(pod.namespace, pod.name, OTHER_UID, NODE)
    assert (await side.client.pod(side.namespace, "a")).node == ""


async def test_a_binding_at_an_old_version_is_a_conflict(side: Side) -> None:
    pod = await side.pod(gates=())
    await side.change("a", {"metadata": {"labels": {"moved": "on"}}})
    with pytest.raises(Conflict):
        await side.client.bind(pod.namespace, pod.name, pod.uid, NODE, version=pod.version)
    assert (await side.client.pod(side.namespace, "a")).node == ""


async def test_a_pod_under_deletion_cannot_be_bound(side: Side) -> None:
    pod = await side.pod(gates=(), finalizers=("example.com/keep",))
    await side.client.delete_pod(pod.namespace, pod.name, pod.uid)
    with pytest.raises(Conflict):
        await side.client.bind(pod.namespace, pod.name, pod.uid, NODE)
    await side.client.patch_pod(pod, drop_finalizer="example.com/keep")
    with pytest.raises(NotFound):
        await side.client.pod(side.namespace, "a")


async def test_a_binding_of_a_pod_that_is_not_there_is_not_found(side: Side) -> None:
    with pytest.raises(NotFound):
        await side.client.bind(side.namespace, "nobody", OTHER_UID, NODE)


async def test_an_unbound_pod_is_gone_at_once(side: Side) -> None:
    pod = await side.pod()
    await side.client.delete_pod(pod.namespace, pod.name, pod.uid)
    with pytest.raises(NotFound):
        await side.client.pod(side.namespace, "a")
    with pytest.raises(NotFound):
        await side.client.delete_pod(pod.namespace, pod.name, pod.uid)


async def test_a_bound_pod_is_asked_to_go_and_goes_when_forced(side: Side) -> None:
    pod = await side.bound("a")
    await side.client.delete_pod(pod.namespace, pod.name, pod.uid)
    after = await side.client.pod(side.namespace, "a")
    assert after.deleted > 0
    await side.client.delete_pod(pod.namespace, pod.name, pod.uid, grace=0)
    with pytest.raises(NotFound):
        await side.client.pod(side.namespace, "a")


async def test_a_deletion_for_another_uid_is_a_conflict(side: Side) -> None:
    pod = await side.pod()
    with pytest.raises(Conflict):
        await side.client.delete_pod(pod.namespace, pod.name, OTHER_UID)
    assert (await side.client.pod(side.namespace, "a")).deleted == 0
