"""Nodes as Slurm shows and changes them, on the world and on the real daemons."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from bridge.core.claims import pinned
from bridge.core.model import JobId, KubeNode, SlurmNode
from bridge.core.nodes import NodeMark, NodeRecord, marked
from bridge.errors import Invalid, ProtocolError, UnknownOutcome
from bridge.slurm.client import SlurmClient
from tests.contract.slurm_fixture import Slurm, eventually, slurm_fixture, spec

__all__ = ["slurm_fixture"]
OURS, THEIRS = "slurm-bridge: cordoned", "fan broken"
FIRST_EXTERNAL = 44


def line(name: str, **changes: str) -> str:
    said = {
        "NodeName": name, "NodeAddr": "127.0.0.1", "State": "EXTERNAL", "CPUs": "16", "SocketsPerBoard": "2",
        "CoresPerSocket": "8", "RealMemory": "32000", "Gres": "gpu:h100:2", "Feature": "bridge,zone-a",
        "GresConf": "count=2,name=gpu,type=h100,file=/dev/nvidia[0-1]",
    }  # fmt: skip
    return " ".join(f"{key}={value}" for key, value in (said | changes).items())


def registers(client: SlurmClient) -> bool:
    return int(client.version.rpartition(".")[2]) >= FIRST_EXTERNAL


async def say(slurm: Slurm, name: SlurmNode, *, method: str = "POST", **body: object) -> int:
    """What a person, an operator or a health check does. Returns the HTTP status."""
    token = slurm.settings.slurmTokenFile.read_text().strip()
    url = f"{slurm.settings.slurmRestApi}/slurm/{slurm.client.version}/"
    transport = httpx.ASGITransport(slurm.world) if slurm.world is not None else None
    async with httpx.AsyncClient(
        base_url=url, transport=transport, headers={"X-SLURM-USER-TOKEN": token}
    ) as they:
        return (await they.request(method, f"node/{name}", json=body)).status_code


@pytest.fixture
async def node(slurm: Slurm) -> AsyncIterator[SlurmNode]:
    """A node of this test's own, where Slurm takes one."""
    await slurm.client.connect()
    if not registers(slurm.client):
        yield slurm.nodes[-1]
        return
    name = SlurmNode(f"contract-{random.randrange(10**6)}")
    assert await slurm.client.nodes.register(line(name))
    yield name
    if any(known.name == name for known in (await slurm.client.nodes.list()).nodes):
        for job in range(slurm.base + 1, slurm.base + slurm.used + 1):
            await slurm.client.cancel(JobId(job))
        assert await say(slurm, name, method="DELETE") == 200


async def found(slurm: Slurm, name: SlurmNode) -> NodeRecord:
    return next(known for known in (await slurm.client.nodes.list()).nodes if known.name == name)


async def test_the_list_says_of_every_node_what_a_read_of_it_says(slurm: Slurm, node: SlurmNode) -> None:
    listed = await slurm.client.nodes.list()
    assert {*slurm.nodes, node} <= {known.name for known in listed.nodes}
    assert listed.cluster
    record = await found(slurm, node)
    assert record == await slurm.client.nodes.get(node)
    assert "slurm-bridge" in record.partitions
    assert record.cpus >= 16
    assert record.memory_mib >= 32000
    assert record.gres.startswith("gpu:h100:")
    assert (record.reason, record.comment, record.extra, record.topology) == ("", "", "", "")
    assert record.hostname == node
    if registers(slurm.client):
        assert record.states == {"IDLE", "EXTERNAL", "DYNAMIC_NORM"}
        assert record.features == ("bridge", "zone-a")
        assert record.address == "127.0.0.1"
        assert not record.booted


async def test_a_list_is_sent_again_only_after_some_node_has_changed(slurm: Slurm, node: SlurmNode) -> None:
    nodes = slurm.client.nodes

    async def quiet() -> bool:
        return await nodes.changed((await nodes.list()).written) is None

    await eventually(quiet)
    listed = await nodes.list()
    assert await nodes.changed(listed.written) is None
    await nodes.drain(node, OURS)
    changed = await nodes.changed(listed.written)
    assert changed is not None
    assert len(changed.nodes) == len(listed.nodes)
    assert [known.name for known in changed.nodes if known.reason == OURS] == [node]
    assert await nodes.undrain(node, OURS)


async def test_a_node_that_slurm_does_not_have_is_no_node(slurm: Slurm) -> None:
    for call in (slurm.client.nodes.get, lambda name: slurm.client.nodes.delete(name, OURS)):
        with pytest.raises(ProtocolError):
            await call(SlurmNode("no-such-node"))


async def test_our_drain_is_ours_to_lift_and_says_who_set_it(slurm: Slurm, node: SlurmNode) -> None:
    assert await slurm.client.nodes.drain(node, OURS)
    record = await found(slurm, node)
    assert record.drained
    assert (record.reason, record.reason_user) == (OURS, "slurm")
    assert record.reason_at > 0
    assert await slurm.client.nodes.undrain(node, OURS)
    record = await found(slurm, node)
    assert not record.drained
    assert record.reason == ""


@pytest.mark.parametrize(
    "theirs",
    [{"state": ["DRAIN"], "reason": THEIRS}, {"reason": THEIRS}, {"state": ["FAIL"], "reason": THEIRS}],
)
async def test_what_somebody_says_over_our_drain_is_kept(
    slurm: Slurm, node: SlurmNode, theirs: dict[str, Any]
) -> None:
    assert await slurm.client.nodes.drain(node, OURS)
    assert await say(slurm, node, **theirs) == 200
    assert not await slurm.client.nodes.undrain(node, OURS)
    assert not await slurm.client.nodes.drain(node, OURS)
    record = await found(slurm, node)
    assert record.reason == THEIRS
    assert record.states & {"DRAIN", "FAIL"}
    assert await say(slurm, node, state=["RESUME"]) == 200


async def test_a_node_of_another_clusters_bridge_is_not_drained(slurm: Slurm, node: SlurmNode) -> None:
    if not registers(slurm.client):
        pytest.skip("this Slurm has no nodes without slurmd")
    theirs = marked("", NodeMark(cluster="another", node=KubeNode("n1")))
    await slurm.client.nodes.update(node, comment=theirs)
    assert not await slurm.client.nodes.drain(node, OURS, cluster="ours")
    assert not (await found(slurm, node)).drained
    assert await slurm.client.nodes.drain(node, OURS, cluster="another")


async def test_a_drain_without_a_reason_over_ours_leaves_our_text(slurm: Slurm, node: SlurmNode) -> None:
    assert await slurm.client.nodes.drain(node, OURS)
    assert await say(slurm, node, state=["DRAIN"]) == 200
    assert (await found(slurm, node)).reason == OURS
    assert await slurm.client.nodes.undrain(node, OURS)


@pytest.mark.parametrize("theirs", [THEIRS, "", "see slurm-bridge: cordoned"])
async def test_a_drain_of_somebody_elses_is_never_ours(slurm: Slurm, node: SlurmNode, theirs: str) -> None:
    assert await say(slurm, node, state=["DRAIN"], reason=theirs) == 200
    assert not await slurm.client.nodes.drain(node, OURS)
    assert not await slurm.client.nodes.undrain(node, OURS)
    record = await found(slurm, node)
    assert record.drained
    assert record.reason == theirs
    assert await say(slurm, node, state=["UNDRAIN"]) == 200


async def test_a_drain_of_ours_takes_another_reason_only_over_the_one_that_it_knows(
    slurm: Slurm, node: SlurmNode
) -> None:
    nodes, other = slurm.client.nodes, "slurm-bridge: not ready"
    assert await nodes.drain(node, OURS)
    assert not await nodes.drain(node, other, over=lambda reason: reason != OURS)
    assert await nodes.drain(node, other, over=lambda reason: reason == OURS, comment="c")
    record = await found(slurm, node)
    assert (record.reason, record.comment) == (other, "c")
    assert await nodes.undrain(node, other, comment="")
    assert (await found(slurm, node)).comment == ""


async def test_a_drained_node_keeps_its_job_and_gives_its_reason_back_while_it_is_busy(
    slurm: Slurm, node: SlurmNode
) -> None:
    job = slurm.id()
    await slurm.client.allocate(job, pinned(spec(), (node,)))
    assert await slurm.client.nodes.drain(node, OURS)
    assert (await found(slurm, node)).busy
    assert "RUNNING" in (await slurm.client.job(job)).states
    assert await slurm.client.nodes.undrain(node, OURS)
    record = await found(slurm, node)
    assert record.busy
    assert (record.drained, record.reason) == (False, "")


async def test_a_node_that_is_down_keeps_our_text_without_our_drain(slurm: Slurm, node: SlurmNode) -> None:
    assert await slurm.client.nodes.drain(node, OURS)
    assert await say(slurm, node, state=["DOWN"], reason=OURS) == 200
    await slurm.client.nodes.undrain(node, OURS)
    record = await found(slurm, node)
    assert "DOWN" in record.states
    assert (record.drained, record.reason) == (False, OURS)
    assert await say(slurm, node, state=["RESUME"]) == 200


async def test_a_node_that_somebody_set_down_is_drained_with_their_reason(
    slurm: Slurm, node: SlurmNode
) -> None:
    assert await say(slurm, node, state=["DOWN"], reason=THEIRS) == 200
    assert await slurm.client.nodes.drain(node, OURS)
    record = await found(slurm, node)
    assert {"DOWN", "DRAIN"} <= record.states
    assert record.reason == THEIRS
    assert await say(slurm, node, state=["RESUME"]) == 200


async def test_the_end_of_the_last_job_is_told(slurm: Slurm, node: SlurmNode) -> None:
    job = slurm.id()
    before = (await found(slurm, node)).last_busy
    await slurm.client.allocate(job, pinned(spec(), (node,)))
    await slurm.client.cancel(job)

    async def over() -> bool:
        record = await found(slurm, node)
        return not record.busy and record.last_busy >= (await slurm.client.job(job)).ended > 0

    await eventually(over)
    assert (await found(slurm, node)).last_busy >= before


# --- external nodes: Slurm 25.11 and later ---------------------------------------------------------


@pytest.fixture
def external(slurm: Slurm, node: SlurmNode) -> SlurmNode:
    if not registers(slurm.client):
        pytest.skip("this Slurm has no nodes without slurmd")
    return node


async def test_a_slurm_without_external_nodes_says_so(slurm: Slurm) -> None:
    await slurm.client.connect()
    if registers(slurm.client):
        pytest.skip("this Slurm has them")
    with pytest.raises(ProtocolError) as unknown:
        await slurm.client.nodes.register(line("k0009"))
    assert unknown.value.status == 404


async def test_a_node_is_registered_once(slurm: Slurm, external: SlurmNode) -> None:
    assert not await slurm.client.nodes.register(line(external, CPUs="8", CoresPerSocket="4"))
    record = await found(slurm, external)
    assert (record.cpus, record.memory_mib, record.gres) == (16, 32000, "gpu:h100:2")
    job = slurm.id()
    await slurm.client.allocate(job, pinned(spec(gres="gres/gpu=2"), (external,)))
    assert (await slurm.client.job(job)).gres == ("gpu:h100:2(IDX:0-1)",)


@pytest.mark.parametrize("broken", [{"GresConf": ""}, {"Nonsense": "1"}, {"State": "IDLE"}])
async def test_a_line_that_slurm_does_not_take_makes_no_node(
    slurm: Slurm, external: SlurmNode, broken: dict[str, str]
) -> None:
    name = SlurmNode(f"{external}-b")
    with pytest.raises((Invalid, UnknownOutcome)):
        await slurm.client.nodes.register(line(name, **broken))
    assert name not in {known.name for known in (await slurm.client.nodes.list()).nodes}


async def test_what_changes_in_place_changes_in_one_write(slurm: Slurm, external: SlurmNode) -> None:
    nodes, mark = slurm.client.nodes, '{"bridge":{"v":1,"cluster":"a","node":"é \'x\'"}}'
    await nodes.update(external, features=("bridge", "zone-b"), topology="default:leaf1", comment=mark)
    record = await found(slurm, external)
    assert (record.features, record.topology, record.comment) == (("bridge", "zone-b"), "default:leaf1", mark)
    await nodes.update(external, comment="")
    record = await found(slurm, external)
    assert (record.features, record.topology, record.comment) == (("bridge", "zone-b"), "default:leaf1", "")
    await nodes.update(external, features=(), topology="")
    record = await found(slurm, external)
    assert (record.features, record.topology) == ((), "")


async def test_a_node_goes_only_when_it_is_drained_by_us_and_idle(slurm: Slurm, external: SlurmNode) -> None:
    nodes = slurm.client.nodes
    assert not await nodes.delete(external, OURS)
    job = slurm.id()
    await slurm.client.allocate(job, pinned(spec(), (external,)))
    await nodes.drain(external, OURS)
    assert not await nodes.delete(external, OURS)
    assert await say(slurm, external, method="DELETE") == 422
    await slurm.client.cancel(job)

    async def idle() -> bool:
        return not (await found(slurm, external)).busy

    await eventually(idle)
    assert not await nodes.delete(external, "slurm-bridge: another")
    assert await nodes.delete(external, OURS)
    assert external not in {known.name for known in (await nodes.list()).nodes}


async def test_a_node_of_slurm_conf_is_never_deleted(slurm: Slurm) -> None:
    hybrid = slurm.facts.get("nodes", {}).get("hybrid")
    if not hybrid:
        pytest.skip("there are none")
    name, nodes = SlurmNode(hybrid[-1]), slurm.client.nodes
    assert await nodes.drain(name, OURS)
    assert not await nodes.delete(name, OURS)
    with pytest.raises(Invalid):
        await nodes._write("DELETE", "node/{name}", f"node/{name}", None)
    assert await nodes.undrain(name, OURS)
