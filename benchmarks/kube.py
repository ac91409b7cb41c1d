"""Kubernetes as a user sees it: create and delete pods, and one streaming watch that notes when things happen.

In: an admin kubeconfig. Out: for each pod the first moment (time.monotonic, the one clock of all figures) of
`seen, nominated, released, bound, running, deleting, gone`. Nothing is polled.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import yaml

NAMESPACE = "bench"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
NODES = "/api/v1/nodes"
MERGE = {"Content-Type": "application/merge-patch+json"}
OUR_SCHEDULER = "slurm-bridge"
OPTION = "slurmjob.slinky.slurm.net/"  # prefix of the annotations that steer a pod's job
JOB_LABEL = "scheduler.slinky.slurm.net/slurm-jobid"
TOLERATION = {"key": "slinky.slurm.net/managed-node", "operator": "Exists"}
CREATORS = 16  # creates under way at once

_names = iter(range(10**6))


class _Meta(msgspec.Struct):
    name: str = ""
    labels: dict[str, str] = {}
    deletion: str | None = msgspec.field(name="deletionTimestamp", default=None)
    version: str = msgspec.field(name="resourceVersion", default="")


class _Spec(msgspec.Struct):
    node: str = msgspec.field(name="nodeName", default="")
    gates: list[Any] = msgspec.field(name="schedulingGates", default_factory=list)


class _Status(msgspec.Struct):
    phase: str = ""
    nominated: str = msgspec.field(name="nominatedNodeName", default="")


class _Pod(msgspec.Struct):
    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class _Event(msgspec.Struct):
    type: str
    object: _Pod


_decode = msgspec.json.Decoder(_Event).decode


class Kube:
    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        self._url: str = cluster["server"]
        trust = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=trust, limit=64),
            headers={"Authorization": f"Bearer {user['token']}", "Content-Type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
        )

    async def close(self) -> None:
        await self._http.close()

    async def call(self, method: str, path: str, body: object = None, *, fine: Sequence[int] = ()) -> Any:
        raw = None if body is None else json.dumps(body)
        headers = MERGE if method == "PATCH" else None
        async with self._http.request(method, self._url + path, data=raw, headers=headers) as reply:
            text = await reply.text()
            if reply.status >= 300 and reply.status not in fine:
                raise RuntimeError(f"{method} {path}: {reply.status} {text[:300]}")
            return json.loads(text)

    async def ensure_namespace(self) -> None:
        """With its default ServiceAccount, without which no pod is admitted."""
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        await self.call("POST", "/api/v1/namespaces", body, fine=(409,))
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
        while True:
            if (await self.call("GET", account, fine=(404,))).get("kind") == "ServiceAccount":
                return
            await asyncio.sleep(0.1)

    async def version(self) -> str:
        return str((await self.call("GET", "/version"))["gitVersion"])

    async def create(
        self, names: Iterable[str], scheduler: str, annotations: Mapping[str, str] | None = None
    ) -> dict[str, float]:
        """All at once, `CREATORS` under way; the moment at which each POST was begun."""
        begun: dict[str, float] = {}
        queue = iter(names)

        async def creator() -> None:
            for name in queue:
                body = pod(name, scheduler, annotations or {})
                begun[name] = time.monotonic()
                await self.call("POST", PODS, body)

        await asyncio.gather(*(creator() for _ in range(CREATORS)))
        return begun

    async def delete(self, name: str) -> None:
        await self.call("DELETE", f"{PODS}/{name}", fine=(404,))

    async def delete_all(self) -> None:
        await self.call("DELETE", PODS)

    async def patch_node(self, name: str, body: object) -> None:
        await self.call("PATCH", f"{NODES}/{name}", body)

    async def watch(self, version: str, what: str = PODS) -> aiohttp.ClientResponse:
        path = f"{self._url}{what}?watch=1&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds=3600"
        return await self._http.get(path)


def new_names(count: int, kind: str) -> list[str]:
    """Never the same twice in one run, so that a name stands for one pod."""
    return [f"{kind}-{next(_names):06d}" for _ in range(count)]


def pod(name: str, scheduler: str, annotations: Mapping[str, str]) -> dict[str, Any]:
    """One CPU, 1 GiB, no GPU: so that a thousand of them fit on a hundred nodes."""
    amounts = {"cpu": "1", "memory": "1Gi"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": dict(annotations)},
        "spec": {
            "schedulerName": scheduler,
            "terminationGracePeriodSeconds": 1,
            "tolerations": [TOLERATION],
            "containers": [
                {"name": "c", "image": "pause", "resources": {"requests": amounts, "limits": amounts}}
            ],
        },
    }


class PodLog:
    """The watch. `moments[pod][what]` = when it was first so; `jobs[pod]` = the job id on its label."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._waits: list[tuple[str, set[str], asyncio.Event]] = []
        self._task: asyncio.Task[None] | None = None
        self.moments: dict[str, dict[str, float]] = {}
        self.jobs: dict[str, int] = {}
        self.alive: set[str] = set()
        self.empty = asyncio.Event()  # no pod is left
        self._news = asyncio.Event()
        self.renominated = 0  # a nomination that came after another one had been there and gone
        self._nominated: dict[str, bool] = {}
        self._version = ""
        self.reopened = 0  # watches that ended; moments seen just after are late by as much

    async def __aenter__(self) -> PodLog:
        found = await self._kube.call("GET", PODS)
        self.alive = {item["metadata"]["name"] for item in found["items"]}
        if not self.alive:
            self.empty.set()
        self._version = found["metadata"]["resourceVersion"]
        self._task = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        """The API server ends a watch that reads too slowly, as on two busy cores: go on where it ended."""
        while True:
            await self._read(await self._kube.watch(self._version))
            self.reopened += 1

    async def _read(self, response: aiohttp.ClientResponse) -> None:
        rest = b""
        async for chunk in response.content.iter_any():
            now = time.monotonic()
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if line:
                    event = _decode(line)
                    if event.type == "ERROR":
                        raise RuntimeError(f"the watch of the benchmark failed: {line[:200]!r}")
                    self._version = event.object.metadata.version or self._version
                    self._note(event, now)

    def _note(self, event: _Event, now: float) -> None:
        self._news.set()
        if event.type not in ("ADDED", "MODIFIED", "DELETED"):
            return
        found = event.object
        name = found.metadata.name
        moments = self.moments.setdefault(name, {})
        facts = {
            "seen": True,
            "nominated": bool(found.status.nominated),
            "released": not found.spec.gates,
            "bound": bool(found.spec.node),
            "running": found.status.phase == "Running",
            "deleting": bool(found.metadata.deletion),
            "gone": event.type == "DELETED",
        }
        for what, true in facts.items():
            if true and what not in moments:
                moments[what] = now
                self._wake(what, name)
        if facts["nominated"] and not self._nominated.get(name, True):
            self.renominated += 1
        if facts["nominated"] or name in self._nominated:
            self._nominated[name] = facts["nominated"]
        label = found.metadata.labels.get(JOB_LABEL)
        if label:
            self.jobs[name] = int(label)
        if facts["gone"]:
            self.alive.discard(name)
        else:
            self.alive.add(name)
            self.empty.clear()
        if not self.alive:
            self.empty.set()

    def _wake(self, what: str, name: str) -> None:
        for wanted, missing, done in self._waits:
            if wanted == what:
                missing.discard(name)
                if not missing:
                    done.set()

    def at(self, name: str, what: str) -> float | None:
        return self.moments.get(name, {}).get(what)

    async def reached(self, names: Iterable[str], what: str, within: float) -> bool:
        """Waits until `what` was so for all of them. False: not within so many seconds."""
        missing = {name for name in names if self.at(name, what) is None}
        if not missing:
            return True
        if self._task is not None and self._task.done():
            self._task.result()
        wait = (what, missing, asyncio.Event())
        self._waits.append(wait)
        try:
            async with asyncio.timeout(within):
                await wait[2].wait()
        except TimeoutError:
            return False
        finally:
            self._waits.remove(wait)
        return True

    def bound(self, prefix: str) -> list[str]:
        """The pods with such a name that have a node."""
        return [pod for pod, found in self.moments.items() if pod.startswith(prefix) and "bound" in found]

    async def bound_of(self, prefix: str, count: int, within: float) -> bool:
        """Waits until so many pods, named by a controller, have a node. False: not within so many seconds."""
        try:
            async with asyncio.timeout(within):
                while len(self.bound(prefix)) < count:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return False
        return True
