"""The whole bridge, as `bridge.app` wires it, between the in-memory Slurm and the in-memory Kubernetes.

Kubelets and a kube-scheduler act a moment after each change; a witness looks at every single change. `crash()` is
kill -9: every task dies where it stands, memory is lost, requests under way were or were not carried out.
Several replicas may run at once, and all of them may believe that they lead.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import uuid
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from bridge import app, names
from bridge.app import Bridge
from bridge.config import Settings, from_mapping
from bridge.core.identity import parse
from bridge.core.model import JobId, Mark, is_ended
from bridge.kube import view
from bridge.kube.client import KubeClient
from bridge.loops import groups
from bridge.web.app import App
from tests.sim.kubelets import Kubelets
from tests.sim.wires import Wires, ask
from tests.sim.witness import Witness
from tests.worlds.kube import KubeWorld
from tests.worlds.kube_agents import Scheduler
from tests.worlds.kube_merge import Object
from tests.worlds.slurm import SlurmWorld
from tests.worlds.slurm_jobs import WorldJob, WorldNode

CLUSTER = "sim"
EPOCH = 1_700_000_000.0
TICK = 0.05  # seconds between a change and what kubelet and kube-scheduler do about it
EXTENDER_TIMEOUT = 10.0  # kube-scheduler's patience with us
DAY = 86_400.0
SLACK = 150.0  # seconds beyond the grace of a boot in which the bridge puts right what slurmctld forgot

TOLERATED = [
    {"key": key, "operator": "Exists"} for key in (names.MANAGED_NODE_TAINT, names.UNAVAILABLE_TAINT)
]

# Most stories are not about nodes: without the mirror nothing is written to them but drains for the devices' sake.
NO_MIRROR = dict.fromkeys(
    ("nodeStateToSlurm", "nodeStateToKubernetes", "externalNodes", "taintNodes", "taintUnavailable"), False
)


def settings(token: Path, **changes: Any) -> Settings:
    base: dict[str, Any] = {
        "slurmRestApi": "http://slurm",
        "slurmTokenFile": str(token),
        "clusterId": CLUSTER,
        "leaderElect": False,
    }
    return from_mapping(base | NO_MIRROR | changes)


class Simulation:
    """`dying`: the share of its grace that a container takes to end; `latency`: seconds of a request to either side;
    `ahead`: seconds of slurmctld's clock before all others; `thinking`: seconds that kube-scheduler takes."""

    def __init__(
        self,
        tmp: Path,
        nodes: int = 3,
        gpus: int = 8,
        dying: float = 0.0,
        latency: float = 0.0,
        ahead: float = 0.0,
        thinking: float = TICK,
        min_job_age: float = 300.0,
        **changes: Any,
    ) -> None:
        self._time = asyncio.get_running_loop().time
        self._thinking = thinking
        token = tmp / "token"
        token.write_text("token")
        self.settings = settings(token, **changes)
        self.slurm = SlurmWorld(
            tuple(WorldNode(f"n{i}", gpus=gpus) for i in range(1, nodes + 1)),
            clock=lambda: self.wall() + ahead,
            min_job_age=min_job_age,
        )
        self.slurm.booted -= DAY
        self.slurm.came_up -= DAY
        self.slurm.latency = latency
        self.kube = KubeWorld(clock=self._time, now=self.wall)
        self.kube.latency = latency
        self.next_uid = 1
        self.kube.storage.new_uid = self._new_uid  # so that a schedule repeats exactly
        for i in range(1, nodes + 1):
            self.kube.add("nodes", {"metadata": {"name": f"n{i}"}, "status": _ready(True, 0.0)})
        self.kubelet = Kubelets(self.kube, self._time, dying)
        self.scheduler = Scheduler(
            self.kube,
            list(self.settings.cluster.schedulers),
            filter=self._filter,
            bind=self._bind,
            clock=self._time,
            max_backoff=2.0,
        )
        self.jump = 0.0  # seconds that the bridge's wall clock is ahead
        self.writes = 0  # requests of bridges that were carried out and may change something
        self.kill_at_write: int | None = None  # so many more, and the process that sent the last one is gone
        self._replicas: dict[str, _Replica] = {}
        self._asked = 0
        self._wakes = [asyncio.Event(), asyncio.Event()]
        self.witness = Witness(
            self.kube,
            self.slurm,
            self.kubelet,
            self.settings,
            clock=self._time,
            wall=self.wall,
            repair=SLACK,
            ahead=ahead,
            changed=self._wake,
        )
        self._agents = [
            asyncio.create_task(self._run_kubelets()),
            asyncio.create_task(self._run_scheduler()),
        ]

    def _new_uid(self) -> str:
        self.next_uid += 1
        return str(uuid.UUID(int=self.next_uid - 1))

    def wall(self) -> float:
        return EPOCH + self._time()

    # --- the bridge -------------------------------------------------------------------------------

    def start(self, name: str = "a") -> None:
        """One more replica; without an election every one of them leads."""
        self.witness.bridge_starts()
        wires = Wires(self.kube, self.slurm, self.settings.slurm, lambda: self._written(name))
        bridge = Bridge(
            self.settings,
            wires.slurm,
            KubeClient(wires.kube, clock=self._time),
            wires.completion,
            cluster=CLUSTER,
            identity=name,
            monotonic=self._time,
            wall=lambda: self.wall() + self.jump,
        )
        self._replicas[name] = _Replica(bridge)

    async def _written(self, name: str) -> None:
        self.writes += 1
        if self.kill_at_write is None:
            return
        self.kill_at_write -= 1
        if self.kill_at_write <= 0:
            self.kill_at_write = None
            self._killer = asyncio.create_task(self.crash(name))
            await asyncio.Event().wait()  # the answer finds nobody

    def notes(self, name: str = "a") -> list[str]:
        """What /readyz notes."""
        return self._replicas[name].bridge.notes()

    def up(self, name: str = "a") -> bool:
        return name in self._replicas

    def app(self, name: str = "a") -> App:
        """What answers its port."""
        return self._replicas[name].bridge.app

    async def crash(self, name: str = "a") -> None:
        replica = self._replicas.pop(name, None)
        if replica is not None:
            await replica.kill()

    async def close(self) -> None:
        for task in self._agents:
            task.cancel()
        await asyncio.gather(*self._agents, return_exceptions=True)
        for name in list(self._replicas):
            await self.crash(name)

    # --- users ------------------------------------------------------------------------------------

    def create(
        self,
        name: str,
        *,
        gpus: int = 1,
        gated: bool = True,
        grace: int = 5,
        asks: Mapping[str, Any] | None = None,
        **meta: Any,
    ) -> str:
        """A pod of ours as admission leaves it; `asks`: what else stands in its spec. Returns its UID."""
        spec: dict[str, Any] = {
            "schedulerName": names.SCHEDULER_NAME,
            "terminationGracePeriodSeconds": grace,
            "containers": [{"name": "c", "resources": {"limits": {"cpu": "1", "nvidia.com/gpu": str(gpus)}}}],
            **({"tolerations": TOLERATED} if self.settings.nodes.taintNodes else {}),
            **(asks or {}),
        }
        if gated:
            spec["schedulingGates"] = [{"name": names.SCHEDULING_GATE}]
        pod = self.kube.add(
            "pods", {"metadata": {"name": name, "namespace": "default", **meta}, "spec": spec}
        )
        return str(pod["metadata"]["uid"])

    def delete(self, name: str, *, force: bool = False) -> None:
        self.kube.storage.delete("pods", "default", name, {"gracePeriodSeconds": 0} if force else {})

    def pods(self) -> list[Object]:
        return list(self.kube.storage.all("pods"))

    def pod(self, name: str) -> Object | None:
        return self.kube.get("pods", name)

    def set_ready(self, node: str, ready: bool) -> None:
        """False: the machine is out of reach, and its containers run on."""
        self.kube.storage.patch(
            "nodes", "", node, {"status": _ready(ready, self.wall())}, subresource="status"
        )

    def cordon(self, node: str, closed: bool) -> None:
        self.kube.storage.patch("nodes", "", node, {"spec": {"unschedulable": closed}})

    def label(self, node: str, **labels: str | None) -> None:
        """None takes a label off."""
        self.kube.storage.patch("nodes", "", node, {"metadata": {"labels": labels}})

    def taint(self, node: str, *taints: str) -> None:
        """These keep pods away that don't tolerate them, and no others."""
        found = [{"key": key, "effect": "NoSchedule"} for key in taints]
        self.kube.storage.patch("nodes", "", node, {"spec": {"taints": found}})

    # --- what Slurm holds -------------------------------------------------------------------------

    def jobs_of(self, uid: str, *, live: bool = True) -> list[WorldJob]:
        return [
            job
            for job in self.slurm.jobs.values()
            if (mark := mark_of(job)) is not None and uid in mark.uids and not (live and is_ended(job.states))
        ]

    def job_of(self, name: str) -> JobId:
        pod = self.pod(name)
        assert pod is not None
        return JobId(int(pod["metadata"]["labels"][names.JOB_ID_LABEL]))

    # --- time -------------------------------------------------------------------------------------

    async def until(self, condition: Callable[[], object], seconds: float = 60.0) -> None:
        """Wait in virtual time."""
        deadline = self._time() + seconds
        while not condition():
            self.check_alive()
            assert self._time() < deadline, f"not reached within {seconds} s: {self.picture()}"
            await asyncio.sleep(TICK)

    async def settle(self, seconds: float) -> None:
        """Let virtual time pass."""
        await self.pass_time(seconds)
        self.check_alive()

    async def pass_time(self, seconds: float) -> None:
        """At most so long: until the witness has seen something."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.witness.failed.wait()

    def died_of(self) -> BaseException | None:
        """What ended a task that never ends."""
        tasks = (*self._agents, *(replica.work for replica in self._replicas.values()))
        return next((task.exception() for task in tasks if task.done()), None)

    def check_alive(self) -> None:
        """Raises what a task died of, and what the witness saw."""
        if (error := self.died_of()) is not None:
            raise error
        assert self.witness.first is None, f"{self.witness.first}: {self.picture()}"

    def picture(self) -> str:
        pods = [
            (
                p["metadata"]["name"],
                p["spec"].get("nodeName"),
                p["status"].get("phase"),
                p["metadata"].get("labels"),
            )
            for p in self.pods()
        ]
        jobs = [(j.id, sorted(j.states), j.nodes) for j in self.slurm.jobs.values() if mark_of(j)]
        return f"pods {pods}; jobs {jobs}"

    # --- the parties around it --------------------------------------------------------------------

    def _wake(self) -> None:
        for event in self._wakes:
            event.set()

    async def _run_kubelets(self) -> None:
        while True:
            await self._next(self._wakes[0], self.kubelet.due(), TICK)
            self.slurm.tick()
            self.kubelet.step()

    async def _run_scheduler(self) -> None:
        while True:
            await self._next(self._wakes[1], self.scheduler.due(), self._thinking)
            await self.scheduler.step()

    async def _next(self, wake: asyncio.Event, due: float, moment: float) -> None:
        """A moment after the next change, or after `due`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(None if due == math.inf else due):
                await wake.wait()
        await asyncio.sleep(moment)
        wake.clear()

    async def _ask(self, verb: str, body: dict[str, Any]) -> dict[str, Any]:
        """Any replica answers; one that dies meanwhile takes the request along."""
        if not self._replicas:
            return {"error": "connection refused"}
        self._asked += 1
        replica = list(self._replicas.values())[self._asked % len(self._replicas)]
        try:
            async with asyncio.timeout(EXTENDER_TIMEOUT):
                return await replica.own(ask(replica.bridge.app, f"/scheduler/{verb}", body))
        except TimeoutError:
            return {"error": "no answer in time"}

    async def _filter(self, args: Object) -> Object:
        answer = await self._ask("filter", {"Pod": args["pod"], "NodeNames": args["nodenames"]})
        return {"nodenames": answer.get("NodeNames"), "error": answer.get("Error") or answer.get("error")}

    async def _bind(self, args: Object) -> Object:
        body = {
            "PodName": args["podName"],
            "PodNamespace": args["podNamespace"],
            "PodUID": args["podUID"],
            "Node": args["node"],
        }
        answer = await self._ask("bind", body)
        return {"error": answer.get("Error") or answer.get("error")}


class _Replica:
    """A process: what it does dies with it."""

    def __init__(self, bridge: Bridge) -> None:
        self.bridge = bridge
        self.work = asyncio.create_task(bridge.work())
        self._requests: set[asyncio.Task[dict[str, Any]]] = set()

    async def own(self, request: Awaitable[dict[str, Any]]) -> dict[str, Any]:
        """Carries on when the caller has given up."""
        task = asyncio.ensure_future(request)
        self._requests.add(task)
        task.add_done_callback(self._requests.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if task.cancelled() and not (me and me.cancelling()):
                return {"error": "connection reset"}
            raise

    async def kill(self) -> None:
        for task in (self.work, *self._requests):
            task.cancel()
        await asyncio.gather(self.work, *self._requests, return_exceptions=True)


async def _no_stalls() -> None:
    """Stands in for the product's look at real time, which virtual time would only slow down."""
    await asyncio.Event().wait()


app._watch_stalls = _no_stalls
PAGES = FastAPI()
vars(app)["pages"] = lambda missing, notes: PAGES  # nobody reads them here, and they take as long as 60 polls
app.GAUGES = 15.0  # nobody scrapes the metrics here
groups.RESYNC_TICK = 1.0  # a round of looks takes as long, in larger portions


def _ready(ready: bool, since: float) -> Object:
    status = "True" if ready else "Unknown"
    return {"conditions": [{"type": "Ready", "status": status, "lastTransitionTime": view.stamp(since)}]}


def mark_of(job: WorldJob) -> Mark | None:
    return parse(job.admin_comment)
