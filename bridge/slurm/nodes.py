"""The requests about nodes: one method a request. Raises only classes of bridge.errors (table: faults.py).

In: what a node should be like. Out: nodes as Slurm shows them. What must stay true:

- A list is whole, or it is an error.
- Who drained a node, keeps it drained: a drain or its end is sent only for a node that was read just before, and found
  as the caller believes it to be.

Measured with Slurm 26.05:

| asked                              | becomes                                                        |
|------------------------------------|----------------------------------------------------------------|
| DRAIN with a reason, over a drain  | the new reason; the old one is gone                            |
| DRAIN without one, over a drain    | the reason stays                                               |
| FAIL, over a drain                 | FAIL in its place                                              |
| UNDRAIN, also of a busy node       | drain and reason go; on a node that is DOWN the reason stays   |
| UNDRAIN of an idle node in FAIL    | FAIL goes as well                                              |
| UNDRAIN of a node with slurmd      | NOT_RESPONDING for half a second                               |
| DELETE                             | busy 2016, a node of slurm.conf 2028, none of that name 2018   |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from bridge.core.drains import set_down
from bridge.core.model import SlurmNode
from bridge.core.nodes import NodeRecord, mark
from bridge.errors import Conflict, ProtocolError
from bridge.slurm import translate, wire

if TYPE_CHECKING:
    from bridge.slurm.rest import Rest

KNOWN: Final = 16_384  # nodes whose translation is remembered


@dataclass(frozen=True, slots=True)
class NodeList:
    """A complete list."""

    nodes: tuple[NodeRecord, ...]
    cluster: str  # ClusterName, "" = not said
    written: int  # Unix seconds of slurmctld's clock


class NodeRequests:
    def __init__(self, rest: Rest, timeout: float) -> None:
        self._rest, self._timeout = rest, timeout

    async def list(self) -> NodeList:
        """Every node that Slurm has."""
        answer = await self._rest.read("nodes/", "nodes/", wire.NodesAnswer, lane=self._rest.node_lists)
        return _listed(answer)

    async def changed(self, since: int) -> NodeList | None:
        """Every node, if any has changed since (`written` of an earlier list); None: none has."""
        found = await self._rest.read_changed(
            "nodes/", "nodes/", wire.NodesAnswer, since, lane=self._rest.node_lists
        )
        return None if found is None else _listed(found)

    async def get(self, name: SlurmNode) -> NodeRecord:
        """Only of a node that Slurm has listed. NotFound: it has none of that name any more."""
        answer = await self._rest.read(
            "node/{name}", f"node/{quote(name)}", wire.NodesAnswer, lane=self._rest.reads
        )
        found = next((node for node in answer.nodes if node.name == name), None)
        if found is None:
            raise ProtocolError(
                f"GET node/{name}: the answer holds {len(answer.nodes)} nodes and not this one"
            )
        return record(found)

    async def drain(
        self,
        name: SlurmNode,
        reason: str,
        *,
        comment: str | None = None,
        over: Callable[[str], bool] = lambda reason: False,
        cluster: str = "",
    ) -> bool:
        """Let nothing more start there. False: somebody has drained it already, and the reason stays theirs; or it is
        the node of another cluster's bridge than `cluster`'s.

        `over`: may a drain with that reason be replaced? `comment` comes with it, or not at all.
        """
        found = await self.get(name)
        known = mark(found.comment) if found.external else None
        if known is not None and cluster not in ("", known.cluster):
            return False
        if "FAIL" in found.states or ("DRAIN" in found.states and not over(found.reason)):
            return False
        body: wire.Body = {"state": ["DRAIN"]}
        if not set_down(found):  # without a reason Slurm keeps theirs
            body["reason"] = translate.fitting(reason)
        await self._update(name, body | _given(comment=comment))
        return True

    async def undrain(self, name: SlurmNode, reason: str, *, comment: str | None = None) -> bool:
        """End the drain that has exactly this reason. False: it has another by now, or there is none."""
        if not _drained(await self.get(name), reason):
            return False
        await self._update(name, {"state": ["UNDRAIN"]} | _given(comment=comment))
        return True

    async def register(self, conf: str) -> bool:
        """Make the node of that line, as slurm.conf would have it. False: one of that name exists."""
        try:
            await self._write("POST", "new/node/", "new/node/", {"node_conf": conf})
        except Conflict:
            return False
        return True

    async def update(
        self,
        name: SlurmNode,
        *,
        features: tuple[str, ...] | None = None,
        topology: str | None = None,
        comment: str | None = None,
    ) -> None:
        """None leaves a field, () and "" clear it. Partitions follow the features when any node comes or goes."""
        body = _given(topology_str=topology, comment=comment)
        if features is not None:
            listed = list(features) or [""]  # an empty list would change nothing
            body |= {"features": listed, "features_act": listed}
        await self._update(name, body)

    async def delete(self, name: SlurmNode, reason: str) -> bool:
        """Take an external node that is idle, and drained with exactly this reason, out of Slurm. False: it isn't so.

        Jobs that ended there must have been forgotten by then, or a slurmctld that starts anew may trip over them;
        Slurm itself asks only for live ones.
        """
        found = await self.get(name)
        if not _drained(found, reason) or found.busy or not found.external:
            return False
        await self._write("DELETE", "node/{name}", f"node/{quote(name)}", None)
        return True

    async def _update(self, name: SlurmNode, body: wire.Body) -> None:
        await self._write("POST", "node/{name}", f"node/{quote(name)}", body)

    async def _write(self, method: str, route: str, path: str, body: wire.Body | None) -> None:
        await self._rest.write(method, route, path, wire.UpdateAnswer, body, self._timeout)


def _drained(found: NodeRecord, reason: str) -> bool:
    return found.drained and "FAIL" not in found.states and found.reason == reason


def _given(**fields: str | None) -> wire.Body:
    return {key: value for key, value in fields.items() if value is not None}


def _listed(answer: wire.NodesAnswer) -> NodeList:
    nodes = tuple(map(record, answer.nodes))
    return NodeList(nodes, answer.meta.slurm.cluster, int(answer.last_update.value))


@lru_cache(maxsize=KNOWN)
def record(found: wire.Node) -> NodeRecord:
    """The same value for a node that did not change."""
    return NodeRecord(
        name=SlurmNode(found.name),
        states=translate.states_of(found.state),
        reason=found.reason,
        reason_user=found.reason_set_by_user,
        reason_at=found.reason_changed_at.value,
        comment=found.comment,
        extra=found.extra,
        features=found.features,
        partitions=found.partitions,
        gres=found.gres,
        cpus=found.cpus,
        memory_mib=found.real_memory,
        threads=found.threads,
        reserved_cores=found.specialized_cores,
        reserved_mib=found.specialized_memory,
        topology=found.topology,
        address=found.address,
        hostname=found.hostname,
        booted=found.boot_time.value,
        last_busy=found.last_busy.value,
        reservation=found.reservation,
    )
