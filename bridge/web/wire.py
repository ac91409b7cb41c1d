"""The extender's JSON, exactly as kube-scheduler writes and reads it (k8s.io/kube-scheduler/extender/v1: no json tags,
so Go's field names), reduced to what an answer needs. `nodeCacheCapable`: names instead of node objects."""

from __future__ import annotations

import msgspec


class Meta(msgspec.Struct, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class PodObject(msgspec.Struct, frozen=True):
    metadata: Meta


class FilterArgs(msgspec.Struct, frozen=True):
    pod: PodObject = msgspec.field(name="Pod")
    nodes: list[str] | None = msgspec.field(name="NodeNames", default=None)


class FilterResult(msgspec.Struct, frozen=True):
    nodes: list[str] = msgspec.field(name="NodeNames")
    failed: dict[str, str] = msgspec.field(name="FailedNodes", default_factory=dict)
    error: str = msgspec.field(name="Error", default="")


class BindArgs(msgspec.Struct, frozen=True):
    name: str = msgspec.field(name="PodName")
    namespace: str = msgspec.field(name="PodNamespace")
    uid: str = msgspec.field(name="PodUID")
    node: str = msgspec.field(name="Node")


class BindResult(msgspec.Struct, frozen=True):
    error: str = msgspec.field(name="Error", default="")


filter_args = msgspec.json.Decoder(FilterArgs)
bind_args = msgspec.json.Decoder(BindArgs)
encode = msgspec.json.Encoder().encode
