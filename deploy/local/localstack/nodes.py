"""The same nodes on both sides.

In: a stack whose API server and slurmrestd answer. Out: a Kubernetes Node for every node of Slurm with the
same name (KWOK plays its kubelet), and a Slurm node without a slurmd for every external one. Only what is
missing is created.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from localstack import kubernetes, slurm, slurmconf
from localstack.jsonhttp import JsonClient
from localstack.layout import Stack
from localstack.progress import Failure, say, wait_until
from localstack.rootfs import GPUS

_WORKERS = 4
_PODS = 250
# kubelet keeps some of a machine for itself. Slurm must know less than what kubelet offers to pods (hybrid
# nodes) or exactly that (external nodes): a pod that Slurm has room for must not be one that kubelet has no
# room for.
_HYBRID_ALLOCATABLE = {"cpu": str(slurmconf.CPUS_HYBRID + 1), "memory": "65Gi"}
_HYBRID_CAPACITY = {"cpu": str(slurmconf.CPUS_HYBRID + 2), "memory": "66Gi"}
_EXTERNAL_ALLOCATABLE = {"cpu": str(slurmconf.CPUS_EXTERNAL), "memory": f"{slurmconf.MEMORY_EXTERNAL}Mi"}
_EXTERNAL_CAPACITY = {
    "cpu": str(slurmconf.CPUS_EXTERNAL + 2),
    "memory": f"{slurmconf.MEMORY_EXTERNAL + 4096}Mi",
}


def create_external(stack: Stack) -> None:
    """Adds the nodes without a slurmd to Slurm, one request each: it refuses a list of nodes with GPUs."""
    client, version = slurm.rest(stack), slurm.api_version(stack)
    wanted = stack.external_names()
    if not wanted:
        return
    _, answer = client.request("GET", f"/slurm/{version}/nodes/", timeout=120)
    missing = _without(wanted, {node["name"] for node in answer["nodes"]})

    def create(name: str) -> None:
        body = {"node_conf": slurmconf.external_node(stack, name)}
        status, reply = client.request("POST", f"/slurm/{version}/new/node/", body, timeout=120)
        if status != 200:
            raise Failure(f"Slurm did not create node {name}: {status} {_errors(reply)}")

    _for_each("external nodes in Slurm", create, missing)


def create_twins(stack: Stack) -> None:
    """Adds the Kubernetes side of every node."""
    client = kubernetes.admin(stack)
    present = {node["metadata"]["name"] for node in _kubernetes_nodes(client)}
    hybrid = set(stack.hybrid_names())

    def create(name: str) -> None:
        status, reply = client.request("POST", "/api/v1/nodes", _twin(name, hybrid=name in hybrid))
        if status not in (201, 409):
            raise Failure(f"Kubernetes did not create node {name}: {status} {reply}")

    wanted = [*stack.hybrid_names(), *stack.external_names()]
    _for_each("nodes in Kubernetes", create, _without(wanted, present))


def wait_ready(stack: Stack) -> None:
    client = kubernetes.admin(stack)
    wanted = {*stack.hybrid_names(), *stack.external_names()}
    seconds = 180 + len(wanted) / 5

    def all_ready() -> bool:
        return wanted <= {node["metadata"]["name"] for node in _kubernetes_nodes(client) if _is_ready(node)}

    wait_until(f"{len(wanted)} nodes Ready", all_ready, seconds=seconds)


def _twin(name: str, *, hybrid: bool) -> dict[str, Any]:
    gpus = {"nvidia.com/gpu": str(GPUS), "pods": str(_PODS)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "type": "kwok",
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "node-kind": "hybrid" if hybrid else "external",
            },
        },
        "status": {
            "capacity": {**(_HYBRID_CAPACITY if hybrid else _EXTERNAL_CAPACITY), **gpus},
            "allocatable": {**(_HYBRID_ALLOCATABLE if hybrid else _EXTERNAL_ALLOCATABLE), **gpus},
        },
    }


def _kubernetes_nodes(client: JsonClient) -> list[dict[str, Any]]:
    status, answer = client.request("GET", "/api/v1/nodes", timeout=60)
    if status != 200:
        raise Failure(f"the API server does not list its nodes: {status} {answer}")
    items: list[dict[str, Any]] = answer["items"]
    return items


def _is_ready(node: dict[str, Any]) -> bool:
    conditions = node["status"].get("conditions", [])
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    # The taint goes a moment after the condition comes, and until then no pod is placed.
    taints = {taint["key"] for taint in node["spec"].get("taints", [])}
    return ready and "node.kubernetes.io/not-ready" not in taints


def _without(wanted: Iterable[str], present: set[str]) -> list[str]:
    return [name for name in wanted if name not in present]


def _for_each(what: str, create: Callable[[str], None], names: list[str]) -> None:
    if not names:
        return
    say(f"creating {len(names)} {what}")
    with ThreadPoolExecutor(_WORKERS) as pool:
        for done, _ in enumerate(pool.map(create, names), 1):
            if done % 250 == 0:
                say(f"{done} of {len(names)} {what}")


def _errors(reply: Any) -> str:
    errors = reply.get("errors", []) if isinstance(reply, dict) else []
    return (
        "; ".join(f"{error.get('error_number')} {error.get('error')}" for error in errors) or str(reply)[:300]
    )
