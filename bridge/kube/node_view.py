"""Bytes of the API server → `Node`, with what its twin in Slurm is told and shows. Errors as in `bridge.kube.view`.

What must stay true: a heartbeat of kubelet's changes nothing in a Node, or every one of them would wake whoever looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from sys import intern
from typing import Any

import msgspec

from bridge.core.constraints import Taint
from bridge.core.model import Condition, KubeNode, Node, Uid
from bridge.kube import constraints, view
from bridge.kube.shapes import ConditionView, ListView, MetaView, TaintView
from bridge.names import NODE_PARTITIONS_ANNOTATION, SLURM_NODE_CONDITION, TOPOLOGY_ANNOTATION

_OF_NODES = (NODE_PARTITIONS_ANNOTATION, TOPOLOGY_ANNOTATION)


class NodeSpecView(msgspec.Struct):
    unschedulable: bool | None = None
    taints: list[TaintView] | None = None


class NodeInfoView(msgspec.Struct, rename={"boot_id": "bootID"}):
    boot_id: str = ""


class AddressView(msgspec.Struct):
    type: str = ""
    address: str = ""


class NodeStatusView(msgspec.Struct, rename="camel"):
    allocatable: dict[str, str] | None = None
    conditions: list[ConditionView] | None = None
    node_info: NodeInfoView | None = None
    addresses: list[AddressView] | None = None


class NodeView(msgspec.Struct):
    metadata: MetaView
    spec: NodeSpecView | None = None
    status: NodeStatusView | None = None


_NODE = msgspec.json.Decoder(NodeView)
_NODES = msgspec.json.Decoder(ListView[NodeView])


def node(raw: bytes) -> Node:
    return _node(view.read(_NODE, raw, "node"))


def page(raw: bytes) -> view.Page[Node]:
    """One chunk of a list."""
    found = view.read(_NODES, raw, "node list")
    items = tuple(map(_node, found.items or ()))
    return view.Page(items, found.metadata.version, found.metadata.more or "")


def event(line: bytes) -> view.Event[Node]:
    """One line of a watch."""
    return view.event(line, _NODE, _node)


def _node(found: NodeView) -> Node:
    meta, spec, status = found.metadata, found.spec or NodeSpecView(), found.status or NodeStatusView()
    conditions = status.conditions or ()
    ready = next((c for c in conditions if c.type == "Ready"), None)
    said = meta.annotations or {}
    return Node(
        name=KubeNode(intern(meta.name)),
        uid=Uid(meta.uid),
        labels=view.words(meta.labels),
        ready=ready is not None and ready.status == "True",
        ready_since=view.seconds(ready.last_transition_time) if ready is not None else 0.0,
        cordoned=bool(spec.unschedulable),
        taints=tuple(map(constraints.taint, spec.taints or ())),
        allocatable=view.amounts(status.allocatable),
        annotations=view.words({key: said[key] for key in _OF_NODES if key in said}),
        deleted=view.seconds(meta.deletion_timestamp),
        unknown=ready is not None and ready.status == "Unknown",
        boot_id=status.node_info.boot_id if status.node_info is not None else "",
        addresses=tuple(one.address for one in status.addresses or () if one.type == "InternalIP"),
        mirrored=_mirrored(conditions),
    )


def _mirrored(conditions: Sequence[ConditionView]) -> Condition | None:
    """Without the time at which it was last written, which says nothing about the node."""
    ours = view.conditions([c for c in conditions if c.type == SLURM_NODE_CONDITION])
    return replace(ours[0], probed=0.0) if ours else None


# --- taints as they stand: somebody else's have fields that we don't read ---------------------------


class _RawSpecView(msgspec.Struct):
    taints: list[dict[str, Any]] | None = None


class _RawNodeView(msgspec.Struct):
    metadata: MetaView
    spec: _RawSpecView | None = None


_RAW_NODE = msgspec.json.Decoder(_RawNodeView)


def taints(raw: bytes) -> tuple[list[dict[str, Any]], Mapping[str, str], str]:
    """The node's taints, word for word, its labels and its version."""
    found = view.read(_RAW_NODE, raw, "node")
    standing = found.spec.taints if found.spec is not None else None
    return list(standing or ()), found.metadata.labels or {}, found.metadata.resource_version


def with_taints(
    standing: Sequence[dict[str, Any]], add: Iterable[Taint], remove: Iterable[Taint]
) -> list[dict[str, Any]]:
    """One that is added takes the place of the one of its key and effect."""
    new = {(taint.key, taint.effect): taint for taint in add}
    gone = {(taint.key, taint.effect) for taint in remove} - new.keys()
    kept = []
    for one in standing:
        which = (one.get("key", ""), one.get("effect", ""))
        if (other := new.pop(which, None)) is not None and other.value != one.get("value", ""):
            one = _body(other)
        if which not in gone:
            kept.append(one)
    return kept + [_body(taint) for taint in new.values()]


def _body(taint: Taint) -> dict[str, Any]:
    body = {"key": taint.key, "effect": taint.effect}
    return body | {"value": taint.value} if taint.value else body
