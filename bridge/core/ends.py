"""How things end: which job records prove that a bound pod must go, how it goes, and how a job ends with its pods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bridge.core import held
from bridge.core.conditions import disruption, job_condition
from bridge.core.facts import UNKILLABLE, Facts, Member, Sight
from bridge.core.model import (
    DEADLINE_EXCEEDED,
    ContainerStatus,
    JobRecord,
    Pod,
    SlurmNode,
    Workload,
    is_ended,
    torn,
)
from bridge.core.steps import Decision, DeletePod, DrainNode, EndJob, Notify, SetConditions, Step
from bridge.core.verdict import Reason, Verdict
from bridge.names import DISRUPTION_CONDITION, DRAIN_PREFIX

END_TEXT = "job {job} ended ({state}) before the pod was bound"
SIGTERM_EXIT, SIGKILL_EXIT = 128 + 15, 128 + 9
OUT_OF_MEMORY = 253  # the "signal" by which slurmctld knows an OUT_OF_MEMORY job (measured with 26.05)
# Why a pod failed, when no container's exit code tells: SIGTERM for an eviction, SIGXCPU for a deadline.
SIGNALS: Mapping[str, int] = {"Evicted": 15, DEADLINE_EXCEEDED: 24}
ORDINARY_ENDS = frozenset(
    {"CANCELLED", "TIMEOUT", "PREEMPTED"}
)  # by a person or a rule, however many at once
TAKEN = "Resources"  # a pending job's reason: others have its node; nothing else keeps it from starting
CLOCKS = 60.0  # seconds: the clocks of the API server and slurmctld differ by less
# What accounting must say of a job that slurmctld has forgotten: it was taken from its pods. Other ends are those that
# the bridge gives to jobs whose pods ended, or what an admin does to tidy the books (sacctmgr: COMPLETED).
WITHDRAWN = ORDINARY_ENDS | {"NODE_FAIL", "DEADLINE", "OUT_OF_MEMORY"}
SECONDS = 2.0  # Slurm tells whole ones
DYING = 60.0  # seconds: a leader may see an end, and be gone before its pod is
QUEUE_PATIENCE = 60.0  # seconds that a job which lost its start may need to get its node back
SLOWER = 3  # times as long where it has several sizes: only the backfill scheduler starts it, every 30 s by default

# What a person reads when Slurm ended the job; the first state that fits.
_WHY = (
    ("PREEMPTED", "was preempted by a job of higher priority"),
    ("TIMEOUT", "reached its time limit"),
    ("CANCELLED", "was cancelled in Slurm"),
    ("NODE_FAIL", "lost a node"),
    ("OUT_OF_MEMORY", "ran out of memory"),
    ("DEADLINE", "reached its deadline"),
    ("BOOT_FAIL", "failed to boot its node"),
    ("COMPLETED", "was completed in Slurm while the pod still ran"),
    ("FAILED", "failed in Slurm"),
    ("LAUNCH_FAILED", "failed to launch"),
)


def evidence(facts: Facts, record: JobRecord, pods: Sequence[Pod]) -> Verdict | None:
    """The verdict that ends bound pods, or None. Only the job's own record counts (invariant 4)."""
    if record.stillborn:
        return None
    ends = torn(record.states)
    if is_ended(record.states) or ends:
        if facts.boot_grace and "NODE_FAIL" in record.states | ends:
            return None  # slurmctld has just come up and may not have heard from the node yet
        if "NODE_FAIL" in record.states | ends and any(_unlisted(facts, record, pod) for pod in pods):
            return None  # whose node it was can't be told
        if ends:
            why = next((text for state, text in _WHY if state in ends), "ended")
            return Verdict(
                Reason.JOB_ENDED, f"a part of job {record.id} {why}, and its other parts go with it"
            )
        if "FAILED" in record.states and "COMPLETING" not in record.states and not record.nodes:
            return None  # what a refused submit leaves: it never had a node, and says nothing about a pod
        why = next((text for state, text in _WHY if state in record.states), "ended")
        return Verdict(Reason.JOB_ENDED, f"job {record.id} {why}")
    if facts.boot_grace:
        return None
    if "PENDING" in record.states:
        patience = QUEUE_PATIENCE * (SLOWER if record.parts else 1)
        if not record.submitted or facts.slurm_now - record.submitted < patience:
            return None  # not read yet; or it may well get its node back
        text = f"slurmctld lost the start of job {record.id} (state rolled back); its node is no longer the pod's"
        if record.claims:  # only that others hold the place costs it
            if record.reason != TAKEN:
                return None
            text = (
                f"the pod's job vanished from Slurm, and job {record.id} waits for its place: {record.reason}"
            )
        return Verdict(Reason.JOB_ENDED, text)
    if lost := displaced(facts, record, pods):
        places = ",".join(record.nodes)
        return Verdict(
            Reason.JOB_ENDED, f"job {record.id} now holds {places}, not the pod's node {lost[0].node}"
        )
    return None


def displaced(facts: Facts, record: JobRecord, pods: Sequence[Pod]) -> list[Pod]:
    """Those whose node the job, which runs, does not hold, since slurmctld has settled: it may hold another's."""
    if facts.boot_grace or "RUNNING" not in record.states or not record.nodes or torn(record.states):
        return []
    return [pod for pod in pods if pod.node and _elsewhere(facts, record, pod)]


def failed_elsewhere(facts: Facts, record: JobRecord | None, pods: Sequence[Pod]) -> bool:
    """A crash of slurmctld had put the job on other nodes, and one of those failed: that says nothing of its pods."""
    if record is None or not record.nodes or not facts.owns(record):
        return False
    failed = is_ended(record.states) and record.states & {"NODE_FAIL", "BOOT_FAIL"}
    placed = [pod for pod in pods if pod.node]
    return bool(failed and placed) and all(_elsewhere(facts, record, pod) for pod in placed)


def recalled(facts: Facts, pods: Sequence[Pod], sight: Sight) -> tuple[JobRecord, Verdict] | None:
    """The end of a job that slurmctld has forgotten, by Slurm's accounting; None: nothing that counts.

    slurmctld tells the mark with the end only: rows that slurmdbd closed by itself have none. An end that a crash of
    slurmctld undid stays on its books. But then the job lived on, and was lost with another boot, later: so an end does
    not count after which we saw the job live, nor one after which another leader watched and left the pod.
    """
    past = facts.recalled.get(sight.id)
    if past is None or sight.states is not None or not past.states & WITHDRAWN or not past.ended:
        return None
    mark = past.mark
    if not facts.owns(past) or mark is None or mark.over or mark.attempt != facts.attempt.number:
        return None
    if not all(pod.uid in mark.uids for pod in pods) or held.reissued(pods, past):
        return None
    last = sight.record
    if last is not None and last.submitted not in (0.0, past.submitted):
        return None
    seen = facts.slurm_now - sight.read_age
    if last is not None and not is_ended(last.states) and seen > past.ended + SECONDS:
        return None
    if past.ended + DYING < facts.watched:
        return None
    verdict = evidence(facts, past, ())
    if verdict is None:
        return None
    text = f"{verdict.text}, as Slurm's accounting says; slurmctld has forgotten it since"
    return past, Verdict(verdict.reason, text)


def _elsewhere(facts: Facts, record: JobRecord, pod: Pod) -> bool:
    """The job holds other nodes than the pod's. A node label that somebody changed must not look like that."""
    same_name = facts.nodes.get(SlurmNode(pod.node))
    if same_name is not None and same_name.name == pod.node:
        return SlurmNode(pod.node) not in record.nodes  # no label in between
    held = {node.name for name in record.nodes if (node := facts.nodes.get(name)) is not None}
    if len(held) < len(record.nodes) or pod.node in held:
        return False
    return record.id in facts.moved or restarted(facts, record, pod, CLOCKS)


def _unlisted(facts: Facts, record: JobRecord, pod: Pod) -> bool:
    """Nobody can tell if the job held the pod's node: the list lacks that Node, and with it its name in Slurm."""
    if not pod.node or not record.nodes or SlurmNode(pod.node) in record.nodes:
        return False
    return all(node.name != pod.node for node in facts.nodes.values())


def restarted(facts: Facts, record: JobRecord, pod: Pod, skew: float) -> bool:
    """The job began anew while the pod had its node: slurmctld came up and had lost its start, or it was requeued.

    `skew`: seconds by which the clocks of the API server and slurmctld may differ.
    """
    if not pod.bound_at:
        return False
    return pod.bound_at < facts.booted <= record.started or record.started > pod.bound_at + skew


def end_pods(facts: Facts, running: Sequence[Member], record: JobRecord, verdict: Verdict) -> Decision:
    """Condition first, so that a Job's podFailurePolicy can tell this from a crash; then Event, then the delete.

    What Slurm took from the job is free in Slurm at once: a node that can't be reached to end the containers is drained
    before all. Of a job that began anew on other nodes those alone go that have no place in it. A member without a node
    has had nothing of it, and begins anew with those who come for the others; but a person's cancel, or a deadline,
    means it as well.
    """
    ends = record.states | torn(record.states)
    meant = ends & {"CANCELLED", "DEADLINE"} and "REVOKED" not in ends
    away = displaced(facts, record, [m.pod for m in running if not m.pod.deleted])
    running = [m for m in running if (m.pod in away if away else m.pod.node or meant)]
    ordinary = record.id in facts.seen_running and (
        bool(ends & ORDINARY_ENDS) or verdict.reason in (Reason.PREEMPTING, Reason.TIME_LIMIT)
    )
    ordinary = ordinary or verdict.reason is Reason.MEMBER_LOST  # its owner's own rule
    freed = verdict.reason is Reason.JOB_ENDED or not record.states
    lost = [m.pod for m in running if m.out_of_reach and freed]
    going = [m.pod for m in running if not m.pod.deleted]
    shown = [disruption(verdict, facts.now)]
    if record.states:
        shown.append(job_condition(record, facts.now))
    # Of waiting pods another leader may have given the grant up, and cancelled the job itself: then one has changed,
    # and none goes.
    first: list[Step] = [
        SetConditions(pod=pod, conditions=tuple(shown), unchanged=True) for pod in going if not pod.node
    ]
    steps: list[Step] = [*drains(facts, lost, record, needed=False), *first]
    for pod in going:
        if pod.node:
            steps.append(SetConditions(pod=pod, conditions=tuple(shown)))
        steps += [
            Notify(pod=pod, verdict=verdict),
            DeletePod(pod=pod, verdict=verdict, job=record.id, guarded=not ordinary),
        ]
    return Decision(verdict=verdict, steps=tuple(steps))


def drains(
    facts: Facts, lost: Sequence[Pod], *records: JobRecord, needed: bool = True
) -> tuple[DrainNode, ...]:
    """Nobody else gets the devices of a node that died with these pods on it before a person has looked at it.

    `records`: of their jobs, if there are any. `needed`: the steps that follow must not be done without.
    """
    dead = {pod.node for pod in lost}
    if not dead or not records:
        return ()
    # One whose object is gone is still a node of Slurm's.
    unknown = (name for record in records for name in record.nodes if name not in facts.nodes)
    twins = {SlurmNode(node): node for node in dead}  # one that is not listed may be back this very moment
    twins |= {name: node.name for name, node in facts.nodes.items()}
    known = (name for name, node in facts.nodes.items() if node.name in dead)
    names = dict.fromkeys((*known, *unknown))
    reason = (
        f"{DRAIN_PREFIX} node not Ready; containers of {', '.join(pod.ref for pod in lost)} may still run"
    )
    new = (name for name in names if name not in facts.drained)
    return tuple(DrainNode(node=n, reason=reason, away=twins.get(n), needed=needed) for n in new)


def unkillable(facts: Facts, running: Sequence[Member]) -> tuple[DrainNode, ...]:
    """As slurmd does where it can't kill a step: the job keeps its devices, and nothing more starts on the node before
    a person has looked at it."""
    stuck = [m.pod for m in running if m.pod.deleted and m.node_ready and m.dies_in <= 0]
    names = {node.name: name for name, node in facts.nodes.items() if name not in facts.drained}
    return tuple(
        DrainNode(
            node=names[pod.node],
            reason=f"{DRAIN_PREFIX} containers of {pod.ref} live on {UNKILLABLE / 60:.0f} min after their grace",
            needed=False,
        )
        for pod in stuck
        if pod.node in names
    )


def end_doubles(facts: Facts, keep: Sight, *, idle: bool = False) -> tuple[Step, ...]:
    """A group has one live job. Others of ours (an earlier attempt, a late submit) hold nodes for nobody.

    `idle`: only those that hold none. What another leaves, the next in the queue gets, so `keep` must be there first.
    """
    others = (s for s in facts.sights.values() if s.live and s.id != keep.id and facts.owns(s.record))
    doubles = (s for s in others if not idle or s.record is None or not s.record.nodes)
    return tuple(
        EndJob(id=s.id, wait_status=None, why=f"job {keep.id} holds the pod already") for s in doubles
    )


@dataclass(frozen=True, slots=True)
class Exit:
    """How a job ends: its wait(2) status, None = cancelled, and what the status can't say, for the job's comment."""

    status: int | None
    note: str = ""


def exit_of(pods: Sequence[Pod], workload: Workload | None = None) -> Exit:
    """Success, or how the first pod that failed did; a pod that a person deleted counts as cancelled.

    Where kubelet or the control plane ended a pod, the status is the signal that Slurm's users know for it. The
    controller of `workload` ends its pods at a deadline as a person would: by a delete.
    """
    how = _exit_of(pods)
    if how.status is not None or workload is None or not workload.overdue or any(map(taken_away, pods)):
        return how
    owner = f"{workload.kind} {workload.namespace}/{workload.name}"
    return Exit(SIGNALS[DEADLINE_EXCEEDED], f"{owner}: {DEADLINE_EXCEEDED}: {workload.overdue}")


def _exit_of(pods: Sequence[Pod]) -> Exit:
    """A pod that the bridge took away went with another, which tells why."""
    for pod in sorted(pods, key=lambda one: bool(taken_away(one))):
        if pod.phase == "Succeeded":
            continue
        failed = _failed(pod)
        killed = next((s for s in failed if s.reason == "OOMKilled"), None)
        if killed is not None:
            return Exit(OUT_OF_MEMORY, f"container {killed.name} of {pod.ref} was OOMKilled")
        if pod.phase == "Failed" and pod.reason:
            note = f"{pod.ref}: {pod.reason}" + (f": {pod.message}" if pod.message else "")
            return Exit(SIGNALS.get(pod.reason) or _status(failed), note)
        if pod.deleted and all(s.exit_code in (SIGTERM_EXIT, SIGKILL_EXIT) for s in failed):
            return Exit(None)
        if not pod.ended and not failed:
            return Exit(None)
        return Exit(_status(failed))
    return Exit(0)


def taken_away(pod: Pod) -> str:
    """Why the bridge deleted the pod while its job ran: in Slurm that looks like a person's cancel otherwise."""
    shown = pod.condition(DISRUPTION_CONDITION)
    return shown.message if shown is not None and shown.reason.startswith("Slurm") else ""


def _failed(pod: Pod) -> list[ContainerStatus]:
    """Containers, else init containers. A sidecar is always ended by kubelet, and its code says nothing."""
    ended = [s for s in pod.statuses if s.terminated and (s.exit_code or s.signal)]
    first = {c.name for c in pod.init_containers}
    sidecars = {c.name for c in pod.init_containers if c.sidecar}
    return [s for s in ended if s.name not in first] or [s for s in ended if s.name not in sidecars]


def _status(failed: Sequence[ContainerStatus]) -> int:
    """Of the first container that failed; 1 if kubelet names none."""
    first = failed[0] if failed else None
    if first is None:
        return 1 << 8
    return first.signal or first.exit_code % 256 << 8 or 1 << 8
