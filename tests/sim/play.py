"""Plays a schedule on the whole bridge between both worlds, then lets everything calm down.

In: a schedule. Out: the first violation of an invariant with its moment, or None: every pod that is left runs on a node
of its one live job, nothing is left for those that are gone, and nobody else's job was touched.
"""

from __future__ import annotations

import asyncio
import logging
import random
import tempfile
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from bridge.core.identity import render
from bridge.core.invariants import Violation, converged, quiet
from bridge.core.jobid import IdRange, job_id
from bridge.core.model import GroupKey, JobId, Mark, Uid, is_ended, is_granted
from bridge.core.picture import Change
from bridge.names import OPTION_PREFIX
from tests.sim import accidents
from tests.sim.actions import (
    Action,
    BooksAway,
    Clock,
    Compact,
    Cordon,
    Create,
    Delete,
    Finish,
    Foreign,
    Gang,
    JobEnds,
    Kill,
    KillAtWrite,
    KubeFault,
    Native,
    NodeAway,
    Retime,
    Rival,
    SlurmCrash,
    SlurmDown,
    SlurmFault,
    SlurmHung,
    SlurmRestart,
    Suspend,
    Watch,
)
from tests.sim.controllers import Controllers
from tests.sim.loop import Stuck, run
from tests.sim.schedule import GPUS, Schedule
from tests.sim.simulation import Simulation, mark_of
from tests.sim.witness import Seen
from tests.worlds.slurm_faults import Fault, Kind
from tests.worlds.slurm_jobs import WorldJob

CALM = 1_500.0  # seconds in which everything must come right: longer than any grace, pause or exclusion
_LIMIT = f"{OPTION_PREFIX}timelimit"
BYSTANDER = "bystander"  # a pod of somebody else, whose changes move the API server's version on
SHORT = 10  # minutes: a job with such a limit ends while everything calms down
QUIET = 15.0  # seconds of nothing
SHORTEST_START = (
    1.0  # seconds in which a slurmctld that was killed is back: two jobs of one number differ in the second
)
PATIENCE = 12  # times that this is waited for
SETTINGS: dict[str, Any] = {
    "bootGrace": 30.0,
    "deathMargin": 5.0,
    "sweepInterval": 5.0,
}  # shorter, in the same proportions


def play(schedule: Schedule) -> Seen | None:
    random.seed(schedule.seed)  # what the product itself draws, to spread its clients
    try:
        return run(_play(schedule))
    except Stuck as error:
        return Seen(Violation("no_bug", str(error)), 0.0)


async def _play(schedule: Schedule) -> Seen | None:
    options = schedule.options
    sim = Simulation(
        _folder(),
        gpus=GPUS,
        dying=options.dying,
        latency=options.latency,
        ahead=options.ahead,
        thinking=options.thinking,
        pollInterval=options.poll,
        fastPath=options.fast,
        jobIds="held" if options.held else "chosen",
        **SETTINGS,
    )
    sim.slurm.start_delay = options.start_delay
    sim.slurm.books.open = schedule.seed % 2 == 1
    sim.slurm.asker = "alice" if options.held else "slurm"
    if options.lossy:
        sim.kube.loses = lambda: random.random() < 0.01
    stage = _Stage(sim)
    with _Complaints(sim):
        try:
            await stage.go_through(schedule)
            await stage.calm_down()
        except _Failed:
            pass
        finally:
            await sim.close()
    return sim.witness.first


class _Failed(Exception):
    """The witness has seen something."""


class _Stage:
    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._now = asyncio.get_running_loop().time
        self._begun = self._now()
        self._busy_until = self._begun
        self._uids: dict[str, str] = {}
        self._controllers = Controllers(sim)

    async def go_through(self, schedule: Schedule) -> None:
        spec = {"schedulerName": "default-scheduler", "containers": []}
        self._sim.kube.add("pods", {"metadata": {"name": BYSTANDER}, "spec": spec})
        self._sim.start()
        for step in schedule.steps:
            await self._pass(self._begun + step.at - self._now())
            await self._do(step.action)
        await self._pass(self._busy_until - self._now())

    async def calm_down(self) -> None:
        sim = self._sim
        sim.kube.faults.clear()
        sim.slurm.faults.clear()
        sim.kube.loses = lambda: False
        sim.kill_at_write = None
        if not sim.up():
            sim.start()
        sim.witness.calm()
        for job in tuple(sim.slurm.jobs.values()):  # a crash may have undone that somebody let it go on
            self._resume(job.id)
        deadline = self._now() + CALM
        while left := self._unfinished():
            if self._now() > deadline:
                sim.witness.fail(left)
            self._controllers.step()
            if self._now() > deadline - CALM / 2:
                self._resume_empty()
            await self._pass(1.0)
        await self._fall_silent()

    def _resume_empty(self) -> None:
        """A person has looked at nodes that were drained because something might still run there: nothing does."""
        used = {pod["spec"].get("nodeName") for pod in self._sim.pods()}
        for node in tuple(self._sim.slurm.nodes.values()):
            if node.drained and node.name not in used:
                self._sim.slurm.set_node(replace(node, drained=False))

    async def _fall_silent(self) -> None:
        """Requests that are still under way may end; then nothing is written any more."""
        sim = self._sim
        found: tuple[Violation, ...] = ()
        for _ in range(PATIENCE):
            writes, before = sim.writes, sim.witness.before
            await self._pass(QUIET)
            found = quiet(Change(before=before, after=sim.witness.before, writes=sim.writes - writes))
            if not found:
                return
        sim.witness.fail(found[0])

    def _unfinished(self) -> Violation | None:
        """There is room for everybody, but where a node stays drained, as pods use there what Slurm doesn't count."""
        seen = self._sim.witness.picture()
        room = sum(1 for node in self._sim.slurm.nodes.values() if not node.drained)
        for pod in seen.pods:
            live = [job for job in seen.own(pod.uid) if not is_ended(job.states)]
            if any("PENDING" in job.states and len(job.parts) > room for job in live):
                continue  # components share no node, and no person looks at those that are drained
            short = (
                any(0 < (job.time_limit or 0) <= SHORT for job in live) if live else _LIMIT in pod.annotations
            )
            less = not pod.node and any(node.drained for node in self._sim.slurm.nodes.values())
            if not pod.ended and not less and (pod.phase != "Running" or short):
                what = (
                    "runs on, although its time is over" if short else "does not run, although there is room"
                )
                return Violation("converged", f"pod {pod.ref} {what}")
        return next(iter(converged(seen)), None)

    async def _pass(self, seconds: float) -> None:
        if seconds > 0:
            await self._sim.pass_time(seconds)
        if (error := self._sim.died_of()) is not None:
            self._sim.witness.fail(Violation("no_bug", f"a task died: {error!r}"))
        if self._sim.witness.first is not None:
            raise _Failed

    def _later(self, seconds: float, act: Callable[[], object]) -> None:
        self._busy_until = max(self._busy_until, self._now() + seconds)
        asyncio.get_running_loop().call_later(seconds, act)

    # --- actions ----------------------------------------------------------------------------------

    async def _do(self, action: Action) -> None:
        sim = self._sim
        match action:
            case Create(pod=pod, gpus=gpus, gated=gated, limit=limit):
                if sim.pod(pod) is not None:
                    return
                annotations = {_LIMIT: str(limit)} if limit else {}
                meta = self._controllers.meta(pod) or {"annotations": annotations, "gpus": gpus}
                self._uids[pod] = sim.create(pod, gated=gated, **meta)
            case Gang(name=name, pods=pods, gpus=gpus, restart=restart, first=first):
                if not self._controllers.knows(name):
                    self._uids |= self._controllers.start(name, pods, gpus, restart=restart, first=first)
            case Delete(pod=pod, force=force):
                if sim.pod(pod) is not None:
                    sim.delete(pod, force=force)
            case Finish(pod=pod, code=code):
                if self._uids.get(pod) in sim.kubelet.containers:
                    self._finish(pod, code)
            case Native() | Foreign() if sim.slurm.down:
                return  # nobody submits to a slurmctld that is away
            case Native(gpus=gpus, seconds=seconds):
                job = sim.slurm.native(gpus=gpus)
                self._later(seconds, lambda: self._end(job.id, "COMPLETED"))
            case Foreign(probe=probe):
                self._foreign(probe)
            case Kill(down=down):
                await sim.crash()
                self._later(down, self._start_again) if down else sim.start()
            case KillAtWrite(number=number, down=down):
                sim.kill_at_write = number
                self._later(5.0 + down, self._revive)
            case Rival(seconds=seconds):
                if not sim.up("b"):
                    sim.start("b")
                    self._later(seconds, lambda: asyncio.ensure_future(sim.crash("b")))
            case Clock(seconds=seconds):
                sim.jump += seconds
            case KubeFault() | Watch() | Compact() | NodeAway() | Cordon():
                self._in_kubernetes(action)
            case _:
                self._in_slurm(action)

    def _foreign(self, probe: int) -> None:
        uid = str(uuid.UUID(int=self._sim.next_uid))
        job = job_id(IdRange(), self._sim.settings.cluster.clusterId, uid, 0, probe)
        if job in self._sim.slurm.jobs:
            return
        group = GroupKey(namespace="default", kind="Pod", name="x", uid="x")
        mark = Mark(cluster="another", group=group, attempt=0, uids=(Uid("x"),), pods=("default/x",))
        running = frozenset({"RUNNING"})
        self._sim.slurm.add(
            WorldJob(id=job, states=running, submitted=self._sim.wall(), admin_comment=render(mark))
        )

    def _revive(self) -> None:
        self._sim.kill_at_write = None
        self._start_again()

    def _start_again(self) -> None:
        if not self._sim.up():
            self._sim.start()

    def _finish(self, pod: str, code: int) -> None:
        node = self._sim.kubelet.containers[self._uids[pod]].node
        if self._sim.kubelet.reachable(node) and self._sim.pod(pod) is not None:
            self._sim.kubelet.finish(pod, code)

    def _in_kubernetes(self, action: Action) -> None:
        kube = self._sim.kube
        match action:
            case KubeFault(kind=kind, verb=verb, times=times):
                verb = "list" if kind.endswith("-list") else verb
                resource = "pods" if kind.endswith("-list") else None
                kube.faults.plan(accidents.kube(kind), verb=verb, resource=resource, times=times)
            case Watch(how="cut"):
                kube.cut_watches()
            case Watch(how="reset"):
                kube.cut_watches(reset=True)
            case Watch(how="mute"):
                kube.mute_watches()
            case Watch(how="repeat"):
                kube.repeat_events()
            case Watch(how="drop"):
                kube.drop_events()
            case Watch(how="delay"):
                kube.delay_watches(3.0)
            case Compact():
                kube.cut_watches(reset=True)
                changed = {"metadata": {"annotations": {"at": str(self._now())}}}
                kube.storage.patch("pods", "default", BYSTANDER, changed)
                kube.compact()
            case NodeAway(node=node, seconds=seconds):
                self._sim.set_ready(node, False)
                self._later(seconds, lambda: self._sim.set_ready(node, True))
            case Cordon(node=node, seconds=seconds):
                self._sim.cordon(node, True)
                self._later(seconds, lambda: self._sim.cordon(node, False))

    def _in_slurm(self, action: Action) -> None:
        slurm = self._sim.slurm
        match action:
            case SlurmFault(kind=kind, route=route, times=times):
                slurm.faults.add(accidents.slurm(kind, route, times))
            case SlurmRestart():
                slurm.restart()
            case SlurmCrash(seconds=seconds):
                slurm.crash(seconds)
                slurm.down = True
                self._later(SHORTEST_START, lambda: setattr(slurm, "down", False))
            case SlurmDown(seconds=seconds):
                slurm.down = True
                self._later(seconds, lambda: setattr(slurm, "down", False))
            case SlurmHung(seconds=seconds, route=route):
                fault = slurm.faults.add(Fault(pattern=route, kind=Kind.HANG, times=0))
                self._later(seconds, lambda: slurm.faults.remove(fault))
            case JobEnds(pod=pod, state=state, part=part):
                found = self._sim.jobs_of(self._uids.get(pod, ""))
                torn = [job for job in found if part and job.leader not in (0, job.id)]
                for job in torn or found:
                    if state == "CANCELLED" or is_granted(job.states):
                        slurm.end(job.id, state, exit_code=int(state == "FAILED"))
            case Suspend(pod=pod, seconds=seconds):
                for job in self._sim.jobs_of(self._uids.get(pod, "")):
                    if is_granted(job.states):
                        slurm.set_states(job.id, "SUSPENDED")
                        self._later(seconds, partial(self._resume, job.id))
            case BooksAway(seconds=seconds):
                slurm.books.answers = False
                self._later(seconds, lambda: setattr(slurm.books, "answers", True))
            case Retime(pod=pod, minutes=minutes, seconds=seconds):
                for job in self._sim.jobs_of(self._uids.get(pod, "")):
                    self._later(seconds, partial(self._retime, job.id, job.time_limit))
                    slurm.retime(job.id, minutes or None)
            case _:
                raise AssertionError(action)

    def _resume(self, job: JobId) -> None:
        known = self._sim.slurm.jobs.get(job)
        if known is not None and "SUSPENDED" in known.states:
            self._sim.slurm.set_states(job, "RUNNING")

    def _retime(self, job: JobId, minutes: int | None) -> None:
        known = self._sim.slurm.jobs.get(job)
        if known is not None and not is_ended(known.states):
            self._sim.slurm.retime(job, minutes)

    def _end(self, job: JobId, state: str) -> None:
        known = self._sim.slurm.jobs.get(job)
        ours = (
            known is not None and mark_of(known) is not None
        )  # a slurmctld that was killed gives ids out again
        if known is not None and not ours and not is_ended(known.states):
            self._sim.slurm.end(job, state)


class _Complaints(logging.Handler):
    """An exception that the product caught and logged as a bug of its own is one."""

    def __init__(self, sim: Simulation) -> None:
        super().__init__(logging.ERROR)
        self._sim = sim

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            self._sim.witness.fail(Violation("no_bug", f"{type(error).__name__}: {error}"))

    def __enter__(self) -> None:
        logging.getLogger("bridge").addHandler(self)

    def __exit__(self, *_: object) -> None:
        logging.getLogger("bridge").removeHandler(self)


@cache
def _folder() -> Path:
    """For the token's file: one for all schedules of this process."""
    return Path(tempfile.mkdtemp(prefix="slurm-bridge-sim-"))
