"""The answers that pods share, and which changes of nodes, pods and storage make a waiting pod look again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.candidates import Candidates
from bridge.core import fit as core_fit
from bridge.core.constraints import (
    Constraints,
    HostPort,
    Requirement,
    StorageClass,
    Taint,
    Term,
    Toleration,
    Volume,
    VolumeClaim,
)
from bridge.core.fit import Fit, Taken, needs, obstacle
from bridge.core.model import Container, KubeNode, Node, Partition, Pod, Resources, SlurmNode, Uid
from bridge.kube.store import Store
from bridge.names import SCHEDULER_NAME
from bridge.twins import Twins, nodes_of
from tests.core.build import pod

PARTITION = "gpu"
ZONE = (Term((Requirement("zone", "In", ("a",)),)),)
PORT = Constraints(ports=(HostPort(80),))


class Cluster:
    """Nodes n1 … of Kubernetes, and what Slurm has in its one partition."""

    def __init__(self, nodes: int = 3, known: tuple[str, ...] | None = ("n1", "n2", "n3")) -> None:
        self.store = Store({SCHEDULER_NAME})
        self.known = frozenset(map(SlurmNode, known)) if known is not None else None
        self.candidates = Candidates(self.store, Twins(self.store.nodes).nodes, lambda _: self.known)
        for i in range(1, nodes + 1):
            self.store.nodes.put(Node(name=KubeNode(f"n{i}")))

    def change(self, name: str, **changes: Any) -> None:
        node = self.store.nodes.get(name)
        assert node is not None
        self.store.nodes.put(replace(node, **changes))

    def put(self, name: str, **changes: Any) -> Pod:
        version = str(self.store.pods.version + 1000)
        found = pod(name=name, **{"uid": Uid(name), "version": version, **changes})
        self.store.pods.put(found)
        return found

    def fit(self, *pods: Pod) -> Fit:
        return self.candidates.fit(pods, PARTITION)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def label(**labels: str) -> Constraints:
    return Constraints(selector=tuple(labels.items()))


def test_nodes_that_cannot_take_the_pod_are_excluded_by_their_slurm_names(cluster: Cluster) -> None:
    cluster.change("n2", cordoned=True)
    cluster.change("n3", taints=(Taint("gpu", "", "NoSchedule"),))
    found = cluster.fit(cluster.put("p"))
    assert found.excluded == ("n2", "n3")
    assert found.obstacles == {
        "n2": "is cordoned in Kubernetes",
        "n3": "has a taint that the pod does not tolerate (gpu:NoSchedule)",
    }
    assert found.hopeless == ""


def test_a_node_of_the_partition_that_kubernetes_lacks_is_excluded_too() -> None:
    cluster = Cluster(nodes=1, known=("n1", "login"))
    assert cluster.fit(cluster.put("p")).excluded == ("login",)


def test_what_the_partition_has_is_all_that_may_be_excluded_and_all_that_may_give_hope() -> None:
    cluster = Cluster(nodes=4, known=("n1", "n2"))
    cluster.change("n1", cordoned=True)
    cluster.change("n2", ready=False)
    found = cluster.fit(cluster.put("p"))
    assert found.excluded == ("n1", "n2")
    assert found.hopeless == (
        "no node of partition gpu can take the pod:"
        " 1 node is cordoned in Kubernetes; 1 node is not Ready in Kubernetes"
    )


def test_a_machine_whose_slurmds_offer_too_much_together_is_excluded_until_they_do_not(
    cluster: Cluster,
) -> None:
    waits = cluster.put("p")
    assert cluster.fit(waits).excluded == ()
    cluster.candidates.stirred()
    cluster.candidates.overcommitted(frozenset({SlurmNode("n1"), SlurmNode("n2")}))
    assert cluster.candidates.stirred() == [waits.uid]
    assert cluster.fit(waits).excluded == ("n1", "n2")
    cluster.candidates.overcommitted(frozenset({SlurmNode("n1"), SlurmNode("n2")}))
    assert cluster.candidates.stirred() == []
    cluster.change("n3", cordoned=True)
    assert cluster.fit(waits).hopeless == (
        "no node of partition gpu can take the pod: 2 nodes are on a machine whose slurmds offer more together than it"
        " has; 1 node is cordoned in Kubernetes"
    )
    cluster.candidates.overcommitted(frozenset())
    assert cluster.fit(waits).excluded == ("n3",)


def sized(cpus: str) -> dict[str, Any]:
    return {"containers": (Container(name="c", resources=Resources(requests={"cpu": cpus})),)}


def test_what_pods_that_slurm_does_not_know_take_on_a_node_is_not_left_for_ours(cluster: Cluster) -> None:
    for name in ("n1", "n2", "n3"):
        cluster.change(name, allocatable={"cpu": "4"})
    waits = cluster.put("p", **sized("3500m"))
    assert cluster.fit(waits).excluded == ()
    cluster.candidates.stirred()
    other = cluster.put("other", scheduler="other", node=KubeNode("n1"), **sized("1"))
    cluster.put("own", node=KubeNode("n2"), **sized("1"))  # of these Slurm knows
    assert cluster.candidates.stirred() == [waits.uid]
    assert cluster.fit(waits).obstacles == {
        "n1": "has too little left beside the pods that Slurm does not count (cpu)"
    }
    cluster.candidates.tight(frozenset({KubeNode("n2")}))
    assert cluster.candidates.stirred() == [waits.uid]
    assert cluster.fit(waits).excluded == ("n1", "n2"), "there Slurm offers more than kubelet can hold"
    cluster.store.pods.put(replace(other, phase="Succeeded", version="9999"))
    cluster.candidates.tight(frozenset())
    assert cluster.fit(waits).excluded == ()


def test_what_the_pod_itself_excludes_counts_when_no_node_is_left(cluster: Cluster) -> None:
    cluster.change("n1", cordoned=True)
    cluster.change("n2", cordoned=True)
    waits = cluster.put("p")
    own = (SlurmNode("n2"), SlurmNode("n3"))
    assert cluster.candidates.fit([waits], PARTITION, own[:1]).hopeless == ""
    assert cluster.candidates.fit([waits], PARTITION, own).hopeless == (
        "no node of partition gpu can take the pod:"
        " 2 nodes are cordoned in Kubernetes; 1 node is excluded by the option exclude-nodes"
    )


def test_of_a_partition_that_nobody_has_read_nothing_is_excluded_by_itself() -> None:
    cluster = Cluster(nodes=2, known=None)
    cluster.change("n1", cordoned=True)
    waits = cluster.put("p")
    assert cluster.fit(waits) == Fit({SlurmNode("n1"): "is cordoned in Kubernetes"}, None)
    cluster.change("n2", cordoned=True)
    assert cluster.fit(waits).hopeless == "no node can take the pod: 2 nodes are cordoned in Kubernetes"


def test_several_partitions_are_all_of_their_nodes_if_all_are_known() -> None:
    a, b = frozenset({SlurmNode("n1")}), frozenset({SlurmNode("n2")})
    known = {"a": Partition(name="a", nodes=a), "b": Partition(name="b", nodes=b), "c": Partition(name="c")}
    assert nodes_of(known, "a") == a
    assert nodes_of(known, "a,b") == a | b
    assert nodes_of(known, "a,b") is nodes_of(known, "a,b")
    assert nodes_of(known, "a,c") is nodes_of(known, "a,d") is nodes_of(known, "") is None


def test_a_cluster_without_nodes_says_nothing() -> None:
    cluster = Cluster(nodes=0, known=None)
    assert cluster.fit(cluster.put("p")).hopeless == ""


def test_pods_of_equal_needs_share_one_answer_and_are_asked_about_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def counted(wants: core_fit.Needs, node: Node, taken: Taken) -> str:
        asked.append(node.name)
        return obstacle(wants, node, taken)

    monkeypatch.setattr(core_fit, "obstacle", counted)
    cluster.change("n1", cordoned=True)
    fits = [cluster.fit(cluster.put(f"p{i}", constraints=label(disk="ssd"))) for i in range(50)]
    assert len({id(found) for found in fits}) == 1
    assert len(asked) == 3
    cluster.change("n1", cordoned=False)
    assert asked[3:] == ["n1"]


def test_a_change_that_matters_to_nobody_wakes_nobody(cluster: Cluster) -> None:
    cluster.fit(cluster.put("ssd", constraints=label(disk="ssd")))
    cluster.change("n1", labels={"colour": "red"}, ready_since=5.0)
    assert cluster.candidates.stirred() == []
    cluster.change("n1", labels={"disk": "ssd"})
    assert cluster.candidates.stirred() == ["ssd"]
    assert cluster.candidates.stirred() == []


def test_a_label_wakes_only_those_who_ask_for_it(cluster: Cluster) -> None:
    cluster.fit(cluster.put("ssd", constraints=label(disk="ssd")))
    cluster.fit(cluster.put("any"))
    cluster.change("n1", labels={"disk": "ssd"})
    assert cluster.candidates.stirred() == ["ssd"]


@pytest.mark.parametrize("change", ["comes", "goes"])
def test_a_node_that_comes_or_goes_wakes_all_who_wait(cluster: Cluster, change: str) -> None:
    waits = cluster.put("p")
    cluster.fit(waits)
    if change == "comes":
        cluster.store.nodes.put(Node(name=KubeNode("n4")))
    else:
        cluster.store.nodes.drop(Node(name=KubeNode("n3")))
    assert cluster.candidates.stirred() == ["p"]
    assert cluster.fit(waits).excluded == (() if change == "comes" else ("n3",))


def test_a_pod_that_has_a_node_is_asked_about_no_longer(cluster: Cluster) -> None:
    waits = cluster.put("p")
    cluster.fit(waits)
    bound = cluster.put("p", node=KubeNode("n1"), version="99999")
    cluster.change("n1", cordoned=True)
    assert cluster.candidates.stirred() == []
    assert cluster.fit(bound) == Fit()


def test_a_host_port_is_free_again_when_its_pod_has_ended(cluster: Cluster) -> None:
    waits = cluster.put("waits", constraints=PORT)
    assert cluster.fit(waits).excluded == ()
    theirs = {"scheduler": "default-scheduler", "constraints": PORT, "node": KubeNode("n1")}
    cluster.put("theirs", version="1", **theirs)
    assert cluster.candidates.stirred() == ["waits"]
    assert cluster.fit(waits).obstacles == {"n1": "has host port 80/TCP in use by another pod"}
    cluster.put("theirs", version="2", phase="Succeeded", **theirs)
    assert cluster.candidates.stirred() == ["waits"]
    assert cluster.fit(waits).excluded == ()


def test_a_full_node_takes_pods_again_when_one_goes(cluster: Cluster) -> None:
    cluster.change("n1", allocatable={"pods": "2"})
    waits = cluster.put("waits")
    cluster.fit(waits)
    cluster.put("a", node=KubeNode("n1"))
    assert cluster.candidates.stirred() == []
    last = cluster.put("b", node=KubeNode("n1"))
    assert cluster.candidates.stirred() == ["waits"]
    assert cluster.fit(waits).excluded == ("n1",)
    cluster.store.pods.drop(last)
    assert cluster.candidates.stirred() == ["waits"]
    assert cluster.fit(waits).excluded == ()


def test_a_gang_avoids_what_one_of_its_pods_cannot_use(cluster: Cluster) -> None:
    cluster.change("n1", labels={"disk": "ssd"})
    cluster.change("n2", labels={"disk": "ssd"}, taints=(Taint("gpu", "", "NoSchedule"),))
    leader = cluster.put("leader", constraints=Constraints(tolerations=(Toleration(operator="Exists"),)))
    worker = cluster.put("worker", constraints=label(disk="ssd"))
    assert cluster.fit(leader, worker).excluded == ("n2", "n3")
    cluster.change("n1", cordoned=True)
    assert cluster.candidates.stirred() == ["worker"]
    assert "no node of partition gpu" in cluster.fit(leader, worker).hopeless


def test_pods_of_one_job_that_share_no_node_are_told_that_they_share_one_list_and_what_helps(
    cluster: Cluster,
) -> None:
    for name in ("n1", "n2"):
        cluster.change(name, labels={"host": name})
    first = cluster.put("first", constraints=label(host="n1"))
    others = [cluster.put(name, constraints=label(host="n2")) for name in ("second", "third")]
    said = cluster.fit(first, *others).hopeless
    assert said.startswith(
        "the pods of one job share one list of excluded nodes, and no node of partition gpu can take all of them: "
        "pod default/first: 2 nodes do not match the pod's nodeSelector (host=n1); "
        "pod default/second and 1 other: 2 nodes do not match the pod's nodeSelector (host=n2). "
    )
    assert "sizes: own" in said
    assert cluster.fit(first).hopeless == cluster.fit(*others).hopeless == ""


def test_of_the_pods_of_a_job_the_one_that_no_node_can_take_is_named(cluster: Cluster) -> None:
    cluster.change("n1", labels={"disk": "ssd"})
    well = cluster.put("well", constraints=label(disk="ssd"))
    lost = cluster.put("lost", constraints=label(disk="none"))
    sentence = "no node of partition gpu can take pod default/lost: 3 nodes do not match"
    assert cluster.fit(well, lost).hopeless.startswith(sentence)
    alone = cluster.candidates.fit([lost], PARTITION, named=True)
    assert alone.hopeless.startswith(sentence)
    own = (SlurmNode("n1"),)
    assert cluster.candidates.fit([well, lost], PARTITION, own).hopeless.startswith(
        "no node of partition gpu can take pod default/well: 2 nodes do not match"
    )


def test_a_volume_decides_as_soon_as_it_is_read(cluster: Cluster) -> None:
    cluster.change("n1", labels={"zone": "a"})
    waits = cluster.put("p", volume_claims=("data",))
    assert "default/data" in cluster.candidates.unread([waits])
    assert cluster.fit(waits).excluded == (), "what can't be read excludes nothing"
    store = cluster.store
    store.storage_classes.put(StorageClass(name="fast", late=True, reach=ZONE))
    store.claims.put(VolumeClaim(namespace="default", name="data", storage_class="fast"))
    assert cluster.candidates.stirred() == ["p"]
    assert cluster.fit(waits).excluded == ("n2", "n3")
    store.claims.put(VolumeClaim(namespace="default", name="data", storage_class="fast", volume="v"))
    assert cluster.candidates.stirred() == ["p"]
    assert cluster.fit(waits).excluded == ()
    elsewhere = (Term((Requirement("zone", "In", ("b",)),)),)
    store.volumes.put(Volume(name="v", reach=elsewhere))
    assert cluster.candidates.stirred() == ["p"]
    assert cluster.fit(waits).hopeless.endswith("3 nodes do not reach a volume of the pod")
    store.volumes.put(Volume(name="other", reach=elsewhere))
    assert cluster.candidates.stirred() == []
    for table in (store.claims, store.volumes, store.storage_classes):
        table.begin()
        table.end()
    assert cluster.candidates.unread([waits]).endswith("default/data, which does not exist")
    store.storage_denied = lambda: True
    assert cluster.candidates.unread([waits]) == "", "nothing is waited for that may not be read"
    store.storage_denied = lambda: False
    store.claims.put(VolumeClaim(namespace="default", name="data", storage_class="fast"))
    assert cluster.candidates.unread([waits]) == ""


def test_nothing_is_kept_of_pods_that_are_gone(cluster: Cluster) -> None:
    made = [cluster.put(f"p{i}", constraints=label(disk=str(i)), volume_claims=(f"c{i}",)) for i in range(5)]
    for one in made:
        cluster.fit(one)
        cluster.store.pods.drop(one)
    candidates = cluster.candidates
    kept = (candidates._answers, candidates._asked, candidates._users, candidates._uses)
    assert kept == ({}, {}, {}, {})


CHANGES = st.tuples(
    st.sampled_from(("cordon", "label", "taint", "port", "bind", "end", "go", "come", "join")),
    st.integers(1, 3),
)


def _apply(cluster: Cluster, changes: list[tuple[str, int]]) -> Iterator[None]:
    for step, (what, number) in enumerate(changes):
        name = f"n{number}"
        node = cluster.store.nodes.get(name)
        other = {"scheduler": "other", "node": KubeNode(name), "version": str(step + 1), "constraints": PORT}
        match what:
            case "come":
                cluster.store.nodes.put(Node(name=KubeNode(name), allocatable={"pods": "2"}))
            case "join" if cluster.known is not None:  # the partition has one more, or one less
                cluster.known ^= {SlurmNode(name)}
            case "port" | "end":
                cluster.put(f"theirs-{number}", phase="Failed" if what == "end" else "Running", **other)
            case "bind":
                cluster.put(f"more-{step}", **{**other, "constraints": Constraints()})
            case "go" if node is not None:
                cluster.store.nodes.drop(node)
            case "cordon" if node is not None:
                cluster.change(name, cordoned=not node.cordoned)
            case "label" if node is not None:
                cluster.change(name, labels={} if node.labels else {"disk": "ssd"})
            case "taint" if node is not None:
                cluster.change(name, taints=() if node.taints else (Taint("a", "", "NoExecute"),))
        yield


@given(st.lists(CHANGES, max_size=20))
def test_what_is_kept_up_change_by_change_is_what_a_fresh_look_finds_and_every_difference_is_told(
    changes: list[tuple[str, int]],
) -> None:
    cluster = Cluster()
    pods = [
        cluster.put("any"),
        cluster.put("ssd", constraints=label(disk="ssd")),
        cluster.put("port", constraints=PORT),
        cluster.put("bold", constraints=Constraints(tolerations=(Toleration("a", "Exists"),))),
    ]
    before = {one.uid: cluster.fit(one) for one in pods}
    for _ in _apply(cluster, changes):
        told = set(cluster.candidates.stirred())
        after = {one.uid: cluster.fit(one) for one in pods}
        assert {uid for uid, found in after.items() if found != before[uid]} <= told
        before = after
    there = [p for p in cluster.store.pods if p.node and not p.ended]
    for one in pods:
        for node in cluster.store.nodes:
            here = [p for p in there if p.node == node.name]
            taken = Taken(len(here), [port for p in here for port in p.constraints.ports])
            assert before[one.uid].obstacles.get(SlurmNode(node.name), "") == obstacle(
                needs(one), node, taken
            )
