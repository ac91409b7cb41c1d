"""The Job controller of the simulation: makes a gang's pods, and in the end another one for each that was lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bridge.core.grouping.wishes import GANG, ON_FAILURE
from bridge.core.overrides import key
from bridge.names import COMPLETION_INDEX
from tests.sim.schedule import member
from tests.sim.simulation import Simulation


@dataclass
class _Job:
    owner: dict[str, Any]
    gpus: int
    first: int  # of its first pod
    names: list[str] = field(default_factory=list)  # of the pod of each index, as it was made last
    done: set[int] = field(default_factory=set)  # indices that have succeeded


class Controllers:
    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._jobs: dict[str, _Job] = {}

    def knows(self, name: str) -> bool:
        return name in self._jobs

    def start(
        self, name: str, pods: int, gpus: int, *, restart: bool, first: int | None = None
    ) -> dict[str, str]:
        """A Job and its pods: name → UID."""
        if self._sim.settings.slurm.jobIds == "held":
            gpus, first = min(gpus, gpus if first is None else first), None  # several sizes would be refused
        notes = {GANG: "true", key("sizes"): "own"} | ({ON_FAILURE: "restart-gang"} if restart else {})
        body = {
            "metadata": {"name": name, "namespace": "default", "annotations": notes},
            "spec": {"parallelism": pods, "completions": pods},
        }
        uid = self._sim.kube.add("jobs", body)["metadata"]["uid"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid, "controller": True}
        job = self._jobs[name] = _Job(
            owner, gpus, gpus if first is None else first, [member(name, index) for index in range(pods)]
        )
        return {pod: self._make(job, index) for index, pod in enumerate(job.names)}

    def meta(self, pod: str) -> dict[str, Any] | None:
        """What a pod of that name has to say of itself; None: it is of no Job."""
        for job in self._jobs.values():
            if pod in job.names:
                return self._meta(job, job.names.index(pod))
        return None

    def step(self) -> None:
        """A pod for each that is not there, or has failed."""
        for name, job in self._jobs.items():
            for index, pod in enumerate(job.names):
                there = self._sim.pod(pod)
                phase = there["status"].get("phase") if there is not None else None
                if phase == "Succeeded" and index not in job.done:
                    job.done.add(index)
                    status = {"status": {"succeeded": len(job.done)}}
                    self._sim.kube.storage.patch("jobs", "default", name, status, subresource="status")
                if index in job.done or (there is not None and phase != "Failed"):
                    continue
                if there is not None:
                    job.names[index] = pod + "r"
                self._make(job, index)

    def _make(self, job: _Job, index: int) -> str:
        return self._sim.create(job.names[index], **self._meta(job, index))

    def _meta(self, job: _Job, index: int) -> dict[str, Any]:
        notes = {COMPLETION_INDEX: str(index)}
        return {
            "ownerReferences": [job.owner],
            "annotations": notes,
            "gpus": job.gpus if index else job.first,
        }
