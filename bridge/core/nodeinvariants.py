"""What must always hold of nodes (docs/nodes.md), as named predicates beside those of `core.invariants`.

In: pictures with `records`. Out: violations. What must stay true: as there, no predicate knows how the bridge decides;
of a drain it reads who wrote it, and what its text says.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from bridge.core.drains import Cause
from bridge.core.model import KubeNode, Node, SlurmNode, is_ended
from bridge.core.nodes import NodeRecord, mark
from bridge.core.picture import Change, Picture
from bridge.core.violation import Predicate, invariant
from bridge.names import (
    DRAIN_PREFIX,
    EXTERNAL_NODE_LABEL,
    GPUS_ANNOTATION,
    JOB_ID_LABEL,
    MANAGED_NODE_TAINT,
    UNAVAILABLE_TAINT,
)

OUT: Final = frozenset({"DRAIN", "DOWN", "FAIL"})
UNUSABLE: Final = OUT | {"NOT_RESPONDING", "RESERVED", "MAINTENANCE"}
WINDOW: Final = (
    295.0  # seconds in which drains count as new; a little less than what is promised, as clocks differ
)
LEAST: Final = 2  # nodes that may always be drained in it
LIMITED: Final = frozenset({Cause.NOT_READY, Cause.UNSTARTABLE})
RECREATED: Final = frozenset({Cause.DEAF, Cause.RESIZED})


# --- what is said of a node -----------------------------------------------------------------------


def cause_of(picture: Picture, record: NodeRecord) -> Cause | None:
    """For what the bridge drained it, if it did and would lift that by itself."""
    ours = picture.author in ("", record.reason_user)
    if not ours or "DRAIN" not in record.states or not record.reason.startswith(f"{DRAIN_PREFIX} "):
        return None
    words = record.reason.removeprefix(f"{DRAIN_PREFIX} ")
    return next((cause for cause in Cause if words.startswith(cause)), None)


def _word(picture: Picture, record: NodeRecord) -> bool:
    """Somebody else, or the bridge for the sake of devices, took it out of service: that waits for a person."""
    return bool(record.states & OUT) and cause_of(picture, record) is None


def causes(picture: Picture, name: SlurmNode) -> frozenset[Cause]:
    """What Kubernetes says of the machine of an external node that makes it no place to run."""
    node = picture.nodes.get(name)
    if node is None:
        return frozenset({Cause.GONE})
    says = {
        Cause.UNREGISTERED: EXTERNAL_NODE_LABEL not in node.labels,
        Cause.DELETED: bool(node.deleted),
        Cause.CORDONED: node.cordoned,
        Cause.TAINTED: any(taint.key in picture.drain_taints for taint in node.taints),
        Cause.NOT_READY: not node.ready,
    }
    return frozenset(cause for cause, so in says.items() if so)


_SAID: Final = frozenset(
    {Cause.GONE, Cause.UNREGISTERED, Cause.DELETED, Cause.CORDONED, Cause.TAINTED, Cause.NOT_READY}
)


def _external(record: NodeRecord) -> bool:
    return "EXTERNAL" in record.states


def _ours(picture: Picture, record: NodeRecord) -> bool:
    """An external node of this cluster's bridge, or to become one."""
    known, node = mark(record.comment), picture.nodes.get(record.name)
    labelled = node is not None and EXTERNAL_NODE_LABEL in node.labels
    return _external(record) and (known.cluster == picture.cluster if known is not None else labelled)


def _uncounted(picture: Picture, name: SlurmNode, *, any_job: bool = False) -> Iterator[str]:
    """Pods with GPUs that may still run there, and which no live job of theirs accounts for."""
    node = picture.nodes.get(name)
    home = node.name if node is not None else KubeNode(name)
    here = {pod.uid for pod in picture.pods if not pod.deleted}
    for pod in picture.living():
        if pod.node != home or not pod.annotations.get(GPUS_ANNOTATION):
            continue
        held = [job for job in picture.holding(pod) if "PENDING" not in job.states]
        named = {str(job.id) for job in picture.own(pod.uid) if name in job.nodes}  # not if a crash moved it
        again = any("PENDING" in job.states for job in picture.own(pod.uid))  # a crash took its start back
        forgotten = pod.uid in here and (again or pod.labels.get(JOB_ID_LABEL) not in named)
        if not forgotten and (any_job or all(is_ended(job.states) for job in held)):
            yield pod.ref


# --- from one moment to the next ------------------------------------------------------------------


@invariant
def words_stand(change: Change) -> Iterator[str]:
    """Who else drained a node, failed it or set it down has the last word: the bridge neither lifts nor rewrites that.

    So it is with its own drains that keep devices from a second user: those wait for a person.
    """
    for name in change.altered:
        before, after = change.before.records.get(name), change.after.records.get(name)
        if before is None or not _word(change.before, before):
            continue
        said = f"node {name}: {_told(before)}, as {before.reason_user or 'somebody'} said ({before.reason!r})"
        if after is None:
            yield f"{said}, and the bridge deleted its record"
        elif not before.states & OUT <= after.states or after.reason != before.reason:
            yield f"{said}, and the bridge made that {_told(after)} ({after.reason!r})"


@invariant
def drains_are_true(change: Change) -> Iterator[str]:
    """A node is drained for what is so, and has that drain lifted only when nothing of the kind is so any more."""
    for name in change.altered:
        before, after = change.before.records.get(name), change.after.records.get(name)
        if after is None:
            continue
        was = cause_of(change.before, before) if before is not None else None
        now = cause_of(change.after, after)
        held = causes(change.before, name) & causes(change.after, name)
        if (
            now in _SAID
            and now is not was
            and now not in causes(change.before, name) | causes(change.after, name)
        ):
            yield f"node {name} was drained ({after.reason}), and that is not so"
        lifted = was not in (None, Cause.CLEARING) and "DRAIN" not in after.states and _external(after)
        if lifted and held:
            yield f"node {name} was given back, and still: {', '.join(sorted(held))}"


@invariant
def holders_kept(change: Change) -> Iterator[str]:
    """A node on whose GPUs something may still run is not deleted; nor given back or registered anew, if Slurm doesn't
    count what runs there.

    Tolerated: a pod whose job slurmctld has forgotten, or where it started, as its place is asked for again.
    """
    for name in change.altered:
        before, after = change.before.records.get(name), change.after.records.get(name)
        if after is None:
            for ref in _uncounted(change.after, name, any_job=True):
                yield f"node {name} was deleted, and pod {ref} may still run there"
        elif after.states & {"DOWN", "FAIL"}:
            continue  # nobody gets it
        elif before is None or ("DRAIN" in before.states and "DRAIN" not in after.states):
            for ref in _uncounted(change.after, name):
                yield f"node {name} was given to others, and pod {ref} may still run there"


@invariant
def few_at_once(change: Change) -> Iterator[str]:
    """No more nodes are drained for a silence of kubelets, or to be re-created, than the settings allow at a time.

    Tolerated: what two that lead do at the same moment. Not counted: nodes that were drained for something else before.
    """
    after = change.after
    for name in change.altered if after.alone else ():
        record, before = after.records.get(name), change.before.records.get(name)
        cause = cause_of(after, record) if record is not None else None
        if record is None or cause is None or (before is not None and "DRAIN" in before.states):
            continue
        ours = [one for one in after.records.values() if _ours(after, one) or not _external(one)]
        drained = [(one, cause_of(after, one), record.reason_at - one.reason_at) for one in ours]
        if cause in LIMITED:
            most = max(LEAST, math.floor(after.drain_share * len(ours)))
            count = sum(why in LIMITED and age < WINDOW for one, why, age in drained if _fresh(after, one))
            if count > most:
                yield f"node {name} was drained ({record.reason}) as the last of {count}; {most} may be"
        if cause in RECREATED:
            most = max(1, math.floor(after.recreation_share * sum(map(_external, ours))))
            count = sum(why in RECREATED for _, why, _ in drained)
            if count > most:
                yield f"node {name} is to be re-created as the last of {count}; {most} may be"


def _fresh(picture: Picture, record: NodeRecord) -> bool:
    since = math.floor(picture.since.get(record.name, record.reason_at))  # Slurm tells whole seconds
    return record.reason_at - since < 1.0


@invariant
def strangers_kept(change: Change) -> Iterator[str]:
    """What belongs to others stays: nodes of another cluster's bridge, records of nodes with a slurmd, cordons, labels,
    and taints that are not the bridge's."""
    for name in change.altered:
        before, after = change.before.records.get(name), change.after.records.get(name)
        if before is None:
            continue
        if _ours(change.before, before):
            continue
        if _external(before) and mark(before.comment) is not None:
            if before != after:
                yield f"node {name} is another bridge's, and was changed"
        elif after is None or before != _with_the_drain_of(before, after):
            yield f"node {name} is not the bridge's, and more than its drain was changed"
    nodes = {node.name: node for node in change.before.nodes.values()}
    for node in change.after.nodes.values():
        old = nodes.get(node.name)
        if node.name not in change.shown or old is None or old.uid != node.uid:
            continue
        if (old.cordoned, old.labels) != (node.cordoned, node.labels) or _theirs(old) != _theirs(node):
            yield f"node {node.name}: its cordon, labels or other taints were changed"


def _with_the_drain_of(before: NodeRecord, after: NodeRecord) -> NodeRecord:
    why = {"reason": before.reason, "reason_user": before.reason_user, "reason_at": before.reason_at}
    states = after.states - {"DRAIN"} | (before.states & {"DRAIN"})
    return replace(after, states=states, **why)  # type: ignore[arg-type]


def _theirs(node: Node) -> frozenset[tuple[str, str, str]]:
    own = (MANAGED_NODE_TAINT, UNAVAILABLE_TAINT)
    return frozenset((t.key, t.value, t.effect) for t in node.taints if t.key not in own)


@invariant
def taint_stays(change: Change) -> Iterator[str]:
    """The taint managed-node is taken away only from a node that Slurm lacks, or that is no external node any more."""
    for name, node in change.after.nodes.items():
        old = change.before.nodes.get(name)
        if node.name not in change.shown or old is None or old.uid != node.uid:
            continue
        had, has = (any(t.key == MANAGED_NODE_TAINT for t in one.taints) for one in (old, node))
        record = change.after.records.get(name)
        if (
            had
            and not has
            and record is not None
            and not (_external(record) and EXTERNAL_NODE_LABEL not in node.labels)
        ):
            yield f"node {node.name} lost its taint {MANAGED_NODE_TAINT}, and Slurm has it"


# --- when everything has had its time -------------------------------------------------------------


@invariant
def nodes_agree(picture: Picture) -> Iterator[str]:
    """Both sides say the same of each node: drained for what is so and for nothing else, shown as it is.

    Tolerated: kubelets that are silent, beyond the limit; what jobs, or containers that nobody counts, hold up; that a
    node whose record is to be made anew waits for its turn. Ask when the bridge has had its time.
    """
    for name, record in picture.records.items():
        if _external(record) and not _ours(picture, record):
            continue
        node = picture.nodes.get(name)
        if not _word(picture, record):
            yield from _drain_agrees(picture, record)
        if node is not None and (not _external(record) or EXTERNAL_NODE_LABEL in node.labels):
            yield from _is_shown(picture, node, record)
    for name, node in picture.nodes.items():
        if EXTERNAL_NODE_LABEL in node.labels and name not in picture.records and not causes(picture, name):
            yield f"node {node.name} is not registered"


def _drain_agrees(picture: Picture, record: NodeRecord) -> Iterator[str]:
    name, cause = record.name, cause_of(picture, record)
    busy = bool(record.states & {"ALLOCATED", "MIXED", "COMPLETING"}) or any(_uncounted(picture, name))
    present = causes(picture, name) if _external(record) else frozenset()
    if present - LIMITED and cause is None:
        yield f"node {name} is not drained, although: {', '.join(sorted(present))}"
    if cause in _SAID and cause not in present and not busy:
        yield f"node {name} is still drained, although nothing of it is so: {record.reason}"
    if cause is Cause.CLEARING and not busy:
        yield f"node {name} is still drained: {record.reason}"
    if cause is None and not busy and record.reason.startswith(DRAIN_PREFIX):
        yield f"node {name} is not drained and says so: {record.reason}"
    if present & {Cause.GONE, Cause.UNREGISTERED} and not busy:
        yield f"node {name} is still in Slurm, although: {', '.join(sorted(present))}"
    if cause in RECREATED and not busy:
        yield f"node {name} waits to be re-created: {record.reason}"


def _is_shown(picture: Picture, node: Node, record: NodeRecord) -> Iterator[str]:
    usable = not record.states & UNUSABLE
    if node.mirrored is None or (node.mirrored.status == "True") is not usable:
        said = node.mirrored.status if node.mirrored is not None else "nothing"
        yield f"node {node.name} shows {said} of {_told(record)}"
    if not any(taint.key == MANAGED_NODE_TAINT for taint in node.taints):
        yield f"node {node.name} has no taint {MANAGED_NODE_TAINT}"
    others = not usable and cause_of(picture, record) is None
    if any(taint.key == UNAVAILABLE_TAINT for taint in node.taints) is not others:
        yield f"node {node.name} {'lacks' if others else 'keeps'} the taint {UNAVAILABLE_TAINT}: {_told(record)}"


def _told(record: NodeRecord) -> str:
    return "+".join(sorted(record.states))


MOVING: Final[tuple[Predicate[Change], ...]] = (
    words_stand,
    drains_are_true,
    holders_kept,
    few_at_once,
    strangers_kept,
    taint_stays,
)
ALL: Final = (*MOVING, nodes_agree)
