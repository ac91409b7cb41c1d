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
from functools import cache, partial
from pathlib import Path
from typing import Any

from bridge.core.identity import render
from bridge.core.invariants import quiet
from bridge.core.jobid import IdRange, job_id
from bridge.core.model import GroupKey, JobId, Mark, Uid, is_ended, is_granted
from bridge.core.picture import Change
from bridge.core.violation import Violation
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
from tests.sim.ending import LIMIT, resume_empty, unfinished
from tests.sim.loop import Stuck, run
from tests.sim.machines import Machines, is_ours
from tests.sim.nodes import MIRROR
from tests.sim.schedule import GPUS, Schedule
from tests.sim.simulation import Simulation, mark_of
from tests.sim.witness import Seen
from tests.worlds.slurm_faults import Fault, Kind
from tests.worlds.slurm_jobs import WorldJob

CALM = 1_500.0  # seconds in which everything must come right: longer than any grace, pause or exclusion
BYSTANDER = "bystander"  # a pod of somebody else, whose changes move the API server's version on
QUIET = 15.0  # seconds of nothing
SHORTEST_START = 1.0  # seconds until a killed slurmctld is back: two jobs of one number differ in the second
PATIENCE = 12  # times that this is waited for
# Shorter, in the same proportions.
SETTINGS: dict[str, Any] = {"bootGrace": 30.0, "deathMargin": 5.0, "sweepInterval": 5.0}
MIN_JOB_AGE = 100.0  # the same: nodes wait for it
WITH_NODES = MIRROR | {"nodeSettling": 20.0, "startFailures": 2, "startFailureWindow": 60.0}


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
        min_job_age=MIN_JOB_AGE if options.nodes else 300.0,
        pollInterval=options.poll,
        fastPath=options.fast,
        jobIds="held" if options.held else "chosen",
        **SETTINGS,
        **(WITH_NODES if options.nodes else {}),
    )
    sim.slurm.start_delay = options.start_delay
    sim.slurm.books.open = schedule.seed % 2 == 1
    sim.slurm.asker = "alice" if options.held else "slurm"
    if options.lossy:
        sim.kube.loses = lambda: random.random() < 0.01
        sim.witness.blind()
    stage = _Stage(sim, options.nodes)
    with _Complaints(sim):
        try:
            await stage.go_through(schedule)
            await stage.calm_down()
        except _Failed:
            pass
        finally:
            stage.close()
            await sim.close()
    return sim.witness.first


class _Failed(Exception):
    """The witness has seen something."""


class _Stage:
    def __init__(self, sim: Simulation, nodes: str) -> None:
        self._sim = sim
        self._now = asyncio.get_running_loop().time
        self._begun = self._now()
        self._busy_until = self._begun
        self._uids: dict[str, str] = {}
        self._controllers = Controllers(sim)
        self._machines = Machines(sim, nodes, GPUS, self._later) if nodes else None

    def close(self) -> None:
        if self._machines is not None:
            self._machines.close()

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
        if self._machines is not None:
            self._machines.calm()
        sim.witness.calm()
        for job in tuple(sim.slurm.jobs.values()):  # a crash may have undone that somebody let it go on
            self._resume(job.id)
        await self._come_right()
        if self._machines is not None and self._machines.give_back():  # nobody's word is left
            await self._come_right()
        await self._fall_silent()

    async def _come_right(self) -> None:
        deadline = self._now() + CALM
        while left := unfinished(self._sim, self._machines):
            if self._now() > deadline:
                self._sim.witness.fail(left)
            self._controllers.step()
            if self._now() > deadline - CALM / 2:
                resume_empty(self._sim, self._machines)
            await self._pass(1.0)

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
                annotations = {LIMIT: str(limit)} if limit else {}
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
                    sim.witness.leaders, sim.witness.rivals = 2, True
                    self._later(seconds, lambda: asyncio.ensure_future(self._rival_goes()))
            case Clock(seconds=seconds):
                sim.jump += seconds
            case KubeFault() | Watch() | Compact() | NodeAway() | Cordon():
                self._in_kubernetes(action)
            case _ if is_ours(action):
                if self._machines is not None:
                    self._machines.do(action)
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

    async def _rival_goes(self) -> None:
        await self._sim.crash("b")
        self._sim.witness.leaders = 1

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
                resource = {"-list": "pods", "nodes": "nodes"}.get(kind[-5:])
                verb = "list" if resource else verb
                if resource is not None:
                    self._sim.witness.deceived(resource)
                kube.faults.plan(accidents.kube(kind), verb=verb, resource=resource, times=times)
            case Watch(how="cut"):
                kube.cut_watches()
            case Watch(how="reset"):
                kube.cut_watches(reset=True)
            case Watch(how="mute"):
                self._sim.witness.blind()
                kube.mute_watches()
            case Watch(how="repeat"):
                kube.repeat_events()
            case Watch(how="drop"):
                self._sim.witness.blind()
                kube.drop_events()
            case Watch(how="delay"):
                kube.delay_watches(3.0)
            case Compact():
                kube.cut_watches(reset=True)
                changed = {"metadata": {"annotations": {"at": str(self._now())}}}
                kube.storage.patch("pods", "default", BYSTANDER, changed)
                kube.compact()
            case NodeAway(node=node, seconds=seconds):
                self._on_node(node, seconds, lambda on: self._sim.set_ready(node, not on))
            case Cordon(node=node, seconds=seconds):
                self._on_node(node, seconds, lambda on: self._sim.cordon(node, on))

    def _on_node(self, node: str, seconds: float, act: Callable[[bool], None]) -> None:
        """Where it is there."""

        def there(on: bool) -> None:
            if self._sim.kube.get("nodes", node) is not None:
                act(on)

        there(True)
        self._later(seconds, lambda: there(False))

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
                self._sim.witness.hangs(seconds + 2.0)
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
