"""LIST and WATCH against both API servers: no change is lost. Accidents are in test_kube_accidents."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from bridge import names
from bridge.core.model import KubeNode, Node, Pod, Workload
from bridge.errors import Gone, NotFound
from bridge.kube import kinds
from bridge.kube.informer import Informer
from bridge.kube.store import Pods, Store
from tests.contract import kube_fixture
from tests.contract.kube_fixture import SCHEDULER, Side, eventually
from tests.worlds import kube_objects

side = kube_fixture.side


@asynccontextmanager
async def running(*informers: Informer[Any]) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(i.run()) for i in informers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


# --- both API servers -----------------------------------------------------------------------------


def watch_pods(side: Side) -> tuple[Pods, Informer[Pod]]:
    table = Pods({SCHEDULER})
    return table, Informer(side.client, kinds.pods(table.is_ours), table, chunk=3)


async def test_pods_are_listed_then_followed_to_their_end(side: Side) -> None:
    for i in range(5):
        await side.pod(f"old{i}")
    table, informer = watch_pods(side)
    seen: list[tuple[str, str]] = []

    def note(old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        assert pod is not None
        if pod.namespace == side.namespace:
            seen.append((pod.name, "gone" if new is None else "new" if old is None else "changed"))

    table.on_pod(note)
    async with running(informer):
        await informer.wait_synced()
        assert {n for n, _ in seen} >= {f"old{i}" for i in range(5)}
        assert table.synced
        assert informer.lists == 1
        assert informer.list_started <= informer.list_finished
        await eventually(lambda: side.wire.opened)
        pod = await side.pod("a")
        await eventually(lambda: table.get(side.namespace, "a"))
        await side.client.patch_pod(pod, labels={names.JOB_ID_LABEL: "33554433"})
        await eventually(lambda: table.by_job("33554433"))
        await side.client.delete_pod(pod.namespace, pod.name, pod.uid)
        gone = await eventually(lambda: table.gone.get(pod.uid))
        assert gone.deleted
        assert gone.pod.labels[names.JOB_ID_LABEL] == "33554433"
        assert table.get(side.namespace, "a") is None
        assert table.by_job("33554433") == ()
        assert [what for name, what in seen if name == "a"] == ["new", "changed", "changed", "gone"]
        assert informer.age() < 5


async def test_a_fresh_list_can_be_asked_for_and_the_watch_goes_on_after_it(side: Side) -> None:
    table, informer = watch_pods(side)
    async with running(informer):
        await informer.wait_synced()
        await eventually(lambda: side.wire.opened)
        asked = informer.list_finished
        await asyncio.wait_for(informer.relist(), 10)
        assert informer.lists == 2
        assert informer.list_started >= asked
        await side.pod("next")
        await eventually(lambda: table.get(side.namespace, "next"))
        assert not [g for g in table.gone.values() if g.pod.namespace == side.namespace]


async def test_foreign_pods_are_small(side: Side) -> None:
    await side.pod("theirs", scheduler="contract-somebody-else", labels={"app": "x"})
    table, informer = watch_pods(side)
    async with running(informer):
        await informer.wait_synced()
        pod = table.get(side.namespace, "theirs")
        assert pod is not None
        assert (pod.labels, pod.statuses, pod.scheduler) == ({}, (), "contract-somebody-else")
        assert [c.resources.requests for c in pod.containers] == [{"cpu": "1"}]
        assert table.by_uid(pod.uid) is pod
        assert pod.uid not in table.ours
        await side.client.delete_pod(pod.namespace, pod.name, pod.uid)
        await eventually(lambda: table.get(side.namespace, "theirs") is None)
        assert pod.uid not in table.gone


async def test_a_watch_that_ends_silently_again_and_again_loses_nothing(side: Side) -> None:
    table, informer = watch_pods(side)
    async with running(informer):
        await informer.wait_synced()
        made = []
        cuts = 0
        for i in range(60):
            pod = await side.pod(f"p{i}", labels={names.JOB_ID_LABEL: str(i)})
            made.append(pod)
            if i % 2:
                await side.client.delete_pod(pod.namespace, pod.name, pod.uid)
            if i % 10 == 0:
                await eventually(lambda: side.wire.opened > cuts)  # noqa: B023
                side.wire.cut()
                cuts += 1
        gone = {pod.uid for pod in made[1::2]}
        await eventually(lambda: gone <= table.gone.keys())
        await eventually(lambda: len([p for p in table.ours.values() if p.namespace == side.namespace]) == 30)
        assert all(table.gone[uid].deleted for uid in gone)
        assert informer.lists == 1
        assert side.wire.opened == cuts + 1


async def test_nodes_and_jobs_are_followed_too(side: Side) -> None:
    store = Store({SCHEDULER})
    nodes = Informer(side.client, kinds.nodes(), store.nodes)
    jobs = Informer(side.client, kinds.jobs(), store.jobs)
    name = f"node-{side.namespace}"
    async with running(nodes, jobs):
        await nodes.wait_synced()
        await jobs.wait_synced()
        await side.must("POST", "/api/v1/nodes", kube_objects.node(name, allocatable={"cpu": "8"}))
        try:
            node: Node = await eventually(lambda: store.nodes.get(name))
            assert node.allocatable["cpu"] == "8"
            patch = "application/strategic-merge-patch+json"
            cordon = {"spec": {"unschedulable": True}}
            await side.must("PATCH", f"/api/v1/nodes/{name}", cordon, content_type=patch)
            await eventually(lambda: (found := store.nodes.get(name)) and found.cordoned)
            assert (await side.client.node(KubeNode(name))).cordoned
        finally:
            await side.must("DELETE", f"/api/v1/nodes/{name}")
        await eventually(lambda: store.nodes.get(name) is None)
        with pytest.raises(NotFound):
            await side.client.node(KubeNode(name))
        path = f"/apis/batch/v1/namespaces/{side.namespace}/jobs"
        await side.must("POST", path, kube_objects.job("j", annotations={"a": "b"}, active_deadline=60))
        job: Workload = await eventually(lambda: store.workload("Job", side.namespace, "j"))
        assert (job.annotations["a"], job.active_deadline) == ("b", 60)


async def test_a_version_that_was_compacted_away_is_gone(side: Side) -> None:
    """The continue token of a list, after compaction: the same 410 that a watch of an old version gets."""
    for i in range(3):
        await side.pod(f"p{i}")
    pages = side.client.pages(kinds.pods(), limit=1)
    await anext(pages)
    version = await side.pod("later")
    if side.world is not None:
        side.world.compact()
        with pytest.raises(Gone):
            await anext(pages)
    else:
        await asyncio.to_thread(_compact_etcd, side.facts["etcd_url"], int(version.version))
        status, found = await side.send(
            "GET", "/api/v1/pods", resourceVersion="2", resourceVersionMatch="Exact", limit="1"
        )
        assert (status, found["reason"]) == (410, "Expired")
    await pages.aclose()  # type: ignore[attr-defined]


def _compact_etcd(url: str, revision: int) -> None:
    body = json.dumps({"revision": str(revision - 1), "physical": True}).encode()
    request = urllib.request.Request(f"{url}/v3/kv/compaction", body, {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=10).read()
