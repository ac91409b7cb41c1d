"""Bytes to nouns: every field the core reads, odd values, and what is refused."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import yaml

from bridge.core.constraints import Toleration
from bridge.core.model import (
    Condition,
    Container,
    ContainerStatus,
    KubeNode,
    Node,
    Owner,
    Pod,
    Resources,
    Uid,
)
from bridge.errors import ProtocolError, UserError
from bridge.kube import node_view, view, workload_view

FULL: dict[str, Any] = {
    "metadata": {
        "name": "a", "namespace": "ns", "uid": "u", "resourceVersion": "9",
        "creationTimestamp": "2026-11-30T05:00:00Z", "deletionTimestamp": "2026-11-30T06:00:00Z",
        "labels": {"l": "1"}, "annotations": {"a": "2"}, "finalizers": ["f"],
        "ownerReferences": [
            {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "ju", "controller": True},
            {"apiVersion": "v1", "kind": "X", "name": "x", "uid": "xu"},
        ],
        "managedFields": [{"manager": "m"}],
    },
    "spec": {
        "schedulerName": "s", "nodeName": "n", "schedulingGates": [{"name": "g"}], "priorityClassName": "p",
        "activeDeadlineSeconds": 60, "terminationGracePeriodSeconds": 0,
        "overhead": {"cpu": "10m"}, "resources": {"requests": {"cpu": "3"}},
        "containers": [{
            "name": "c", "image": "i", "env": [{"name": "E", "value": "v"}],
            "resources": {"requests": {"cpu": "1"}, "limits": {"example.com/gpu": "2"}},
        }],
        "initContainers": [{"name": "i"}, {"name": "side", "restartPolicy": "Always"}],
    },
    "status": {
        "phase": "Running", "nominatedNodeName": "nn",
        "conditions": [{
            "type": "Ready", "status": "True", "reason": "r", "message": "m",
            "lastProbeTime": None, "lastTransitionTime": "2026-11-30T05:00:01Z",
        }],
        "containerStatuses": [
            {"name": "c", "state": {"running": {"startedAt": "2026-11-30T05:00:00Z"}}},
            {"name": "d", "state": {"terminated": {"exitCode": 3, "signal": 9, "reason": "OOMKilled"}}},
            {"name": "e", "state": {"waiting": {"reason": "ImagePullBackOff"}}},
            {"name": "f", "state": {}},
            {"name": "g"},
        ],
        "initContainerStatuses": [{"name": "i", "state": {"terminated": {"exitCode": 0}}}],
    },
}  # fmt: skip
BORN = 1796014800.0


def raw(obj: Any) -> bytes:
    return json.dumps(obj).encode()


def test_every_field_of_a_pod_that_the_core_reads_is_there() -> None:
    assert view.pod(raw(FULL)) == Pod(
        namespace="ns",
        name="a",
        uid=Uid("u"),
        version="9",
        created=BORN,
        deleted=BORN + 3600,
        labels={"l": "1"},
        annotations={"a": "2"},
        owners=(
            Owner(api_version="batch/v1", kind="Job", name="j", uid=Uid("ju"), controller=True),
            Owner(api_version="v1", kind="X", name="x", uid=Uid("xu")),
        ),
        finalizers=("f",),
        scheduler="s",
        node=KubeNode("n"),
        gates=("g",),
        priority_class="p",
        containers=(
            Container(name="c", resources=Resources(requests={"cpu": "1"}, limits={"example.com/gpu": "2"})),
        ),
        init_containers=(Container(name="i"), Container(name="side", sidecar=True)),
        overhead={"cpu": "10m"},
        resources=Resources(requests={"cpu": "3"}),
        active_deadline=60,
        grace=0,
        phase="Running",
        nominated=KubeNode("nn"),
        conditions=(Condition(type="Ready", status="True", reason="r", message="m", changed=BORN + 1),),
        statuses=(
            ContainerStatus(name="i", terminated=True),
            ContainerStatus(name="c", running=True),
            ContainerStatus(name="d", terminated=True, exit_code=3, signal=9, reason="OOMKilled"),
            ContainerStatus(name="e", reason="ImagePullBackOff"),
            ContainerStatus(name="f"),
            ContainerStatus(name="g"),
        ),
    )


def test_a_pod_with_nothing_in_it_has_the_defaults() -> None:
    pod = view.pod(b'{"metadata": {"name": "a", "namespace": "b", "uid": "u", "labels": null}}')
    assert pod == Pod(namespace="b", name="a", uid=Uid("u"))


def test_a_node_is_ready_only_if_it_says_so() -> None:
    meta = {"name": "n", "uid": "u", "labels": {"l": "1"}}
    told = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-30T12:00:00Z"}
    ready = {"conditions": [told], "allocatable": {"cpu": "8"}}
    node = node_view.node(raw({"metadata": meta, "spec": {"unschedulable": True}, "status": ready}))
    assert (node.name, node.labels, node.ready, node.cordoned) == ("n", {"l": "1"}, True, True)
    assert node.ready_since == 1_796_040_000.0  # 2026-11-30T12:00:00Z
    assert node.allocatable == {"cpu": "8"}
    for status in ("False", "Unknown"):
        sick = {"conditions": [{"type": "Ready", "status": status}]}
        assert not node_view.node(raw({"metadata": meta, "status": sick})).ready
    assert not node_view.node(raw({"metadata": meta})).ready


def test_of_a_node_everything_is_there_that_its_twin_in_slurm_is_told() -> None:
    said = {"topology.slinky.slurm.net/spec": "default:leaf1", "other": "x"}
    ours = {"type": "slinky.slurm.net/SlurmNode", "status": "False", "reason": "Drained", "message": "fan"}
    times = {"lastTransitionTime": "2026-11-30T12:00:00Z", "lastHeartbeatTime": "2026-11-30T13:00:00Z"}
    node = node_view.node(
        raw({
            "metadata": {"name": "n", "annotations": said, "deletionTimestamp": "2026-11-30T12:00:00Z"},
            "status": {
                "conditions": [{"type": "Ready", "status": "Unknown"}, ours | times],
                "nodeInfo": {"bootID": "b1", "kernelVersion": "6"},
                "addresses": [
                    {"type": "Hostname", "address": "n"},
                    {"type": "InternalIP", "address": "10.0.0.1"},
                    {"type": "InternalIP", "address": "fd00::1"},
                ],
            },
        })
    )  # fmt: skip
    assert node.annotations == {"topology.slinky.slurm.net/spec": "default:leaf1"}
    assert (node.deleted, node.unknown, node.ready) == (1_796_040_000.0, True, False)
    assert (node.boot_id, node.addresses) == ("b1", ("10.0.0.1", "fd00::1"))
    assert node.mirrored == Condition(
        type=ours["type"], status="False", reason="Drained", message="fan", changed=1_796_040_000.0
    )


def test_a_heartbeat_of_kubelet_changes_nothing_in_a_node() -> None:
    def at(time: str) -> Node:
        found = [
            {
                "type": kind,
                "status": "True",
                "lastHeartbeatTime": time,
                "lastTransitionTime": "2026-11-30T12:00:00Z",
            }
            for kind in ("Ready", "slinky.slurm.net/SlurmNode")
        ]
        return node_view.node(
            raw({"metadata": {"name": "n", "resourceVersion": time}, "status": {"conditions": found}})
        )

    assert at("2026-11-30T13:00:00Z") == at("2026-11-30T13:00:10Z")


def test_a_page_says_where_it_goes_on() -> None:
    page = view.pods_page(raw({"metadata": {"resourceVersion": "7", "continue": "t"}, "items": [FULL]}))
    assert (page.items, page.version, page.more) == ((view.pod(raw(FULL)),), "7", "t")
    empty = node_view.page(raw({"metadata": {"resourceVersion": "7"}, "items": None}))
    assert (empty.items, empty.more) == ((), "")


def test_a_pod_that_is_not_ours_is_reduced() -> None:
    page = view.pods_page(
        raw({"metadata": {"resourceVersion": "7"}, "items": [FULL]}), lambda name: name != "s"
    )
    assert page.items == (
        Pod(
            namespace="ns",
            name="a",
            uid=Uid("u"),
            version="9",
            scheduler="s",
            node=KubeNode("n"),
            priority_class="p",
            containers=(Container(name="", resources=Resources(requests={"cpu": "1"})),),
            init_containers=(Container(name=""), Container(name="", sidecar=True)),
            overhead={"cpu": "10m"},
            resources=Resources(requests={"cpu": "3"}),
            phase="Running",
        ),
    )


def test_of_a_pod_that_is_not_ours_it_is_known_which_taints_it_bears_and_whether_it_is_a_slurmd() -> None:
    managed = {"key": "slinky.slurm.net/managed-node", "operator": "Exists"}
    tolerant = {"tolerations": [managed, {**managed, "effect": "NoExecute", "tolerationSeconds": 300}]}
    meta = {"name": "a", "labels": {"app.kubernetes.io/name": "slurmd", "tier": "x"}}
    pod = view.pod_event(
        raw({"type": "ADDED", "object": {"metadata": meta, "spec": tolerant}}), lambda name: False
    ).object
    assert pod is not None
    assert pod.labels == {"app.kubernetes.io/name": "slurmd"}
    key = "slinky.slurm.net/managed-node"
    assert pod.constraints.tolerations == (
        Toleration(key, "Exists", "", ""),
        Toleration(key, "Exists", "", "NoExecute", 300),
    )


def test_ten_thousand_pods_of_others_share_what_they_ask_for() -> None:
    first, second = view.pods_page(
        raw({"metadata": {"resourceVersion": "7"}, "items": [FULL, {**FULL, "metadata": {"name": "b"}}]}),
        lambda name: False,
    ).items
    assert first.containers[0] is second.containers[0]
    assert first.constraints is second.constraints


@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED", "DELETED"])
def test_an_event_carries_its_object_and_version(kind: str) -> None:
    event = view.pod_event(raw({"type": kind, "object": FULL}))
    assert (event.type, event.object, event.version) == (kind, view.pod(raw(FULL)), "9")


def test_a_bookmark_carries_only_a_version() -> None:
    event = node_view.event(
        b'{"type":"BOOKMARK","object":{"kind":"Node","metadata":{"resourceVersion":"12"}}}'
    )
    assert (event.type, event.object, event.version) == ("BOOKMARK", None, "12")


def test_an_error_event_carries_its_code() -> None:
    line = b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"old"}}'
    event = workload_view.event(line)
    assert (event.type, event.code, event.reason, event.message) == ("ERROR", 410, "Expired", "old")


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b'{"type":"NEWS","object":{"metadata":{}}}', b"\xff{}"])
def test_what_is_no_event_is_a_protocol_error(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        view.pod_event(line)


def test_a_manifest_gets_a_namespace_and_a_uid() -> None:
    text = """
    kind: Pod
    metadata: {name: a, annotations: {slurmjob.slinky.slurm.net/timelimit: "5"}}
    spec:
      schedulerName: slurm-bridge
      containers: [{name: c, resources: {requests: {cpu: 2, memory: 1Gi}, limits: {example.com/gpu: 1, cpu: 0.5}}}]
    """
    pod = view.pod_from_object(yaml.safe_load(text))
    assert (pod.namespace, pod.uid, pod.scheduler) == ("default", "offline", "slurm-bridge")
    asked = pod.containers[0].resources
    assert asked.requests == {"cpu": "2", "memory": "1Gi"}
    assert asked.limits == {"example.com/gpu": "1", "cpu": "0.5"}


def test_a_manifest_of_a_job_becomes_a_workload() -> None:
    text = "{kind: JobSet, metadata: {name: j, namespace: x, annotations: {a: b}}, spec: {activeDeadlineSeconds: 9}}"
    found = workload_view.from_object(yaml.safe_load(text))
    assert (found.kind, found.namespace, found.name, found.uid) == ("JobSet", "x", "j", "offline")
    assert (found.annotations, found.active_deadline) == ({"a": "b"}, 9)


@pytest.mark.parametrize(
    ("kind", "status", "reason", "overdue"),
    [
        ("FailureTarget", "True", "DeadlineExceeded", "too long"),  # since 1.31 while its pods still end
        ("Failed", "True", "DeadlineExceeded", "too long"),
        ("Failed", "True", "BackoffLimitExceeded", ""),
        ("Failed", "False", "DeadlineExceeded", ""),
        ("Complete", "True", "CompletionsReached", ""),
    ],
)
def test_a_job_tells_that_it_took_too_long(kind: str, status: str, reason: str, overdue: str) -> None:
    shown = {"type": kind, "status": status, "reason": reason, "message": "too long"}
    found = workload_view.workload(raw({"metadata": {"name": "j"}, "status": {"conditions": [shown]}}))
    assert found.overdue == overdue


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "{kind: Pod, metadata: {name: a, annotations: {x: 5}}}",
            r"Pod a: .*\$\.metadata\.annotations.*quote",
        ),
        ("{kind: Pod}", "Pod .*no metadata"),
        (
            "{kind: Job, metadata: {name: j}, spec: {activeDeadlineSeconds: soon}}",
            r"Job j: .*activeDeadlineSeconds",
        ),
    ],
)
def test_a_wrong_manifest_names_object_field_and_fix(text: str, said: str) -> None:
    obj = yaml.safe_load(text)
    with pytest.raises(UserError, match=said):
        (workload_view.from_object if obj["kind"] == "Job" else view.pod_from_object)(obj)


def test_ten_thousand_pods_decode_in_about_a_second() -> None:
    page = raw({"metadata": {"resourceVersion": "7"}, "items": [FULL] * 500})
    start = time.process_time()
    for _ in range(20):
        view.pods_page(page)
    assert time.process_time() - start < 8.0  # about 0.7 s on an idle core
