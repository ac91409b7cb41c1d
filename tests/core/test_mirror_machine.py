"""Any order of what admins, slurm-operator, health checks, kubelet and the bridge do: each one's last word stands.

The machine keeps, beside both tiny clusters, only who said what last of each node. After every settling the nodes are
what these words say, and a second look has nothing to do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from bridge.core.constraints import Taint
from bridge.core.drains import Cause, standing
from bridge.core.model import KubeNode, Node, SlurmNode
from bridge.core.nodes import mark
from bridge.names import EXTERNAL_NODE_LABEL, MANAGED_NODE_TAINT, UNAVAILABLE_TAINT
from tests.core.nodeworld import CLUSTER, World, by_hand, kube, operated, other, record, slurmd

EXTERNAL = ("e1", "e2")
WITH_SLURMD = ("o1", "h1")
HERE = EXTERNAL + WITH_SLURMD
FOREIGN = SlurmNode("f1")  # of another cluster's bridge, on the same slurmctld
HEALTH = "health check: XID 79"
MIDDLE = "see slurm-bridge: cordoned in Kubernetes"
WORDS = ("bad disk", HEALTH, MIDDLE, "slurm-operator: pod cordoned", "Slurm-bridge: no", "")
DEVICES = "slurm-bridge: node not Ready; containers of default/a may still run"
PRESSURE = Taint("node.kubernetes.io/disk-pressure", "", "NoSchedule")
THEIRS = Taint("example.com/theirs", "", "NoSchedule")

names = st.sampled_from(HERE)
externals = st.sampled_from(EXTERNAL)


class Mirror(RuleBasedStateMachine):
    @initialize(old=st.booleans())
    def begin(self, old: bool) -> None:
        labels: dict[str, str] = {}
        self.world = World.of(
            *(kube(name, taints=(THEIRS,)) for name in EXTERNAL),
            *(kube(name, labels=labels, taints=(THEIRS,)) for name in WITH_SLURMD),
            *(record(name) for name in EXTERNAL),
            operated("o1"),
            by_hand("h1"),
            record(FOREIGN, cluster="cluster-2"),
            old=old,
        )
        self.world.others[KubeNode("o1")] = (slurmd("gpu-0", "o1"),)
        self.away: dict[str, Node] = {}  # node objects that were deleted
        self.words: dict[
            str, str
        ] = {}  # node → with what somebody else drained it, and nobody has resumed it since
        self.stopped: set[str] = set()  # FAIL, by an admin
        self.comments = {name: self.world.records[SlurmNode(name)].comment for name in WITH_SLURMD}
        self.rest()

    def rest(self) -> None:
        self.world.settle()

    def node(self, name: str) -> Node | None:
        return self.world.nodes.get(KubeNode(name))

    def there(self, name: str) -> bool:
        return SlurmNode(name) in self.world.records

    def kubernetes(self, name: str, **changes: Any) -> None:
        if self.node(name) is not None:
            self.world.kubernetes(KubeNode(name), **changes)

    # --- Kubernetes -------------------------------------------------------------------------------

    @rule(name=names, on=st.booleans())
    def cordon(self, name: str, on: bool) -> None:
        self.kubernetes(name, cordoned=on)

    @rule(name=names, ready=st.booleans(), silent=st.booleans())
    def kubelet(self, name: str, ready: bool, silent: bool) -> None:
        self.kubernetes(name, ready=ready, unknown=silent and not ready)

    @rule(name=names, on=st.booleans())
    def pressure(self, name: str, on: bool) -> None:
        if (node := self.node(name)) is not None:
            rest = tuple(t for t in node.taints if t != PRESSURE)
            self.kubernetes(name, taints=(*rest, PRESSURE) if on else rest)

    @rule(name=externals, on=st.booleans())
    def label(self, name: str, on: bool) -> None:
        self.kubernetes(name, labels={EXTERNAL_NODE_LABEL: ""} if on else {})

    @rule(name=names)
    def delete_node(self, name: str) -> None:
        if (node := self.world.nodes.pop(KubeNode(name), None)) is not None:
            self.away[name] = node

    @rule(name=names)
    def create_node(self, name: str) -> None:
        if (node := self.away.pop(name, None)) is not None:
            self.world.nodes[node.name] = replace(node, mirrored=None, taints=(THEIRS,), cordoned=False)

    @rule(name=externals, on=st.booleans())
    def daemonset(self, name: str, on: bool) -> None:
        agent = other("agent", name, requests={"cpu": "6"})
        self.world.others[KubeNode(name)] = (agent,) if on else ()

    @rule(name=names)
    def reboot(self, name: str) -> None:
        if (node := self.node(name)) is not None:
            self.kubernetes(name, boot_id=f"{node.boot_id}+")

    # --- Slurm ------------------------------------------------------------------------------------

    @rule(name=names, reason=st.sampled_from(WORDS))
    def drain(self, name: str, reason: str) -> None:
        """An admin, a health check or slurm-operator. Over a drain of ours, one without a reason can't be seen."""
        if not self.there(name):
            return
        before = self.world.records[SlurmNode(name)]
        unseen = not reason and standing(before) is not None
        self.world.drain(SlurmNode(name), reason)
        if not unseen:
            self.words[name] = self.world.records[SlurmNode(name)].reason

    @rule(name=names)
    def drain_for_devices(self, name: str) -> None:
        """Ours, and nobody but a person lifts it."""
        if self.there(name) and name not in self.words:
            self.world.drain(SlurmNode(name), DEVICES, user="slurm")
            self.words[name] = DEVICES

    @rule(name=names)
    def resume(self, name: str) -> None:
        if self.there(name):
            self.world.resume(SlurmNode(name))
            self.words.pop(name, None)
            self.stopped.discard(name)

    @rule(name=names)
    def fail(self, name: str) -> None:
        if self.there(name):
            old = self.world.records[SlurmNode(name)]
            self.world.change(old.name, states=old.states - {"DRAIN"} | {"FAIL"}, reason="fan")
            self.words.pop(name, None)
            self.stopped.add(name)

    @rule(name=names, busy=st.booleans())
    def job(self, name: str, busy: bool) -> None:
        record = self.world.records.get(SlurmNode(name))
        if record is not None and not (busy and ({"DRAIN", "FAIL"} & record.states)):
            self.world.run(record.name, busy)

    @rule(name=names, reaches=st.booleans())
    def network(self, name: str, reaches: bool) -> None:
        record = self.world.records.get(SlurmNode(name))
        if record is not None and (reaches or not record.external):
            flags = record.states - {"NOT_RESPONDING"}
            self.world.change(record.name, states=flags if reaches else flags | {"NOT_RESPONDING"})

    @rule(name=names)
    def resume_under_a_job(self, name: str) -> None:
        """What a drain of ours leaves on an older Slurm."""
        self.drain_for_devices(name)
        self.job(name, False)
        if self.there(name):
            self.world.run(SlurmNode(name), True)
            self.resume(name)

    @rule(name=externals)
    def cordon_under_a_job(self, name: str) -> None:
        self.job(name, True)
        for on in (True, False):
            self.cordon(name, on)
            self.rest()

    @rule()
    def restart_slurmctld(self) -> None:
        self.world.booted = self.world.now

    # --- the bridge -------------------------------------------------------------------------------

    @rule()
    def restart(self) -> None:
        self.world.restart()

    @rule(age=st.sampled_from(["kube_age", "slurm_age"]))
    def look_at_an_old_picture(self, age: str) -> None:
        assert self.world.look(**{age: 60.0}) == []

    @rule(cut=st.integers(0, 3))
    def look_and_die(self, cut: int) -> None:
        """After some of the steps of one look."""
        steps = [step for one in self.world.see().values() for step in one.steps]
        for step in steps[:cut]:
            self.world.apply(step)
        self.world.restart()

    @rule(seconds=st.sampled_from([1, 61, 301, 601]))
    def wait(self, seconds: int) -> None:
        self.world.now += seconds

    @rule()
    def settle(self) -> None:
        self.rest()
        assert self.world.look() == []
        for name in HERE:
            if self.there(name):
                self.judge(name)

    # --- what holds -------------------------------------------------------------------------------

    def judge(self, name: str) -> None:
        record, node = self.world.records[SlurmNode(name)], self.node(name)
        if name in self.stopped:
            assert "FAIL" in record.states
        elif name not in self.words:
            assert record.drained == self.to_be_drained(name), (name, record)
            if name in WITH_SLURMD and not record.busy:
                assert not record.reason.startswith("slurm-bridge:"), (
                    "slurm-operator would take it for foreign"
                )
        if node is not None and (name in WITH_SLURMD or EXTERNAL_NODE_LABEL in node.labels):
            assert node.mirrored is not None
            away = bool({"DRAIN", "FAIL", "NOT_RESPONDING"} & record.states)
            assert (node.mirrored.status == "True") is not away
            theirs = away and standing(record) is None
            assert any(t.key == UNAVAILABLE_TAINT for t in node.taints) is theirs
            assert any(t.key == MANAGED_NODE_TAINT for t in node.taints)

    def to_be_drained(self, name: str) -> bool:
        """By us."""
        node, record = self.node(name), self.world.records[SlurmNode(name)]
        if not record.external:
            return False
        if record.drained:
            self.true(standing(record), node)
        if node is None or EXTERNAL_NODE_LABEL not in node.labels or node.cordoned or not node.ready:
            return True
        return (
            PRESSURE in node.taints
            or record.reason.startswith("slurm-bridge: another size")
            or self.resized(name)
        )

    def true(self, cause: Cause | None, node: Node | None) -> None:
        """What the reason says is so."""
        says = {
            Cause.GONE: node is None,
            Cause.UNREGISTERED: node is not None and EXTERNAL_NODE_LABEL not in node.labels,
            Cause.CORDONED: node is not None and node.cordoned,
            Cause.NOT_READY: node is not None and not node.ready,
            Cause.TAINTED: node is not None and PRESSURE in node.taints,
        }
        assert cause is not None
        assert says.get(cause, True), cause

    def resized(self, name: str) -> bool:
        since = self.world.differed.get(SlurmNode(name))
        record = self.world.records[SlurmNode(name)]
        settled = since is not None and self.world.now - since >= self.world.settings.nodeSettling
        young = self.world.now - self.world.booted < 300
        under_way = sum(
            standing(other) is not None and "another size" in other.reason
            for other in self.world.records.values()
        )
        return settled and not young and not under_way and bool(record.cpus)

    @invariant()
    def the_words_of_others_stand(self) -> None:
        for name, reason in getattr(self, "words", {}).items():
            record = self.world.records[SlurmNode(name)]
            assert record.drained, f"{name}: {reason!r} was lifted"
            assert record.reason == reason, f"{name}: {reason!r} was written over with {record.reason!r}"

    @invariant()
    def what_is_not_ours_is_not_touched(self) -> None:
        if not hasattr(self, "world"):
            return
        assert self.world.records[FOREIGN] == record(FOREIGN, cluster="cluster-2")
        for name in WITH_SLURMD:
            assert self.world.records[SlurmNode(name)].comment == self.comments[name]
        for node in self.world.nodes.values():
            assert THEIRS in node.taints

    @invariant()
    def no_machine_is_there_twice(self) -> None:
        if hasattr(self, "world"):
            known = [mark(r.comment) for r in self.world.records.values() if r.external]
            here = [m.node for m in known if m is not None and m.cluster == CLUSTER]
            assert len(here) == len(set(here))


TestMirror = Mirror.TestCase
TestMirror.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
