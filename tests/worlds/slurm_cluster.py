"""The slurmctld of the Slurm world: jobs, nodes, a first-fit scheduler, and the ways in which it forgets.

Jobs are frozen and replaced, so that the state of any earlier moment is one dict: a crash puts one back.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from bridge.core.model import JobId, is_ended
from tests.worlds import slurm_nodes
from tests.worlds.slurm_jobs import Refused, WorldJob, WorldNode, names_of
from tests.worlds.slurm_placing import all_placed, layout, placed

HISTORY = 60.0  # seconds that a crash can go back
NO_ROOM, NEVER, DUPLICATE, UNKNOWN = 2016, 2014, 2011, 2017
NOT_NOW = 2015, "Requested partition configuration not available now"  # more than it has at present
OVER_LIMIT = 2050, "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
_OF_A_GANG = {"memory_per_cpu", "tres_per_task"}
MAX_WALL = "QOSMaxWallDurationPerJobLimit"


class Cluster(slurm_nodes.NodeTable):
    """Everything a test may do to Slurm is a public method or attribute here."""

    def __init__(
        self, nodes: tuple[WorldNode, ...], *, clock: Callable[[], float], external: bool, min_job_age: float
    ) -> None:
        self.nodes = {n.name: n for n in nodes}
        self.partitions = {"slurm-bridge", "all"}
        self.users = {"slurm", "alice", "bob"}
        self.asker = "slurm"  # whose the token is; anybody but SlurmUser may do less
        self.admins = {"alice"}  # with AdminLevel=Administrator
        self.jobs: dict[JobId, WorldJob] = {}
        self.counts = {"jobs_submitted": 0, "jobs_started": 0}
        self.grace_time = 0  # seconds that a preempted job gets
        self.longest: int | None = None  # MaxTime of every partition, in minutes
        self.max_wall: int | None = None  # MaxWall of every job's QOS, in minutes
        self.deny_on_limit = False  # what breaks a limit of the QOS is refused, and doesn't just wait
        self.held = False  # True: the scheduler starts nothing
        self.start_delay = 0.0  # seconds from submit to start
        self.clock = clock
        self.nodes_changed = clock()
        self.came_up = self.booted = clock()  # the second as it tells: no two starts within one second
        self.external = external  # it has nodes without slurmd, and jobs without a process
        self._min_job_age = min_job_age
        self.on_change: Callable[[], None] = lambda: None  # after every change of any job
        self._next_native = 1
        self._changes = 0
        self._looked = -1  # the value of _changes when nothing more could be started
        self._history: list[tuple[float, dict[JobId, WorldJob], dict[str, WorldNode]]] = []
        self._remember()

    # --- what Slurm does --------------------------------------------------------------------------

    def get(self, job: JobId) -> WorldJob:
        if job not in self.jobs:
            raise Refused(UNKNOWN, "Invalid job id specified")
        return self.jobs[job]

    def submit(self, body: dict[str, Any], *, immediate: bool) -> tuple[WorldJob, list[str]]:
        """The job and Slurm's warnings. Raises Refused."""
        job = self._parse(body)
        if job.id in self.jobs:
            raise Refused(DUPLICATE, "Duplicate job id")
        self._check(job, body)
        if self.deny_on_limit and self._too_long(job):
            raise Refused(*OVER_LIMIT)
        self.counts["jobs_submitted"] += 1
        too_much = job.cpus * job.node_count > sum(n.cpus for n in self.nodes.values())
        if not immediate:
            self._put(replace(job, reason="PartitionConfig") if too_much else job)
            return job, [NOT_NOW[1]] if too_much else []
        placed = None if self._others_first(job) or self._too_long(job) else self._place(job)
        if placed is None:
            ever = self._place(job, empty=True) is not None
            failed = replace(job, states=frozenset({"FAILED"}), reason="BadConstraints")
            self._put(replace(failed, ended=self.clock(), exit_signal=1))
            if self._too_long(job):
                raise Refused(*OVER_LIMIT)
            if too_much:
                raise Refused(*NOT_NOW)
            if self._closed(job.required):
                raise Refused(2068, "Required node not available (down, drained or reserved)")
            if self._others_first(job):
                raise Refused(2013, "Immediate execution impossible, insufficient priority")
            if ever:
                raise Refused(NO_ROOM, "Requested nodes are busy")
            raise Refused(NEVER, "Requested node configuration is not available")
        self._start(placed)
        return self.jobs[job.id], []

    def submit_together(self, bodies: list[dict[str, Any]]) -> tuple[WorldJob, list[str]]:
        """A job of several sizes. What is refused leaves a leader without its components."""
        first = JobId(bodies[0]["job_id"])
        warnings: list[str] = []
        try:
            with self._at_once():
                for body in bodies:
                    warnings += self.submit(body, immediate=False)[1]
                    self._put(replace(self.get(JobId(body["job_id"])), leader=first))
        except Refused:
            with self._at_once():
                for made in self.together(first) if body is not bodies[0] else ():
                    stub = replace(made, states=frozenset({"CANCELLED"}), ended=self.clock(), exit_signal=1)
                    self._put(stub, gone=made.id != first)
            raise
        return self.get(first), warnings

    @contextmanager
    def _at_once(self) -> Iterator[None]:
        """Nobody sees half of it."""
        changed, self.on_change = self.on_change, lambda: None
        try:
            yield
        finally:
            self.on_change = changed
        self.on_change()

    def together(self, job: JobId) -> list[WorldJob]:
        """The job, and the components that go with it: of a leader all."""
        found = self.jobs.get(job)
        if found is None or found.leader != job:
            return [] if found is None else [found]
        return [one for one in self.jobs.values() if one.leader == job]

    def _others_first(self, job: WorldJob) -> bool:
        """Some job waits in that partition, and this one does not claim to be more important."""
        waiting = (j for j in self.jobs.values() if "PENDING" in j.states and not j.on_hold)
        return job.priority is None and any(j.partition == job.partition for j in waiting)

    def _too_long(self, job: WorldJob) -> bool:
        return self.max_wall is not None and job.time_limit is not None and job.time_limit > self.max_wall

    def update(self, job: JobId, **fields: str) -> None:
        found = self.get(job)
        if is_ended(found.states):
            raise Refused(2084, "Job has already finished")
        self._put(replace(found, **fields))  # type: ignore[arg-type]

    def exclude(self, job: JobId, nodes: frozenset[str]) -> None:
        found = self.get(job)
        if "PENDING" not in found.states:
            raise Refused(2073, "Job is no longer pending execution")
        unknown = nodes - self.nodes.keys()
        if unknown:
            raise Refused(2018, "Invalid node name specified")
        self._put(replace(found, excluded=nodes))

    def tick(self) -> None:
        """Time limits, forgetting after MinJobAge, and starts. Every request does it first."""
        now = self.clock()
        for job in list(self.jobs.values()):
            if is_ended(job.states) and now - job.ended > self._min_job_age:
                self._put(job, gone=True)
        with self._at_once() if (late := self._overdue(now)) else nullcontext():
            for one in late:
                self.end(one, "TIMEOUT")
        if not self.held and (self.start_delay or self._looked != self._changes):
            self._start_waiting(now)
            self._looked = self._changes

    def _overdue(self, now: float) -> list[JobId]:
        limited = (
            j for j in self.jobs.values() if j.started and j.time_limit is not None and not is_ended(j.states)
        )
        return [job.id for job in limited if now - job.started > (job.time_limit or 0) * 60]

    def _start_waiting(self, now: float) -> None:
        for job in sorted(self.jobs.values(), key=lambda j: -(j.priority or 0)):
            if "PENDING" not in job.states or job.on_hold or now - job.submitted < self.start_delay:
                continue
            if job.leader not in (0, job.id):
                continue  # its leader starts it
            whole = self.together(job.id)
            placed = None if any(map(self._too_long, whole)) else self._place_together(whole)
            if placed is not None:
                with self._at_once():
                    for one in placed:
                        self._start(one)
            for one in whole if placed is None else ():
                closed = self._closed(one.required)
                reason = MAX_WALL if self._too_long(one) else "ReqNodeNotAvail" if closed else "Resources"
                if one.reason != reason and "PENDING" in one.states:
                    self._put(replace(one, reason=reason))

    def _place_together(self, jobs: list[WorldJob]) -> list[WorldJob] | None:
        return all_placed(jobs, self._place)

    # --- what a test does -------------------------------------------------------------------------

    def native(self, *, user: str = "alice", cpus: int = 1, gpus: int = 0, memory: int = 1000) -> WorldJob:
        """An sbatch job of somebody else, with Slurm's own numbering."""
        job = WorldJob(
            id=JobId(self._next_native),
            states=frozenset({"PENDING"}),
            submitted=self.clock(),
            user=user,
            name="sbatch",
            partition="all",
            cpus=cpus,
            gpu_count=gpus,
            memory=memory,
            external=False,
            reason="Priority",
        )
        self._next_native += 1
        self._put(job)
        self.tick()
        return self.jobs[job.id]

    def add(self, job: WorldJob) -> None:
        """A job from nowhere, as it stands."""
        self._put(job)

    def start(self, job: JobId, *nodes: str) -> WorldJob:
        """Start a waiting job now, on these nodes (default: first fit)."""
        found = self.get(job)
        pinned = replace(found, required=frozenset(nodes)) if nodes else found
        placed = self._place_together([pinned] if nodes else self.together(job))
        assert placed is not None, f"job {job} does not fit"
        with self._at_once():
            for one in placed:
                self._start(one)
        return self.jobs[job]

    def set_states(self, job: JobId, *states: str, reason: str | None = None) -> None:
        """Any base state and flags: SUSPENDED, RUNNING+CONFIGURING, …"""
        self.get(job)
        with self._at_once():
            for found in self.together(job):
                said = found.reason if reason is None else reason
                paused = self.clock() if "SUSPENDED" in states else found.paused
                self._put(replace(found, states=frozenset(states), reason=said, paused=paused))

    def preempt_at(self, job: JobId, when: float) -> None:
        """The grace window has begun."""
        for one in self.together(job):
            self._put(replace(one, preempted=when))

    def end(self, job: JobId, state: str, *, exit_code: int = 0, exit_signal: int = 0) -> None:
        """With a leader its components end; with a component nothing else, unless a node failed. Time limits are each
        one's own."""
        found = self.get(job)
        first = JobId(found.leader) if found.leader and state == "NODE_FAIL" else job
        with self._at_once():
            for one in [found] if state == "TIMEOUT" else self.together(first):
                if one is found or not is_ended(one.states):
                    self._put(one.over(state, self.clock(), exit_code, exit_signal))

    def complete(self, job: JobId, wait_status: int) -> None:
        """What the completion message does; `wait_status` as of wait(2)."""
        state = "FAILED" if wait_status else "COMPLETED"
        if wait_status == 253:  # Slurm's own "signal" for it, shown as 125
            state = "OUT_OF_MEMORY"
        self.end(job, state, exit_code=wait_status >> 8 & 0xFF, exit_signal=wait_status & 0x7F)

    def complete_all(self, job: JobId, wait_status: int) -> None:
        """The same for what still lives of it, and of its components. Who waits is cancelled, whatever the status."""
        living = [one.id for one in self.together(job) if not is_ended(one.states)]
        with self._at_once() if living else nullcontext():
            for one in living:
                if "PENDING" in self.jobs[one].states:
                    self.end(one, "CANCELLED")
                elif not is_ended(self.jobs[one].states):
                    self.complete(one, wait_status)

    def lose(self, job: JobId) -> None:
        """The record is gone, as after a purge or in a wiped state directory."""
        self.get(job)
        with self._at_once():
            for one in self.together(job):
                self._put(one, gone=True)

    def restart(self) -> None:
        """Clean: everything is restored; only the boot time tells."""
        self.came_up = self.nodes_changed = self.clock()
        self.booted = max(self.clock(), self.booted + 1)

    def crash(self, seconds: float) -> None:
        """kill -9: what happened in the last `seconds`, to jobs and nodes, is undone; ids given meanwhile are free."""
        since = self.clock() - seconds
        self._changes += 1
        before = self.jobs
        known = next((known for known in reversed(self._history) if known[0] <= since), None)
        jobs, nodes = known[1:] if known is not None else ({}, self._history[0][2])
        self.jobs, self.nodes = dict(jobs), dict(nodes) if self.forgets_nodes else self.nodes
        lost = (job for job in before.keys() - self.jobs.keys() if before[job].submitted > since)
        self._next_native = min((self._next_native, *lost))
        self._history = [(-math.inf, jobs, dict(self.nodes))]  # it is on disk: another crash loses no more
        self.restart()
        self.on_change()

    # --- inside -----------------------------------------------------------------------------------

    def _put(self, job: WorldJob, *, gone: bool = False) -> None:
        self._changes += 1
        if job.gpus:
            slurm_nodes.used(self, job, gone=gone)
        if gone:
            self.jobs.pop(job.id, None)
        else:
            self.jobs[job.id] = job
        self._remember()
        self.on_change()

    def _remember(self) -> None:
        now = self.clock()
        if self._history and self._history[-1][0] == now:
            self._history.pop()
        self._history.append((now, dict(self.jobs), dict(self.nodes)))
        while len(self._history) > 1 and self._history[1][0] < now - HISTORY:
            del self._history[0]

    def _start(self, placed: WorldJob) -> None:
        now = self.clock()
        self.counts["jobs_started"] += 1
        end = now + placed.time_limit * 60 if placed.time_limit is not None else 0.0
        self._put(replace(placed, states=frozenset({"RUNNING"}), started=now, ended=end, reason="None"))

    def _place(self, job: WorldJob, *, empty: bool = False) -> WorldJob | None:
        return placed(job, self.nodes.values(), () if empty else self.jobs.values(), empty=empty)

    def _parse(self, body: dict[str, Any]) -> WorldJob:
        nodes = int(body.get("minimum_nodes", 1))
        gang = bool(_OF_A_GANG & body.keys())
        tasks = 1 if gang else math.ceil(int(body.get("tasks", 1)) / nodes)
        asked = body.get("tres_per_task" if gang else "tres_per_node", "")
        gres = re.findall(r"gres/gpu(?::\w+)?[=:](\d+)", asked)
        memory = body["memory_per_node"]["number"] if "memory_per_node" in body else 0
        if "memory_per_cpu" in body:
            memory = body["memory_per_cpu"]["number"] * int(body["cpus_per_task"])
        given = body.get("priority", {}).get("number")
        on_hold = given == 0 or (
            given is None and body.get("hold", False)
        )  # a priority ends the hold at once
        if "job_id" in body:
            number = JobId(body["job_id"])
        else:
            number = JobId(self._next_native)
            self._next_native += 1
        return WorldJob(
            id=number,
            states=frozenset({"PENDING"}),
            submitted=self.clock(),
            name=body.get("name", ""),
            user=body.get("user_id", self.asker),
            partition=body.get("partition", "all"),
            admin_comment=body.get("admin_comment", ""),
            comment=body.get("comment", ""),
            external="EXTERNAL_JOB" in body.get("flags", ()),
            reason="JobHeldUser" if on_hold else "Priority",
            on_hold=on_hold,
            priority=body["priority"]["number"] if "priority" in body else None,
            time_limit=body["time_limit"]["number"] if "time_limit" in body else self.longest,
            node_count=nodes,
            cpus=tasks * int(body.get("cpus_per_task", 1)),
            memory=memory,
            tasks=int(body.get("tasks", 1)) if gang else None,
            a_node=body.get("tasks_per_node"),
            by_node="memory_per_cpu" not in body,
            layout=layout(body) if body.get("distribution") == "arbitrary" else (),
            gpu_count=sum(map(int, gres)),
            whole=body.get("shared") == ["none"],
            excluded=names_of(body.get("excluded_nodes", ())),
            required=names_of(body.get("required_nodes", ())),
        )

    def _check(self, job: WorldJob, body: dict[str, Any]) -> None:
        if job.external and not self.external:
            raise Refused(9207, 'Unknown flag "EXTERNAL_JOB"')
        if not job.external and not body.get("script") and not body.get("immediate"):
            raise Refused(9000, "Job script is missing")
        if job.partition not in self.partitions:
            raise Refused(2000, "Invalid partition name specified")
        if job.user not in self.users:
            raise Refused(2166, f"Unable to resolve user: {job.user}")
        if not (job.excluded | job.required) <= set(self.nodes):
            raise Refused(2018, "Invalid node name specified")
        names = re.findall(r"gres/(\w+)", body.get("tres_per_node", ""))
        if set(names) - {"gpu"}:
            raise Refused(2072, "Invalid generic resource (gres) specification")
        if self.external and int(body.get("tasks", 1)) < job.node_count:
            raise Refused(2025, "Task count specification invalid")
        fit = [n for n in self.nodes.values() if n.cpus >= job.cpus and n.memory >= job.memory]
        ever = any(n.gpus >= job.gpu_count for n in fit) and "temporary_disk_per_node" not in body
        if job.tasks is not None:
            ever = ever and self._place(replace(job, excluded=frozenset()), empty=True) is not None
        too_much = self.external and job.cpus > sum(n.cpus for n in self.nodes.values())
        if not ever and not too_much and not body.get("immediate"):
            # As Slurm does: the refusal leaves a record that keeps the id busy.
            self._put(replace(job, states=frozenset({"FAILED"}), reason="BadConstraints", ended=self.clock()))
            raise Refused(NEVER, "Requested node configuration is not available")
