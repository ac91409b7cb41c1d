"""Puts the house together and runs it: every long-lived task is created and named here.

Goes in: settings, where to listen, who we are. Comes out: when the process is asked to stop, or a task dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import uvicorn

from bridge.apply import Ending, WriteDoor
from bridge.config import Settings
from bridge.core import jobid
from bridge.core.lease import LeaseRecord
from bridge.errors import BridgeError, ConfigError, TransientError
from bridge.grants import Grants
from bridge.kube import kinds
from bridge.kube.client import ClusterWire, KubeClient
from bridge.kube.discovery import Discovery
from bridge.kube.events import EventRecorder
from bridge.kube.informer import Informer
from bridge.kube.leader import Leader
from bridge.kube.storage import Storage
from bridge.kube.store import Store
from bridge.log import logger
from bridge.loops.groups import GroupsLoop
from bridge.loops.guard import Guard, ask_to_close
from bridge.loops.guard import command as close_command
from bridge.loops.nodes import NodesLoop
from bridge.loops.sweep import SweepLoop
from bridge.metrics import (
    DEVICES_AWAITED,
    KUBE_REQUESTS,
    LEADING,
    NODE_POLL_AGE,
    POLL_AGE,
    SLURM_BYTES,
    SLURM_REQUESTS,
    STALL,
    TOKEN_EXPIRY,
    UNGATED,
    WATCH_AGE,
)
from bridge.mirror import Mirror
from bridge.names import COMPONENT
from bridge.slurm.auth import expires_in
from bridge.slurm.client import SlurmClient
from bridge.slurm.completion import Completion
from bridge.slurm.nodewatch import NodeWatch
from bridge.slurm.watch import JobWatcher
from bridge.snapshot import Snapshot
from bridge.watched import Watched
from bridge.web.app import App
from bridge.web.extender import Extender
from bridge.web.hooks import Hooks
from bridge.web.pages import pages

log = logger("app")
FOLLOWER_PACE = 10.0  # followers poll Slurm at a tenth of the rate
KEEP_ALIVE = (
    120  # seconds: longer than Go's clients keep an idle connection, which they don't try twice for a POST
)
GAUGES = 1.0  # seconds between looks at ages


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where this process lives."""

    host: str
    port: int
    identity: str
    kubeconfig: str | None = None  # None: the ServiceAccount of the pod


async def run(settings: Settings, place: Place) -> None:
    """The process: connects, works and serves until SIGTERM."""
    for warning in settings.warnings:
        log.warning(warning)
    wire = await ClusterWire.connect(place.kubeconfig)
    slurm = SlurmClient(settings.slurm, observe=_observe_slurm)
    kube = KubeClient(wire, _observe_kube)
    try:
        cluster = settings.cluster.clusterId or await _cluster_id(kube)
        completion = None
        if settings.slurm.slurmctldAddress:
            completion = Completion(
                settings.slurm.slurmctldAddress, slurm.token.read, lambda: slurm.release, slurm.partitions
            )
        bridge = Bridge(settings, slurm, kube, completion, cluster=cluster, identity=place.identity)
        log.info("starting", cluster=cluster, identity=place.identity)
        work = asyncio.create_task(bridge.work(), name="work")
        serve = asyncio.create_task(_serve(bridge.app, place), name="serve")
        await asyncio.wait({work, serve}, return_when=asyncio.FIRST_COMPLETED)
        # Whichever ended, the other goes too: a bridge that only answers, or only acts, is worse than a restart.
        serve.cancel()
        work.cancel()
        await asyncio.gather(serve, work, return_exceptions=True)
        for task in (serve, work):
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
    finally:
        await slurm.close()
        await wire.close()


async def close_breaker(settings: Settings, kubeconfig: str | None) -> str:
    """The operator's command, with the operator's own rights. Returns what happens next."""
    if not settings.cluster.leaderElect:
        raise ConfigError("close-breaker: the command is read from the Lease, and leaderElect is false")
    wire = await ClusterWire.connect(kubeconfig)
    try:
        return await ask_to_close(KubeClient(wire), settings.cluster.leaseNamespace, time.time())
    finally:
        await wire.close()


class Bridge:
    """All parts, wired. `work()` is everything but the listening socket; `app` answers the extender and the probes."""

    def __init__(
        self,
        settings: Settings,
        slurm: SlurmClient,
        kube: KubeClient,
        completion: Ending | None,
        *,
        cluster: str,
        identity: str,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._slurm = slurm
        self._elected = not settings.cluster.leaderElect
        ids = jobid.IdRange(settings.jobs.jobIdFirst, settings.jobs.jobIdStop)
        self._store = Store(settings.cluster.schedulers, clock=monotonic)
        self._watcher = JobWatcher(
            slurm, settings.slurm, ids, lambda job: self._groups.job_changed(job), monotonic, wall=wall
        )
        self._node_watch = NodeWatch(
            slurm,
            lambda names: self.nodes.wake(),
            open=lambda: self._watcher.healthy,
            monotonic=monotonic,
        )
        self.snapshot = Snapshot(
            self._store, self._watcher, slurm, kube, settings, cluster,
            named=(lambda: self._node_watch.naming) if settings.nodes.mirrored else None,
            monotonic=monotonic, wall=wall,
        )  # fmt: skip
        self._events = EventRecorder(kube, identity, wall)
        self._completion = completion
        door = WriteDoor(
            slurm,
            kube,
            self._events,
            completion=completion,
            leading=lambda: self.leading,
            cluster=cluster,
            numbered=lambda job: job not in ids,
            wall=wall,
        )
        namespace = settings.cluster.leaseNamespace
        self._watched = Watched(self._watcher, self.snapshot.memory, lambda: self.leading)
        guard = self._guard = Guard(
            jobs=self.snapshot.roster.placed,
            nodes=lambda: len(self._store.nodes),
            tell=self._tell,
            command="" if self._elected else close_command(namespace),
            clock=monotonic,
            wall=wall,
        )
        self._leader = Leader(
            kube,
            namespace,
            COMPONENT,
            identity,
            seen=self._lease_seen,
            tell=self._watched.told,
            clock=monotonic,
            now=wall,
        )
        self._groups = GroupsLoop(
            self.snapshot,
            door,
            self._watcher,
            guard,
            leading=lambda: self.leading,
            workers=settings.placement.workers,
            clock=monotonic,
        )
        self._sweep = SweepLoop(
            self.snapshot,
            door,
            kube,
            guard,
            self._groups.queue.add,
            leading=lambda: self.leading,
            interval=settings.placement.sweepInterval,
            margin=settings.placement.deathMargin,
            monotonic=monotonic,
        )
        mirror = Mirror(
            self._store,
            self._node_watch,
            self._watcher,
            slurm,
            settings,
            cluster,
            boot_age=self.snapshot.boot_age,
            lingering=self.snapshot.ledger.lingering,
            occupied=self.snapshot.ledger.occupied,
            monotonic=monotonic,
            wall=wall,
        )
        self.nodes = NodesLoop(
            mirror,
            self._node_watch,
            door,
            kube,
            guard,
            settings.nodes,
            overcommitted=self.snapshot.candidates.overcommitted,
            tight=self.snapshot.candidates.tight,
            leading=lambda: self.leading,
            clock=monotonic,
        )
        self._store.nodes.on_change(lambda old, new: self.nodes.wake())
        self._store.pods.on_pod(self._groups.pod_changed)
        self._store.workloads.on_change(self._groups.workload_changed)
        guard.on_closed(self._groups.look_at_held)
        pods, nodes, jobs = kinds.pods(self._store.pods.is_ours), kinds.nodes(), kinds.jobs()
        self._informers: tuple[Informer[Any], ...] = (
            Informer(kube, pods, self._store.pods, clock=monotonic),
            Informer(kube, nodes, self._store.nodes, clock=monotonic),
            Informer(kube, jobs, self._store.jobs, clock=monotonic),
        )
        self._discovery = Discovery(kube, self._store.workloads, clock=monotonic)
        self._storage = Storage(kube, self._store, monotonic)
        ledger = self.snapshot.ledger
        ledger.changed = lambda key: self._groups.queue.add(key, urgent=True)
        grants = Grants(
            self._store,
            self._watcher,
            ledger,
            slurm,
            kube,
            cluster=cluster,
            nodes=self.snapshot.nodes,
            kube_name=self.snapshot.kube_name,
            resources=self.snapshot.gpu_resources,
            unsettled=lambda: self.snapshot.unsettled,
            view_age=settings.placement.viewAge,
        )
        hooks = Hooks(
            self._watcher.__contains__,
            ledger,
            chosen=ids,
            cluster=cluster,
            hint=self._watcher.hint,
            job=slurm.job,
            there=grants.there,
            clock=monotonic,
        )
        known = (self._discovery.notes, self._storage.notes, hooks.notes)
        views = (informer.notes for informer in self._informers)
        notes = (self.snapshot.notes, guard.notes, self._ends, self.nodes.notes, *known, *views)
        self.notes: Callable[[], list[str]] = lambda: [note for each in notes for note in each()]
        probes = pages(self.snapshot.missing, self.notes)
        self.app = App(Extender(grants, door, monotonic), hooks, probes)

    @property
    def leading(self) -> bool:
        return self._elected or self._leader.leading

    def _lease_seen(self, record: LeaseRecord) -> None:
        self._guard.lease_seen(record)
        self._watched.lease_seen(record)

    def _ends(self) -> list[str]:
        note = self._completion.note() if self._completion is not None else ""
        return [note] if note else []

    async def _tell(self, reason: str, text: str, *, warning: bool) -> None:
        """What concerns all pods is told on the Lease."""
        if self.leading:
            await self._events.record(
                self._leader.lease, reason, text, kind="Warning" if warning else "Normal"
            )

    async def work(self) -> None:
        """Until cancelled, or until a task dies of a bug of ours."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for informer, name in zip(self._informers, ("pods", "nodes", "jobs"), strict=True):
                    tasks.create_task(informer.run(), name=name)
                tasks.create_task(self._discovery.run(), name="discovery")
                tasks.create_task(self._storage.run(), name="storage")
                tasks.create_task(self._watcher.run(), name="slurm-watcher")
                tasks.create_task(self._groups.run(), name="groups")
                tasks.create_task(self._sweep.run(), name="sweep")
                tasks.create_task(self._guard.run(), name="guard")
                if self._settings.nodes.mirrored:
                    tasks.create_task(self._node_watch.run(), name="slurm-nodes")
                    tasks.create_task(self.nodes.run(), name="nodes")
                tasks.create_task(self._gauges(), name="gauges")
                tasks.create_task(_watch_stalls(), name="stalls")
                if self._completion is not None:
                    tasks.create_task(self._completion.watch(), name="completion")
                if not self._elected:
                    tasks.create_task(self._leader.run(), name="leader")
        finally:
            self._groups.queue.close()

    async def _gauges(self) -> None:
        while True:
            LEADING.set(self.leading)
            self._groups.verdicts.measure()
            UNGATED.set(self.snapshot.roster.on_their_way())
            DEVICES_AWAITED.set(len(self.snapshot.ledger.waits()))
            self._watcher.pace = 1.0 if self.leading else FOLLOWER_PACE
            POLL_AGE.set(self._watcher.age())
            self._node_watch.pace = self._watcher.pace
            NODE_POLL_AGE.set(self._node_watch.age())
            store = self._store
            for name, table in (("pods", store.pods), ("nodes", store.nodes), ("jobs", store.jobs)):
                WATCH_AGE.labels(name).set(table.age())
            for name, age in self._discovery.ages().items():
                WATCH_AGE.labels(name).set(age)
            with contextlib.suppress(BridgeError):
                TOKEN_EXPIRY.set(expires_in(self._slurm.token.read(), time.time()))
            await asyncio.sleep(GAUGES)


async def _cluster_id(kube: KubeClient) -> str:
    """The UID of kube-system: the one thing every cluster has and no two share."""
    while True:
        try:
            return str(await kube.namespace_uid("kube-system"))
        except TransientError as error:
            log.warning("waiting for the API server", error=str(error))
            await asyncio.sleep(1.0)


async def _serve(app: App, place: Place) -> None:
    config = uvicorn.Config(
        app,
        host=place.host,
        port=place.port,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_keep_alive=KEEP_ALIVE,
    )
    server = uvicorn.Server(config)
    try:
        listener = socket.create_server(
            (place.host, place.port),
            family=socket.AF_INET6 if ":" in place.host else socket.AF_INET,
            backlog=1024,
        )
    except OSError as error:
        raise ConfigError(
            f"--listen {place.host}:{place.port}: {error.strerror}; choose another port"
        ) from error
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, lambda: setattr(server, "should_exit", True))
    await server._serve(sockets=[listener])  # without uvicorn's own signal handlers, which re-raise
    log.info("stopping")


async def _watch_stalls() -> None:
    """How long the event loop was away: the longest of the last 10 s."""
    worst, since = 0.0, time.monotonic()
    while True:
        begun = time.monotonic()
        await asyncio.sleep(0.02)
        worst = max(worst, time.monotonic() - begun - 0.02)
        if time.monotonic() - since > 10:
            STALL.set(worst)
            worst, since = 0.0, time.monotonic()


def _observe_slurm(route: str, status: int, seconds: float, size: int) -> None:
    SLURM_REQUESTS.labels(route, str(status)).observe(seconds)
    SLURM_BYTES.labels(route).inc(size)


def _observe_kube(verb: str, resource: str, outcome: str, seconds: float) -> None:
    KUBE_REQUESTS.labels(f"{verb} {resource}", outcome).observe(seconds)
