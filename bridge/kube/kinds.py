"""The resources that we list and watch: where each lives and how its bytes are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from bridge.core.model import Node, Pod, Workload
from bridge.kube import view

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    name: str  # the resource, plural, as in RBAC
    path: str  # of the list over all namespaces
    page: Callable[[bytes], view.Page[T]]
    event: Callable[[bytes], view.Event[T]]


def pods(ours: view.Ours | None = None) -> Kind[Pod]:
    """All pods; those for whose scheduler name `ours` is false are reduced to identity, node and phase."""
    if ours is None:
        return Kind("pods", "/api/v1/pods", view.pods_page, view.pod_event)
    page, event = partial(view.pods_page, ours=ours), partial(view.pod_event, ours=ours)
    return Kind("pods", "/api/v1/pods", page, event)


def nodes() -> Kind[Node]:
    return Kind("nodes", "/api/v1/nodes", view.nodes_page, view.node_event)


def jobs() -> Kind[Workload]:
    return Kind("jobs", "/apis/batch/v1/jobs", view.workloads_page, view.workload_event)
