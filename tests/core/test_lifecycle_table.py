"""Every state of a job × every state of its pod: what the bridge does and says is what lifecycle.toml says.

The table is data, with a test for each of its cells. Beside it stand what every cell has in common: an old picture, a
job of others or a record that has not been read yet cost nobody anything.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from bridge.core import steps
from bridge.core.conditions import job_condition
from bridge.core.constraints import Taint
from bridge.core.facts import ClaimRefused, Facts, Member, Sight
from bridge.core.fit import Fit
from bridge.core.ledger import Busy
from bridge.core.lifecycle import decide
from bridge.core.model import ENDED_STATES, Condition, ContainerStatus, JobRecord, SlurmNode
from bridge.core.steps import Decision, EndJob
from bridge.core.verdict import Reason
from bridge.names import JOB_ID_LABEL, SUBMITTED_ANNOTATION
from tests.core.build import (
    FIRST,
    NODES,
    NOW,
    SPEC,
    UNSCHEDULABLE,
    bound,
    facts,
    mark,
    pod,
    record,
    released,
    sight,
    vanished,
)

TABLE: Mapping[str, Any] = tomllib.loads(Path(__file__).with_name("lifecycle.toml").read_text())
GROUPS: Mapping[str, tuple[str, ...]] = {group: tuple(pods) for group, pods in TABLE["pods"].items()}
LIMITED = replace(SPEC, user_limit=60, time_limit=62)  # minutes
LONG, SHORT = 10_000.0, 5.0  # seconds: longer and shorter than grace and margin
OLD = NOW - LONG

# As the OpenAPI documents of data_parser v0.0.42 to v0.0.45 list them (Slurm 24.11 to 26.05).
SPELLED = frozenset(
    {
        "PENDING", "RUNNING", "SUSPENDED", "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED",
        "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY", "LAUNCH_FAILED", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT",
        "RESIZING", "CONFIGURING", "COMPLETING", "STOPPED", "RECONFIG_FAIL", "POWER_UP_NODE", "REVOKED", "REQUEUE_FED",
        "RESV_DEL_HOLD", "SIGNALING", "STAGE_OUT", "EXPEDITING",
    }
)  # fmt: skip


# --- the pods -------------------------------------------------------------------------------------


def _ended(phase: str, code: int, *, reason: str = "", why: str = "", **changes: Any) -> Member:
    status = ContainerStatus(name="c", terminated=True, exit_code=code, reason=why)
    dead = bound(FIRST, phase=phase, statuses=(status,), reason=reason)
    return Member(pod=dead, **({"node_ready": True} | changes))


TOLD = job_condition(record(FIRST, "RUNNING"), OLD)  # written together with the nomination
BOUND = Condition(type="PodScheduled", status="True", changed=NOW - 1000.0)
UNREADY = Condition(type="Ready", status="False")
BUSY = (ContainerStatus(name="c", running=True),)
LOOPING = (ContainerStatus(name="c", reason="CrashLoopBackOff"),)
ON_ITS_WAY = released(FIRST, conditions=(TOLD, UNSCHEDULABLE))
RUNNING = bound(FIRST, statuses=BUSY, conditions=(TOLD, BOUND))
LEAVING = replace(RUNNING, deleted=NOW - SHORT)
OVERDUE = replace(RUNNING, deleted=OLD)

MEMBERS: Mapping[str, Member] = {
    "gated": Member(pod=pod()),
    "un-gated": Member(pod=ON_ITS_WAY),
    "bound": Member(pod=replace(RUNNING, phase="Pending", statuses=()), node_ready=True),
    "running": Member(pod=RUNNING, node_ready=True),
    "crash-looping": Member(pod=replace(RUNNING, statuses=LOOPING), node_ready=True),
    "not-ready": Member(pod=replace(RUNNING, conditions=(TOLD, BOUND, UNREADY)), node_ready=True),
    "unreachable": Member(pod=RUNNING, node_dead_for=LONG),
    "terminating": Member(pod=LEAVING, node_ready=True),
    "terminating-unreachable": Member(pod=OVERDUE, node_dead_for=SHORT),
    "withdrawn": Member(pod=pod(), gone_age=0.0),
    "succeeded": _ended("Succeeded", 0),
    "failed": _ended("Failed", 3),
    "oom-killed": _ended("Failed", 137, why="OOMKilled"),
    "evicted": _ended("Failed", 137, reason="Evicted"),
    "past-deadline": _ended("Failed", 143, reason="DeadlineExceeded"),
    "called-failed": Member(pod=replace(RUNNING, phase="Failed"), node_dead_for=LONG),
    "gone": _ended("Succeeded", 0, gone_age=LONG),
    "force-deleted": Member(pod=RUNNING, gone_age=SHORT, node_ready=True),
    "force-deleted-long-ago": Member(pod=RUNNING, gone_age=LONG, node_ready=True),
    "gone-unreachable": Member(pod=RUNNING, gone_age=LONG, node_dead_for=SHORT),
    "stranded": Member(pod=OVERDUE, node_dead_for=LONG, deleted_for=LONG),
    "gone-stranded": Member(pod=RUNNING, gone_age=LONG, node_dead_for=LONG),
}


def closed(**changes: Any) -> Mapping[str, Any]:
    return {"nodes": {**NODES, SlurmNode("n1"): replace(NODES[SlurmNode("n1")], **changes)}}


CIRCUMSTANCES: Mapping[str, Mapping[str, Any]] = {
    "cordoned": closed(cordoned=True),
    "not ready": closed(ready=False),
    "tainted": closed(taints=(Taint("gpu", "", "NoSchedule"),)),
    "no node": {"fit": Fit(hopeless="no node can take the pod: 4 nodes are cordoned in Kubernetes")},
    "devices busy": {"busy": {FIRST: Busy(claims=())}},
    "devices busy for too long": {"busy": {FIRST: Busy(claims=(), overdue=True)}},
    "no room": {"room": False},
    "not bound in time": {"granted_age": 31.0},
    "numbered by Slurm": {"held": True},
    "denied": {"denied": frozenset({FIRST})},
    "accounted": {
        "recalled": {FIRST: record(FIRST, "CANCELLED", ended=NOW - 5000.0)},
        "sights": (vanished(FIRST),),  # by a process that has not seen the job
    },
    "limit over": {
        "sights": (
            vanished(FIRST, record(FIRST, "RUNNING", started=OLD, ended=OLD + 62 * 60, time_limit=62)),
        )
    },
    "place taken": {"claim_refused": ClaimRefused(text="Requested nodes are busy", age=20.0, taken=3)},
}


# --- the table, spread out ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    job: str  # as a person names it
    states: frozenset[str]
    record: Mapping[str, Any]  # what else the job's record says
    facts: Sequence[str]  # names in CIRCUMSTANCES
    live: bool  # the job still holds something, or waits for it
    pod: str
    just_booted: bool
    does: str
    says: str
    words: tuple[str, ...]  # in the sentence

    def __str__(self) -> str:
        return f"{self.job} / {self.pod}" + (", just booted" if self.just_booted else "")


def _named(pods: str) -> Iterator[str]:
    for name in pods.split(", "):
        yield from GROUPS.get(name, (name,))


def _spread(rows: Iterable[Sequence[str]]) -> Mapping[str, Sequence[str]]:
    return {name: row for row in rows for name in _named(row[0])}


def _cells(family: Mapping[str, Any], state: Mapping[str, Any], states: str) -> Iterator[Cell]:
    usual = _spread([*TABLE["closing"][family["job"]]["rows"], *family["rows"]])
    booted = _spread(family.get("just_booted", ()))
    for just_booted, rows in ((False, usual), (True, booted)):
        for name, (_, does, says, *words) in rows.items():
            told = state.get("says") if name in GROUPS["placed"] and does == "delete" else None
            yield Cell(
                job=state.get("name", states),
                states=frozenset(states.split("+")),
                record=state.get("record", {}),
                facts=state.get("facts", ()),
                live=family["job"] == "live",
                pod=name,
                just_booted=just_booted,
                does=does,
                says=says,
                words=tuple(filter(None, (*words, told))),
            )


JOBS = tuple(
    (family, state, "+".join(filter(None, (state["is"], flags))))
    for family in TABLE["family"]
    for state in family["states"]
    for flags in ("", *state.get("with", ()))
)
CELLS = tuple(cell for job in JOBS for cell in _cells(*job))


def found(cell: Cell) -> JobRecord | None:
    if "absent" in cell.states:
        return None
    given = dict(cell.record)
    for moment in {"submitted", "started", "ended", "preempted"} & given.keys():
        given[moment] += NOW
    for several in {"nodes", "gres", "required"} & given.keys():
        given[several] = tuple(given[several])
    return record(FIRST, *cell.states, **({"submitted": OLD, "reason": "Resources"} | given))


def known(cell: Cell, job: Sight, **changes: Any) -> Facts:
    """What the bridge knows in this cell, with `job` as what it knows of the job."""
    base: dict[str, Any] = {
        "sights": (job,),
        "spec": LIMITED,
        "boot_age": SHORT if cell.just_booted else LONG,
    }
    for name in cell.facts:
        base |= CIRCUMSTANCES[name]
    member = MEMBERS[cell.pod]
    record = job.record
    if base.get("held") and record is not None and JOB_ID_LABEL in member.pod.labels:
        noted = {**member.pod.annotations, SUBMITTED_ANNOTATION: f"{record.submitted:.0f}"}
        member = replace(member, pod=replace(member.pod, annotations=noted))
    return facts(member, **(base | changes))


def seen_job(cell: Cell) -> Sight:
    job = found(cell)
    return vanished(FIRST, record(FIRST, "RUNNING")) if job is None else sight(job)


def decided(cell: Cell, **changes: Any) -> Decision:
    return decide(known(cell, seen_job(cell), **changes))


def kinds(decision: Decision) -> list[str]:
    return [type(step).__name__ for step in decision.steps]


def _status(written: str) -> int | None:
    """As sacct writes an ExitCode, code:signal → as wait(2) does."""
    if written == "cancelled":
        return None
    code, _, signal = written.partition(":")
    return int(code) << 8 | int(signal)


# --- each cell ------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_the_bridge_does_and_says_what_the_table_says(cell: Cell) -> None:
    decision = decided(cell)
    expected = TABLE["does"][cell.does]
    assert (kinds(decision), decision.verdict.reason) == (expected["steps"], cell.says), decision.verdict.text
    for words in cell.words:
        assert words in decision.verdict.text
    ends = [step.wait_status for step in decision.steps if isinstance(step, EndJob)]
    assert ends == [_status(expected["exit"]) for _ in ends]


# --- what every cell has in common ----------------------------------------------------------------

WORKING = tuple(cell for cell in CELLS if cell.pod not in GROUPS["over"])


def harm(decision: Decision) -> list[str]:
    """Steps that take something away from somebody."""
    return [kind for kind in kinds(decision) if kind in ("DeletePod", "EndJob")]


def wronged(by: Iterable[tuple[Cell, Facts]]) -> list[str]:
    return [f"{cell}: {', '.join(found)}" for cell, seen in by if (found := harm(decide(seen)))]


def test_a_slurmctld_that_has_just_started_changes_nothing_but_what_the_table_says() -> None:
    said = {(cell.job, cell.pod) for cell in CELLS if cell.just_booted}
    for cell in CELLS:
        if (cell.job, cell.pod) not in said:
            young, old = decided(cell, boot_age=SHORT), decided(cell)
            assert (young.steps, young.verdict) == (old.steps, old.verdict), str(cell)


def test_a_picture_that_is_too_old_takes_nothing_from_anybody() -> None:
    assert wronged((cell, known(cell, seen_job(cell), poll_age=60.0)) for cell in WORKING) == []


def test_a_job_with_the_mark_of_others_is_not_ended_and_its_end_deletes_no_pod() -> None:
    theirs = mark(cluster="another")
    jobs = ((cell, job) for cell in CELLS if (job := found(cell)) is not None)
    assert wronged((cell, known(cell, sight(replace(job, mark=theirs)))) for cell, job in jobs) == []


OLDER = record(FIRST, "RUNNING", "OLDER")


def unread(older: JobRecord | None) -> Iterator[tuple[Cell, Facts]]:
    """The list shows the state; the last record that we have is older, or there is none."""
    for cell in WORKING:
        if "absent" not in cell.states:
            yield cell, known(cell, Sight(id=FIRST, states=cell.states, record=older))


@pytest.mark.parametrize("older", [None, OLDER], ids=["never read", "read before"])
def test_a_state_whose_record_has_not_been_read_takes_nothing_from_anybody(older: JobRecord | None) -> None:
    assert wronged(unread(older)) == []


def test_a_state_that_is_news_is_read_in_full_first() -> None:
    assert [str(cell) for cell, seen in unread(OLDER) if decide(seen).reads != (FIRST,)] == []


def test_what_the_next_state_poll_does_not_confirm_deletes_no_pod_on_a_node() -> None:
    """A read that was faster than the poll may have come from another boot of slurmctld."""
    on_nodes = ((cell, found(cell)) for cell in CELLS if cell.pod in GROUPS["placed"] and not cell.live)
    read = ((cell, replace(sight(job), polled=False)) for cell, job in on_nodes if job is not None)
    assert wronged((cell, known(cell, job)) for cell, job in read) == []


# --- what every table must keep -------------------------------------------------------------------


def test_no_job_is_submitted_beside_a_live_one() -> None:
    kinds = {"SubmitJob", "SubmitHeld"}
    submits = [cell for cell in CELLS if kinds & set(TABLE["does"][cell.does]["steps"])]
    assert submits
    assert [str(cell) for cell in submits if cell.live] == []


def test_no_job_ends_while_containers_of_its_pod_may_live() -> None:
    """A pod that has no node yet has none; on a dead node, where nobody knows, the drain comes first."""
    silent = {"called-failed", "force-deleted", "gone-unreachable", *GROUPS["placed"], *GROUPS["going"]}
    assert [str(cell) for cell in CELLS if cell.pod in silent and "exit" in TABLE["does"][cell.does]] == []
    strays = [TABLE["does"][cell.does]["steps"] for cell in CELLS if cell.live and "stranded" in cell.pod]
    assert strays
    assert all(kinds == ["DrainNode", "EndJob"] for kinds in strays)


def test_only_an_end_a_lost_place_or_a_known_end_deletes_a_pod() -> None:
    causes = {Reason.JOB_ENDED, Reason.CANCELLED, Reason.PREEMPTING, Reason.TIME_LIMIT}
    assert {cell.says for cell in CELLS if cell.does == "delete"} == causes


# --- the table itself -----------------------------------------------------------------------------


def test_the_table_has_every_state_and_flag_that_slurm_lists() -> None:
    told = frozenset[str]().union(*(cell.states for cell in CELLS))
    assert told >= SPELLED | ENDED_STATES
    assert told - SPELLED == {"absent", "FOO", "UPDATE_DB"}


def test_every_state_is_told_once_for_every_pod() -> None:
    assert list(MEMBERS) == [name for group in GROUPS.values() for name in group]
    usual = [str(cell) for cell in CELLS if not cell.just_booted]
    assert len(set(usual)) == len(usual) == len(JOBS) * len(MEMBERS)


def test_the_table_speaks_of_steps_and_reasons_that_exist_and_uses_all_its_words() -> None:
    assert {cell.says for cell in CELLS} <= set(Reason)
    assert {cell.does for cell in CELLS} == set(TABLE["does"])
    assert {name for cell in CELLS for name in cell.facts} == set(CIRCUMSTANCES)
    assert all(hasattr(steps, step) for does in TABLE["does"].values() for step in does["steps"])
