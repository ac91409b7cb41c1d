"""Jobs of ours that no pod needs: which live jobs may be ended although we saw no pod go (invariant 3).

Goes in: one job's record, two complete pod lists, how long we have looked. Comes out: a Verdict to end it, or None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bridge.core.facts import had_time
from bridge.core.model import JobRecord, SlurmNode, Uid
from bridge.core.verdict import Reason, Verdict


@dataclass(frozen=True, slots=True)
class Listing:
    """One complete list of pods: when it was asked for (monotonic), and every UID in it."""

    begun: float
    uids: frozenset[Uid]


@dataclass(frozen=True, slots=True)
class Orphan:
    """`dead`: nodes that must be drained first, because nobody there can have stopped the containers; `working`: those
    where a kubelet had the time to, if it really works."""

    verdict: Verdict
    dead: tuple[SlurmNode, ...] = ()
    working: tuple[SlurmNode, ...] = ()


def orphan(
    record: JobRecord,
    first: Listing,
    second: Listing,
    *,
    cluster: str,
    dead_for: Callable[[SlurmNode], float],
    ready_for: Callable[[SlurmNode], float],
    view_age: float,
    since: float,
    now: float,
    margin: float,
    over: bool,
) -> Orphan | None:
    """Ours by mark, no UID in two lists begun after the submit; containers known dead by time on Ready nodes, or on
    nodes that have been dead for as long. `dead_for`, `ready_for`: seconds that the node has been so, 0.0 = it isn't,
    as far as nodes were seen `view_age` seconds ago. `since`, `now`: monotonic; the job had been read when it was first
    suspected, so a list begun later was begun after its submit, whatever any clock says. `over`: we have ended it once,
    after its containers, and Slurm has lost that.
    """
    mark = record.mark
    if mark is None or mark.cluster != cluster:
        return None
    if not record.submitted:
        return None  # known only from our own submit: not read yet
    if not since <= first.begun <= second.begun:
        return None
    if any(uid in first.uids or uid in second.uids for uid in mark.uids):
        return None
    away = {name: age for name in record.nodes if (age := dead_for(name))}
    if record.nodes and "PENDING" not in record.states and not over:
        grace = mark.grace + margin
        present = [ready_for(name) for name in record.nodes if name not in away]
        if min((now - since, *away.values())) < grace:
            return None  # a pod may have been force-deleted: its containers get their grace
        alone = min((now - since, *present))
        if present and not had_time(alone, view_age, grace=mark.grace, margin=margin):
            return None
    text = f"job {record.id}: none of its pods ({', '.join(mark.pods)}) exists any more"
    ran = () if "PENDING" in record.states else record.nodes
    if over:
        return Orphan(Verdict(Reason.ORPHAN, text))
    return Orphan(Verdict(Reason.ORPHAN, text), tuple(away), tuple(name for name in ran if name not in away))
