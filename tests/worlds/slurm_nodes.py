"""The nodes of the Slurm world: what slurmctld makes of requests about them, and how it shows them (as 26.05 does)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.worlds.slurm_books import number
from tests.worlds.slurm_jobs import Refused, WorldJob, WorldNode

if TYPE_CHECKING:
    from tests.worlds.slurm_cluster import Cluster

NO_NODE = 2018, "Invalid node name specified"
BUSY = 2016, "Requested nodes are busy"
STATIC = 2028, "Invalid node state specified"
EXISTS = 2168, "Node already exists in the node table"
NO_STEP = 2180, "Invalid node state transition"
NO_GPUS = 22, "Invalid argument"
BAD_LINE = -1, "Unspecified error"
BAD_FEATURES = 2031, "Active features not subset of available features"
LINE = re.compile(r"(\w+)=(\"[^\"]*\"|\S*)")
WORDS = (
    {"NodeName", "NodeAddr", "State", "CPUs", "Sockets", "SocketsPerBoard", "CoresPerSocket", "ThreadsPerCore"}
    | {"RealMemory", "Gres", "GresConf", "Feature", "Topology"}
)  # fmt: skip


class NodeTable:
    """The nodes that slurmctld has, part of a Cluster."""

    nodes: dict[str, WorldNode]
    nodes_changed: float
    forgets_nodes = True  # a crash undoes what was said of nodes, too
    clock: Callable[[], float]
    on_change: Callable[[], None]
    _changes: int

    def set_node(self, node: WorldNode) -> None:
        """Add a node, or replace the one of that name (drain it, resize it)."""
        self.nodes[node.name] = node
        self._nodes_changed()

    def remove_node(self, name: str) -> None:
        del self.nodes[name]
        self._nodes_changed()

    def _nodes_changed(self) -> None:
        self.nodes_changed = self.clock()
        self._changes += 1
        self._remember()
        self.on_change()

    def _remember(self) -> None:
        """A crash may come back to this moment."""
        raise NotImplementedError

    def _closed(self, names: Iterable[str]) -> bool:
        return any(name not in self.nodes or self.nodes[name].closed for name in names)


def shown(node: WorldNode, jobs: list[WorldJob], *, external: bool) -> dict[str, Any]:
    """As GET nodes/ tells it; `jobs` are those on it."""
    used = sum(j.cpus_on(node.name) for j in jobs)
    base = "DOWN" if node.down else "IDLE" if not jobs else "ALLOCATED" if used >= node.cpus else "MIXED"
    flags = {
        "EXTERNAL": node.external and external,
        "DRAIN": node.drained,
        "FAIL": node.failing,
        "NOT_RESPONDING": node.silent,
        "RESERVED": bool(node.reservation),
        "DYNAMIC_NORM": node.dynamic,
    }
    why = node.drained or node.failing or node.down
    return {
        "name": node.name,
        "state": [base, *(name for name, on in flags.items() if on)],
        "reason": node.reason,
        "reason_set_by_user": node.reason_by if node.reason else "",
        "reason_changed_at": number(int(node.reason_at) if why and node.reason else 0),
        "reservation": node.reservation,
        "partitions": ["all", "slurm-bridge"],
        "features": list(node.features),
        "active_features": list(node.features),
        "topology": node.topology,
        "comment": node.comment,
        "extra": node.extra,
        "address": node.address,
        "hostname": node.name,
        "cpus": node.cpus,
        "threads": 1,
        "specialized_cores": 0,
        "specialized_memory": 0,
        "real_memory": node.memory,
        "gres": f"gpu:{node.gpu_type}:{node.gpus}" if node.gpus else "",
        "boot_time": number(int(node.booted)),
        "last_busy": number(int(node.last_busy)),
    }


def updated(node: WorldNode, body: dict[str, Any], *, busy: bool, by: str, now: float) -> WorldNode:
    """What POST node/{name} makes of it. Raises Refused."""
    features, active = body.get("features"), body.get("features_act")
    if active is None and features and not set(node.features) <= set(features):
        raise Refused(*BAD_FEATURES)
    if features:
        node = replace(node, features=tuple(name for name in features if name))
    for key, field in (("comment", "comment"), ("extra", "extra"), ("topology_str", "topology")):
        if key in body:
            node = replace(node, **{field: body[key]})
    for state in body.get("state", ()):
        node = _moved(node, state, busy=busy)
    if body.get("reason") and (node.drained or node.failing or node.down):
        node = replace(node, reason=body["reason"], reason_by=by, reason_at=now)
    return node


def _moved(node: WorldNode, state: str, *, busy: bool) -> WorldNode:
    match state:
        case "DRAIN":
            return replace(node, drained=True)
        case "FAIL":
            return replace(node, failing=True, drained=False)
        case "DOWN":
            return replace(node, down=True)
        case "UNDRAIN":
            kept = node.down or (node.failing and busy)
            return replace(
                node, drained=False, failing=node.failing and busy, reason=node.reason if kept else ""
            )
        case "RESUME":
            if not (node.drained or node.failing or node.down):
                raise Refused(*NO_STEP)
            return replace(node, drained=False, failing=False, down=False, reason="")
    raise AssertionError(f"this world has no state {state}")


def made(conf: str, now: float) -> WorldNode:
    """The node of a line for POST new/node/. Raises Refused."""
    said = {key: value.strip('"') for key, value in LINE.findall(conf)}
    if not said.keys() <= WORDS or said.get("State", "").upper() != "EXTERNAL":
        raise Refused(*BAD_LINE)
    gres = re.findall(r"gpu:(\w+):(\d+)", said.get("Gres", ""))
    if gres and not said.get("GresConf"):
        raise Refused(*NO_GPUS)
    return WorldNode(
        said["NodeName"],
        cpus=int(said["CPUs"]),
        memory=int(said["RealMemory"]),
        gpus=sum(int(count) for _, count in gres),
        gpu_type=gres[0][0] if gres else "h100",
        features=tuple(said["Feature"].split(",")) if said.get("Feature") else (),
        topology=said.get("Topology", ""),
        address=said.get("NodeAddr", said["NodeName"]),
        last_busy=now,
    )


def on(cluster: Cluster, name: str) -> list[WorldJob]:
    """Jobs that hold part of it."""
    return [job for job in cluster.jobs.values() if name in job.gpus and job.holds]


def used(cluster: Cluster, job: WorldJob, *, gone: bool) -> None:
    """A job with nodes changes, or goes."""
    now, before = cluster.clock(), cluster.jobs.get(job.id)
    if before is not None and before.holds and (gone or not job.holds):
        for name in before.gpus.keys() & cluster.nodes.keys():
            cluster.nodes[name] = replace(cluster.nodes[name], last_busy=now)
    cluster.nodes_changed = now


def answered(
    cluster: Cluster, method: str, name: str, body: dict[str, Any], since: int | None
) -> dict[str, Any] | None:
    """What a request about nodes gets; no `name`: about all. None: nothing has changed since. Raises Refused."""
    now = cluster.clock()
    if method == "GET" and name:
        return {"nodes": [_shown(cluster, cluster.nodes[name])]} if name in cluster.nodes else _unknown(name)
    if method == "GET":
        if since is not None and since - 1 >= int(cluster.nodes_changed):
            return None
        listed = [_shown(cluster, node) for node in cluster.nodes.values()]
        return {"nodes": listed, "last_update": number(int(now))}
    if "node_conf" in body:
        node = made(body["node_conf"], now)
        if node.name in cluster.nodes:
            raise Refused(*EXISTS)
        cluster.set_node(node)
        return {}
    if name not in cluster.nodes:
        raise Refused(*NO_NODE)
    node, jobs = cluster.nodes[name], on(cluster, name)
    if method == "POST":
        cluster.set_node(updated(node, body, busy=bool(jobs), by=cluster.asker, now=now))
        for job in jobs if "DOWN" in body.get("state", ()) else ():
            cluster.end(job.id, "NODE_FAIL")
        return {}
    if not node.dynamic:
        raise Refused(*STATIC)
    if jobs:
        raise Refused(*BUSY)
    cluster.remove_node(name)
    return {}


def _shown(cluster: Cluster, node: WorldNode) -> dict[str, Any]:
    return shown(node, on(cluster, node.name), external=cluster.external)


def _unknown(name: str) -> dict[str, Any]:
    error = {"description": f"Failure to query node {name}", "error_number": 0, "error": "No error"}
    return {"errors": [{**error, "source": "world"}]}
