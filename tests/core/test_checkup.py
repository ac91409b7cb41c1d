"""What an installation is like, and what `doctor` makes of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from bridge.config import from_mapping
from bridge.core import checkup
from bridge.core.checkup import Finding, SlurmSetup
from bridge.core.model import KubeNode, Node, SlurmNode
from bridge.core.nodes import NodeRecord
from bridge.names import DRAIN_PREFIX

SETTINGS = from_mapping({"slurmctldAddress": "slurmctld:6817"})
GOOD = SlurmSetup(
    user="slurm",
    next_job=1000,
    min_job_age=300,
    max_nodes=100,
    default_memory=True,
    state_cache=True,
    start_delay=0,
    start_hooks=("/etc/slurm/handover",),
    gres_types=("gpu",),
)
PARTITION = SETTINGS.jobs.partition
TWINS = {SlurmNode(name): Node(name=KubeNode(name)) for name in ("n1", "n2")}
N1 = NodeRecord(name=SlurmNode("n1"), states=frozenset({"IDLE"}), partitions=(PARTITION,), gres="gpu:h100:8")
N2 = replace(N1, name=SlurmNode("n2"))


def only(found: Iterable[Finding]) -> Finding:
    (finding,) = found
    return finding


# --- configuration --------------------------------------------------------------------------------


def test_a_slurm_that_is_set_up_for_us_gives_no_finding() -> None:
    assert list(checkup.configuration(GOOD, SETTINGS)) == []
    assert list(checkup.handover(GOOD, [N1], PARTITION)) == []
    assert list(checkup.nodes([N1, N2], TWINS, (), GOOD, PARTITION)) == []
    assert list(checkup.versions(45, (26, 5), (1, 36), SETTINGS)) == []


@pytest.mark.parametrize(
    ("change", "said", "urgent"),
    [
        pytest.param({"state_cache": False}, "no job state cache", False, id="state-cache"),
        pytest.param({"default_memory": False}, "no DefMemPerCPU", False, id="default-memory"),
        pytest.param({"min_job_age": 59}, "MinJobAge is 59 s", False, id="min-job-age"),
        pytest.param({"start_delay": 3}, "batch_sched_delay is 3 s", False, id="start-delay"),
        pytest.param({"gres_types": ("nic",)}, "GresTypes lacks gpu", False, id="gres-types"),
        pytest.param({"next_job": 0x02000000}, "reached job 33554432", True, id="ids-run-into-ours"),
    ],
)
def test_each_setting_of_slurm_is_told_with_its_consequence(
    change: dict[str, object], said: str, urgent: bool
) -> None:
    finding = only(checkup.configuration(replace(GOOD, **change), SETTINGS))  # type: ignore[arg-type]
    assert said in finding.text
    assert finding.do
    assert finding.urgent is urgent


@pytest.mark.parametrize("near", [{"min_job_age": 60}, {"min_job_age": 0}, {"next_job": 0x02000000 - 1}])
def test_what_is_just_good_enough_is_not_told(near: dict[str, object]) -> None:
    assert list(checkup.configuration(replace(GOOD, **near), SETTINGS)) == []  # type: ignore[arg-type]


def test_a_grace_time_of_qos_that_nobody_can_read_is_told() -> None:
    setup, settings = replace(GOOD, preempts="preempt/qos"), SETTINGS
    assert "preemptionGrace" in only(checkup.preemption(setup, settings, accounting=False)).do
    given = from_mapping({"preemptionGrace": 30.0})
    by_partition = replace(GOOD, preempts="preempt/partition_prio")
    assert [
        *checkup.preemption(setup, settings, accounting=True),
        *checkup.preemption(setup, given, accounting=False),
        *checkup.preemption(by_partition, settings, accounting=False),
    ] == []


def test_an_mcs_label_that_slurm_does_not_know_is_told() -> None:
    labelled = from_mapping({"mcsLabel": "k8s"})
    assert "separates nobody" in only(checkup.configuration(GOOD, labelled)).text
    assert list(checkup.configuration(replace(GOOD, mcs=True), labelled)) == []


def test_without_a_hook_the_hand_over_of_gpus_is_not_guaranteed_on_nodes_with_slurmd() -> None:
    bare = replace(GOOD, start_hooks=())
    assert "not guaranteed on nodes with slurmd (n1)" in only(checkup.handover(bare, [N1], PARTITION)).text
    other = replace(GOOD, start_hooks=("/etc/slurm/prolog",))
    assert "unless /etc/slurm/prolog asks the bridge" in only(checkup.handover(other, [N1], PARTITION)).text
    external = replace(N1, states=frozenset({"IDLE", "EXTERNAL"}))
    for harmless in (external, replace(N1, gres=""), replace(N1, partitions=("cpu",))):
        assert list(checkup.handover(bare, [harmless], PARTITION)) == []


# --- nodes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("records", "twins", "said"),
    [
        pytest.param([], {}, "no node of Slurm is in partition slurm-bridge", id="empty-partition"),
        pytest.param([replace(N1, partitions=("cpu",))], {SlurmNode("n1"): TWINS[SlurmNode("n1")]},
                     "no node of Slurm is in partition", id="all-elsewhere"),
        pytest.param([N1, N2], {SlurmNode("n1"): TWINS[SlurmNode("n1")]}, "none of this Kubernetes cluster (n2)",
                     id="no-twin"),
        pytest.param([replace(N1, states=frozenset({"IDLE", "DRAIN"}), reason=f"{DRAIN_PREFIX} dead"), N2], TWINS,
                     "node n1 is drained: slurm-bridge: dead", id="drained-by-us"),
    ],
)  # fmt: skip
def test_nodes_that_need_a_person_are_told(
    records: list[NodeRecord], twins: dict[SlurmNode, Node], said: str
) -> None:
    finding = only(checkup.nodes(records, twins, (), GOOD, PARTITION))
    assert said in finding.text
    assert finding.urgent
    assert finding.do


def test_a_drain_of_others_is_no_business_of_ours() -> None:
    drained = replace(N1, states=frozenset({"IDLE", "DRAIN"}), reason="disk")
    undrained = replace(N1, reason=f"{DRAIN_PREFIX} old text that Slurm kept")
    for record in (drained, undrained):
        assert list(checkup.nodes([record, N2], TWINS, (), GOOD, PARTITION)) == []


def test_a_name_that_two_nodes_claim_is_told() -> None:
    finding = only(checkup.nodes([N1, N2], TWINS, ("a and b both claim the Slurm name n9",), GOOD, PARTITION))
    assert finding.text == "a and b both claim the Slurm name n9: neither is used"
    assert finding.urgent


def test_kubernetes_nodes_that_slurm_does_not_have_are_counted_against_max_node_count() -> None:
    assert (
        "Slurm does not have 1 of the Kubernetes nodes (n2)"
        in only(checkup.nodes([N1], TWINS, (), replace(GOOD, max_nodes=2), PARTITION)).text
    )
    _, full = checkup.nodes([N1], TWINS, (), replace(GOOD, max_nodes=1), PARTITION)
    assert full.text == "MaxNodeCount is 1: 1 nodes are there, and 1 more don't fit"
    assert full.do == "MaxNodeCount=4"


# --- versions -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parser", "release", "lacks"),
    [
        (45, (26, 5), []),
        (44, (25, 11), ["does not show its configuration"]),
        (43, (25, 5), ["no nodes without slurmd", "does not show its configuration"]),
        (42, (24, 11), ["no jobs without a process", "no nodes without slurmd", "does not show its configuration"]),
        (45, (26, 11), ["outside of 24.11 to 26.05"]),
    ],
)  # fmt: skip
def test_what_an_older_slurm_lacks_is_told(parser: int, release: tuple[int, int], lacks: list[str]) -> None:
    found = [finding.text for finding in checkup.versions(parser, release, None, SETTINGS)]
    assert len(found) == len(lacks)
    assert all(part in text for part, text in zip(lacks, found, strict=True))


def test_what_kubernetes_lacks_is_told() -> None:
    assert "no admission policies" in only(checkup.versions(45, (26, 5), (1, 35), SETTINGS)).text
    assert "outside of 1.34 to 1.37" in only(checkup.versions(45, (26, 5), (1, 38), SETTINGS)).text


def test_exit_codes_need_the_address_of_slurmctld() -> None:
    finding = only(checkup.versions(45, (26, 5), (1, 36), from_mapping({})))
    assert "jobs end CANCELLED" in finding.text
    assert "slurmctldAddress" in finding.do


# --- the token ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("user", "stranger", "seconds", "said", "urgent"),
    [
        ("slurm", "", -120.0, "ended 2 min ago", True),
        ("slurm", "", checkup.DAY - 1, "ends in 24 h", True),
        ("alice", "the Slurm token is alice's", 1e9, "alice's: nothing is written to Slurm", True),
        ("", "", 1e9, "does not say whose it is", False),
    ],
)
def test_a_token_that_will_not_do_is_told(
    user: str, stranger: str, seconds: float, said: str, urgent: bool
) -> None:
    finding = only(checkup.token(user, stranger, "", seconds))
    assert said in finding.text
    assert finding.urgent is urgent


@pytest.mark.parametrize("seconds", [checkup.DAY, float("inf"), float("nan")])
def test_a_token_that_lives_for_a_day_or_does_not_tell_will_do(seconds: float) -> None:
    assert list(checkup.token("slurm", "", "", seconds)) == []


def test_what_works_worse_with_the_token_is_told() -> None:
    assert only(checkup.token("alice", "", "Slurm numbers our jobs", 1e9)).text == "Slurm numbers our jobs"


# --- small words ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7200, "2 h"), (172800, "2 days"), (float("inf"), "ever")],
)
def test_a_length_of_time_is_said_as_people_do(seconds: float, said: str) -> None:
    assert checkup.span(seconds) == said


def test_of_many_names_a_few_are_said() -> None:
    assert checkup.few([SlurmNode(f"n{i}") for i in range(1, 8)]) == "n1, n2, n3, n4, n5 and 2 more"
