"""Kinds that a cluster may have: found, followed, and forgotten, on both API servers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge.core.grouping.owners import BUILT_IN_GROUP
from bridge.kube.discovery import Discovery
from bridge.kube.kinds import OPTIONAL, OptionalKind
from bridge.kube.store import Store
from tests.contract import kube_fixture
from tests.contract.kube_fixture import SCHEDULER, Side, eventually
from tests.patience import PATIENCE
from tests.worlds.kube_faults import Answer, Hang

side = kube_fixture.side

RIGHTS = Path(__file__).resolve().parents[2] / "deploy" / "manifests" / "cluster" / "bridge-rights.yaml"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
MERGE = "application/merge-patch+json"
PACE = 0.2  # seconds


@asynccontextmanager
async def looking(found: Discovery) -> AsyncIterator[None]:
    task = asyncio.ensure_future(found.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def serve(side: Side, kind: OptionalKind, version: str = "v1") -> None:
    """As an admin who installs a CustomResourceDefinition."""
    if side.world is not None:
        side.world.install(kind.resource, kind.kind, f"{kind.group}/{version}")
        return
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": kind.name},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced",
            "names": {
                "plural": kind.resource,
                "singular": kind.kind.lower(),
                "kind": kind.kind,
                "listKind": f"{kind.kind}List",
            },
            "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
        },
    }
    await side.must("POST", CRDS, crd)
    deadline = asyncio.get_running_loop().time() + 20 * PATIENCE
    path = f"/apis/{kind.group}/{version}/{kind.resource}"
    while (await side.wire.request("GET", path, timeout=20.0)).status != 200:
        assert asyncio.get_running_loop().time() < deadline, f"{kind.name} is never served"
        await asyncio.sleep(0.05)


async def withdraw(side: Side, kind: OptionalKind, version: str = "v1") -> None:
    if side.world is not None:
        side.world.uninstall(f"{kind.resource}.{kind.group}/{version}")
    else:
        await side.send("DELETE", f"{CRDS}/{kind.name}")


async def post(side: Side, api_version: str, kind: str, resource: str, name: str, **more: Any) -> None:
    body = {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": name, **more.pop("meta", {})},
        **more,
    }
    path = f"/apis/{api_version}/namespaces/{side.namespace}/{resource}"
    await side.must("POST", path, body)


def gangs() -> OptionalKind:
    return OptionalKind(f"contract-{uuid.uuid4().hex[:8]}.example.com", "PodGroup", "podgroups", ("v2", "v1"))


async def test_a_kind_that_is_absent_is_nothing_to_wait_for(side: Side) -> None:
    store = Store({SCHEDULER})
    found = Discovery(side.client, store.workloads, kinds=[gangs()], pace=PACE)
    assert not store.workloads.settled()
    async with looking(found):
        await eventually(store.workloads.settled)
        assert (found.notes(), found.ages()) == ([], {})


async def test_a_kind_that_appears_is_followed_and_one_that_goes_away_is_forgotten(side: Side) -> None:
    kind = gangs()
    store = Store({SCHEDULER})
    found = Discovery(side.client, store.workloads, kinds=[kind], pace=PACE)
    where = ("PodGroup", side.namespace)
    async with looking(found):
        await eventually(store.workloads.settled)
        await serve(side, kind)
        try:
            await post(side, f"{kind.group}/v1", "PodGroup", "podgroups", "early", spec={"minMember": 2})
            early = await eventually(lambda: store.workload(*where, "early", kind.group))
            assert (early.size, early.api_version) == (2, f"{kind.group}/v1")
            await post(side, f"{kind.group}/v1", "PodGroup", "podgroups", "late", spec={"minMember": 3})
            assert (await eventually(lambda: store.workload(*where, "late", kind.group))).size == 3
            assert store.workloads.settled()
            assert found.ages()[kind.name] < 60
        finally:
            await withdraw(side, kind)
        await eventually(lambda: not found.ages())
        assert store.workload(*where, "early", kind.group) is None
        assert found.notes() == []


async def test_kubernetes_own_kinds_are_followed_where_it_serves_them(side: Side) -> None:
    if side.world is not None:
        side.world.install("podgroups", "PodGroup", f"{BUILT_IN_GROUP}/v1alpha2")
        side.world.install("workloads", "Workload", f"{BUILT_IN_GROUP}/v1alpha2")
        side.world.install("replicasets", "ReplicaSet", "apps/v1")
    store = Store({SCHEDULER})
    async with looking(Discovery(side.client, store.workloads, pace=PACE)):
        await eventually(store.workloads.settled)
        gang = {"schedulingPolicy": {"gang": {"minCount": 3}}}
        version = f"{BUILT_IN_GROUP}/v1alpha2"
        template = {"podGroupTemplates": [{"name": "w", **gang}]}
        await post(side, version, "Workload", "workloads", "plan", spec=template)
        ref = {"workload": {"workloadName": "plan", "podGroupTemplateName": "w"}}
        await post(side, version, "PodGroup", "podgroups", "g", spec={"podGroupTemplateRef": ref, **gang})
        group = await eventually(lambda: store.workload("PodGroup", side.namespace, "g", BUILT_IN_GROUP))
        assert (group.size, group.parent) == (3, "plan")
        plan = await eventually(lambda: store.workload("Workload", side.namespace, "plan", BUILT_IN_GROUP))
        assert plan.sizes == {"w": 3}


async def test_of_a_replica_set_only_the_metadata_is_asked_for(side: Side) -> None:
    kind = next(kind for kind in OPTIONAL if kind.kind == "ReplicaSet")
    if side.world is not None:
        side.world.install(kind.resource, kind.kind, "apps/v1")
    store = Store({SCHEDULER})
    labels = {"app": "x"}
    containers = [{"name": "c", "image": "example.com/x"}]
    spec = {
        "replicas": 0,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
    }
    await post(side, "apps/v1", "ReplicaSet", "replicasets", "r", spec=spec, meta={"annotations": {"a": "b"}})
    lines: list[bytes] = []
    async with looking(Discovery(side.client, store.workloads, kinds=[kind], pace=PACE)):
        found = await eventually(lambda: store.workload("ReplicaSet", side.namespace, "r", "apps"))
        assert (found.annotations["a"], found.kind, found.api_version) == ("b", "ReplicaSet", "apps/v1")
        await post(side, "apps/v1", "ReplicaSet", "replicasets", "s", spec=spec)
        await eventually(lambda: store.workload("ReplicaSet", side.namespace, "s", "apps"))
        async for page in side.client.pages(kind.at("v1")):
            assert {item.kind for item in page.items} == {"ReplicaSet"}
        async with side.client.watch(kind.at("v1"), page.version, seconds=2, silence=10) as watched:
            await post(side, "apps/v1", "ReplicaSet", "replicasets", "t", spec=spec)
            lines = [line async for line in watched]
    assert lines
    assert not [line for line in lines if b"example.com/x" in line]


@pytest.mark.parametrize(
    ("served", "version"),
    [
        (("v1alpha1",), "v1alpha1"),
        (("v1", "v1alpha1", "v1alpha2"), "v1alpha2"),
        (("v1", "v1alpha3", "v1beta1"), "v1beta1"),
    ],
    ids=["1.35", "1.36", "1.37"],
)
async def test_the_newest_version_that_we_know_is_read(served: tuple[str, ...], version: str) -> None:
    async with kube_fixture._world_side() as side:
        assert side.world is not None
        for each in served:  # the stable version of the group has no such resource
            resource, kind = (
                ("priorityclasses", "PriorityClass") if each == "v1" else ("workloads", "Workload")
            )
            side.world.install(resource, kind, f"{BUILT_IN_GROUP}/{each}")
        store = Store({SCHEDULER})
        side.world.add(f"workloads.{BUILT_IN_GROUP}/{version}", {"metadata": {"name": "plan"}})
        async with looking(Discovery(side.client, store.workloads, pace=PACE)):
            plan = await eventually(lambda: store.workload("Workload", "default", "plan", BUILT_IN_GROUP))
            assert plan.api_version == f"{BUILT_IN_GROUP}/{version}"


async def test_a_kind_that_may_not_be_read_or_that_is_too_new_is_a_note_and_stops_nothing() -> None:
    async with kube_fixture._world_side() as side:
        assert side.world is not None
        kind, newer = gangs(), gangs()
        key = side.world.install(kind.resource, kind.kind, f"{kind.group}/v1")
        side.world.install(newer.resource, newer.kind, f"{newer.group}/v7")
        side.world.denied.add(("list", key))
        side.world.add(key, {"metadata": {"name": "g"}})
        store = Store({SCHEDULER})
        found = Discovery(side.client, store.workloads, kinds=[kind, newer], pace=PACE)
        async with looking(found):
            await eventually(store.workloads.settled)
            newest, denied = found.notes()
            assert newest.startswith(f"{newer.name}: served as v7; this version of the bridge reads v2, v1")
            assert denied.startswith(f"{kind.name}: the API server does not let the bridge list and watch")
            assert "bridge-rights.yaml" in denied
            side.world.denied.clear()  # somebody applies it
            await eventually(lambda: store.workload("PodGroup", "default", "g", kind.group))
            assert len(found.notes()) == 1


async def test_an_api_server_that_does_not_know_its_kinds_for_a_moment_costs_nothing() -> None:
    async with kube_fixture._world_side() as side:
        assert side.world is not None
        kind = gangs()
        key = side.world.install(kind.resource, kind.kind, f"{kind.group}/v1")
        side.world.add(key, {"metadata": {"name": "g"}})
        store = Store({SCHEDULER})
        async with looking(Discovery(side.client, store.workloads, kinds=[kind], pace=PACE)):
            await eventually(lambda: store.workload("PodGroup", "default", "g", kind.group))
            told: list[object] = []
            store.workloads.on_change(lambda old, new: told.append(new))
            empty = b'{"kind": "APIGroupList", "groups": []}'
            fault = side.world.faults.plan(Answer(200, body=empty), resource="apis")
            await eventually(lambda: not fault.times)
            side.world.faults.plan(Answer(503, reason="ServiceUnavailable"), resource="apis", times=3)
            looks = side.world.reads["get", "apis"]
            await eventually(lambda: side.world and side.world.reads["get", "apis"] > looks + 4)
            assert store.workload("PodGroup", "default", "g", kind.group) is not None
            assert told == []


async def test_a_kind_that_appears_and_gives_no_answer_holds_up_nobody() -> None:
    async with kube_fixture._world_side() as side:
        assert side.world is not None
        kind = gangs()
        store = Store({SCHEDULER})
        async with looking(Discovery(side.client, store.workloads, kinds=[kind], pace=PACE)):
            await eventually(store.workloads.settled)
            key = side.world.install(kind.resource, kind.kind, f"{kind.group}/v1")
            fault = side.world.faults.plan(Hang(), resource=key)
            await eventually(lambda: not fault.times)
            assert store.workloads.settled()


def test_the_rights_of_the_bridge_name_every_kind() -> None:
    role = next(doc for doc in yaml.safe_load_all(RIGHTS.read_text()) if doc["kind"] == "ClusterRole")
    for kind in OPTIONAL:
        rules = [
            rule
            for rule in role["rules"]
            if kind.group in rule["apiGroups"] and kind.resource in rule["resources"]
        ]
        assert [rule["verbs"] for rule in rules] == [["list", "watch"]], kind.name
