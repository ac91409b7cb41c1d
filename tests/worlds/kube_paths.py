"""Paths of the API → what a request asks for."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tests.worlds.kube_faults import Request
from tests.worlds.kube_storage import Resource

_PATH = re.compile(
    r"/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+/[^/]+))"
    r"(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<resource>[a-z]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>[a-z]+))?"
)
_APIS = re.compile(r"/apis(?:/(?P<group>[^/]+/[^/]+))?")
_NAMESPACE = re.compile(r"/api/v1/namespaces/(?P<name>[^/]+)")
_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def parse(method: str, path: str, resources: Mapping[str, Resource]) -> tuple[Request | None, str]:
    """What a request asks for, and the subresource."""
    if found := _NAMESPACE.fullmatch(path):
        return Request(_VERBS[method], "namespaces", "", found["name"]), ""
    if found := _APIS.fullmatch(path):
        return Request("get", "apis", "", found["group"] or ""), ""
    found = _PATH.fullmatch(path)
    if found is None:
        return None, ""
    resource, name, sub = found["resource"], found["name"] or "", found["sub"] or ""
    group = found["core"] or found["group"]
    resource = Resource(resource, "", group).key if group != "v1" else resource
    known = resources.get(resource)
    if (known is None and group != "v1") or (known is not None and group != known.group):
        return None, ""
    verb = _VERBS[method]
    if verb == "get" and not name:
        verb = "list"
    elif sub == "status":
        verb = "patch_status"
    elif sub == "binding":
        verb = "bind"
    return Request(verb, resource, found["namespace"] or "", name), sub
