"""Which Slurm node is which Kubernetes node, where nobody has labelled them alike."""

from __future__ import annotations

import json
from typing import Any

from bridge.core.model import KubeNode, Node, SlurmNode
from bridge.core.nodes import NodeRecord
from bridge.core.twins import Naming, by_slurm_name, names, naming
from bridge.names import SLURM_NODENAME_LABEL


def record(name: str, host: str = "", **more: Any) -> NodeRecord:
    comment = (
        json.dumps({"namespace": "slurm", "podName": f"slurm-worker-{name}", "node": host}) if host else ""
    )
    return NodeRecord(
        name=SlurmNode(name), states=frozenset({"IDLE", *more.pop("states", ())}), comment=comment, **more
    )


def node(name: str, **labels: str) -> Node:
    return Node(name=KubeNode(name), labels=labels)


def twins(said: Naming | None, *nodes: Node) -> dict[str, str]:
    return {name: twin.name for name, twin in by_slurm_name(nodes, said)[0].items()}


def test_a_label_comes_before_the_operators_comment_and_that_before_the_name() -> None:
    said = naming([record("gpu-0", "ip-1.example"), record("ip-1"), record("ip-2"), record("other")])
    labelled = node("ip-1.example", **{SLURM_NODENAME_LABEL: "other"})
    assert names(labelled, said) == ("other", "gpu-0")
    assert names(node("ip-1.example"), said) == ("gpu-0",)
    assert names(node("ip-2.example"), said) == ("ip-2",), "cut at its first dot"
    assert names(node("other"), said) == ("other",)


def test_two_slurmds_of_one_machine_are_both_its() -> None:
    said = naming([record("a-0", "k1"), record("a-1", "k1")])
    assert twins(said, node("k1")) == {"a-0": "k1", "a-1": "k1"}


def test_a_comment_that_is_lost_is_no_move_and_one_that_says_otherwise_is() -> None:
    said = naming([record("gpu-0", "k1"), record("gpu-1", "k2")])
    lost = naming([record("gpu-0"), record("gpu-1", "k2")], said)
    assert twins(lost, node("k1"), node("k2")) == {"gpu-0": "k1", "gpu-1": "k2"}
    moved = naming([record("gpu-0", "k3"), record("gpu-1", "k2")], lost)
    assert twins(moved, node("k1"), node("k2"), node("k3")) == {"gpu-0": "k3", "gpu-1": "k2"}


def test_a_node_that_slurm_does_not_have_by_its_own_name_stands_for_no_other() -> None:
    """After a restart whose first list lacks a comment, pods on k1 must not look as if their job were elsewhere."""
    assert twins(naming([record("gpu-0")]), node("k1")) == {}
    assert twins(None, node("k1")) == {"k1": "k1"}, (
        "where Slurm's nodes are not read, its own name is all there is"
    )


def test_a_name_that_two_nodes_claim_is_neithers_and_said() -> None:
    said = naming([record("gpu-0", "k1")])
    found, refused = by_slurm_name([node("k1"), node("k2", **{SLURM_NODENAME_LABEL: "gpu-0"})], said)
    assert found == {}
    assert refused == ("k1 and k2 both claim the Slurm name gpu-0",)


def test_an_external_node_is_not_known_by_a_name_that_is_cut() -> None:
    assert twins(naming([record("k1", states={"EXTERNAL"})]), node("k1.example")) == {}
