"""The resources that we list and watch: where each lives and how its bytes are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from bridge.core.grouping.owners import BUILT_IN_GROUP, COSCHEDULING_GROUP
from bridge.core.model import Node, Pod, Workload
from bridge.kube import node_view, view, workload_view

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kind(Generic[T]):
    name: str  # the resource, plural, as in RBAC
    path: str  # of the list over all namespaces
    page: Callable[[bytes], view.Page[T]]
    event: Callable[[bytes], view.Event[T]]
    bare: bool = False  # ask for the objects' metadata alone


def pods(ours: view.Ours | None = None) -> Kind[Pod]:
    """All pods; those for whose scheduler name `ours` is false are reduced to identity, node and phase."""
    if ours is None:
        return Kind("pods", "/api/v1/pods", view.pods_page, view.pod_event)
    page, event = partial(view.pods_page, ours=ours), partial(view.pod_event, ours=ours)
    return Kind("pods", "/api/v1/pods", page, event)


def nodes() -> Kind[Node]:
    return Kind("nodes", "/api/v1/nodes", node_view.page, node_view.event)


def jobs() -> Kind[Workload]:
    return Kind("jobs", "/apis/batch/v1/jobs", workload_view.page, workload_view.event)


@dataclass(frozen=True, slots=True)
class OptionalKind:
    """Objects whose annotations count for pods, in a cluster that has them."""

    group: str
    kind: str
    resource: str
    versions: tuple[str, ...]  # that we can read, the best first
    bare: bool = False  # nothing of it counts but its annotations and owners

    @property
    def name(self) -> str:
        """As kubectl and RBAC name it."""
        return f"{self.resource}.{self.group}"

    def at(self, version: str) -> Kind[Workload]:
        where = f"{self.group}/{version}"
        page = partial(workload_view.page, api_version=where, kind=self.kind)
        event = partial(workload_view.event, api_version=where, kind=self.kind)
        return Kind(self.resource, f"/apis/{where}/{self.resource}", page, event, self.bare)


OPTIONAL = (
    OptionalKind("jobset.x-k8s.io", "JobSet", "jobsets", ("v1alpha2",)),
    OptionalKind("leaderworkerset.x-k8s.io", "LeaderWorkerSet", "leaderworkersets", ("v1",)),
    OptionalKind(COSCHEDULING_GROUP, "PodGroup", "podgroups", ("v1alpha1",)),
    OptionalKind(BUILT_IN_GROUP, "PodGroup", "podgroups", ("v1beta1", "v1alpha3", "v1alpha2")),
    OptionalKind(BUILT_IN_GROUP, "Workload", "workloads", ("v1beta1", "v1alpha3", "v1alpha2", "v1alpha1")),
    OptionalKind("apps", "ReplicaSet", "replicasets", ("v1",), bare=True),
    OptionalKind("apps", "StatefulSet", "statefulsets", ("v1",), bare=True),
    OptionalKind("trainer.kubeflow.org", "TrainJob", "trainjobs", ("v1alpha1",), bare=True),
    OptionalKind("ray.io", "RayCluster", "rayclusters", ("v1",), bare=True),
    OptionalKind("ray.io", "RayJob", "rayjobs", ("v1",), bare=True),
    OptionalKind("ray.io", "RayService", "rayservices", ("v1",), bare=True),
)
