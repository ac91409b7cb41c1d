"""External nodes: machines without a slurmd, whose records in Slurm are ours from their registration to their end.

In: a pair whose Kubernetes node has the label, or whose record has our mark. Out: steps and sentences. What must stay
true: a record is drained before it is deleted, deleted only by a drain of ours, and not while slurmctld remembers a job
that names it; a machine is never in Slurm twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bridge.config import NodeSettings
from bridge.core import causes, drains, nodesize, reflection, registration
from bridge.core.causes import Circumstances
from bridge.core.drains import REMOVING, Cause, Present, standing
from bridge.core.model import KubeNode, Node
from bridge.core.nodes import Around, NodeMark, Pair, mark, marked
from bridge.core.steps import DeleteNode, DrainNode, NodeStep, NotifyNode, RegisterNode, UpdateNode
from bridge.core.verdict import Reason, Verdict
from bridge.errors import UserError
from bridge.names import DRAIN_PREFIX, EXTERNAL_NODE_LABEL

_REASONS = {Cause.UNSTARTABLE: Reason.PODS_DO_NOT_START, Cause.DEAF: Reason.NODE_DEAF}


@dataclass(frozen=True, slots=True)
class Found:
    """What was found for one node, to be added up."""

    steps: tuple[NodeStep, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    again: float | None = None  # seconds

    def __add__(self, other: Found) -> Found:
        times = [t for t in (self.again, other.again) if t is not None]
        return Found(self.steps + other.steps, self.verdicts + other.verdicts, min(times) if times else None)


def said(reason: Reason, text: str, again: float | None = None) -> Found:
    return Found(verdicts=(Verdict(reason, text),), again=again)


def labelled(pair: Pair) -> Node | None:
    node = pair.node
    return node if node is not None and EXTERNAL_NODE_LABEL in node.labels else None


# --- one that Slurm has -----------------------------------------------------------------------------


def differs(found: Circumstances) -> tuple[str, Found]:
    """In which sizes both sides differ."""
    node = labelled(found.pair)
    if node is None or not found.settings.externalNodes:
        return "", Found()
    try:
        size = nodesize.wanted(node, found.pair.taken, found.settings, found.around.gres_by_resource)
    except UserError as error:
        return "", said(Reason.NODE_REFUSED, str(error))
    text = nodesize.difference(found.record, size, found.settings.nodeTolerance)
    rest = found.settings.nodeSettling - found.pair.differs_for
    if not text or rest <= 0 or standing(found.record) is Cause.RESIZED:
        return text, Found()
    return text, said(
        Reason.NODE_WAITS, f"{text}: re-created if that lasts {found.settings.nodeSettling:.0f} s", rest
    )


def decide(found: Circumstances) -> Found:
    own, result = in_place(found)
    present = tuple(causes.external(found))
    result += drained(found, present, own)
    if not result.steps:
        result += deletion(found, present)
    return result


def in_place(found: Circumstances) -> tuple[NodeMark, Found]:
    """The mark that it should have, and one write where it, features or topology are others."""
    pair, record, settings = found.pair, found.record, found.settings
    known = mark(record.comment)
    name = pair.node.name if pair.node is not None else known.node if known is not None else KubeNode("")
    own = replace(
        known or NodeMark(cluster=found.around.cluster, node=name),
        node=name,
        drained=standing(record) is not None,
    )
    features: tuple[str, ...] | None = None
    topology: str | None = None
    trouble = Found()
    node = labelled(pair)
    if node is not None and settings.externalNodes:
        try:
            features = registration.other_features(record, node, settings, found.around.partitions)
            topology = registration.other_topology(record, node, own)
            if late := registration.not_yet_in(record, node, settings):
                trouble = said(Reason.NODE_WAITS, late)
        except UserError as error:
            trouble = said(Reason.NODE_REFUSED, str(error))
    if topology is not None:
        own = replace(own, topology=topology)
    comment = marked(record.comment, own) if own != known else None
    if features is None and topology is None and comment is None:
        return own, trouble
    step = UpdateNode(node=pair.name, features=features, topology=topology, comment=comment)
    return own, trouble + Found((step,))


def drained(found: Circumstances, present: Sequence[Present], known: NodeMark | None) -> Found:
    """What is to be done about its drain, and what is said of it."""
    pair, record = found.pair, found.record
    steps = drains.decide(record, present, known, held=bool(pair.unfree) or _not_watched(found))
    result = Found(steps)
    for step in steps:
        if isinstance(step, DrainNode) and pair.node is not None and not step.over:
            cause = drains.cause_of(step.reason)
            reason = _REASONS.get(cause, Reason.NODE_DRAINED) if cause else Reason.NODE_DRAINED
            if cause is not Cause.CLEARING:
                told = Verdict(reason, f"drained in Slurm: {step.reason.removeprefix(DRAIN_PREFIX).strip()}")
                notice = NotifyNode(node=pair.node.name, uid=pair.node.uid, verdict=told)
                result += Found((notice,), (told,))
    for one in present:
        settling = (
            one.cause is Cause.RESIZED and pair.differs_for < found.settings.nodeSettling
        )  # told by differs()
        if not one.allowed and standing(record) is None and not settling:
            result += said(_why_not(one), f"not drained for now: {one.cause}" + _detail(one))
    if drains.by_others(record):
        result += said(
            Reason.NODE_DRAINED, f"{drains.drained_by(record)} took it out of service: {record.reason}"
        )
    elif standing(record) is not None and not present and pair.unfree:
        result += said(Reason.NODE_WAITS, f"stays drained: {pair.unfree}")
    return result


def _why_not(one: Present) -> Reason:
    return Reason.HELD_BACK if one.cause in drains.LIMITED else _REASONS.get(one.cause, Reason.NODE_WAITS)


def _detail(one: Present) -> str:
    return f": {one.detail}" if one.detail else ""


def _not_watched(found: Circumstances) -> bool:
    """Causes that nobody looks for any more are not known to have gone."""
    ours, settings = standing(found.record), found.settings
    if ours in REMOVING:
        return not settings.externalNodes
    return ours is not None and ours is not Cause.CLEARING and not settings.nodeStateToSlurm


def deletion(found: Circumstances, present: Sequence[Present]) -> Found:
    """Of a record that is to go, or to be made anew, once it is free."""
    pair, record, around = found.pair, found.record, found.around
    ours = standing(record)
    if ours not in REMOVING or all(one.cause is not ours for one in present):
        return Found()
    rest = around.min_job_age - (around.slurm_now - record.last_busy)
    for waits, why in (
        (around.young, "slurmctld has just come up"),
        ("DYNAMIC_NORM" not in record.states, "slurm.conf names it: take it out there"),
        (record.busy or pair.named, "jobs or pods are there"),
        (bool(record.reservation), f"reservation {record.reservation} would lose it"),
        (bool(pair.unfree), pair.unfree),
        (rest >= 0, "slurmctld remembers a job that ran there"),
    ):
        if waits:
            again = max(rest, 1.0) if why.startswith("slurmctld") else None
            return said(Reason.NODE_WAITS, f"to be deleted in Slurm ({ours}): {why}", again)
    # The taints go first: without the record nobody could say for certain that they may.
    shown = reflection.parting(pair.node) if pair.node is not None and labelled(pair) is None else ()
    return Found((*shown, DeleteNode(node=record.name, reason=record.reason)))


# --- one that Slurm does not have -------------------------------------------------------------------


def missing(node: Node, pair: Pair, around: Around, settings: NodeSettings) -> str:
    """Why it is not registered now; "" = register it. A new record takes jobs at once, so what would drain it waits."""
    if node.mirrored is not None and around.young:
        return "Slurm does not list it, and has just come up"
    if pair.former:
        return f"registered once Slurm has no record of its former name, {' and '.join(pair.former)}"
    if pair.unfree:
        return f"registered once its devices are free: {pair.unfree}"
    if settings.nodeStateToSlurm and (blocked := causes.blocking(node, settings)):
        return f"registered once it is not {blocked} any more"
    return ""


def registered(found_size: nodesize.Size, node: Node, pair: Pair, around: Around, conf: str) -> Found:
    own = NodeMark(cluster=around.cluster, node=node.name, topology=registration.topology(node))
    told = Verdict(Reason.NODE_WAITS, f"registered in Slurm as {pair.name}: {found_size}")
    steps = (RegisterNode(node=pair.name, conf=conf), UpdateNode(node=pair.name, comment=marked("", own)))
    return Found(steps, (told,))
