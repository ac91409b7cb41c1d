"""External nodes as Slurm is told of them.

In: a Kubernetes node with the label, and its size. Out: the text for Slurm's node_conf, and what is to be changed in
place. What must stay true: NodeAddr is an IP address (a name that doesn't resolve stalls slurmctld), GPUs come with a
GresConf, and nothing that somebody wrote on a node gets into node_conf but by a form that can't say anything else.
Raises UserError that names node, field and fix.
"""

from __future__ import annotations

import ipaddress
import re

from bridge.config import NodeSettings
from bridge.core.model import Node, SlurmNode
from bridge.core.nodes import NodeMark, NodeRecord
from bridge.core.nodesize import Size
from bridge.errors import UserError, trim
from bridge.names import NODE_PARTITIONS_ANNOTATION, TOPOLOGY_ANNOTATION

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_TOPOLOGY = re.compile(r"[A-Za-z0-9][\w.-]*(:[A-Za-z0-9][\w.-]*)+")


def conf(
    name: SlurmNode, node: Node, size: Size, settings: NodeSettings, partitions: frozenset[str] | None
) -> str:
    """`partitions`: that Slurm has, None = not known."""
    if not _NAME.fullmatch(name):
        raise UserError(f"node {node.name}: {name!r} is no name for a Slurm node")
    parts = [
        f"NodeName={name}",
        f"NodeAddr={address(node, settings)}",
        "State=EXTERNAL",
        f"Sockets=1 CoresPerSocket={size.cpus} ThreadsPerCore=1 CPUs={size.cpus}",
        f"RealMemory={size.memory_mib}",
    ]
    if names := features(node, settings, partitions):
        parts.append(f"Feature={','.join(names)}")
    if units := topology(node):
        parts.append(f"Topology={units}")
    if size.gres:
        parts.append("Gres=" + ",".join(f"{name}:{count}" for name, count in sorted(size.gres.items())))
        parts.append("GresConf=" + "+".join(_devices(*item) for item in sorted(size.gres.items())))
    return " ".join(parts)


def _devices(gres: str, count: int) -> str:
    """Files make Slurm number them; it never opens them on an external node."""
    name, _, kind = gres.partition(":")
    files = f"{name}-0" if count == 1 else f"{name}-[0-{count - 1}]"
    return f"count={count},name={name}" + (f",type={kind}" if kind else "") + f",file={files}"


def address(node: Node, settings: NodeSettings) -> str:
    for text in (settings.externalNodeAddress, *node.addresses):
        try:
            return str(ipaddress.ip_address(text))
        except ValueError:
            continue
    raise UserError(
        f"node {node.name}: has no InternalIP in its status, and Slurm needs an IP address; set externalNodeAddress to "
        "that of any slurmd"
    )


def features(node: Node, settings: NodeSettings, partitions: frozenset[str] | None) -> tuple[str, ...] | None:
    """None: nobody says which, so that they stay as they are."""
    text = node.annotations.get(NODE_PARTITIONS_ANNOTATION, "")
    names = tuple(dict.fromkeys(part for raw in text.split(",") if (part := raw.strip())))
    whose = f"annotation {NODE_PARTITIONS_ANNOTATION}" if names else "setting externalNodePartitions"
    names = names or settings.externalNodePartitions
    if not names:
        return None
    for name in names:
        if not _NAME.fullmatch(name) or (partitions is not None and name not in partitions):
            raise UserError(
                f"node {node.name}: {whose}: Slurm has no partition "
                f"{trim(repr(name), 60)}; correct the name, or add NodeSet and PartitionName to slurm.conf"
            )
    return names


def topology(node: Node) -> str:
    """ "" = it says none."""
    text = node.annotations.get(TOPOLOGY_ANNOTATION, "").strip()
    units = [unit.strip() for unit in text.split(",")] if text else []
    for unit in units:
        if not _TOPOLOGY.fullmatch(unit):
            raise UserError(
                f"node {node.name}: annotation {TOPOLOGY_ANNOTATION}: {trim(repr(unit), 60)} is no topology; write "
                "TOPOLOGY:UNIT, for example default:leaf1, several with commas"
            )
    return ",".join(units)


def other_features(
    record: NodeRecord, node: Node, settings: NodeSettings, partitions: frozenset[str] | None
) -> tuple[str, ...] | None:
    """To be set; None = they are right."""
    names = features(node, settings, partitions)
    return names if names is not None and set(names) != set(record.features) else None


def not_yet_in(record: NodeRecord, node: Node, settings: NodeSettings) -> str:
    """Slurm looks at its NodeSets only when a node comes or goes, or at a reconfigure."""
    missing = sorted(set(features(node, settings, None) or ()) - set(record.partitions))
    if not missing or not record.partitions:
        return ""
    return f"not in partition {', '.join(missing)} yet: if its NodeSet is right, scontrol reconfigure puts it there"


def other_topology(record: NodeRecord, node: Node, known: NodeMark) -> str | None:
    """To be set, "" = cleared; None = it is right. What somebody set in Slurm stays where the node says nothing."""
    units = topology(node)
    return units if units != known.topology or not _places(units) <= _places(record.topology) else None


def _places(units: str) -> set[tuple[str, str]]:
    """Topology and leaf of each: Slurm may not tell the way to a leaf that it made."""
    parts = [unit.split(":") for unit in units.split(",") if unit]
    return {(names[0], names[-1]) for names in parts}
