"""What a pod asks Kubernetes for, added up as Kubernetes adds it, and its devices in Slurm's words.

In: a pod. Out: exact amounts of every resource, each the larger of request and limit: containers and sidecars
together or the largest init step, pod-level resources instead where given, overhead on top. `gres` turns the
devices among them into a TRES text. Malformed quantities are a UserError that names container and field.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

from bridge.core import quantity
from bridge.core.model import Container, Pod
from bridge.errors import UserError
from bridge.names import EXTENDED_DEVICE_CLASS_PREFIX

CPU = "cpu"
MEMORY = "memory"
DISK = "ephemeral-storage"
DRA_CPU = EXTENDED_DEVICE_CLASS_PREFIX + "dra.cpu"  # CPUs handed out by a DRA driver: CPUs for Slurm as well

Amounts = Mapping[str, Fraction]  # resource → amount in its own unit (cores, bytes, pieces)

_UNCOUNTED = (DISK, "storage")  # the node's disk: no GRES, and hardly ever short
_NONE = Fraction(0)


def effective(pod: Pod) -> Amounts:
    """Resource → the larger of request and limit of the whole pod.

    Raises UserError for a malformed quantity.
    """
    requests, limits = _sums(pod)
    return {name: max(requests.get(name, _NONE), limits.get(name, _NONE)) for name in requests | limits}


def requested(pod: Pod) -> Amounts:
    """Resource → what kube-scheduler looks for on a node. Raises UserError for a malformed quantity."""
    return _sums(pod)[0]


def _sums(pod: Pod) -> tuple[dict[str, Fraction], dict[str, Fraction]]:
    """Requests and limits of the whole pod."""
    apps = [_asked(c) for c in pod.containers]
    steps = [(c.sidecar, _asked(c)) for c in pod.init_containers]
    requests = _total([r for r, _ in apps], [(sidecar, r) for sidecar, (r, _) in steps])
    limits = _total([limit for _, limit in apps], [(sidecar, limit) for sidecar, (_, limit) in steps])
    if pod.resources is not None:
        requests |= _pod_level(pod.resources.requests, "resources.requests")
        limits |= _pod_level(pod.resources.limits, "resources.limits")
    for name, amount in _amounts(pod.overhead, "overhead").items():
        requests[name] = requests.get(name, _NONE) + amount
        if name in limits:
            limits[name] += amount
    return requests, limits


def largest(asked: Sequence[Amounts]) -> Amounts:
    """The most of each resource."""
    found: dict[str, Fraction] = {}
    for amounts in asked:
        found = _larger(found, amounts)
    return found


def cpus(amounts: Amounts) -> int:
    """Whole CPUs, rounded up; 0 = asks for none."""
    return math.ceil(max(amounts.get(CPU, _NONE), amounts.get(DRA_CPU, _NONE)))


def memory_mib(amounts: Amounts) -> int:
    """Whole MiB, rounded up; 0 = asks for none."""
    return quantity.ceil_mib(amounts.get(MEMORY, _NONE))


def disk_mib(amounts: Amounts) -> int:
    """Whole MiB of ephemeral storage, rounded up; 0 = asks for none."""
    return quantity.ceil_mib(amounts.get(DISK, _NONE))


def gres(amounts: Amounts, by_resource: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """("gres/gpu:h100=2,gres/nic=1", warnings). `by_resource`: resource → GRES name or name:type; "" = Slurm
    shall not count it. A device class that is not listed is a GPU type of its name.

    Raises UserError for a GPU resource that is not listed, because Slurm would give the same GPUs to others,
    and for one GRES asked for both with and without a type, because Slurm can't tell which is part of which.
    """
    counts: dict[str, Fraction] = {}
    warnings: list[str] = []
    for name in sorted(name for name, amount in amounts.items() if amount):
        target = by_resource.get(name)
        if name in (CPU, MEMORY, DRA_CPU, *_UNCOUNTED) or target == "":
            continue
        if target is None and name.startswith(EXTENDED_DEVICE_CLASS_PREFIX):
            target = "gpu:" + name.removeprefix(EXTENDED_DEVICE_CLASS_PREFIX)
        if target is not None:
            counts[target] = counts.get(target, _NONE) + amounts[name]
        elif _is_gpu(name):
            raise UserError(
                f"resource {name} is a GPU that Slurm doesn't count and would give to others as well;"
                ' add it to gresByResource (with "" if nobody else can use it), or set the gres annotation'
            )
        else:
            warnings.append(f"resource {name}: Slurm doesn't count it; only kube-scheduler looks for it")
    for target in counts:
        bare = target.partition(":")[0]
        if bare != target and bare in counts:
            raise UserError(
                f"asks for {bare} and for {target}: Slurm takes one GRES either with or without types;"
                " ask for typed devices only, or set the gres annotation"
            )
    return ",".join(f"gres/{name}={math.ceil(counts[name])}" for name in sorted(counts)), tuple(warnings)


def _is_gpu(resource: str) -> bool:
    """GPUs and slices of them, by the names that vendors use."""
    return "gpu" in resource.lower() or "/mig-" in resource


def _asked(container: Container) -> tuple[Amounts, Amounts]:
    """Requests and limits; a limit alone is a request too, as the API server fills it in."""
    where = f"container {container.name}: resources"
    limits = _amounts(container.resources.limits, f"{where}.limits")
    return {**limits, **_amounts(container.resources.requests, f"{where}.requests")}, limits


def _total(apps: Sequence[Amounts], steps: Sequence[tuple[bool, Amounts]]) -> dict[str, Fraction]:
    """Everything that runs together, or the largest init step with the sidecars started before it."""
    sidecars: dict[str, Fraction] = {}
    peak: dict[str, Fraction] = {}
    for sidecar, amounts in steps:
        step = _add(sidecars, amounts)
        if sidecar:
            sidecars = step
        peak = _larger(peak, step)
    running = sidecars
    for amounts in apps:
        running = _add(running, amounts)
    return _larger(running, peak)


def _add(left: Amounts, right: Amounts) -> dict[str, Fraction]:
    return {name: left.get(name, _NONE) + right.get(name, _NONE) for name in {**left, **right}}


def _larger(left: Amounts, right: Amounts) -> dict[str, Fraction]:
    return {name: max(left.get(name, _NONE), right.get(name, _NONE)) for name in {**left, **right}}


def _pod_level(written: Mapping[str, str], where: str) -> dict[str, Fraction]:
    return {name: amount for name, amount in _amounts(written, where).items() if _at_pod_level(name)}


def _at_pod_level(resource: str) -> bool:
    """What Kubernetes lets pod-level resources say; anything else in them it ignores."""
    return resource in (CPU, MEMORY) or resource.startswith("hugepages-")


def _amounts(written: Mapping[str, str], where: str) -> dict[str, Fraction]:
    return {name: quantity.parse(text, f"{where}.{name}") for name, text in written.items()}
