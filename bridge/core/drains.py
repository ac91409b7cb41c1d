"""Whose a drain is, and what to do about it.

In: a Slurm node's record and the causes for which it should be drained now. Out: at most two steps. What must stay
true: a drain is ours only if its reason begins with our prefix and goes on with one of the causes below, and, on an
external node, if our mark says so; then, and only when none of the causes is there any more, it is lifted. Every other
drain, with whatever reason or none, stays, and so does one of ours that keeps devices from a second user: that one
waits for a person.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from bridge.core.nodes import NodeMark, NodeRecord, mark, marked
from bridge.core.steps import DrainNode, NodeStep, UndrainNode
from bridge.names import DRAIN_PREFIX

OPERATOR_PREFIX = "slurm-operator:"
_SLURMS_OWN = "Not responding"  # slurmctld writes it: nobody's word


class Cause(StrEnum):
    """The words after our prefix; what they say must be true of the node at every look."""

    GONE = "no node of Kubernetes has this name any more"
    UNREGISTERED = "no external node any more"
    DELETED = "being deleted in Kubernetes"
    CORDONED = "cordoned in Kubernetes"
    TAINTED = "tainted in Kubernetes"
    NOT_READY = "not Ready in Kubernetes"
    UNSTARTABLE = "pods do not start"
    DEAF = "Slurm does not reach it, to be re-created"
    RESIZED = "another size, to be re-created"
    CLEARING = "clearing what an earlier drain left"


REMOVING = frozenset({Cause.GONE, Cause.UNREGISTERED, Cause.DEAF, Cause.RESIZED})  # a deletion follows
RECREATING = frozenset({Cause.DEAF, Cause.RESIZED})
LIMITED = frozenset({Cause.NOT_READY, Cause.UNSTARTABLE})  # many at once are rather an accident

# What the Go project writes: it is ours to lift after a take-over.
_INHERITED = (
    (re.compile(r"slurm-bridge: Corresponding Kubernetes node \(.*\) is unschedulable"), Cause.CORDONED),
    (re.compile(r"slurm-bridge: slurm-bridge: removing external node .*"), Cause.UNREGISTERED),
)


@dataclass(frozen=True, slots=True)
class Present:
    """A cause that is there now."""

    cause: Cause
    detail: str = ""
    allowed: bool = True  # False: so many at once, or too early; it starts no drain

    @property
    def reason(self) -> str:
        return f"{DRAIN_PREFIX} {self.cause}" + (f": {self.detail}" if self.detail else "")


def cause_of(reason: str) -> Cause | None:
    """None: no reason of the mirror's."""
    for form, cause in _INHERITED:
        if form.fullmatch(reason):
            return cause
    words = reason.removeprefix(f"{DRAIN_PREFIX} ")
    if words == reason:
        return None
    return next((cause for cause in Cause if words == cause or words.startswith(f"{cause}: ")), None)


def detail_of(reason: str) -> str:
    cause = cause_of(reason)
    text = f"{DRAIN_PREFIX} {cause}: "
    return reason.removeprefix(text) if reason.startswith(text) else ""


def standing(record: NodeRecord) -> Cause | None:
    """Why the mirror drained it, if the drain in force is the mirror's; None: nobody, or somebody else, did."""
    if not record.drained or "FAIL" in record.states:
        return None
    known = mark(record.comment) if record.external else None
    return cause_of(record.reason) if known is None or known.drained else None


def by_others(record: NodeRecord) -> bool:
    """Somebody else has taken it out of service, or a drain of ours keeps its devices: that outlasts the mirror's."""
    if "FAIL" in record.states or (record.drained and standing(record) is None):
        return True
    return "DOWN" in record.states and not record.reason.startswith(_SLURMS_OWN) and standing(record) is None


def set_down(record: NodeRecord) -> bool:
    """By somebody else, whether or not they said why."""
    return "DOWN" in record.states and not record.reason.startswith((DRAIN_PREFIX, _SLURMS_OWN))


def drained_by(record: NodeRecord) -> str:
    """ "bridge", "operator", or the user who did; "" = nobody."""
    if not record.drained and not record.states & {"DOWN", "FAIL"}:
        return ""
    if record.reason.startswith(DRAIN_PREFIX):
        return "bridge"
    return "operator" if record.reason.startswith(OPERATOR_PREFIX) else record.reason_user or "somebody"


def stale(record: NodeRecord) -> bool:
    """Our mark says that a drain of ours is in force, and it isn't."""
    known = mark(record.comment) if record.external else None
    return known is not None and known.drained and standing(record) is None


def decide(
    record: NodeRecord, present: Sequence[Present], known: NodeMark | None, *, held: bool = False
) -> tuple[NodeStep, ...]:
    """`present`: the causes, the strongest first. `known`: our mark on it, None = it isn't external. `held`: what is
    drained stays so."""
    ours = standing(record)
    if ours is None:
        if not by_others(record) and (first := next((p for p in present if p.allowed), None)):
            return (_drain(record, first, known),)
        return _cleared(record, known)
    if any(one.cause is ours for one in present):
        return ()
    keeping = next((one for one in present if one.allowed or one.cause in LIMITED), None)
    if keeping is not None:
        return (_drain(record, keeping, known, over=record.reason),)
    return () if held else (_undrain(record, record.reason, known),)


def _cleared(record: NodeRecord, known: NodeMark | None) -> tuple[NodeStep, ...]:
    """Where an older Slurm, or a node that was DOWN, kept the text of our drain, slurm-operator would take the node for
    somebody else's for ever."""
    out = record.drained or record.states & {"DOWN", "FAIL"}
    if out or record.busy or not record.reason.startswith(DRAIN_PREFIX):
        return ()
    clearing = Present(Cause.CLEARING)
    return (_drain(record, clearing, known), _undrain(record, clearing.reason, known))


def _drain(record: NodeRecord, why: Present, known: NodeMark | None, over: str = "") -> DrainNode:
    comment = marked(record.comment, replace(known, drained=True)) if known else None
    return DrainNode(node=record.name, reason=why.reason, comment=comment, over=over)


def _undrain(record: NodeRecord, reason: str, known: NodeMark | None) -> UndrainNode:
    comment = marked(record.comment, replace(known, drained=False)) if known else None
    return UndrainNode(node=record.name, reason=reason, comment=comment)
