"""`slurm-bridge nodes plan`: whom the taint managed-node would evict, and where the bridge does not set it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bridge.core import evictions
from bridge.core.constraints import Constraints, Taint, Toleration
from bridge.core.evictions import Plan, Victim
from bridge.core.model import KubeNode, Pod
from bridge.core.nodetable import Sides, judged
from bridge.core.steps import SetNodeTaints
from bridge.names import MANAGED_NODE_TAINT, SCHEDULER_NAME, SLURM_NODENAME_LABEL
from tests.core.nodeworld import World, by_hand, kube, operated, other, record, slurmd

OURS = frozenset({SCHEDULER_NAME})
K1 = KubeNode("n1")
NO_EXECUTE = Taint(MANAGED_NODE_TAINT, "slurm-bridge", "NoExecute")


def evicting(*things: object) -> World:
    world = World.of(*things)  # type: ignore[arg-type]
    world.settings = world.settings.model_copy(update={"taintEffect": "NoExecute"})
    return world


def plan(world: World, *ours: Pod) -> Plan:
    pods = (*(pod for pods in world.others.values() for pod in pods), *ours)
    seen = Sides(nodes=tuple(world.nodes.values()), pods=pods, records=tuple(world.records.values()))
    around = world.around()
    found = judged(seen, around, world.settings, OURS)
    return evictions.plan(found, pods, around, world.settings, OURS)


def tainted(world: World) -> set[KubeNode]:
    """By the bridge itself."""
    steps = [step for one in world.see().values() for step in one.steps if isinstance(step, SetNodeTaints)]
    return {step.node for step in steps if NO_EXECUTE in step.add}


def victim(pod: Pod, *, system: bool = False, ours: bool = False) -> Victim:
    return Victim(pod=pod.ref, system=system, ours=ours)


def test_every_pod_that_the_taint_would_evict_is_listed_and_no_other() -> None:
    web, dcgm = other("web", "n1", tolerates=False), other("dcgm", "n1")
    done = replace(other("done", "n1", tolerates=False), phase="Succeeded")
    world = evicting(kube("n1"), record("n1"))
    world.others[K1] = (web, dcgm, done)
    found = plan(world)
    (one,) = found.nodes
    assert one.evicts == (victim(web),)
    assert found.applies
    assert tainted(world) == {K1}
    shown = evictions.text(found).splitlines()
    assert shown[1].split() == ["n1", "n1", "set", "monitoring/web", "-"]
    assert shown[-2:] == ["1 pod would be evicted.", "May be applied."]


@pytest.mark.parametrize("seconds", [0, 300])
def test_a_pod_that_tolerates_it_for_a_while_only_is_evicted_all_the_same(seconds: int) -> None:
    soon = Constraints(tolerations=(Toleration(operator="Exists", seconds=seconds),))
    stays = Constraints(tolerations=(Toleration(operator="Exists"), Toleration(operator="Exists", seconds=1)))
    leaves = other("leaves", "n1", constraints=soon)
    world = evicting(kube("n1"), record("n1"))
    world.others[K1] = (leaves, other("stays", "n1", constraints=stays))
    assert plan(world).nodes[0].evicts == (victim(leaves),)
    world.others[K1] = (replace(leaves, namespace="kube-system"),)
    assert not plan(world).applies
    assert tainted(world) == set()


def test_a_pod_of_the_system_or_a_slurmd_is_refused_here_and_by_the_bridge() -> None:
    names = [KubeNode(f"n{i}") for i in range(1, 5)]
    world = evicting(*(kube(n, labels={}) for n in names), *(operated(n) for n in names))
    for name in names:
        world.others[name] = (slurmd("gpu", name),)
    dns = other("dns", "n1", tolerates=False, namespace="kube-system")
    world.others[names[0]] += (dns, other("web", "n1", tolerates=False))
    world.others[names[1]] = (slurmd("gpu", "n2", tolerates=False),)
    world.others[names[2]] = ()
    found = plan(world)
    refused = {one.node: one.refused for one in found.nodes}
    assert not found.applies
    assert "it would evict kube-system/dns" in refused[names[0]]
    assert "slurm/gpu does not tolerate it" in refused[names[1]]
    assert "its slurmd pod is not there" in refused[names[2]]
    assert refused[names[3]] == ""
    assert tainted(world) == {names[3]}
    assert victim(dns, system=True) in found.nodes[0].evicts
    shown = evictions.text(found)
    assert "kube-system/dns (system)" in shown
    assert shown.endswith("Not to be applied as it stands: 3 nodes would stay without it.")


def test_a_pod_of_ours_without_the_toleration_is_listed_too() -> None:
    world = evicting(kube("n1"), record("n1"))
    mine = replace(other("train", "n1", tolerates=False), scheduler=SCHEDULER_NAME)
    found = plan(world, mine, replace(mine, name="good", constraints=other("x", "n1").constraints))
    assert found.nodes[0].evicts == (victim(mine, ours=True),)
    assert "1 of them of Slurm's" in evictions.text(found)


def test_a_taint_that_is_there_keeps_its_effect_and_evicts_nobody() -> None:
    standing = Taint(MANAGED_NODE_TAINT, "slurm-bridge", "NoSchedule")
    world = evicting(kube("n1", taints=(standing,)), record("n1"))
    world.others[K1] = (other("web", "n1", tolerates=False),)
    found = plan(world)
    assert [(one.kept, one.evicts) for one in found.nodes] == [(str(standing), ())]
    assert tainted(world) == set()
    assert f"kept: {standing}" in evictions.text(found)


def test_only_nodes_that_slurm_has_or_is_to_get_are_in_the_plan() -> None:
    world = evicting(
        kube("n1"), kube("n2", labels={}), kube("n3", labels={}), by_hand("n3"), record("n4"), kube("n5"),
        record("n5", cluster="another"), kube("n6"), kube("n7", labels={SLURM_NODENAME_LABEL: "n6"}), record("n6"),
    )  # fmt: skip
    assert [one.node for one in plan(world).nodes] == ["n1", "n3"]
    world.settle()
    assert {name for name, node in world.nodes.items() if NO_EXECUTE in node.taints} == {"n1", "n3"}


def test_with_another_effect_nobody_is_evicted_and_that_is_said() -> None:
    world = World.of(kube("n1"), record("n1"))
    world.others[K1] = (
        other("web", "n1", tolerates=False),
        other("dns", "n1", tolerates=False, namespace="kube-system"),
    )
    found = plan(world)
    assert found.applies
    assert found.nodes[0].evicts == ()
    assert evictions.text(found).splitlines()[-3:] == [
        f"1 node would get {MANAGED_NODE_TAINT}=slurm-bridge:NoSchedule, 0 keep theirs.",
        "Nobody is evicted: NoSchedule lets pods be that run.",
        "May be applied.",
    ]
    body = json.loads(json.dumps(evictions.body(found)))
    assert (body["may_be_applied"], body["nodes"][0]["node"]) == (True, "n1")


def test_where_no_taint_is_set_the_plan_is_empty() -> None:
    world = evicting(kube("n1"), record("n1"))
    world.settings = world.settings.model_copy(update={"taintNodes": False})
    found = plan(world)
    assert (found.taint, found.nodes, found.applies) == (None, (), True)
    assert "taintNodes is false" in evictions.text(found)
