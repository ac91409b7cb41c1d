"""What a Kubernetes node shows of its twin in Slurm: one condition and two taints.

In: both sides of a node. Out: steps to the Kubernetes node. What must stay true: nobody's cordon and no taint of
others is touched; a taint of ours is never taken away because something could not be read; and no node is tainted whose
slurmd pod does not tolerate that, as it would never come back.
"""

from __future__ import annotations

from collections.abc import Iterable

from bridge.config import NodeSettings
from bridge.core.constraints import Taint
from bridge.core.drains import standing
from bridge.core.fit import outlasted
from bridge.core.model import Condition, Node, Pod
from bridge.core.nodes import Around, Kind, NodeRecord, Pair
from bridge.core.steps import NodeStep, SetNodeCondition, SetNodeTaints
from bridge.errors import trim
from bridge.names import (
    EXTERNAL_NODE_LABEL,
    MANAGED_NODE_TAINT,
    SLURM_NODE_CONDITION,
    SLURMD_LABEL,
    UNAVAILABLE_TAINT,
)

# States in which Slurm starts nothing on a node, the gravest first; reason of the condition → by Slurm's words.
_UNUSABLE = {
    "Down": {"DOWN"},
    "Failed": {"FAIL", "ERROR", "INVALID", "INVALID_REG"},
    "NotResponding": {"NOT_RESPONDING"},
    "Drained": {"DRAIN", "POWER_DRAIN"},
    "Maintenance": {"MAINTENANCE"},
    "Reserved": {"RESERVED"},
    "PoweredDown": {"POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN"},
    "Rebooting": {"REBOOT_ISSUED"},
    "Blocked": {"BLOCKED"},
    "Unknown": {"UNKNOWN", "FUTURE"},
}
USABLE = "Usable"
BLINK = 2.0  # seconds that a slurmd may not answer for after each undrain
_LONGEST = 1000  # characters of a reason that a condition shows
_SYSTEM = ("system-node-critical", "system-cluster-critical")


def unusable(record: NodeRecord, silent_for: float) -> str:
    """ "" = Slurm can use it."""
    hidden = set()
    if record.kind is not Kind.EXTERNAL and silent_for < BLINK:
        hidden.add("NOT_RESPONDING")
    if "UNDRAIN" in record.states:
        hidden.add("DRAIN")
    states = record.states - hidden
    return next((reason for reason, words in _UNUSABLE.items() if states & words), "")


def condition(record: NodeRecord, silent_for: float) -> Condition:
    reason = unusable(record, silent_for)
    if not reason:
        return Condition(type=SLURM_NODE_CONDITION, status="True", reason=USABLE, message="Slurm can use it")
    states = " ".join(sorted(record.states & set().union(*_UNUSABLE.values())))
    words = [states]
    if record.reason:
        words.append(
            trim(record.reason, _LONGEST) + (f" [{record.reason_user}]" if record.reason_user else "")
        )
    if record.reservation:
        words.append(f"reservation {record.reservation}")
    return Condition(type=SLURM_NODE_CONDITION, status="False", reason=reason, message=": ".join(words))


def shown(node: Node, record: NodeRecord, pair: Pair, settings: NodeSettings) -> tuple[NodeStep, ...]:
    new, old = condition(record, pair.silent_for), node.mirrored
    same = old is not None and (old.status, old.reason, old.message) == (new.status, new.reason, new.message)
    if same or not settings.nodeStateToKubernetes:
        return ()
    return (SetNodeCondition(node=node.name, uid=node.uid, condition=new),)


def taints(
    node: Node, record: NodeRecord, pair: Pair, around: Around, settings: NodeSettings
) -> tuple[tuple[NodeStep, ...], str]:
    """Steps, and why a taint that should be there is not set, "" = all is as it should be."""
    add: list[Taint] = []
    remove: list[Taint] = []
    trouble = ""
    if settings.taintNodes and managed(node) is None:
        taint, trouble = planned(record.kind, pair.others, around, settings)
        add += [] if trouble else [taint]
    mark = Taint(UNAVAILABLE_TAINT, "", "NoSchedule")
    there = [t for t in node.taints if t.key == UNAVAILABLE_TAINT]
    by_others = bool(unusable(record, pair.silent_for)) and standing(record) is None
    forbidden = _forbidden(mark, record.kind, pair.others) if by_others else ""
    if settings.taintUnavailable and by_others and not forbidden:
        add += [] if there else [mark]
    else:
        remove += there
    if not add and not remove:
        return (), trouble
    return (SetNodeTaints(node=node.name, uid=node.uid, add=tuple(add), remove=tuple(remove)),), trouble


def managed(node: Node) -> Taint | None:
    """The one that is there keeps its effect, whoever set it."""
    return next((taint for taint in node.taints if taint.key == MANAGED_NODE_TAINT), None)


def planned(kind: Kind, others: Iterable[Pod], around: Around, settings: NodeSettings) -> tuple[Taint, str]:
    """The taint of a node that has none yet, and why it is not set all the same, "" = it is."""
    taint = Taint(MANAGED_NODE_TAINT, around.scheduler, settings.taintEffect)
    return taint, _forbidden(taint, kind, others)


def parting(node: Node) -> tuple[NodeStep, ...]:
    """Slurm has it no more, and that is certain."""
    ours = tuple(t for t in node.taints if t.key in (MANAGED_NODE_TAINT, UNAVAILABLE_TAINT))
    steps: list[NodeStep] = []
    if ours:  # if the label is back, our view of the node is old
        back = "" if EXTERNAL_NODE_LABEL in node.labels else EXTERNAL_NODE_LABEL
        steps.append(SetNodeTaints(node=node.name, uid=node.uid, remove=ours, unless=back))
    if node.mirrored is not None:  # last: it is what tells that the taints were ours
        steps.append(SetNodeCondition(node=node.name, uid=node.uid, condition=None))
    return tuple(steps)


def evicted(taint: Taint, others: Iterable[Pod]) -> tuple[Pod, ...]:
    """Pods that a NoExecute taint would end."""
    if taint.effect != "NoExecute":
        return ()
    return tuple(pod for pod in others if not outlasted(taint, pod.constraints.tolerations))


def system(pod: Pod) -> bool:
    return pod.namespace == "kube-system" or pod.priority_class in _SYSTEM


def _forbidden(taint: Taint, kind: Kind, others: Iterable[Pod]) -> str:
    pods = tuple(others)
    slurmd = [pod for pod in pods if pod.labels.get(SLURMD_LABEL) == "slurmd"]
    if kind is Kind.OPERATOR and not slurmd:
        return f"not tainted with {taint.key}: its slurmd pod is not there, and may not tolerate it"
    if strict := next((pod for pod in slurmd if not outlasted(taint, pod.constraints.tolerations)), None):
        return (
            f"not tainted with {taint.key}: the slurmd pod {strict.ref} does not tolerate it; add a toleration to its "
            "NodeSet"
        )
    if victims := [pod.ref for pod in evicted(taint, pods) if system(pod)]:
        return (
            f"not tainted with {taint}: it would evict {', '.join(sorted(victims))}; add a toleration there, or set "
            "taintEffect: NoSchedule"
        )
    return ""
