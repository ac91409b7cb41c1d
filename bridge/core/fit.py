"""Which nodes cannot take a pod, and by which rule: what kube-scheduler would say, asked before Slurm is.

In: what a pod needs of a node, a node, what the pods on it take. Out: the first rule that fails, as the end of a
sentence about that node, "" = none fails. The meaning of every field is that of the stock scheduler's filters; what is
not known of a node, or of the storage that a pod names, stands in nobody's way.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

from bridge.core import demand, quantity
from bridge.core.constraints import (
    ANYWHERE,
    EVERY_ADDRESS,
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
from bridge.core.model import JobRecord, Node, Pod, SlurmNode
from bridge.errors import UserError
from bridge.names import EXTENDED_DEVICE_CLASS_PREFIX, OPTION_PREFIX

# What a cordon is to a pod: one that tolerates this may go there all the same.
CORDONED = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
STRANGER = "is no node of this Kubernetes cluster"
OVERCOMMITTED = "is on a machine whose slurmds offer more together than it has"
UNWANTED = "is excluded by the option exclude-nodes"

_KEEPS_AWAY = ("NoSchedule", "NoExecute")
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_PLURALS = {"is": "are", "has": "have", "does": "do", "takes": "take"}
_KINDS_SHOWN = 4  # of pods, by what they need of a node, in one message
_LONGEST = 200  # characters of a selector that a message shows


@dataclass(frozen=True, slots=True)
class Needs:
    """All of a pod that decides which nodes can take it: pods of equal needs fit on the same nodes."""

    constraints: Constraints = ANYWHERE
    requests: tuple[tuple[str, Fraction], ...] = ()
    volumes: tuple[Terms, ...] = ()  # where each volume can be mounted that not every node can mount


@dataclass(frozen=True, slots=True)
class Taken:
    """What the pods on a node take of what cannot be shared."""

    pods: int = 0
    ports: Collection[HostPort] = ()
    amounts: Mapping[str, Fraction] = field(default_factory=dict)  # where Slurm does not know of them


@dataclass(frozen=True, slots=True)
class Fit:
    """Of a group."""

    obstacles: Mapping[SlurmNode, str] = field(default_factory=dict)  # why a node of both sides can't take it
    # The nodes of its partition that can't, those that Kubernetes lacks included, sorted; None = which nodes the
    # partition has is not known.
    excluded: tuple[SlurmNode, ...] | None = None
    hopeless: str = ""  # that no node can take it, in sentences; "" = some can, or it isn't known
    # Of a gang of several sizes: of the pods of each size, by JobSpec.size. The rest is what one job of all would have.
    parts: Mapping[str, Fit] = field(default_factory=dict)


EVERYWHERE = Fit()
UNUSED = Taken()


def needs(pod: Pod, volumes: tuple[Terms, ...] = ()) -> Needs:
    """Amounts that can't be read count as none: who translates the pod says so."""
    try:
        requests = tuple(sorted((name, amount) for name, amount in demand.requested(pod).items() if amount))
    except UserError:
        requests = ()
    return Needs(pod.constraints, requests, volumes)


def obstacle(asks: Needs, node: Node, taken: Taken = UNUSED) -> str:
    """The first rule that keeps a pod off the node."""
    wants = asks.constraints
    if not node.ready:
        return "is not Ready in Kubernetes"
    if node.cordoned and not tolerated(CORDONED, wants.tolerations):
        return "is cordoned in Kubernetes"
    for taint in node.taints:
        if taint.effect in _KEEPS_AWAY and not tolerated(taint, wants.tolerations):
            return f"has a taint that the pod does not tolerate ({taint})"
    if any(node.labels.get(key) != value for key, value in wants.selector):
        return f"does not match the pod's nodeSelector ({_spelled(wants.selector)})"
    if wants.affinity is not None and not matches(wants.affinity, node):
        return "does not match the pod's required node affinity"
    if wants.ports and (port := _conflict(wants.ports, taken.ports)) is not None:
        return f"has host port {port} in use by another pod"
    if (limit := most_pods(node)) is not None and taken.pods >= limit:
        return "has as many pods as it can have"
    if node.allocatable and (short := _short(asks.requests, node, {})):
        return f"is too small for what the pod requests ({short})"
    if node.allocatable and (short := _short(asks.requests, node, taken.amounts)):
        return f"has too little left beside the pods that Slurm does not count ({short})"
    if not all(matches(terms, node) for terms in asks.volumes):
        return "does not reach a volume of the pod"
    return ""


def crowded(pods: Sequence[Pod], node: Node, taken: Taken) -> str:
    """Why the node has no room for all of them, where it may have room for each."""
    if (limit := most_pods(node)) is not None and taken.pods + len(pods) > limit:
        return f"has no room for {len(pods)} pods more"
    together: dict[str, Fraction] = {}
    for name, amount in (one for pod in pods for one in needs(pod).requests):
        together[name] = together.get(name, Fraction()) + amount
    if node.allocatable and (short := _short(together.items(), node, taken.amounts)):
        return f"has too little left for {len(pods)} pods, beside those that Slurm does not count ({short})"
    return ""


def most_pods(node: Node) -> int | None:
    """How many pods kubelet takes; None = it does not say."""
    text = node.allocatable.get("pods")
    return int(_amount(text)) if text is not None else None


def matches(terms: Terms, node: Node) -> bool:
    """Any of the terms. One without expressions, or with one that nobody can understand, matches nothing."""
    return any(_term(term, node) for term in terms)


def reach(
    claim: VolumeClaim | None, volume: Volume | None, storage_class: StorageClass | None
) -> Terms | None:
    """The nodes that can mount what a claim stands for; None = all, as far as is known.

    Of a claim without a volume the class decides, if it waits for the pod's node; and the node is settled once
    kube-scheduler has chosen it.
    """
    if claim is None:
        return None
    if claim.volume:
        return volume.reach if volume is not None else None
    if storage_class is None or not storage_class.late:
        return None
    if claim.chosen:
        return (Term(fields=(Requirement("metadata.name", "In", (claim.chosen,)),)),)
    return storage_class.reach


def unfit(fit: Fit, record: JobRecord) -> dict[SlurmNode, str]:
    """The nodes that the job holds and that can't take the pods they are for, and why."""
    sizes = record.mark.sizes if record.mark is not None else ()
    found: dict[SlurmNode, str] = {}
    for at, part in enumerate(record.parts or (record,)):
        own = fit.parts.get(sizes[at], fit) if record.parts and at < len(sizes) else fit
        found |= {name: why for name in part.nodes if (why := own.obstacles.get(name, ""))}
    return found


def none_can(obstacles: Iterable[str], partition: str, pods: Sequence[Pod] = ()) -> str:
    """`obstacles`: one for each node. `pods`: those that it is about, () = the one that reads it."""
    where = f" of partition {partition}" if partition else ""
    return f"no node{where} can take {named(pods) or 'the pod'}: {told(obstacles)}"


def at_odds(kinds: Sequence[tuple[Sequence[Pod], Iterable[str]]], partition: str) -> str:
    """Each of these kinds of pods could go somewhere, and no node can take them all. With each the obstacles."""
    where = f" of partition {partition}" if partition else ""
    shown = [(pods, text) for pods, obstacles in kinds if (text := told(obstacles))]
    each = [f"{named(pods)}: {text}" for pods, text in shown[:_KINDS_SHOWN]]
    if more := len(shown) - len(each):
        each.append(f"and {more} more kinds of pods")
    return (
        f"the pods of one job share one list of excluded nodes, and no node{where} can take all of them: "
        f"{'; '.join(each)}. Let some nodes take them all; or let pods that need other nodes ask for other amounts,"
        f" with {OPTION_PREFIX}sizes: own; or take them out of the gang"
    )


def named(pods: Sequence[Pod]) -> str:
    others = len(pods) - 1
    more = "" if others < 1 else f" and {others} other{'s' if others > 1 else ''}"
    return f"pod {pods[0].ref}{more}" if pods else ""


def told(obstacles: Iterable[str]) -> str:
    """A sentence for each rule, with the number of nodes that it excludes, the most first."""
    counts = sorted(Counter(obstacles).items(), key=lambda found: (-found[1], found[0]))
    return "; ".join(f"{count} {_about(count, why)}" for why, count in counts)


def _about(count: int, why: str) -> str:
    verb, _, rest = why.partition(" ")
    return f"node {why}" if count == 1 else f"nodes {_PLURALS[verb]} {rest}"


# --- one rule each ----------------------------------------------------------------------------------


def tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    return any(_tolerates(one, taint) for one in tolerations)


def outlasted(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    """Does the pod stay there for ever? Kubernetes goes by the first toleration that fits."""
    first = next((one for one in tolerations if _tolerates(one, taint)), None)
    return first is not None and (first.seconds is None or taint.effect != "NoExecute")


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    match toleration.operator:
        case "" | "Equal":
            return toleration.value == taint.value
        case "Exists":
            return True
        case "Gt" | "Lt":
            return _compares(taint.value, toleration.operator, toleration.value)
    return False


def _term(term: Term, node: Node) -> bool:
    if not term.labels and not term.fields:
        return False
    return all(_holds(one, node.labels.get(one.key)) for one in term.labels) and all(
        _field_holds(one, node) for one in term.fields
    )


def _holds(wanted: Requirement, value: str | None) -> bool:
    """Of a label with that value, None = the node lacks it."""
    match wanted.operator:
        case "In":
            return value is not None and value in wanted.values
        case "NotIn":
            return value is None or value not in wanted.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            one = len(wanted.values) == 1
            return value is not None and one and _compares(value, wanted.operator, wanted.values[0])
    return False


def _field_holds(wanted: Requirement, node: Node) -> bool:
    """The name is the one field that Kubernetes knows, and one value all that it takes."""
    if wanted.key != "metadata.name" or wanted.operator not in ("In", "NotIn") or len(wanted.values) != 1:
        return False
    return _holds(wanted, node.name)


def _compares(value: str, operator: str, bound: str) -> bool:
    """As whole numbers; what is none compares to nothing."""
    if not (_INTEGER.fullmatch(value) and _INTEGER.fullmatch(bound)):
        return False
    return int(value) > int(bound) if operator == "Gt" else int(value) < int(bound)


def shared_port(pods: Iterable[Pod]) -> HostPort | None:
    """One that two of them want, so that they can't be on one node."""
    used: list[HostPort] = []
    for pod in pods:
        if (port := _conflict(pod.constraints.ports, used)) is not None:
            return port
        used += pod.constraints.ports
    return None


def _conflict(wanted: Iterable[HostPort], used: Collection[HostPort]) -> HostPort | None:
    """One of the ports that another has on the same address, or on every one."""
    return next((port for port in wanted if any(_same(port, other) for other in used)), None)


def _same(one: HostPort, other: HostPort) -> bool:
    if (one.port, one.protocol) != (other.port, other.protocol):
        return False
    return one.ip == other.ip or EVERY_ADDRESS in (one.ip, other.ip)


def _short(requests: Iterable[tuple[str, Fraction]], node: Node, taken: Mapping[str, Fraction]) -> str:
    """The resource of which the node has less, but for what is taken. What a DRA driver hands out is no part of its
    allocatable."""
    for name, amount in requests:
        has = node.allocatable.get(name)
        if has is None and name.startswith(EXTENDED_DEVICE_CLASS_PREFIX):
            continue
        if amount + taken.get(name, 0) > (_amount(has) if has is not None else 0):
            return name
    return ""


@lru_cache(maxsize=4096)
def _amount(text: str) -> Fraction:
    try:
        return quantity.parse(text)
    except UserError:
        return Fraction(quantity.LARGEST)  # not known: it stands in nobody's way


@lru_cache(maxsize=1024)
def _spelled(selector: tuple[tuple[str, str], ...]) -> str:
    text = ",".join(f"{key}={value}" for key, value in selector)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
