"""Events count up in one object and never hurt; single reads of namespaces, nodes and workloads."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.core.lease import LeaseRecord, LeaseRef
from bridge.core.model import KubeNode, Node, Uid
from bridge.errors import NotFound
from bridge.kube.client import KubeClient
from bridge.kube.events import MESSAGE_LIMIT, EventRecorder, event_name
from tests.contract import kube_fixture
from tests.contract.kube_fixture import Side
from tests.worlds import kube_objects
from tests.worlds.kube import KubeWorld
from tests.worlds.kube_faults import Answer, DropBefore

side = kube_fixture.side


async def events(side: Side, reason: str) -> list[dict[str, Any]]:
    found = await side.must("GET", f"/api/v1/namespaces/{side.namespace}/events")
    return [item for item in found["items"] if item["reason"] == reason]


async def test_the_same_reason_is_one_event_that_counts(side: Side) -> None:
    pod = await side.pod()
    recorder = EventRecorder(side.client, "bridge-0", now=lambda: 1.7e9)
    assert await recorder.record(pod, "SlurmWaits", "Priority")
    assert await recorder.record(pod, "SlurmWaits", "Resources", kind="Warning")
    assert await recorder.record(pod, "SlurmGranted", "n1")
    [event] = await events(side, "SlurmWaits")
    assert (event["count"], event["message"], event["type"]) == (2, "Resources", "Normal")
    assert event["involvedObject"]["uid"] == pod.uid
    assert event["metadata"]["name"] == event_name(pod, "SlurmWaits")
    assert event["lastTimestamp"] == "2023-11-14T22:13:20Z"
    assert len(await events(side, "SlurmGranted")) == 1


async def test_another_process_goes_on_with_the_same_event(side: Side) -> None:
    pod = await side.pod()
    assert await EventRecorder(side.client, "bridge-0").record(pod, "SlurmWaits", "Priority")
    assert await EventRecorder(side.client, "bridge-1").record(pod, "SlurmWaits", "Resources")
    [event] = await events(side, "SlurmWaits")
    assert (event["count"], event["message"]) == (2, "Resources")


async def test_an_event_that_expired_is_made_again(side: Side) -> None:
    pod = await side.pod()
    recorder = EventRecorder(side.client, "bridge-0")
    assert await recorder.record(pod, "SlurmWaits", "one")
    path = f"/api/v1/namespaces/{side.namespace}/events/{event_name(pod, 'SlurmWaits')}"
    await side.must("DELETE", path)
    assert await recorder.record(pod, "SlurmWaits", "two")
    [event] = await events(side, "SlurmWaits")
    assert (event["count"], event["message"]) == (1, "two")


async def test_a_long_message_is_cut_to_what_the_server_takes(side: Side) -> None:
    pod = await side.pod()
    assert await EventRecorder(side.client, "bridge-0").record(pod, "Long", "ü" * 5000)
    [event] = await events(side, "Long")
    assert len(event["message"].encode()) <= MESSAGE_LIMIT


async def test_an_event_about_a_node_lives_in_the_default_namespace(side: Side) -> None:
    node = Node(name=KubeNode(side.namespace), uid=Uid("u"))
    assert await EventRecorder(side.client, "bridge-0").record(node, "SlurmDrained", "x")
    name = event_name(node, "SlurmDrained")
    await side.must("GET", f"/api/v1/namespaces/default/events/{name}")
    await side.must("DELETE", f"/api/v1/namespaces/default/events/{name}")


async def test_an_event_about_the_lease_is_listed_in_the_leases_namespace(side: Side) -> None:
    made = await side.client.create_lease(side.namespace, "l", LeaseRecord(holder="me"))
    lease = LeaseRef(namespace=side.namespace, name="l", uid=made.uid)
    recorder = EventRecorder(side.client, "bridge-0")
    assert await recorder.record(lease, "BreakerOpen", "15 jobs are held back", kind="Warning")
    assert await recorder.record(lease, "BreakerOpen", "20 jobs are held back", kind="Warning")
    [event] = await events(side, "BreakerOpen")
    assert (event["count"], event["message"], event["type"]) == (2, "20 jobs are held back", "Warning")
    about = event["involvedObject"]
    assert (about["kind"], about["name"], about["uid"]) == ("Lease", "l", made.uid)


async def test_an_event_about_a_lease_that_was_never_read_is_taken_all_the_same(side: Side) -> None:
    lease = LeaseRef(namespace=side.namespace, name="l")
    assert await EventRecorder(side.client, "bridge-0").record(lease, "BreakerClosed", "x")
    assert len(await events(side, "BreakerClosed")) == 1


async def test_an_operators_annotation_leaves_the_lease_as_it_is(side: Side) -> None:
    wanted = LeaseRecord(
        holder="me", acquired=1e9, renewed=1e9, transitions=3, annotations={"example.com/a": "b"}
    )
    made = await side.client.create_lease(side.namespace, "l", wanted)
    await side.client.annotate_lease(side.namespace, "l", {"example.com/c": "d"})
    now = await side.client.lease(side.namespace, "l")
    assert now.same_renewal(made)
    assert now.annotations == {"example.com/a": "b", "example.com/c": "d"}
    with pytest.raises(NotFound):
        await side.client.annotate_lease(side.namespace, "other", {"example.com/c": "d"})


@pytest.mark.parametrize("effect", [DropBefore(), Answer(403), Answer(429), Answer(500)], ids=repr)
async def test_an_event_that_fails_is_not_the_callers_problem(effect: Answer) -> None:
    world = KubeWorld()
    world.add("pods", kube_objects.pod("a"))
    client = KubeClient(world)
    pod = await client.pod("default", "a")
    recorder = EventRecorder(client, "bridge-0")
    world.faults.plan(effect, resource="events")
    assert not await recorder.record(pod, "SlurmWaits", "x")
    assert await recorder.record(pod, "SlurmWaits", "x")


async def test_a_namespace_has_a_uid_that_names_the_cluster(side: Side) -> None:
    assert len(await side.client.namespace_uid("kube-system")) == 36
    with pytest.raises(NotFound):
        await side.client.namespace_uid("no-such-namespace")
