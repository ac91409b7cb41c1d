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


class PortView(Struct, rename={"host_port": "hostPort", "host_ip": "hostIP"}):
    host_port: int | None = None
    host_ip: str | None = None
    protocol: str | None = None


class ContainerView(Struct, rename="camel"):
    name: str = ""
    ports: list[PortView] | None = None
    resources: ResourcesView | None = None
    restart_policy: str | None = None


class GateView(Struct):
    name: str = ""


class ClaimView(Struct):
    name: str = ""


class SchedulingGroupView(Struct, rename="camel"):
    pod_group_name: str | None = None


class RequirementView(Struct):
    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class TermView(Struct, rename="camel"):
    match_expressions: list[RequirementView] | None = None
    match_fields: list[RequirementView] | None = None


class SelectorView(Struct, rename="camel"):
    node_selector_terms: list[TermView] | None = None


class NodeAffinityView(Struct, rename={"required": "requiredDuringSchedulingIgnoredDuringExecution"}):
    required: SelectorView | None = None


class AffinityView(Struct, rename="camel"):
    node_affinity: NodeAffinityView | None = None


class TolerationView(Struct, rename={"seconds": "tolerationSeconds"}):
    key: str | None = None
    operator: str | None = None
    value: str | None = None
    effect: str | None = None
    seconds: int | None = None


class TaintView(Struct):
    key: str = ""
    value: str | None = None
    effect: str = ""


class VolumeSourceView(Struct, rename="camel"):
    claim_name: str = ""


class EphemeralView(Struct):
    """Its presence is all we need: the claim has the name of the pod and of the volume."""


class PodVolumeView(Struct, rename="camel"):
    name: str = ""
    persistent_volume_claim: VolumeSourceView | None = None
    ephemeral: EphemeralView | None = None


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
    node_selector: dict[str, str] | None = None
    affinity: AffinityView | None = None
    tolerations: list[TolerationView] | None = None
    volumes: list[PodVolumeView] | None = None
    termination_grace_period_seconds: int | None = None
    scheduling_group: SchedulingGroupView | None = None
    workload_ref: WorkloadRefView | None = None  # Kubernetes 1.35, in its place


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


class TemplateSpecView(Struct, rename="camel"):
    scheduler_name: str | None = None


class TemplateView(Struct):
    """Of a pod: what it says is read of the pods."""

    metadata: MetaView | None = None
    spec: TemplateSpecView | None = None


class JobSpecView(Struct, rename="camel"):
    parallelism: int | None = None
    completions: int | None = None
    template: TemplateView | None = None


class JobTemplateView(Struct):
    metadata: MetaView | None = None
    spec: JobSpecView | None = None


class ReplicatedJobView(Struct, rename="camel"):
    name: str = ""
    template: JobTemplateView | None = None
    replicas: int | None = None
    depends_on: list[msgspec.Raw] | None = None


class ReplicatedJobStatusView(Struct):
    name: str = ""
    succeeded: int | None = None


class StartupPolicyView(Struct, rename="camel"):
    startup_policy_order: str | None = None


class LeaderWorkerTemplateView(Struct, rename="camel"):
    size: int | None = None
    leader_template: TemplateView | None = None
    worker_template: TemplateView | None = None


class GangView(Struct, rename="camel"):
    min_count: int | None = None


class PolicyView(Struct):
    gang: GangView | None = None


class PodGroupTemplateView(Struct, rename="camel"):
    """Of Kubernetes 1.35 with `policy`, later with `schedulingPolicy`."""

    name: str = ""
    policy: PolicyView | None = None
    scheduling_policy: PolicyView | None = None


class WorkloadRefView(Struct, rename="camel"):
    """Of a pod (1.35) or of a PodGroup."""

    name: str = ""
    pod_group: str = ""
    pod_group_replica_key: str | None = None
    workload_name: str = ""


class TemplateRefView(Struct):
    workload: WorkloadRefView | None = None


class WorkloadSpecView(Struct, rename="camel"):
    """Of every kind whose annotations count for pods: no two of them mean different things by one name."""

    active_deadline_seconds: int | None = None  # Job
    parallelism: int | None = None
    completions: int | None = None
    replicated_jobs: list[ReplicatedJobView] | None = None  # JobSet
    startup_policy: str | StartupPolicyView | None = None  # of a LeaderWorkerSet a word
    leader_worker_template: LeaderWorkerTemplateView | None = None  # LeaderWorkerSet
    min_member: int | None = None  # coscheduling PodGroup
    schedule_timeout_seconds: int | None = None
    scheduling_policy: PolicyView | None = None  # built-in PodGroup
    pod_group_template_ref: TemplateRefView | None = None  # 1.36
    workload_ref: WorkloadRefView | None = None  # 1.37
    pod_groups: list[PodGroupTemplateView] | None = None  # built-in Workload, 1.35
    pod_group_templates: list[PodGroupTemplateView] | None = None


class WorkloadStatusView(Struct, rename="camel"):
    conditions: list[ConditionView] | None = None  # Job
    succeeded: int | None = None  # Job
    failed_indexes: str | None = None  # Job: "1,3-5" will not come again
    replicated_jobs_status: list[ReplicatedJobStatusView] | None = None  # JobSet


class WorkloadView(Struct, rename="camel"):
    metadata: MetaView
    api_version: str = ""
    kind: str = ""
    spec: WorkloadSpecView | None = None
    status: WorkloadStatusView | None = None


class GroupVersionView(Struct):
    version: str = ""


class ApiGroupView(Struct):
    name: str = ""
    versions: list[GroupVersionView] | None = None


class ApiGroupsView(Struct):
    groups: list[ApiGroupView]


class ApiResourceView(Struct):
    name: str = ""


class ApiResourcesView(Struct):
    resources: list[ApiResourceView]


class ClaimSpecView(Struct, rename="camel"):
    volume_name: str | None = None
    storage_class_name: str | None = None


class VolumeClaimView(Struct):
    metadata: MetaView
    spec: ClaimSpecView | None = None


class VolumeAffinityView(Struct):
    required: SelectorView | None = None


class VolumeSpecView(Struct, rename="camel"):
    node_affinity: VolumeAffinityView | None = None


class VolumeView(Struct):
    metadata: MetaView
    spec: VolumeSpecView | None = None


class TopologyExpressionView(Struct):
    key: str = ""
    values: list[str] | None = None


class TopologyView(Struct, rename="camel"):
    match_label_expressions: list[TopologyExpressionView] | None = None


class StorageClassView(Struct, rename="camel"):
    metadata: MetaView
    volume_binding_mode: str | None = None
    allowed_topologies: list[TopologyView] | None = None


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
