"""What must always hold (docs/design.md), as named predicates over what can be seen of both sides.

In: a `Picture` of one moment, or the `Change` between two. Out: violations, each a sentence that names the objects.
The simulation asks after every step, the tests on real daemons at their end, `doctor` when a person does. What must
stay true: no predicate knows how the bridge decides, and what one tolerates is in its docstring, measured by facts of
the picture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final

from bridge.core import devices, held, hostlist, ledger, nodeinvariants
from bridge.core.attempt import of_pod
from bridge.core.model import GroupKey, JobId, JobRecord, KubeNode, Pod, Uid, is_ended, is_granted
from bridge.core.picture import Change, Picture
from bridge.core.verdict import Reason
from bridge.core.violation import Predicate, Violation, invariant
from bridge.errors import ProtocolError, UserError
from bridge.names import GPUS_ANNOTATION, JOB_CONDITION, JOB_ID_LABEL

MINUTE: Final = 60.0  # Slurm's time limits are whole minutes, rounded up
RESTING: Final = frozenset({Reason.REFUSED, Reason.GATHERING})  # a pod that waits for people, not for Slurm


def violations(seen: Picture | Change) -> tuple[Violation, ...]:
    """Everything that must hold at any moment, in the order of `ALL`; of a change also what its end must keep."""
    if isinstance(seen, Picture):
        return tuple(found for holds in STANDING for found in holds(seen))
    moved = tuple(found for holds in MOVING for found in holds(seen))
    return violations(seen.after) + moved


# --- at any moment --------------------------------------------------------------------------------


@invariant
def placed_by_slurm(picture: Picture) -> Iterator[str]:
    """A pod is on a node only because a job of its own holds that node, and held it when the pod was bound.

    Tolerated: that the job has ended since (`converged` wants the pod gone then); pods that ended or are being deleted;
    pods on drained nodes, where a place that slurmctld forgot can't be given back; while slurmctld settles, that it
    forgot the job of a pod that was bound before, or placed it anew; that it is being asked for its place anew; a start
    that is younger than the binding only because slurmctld lost the first one when it booted.
    """
    forgotten = picture.booted + picture.view_age + picture.skew if picture.settling else -1.0
    for pod in picture.pods:
        if not pod.node or pod.ended or pod.deleted or picture.closed(pod.node):
            continue
        held = picture.holding(pod)
        if pod.bound_at <= forgotten or picture.reclaiming(pod):
            continue
        if not held:
            yield f"pod {pod.ref} is on {pod.node}, where no job of its own is: {_told(picture.own(pod.uid))}"
        elif not any(picture.covers(job, pod.bound_at) for job in held):
            yield f"pod {pod.ref} was bound to {pod.node} while its job did not hold it: {_told(held)}"


@invariant
def one_job(picture: Picture) -> Iterator[str]:
    """The pods of a group have at most one live job.

    Tolerated: while slurmctld settles, jobs from before its boot, which it may have brought back to life. Not counted:
    a job that was submitted held, where Slurm numbers our jobs, and that can't run before its pod names it.
    """
    live: dict[GroupKey | Uid, list[JobId]] = {}
    for job in picture.jobs:
        if job.mark is None or not picture.ours(job) or is_ended(job.states):
            continue
        if picture.settling and job.submitted < picture.booted:
            continue
        if "PENDING" in job.states and job.reason == held.REASON:
            continue
        live.setdefault(job.mark.group, []).append(job.id)
        for uid in job.mark.uids:
            live.setdefault(uid, []).append(job.id)
    told: set[tuple[JobId, ...]] = set()
    for whose, ids in live.items():
        if len(ids) > 1 and (several := tuple(sorted(ids))) not in told:
            told.add(several)
            kind = "group" if isinstance(whose, GroupKey) else "pod"
            yield f"{kind} {whose} has {len(several)} live jobs: {', '.join(map(str, several))}"


@invariant
def no_shared_gpu(picture: Picture) -> Iterator[str]:
    """No GPU has two users: pods whose containers are not known dead, and running jobs.

    Tolerated: a job of ours that got the device of a pod which still lives, as long as its own pods wait for it; an
    earlier job of a pod that names another one now, which slurmctld brought back to life; a native job that did, where
    no hand-over holds it back; `_placed_anew`, as the pod goes on with the devices it has.
    """
    users: dict[tuple[KubeNode, int], list[Pod]] = {}
    for pod in picture.living():
        for index in _read(pod.annotations.get(GPUS_ANNOTATION, ""), _annotated):
            users.setdefault((pod.node, index), []).append(pod)
    for (node, index), pods in users.items():
        if len(pods) > 1:
            yield f"GPU {index} of {node} is used by pods {' and '.join(sorted(p.ref for p in pods))}"
    named = {(pod.uid, pod.node): pod.labels.get(JOB_ID_LABEL, "") for pod in picture.living()}
    owners: dict[tuple[KubeNode, int], JobRecord] = {}
    for job in picture.jobs:
        if "RUNNING" not in job.states or not job.gres:
            continue
        uids = job.mark.uids if job.mark is not None and picture.ours(job) else None
        for node, text in zip(picture.places(job), job.gres, strict=False):
            if uids is None:
                in_use = picture.handover and is_granted(job.states)
            else:
                own = any(named.get((uid, node)) in ("", str(job.id)) for uid in uids)
                in_use = own and not _placed_anew(picture, job, node)
            for index in _read(text, _granted):
                other = owners.setdefault((node, index), job)
                if other is not job:
                    yield f"GPU {index} of {node} is held by jobs {other.id} and {job.id}"
                for pod in users.get((node, index), ()) if in_use else ():
                    if pod.uid not in (uids or ()):
                        yield f"GPU {index} of {node} is used by pod {pod.ref} and held by job {job.id}"


@invariant
def devices_as_granted(picture: Picture) -> Iterator[str]:
    """Pods are told exactly the GPUs that their running job holds on their node.

    Tolerated: a rest that nobody is told of, while a pod of the job is missing, ended or being deleted; `_placed_anew`.
    """
    at_work = {pod.uid: pod for pod in picture.pods if pod.node and not pod.ended and not pod.deleted}
    for job in picture.jobs:
        if job.mark is None or not picture.ours(job) or not is_granted(job.states):
            continue
        pods = [pod for uid in job.mark.uids if (pod := at_work.get(uid)) is not None]
        for position, node in enumerate(picture.places(job)):
            here = [pod for pod in pods if pod.node == node]
            if not here or _placed_anew(picture, job, node):
                continue
            text = job.gres[position] if position < len(job.gres) else ""
            texts = [pod.annotations.get(GPUS_ANNOTATION, "") for pod in here]
            try:
                granted = _granted(text)
                told = sorted(index for said in texts for index in _annotated(said))
            except (ProtocolError, UserError) as error:
                yield f"the GPUs of pod {_holders(here)} and job {job.id} can't be compared: {error}"
                continue
            whole = len(pods) == len(job.mark.uids)
            if told != list(granted) if whole else not set(told) <= set(granted):
                yield (
                    f"pod {_holders(here)} is told other GPUs of {node} than job {job.id} holds: {text or 'none'}"
                )


def _placed_anew(picture: Picture, job: JobRecord, node: KubeNode) -> bool:
    """What the job counts on the node is not what its pod was bound with, and all is well with that.

    A claim; or slurmctld started it again under the pod: while it settles, later where it starts nothing more.
    """
    if job.claims or (picture.settling and job.submitted < picture.booted):
        return True
    uids = job.mark.uids if job.mark is not None else ()
    pods = (pod for pod in picture.pods if pod.uid in uids and pod.node == node and pod.bound_at)
    return picture.closed(node) and any(_begun_anew(picture, job, pod) for pod in pods)


def _begun_anew(picture: Picture, job: JobRecord, pod: Pod) -> bool:
    """Under its pod; or it is an earlier attempt's, which a crash of slurmctld brought back to life."""
    back = job.mark is not None and job.mark.attempt < of_pod(pod).number
    again = 0 < ledger.started(pod) < int(job.started) and job.submitted <= picture.booted
    return back or again or job.started > pod.bound_at + picture.skew


@invariant
def explained(picture: Picture) -> Iterator[str]:
    """A pod that waits says why.

    Tolerated: `patience` seconds of silence.
    """
    for pod in picture.pods:
        if pod.node or pod.ended or pod.deleted or picture.now - pod.created <= picture.patience:
            continue
        shown = pod.condition(JOB_CONDITION)
        if shown is None or not shown.message:
            yield f"pod {pod.ref} has waited {picture.now - pod.created:.0f} s and does not say why"


# --- from one moment to the next ------------------------------------------------------------------


@invariant
def bound_on_a_grant(change: Change) -> Iterator[str]:
    """A pod gets its node only while a job of its own is RUNNING there, and not CONFIGURING.

    Tolerated: a job that ended at most `view_age` before.
    """
    free = {pod.uid for pod in change.before.pods if not pod.node}
    known = free | {pod.uid for pod in change.before.pods}
    for pod in change.after.pods:
        if not pod.node or (pod.uid in known and pod.uid not in free):
            continue
        jobs = [*change.before.holding(pod), *change.after.holding(pod)]
        since = change.before.now - change.after.view_age
        if not any(is_granted(job.states) or (is_ended(job.states) and job.ended >= since) for job in jobs):
            yield f"pod {pod.ref} was bound to {pod.node} without a grant: {_told(jobs)}"


@invariant
def ours_only(change: Change) -> Iterator[str]:
    """The bridge ends and changes only jobs whose mark names this cluster."""
    for job in change.before.jobs:
        if job.id in change.touched and not change.before.ours(job):
            yield f"job {job.id} ({job.name or 'no name'}, of {job.user or 'nobody'}) is not ours and was touched"


@invariant
def positive_evidence(change: Change) -> Iterator[str]:
    """The bridge deletes a pod only because the record of a job of its own says that its place is lost.

    For a pod on a node: the job that holds it ended, is being preempted, or is within grace and margin of its time
    limit; somebody cancelled the job that asked for its place anew, or that a crash had made wait again; or slurmctld,
    settled again after a boot, has the pod's job elsewhere or waiting, refused to give it its place anew, or has none
    while the pod's time limit is over.
    For one that waits: its job was cancelled, or missed its deadline. A NODE_FAIL says nothing while slurmctld settles.
    Of a gang that is to restart as a whole: another of its pods was lost.
    """
    after = {pod.uid: pod for pod in change.after.pods}
    for pod in change.before.pods:
        left = after.get(pod.uid)
        if pod.deleted or pod.uid in change.removed or (left is not None and not left.deleted):
            continue
        placed = left or pod
        if not any(seen.lost(placed) or seen.bereft(placed) for seen in (change.after, change.before)):
            told = _told([*change.before.own(pod.uid), *change.after.own(pod.uid)])
            yield f"pod {pod.ref} on {placed.node or 'no node'} was deleted without evidence: {told}"


@invariant
def containers_first(change: Change) -> Iterator[str]:
    """A job that the bridge ends has no pod whose containers may still run.

    Tolerated: the end of a second job, while another one holds the pod's node; a node that is drained, and not Ready or
    gone, now or when the bridge looked, because nobody would ever say.
    """
    ended = {job.id for job in change.after.jobs if is_ended(job.states)}
    over = {job.id for job in change.before.jobs if not is_ended(job.states)} & ended & change.touched
    for pod in change.after.living() if over else ():
        held = change.after.holding(pod)
        if change.after.closed(pod.node) and any(p.given_up(pod.node) for p in (change.before, change.after)):
            continue
        if any(job.id in over for job in held) and not any(is_granted(job.states) for job in held):
            yield f"pod {pod.ref} may still run on {pod.node} and its job was ended: {_told(held)}"


@invariant
def ahead_of_limits(change: Change) -> Iterator[str]:
    """A pod ends at its own time limit, ahead of Slurm's, which frees its devices at once.

    Tolerated: whatever happens while the bridge, Slurm or Kubernetes is kept from its work.
    """
    before = {job.id for job in change.before.jobs if not is_ended(job.states)}
    late = {job.id for job in change.after.jobs if "TIMEOUT" in job.states and job.id in before}
    for pod in change.after.living() if late and change.before.heeds_limits else ():
        for job in change.after.holding(pod):
            if job.id in late:
                yield f"pod {pod.ref} still runs on {pod.node}, and Slurm ended its job for its time: {_told([job])}"


# --- when everything has had its time -------------------------------------------------------------


@invariant
def converged(picture: Picture) -> Iterator[str]:
    """No business is left: pods run with their job or wait with a reason, and no job is without a pod, or held beside
    another one.

    Tolerated: a pod without its job, or without its node, where that or one of its gang's is drained: places that
    slurmctld forgot can't be given back there, nor GPUs that it has confused. Ask when the bridge has had its time.
    """
    for pod in picture.pods:
        own = [job for job in picture.own(pod.uid) if not is_ended(job.states)]
        if pod.deleted:
            yield f"pod {pod.ref} is still being deleted"
        elif pod.ended:
            continue
        elif pod.node:
            if not _barred(picture, pod) and not any(
                pod.node in picture.places(job) and "PENDING" not in job.states for job in own
            ):
                yield f"pod {pod.ref} runs on {pod.node} and its job does not: {_told(picture.own(pod.uid))}"
        elif any(is_granted(job.states) for job in own):
            shut = any(picture.closed(node) for job in own for node in picture.places(job))
            if not shut and not _barred(picture, pod):
                yield f"pod {pod.ref} has a grant and is not bound: {_told(own)}"
        elif not own and ((shown := pod.condition(JOB_CONDITION)) is None or shown.reason not in RESTING):
            yield f"pod {pod.ref} waits without a job"
    wanted = {pod.uid for pod in picture.pods if not pod.ended} | {pod.uid for pod in picture.living()}
    for job in picture.jobs:
        if job.mark is None or not picture.ours(job) or is_ended(job.states):
            continue
        if wanted.isdisjoint(job.mark.uids):
            yield f"job {job.id} is {'+'.join(sorted(job.states))} and none of {', '.join(job.mark.pods)} needs it"
        elif "PENDING" in job.states and job.reason == held.REASON:
            beside = (other for uid in job.mark.uids for other in picture.own(uid) if other.id != job.id)
            if (other := next((one for one in beside if not is_ended(one.states)), None)) is not None:
                yield f"job {job.id} is still held beside job {other.id} of {', '.join(job.mark.pods)}"


def _barred(picture: Picture, pod: Pod) -> bool:
    mates = {uid for job in picture.own(pod.uid) if job.mark is not None for uid in job.mark.uids}
    return picture.closed(pod.node) or any(picture.closed(p.node) for p in picture.pods if p.uid in mates)


@invariant
def quiet(change: Change) -> Iterator[str]:
    """With nothing changing, nothing is written.

    Nothing is tolerated: ask about two pictures between which nobody else did anything.
    """
    if change.writes:
        versions = {pod.uid: pod.version for pod in change.before.pods}
        jobs = {job.id: job for job in change.before.jobs}
        objects = [
            *(pod.ref for pod in change.after.pods if pod.version != versions.get(pod.uid)),
            *(f"job {job.id}" for job in change.after.jobs if job != jobs.get(job.id)),
        ]
        yield f"{change.writes} writes although nothing changed: {', '.join(objects) or 'to nothing we see'}"


STANDING: Final[tuple[Predicate[Picture], ...]] = (
    placed_by_slurm,
    one_job,
    no_shared_gpu,
    devices_as_granted,
    explained,
)
MOVING: Final[tuple[Predicate[Change], ...]] = (
    bound_on_a_grant,
    ours_only,
    positive_evidence,
    containers_first,
    ahead_of_limits,
    *nodeinvariants.MOVING,
)
ALL: Final = (*STANDING, *MOVING, converged, nodeinvariants.nodes_agree, quiet)


# --- small words ----------------------------------------------------------------------------------


def _told(jobs: list[JobRecord]) -> str:
    """Jobs as a person wants to read them."""
    told = (
        f"job {job.id} {'+'.join(sorted(job.states))}" + (f" on {','.join(job.nodes)}" if job.nodes else "")
        for job in dict.fromkeys(jobs)
    )
    return "; ".join(told) or "it has none"


def _holders(pods: list[Pod]) -> str:
    return " and ".join(f"{pod.ref} ({pod.annotations.get(GPUS_ANNOTATION) or 'none'})" for pod in pods)


_granted = lru_cache(maxsize=4096)(devices.indices)


@lru_cache(maxsize=4096)
def _annotated(text: str) -> tuple[int, ...]:
    """The GPUs that a pod is told: "0-1,4" → (0, 1, 4). Raises UserError for what we never write."""
    try:
        return tuple(int(number) for number in hostlist.expand(f"[{text}]")) if text else ()
    except ValueError as error:
        raise UserError(f"GPUs {text!r}: are no list of indices such as 0-1,4") from error


def _read(text: str, indices: Callable[[str], tuple[int, ...]]) -> tuple[int, ...]:
    """What can't be read is told by `devices_as_granted`."""
    try:
        return indices(text)
    except (ProtocolError, UserError):
        return ()
