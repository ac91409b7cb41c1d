"""Manifests for tests, as a person or a controller would post them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bridge import names

Object = dict[str, Any]


def pod(
    name: str,
    *,
    scheduler: str = names.SCHEDULER_NAME,
    gates: Sequence[str] = (names.SCHEDULING_GATE,),
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    finalizers: Sequence[str] = (),
    owner: Object | None = None,
    requests: Mapping[str, str] | None = None,
    grace: int | None = None,
) -> Object:
    spec: Object = {
        "schedulerName": scheduler,
        "restartPolicy": "Never",
        "containers": [
            {
                "name": "main",
                "image": "example.com/x",
                "resources": {"requests": dict(requests or {"cpu": "1"})},
            }
        ],
    }
    if gates:
        spec["schedulingGates"] = [{"name": gate} for gate in gates]
    if grace is not None:
        spec["terminationGracePeriodSeconds"] = grace
    meta: Object = {"name": name}
    if labels:
        meta["labels"] = dict(labels)
    if annotations:
        meta["annotations"] = dict(annotations)
    if finalizers:
        meta["finalizers"] = list(finalizers)
    if owner:
        meta["ownerReferences"] = [owner]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def node(
    name: str, *, labels: Mapping[str, str] | None = None, allocatable: Mapping[str, str] | None = None
) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": {},
        "status": {
            "allocatable": dict(allocatable or {"cpu": "8", "memory": "32Gi", "pods": "110"}),
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def job(
    name: str, *, annotations: Mapping[str, str] | None = None, active_deadline: int | None = None
) -> Object:
    """A suspended Job: no controller makes pods of it."""
    spec: Object = {
        "suspend": True,
        "template": {
            "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "example.com/x"}]}
        },
    }
    if active_deadline is not None:
        spec["activeDeadlineSeconds"] = active_deadline
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "annotations": dict(annotations or {})},
        "spec": spec,
    }
