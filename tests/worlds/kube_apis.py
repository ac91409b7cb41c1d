"""What the in-memory API server says it serves, and objects reduced to their metadata."""

from __future__ import annotations

import json
from collections.abc import Iterable

from tests.worlds.kube_merge import Object
from tests.worlds.kube_storage import Refused, Resource, encode


def groups(resources: Iterable[Resource]) -> bytes:
    """GET /apis."""
    versions: dict[str, dict[str, None]] = {}
    for resource in resources:
        group, _, version = resource.group.rpartition("/")
        if group:
            versions.setdefault(group, {})[version] = None
    found = []
    for group, served in versions.items():
        rows = [{"groupVersion": f"{group}/{version}", "version": version} for version in served]
        found.append({"name": group, "versions": rows, "preferredVersion": rows[0]})
    return encode({"kind": "APIGroupList", "apiVersion": "v1", "groups": found})


def resources(resources: Iterable[Resource], group: str) -> bytes:
    """GET /apis/GROUP/VERSION. Refused: nothing is served there."""
    rows = [
        {"name": r.name, "kind": r.kind, "namespaced": r.namespaced} for r in resources if r.group == group
    ]
    if not rows:
        raise Refused(404, "NotFound", "the server could not find the requested resource")
    return encode({"kind": "APIResourceList", "groupVersion": group, "resources": rows})


def wants_metadata(accept: str) -> bool:
    return "as=PartialObjectMetadata" in accept


def bare(item: Object) -> Object:
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": item.get("metadata", {}),
    }


def bare_line(line: bytes) -> bytes:
    """Of a watch; an error is no object."""
    found = json.loads(line)
    return line if found["type"] == "ERROR" else encode({**found, "object": bare(found["object"])})
