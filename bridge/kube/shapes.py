"""The wire shapes of the API server: msgspec Structs with only the fields that `bridge.kube.view` reads.

Fields that may be null on the wire (or in a manifest) say so; everything else in an object is skipped unread.
"""

from __future__ import annotations

from datetime import datetime
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

S = TypeVar("S")
Quantity = str | int | float  # the API server says strings; people write numbers in manifests


class OwnerView(Struct, rename="camel"):
    kind: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    controller: bool | None = None


class MetaView(Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_grace_period_seconds: int | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[OwnerView] | None = None
    finalizers: list[str] | None = None


class ResourcesView(Struct):
    requests: dict[str, Quantity] | None = None
    limits: dict[str, Quantity] | None = None


class ContainerView(Struct, rename="camel"):
    name: str = ""
    resources: ResourcesView | None = None
    restart_policy: str | None = None


class GateView(Struct):
    name: str = ""


class ClaimView(Struct):
    name: str = ""


class PodSpecView(Struct, rename="camel"):
    scheduler_name: str | None = None
    node_name: str | None = None
    scheduling_gates: list[GateView] | None = None
    priority_class_name: str | None = None
    containers: list[ContainerView] | None = None
    init_containers: list[ContainerView] | None = None
    overhead: dict[str, Quantity] | None = None
    resources: ResourcesView | None = None
    active_deadline_seconds: int | None = None
    resource_claims: list[ClaimView] | None = None
    termination_grace_period_seconds: int | None = None


class ConditionView(Struct, rename="camel"):
    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None
    last_probe_time: datetime | None = None
    last_transition_time: datetime | None = None


class RunningView(Struct):
    """Its presence is all we need."""


class WaitingView(Struct):
    reason: str = ""


class TerminatedView(Struct, rename="camel"):
    exit_code: int = 0
    signal: int = 0
    reason: str = ""


class StateView(Struct):
    waiting: WaitingView | None = None
    running: RunningView | None = None
    terminated: TerminatedView | None = None


class ContainerStatusView(Struct):
    name: str = ""
    state: StateView | None = None


class PodStatusView(Struct, rename="camel"):
    phase: str | None = None
    reason: str | None = None
    message: str | None = None
    nominated_node_name: str | None = None
    conditions: list[ConditionView] | None = None
    container_statuses: list[ContainerStatusView] | None = None
    init_container_statuses: list[ContainerStatusView] | None = None


class PodView(Struct):
    metadata: MetaView
    spec: PodSpecView | None = None
    status: PodStatusView | None = None


class NodeSpecView(Struct):
    unschedulable: bool | None = None


class NodeStatusView(Struct):
    allocatable: dict[str, str] | None = None
    conditions: list[ConditionView] | None = None


class NodeView(Struct):
    metadata: MetaView
    spec: NodeSpecView | None = None
    status: NodeStatusView | None = None


class WorkloadSpecView(Struct, rename="camel"):
    active_deadline_seconds: int | None = None
    parallelism: int | None = None
    completions: int | None = None


class WorkloadStatusView(Struct):
    succeeded: int | None = None
    conditions: list[ConditionView] | None = None


class WorkloadView(Struct):
    metadata: MetaView
    kind: str = ""
    spec: WorkloadSpecView | None = None
    status: WorkloadStatusView | None = None


class ListMetaView(Struct, rename={"version": "resourceVersion", "more": "continue"}):
    version: str = ""
    more: str | None = None


class ListView(Struct, Generic[S]):
    metadata: ListMetaView
    items: list[S] | None


class LineView(Struct):
    type: str
    object: msgspec.Raw


class OnlyMetaView(Struct):
    metadata: MetaView


class VersionView(Struct, rename="camel"):
    git_version: str


class StatusView(Struct):
    code: int = 0
    reason: str = ""
    message: str = ""
