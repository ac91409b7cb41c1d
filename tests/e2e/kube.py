"""A thin client of the API server with the admin's rights, and the pods that tests create."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.e2e.waiting import eventually

Object = dict[str, Any]

SCHEDULER, ALIAS = "slurm-bridge", "slurm-bridge-scheduler"
GATE = "scheduler.slinky.slurm.net/slurm"
JOB_LABEL = "scheduler.slinky.slurm.net/slurm-jobid"
ATTEMPT = "slinky.slurm.net/attempt"
NODE = "slinky.slurm.net/slurm-node"
GPUS = "slinky.slurm.net/gpus"
CONDITION = "slinky.slurm.net/SlurmJob"
TAINT = "slinky.slurm.net/managed-node"
OPTION = "slurmjob.slinky.slurm.net/"

MERGE = "application/strategic-merge-patch+json"


class Kube:
    def __init__(self, kubeconfig: str) -> None:
        config = yaml.safe_load(Path(kubeconfig).read_text())
        cluster = config["clusters"][0]["cluster"]
        self._http = httpx.Client(
            base_url=cluster["server"],
            verify=ssl.create_default_context(cafile=cluster["certificate-authority"]),
            headers={"Authorization": f"Bearer {config['users'][0]['user']['token']}"},
            timeout=30.0,
        )

    def close(self) -> None:
        self._http.close()

    def ask(
        self, method: str, path: str, body: object = None, *, kind: str = "application/json", **query: str
    ) -> httpx.Response:
        return self._http.request(
            method, path, json=body, headers={"Content-Type": kind}, params=query or None
        )

    def must(
        self, method: str, path: str, body: object = None, *, kind: str = "application/json", **query: str
    ) -> Object:
        reply = self.ask(method, path, body, kind=kind, **query)
        assert reply.is_success, f"{method} {path}: {reply.status_code} {reply.text[:500]}"
        found: Object = reply.json()
        return found

    def find(self, path: str) -> Object | None:
        """None for what isn't there."""
        reply = self.ask("GET", path)
        if reply.status_code == 404:
            return None
        assert reply.is_success, f"GET {path}: {reply.status_code} {reply.text[:500]}"
        found: Object = reply.json()
        return found

    def items(self, path: str, **query: str) -> list[Object]:
        items: list[Object] = self.must("GET", path, **query)["items"]
        return items

    def watch(self, path: str, version: str) -> Iterator[str]:
        """Every event after `version`, one line each, until the connection ends. None while there is no answer."""
        query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": "3600"}
        with self._http.stream("GET", path, params=query, timeout=httpx.Timeout(10.0, read=None)) as reply:
            if reply.is_success:
                yield from reply.iter_lines()

    def cluster_id(self) -> str:
        return str(self.must("GET", "/api/v1/namespaces/kube-system")["metadata"]["uid"])

    def namespace(self, name: str) -> None:
        """Usable: its ServiceAccount is there, without which no pod is admitted."""
        self.must("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        eventually(f"namespace {name} is usable", lambda: self.find(account), within=90)

    def cordon(self, node: str, on: bool) -> None:
        self.must("PATCH", f"/api/v1/nodes/{node}", {"spec": {"unschedulable": on}}, kind=MERGE)


def pod(
    name: str,
    *,
    cpus: str = "1",
    memory: str = "500Mi",
    gpus: int = 0,
    run: float | None = None,
    exit_code: int = 0,
    dies_after: int = 0,
    grace: int = 5,
    scheduler: str = SCHEDULER,
    options: Mapping[str, str] | None = None,
    gates: tuple[str, ...] = (),
    node_selector: Mapping[str, str] | None = None,
) -> Object:
    """A pod of one container.

    `run`: seconds until the container ends by itself (never, if None), with `exit_code`. `dies_after`: seconds that
    it goes on after a delete, at most `grace`. `options`: annotations for the Slurm job, without their prefix.
    """
    annotations = {OPTION + key: value for key, value in (options or {}).items()}
    if run is not None:
        annotations |= {"bench/run-seconds": f"{run:g}s", "bench/exit-code": str(exit_code)}
    if dies_after:
        annotations["bench/term-delay"] = f"{dies_after}s"
    resources = {"cpu": cpus, "memory": memory} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    spec: Object = {
        "schedulerName": scheduler,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": grace,
        "containers": [
            {
                "name": "train",
                "image": "busybox",
                "resources": {"requests": dict(resources), "limits": dict(resources)},
            }
        ],
    }
    if gates:
        spec["schedulingGates"] = [{"name": gate} for gate in gates]
    if node_selector:
        spec["nodeSelector"] = dict(node_selector)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations},
        "spec": spec,
    }


# --- looks at a pod -------------------------------------------------------------------------------


def uid(pod: Object) -> str:
    return str(pod["metadata"]["uid"])


def phase(pod: Object) -> str:
    return str(pod["status"].get("phase", ""))


def node_of(pod: Object) -> str:
    return str(pod["spec"].get("nodeName", ""))


def wants_gpus(pod: Object) -> bool:
    return any(
        "nvidia.com/gpu" in one.get("resources", {}).get("limits", {}) for one in pod["spec"]["containers"]
    )


def gates(pod: Object) -> set[str]:
    return {gate["name"] for gate in pod["spec"].get("schedulingGates", [])}


def annotation(pod: Object, key: str) -> str:
    return str(pod["metadata"].get("annotations", {}).get(key, ""))


def job_label(pod: Object) -> int:
    return int(pod["metadata"].get("labels", {}).get(JOB_LABEL, "0"))


def condition(pod: Object, kind: str) -> Object | None:
    found: list[Object] = [c for c in pod["status"].get("conditions", []) if c["type"] == kind]
    return found[0] if found else None


def shown(pod: Object, kind: str) -> Object:
    """A condition that the pod must have."""
    found = condition(pod, kind)
    assert found is not None, f"{pod['metadata']['name']} has no condition {kind}"
    return found
