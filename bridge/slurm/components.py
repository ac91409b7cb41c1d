"""Jobs of several sizes (Slurm: heterogeneous jobs): components with ids of their own, read as the one job they are.

In: what Slurm tells of each component, the leader first, whose id is the job's. Out: states and a record of the whole.
A component never shares a node with another (measured with 26.05): the nodes of the whole are those of all, in order.
What must stay true: the list of states and the full record are joined by one rule, or they would never agree; and a
component by itself is nobody's job: its leader speaks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain

from bridge.core.model import PART, JobId, JobRecord, SlurmNode, States, is_ended

WRAP = 2**32  # Slurm writes an offset as an unsigned difference of ids
TAKEN = "Resources"  # a pending job's reason
WAITS = (TAKEN, "Priority", "None", "")  # reasons that any other one says more than


def leader_of(text: str) -> JobId | None:
    """ "101+1" → 100; None for a job, or a task of an array, that is no component."""
    own, plus, offset = text.partition("+")
    return JobId((int(own) - int(offset)) % WRAP) if plus else None


@lru_cache(maxsize=1024)
def states(parts: tuple[States, ...]) -> States:
    """Those of the first component that lives, else of the leader; what others are in besides, with PART before it."""
    first = next((part for part in parts if not is_ended(part)), parts[0])
    return first.union(PART + state for state in frozenset().union(*parts) - first)


def by_job(listed: Iterable[tuple[str, JobId, States]]) -> dict[JobId, States]:
    """Every id as Slurm lists it (its text, the id, its states) → states; a leader's are those of its whole job."""
    found: dict[JobId, States] = {}
    whole: dict[JobId, dict[JobId, States]] = {}
    for text, job, own in listed:
        found[job] = own
        if (leader := leader_of(text)) is not None:
            whole.setdefault(leader, {})[job] = own
    for leader, parts in whole.items():
        if leader in parts:
            others = (parts[job] for job in sorted(parts) if job != leader)
            found[leader] = states((parts[leader], *others))
    return found


def component(record: JobRecord) -> JobRecord:
    """By itself one of ours says nothing of any pod, and holds nothing that its leader does not."""
    return record if record.mark is None else replace(record, mark=None, comment="", nodes=(), gres=())


def joined(parts: Sequence[JobRecord]) -> JobRecord:
    """The record of the whole job. Its mark is the leader's; where somebody wrote over that, another has it still."""
    first = parts[0]
    mark = next((part.mark for part in parts if part.mark is not None), None)
    living = [part for part in parts if not is_ended(part.states)]
    reasons = [part.reason for part in parts]
    spoken = next((reason for reason in reasons if reason not in WAITS), TAKEN if TAKEN in reasons else None)
    nodes = _all(parts, lambda part: part.nodes)
    cpus = tuple(chain.from_iterable(part.cpus_by_node for part in parts))
    return replace(
        first,
        states=states(tuple(part.states for part in parts)),
        started=max(part.started for part in parts),
        ended=min((part.ended for part in living if part.ended), default=0.0) if living else first.ended,
        preempted=max(part.preempted for part in parts),
        reason=first.reason if spoken is None else spoken,
        nodes=nodes,
        gres=tuple(chain.from_iterable(map(_gres, parts))) if any(part.gres for part in parts) else (),
        cpus=_sum(part.cpus for part in parts),
        cpus_by_node=cpus if len(cpus) == len(nodes) else (),
        tasks=_sum(part.tasks for part in parts),
        memory_mib=None,
        time_limit=min((p.time_limit for p in parts if p.time_limit is not None), default=None),
        required=_all(parts, lambda part: part.required),
        mark=mark,
        overwritten=first.mark is None and mark is not None,
        parts=tuple(parts) if len(parts) > 1 else (),
        stillborn=mark is not None and len(parts) < len(mark.sizes) and not nodes,
    )


def _all(
    parts: Iterable[JobRecord], of: Callable[[JobRecord], tuple[SlurmNode, ...]]
) -> tuple[SlurmNode, ...]:
    return tuple(chain.from_iterable(map(of, parts)))


def _gres(part: JobRecord) -> tuple[str, ...]:
    """One text for each of its nodes: of a component without any Slurm tells none."""
    return (*part.gres, *("" for _ in part.nodes))[: len(part.nodes)]


def _sum(counts: Iterable[int | None]) -> int | None:
    known = tuple(counts)
    return None if None in known else sum(count for count in known if count is not None)
