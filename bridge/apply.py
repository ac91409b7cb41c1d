"""The WRITE door: everything this process can do to your cluster, one arm a step, one call an arm.

Goes in: a frozen step of `bridge.core.steps`. Comes out: nothing, or an exception of `bridge.errors`. Only the holder
of the Lease gets past the door, except for Bind, which every replica may do after it has verified the grant.
RBAC (deploy/manifests) can be read off the arms.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, TypeVar, assert_never

from bridge.core import attempt as attempts
from bridge.core import environment
from bridge.core.drains import cause_of
from bridge.core.model import JobId, KubeNode, Node, Pod, SlurmNode
from bridge.core.steps import (
    AdoptJob,
    Bind,
    DeleteNode,
    DeletePod,
    DrainNode,
    DropFinalizer,
    EndJob,
    Forsake,
    NameJob,
    NodeStep,
    Nominate,
    Notify,
    NotifyNode,
    Prioritize,
    RegisterNode,
    Release,
    SetConditions,
    SetNodeCondition,
    SetNodeTaints,
    Step,
    SubmitHeld,
    SubmitJob,
    UndrainNode,
    Unhold,
    UpdateExclusions,
    UpdateNode,
)
from bridge.errors import BridgeError, Conflict, Denied, NotFound, RefusedError, StaleView
from bridge.kube.client import KubeClient
from bridge.kube.events import EventRecorder
from bridge.log import logger
from bridge.metrics import STEPS
from bridge.names import (
    ATTEMPT_ANNOTATION,
    GANG_ANNOTATION,
    GPUS_ANNOTATION,
    JOB_ID_LABEL,
    NODE_ANNOTATION,
    SCHEDULING_GATE,
    SLURM_NODE_CONDITION,
    STARTED_ANNOTATION,
    SUBMITTED_ANNOTATION,
    UPSTREAM_FINALIZER,
)
from bridge.slurm.client import SlurmClient

log = logger("apply")
S = TypeVar("S")
R = TypeVar("R")
INTO_SLURM = (
    SubmitJob | SubmitHeld | Unhold | Prioritize | UpdateExclusions | AdoptJob | EndJob
    | DrainNode | UndrainNode | RegisterNode | UpdateNode | DeleteNode
)  # fmt: skip


class Ending(Protocol):
    """Ends a job with an exit status: `bridge.slurm.completion`, or a test's."""

    async def complete(self, job: JobId, wait_status: int) -> bool:
        """False: nobody takes one, and hasn't for a while."""

    async def watch(self) -> None:
        """Until cancelled: knows whether anybody takes one."""

    def note(self) -> str:
        """What works worse than it could, "" = nothing."""


class WriteDoor:
    def __init__(
        self,
        slurm: SlurmClient,
        kube: KubeClient,
        events: EventRecorder,
        *,
        completion: Ending | None,
        leading: Callable[[], bool],
        cluster: str = "",
        numbered: Callable[[JobId], bool] = lambda job: False,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`cluster`: ours. `numbered`: is that job's id one that Slurm gave out, and may give out again? `wall`: Unix
        seconds."""
        self._slurm = slurm
        self._kube = kube
        self._events = events
        self._completion = completion
        self._leading = leading
        self._cluster = cluster
        self._numbered = numbered
        self._wall = wall

    async def apply(self, step: Step) -> Pod | JobId | SlurmNode | None:
        """What the answer tells: the pod as it is now, the id that Slurm gave a job, the node that we drained."""
        return await self._through(step, self._carry_out)

    async def apply_to_node(self, step: NodeStep) -> Node | None:
        """The Kubernetes node as the API server has it after the write; None if it was to another one, or to Slurm."""
        return await self._through(step, self._carry_out_on_node)

    async def _through(self, step: S, carry_out: Callable[[S], Awaitable[R]]) -> R:
        kind = type(step).__name__
        if not isinstance(step, Bind) and not self._leading():
            raise StaleView(f"{kind}: another replica leads now")
        try:
            if isinstance(step, INTO_SLURM) and (why := self._slurm.stranger()):
                raise Denied(why).saying(why)
            changed = await carry_out(step)
        except BridgeError as error:
            STEPS.labels(kind, type(error).__name__).inc()
            raise
        STEPS.labels(kind, "ok").inc()
        return changed

    async def _carry_out(self, step: Step) -> Pod | JobId | SlurmNode | None:
        match step:
            case SubmitJob(id=job, spec=spec, immediate=True):
                await self._slurm.allocate(job, spec)
            case SubmitJob(id=job, spec=spec):
                await self._slurm.submit(job, spec)
            case SubmitHeld(spec=spec):
                return (await self._slurm.submit_held(spec)).job_id
            case NameJob(pod=pod, job=job, submitted=submitted):
                return await self._kube.patch_pod(
                    pod,
                    labels={JOB_ID_LABEL: str(job)},
                    annotations={SUBMITTED_ANNOTATION: f"{submitted:.0f}"},
                    version=pod.version,
                )
            case Unhold(id=job):
                await self._still_ours(job)
                await self._slurm.unhold(job)
            case Prioritize(id=job, priority=priority):
                await self._still_ours(job)
                await self._slurm.update_priority(job, priority)
            case UpdateExclusions(id=job, excluded=excluded):
                await self._still_ours(job)
                for part, nodes in excluded.items():
                    await self._slurm.update_excluded(part, nodes)
            case AdoptJob(id=job, mark=mark):
                await self._slurm.update_mark(job, mark)
            case EndJob():
                await self._end(step)
            case DrainNode():
                return step.node if await self._drain(step) else None
            case Nominate(pod=pod, node=node, conditions=conditions):
                return await self._kube.patch_pod_status(pod, nominated=node, conditions=conditions)
            case Release(pod=pod, job=job, node=node, gpus=gpus, gang=gang, environment=variables):
                notes = {NODE_ANNOTATION: node, GPUS_ANNOTATION: gpus or None, **variables}
                if step.started:
                    notes[STARTED_ANNOTATION] = str(step.started)
                return await self._kube.patch_pod(
                    pod,
                    labels={JOB_ID_LABEL: str(job)},
                    annotations=notes | {GANG_ANNOTATION: gang} if gang else notes,
                    drop_gate=SCHEDULING_GATE if SCHEDULING_GATE in pod.gates else None,
                    version=pod.version,
                )
            case Forsake(pod=pod, attempt=attempt):
                text = attempts.render(attempt)
                placement = (NODE_ANNOTATION, GPUS_ANNOTATION, STARTED_ANNOTATION, *environment.written(pod))
                return await self._kube.patch_pod(
                    pod,
                    annotations={ATTEMPT_ANNOTATION: text, **dict.fromkeys(placement)},
                    version=pod.version,
                )
            case SetConditions(pod=pod, conditions=conditions, unchanged=unchanged):
                version = pod.version if unchanged else None
                return await self._kube.patch_pod_status(pod, conditions=conditions, version=version)
            case Notify(pod=pod, verdict=verdict, warning=warning):
                await self._events.record(
                    pod, verdict.reason.value, verdict.text, kind="Warning" if warning else "Normal"
                )
            case DeletePod(pod=pod):
                await self._kube.delete_pod(pod.namespace, pod.name, pod.uid)
            case DropFinalizer(pod=pod):
                return await self._kube.patch_pod(pod, drop_finalizer=UPSTREAM_FINALIZER)
            case Bind(pod=pod, node=node):
                await self._kube.bind(pod.namespace, pod.name, pod.uid, node, version=pod.version)
            case _:
                assert_never(step)
        return None

    async def _carry_out_on_node(self, step: NodeStep) -> Node | None:
        match step:
            case DrainNode():
                await self._drain(step)
            case UndrainNode(node=name, reason=reason, comment=comment):
                if await self._slurm.nodes.undrain(name, reason, comment=comment):
                    log.info("node no longer drained", node=name, was=reason)
            case RegisterNode(node=name, conf=conf):
                if not await self._slurm.nodes.register(conf):  # and perhaps with a comment that others wrote
                    raise Conflict(f"Slurm has a node {name} already")
                log.info("node registered", node=name, conf=conf)
            case UpdateNode(node=name, features=features, topology=topology, comment=comment):
                await self._slurm.nodes.update(name, features=features, topology=topology, comment=comment)
            case DeleteNode(node=name, reason=reason):
                if not await self._slurm.nodes.delete(name, reason):
                    raise StaleView(f"node {name} is not idle any more, or not drained by us")
                log.info("node deleted in Slurm", node=name, why=reason)
            case SetNodeCondition(node=node, uid=uid, condition=shown):
                if shown is None:
                    return await self._kube.drop_node_condition(node, uid, SLURM_NODE_CONDITION)
                now = self._wall()
                return await self._kube.set_node_condition(node, uid, replace(shown, probed=now, changed=now))
            case SetNodeTaints(node=node, uid=uid, add=add, remove=remove, unless=label):
                return await self._kube.taint_node(node, uid, add=add, remove=remove, unless=label)
            case NotifyNode(node=node, uid=uid, verdict=verdict, warning=warning):
                await self._events.record(
                    Node(name=node, uid=uid),
                    verdict.reason.value,
                    verdict.text,
                    kind="Warning" if warning else "Normal",
                )
            case _:
                assert_never(step)
        return None

    async def _drain(self, step: DrainNode) -> bool:
        """Not if it is there and Ready, where that is what the step rests on. False: somebody else's drain stands."""
        if step.away is not None and (there := await self._node(step.away)) is not None and there.ready:
            if step.needed:
                raise StaleView(f"node {step.away} is Ready: its kubelet says what becomes of its containers")
            return False

        def over(reason: str) -> bool:
            """What keeps devices from a second user is stronger than what the mirror would lift by itself."""
            mirrors = cause_of(step.reason) is not None
            return bool(step.over) and reason == step.over if mirrors else cause_of(reason) is not None

        slurm = self._slurm.nodes
        done = await slurm.drain(
            step.node, step.reason, comment=step.comment, over=over, cluster=self._cluster
        )
        if done:
            log.warning("node drained", node=step.node, why=step.reason)
        return done

    async def _still_ours(self, job: JobId) -> None:
        """A number that Slurm chose it gives out again, if a crash has made it forget; then the mark tells."""
        if not self._numbered(job):
            return
        mark = (await self._slurm.job(job)).mark
        if mark is None or mark.cluster != self._cluster:
            raise Conflict(f"job {job} is another one now: it has no mark of this cluster")

    async def _end(self, step: EndJob) -> None:
        """COMPLETED or FAILED with the pod's exit code where slurmctld can be asked; else cancelled."""
        job, status, note = step.id, step.wait_status, step.note
        for node, since in step.working:
            await self._works(node, since)
        if self._slurm.rights.asks_for_owner or self._numbered(job):
            found = await self._slurm.job(job)
            theirs = found.mark.group != step.group if found.mark is not None else not found.listed
            if step.group is not None and theirs:
                raise Conflict(f"job {job} is another one now: its mark does not name {step.group}")
            if self._slurm.rights.asks_for_owner:
                self._slurm.rights.may_end(found.user)
        if not await self._completed(step):
            if status is not None:
                how = f"exit code {status >> 8}" if status >> 8 or not status else f"signal {status & 0x7F}"
                note = "; ".join(filter(None, (step.why, note, how)))
            await self._slurm.cancel(job, note, step.mark)
        log.info("job ended", job=job, status=status, why=step.why)

    async def _works(self, name: KubeNode, since: float) -> None:
        """Asked for by its name: a watch may have lost the events that say otherwise."""
        node = await self._node(name)
        if node is None or not node.ready or node.ready_since != since:
            text = f"node {name} was away, or is: what ran there is not known to have ended"
            raise StaleView(text)

    async def _node(self, name: KubeNode) -> Node | None:
        try:
            return await self._kube.node(name)
        except NotFound:
            return None

    async def _completed(self, step: EndJob) -> bool:
        if step.wait_status is None or step.waits or self._completion is None:
            return False
        if step.note:
            with suppress(RefusedError):  # a comment is a courtesy
                await self._slurm.update_comment(step.id, step.note)
        try:
            return await self._completion.complete(step.id, step.wait_status)
        except RefusedError:  # only SlurmUser and the job's owner may say how it ended
            return False
