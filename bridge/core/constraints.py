"""What a pod asks of its node besides room, what a node refuses, and the storage that lies somewhere: nouns.

Frozen values as the API server has them; `core.fit` gives them their meaning. Most pods ask for nothing or for the same
as many others, so equal values are read as one (`bridge.kube.constraints`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Requirement:
    """One expression of a node selector term. `operator`: In, NotIn, Exists, DoesNotExist, Gt, Lt."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Term:
    """All of its expressions, on labels and on fields of the node, must hold; one without any matches no node."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()


Terms = tuple[Term, ...]  # one of them must match; () = none does


@dataclass(frozen=True, slots=True)
class Taint:
    key: str
    value: str = ""
    effect: str = ""

    def __str__(self) -> str:  # as kubectl writes it
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


@dataclass(frozen=True, slots=True)
class Toleration:
    """`operator`: Equal, Exists, Gt, Lt. No key: every taint; no effect: every effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    seconds: int | None = None  # of NoExecute: so long the pod may stay; None = for ever


EVERY_ADDRESS = "0.0.0.0"
TCP = "TCP"


@dataclass(frozen=True, slots=True)
class HostPort:
    port: int
    protocol: str = TCP
    ip: str = EVERY_ADDRESS

    def __str__(self) -> str:
        return f"{self.port}/{self.protocol}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """Of one pod."""

    selector: tuple[tuple[str, str], ...] = ()  # spec.nodeSelector, sorted
    affinity: Terms | None = None  # required node affinity; None = there is none
    tolerations: tuple[Toleration, ...] = ()
    ports: tuple[HostPort, ...] = ()


ANYWHERE = Constraints()


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeClaim:
    """A PersistentVolumeClaim."""

    namespace: str
    name: str
    volume: str = ""  # the PersistentVolume that it is, or will be, bound to; "" = none yet
    storage_class: str = ""
    chosen: str = ""  # the Kubernetes node for which kube-scheduler has its volume made


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A PersistentVolume. `reach`: the nodes that can mount it; None = all."""

    name: str
    reach: Terms | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageClass:
    name: str
    late: bool = False  # WaitForFirstConsumer: a volume is made where the pod goes
    reach: Terms | None = None  # allowedTopologies: where volumes can be made; None = everywhere
