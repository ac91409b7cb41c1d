"""A small installation in memory, as `doctor` finds it: two nodes on both sides, a leader, a token of SlurmUser."""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx

from bridge import names
from bridge.config import Settings, from_mapping
from bridge.core import identity
from bridge.core.model import GroupKey, JobId, Mark, Uid
from bridge.core.report import Report
from bridge.doctor import Doctor
from bridge.kube.client import KubeClient
from bridge.kube.view import micro_stamp
from bridge.kube.wire import Reply
from bridge.slurm.client import SlurmClient
from tests.worlds.kube import KubeWorld
from tests.worlds.kube_merge import Object
from tests.worlds.slurm import Answer, SlurmWorld
from tests.worlds.slurm_jobs import WorldJob, WorldNode

NOW = 1_800_000_000.0
CLUSTER = "here"
JOB = JobId(0x02000001)
SLURMD = "/etc/slurm/handover"


class Api(KubeWorld):
    """With GET /version."""

    git_version = "v1.36.3"

    async def request(self, method: str, path: str, **rest: Any) -> Reply:
        if path == "/version" and self.git_version:
            return Reply(200, {}, json.dumps({"gitVersion": self.git_version}).encode())
        return await super().request(method, path, **rest)


class Slurmctld(SlurmWorld):
    """With GET nodes/, and as much of its configuration as doctor reads."""

    def __init__(self, *nodes: WorldNode, version: int) -> None:
        super().__init__(nodes, clock=lambda: NOW, version=version)
        self.conf: dict[str, Any] = {
            "SlurmUser": "slurm",
            "MinJobAge": 300,
            "MaxNodeCount": 1024,
            "DefMemPerCPU": {"set": True, "infinite": False, "number": 1000},
            "SlurmctldParameters": ["enable_job_state_cache"],
            "SchedulerParameters": ["batch_sched_delay=0", "defer"],
            "PrologSlurmctld": [SLURMD],
            "GresTypes": ["gpu"],
            "MCSPlugin": "",
        }
        self.booted = NOW - 3600

    def _answer(self, request: str, job: JobId, headers: dict[str, str], raw: bytes) -> Answer:
        if request == "GET conf" and not self.down and headers.get("x-slurm-user-token") == self.token:
            meta = {"BOOT_TIME": int(self.booted), "NEXT_JOB_ID": {"set": True, "number": 7}}
            return self._ok({"slurm_conf_meta": meta, "slurm_conf": self.conf})
        return super()._answer(request, job, headers, raw)


class Installation:
    def __init__(self, tmp: Path, *, version: int = 45, **settings: Any) -> None:
        self.token = tmp / "token"
        self.slurm = Slurmctld(
            WorldNode("n1", external=False), WorldNode("n2", external=False), version=version
        )
        self._made = NOW  # when the next object is created
        self.kube = Api(clock=lambda: NOW, now=lambda: self._made)
        base = {"slurmRestApi": "http://slurm", "slurmTokenFile": str(self.token), "clusterId": CLUSTER}
        self.settings: Settings = from_mapping(base | {"slurmctldAddress": "slurmctld:6817"} | settings)
        self.between: Callable[[], None] = lambda: None  # what happens between two looks
        self.looked_again = False
        for namespace in ("slurm", "ai"):
            self.kube.namespace(namespace)
        self.give_token("slurm", 400 * 86_400)
        self.node("n1")
        self.node("n2")
        self.lease(NOW - 1)

    # --- what is there ----------------------------------------------------------------------------

    def give_token(self, user: str, seconds: float) -> None:
        claims = base64.urlsafe_b64encode(json.dumps({"sun": user, "exp": NOW + seconds}).encode())
        self.slurm.token = f"e30.{claims.decode().rstrip('=')}.signature"
        self.token.write_text(self.slurm.token)

    def node(self, name: str) -> None:
        said = {"conditions": [{"type": "Ready", "status": "True"}]}
        self.kube.add("nodes", {"metadata": {"name": name}, "status": said})

    def lease(self, renewed: float, holder: str = "bridge-0") -> None:
        self.kube.storage.objects["leases"].clear()
        spec = {"holderIdentity": holder, "renewTime": micro_stamp(renewed)}
        self.kube.add("leases", {"metadata": {"name": names.COMPONENT}, "spec": spec}, "slurm")

    def pod(self, name: str, *, node: str = "", age: float = 100.0, says: str = "", gpus: str = "0") -> str:
        """A pod of ours. Returns its UID."""
        meta: Object = {
            "name": name,
            "namespace": "ai",
            "labels": {names.JOB_ID_LABEL: str(JOB)} if node else {},
            "annotations": {names.GPUS_ANNOTATION: gpus} if node else {},
        }
        spec: Object = {"schedulerName": names.SCHEDULER_NAME, "containers": [{"name": "c"}]}
        if node:
            spec["nodeName"] = node
        self._made = NOW - age
        made = self.kube.add("pods", {"metadata": meta, "spec": spec}, "ai")
        self._made = NOW
        said = [{"type": names.JOB_CONDITION, "status": "False", "message": says}] if says else []
        status = {"phase": "Running" if node else "Pending", "conditions": said}
        self.kube.storage.patch("pods", "ai", name, {"status": status}, subresource="status")
        return str(made["metadata"]["uid"])

    def job(
        self, uid: str, *states: str, number: int = JOB, node: str = "n1", cluster: str = CLUSTER
    ) -> None:
        """A job that is marked with this pod, with GPU 0 of the node."""
        key = GroupKey("ai", "Pod", "train", uid)
        mark = Mark(cluster=cluster, group=key, attempt=0, uids=(Uid(uid),), pods=("ai/train",))
        self.slurm.add(
            WorldJob(
                id=JobId(number),
                states=frozenset(states or ("RUNNING",)),
                submitted=NOW - 60,
                started=NOW - 50,
                admin_comment=identity.render(mark),
                gpus={node: (0,)} if node else {},
            )
        )

    # --- looks ------------------------------------------------------------------------------------

    async def examine(self, page: str = "", answer: httpx.Response | None = None) -> Report:
        client = SlurmClient(self.settings.slurm, transport=httpx.ASGITransport(app=self.slurm))
        try:
            return await Doctor(
                self.settings,
                KubeClient(self.kube),
                client,
                page=page,
                pages=None if answer is None else httpx.MockTransport(lambda _: answer),
                wall=lambda: NOW,
                sleep=self._later,
            ).examine()
        finally:
            await client.close()

    def _later(self, _: float) -> Awaitable[None]:
        async def happen() -> None:
            self.looked_again = True
            self.between()

        return happen()
