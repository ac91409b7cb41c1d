"""Bytes of the API server ↔ the nouns of `bridge.core.model`.

Goes in: one object, one page of a list, or one line of a watch, as bytes; or a mapping from a YAML manifest.
Comes out: frozen values. Only the fields that the core needs are ever materialised; env, volumes, images
and managed fields are skipped by the decoder. Bytes that are not such JSON: ProtocolError. A manifest with a
wrong type: UserError.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from sys import intern
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import msgspec

from bridge.core.model import (
    Condition,
    Container,
    ContainerStatus,
    KubeNode,
    Owner,
    Pod,
    Resources,
    Uid,
)
from bridge.errors import ProtocolError, UserError
from bridge.kube import constraints
from bridge.kube.shapes import (
    ConditionView,
    ContainerStatusView,
    ContainerView,
    LineView,
    ListView,
    MetaView,
    OnlyMetaView,
    OwnerView,
    PodSpecView,
    PodStatusView,
    PodView,
    Quantity,
    ResourcesView,
    StatusView,
    VersionView,
)
from bridge.names import SLURMD_LABEL

T = TypeVar("T")
S = TypeVar("S")

OFFLINE_UID = Uid("offline")  # an object that no API server has seen
_EMPTY: Mapping[str, str] = MappingProxyType({})
SLURMD = "slurmd"
_SLURMD: Mapping[str, str] = MappingProxyType({SLURMD_LABEL: SLURMD})


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One chunk of a list. `version` is the list's; `more` is the continue token ("" = last chunk)."""

    items: tuple[T, ...]
    version: str
    more: str = ""


@dataclass(frozen=True, slots=True)
class Event(Generic[T]):
    """One line of a watch: ADDED, MODIFIED, DELETED with `object`; BOOKMARK; ERROR with `code`."""

    type: str
    object: T | None = None
    version: str = ""
    code: int = 0
    reason: str = ""
    message: str = ""


# --- pieces ---------------------------------------------------------------------------------------


def seconds(moment: datetime | None) -> float:
    """Unix seconds, 0.0 for none; a manifest's time without a zone is UTC."""
    if moment is None:
        return 0.0
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def stamp(when: float) -> str:
    """Unix seconds → what metav1.Time wants: whole seconds, UTC."""
    return datetime.fromtimestamp(int(when), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_stamp(when: float) -> str:
    """Unix seconds → what metav1.MicroTime wants."""
    return datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def words(found: Mapping[str, str] | None) -> Mapping[str, str]:
    """Labels or annotations."""
    return {intern(key): value for key, value in found.items()} if found else _EMPTY


def amounts(found: Mapping[str, Quantity] | None) -> Mapping[str, str]:
    """Resource → quantity, as it is written."""
    return {intern(key): intern(str(value)) for key, value in found.items()} if found else _EMPTY


@lru_cache(maxsize=4096)
def _resources(requests: tuple[tuple[str, str], ...], limits: tuple[tuple[str, str], ...]) -> Resources:
    """Pods of one workload ask for the same: one value for all of them."""
    return Resources(requests=dict(requests), limits=dict(limits))


def _shared_resources(found: ResourcesView | None) -> Resources:
    if found is None or not (found.requests or found.limits):
        return _NOTHING
    return _resources(tuple(amounts(found.requests).items()), tuple(amounts(found.limits).items()))


_NOTHING = Resources()


def _containers(found: Sequence[ContainerView] | None) -> tuple[Container, ...]:
    return tuple(
        Container(name=c.name, resources=_shared_resources(c.resources), sidecar=c.restart_policy == "Always")
        for c in found or ()
    )


def _nameless(found: Sequence[ContainerView] | None) -> tuple[Container, ...]:
    return tuple(
        _container(
            tuple(amounts(c.resources.requests if c.resources else None).items()), c.restart_policy or ""
        )
        for c in found or ()
    )


@lru_cache(maxsize=4096)
def _container(requests: tuple[tuple[str, str], ...], restarts: str) -> Container:
    """Ten thousand pods of others have a few of them."""
    return Container(name="", resources=_resources(requests, ()), sidecar=restarts == "Always")


def conditions(found: Sequence[ConditionView] | None) -> tuple[Condition, ...]:
    return tuple(
        Condition(
            type=intern(c.type),
            status=intern(c.status),
            reason=c.reason or "",
            message=c.message or "",
            probed=seconds(c.last_probe_time),
            changed=seconds(c.last_transition_time),
        )
        for c in found or ()
    )


def _container_status(found: ContainerStatusView) -> ContainerStatus:
    state = found.state
    if state is None:
        return ContainerStatus(name=found.name)
    if (end := state.terminated) is not None:
        return ContainerStatus(
            name=found.name, terminated=True, exit_code=end.exit_code, signal=end.signal, reason=end.reason
        )
    if state.running is not None:
        return ContainerStatus(name=found.name, running=True)
    return ContainerStatus(name=found.name, reason=state.waiting.reason if state.waiting else "")


def owners(found: Sequence[OwnerView] | None) -> tuple[Owner, ...]:
    return tuple(
        Owner(
            api_version=intern(o.api_version),
            kind=intern(o.kind),
            name=o.name,
            uid=Uid(o.uid),
            controller=bool(o.controller),
        )
        for o in found or ()
    )


# --- objects --------------------------------------------------------------------------------------


def _scheduling_group(spec: PodSpecView) -> str:
    if spec.scheduling_group is not None:
        return spec.scheduling_group.pod_group_name or ""
    if (ref := spec.workload_ref) is not None:
        return f"{ref.name}/{ref.pod_group}/{ref.pod_group_replica_key or ''}"
    return ""


def _pod(view: PodView) -> Pod:
    meta, spec, status = view.metadata, view.spec or PodSpecView(), view.status or PodStatusView()
    grace = spec.termination_grace_period_seconds
    return Pod(
        namespace=intern(meta.namespace or "default"),
        name=meta.name,
        uid=Uid(meta.uid or OFFLINE_UID),
        version=meta.resource_version,
        created=seconds(meta.creation_timestamp),
        deleted=seconds(meta.deletion_timestamp),
        labels=words(meta.labels),
        annotations=words(meta.annotations),
        owners=owners(meta.owner_references),
        finalizers=tuple(meta.finalizers or ()),
        scheduler=intern(spec.scheduler_name or ""),
        node=KubeNode(intern(spec.node_name or "")),
        gates=tuple(intern(gate.name) for gate in spec.scheduling_gates or ()),
        priority_class=intern(spec.priority_class_name or ""),
        scheduling_group=_scheduling_group(spec),
        containers=_containers(spec.containers),
        init_containers=_containers(spec.init_containers),
        overhead=amounts(spec.overhead),
        resources=_shared_resources(spec.resources) if spec.resources is not None else None,
        active_deadline=spec.active_deadline_seconds,
        claims=tuple(claim.name for claim in spec.resource_claims or ()),
        constraints=constraints.of_pod(spec),
        volume_claims=tuple(constraints.claims(meta.name, spec)),
        grace=max(30 if grace is None else grace, meta.deletion_grace_period_seconds or 0),
        phase=intern(status.phase or "Pending"),
        reason=intern(status.reason or ""),
        message=status.message or "",
        nominated=KubeNode(intern(status.nominated_node_name or "")),
        conditions=conditions(status.conditions),
        statuses=tuple(
            _container_status(s)
            for s in (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
        ),
    )


def _small_pod(view: PodView) -> Pod:
    """A pod that is not ours: who it is, what it takes of which node, what it tolerates there, whether it has ended."""
    meta, spec, status = view.metadata, view.spec or PodSpecView(), view.status or PodStatusView()
    return Pod(
        namespace=intern(meta.namespace or "default"),
        name=meta.name,
        uid=Uid(meta.uid),
        version=meta.resource_version,
        labels=_SLURMD if (meta.labels or {}).get(SLURMD_LABEL) == SLURMD else _EMPTY,
        annotations=_EMPTY,
        overhead=amounts(spec.overhead),
        scheduler=intern(spec.scheduler_name or ""),
        node=KubeNode(intern(spec.node_name or "")),
        priority_class=intern(spec.priority_class_name or ""),
        containers=_nameless(spec.containers),
        init_containers=_nameless(spec.init_containers),
        resources=_shared_resources(spec.resources) if spec.resources is not None else None,
        constraints=constraints.of_a_stranger(spec),
        phase=intern(status.phase or "Pending"),
    )


# --- bytes ----------------------------------------------------------------------------------------

_LINE = msgspec.json.Decoder(LineView)
_ONLY_META = msgspec.json.Decoder(OnlyMetaView)
_STATUS = msgspec.json.Decoder(StatusView)
_VERSION = msgspec.json.Decoder(VersionView)
_POD = msgspec.json.Decoder(PodView)
_PODS = msgspec.json.Decoder(ListView[PodView])


def read(decoder: msgspec.json.Decoder[S], raw: bytes | msgspec.Raw, what: str) -> S:
    try:
        return decoder.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        text = bytes(raw)[:80].decode("utf-8", "replace")
        raise ProtocolError(f"the API server's {what} can't be read: {error}; it begins {text!r}") from error


def _full(scheduler: str) -> bool:
    return True


Ours = Callable[[str], bool]  # scheduler name → is a pod with it ours, to be kept in full


def metadata(raw: bytes) -> MetaView:
    """Of any object."""
    return read(_ONLY_META, raw, "object").metadata


def git_version(raw: bytes) -> str:
    """Of GET /version: "v1.36.3"."""
    return read(_VERSION, raw, "version").git_version


def pod(raw: bytes) -> Pod:
    return _pod(read(_POD, raw, "pod"))


def _either(view: PodView, ours: Ours) -> Pod:
    scheduler = (view.spec.scheduler_name if view.spec else None) or ""
    return _pod(view) if ours(scheduler) else _small_pod(view)


def pods_page(raw: bytes, ours: Ours = _full) -> Page[Pod]:
    """One chunk of GET pods; a pod for whose scheduler name `ours` is false is reduced."""
    found = read(_PODS, raw, "pod list")
    return Page(
        tuple(_either(v, ours) for v in found.items or ()), found.metadata.version, found.metadata.more or ""
    )


def event(line: bytes, decoder: msgspec.json.Decoder[S], build: Callable[[S], T]) -> Event[T]:
    """One line of a watch."""
    found = read(_LINE, line, "watch event")
    if found.type == "ERROR":
        status = read(_STATUS, found.object, "watch error")
        return Event(type="ERROR", code=status.code, reason=status.reason, message=status.message)
    version = read(_ONLY_META, found.object, "watch event").metadata.resource_version
    if found.type == "BOOKMARK":
        return Event(type="BOOKMARK", version=version)
    if found.type not in ("ADDED", "MODIFIED", "DELETED"):
        raise ProtocolError(f"the API server's watch says {found.type!r}, which no version defines")
    return Event(
        type=intern(found.type), object=build(read(decoder, found.object, "watch event")), version=version
    )


def pod_event(line: bytes, ours: Ours = _full) -> Event[Pod]:
    return event(line, _POD, lambda view: _either(view, ours))


# --- manifests ------------------------------------------------------------------------------------


def from_object(obj: Mapping[str, Any], shape: type[S]) -> S:
    """An object of a manifest in that shape. Raises UserError."""
    meta = obj.get("metadata")
    name = meta.get("name", "") if isinstance(meta, Mapping) else ""
    where = f"{obj.get('kind', 'object')} {name or '(no name)'}"
    if not isinstance(meta, Mapping):
        raise UserError(f"{where}: has no metadata; add metadata.name")
    try:
        return msgspec.convert(obj, shape)
    except msgspec.ValidationError as error:
        raise UserError(f"{where}: {error}; quote values that Kubernetes wants as strings") from error


def pod_from_object(obj: Mapping[str, Any]) -> Pod:
    """A pod from a manifest; namespace "default" and uid "offline" where it names none. Raises UserError."""
    return _pod(from_object(obj, PodView))
