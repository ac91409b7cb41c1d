"""What pods ask of nodes, what nodes refuse, and where storage lies: wire shapes → the nouns of `core.constraints`.

Pods of one workload ask for the same, and most ask for nothing: equal values are one value, so that ten thousand pods
hold a few of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from sys import intern

from bridge.core.constraints import (
    ANYWHERE,
    EVERY_ADDRESS,
    TCP,
    Constraints,
    HostPort,
    Requirement,
    StorageClass,
    Taint,
    Term,
    Terms,
    Toleration,
    Volume,
    VolumeClaim,
)
from bridge.kube.shapes import (
    ContainerView,
    PodSpecView,
    PortView,
    RequirementView,
    SelectorView,
    StorageClassView,
    TaintView,
    TermView,
    TolerationView,
    TopologyView,
    VolumeClaimView,
    VolumeView,
)
from bridge.names import SELECTED_NODE_ANNOTATION

_LATE = "WaitForFirstConsumer"


def of_pod(spec: PodSpecView) -> Constraints:
    """What the pod asks for by itself; how its volumes bind it is in their claims."""
    affinity = spec.affinity.node_affinity.required if spec.affinity and spec.affinity.node_affinity else None
    return _shared(
        tuple(sorted((intern(key), intern(value)) for key, value in (spec.node_selector or {}).items())),
        _terms(affinity) if affinity is not None else None,
        tuple(map(_toleration, spec.tolerations or ())),
        _ports(spec),
    )


def of_a_stranger(spec: PodSpecView) -> Constraints:
    """Of a pod that is not ours: what it takes from those that are, and which taints it lives with."""
    return _shared((), None, tuple(map(_toleration, spec.tolerations or ())), _ports(spec))


def claims(pod: str, spec: PodSpecView) -> Iterator[str]:
    """The PersistentVolumeClaims that the pod of that name mounts."""
    for volume in spec.volumes or ():
        if volume.persistent_volume_claim is not None:
            yield volume.persistent_volume_claim.claim_name
        elif volume.ephemeral is not None:
            yield f"{pod}-{volume.name}"


def taint(found: TaintView) -> Taint:
    return Taint(intern(found.key), intern(found.value or ""), intern(found.effect))


@lru_cache(maxsize=4096)
def _shared(
    selector: tuple[tuple[str, str], ...],
    affinity: Terms | None,
    tolerations: tuple[Toleration, ...],
    ports: tuple[HostPort, ...],
) -> Constraints:
    found = Constraints(selector=selector, affinity=affinity, tolerations=tolerations, ports=ports)
    return ANYWHERE if found == ANYWHERE else found


def _toleration(found: TolerationView) -> Toleration:
    return _one_toleration(
        found.key or "", found.operator or "Equal", found.value or "", found.effect or "", found.seconds
    )


@lru_cache(maxsize=4096)
def _one_toleration(key: str, operator: str, value: str, effect: str, seconds: int | None) -> Toleration:
    return Toleration(key, operator, value, effect, seconds)


def _ports(spec: PodSpecView) -> tuple[HostPort, ...]:
    """Of everything that runs beside the containers, as kube-scheduler counts them."""
    sidecars = (c for c in spec.init_containers or () if c.restart_policy == "Always")
    return tuple(port for c in (*(spec.containers or ()), *sidecars) for port in _ports_of(c))


def _ports_of(container: ContainerView) -> Iterator[HostPort]:
    for port in container.ports or ():
        if port.host_port:
            yield _port(port)


def _port(found: PortView) -> HostPort:
    return HostPort(
        found.host_port or 0, intern(found.protocol or TCP), intern(found.host_ip or EVERY_ADDRESS)
    )


def _terms(found: SelectorView) -> Terms:
    return tuple(map(_term, found.node_selector_terms or ()))


def _term(found: TermView) -> Term:
    return Term(_requirements(found.match_expressions), _requirements(found.match_fields))


def _requirements(found: Sequence[RequirementView] | None) -> tuple[Requirement, ...]:
    return tuple(
        Requirement(intern(one.key), intern(one.operator), tuple(map(intern, one.values or ())))
        for one in found or ()
    )


# --- storage ----------------------------------------------------------------------------------------


def claim(view: VolumeClaimView) -> VolumeClaim:
    meta, spec = view.metadata, view.spec
    return VolumeClaim(
        namespace=intern(meta.namespace or "default"),
        name=meta.name,
        volume=(spec.volume_name if spec else None) or "",
        storage_class=intern((spec.storage_class_name if spec else None) or ""),
        chosen=(meta.annotations or {}).get(SELECTED_NODE_ANNOTATION, ""),
    )


def volume(view: VolumeView) -> Volume:
    affinity = view.spec.node_affinity if view.spec else None
    required = affinity.required if affinity is not None else None
    return Volume(name=view.metadata.name, reach=_reach(_terms(required)) if required is not None else None)


def storage_class(view: StorageClassView) -> StorageClass:
    topologies = view.allowed_topologies
    return StorageClass(
        name=view.metadata.name,
        late=view.volume_binding_mode == _LATE,
        reach=_reach(tuple(map(_topology, topologies))) if topologies else None,
    )


def _topology(found: TopologyView) -> Term:
    return Term(
        tuple(
            Requirement(intern(one.key), "In", tuple(map(intern, one.values or ())))
            for one in found.match_label_expressions or ()
        )
    )


@lru_cache(maxsize=4096)
def _reach(terms: Terms) -> Terms:
    """Volumes of one zone share its terms."""
    return terms
