"""coordination.k8s.io/v1 Lease ↔ `core.lease.LeaseRecord`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from bridge.core.lease import LeaseRecord
from bridge.errors import ProtocolError
from bridge.kube.shapes import MetaView
from bridge.kube.view import micro_stamp, seconds


class _Spec(Struct, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: datetime | None = None
    renew_time: datetime | None = None
    lease_transitions: int | None = None


class _Lease(Struct):
    metadata: MetaView
    spec: _Spec | None = None


_LEASE = msgspec.json.Decoder(_Lease)


def read(raw: bytes) -> LeaseRecord:
    try:
        found = _LEASE.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolError(f"the API server's Lease can't be read: {error}") from error
    spec = found.spec or _Spec()
    return LeaseRecord(
        holder=spec.holder_identity or "",
        duration=spec.lease_duration_seconds or 0,
        acquired=seconds(spec.acquire_time),
        renewed=seconds(spec.renew_time),
        transitions=spec.lease_transitions or 0,
        version=found.metadata.resource_version,
        uid=found.metadata.uid,
        labels=found.metadata.labels or {},
        annotations=found.metadata.annotations or {},
    )


def body(namespace: str, name: str, record: LeaseRecord) -> dict[str, Any]:
    meta: dict[str, Any] = {"namespace": namespace, "name": name}
    if record.version:
        meta["resourceVersion"] = record.version
    for key, words in (("labels", record.labels), ("annotations", record.annotations)):
        if words:
            meta[key] = dict(words)
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": meta,
        "spec": {
            "holderIdentity": record.holder,
            "leaseDurationSeconds": record.duration,
            "acquireTime": micro_stamp(record.acquired),
            "renewTime": micro_stamp(record.renewed),
            "leaseTransitions": record.transitions,
        },
    }
