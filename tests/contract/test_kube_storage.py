"""What pods ask of nodes and where volumes lie, as both API servers have it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest

from bridge.core.constraints import (
    ANYWHERE,
    Constraints,
    HostPort,
    Requirement,
    StorageClass,
    Taint,
    Term,
    Toleration,
    Volume,
    VolumeClaim,
)
from bridge.kube import storage, view
from bridge.kube.client import KubeClient
from bridge.kube.storage import Storage
from bridge.kube.store import Store
from tests.contract import kube_fixture
from tests.contract.kube_fixture import Side, eventually
from tests.worlds import kube_objects
from tests.worlds.kube import KubeWorld
from tests.worlds.kube_faults import Answer

side = kube_fixture.side
CLASS = "/apis/storage.k8s.io/v1/storageclasses"
VOLUME = "/api/v1/persistentvolumes"
ZONE = Requirement("zone", "In", ("a", "b"))


@asynccontextmanager
async def running(found: Storage) -> AsyncIterator[None]:
    task = asyncio.ensure_future(found.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def claim(name: str, **spec: Any) -> dict[str, Any]:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **spec}
    return {"metadata": {"name": name}, "spec": spec}


async def test_claims_volumes_and_classes_are_followed(side: Side) -> None:
    store = Store(set())
    name = f"data-{side.namespace}"
    expressions = [{"key": "zone", "operator": "In", "values": ["a", "b"]}]
    claims = f"/api/v1/namespaces/{side.namespace}/persistentvolumeclaims"
    async with running(Storage(side.client, store)):
        await eventually(lambda: store.storage_settled)
        await side.must(
            "POST",
            CLASS,
            {
                "metadata": {"name": name},
                "provisioner": "example.com/none",
                "volumeBindingMode": "WaitForFirstConsumer",
                "allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["a", "b"]}]}],
            },
        )
        await side.must(
            "POST",
            VOLUME,
            {
                "metadata": {"name": name},
                "spec": {
                    "capacity": {"storage": "1Gi"},
                    "accessModes": ["ReadWriteOnce"],
                    "hostPath": {"path": "/tmp/none"},
                    "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}},
                },
            },
        )
        try:
            await side.must("POST", claims, claim("late", storageClassName=name))
            await side.must("POST", claims, claim("set", storageClassName="", volumeName=name))
            kind: StorageClass = await eventually(lambda: store.storage_classes.get(name))
            assert kind == StorageClass(name=name, late=True, reach=(Term((ZONE,)),))
            volume: Volume = await eventually(lambda: store.volumes.get(name))
            assert volume == Volume(name=name, reach=(Term((ZONE,)),))
            late: VolumeClaim = await eventually(lambda: store.claims.get(side.namespace, "late"))
            assert late == VolumeClaim(namespace=side.namespace, name="late", storage_class=name)
            found: VolumeClaim = await eventually(lambda: store.claims.get(side.namespace, "set"))
            assert found == VolumeClaim(namespace=side.namespace, name="set", volume=name)
        finally:
            await side.must("DELETE", f"{CLASS}/{name}")
            await side.must("DELETE", f"{VOLUME}/{name}")
        await eventually(lambda: store.storage_classes.get(name) is None)


async def test_what_may_not_be_read_is_a_note_that_names_the_rights_and_nobody_waits_for_it() -> None:
    world, store = KubeWorld(), Store(set())
    world.denied = {("list", "persistentvolumes"), ("list", "storageclasses")}
    found = Storage(KubeClient(world), store)
    async with running(found):
        await eventually(lambda: store.storage_settled)
        await eventually(lambda: len(found.notes()[0].split(",")) == 2)
        assert found.notes() == [
            "storage: persistentvolumes, storageclasses may not be listed and watched: no node is excluded for the"
            " volumes of a pod; deploy/manifests/cluster/bridge-rights.yaml has the rights"
        ]
        await eventually(lambda: store.claims.synced)


async def test_one_refusal_of_what_was_listed_is_no_missing_right() -> None:
    """An API server that comes up again says no to everybody for a moment."""
    world, store = KubeWorld(), Store(set())
    found = Storage(KubeClient(world), store)
    async with running(found):
        await eventually(lambda: store.storage_settled)
        await eventually(lambda: world.reads["watch", "persistentvolumes"] == 1)
        world.faults.plan(Answer(403), verb="watch", resource="persistentvolumes", times=1)
        world.cut_watches("persistentvolumes", reset=True)
        said: list[str] = []

        def watched_again() -> bool:
            said.extend(found.notes())
            return world.reads["watch", "persistentvolumes"] > 1

        await eventually(watched_again)
        assert (said, store.storage_denied()) == ([], False)


async def test_what_a_pod_asks_of_a_node_comes_back_as_it_was_written(side: Side) -> None:
    expressions = [
        {"key": "zone", "operator": "In", "values": ["a", "b"]},
        {"key": "gpu", "operator": "Exists"},
    ]
    term = {
        "matchExpressions": expressions,
        "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}],
    }
    pod = kube_objects.pod("a", scheduler=kube_fixture.SCHEDULER)
    pod["spec"] |= {
        "nodeSelector": {"b": "2", "a": "1"},
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
        },
        "tolerations": [
            {"key": "gpu", "operator": "Exists"},
            {"key": "team", "value": "x", "effect": "NoSchedule"},
        ],
        "volumes": [
            {"name": "v", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "e", "emptyDir": {}},
        ],
    }
    pod["spec"]["containers"][0]["ports"] = [
        {"containerPort": 80, "hostPort": 80},
        {"containerPort": 53, "hostPort": 53, "protocol": "UDP", "hostIP": "10.0.0.1"},
        {"containerPort": 81},
    ]
    await side.must("POST", side.pods, pod)
    found = await side.client.pod(side.namespace, "a")
    assert found.constraints.selector == (("a", "1"), ("b", "2"))
    elsewhere = Requirement("metadata.name", "NotIn", ("n1",))
    assert found.constraints.affinity == (Term((ZONE, Requirement("gpu", "Exists")), (elsewhere,)),)
    gpu, team = Toleration("gpu", "Exists"), Toleration("team", "Equal", "x", "NoSchedule")
    assert found.constraints.tolerations[:2] == (gpu, team), "the API server appends its own"
    assert found.constraints.ports == (HostPort(80), HostPort(53, "UDP", "10.0.0.1"))
    assert found.volume_claims == ("data",)


async def test_the_taints_of_a_node_are_read(side: Side) -> None:
    name = f"node-{side.namespace}"
    node = kube_objects.node(name)
    node["spec"] = {"taints": [{"key": "gpu", "value": "true", "effect": "NoExecute"}]}
    await side.must("POST", "/api/v1/nodes", node)
    try:
        assert Taint("gpu", "true", "NoExecute") in (await side.client.node(node["metadata"]["name"])).taints
    finally:
        await side.must("DELETE", f"/api/v1/nodes/{name}")


def _read(**spec: Any) -> Any:
    return view.pod_from_object({"metadata": {"name": "p"}, "spec": spec})


def test_pods_that_ask_for_the_same_share_it_and_those_that_ask_for_nothing_share_nothing_more() -> None:
    wanted = {"nodeSelector": {"disk": "ssd"}, "tolerations": [{"operator": "Exists"}]}
    assert _read(**wanted).constraints is _read(**wanted).constraints
    assert _read().constraints is _read(tolerations=[], nodeSelector={}).constraints is ANYWHERE


def test_of_a_foreign_pod_only_its_host_ports_are_kept() -> None:
    ports = [{"hostPort": 80}]
    spec = {"nodeSelector": {"a": "b"}, "containers": [{"name": "c", "ports": ports}], "schedulerName": "x"}
    listed = {"metadata": {}, "items": [{"metadata": {"name": "p"}, "spec": spec}]}
    page = view.pods_page(msgspec.json.encode(listed), lambda _: False)
    assert page.items[0].constraints == Constraints(ports=(HostPort(80),))


def test_sidecars_take_host_ports_and_other_init_containers_do_not() -> None:
    steps = [
        {"name": "s", "restartPolicy": "Always", "ports": [{"hostPort": 1}]},
        {"name": "i", "ports": [{"hostPort": 2}]},
    ]
    assert _read(initContainers=steps).constraints.ports == (HostPort(1),)


@pytest.mark.parametrize(
    ("volume", "expected"),
    [
        ({"name": "v", "persistentVolumeClaim": {"claimName": "c"}}, ("c",)),
        ({"name": "v", "ephemeral": {"volumeClaimTemplate": {}}}, ("p-v",)),
        ({"name": "v", "emptyDir": {}}, ()),
    ],
)
def test_a_pod_mounts_the_claims_that_it_names_and_those_that_are_made_for_it(
    volume: dict[str, Any], expected: tuple[str, ...]
) -> None:
    assert _read(volumes=[volume]).volume_claims == expected


def test_a_claim_says_for_which_node_its_volume_is_made() -> None:
    meta = {"name": "c", "annotations": {"volume.kubernetes.io/selected-node": "n1"}}
    page = storage.claims().page(msgspec.json.encode({"metadata": {}, "items": [{"metadata": meta}]}))
    assert page.items == (VolumeClaim(namespace="default", name="c", chosen="n1"),)
