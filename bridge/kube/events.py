"""Events on pods, nodes and our Lease: one object per (UID, reason), counted up when the same thing happens again.

Goes in: what happened, in a sentence. Comes out: True if the API server has it. An Event is a courtesy: no
failure of one ever reaches the caller as an exception.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Literal

from bridge import names
from bridge.core.lease import LeaseRef
from bridge.core.model import Node, Pod
from bridge.errors import BridgeError, Conflict, NotFound
from bridge.kube.client import KubeClient
from bridge.kube.view import stamp

REMEMBERED = 4096  # Events whose count we know; beyond that a count starts again
MESSAGE_LIMIT = 1024  # bytes, the API server's own


About = Pod | Node | LeaseRef


class EventRecorder:
    """`instance` is this process (a pod name); `now` gives Unix seconds."""

    def __init__(self, client: KubeClient, instance: str, now: Callable[[], float] = time.time) -> None:
        self._client = client
        self._instance = instance
        self._now = now
        self._counts: OrderedDict[str, int] = OrderedDict()

    async def record(
        self, about: About, reason: str, message: str, *, kind: Literal["Normal", "Warning"] = "Normal"
    ) -> bool:
        namespace = "default" if isinstance(about, Node) else about.namespace
        name = event_name(about, reason)
        try:
            count = self._counts.get(name, 0) + 1
            if count == 1:
                try:
                    await self._client.post_event(namespace, self._new(about, name, reason, message, kind))
                except Conflict:  # made before a restart
                    await self._again(namespace, name, message, 2)
                    count = 2
            else:
                try:
                    await self._again(namespace, name, message, count)
                except NotFound:  # its hour is over
                    await self._client.post_event(namespace, self._new(about, name, reason, message, kind))
                    count = 1
        except BridgeError:
            return False
        self._counts[name] = count
        self._counts.move_to_end(name)
        while len(self._counts) > REMEMBERED:
            self._counts.popitem(last=False)
        return True

    async def _again(self, namespace: str, name: str, message: str, count: int) -> None:
        body = {"message": _short(message), "count": count, "lastTimestamp": stamp(self._now())}
        await self._client.patch_event(namespace, name, body)

    def _new(self, about: About, name: str, reason: str, message: str, kind: str) -> dict[str, Any]:
        when = stamp(self._now())
        target: dict[str, Any] = {"apiVersion": "v1", "name": about.name, "uid": about.uid}
        match about:
            case Pod():
                target |= {"kind": "Pod", "namespace": about.namespace}
            case LeaseRef():
                group = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
                target |= group | {"namespace": about.namespace}
            case Node():
                target |= {"kind": "Node"}
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": target.get("namespace", "default")},
            "involvedObject": target,
            "reason": reason,
            "message": _short(message),
            "type": kind,
            "count": 1,
            "firstTimestamp": when,
            "lastTimestamp": when,
            "source": {"component": names.COMPONENT},
            "reportingComponent": names.COMPONENT,
            "reportingInstance": self._instance,
        }


def event_name(about: About, reason: str) -> str:
    """The same for the same (UID, reason), from any process; at most 253 characters."""
    digest = sha256(f"{about.uid}/{reason}".encode()).hexdigest()[:16]
    return f"{about.name[:230]}.{digest}"


def _short(message: str) -> str:
    return message.encode()[:MESSAGE_LIMIT].decode("utf-8", "ignore")
