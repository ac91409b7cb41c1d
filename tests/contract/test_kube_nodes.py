"""What is written on Kubernetes nodes, on the world and on the real API server."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest

from bridge.core.constraints import Taint
from bridge.core.model import Condition, KubeNode, Node, Uid
from bridge.errors import Conflict, NotFound
from bridge.kube.events import EventRecorder
from bridge.kube.wire import STRATEGIC_MERGE
from bridge.names import MANAGED_NODE_TAINT, SLURM_NODE_CONDITION, UNAVAILABLE_TAINT
from tests.contract.kube_fixture import Side, side
from tests.worlds.kube_merge import Object

__all__ = ["side"]
SINCE = 1_796_040_000.0
DRAINED = Condition(
    type=SLURM_NODE_CONDITION, status="False", reason="Drained", message="fan", probed=SINCE, changed=SINCE
)
OURS = Taint(UNAVAILABLE_TAINT, "", "NoSchedule")
MANAGED = Taint(MANAGED_NODE_TAINT, "slurm-bridge", "NoSchedule")
THEIRS = {
    "key": "example.com/repair",
    "value": "x",
    "effect": "NoExecute",
    "timeAdded": "2026-11-30T12:00:00Z",
}


@pytest.fixture
async def node(side: Side) -> AsyncIterator[Node]:
    """One that no kubelet runs."""
    name = f"contract-{uuid.uuid4().hex[:8]}"
    body: Object = {"metadata": {"name": name}, "spec": {"taints": [THEIRS]}}
    await side.must("POST", "/api/v1/nodes", body)
    said = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
    await change(side, f"{name}/status", {"status": {"conditions": [said]}})
    yield await side.client.node(KubeNode(name))
    await side.must("DELETE", f"/api/v1/nodes/{name}")


async def change(side: Side, path: str, patch: Object) -> Object:
    """What kubelet, a controller or a person does."""
    return await side.must("PATCH", f"/api/v1/nodes/{path}", patch, content_type=STRATEGIC_MERGE)


async def raw(side: Side, node: Node) -> Object:
    return await side.must("GET", f"/api/v1/nodes/{node.name}")


def taints(found: Object) -> list[Object]:
    """Without those of the node controller, which comes and goes as it likes."""
    every: list[Object] = found["spec"].get("taints") or []
    return [t for t in every if not t["key"].startswith("node.kubernetes.io/")]


async def tainted(
    side: Side, node: Node, *, add: tuple[Taint, ...] = (), remove: tuple[Taint, ...] = ()
) -> None:
    """The node controller writes as well: then the next look tries again."""
    while True:
        try:
            await side.client.taint_node(node.name, node.uid, add=add, remove=remove)
        except Conflict:
            continue
        return


async def test_our_condition_comes_and_goes_and_others_stay(side: Side, node: Node) -> None:
    answer = await side.client.set_node_condition(node.name, node.uid, DRAINED)
    assert answer.mirrored is not None
    assert (answer.mirrored.reason, answer.mirrored.changed) == ("Drained", SINCE)
    found = {c["type"]: c for c in (await raw(side, node))["status"]["conditions"]}
    assert found[SLURM_NODE_CONDITION]["lastHeartbeatTime"] == "2026-11-30T12:00:00Z"
    assert found["Ready"]["reason"] == "KubeletReady"
    usable = Condition(type=SLURM_NODE_CONDITION, status="True", reason="Usable", message="Slurm can use it")
    again = await side.client.set_node_condition(node.name, node.uid, usable)
    assert again.mirrored is not None
    assert (again.mirrored.status, again.mirrored.message) == ("True", "Slurm can use it")
    gone = await side.client.drop_node_condition(node.name, node.uid, SLURM_NODE_CONDITION)
    assert gone.mirrored is None
    assert "Ready" in {c["type"] for c in (await raw(side, node))["status"]["conditions"]}
    assert (await side.client.drop_node_condition(node.name, node.uid, SLURM_NODE_CONDITION)).mirrored is None


async def test_a_taint_of_ours_comes_and_goes_and_others_stay_word_for_word(side: Side, node: Node) -> None:
    await tainted(side, node, add=(OURS, MANAGED))
    assert taints(await raw(side, node)) == [
        THEIRS,
        {"key": UNAVAILABLE_TAINT, "effect": "NoSchedule"},
        {"key": MANAGED_NODE_TAINT, "value": "slurm-bridge", "effect": "NoSchedule"},
    ]
    await tainted(side, node, remove=(OURS,))
    await tainted(side, node, add=(Taint(MANAGED_NODE_TAINT, "other", "NoSchedule"),))
    assert taints(await raw(side, node)) == [
        THEIRS,
        {"key": MANAGED_NODE_TAINT, "value": "other", "effect": "NoSchedule"},
    ]
    await tainted(
        side,
        node,
        remove=(Taint(MANAGED_NODE_TAINT, "", "NoSchedule"), Taint("example.com/repair", "", "NoExecute")),
    )
    assert taints(await raw(side, node)) == []


async def test_a_taint_that_is_there_is_not_written_again(side: Side, node: Node) -> None:
    await tainted(side, node, add=(OURS,))
    writes = len(side.writes())
    await tainted(side, node, add=(OURS,), remove=(MANAGED,))
    assert len(side.writes()) == writes


async def test_a_label_that_is_back_keeps_the_taint(side: Side, node: Node) -> None:
    """Whoever takes it saw the node without the label: that view is old."""
    await tainted(side, node, add=(MANAGED,))
    await change(side, node.name, {"metadata": {"labels": {"example.com/back": "true"}}})
    with pytest.raises(Conflict, match="has the label"):
        await side.client.taint_node(node.name, node.uid, remove=(MANAGED,), unless="example.com/back")
    assert MANAGED.key in {taint["key"] for taint in taints(await raw(side, node))}


async def test_of_two_who_change_taints_at_once_nobodys_change_is_lost(side: Side, node: Node) -> None:
    """Every loser looks again, as the mirror does."""
    wanted = [Taint(f"example.com/t{i}", "", "NoSchedule") for i in range(6)]
    await asyncio.gather(*(tainted(side, node, add=(taint,)) for taint in wanted))
    assert {t["key"] for t in taints(await raw(side, node))} == {THEIRS["key"], *(t.key for t in wanted)}


async def test_a_node_that_was_made_anew_is_not_written_to(side: Side, node: Node) -> None:
    other = Uid(str(uuid.uuid4()))
    for write in (
        side.client.set_node_condition(node.name, other, DRAINED),
        side.client.drop_node_condition(node.name, other, SLURM_NODE_CONDITION),
        side.client.taint_node(node.name, other, add=(OURS,)),
    ):
        with pytest.raises(Conflict):
            await write
    with pytest.raises(NotFound):
        await side.client.set_node_condition(KubeNode("no-such-node"), node.uid, DRAINED)


async def test_a_cordon_is_seen_and_a_write_of_ours_leaves_it(side: Side, node: Node) -> None:
    await change(side, node.name, {"spec": {"unschedulable": True}})
    assert (await side.client.set_node_condition(node.name, node.uid, DRAINED)).cordoned
    await tainted(side, node, add=(OURS,))
    await tainted(side, node, remove=(OURS,))
    assert (await side.client.node(node.name)).cordoned


async def test_an_event_tells_on_the_node(side: Side, node: Node) -> None:
    assert await EventRecorder(side.client, "contract").record(node, "Drained", "why", kind="Warning")
