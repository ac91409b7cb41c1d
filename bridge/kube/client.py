"""One method, one API call: typed values in and out, every failure by the table in `bridge.kube.wire`.

Every call has a deadline in seconds. No method retries, and none writes without a precondition on the UID.
`observe(verb, resource, outcome, seconds)` is told of each call; outcome is the HTTP status or the error's
class.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from bridge.core.constraints import Taint
from bridge.core.lease import LeaseRecord
from bridge.core.model import Condition, KubeNode, Node, Pod, Uid, Workload
from bridge.errors import BridgeError, Conflict, ProtocolError
from bridge.kube import leases, node_view, view, workload_view
from bridge.kube.kinds import Kind, pods
from bridge.kube.wire import (
    JSON,
    METADATA,
    METADATA_LIST,
    STRATEGIC_MERGE,
    ClusterWire,
    Query,
    Reply,
    Wire,
    refusal,
)

__all__ = ["ClusterWire", "KubeClient", "Reply", "Wire"]

T = TypeVar("T")

Observe = Callable[[str, str, str, float], None]
READ_TIMEOUT = 10.0  # seconds
WRITE_TIMEOUT = 10.0
LIST_TIMEOUT = 60.0  # one chunk, on an API server that is just starting
CHUNK = 500  # objects a page: about 35 ms of decoding
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
ALL_PODS = pods()

_encode = msgspec.json.Encoder().encode


class KubeClient:
    def __init__(
        self, wire: Wire, observe: Observe | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._wire = wire
        self._observe = observe
        self._clock = clock

    # --- reads ------------------------------------------------------------------------------------

    async def pages(self, kind: Kind[T], limit: int = CHUNK) -> AsyncIterator[view.Page[T]]:
        """The chunks of one consistent list; all carry the same version. Raises Gone if the list takes too
        long.
        """
        more = ""
        while True:
            query = {"limit": str(limit)} | ({"continue": more} if more else {})
            accept = METADATA_LIST if kind.bare else JSON
            reply = await self._call(
                "list", kind.name, "GET", kind.path, query=query, accept=accept, timeout=LIST_TIMEOUT
            )
            page = kind.page(reply.body)
            yield page
            more = page.more
            if not more:
                return

    async def list_pods(self, limit: int = CHUNK) -> view.Page[Pod]:
        """All pods of all namespaces in full, at one version."""
        found: list[Pod] = []
        version = ""
        async for page in self.pages(ALL_PODS, limit):
            found.extend(page.items)
            version = page.version
        return view.Page(tuple(found), version)

    async def pods_on(self, node: KubeNode, timeout: float = READ_TIMEOUT) -> tuple[Pod, ...]:
        """The pods that are bound to this node now."""
        query = {"fieldSelector": f"spec.nodeName={node}"}
        reply = await self._call("list", "pods", "GET", ALL_PODS.path, query=query, timeout=timeout)
        return ALL_PODS.page(reply.body).items

    def watch(
        self, kind: Kind[T], version: str, *, seconds: float, silence: float
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """Lines from `version` on for `seconds`; raises UnknownOutcome after `silence` seconds without a
        byte.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(max(1, round(seconds))),
        }
        return self._wire.stream(kind.path, query, silence, METADATA if kind.bare else JSON)

    async def pod(self, namespace: str, name: str) -> Pod:
        return view.pod((await self._call("get", "pods", "GET", _pod_path(namespace, name))).body)

    async def node(self, name: KubeNode) -> Node:
        return node_view.node((await self._call("get", "nodes", "GET", f"/api/v1/nodes/{quote(name)}")).body)

    async def job(self, namespace: str, name: str) -> Workload:
        path = f"/apis/batch/v1/namespaces/{quote(namespace)}/jobs/{quote(name)}"
        return workload_view.workload((await self._call("get", "jobs", "GET", path)).body)

    async def version(self) -> str:
        """The API server's, "v1.36.3"."""
        reply = await self._call("get", "version", "GET", "/version")
        return view.git_version(reply.body)

    async def api_groups(self) -> Mapping[str, tuple[str, ...]]:
        """The API groups that are served, without the core group, and their versions."""
        return workload_view.groups((await self._call("get", "apis", "GET", "/apis")).body)

    async def resources(self, group: str, version: str) -> frozenset[str]:
        """Plural names of what that version of the group serves."""
        reply = await self._call("get", "apis", "GET", f"/apis/{group}/{version}")
        return workload_view.resources(reply.body)

    async def namespace_uid(self, name: str) -> Uid:
        reply = await self._call("get", "namespaces", "GET", f"/api/v1/namespaces/{quote(name)}")
        return Uid(view.metadata(reply.body).uid)

    # --- pods -------------------------------------------------------------------------------------

    async def patch_pod(
        self,
        pod: Pod,
        *,
        labels: Mapping[str, str | None] | None = None,
        annotations: Mapping[str, str | None] | None = None,
        drop_gate: str | None = None,
        drop_finalizer: str | None = None,
        version: str | None = None,
    ) -> Pod:
        """One strategic-merge PATCH; a value of None removes the key. Conflict: another UID, or not
        `version`.
        """
        meta = _precondition(pod.uid, version)
        if labels:
            meta["labels"] = dict(labels)
        if annotations:
            meta["annotations"] = dict(annotations)
        if drop_finalizer:
            meta["$deleteFromPrimitiveList/finalizers"] = [drop_finalizer]
        patch: dict[str, Any] = {"metadata": meta}
        if drop_gate:
            patch["spec"] = {"schedulingGates": [{"$patch": "delete", "name": drop_gate}]}
        return await self._patch_pod("patch", _pod_path(pod.namespace, pod.name), patch)

    async def patch_pod_status(
        self,
        pod: Pod,
        *,
        nominated: KubeNode | str | None = None,
        conditions: Sequence[Condition] = (),
        version: str | None = None,
    ) -> Pod:
        """One PATCH of the status. `nominated` None leaves it, "" clears it. Conditions merge by type."""
        status: dict[str, Any] = {}
        if nominated is not None:
            status["nominatedNodeName"] = nominated or None
        if conditions:
            status["conditions"] = [_condition(c) for c in conditions]
        patch = {"metadata": _precondition(pod.uid, version), "status": status}
        return await self._patch_pod("patch_status", _pod_path(pod.namespace, pod.name) + "/status", patch)

    async def _patch_pod(self, verb: str, path: str, patch: Mapping[str, Any]) -> Pod:
        reply = await self._call(verb, "pods", "PATCH", path, body=patch, content_type=STRATEGIC_MERGE)
        return view.pod(reply.body)

    async def bind(
        self, pod_ns: str, pod_name: str, uid: Uid, node: KubeNode, version: str | None = None
    ) -> None:
        """Bind the pod of this UID. Conflict: already bound, gated, another UID, or not `version`."""
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"namespace": pod_ns, "name": pod_name, **_precondition(uid, version)},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._call("bind", "pods", "POST", _pod_path(pod_ns, pod_name) + "/binding", body=body)

    async def delete_pod(self, namespace: str, name: str, uid: Uid, grace: int | None = None) -> None:
        """Delete the pod of this UID; `grace` in seconds, None = the pod's own. Conflict: another UID."""
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        await self._call("delete", "pods", "DELETE", _pod_path(namespace, name), body=body)

    # --- nodes ------------------------------------------------------------------------------------

    async def set_node_condition(self, name: KubeNode, uid: Uid, condition: Condition) -> Node:
        """One PATCH of the status of the node of this UID; conditions of others stay. Conflict: another UID."""
        body = _condition(condition)
        if "lastProbeTime" in body:
            body["lastHeartbeatTime"] = body.pop("lastProbeTime")
        return await self._patch_node(
            "patch_status", f"{name}/status", uid, {"status": {"conditions": [body]}}
        )

    async def drop_node_condition(self, name: KubeNode, uid: Uid, kind: str) -> Node:
        """Take the condition of that type away."""
        gone = {"$patch": "delete", "type": kind}
        return await self._patch_node(
            "patch_status", f"{name}/status", uid, {"status": {"conditions": [gone]}}
        )

    async def taint_node(
        self,
        name: KubeNode,
        uid: Uid,
        *,
        add: Sequence[Taint] = (),
        remove: Sequence[Taint] = (),
        unless: str = "",
    ) -> Node:
        """Read the node, then PATCH its taints as they stood: key and effect tell one, and all others stay.

        No PATCH if nothing would change. Conflict: another UID, a node with the label `unless`, or somebody changed the
        node in between.
        """
        path = f"/api/v1/nodes/{quote(name)}"
        raw = (await self._call("get", "nodes", "GET", path)).body
        standing, labels, version = node_view.taints(raw)
        if unless in labels:
            raise Conflict(f"node {name} has the label {unless} again")
        taints = node_view.with_taints(standing, add, remove)
        if taints == standing:
            return node_view.node(raw)
        return await self._patch_node("patch", name, uid, {"spec": {"taints": taints or None}}, version)

    async def _patch_node(
        self, verb: str, path: str, uid: Uid, patch: dict[str, Any], version: str | None = None
    ) -> Node:
        body = {"metadata": _precondition(uid, version), **patch}
        where = f"/api/v1/nodes/{quote(path)}"
        reply = await self._call(verb, "nodes", "PATCH", where, body=body, content_type=STRATEGIC_MERGE)
        return node_view.node(reply.body)

    # --- leases -----------------------------------------------------------------------------------

    async def lease(self, namespace: str, name: str, *, timeout: float = READ_TIMEOUT) -> LeaseRecord:
        path = f"{LEASES.format(quote(namespace))}/{quote(name)}"
        return leases.read((await self._call("get", "leases", "GET", path, timeout=timeout)).body)

    async def create_lease(
        self, namespace: str, name: str, record: LeaseRecord, *, timeout: float = WRITE_TIMEOUT
    ) -> LeaseRecord:
        """Conflict: somebody else was faster."""
        body = leases.body(namespace, name, record)
        path = LEASES.format(quote(namespace))
        reply = await self._call("create", "leases", "POST", path, body=body, timeout=timeout)
        return leases.read(reply.body)

    async def update_lease(
        self, namespace: str, name: str, record: LeaseRecord, *, timeout: float = WRITE_TIMEOUT
    ) -> LeaseRecord:
        """Conflict: `record.version` is no longer the current one. A Lease that was deleted is made again."""
        if not record.version:
            raise ValueError("a Lease is only updated at a known version")
        body = leases.body(namespace, name, record)
        path = f"{LEASES.format(quote(namespace))}/{quote(name)}"
        reply = await self._call("update", "leases", "PUT", path, body=body, timeout=timeout)
        return leases.read(reply.body)

    async def annotate_lease(self, namespace: str, name: str, annotations: Mapping[str, str]) -> None:
        """For people's commands; the holder's renewals leave them in place."""
        path = f"{LEASES.format(quote(namespace))}/{quote(name)}"
        body = {"metadata": {"annotations": dict(annotations)}}
        await self._call("patch", "leases", "PATCH", path, body=body, content_type=STRATEGIC_MERGE)

    # --- events (for bridge.kube.events) ----------------------------------------------------------

    async def post_event(self, namespace: str, body: Mapping[str, Any]) -> None:
        await self._call(
            "create", "events", "POST", f"/api/v1/namespaces/{quote(namespace)}/events", body=body
        )

    async def patch_event(self, namespace: str, name: str, body: Mapping[str, Any]) -> None:
        path = f"/api/v1/namespaces/{quote(namespace)}/events/{quote(name)}"
        await self._call("patch", "events", "PATCH", path, body=body, content_type=STRATEGIC_MERGE)

    # --- the one door -----------------------------------------------------------------------------

    async def _call(
        self,
        verb: str,
        resource: str,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout: float = READ_TIMEOUT,
    ) -> Reply:
        start = self._clock()
        outcome = "200"
        raw = _encode(body) if body is not None else None
        try:
            reply = await self._wire.request(
                method, path, query=query, body=raw, content_type=content_type, accept=accept, timeout=timeout
            )
            outcome = str(reply.status)
            if not 200 <= reply.status < 300:
                raise refusal(reply.status, reply.headers, reply.body, f"{verb} {path}")
            if not reply.body.rstrip().endswith(b"}"):
                raise ProtocolError(f"{verb} {path}: cut off, or not JSON", status=reply.status)
            return reply
        except BridgeError as error:
            outcome = type(error).__name__
            raise
        finally:
            if self._observe:
                self._observe(verb, resource, outcome, self._clock() - start)


def _pod_path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(name)}"


def _precondition(uid: Uid, version: str | None) -> dict[str, Any]:
    return {"uid": uid} | ({"resourceVersion": version} if version else {})


def _condition(found: Condition) -> dict[str, Any]:
    body: dict[str, Any] = {
        "type": found.type,
        "status": found.status,
        "reason": found.reason or None,
        "message": found.message or None,
    }
    if found.probed:
        body["lastProbeTime"] = view.stamp(found.probed)
    if found.changed:
        body["lastTransitionTime"] = view.stamp(found.changed)
    return body
