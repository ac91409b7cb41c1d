"""From a group to the job that is asked for, and the rule behind each field."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.config import JobSettings, PriorityClass, from_mapping
from bridge.core import grouping
from bridge.core.jobspec import Rule, avoiding, essence, explain, translate
from bridge.core.model import Container, Group, JobSpec, Mark, Owner, Pod, Resources, SlurmNode, Uid, Workload
from bridge.core.overrides import key
from bridge.errors import ConfigError, UserError

SETTINGS = JobSettings()
OWNER = Owner(api_version="batch/v1", kind="Job", name="train", uid=Uid("j"), controller=True)


def noted(**suffixes: str) -> dict[str, str]:
    """qos="low", min_nodes="2" → annotations."""
    return {key(suffix.replace("_", "-")): text for suffix, text in suffixes.items()}


def pod(annotations: dict[str, str] | None = None, limits: dict[str, str] | None = None, **more: Any) -> Pod:
    box = Container(name="main", resources=Resources(limits=limits or {}))
    return Pod(
        namespace="a", name="p", uid=Uid("u"), annotations=annotations or {}, containers=(box,), **more
    )


def job(annotations: dict[str, str] | None = None, deadline: int | None = None) -> Workload:
    return Workload(
        namespace="a",
        kind="Job",
        name="train",
        uid=Uid("j"),
        annotations=annotations or {},
        active_deadline=deadline,
    )


def group(member: Pod, workload: Workload | None = None) -> Group:
    return grouping.build(grouping.key_of(member), [member], workload)


def spec(
    member: Pod, workload: Workload | None = None, settings: JobSettings = SETTINGS, **more: Any
) -> JobSpec:
    return translate(group(member, workload), settings=settings, cluster="c1", **more)


def rules(member: Pod, workload: Workload | None = None, settings: JobSettings = SETTINGS) -> dict[str, Rule]:
    return {rule.field: rule for rule in explain(group(member, workload), settings=settings)}


def test_a_pod_that_says_nothing_gets_the_minimum_and_never_the_whole_node() -> None:
    found = spec(pod())
    assert (found.name, found.partition, found.cpus_per_task, found.memory_mib) == (
        "p",
        "slurm-bridge",
        1,
        256,
    )
    assert (found.nodes_min, found.nodes_max, found.tasks, found.exclusive, found.gres) == (
        1,
        1,
        1,
        False,
        "",
    )
    assert (found.time_limit, found.user_limit, found.excluded_nodes) == (None, None, ())


def test_the_mark_names_cluster_group_attempt_pods_and_grace() -> None:
    found = spec(pod(grace=45), attempt=3)
    assert found.mark == Mark(
        cluster="c1", group=grouping.key_of(pod()), attempt=3, uids=(Uid("u"),), pods=("a/p",), grace=45
    )


AMOUNT = st.integers(0, 100_000)


@given(cpu=AMOUNT, memory=st.integers(0, 2**50), gpus=st.integers(0, 64))
def test_asked_is_at_most_sent_for_every_resource(cpu: int, memory: int, gpus: int) -> None:
    found = spec(pod(limits={"cpu": f"{cpu}m", "memory": str(memory), "nvidia.com/gpu": str(gpus)}))
    assert 0 < cpu <= found.cpus_per_task * 1000 or (cpu == 0 and found.cpus_per_task == 1)
    assert found.memory_mib is not None
    assert 0 < memory <= found.memory_mib * 2**20 or (memory == 0 and found.memory_mib == 256)
    assert found.gres == (f"gres/gpu={gpus}" if gpus else "")


def test_every_old_annotation_reaches_its_field() -> None:
    found = spec(
        pod(
            noted(
                account="ml", constraints="fast&new", cpu_per_task="1500m", exclusive="true", gres="gpu:V100:2",
                group_id="100", job_name="n", licenses="l:2", max_nodes="3", mem_per_node="1Gi", min_nodes="2",
                partition="part", priority="7", qos="q", reservation="r", timelimit="60", user_id="ada", wckey="w",
            )
        )
    )  # fmt: skip
    assert (found.account, found.constraints, found.cpus_per_task, found.exclusive) == (
        "ml",
        "fast&new",
        2,
        True,
    )
    assert (found.gres, found.group, found.name, found.licenses) == ("gres/gpu:V100:2", "100", "n", "l:2")
    assert (found.nodes_max, found.memory_mib, found.nodes_min, found.partition) == (3, 1024, 2, "part")
    assert (found.priority, found.qos, found.reservation, found.user_limit) == (7, "q", "r", 60)
    assert (found.user, found.wckey) == ("ada", "w")


def test_every_annotation_of_ours_reaches_its_field() -> None:
    found = spec(
        pod(
            noted(
                nice="5", dependency="afterok:1", comment="c", begin="1796112000", deadline="1796112060",
                prefer="fast", segment_size="4", exclude_nodes="n[1-2]",
            )
        ),
    )  # fmt: skip
    assert (found.nice, found.dependency, found.comment, found.begin) == (5, "afterok:1", "c", "1796112000")
    assert (found.deadline, found.prefer, found.segment_size) == ("1796112060", "fast", 4)
    assert found.excluded_nodes == ("n1", "n2")
    assert avoiding(found, {"": (SlurmNode("n2"), SlurmNode("n9"))}).excluded_nodes == ("n1", "n2", "n9")


def test_settings_are_weaker_than_the_pod_s_fields_than_the_job_than_the_pod_s_annotations() -> None:
    member = pod(noted(qos="pod", partition="pod"), {"cpu": "2", "memory": "300Mi"}, owners=(OWNER,))
    workload = job(noted(qos="job", account="job", cpu_per_task="3"))
    found = spec(member, workload)
    assert (found.partition, found.qos, found.account) == ("pod", "pod", "job")
    assert (found.cpus_per_task, found.memory_mib, found.exclusive) == (3, 300, False)
    why = rules(member, workload)
    assert {name: rule.layer for name, rule in why.items()} == {
        "account": "owner", "cpus_per_task": "owner", "exclusive": "defaults", "memory_mib": "derived",
        "name": "derived", "nodes_max": "defaults", "nodes_min": "defaults", "partition": "pod", "qos": "pod",
    }  # fmt: skip
    assert why["qos"].why == f"annotation {key('qos')} of Pod a/p"
    assert why["account"].why == f"annotation {key('account')} of Job a/train"


@pytest.mark.parametrize(
    ("text", "default", "whole"),
    [(None, False, False), (None, True, True), ("false", True, False), ("true", False, True), ("", True, True),
     ("", False, False), ("yes", False, True)],
)  # fmt: skip
def test_whole_nodes_only_where_asked_or_configured(text: str | None, default: bool, whole: bool) -> None:
    annotations = {} if text is None else noted(exclusive=text)
    assert spec(pod(annotations), settings=JobSettings(exclusiveByDefault=default)).exclusive is whole


@pytest.mark.parametrize(
    ("annotation", "pod_deadline", "job_deadline", "grace", "user", "sent"),
    [
        (None, None, None, 30, None, None),
        ("60", None, None, 30, 60, 62),
        ("60", 60, 60, 0, 60, 61),
        (None, 90, None, 30, 2, 4),
        (None, 600, 90, 30, 2, 4),
        (None, 60, 600, 61, 1, 4),
        (None, None, 1, 30, 1, 3),
        ("0", None, None, 30, None, None),
        ("0", 90, None, 30, None, None),
    ],
)
def test_the_limit_sent_is_the_user_s_plus_grace_plus_margin(
    annotation: str | None,
    pod_deadline: int | None,
    job_deadline: int | None,
    grace: int,
    user: int | None,
    sent: int | None,
) -> None:
    annotations = {} if annotation is None else noted(timelimit=annotation)
    member = pod(annotations, active_deadline=pod_deadline, grace=grace, owners=(OWNER,))
    found = spec(member, job(deadline=job_deadline))
    assert (found.user_limit, found.time_limit) == (user, sent)
    assert any("limit" in warning for warning in found.warnings) is (user is None)


@given(minutes=st.integers(1, 10**6), grace=st.integers(0, 10**5), margin=st.integers(0, 10**4))
def test_slurm_ends_the_job_after_the_pod_had_its_grace(minutes: int, grace: int, margin: int) -> None:
    found = spec(
        pod(noted(timelimit=str(minutes)), grace=grace), settings=JobSettings(timeLimitMargin=margin)
    )
    assert found.time_limit is not None
    assert 0 <= found.time_limit * 60 - (minutes * 60 + grace + margin) < 60


@pytest.mark.parametrize(
    ("annotations", "limits", "word"),
    [
        (noted(cpu_per_task="1"), {"cpu": "2"}, "asks Slurm for 1, the pod may use 2"),
        (noted(mem_per_node="1Mi"), {"memory": "2Mi"}, "asks Slurm for 1 MiB, the pod may use 2 MiB"),
        (noted(gres="gres/gpu=4"), {"nvidia.com/gpu": "2"}, "'gres/gpu=4' replaces the pod's gres/gpu=2"),
        (noted(gres="gres/gpu=1"), {"nvidia.com/mig-1g": "1"}, "replaces the pod's devices"),
        (noted(min_nodes="2"), {}, "up to 2 nodes are held for 1 pod"),
        (noted(gang_timeout="5"), {}, "have no effect on a single pod"),
        (noted(cpu_per_task="0"), {}, "configured minimum"),
        ({}, {"rdma/hca": "1"}, "rdma/hca"),
    ],
)
def test_what_may_surprise_is_a_warning(
    annotations: dict[str, str], limits: dict[str, str], word: str
) -> None:
    found = spec(pod({**annotations, **noted(timelimit="1")}, limits))
    assert len(found.warnings) == 1
    assert word in found.warnings[0]


def test_a_deadline_says_what_it_needs() -> None:
    (warning,) = spec(pod(noted(deadline="2030-01-01T00:00:00Z"))).warnings
    assert warning.startswith("with a deadline Slurm wants a time limit that ends before it")


@pytest.mark.parametrize("gres", ["gres/gpu=1", "gpu:h100:7", "gres/gpu:a=3,gpu:b:4", "gpu", "gres/nic=8"])
def test_fewer_gpus_than_the_pod_will_use_are_refused(gres: str) -> None:
    """Slurm would give the others to somebody else."""
    with pytest.raises(
        UserError, match=r"slurmjob.slinky.slurm.net/gres: .* the pod's limits are 8; ask for as many"
    ):
        spec(pod(noted(gres=gres, timelimit="1"), {"nvidia.com/gpu": "8"}))


def test_a_gres_annotation_that_says_the_same_is_no_surprise() -> None:
    found = spec(pod(noted(gres="gres/gpu=2", timelimit="1"), {"nvidia.com/gpu": "2"}))
    assert (found.gres, found.warnings) == ("gres/gpu=2", ())


def test_a_job_that_is_not_there_is_a_warning() -> None:
    (warning,) = spec(pod(noted(timelimit="1"), owners=(OWNER,))).warnings
    assert warning.startswith("Job a/train is not there")


def test_zero_asks_for_the_minimum_and_never_for_all() -> None:
    found = spec(pod(noted(cpu_per_task="0", mem_per_node="0")))
    assert (found.cpus_per_task, found.memory_mib) == (1, 256)


@pytest.mark.parametrize(
    ("annotations", "counts"),
    [
        (noted(min_nodes="2"), (2, 2)),
        (noted(max_nodes="2"), (1, 2)),
        (noted(min_nodes="2", max_nodes="3"), (2, 3)),
    ],
)
def test_the_node_count_that_nobody_gave_follows_the_other(
    annotations: dict[str, str], counts: tuple[int, int]
) -> None:
    found = spec(pod(annotations))
    assert (found.nodes_min, found.nodes_max) == counts
    assert rules(pod(annotations))["nodes_max"].value == str(counts[1])


@pytest.mark.parametrize(
    ("member", "workload", "message"),
    [
        (pod(noted(timelimit="5m")), None, "Pod a/p: slurmjob.slinky.slurm.net/timelimit: '5m'"),
        (
            pod(owners=(OWNER,)),
            job(noted(timelimit="5m")),
            "Job a/train: slurmjob.slinky.slurm.net/timelimit",
        ),
        (pod(noted(tyme="5")), None, "Pod a/p: slurmjob.slinky.slurm.net/tyme: '5': no such option"),
        (pod(limits={"cpu": "x"}), None, "Pod a/p: container main: resources.limits.cpu: 'x'"),
        (
            pod(limits={"cpu": "70k"}),
            None,
            "Pod a/p: what its containers ask for (resources): '70000' is more",
        ),
        (pod(limits={"nvidia.com/mig-1g": "1"}), None, "Pod a/p: resource nvidia.com/mig-1g is a GPU"),
        (pod(noted(min_nodes="3", max_nodes="2")), None, "Pod a/p: slurmjob.slinky.slurm.net/min-nodes 3"),
        (
            pod(noted(min_nodes="3")),
            job(noted(max_nodes="2")),
            "Job a/train: slurmjob.slinky.slurm.net/min-nodes 3",
        ),
    ],
)
def test_a_mistake_names_object_and_field(member: Pod, workload: Workload | None, message: str) -> None:
    with pytest.raises(UserError) as caught:
        spec(member, workload)
    assert str(caught.value).startswith(message)


def test_a_pod_that_wants_to_be_a_gang_alone_and_a_group_that_is_none_are_refused() -> None:
    bare = grouping.key_of(pod())
    with pytest.raises(UserError, match="a pod on its own is no gang"):
        translate(Group(key=bare, pods=(pod(noted(gang="true")),)), settings=SETTINGS, cluster="c")
    with pytest.raises(UserError, match="has 2 pods"):
        translate(Group(key=bare, pods=(pod(), pod())), settings=SETTINGS, cluster="c")


def test_each_rule_says_what_it_comes_from() -> None:
    member = pod(noted(exclude_nodes="n[1-2]"), {"nvidia.com/gpu": "1", "cpu": "1"}, active_deadline=90)
    why = rules(member, settings=JobSettings(mcsLabel="kubernetes"))
    assert why["user_limit"].why == "activeDeadlineSeconds 90 of Pod a/p, rounded up to minutes"
    assert (why["time_limit"].layer, why["time_limit"].value) == ("bridge", "4")
    assert why["time_limit"].why == "2 min + 30 s grace of the pod + 60 s timeLimitMargin"
    assert (why["mcs_label"].value, why["mcs_label"].layer) == ("kubernetes", "defaults")
    assert (why["excluded_nodes"].value, why["excluded_nodes"].layer) == ("n1,n2", "pod")
    assert (why["gres"].value, why["gres"].layer) == ("gres/gpu=1", "derived")
    assert why["memory_mib"].why == "setting minimumMemoryMiB: the pod asks for no memory"
    assert list(why) == sorted(why)
    owned = rules(pod(owners=(OWNER,)), job(deadline=60))
    assert owned["user_limit"].why == "activeDeadlineSeconds 60 of Job a/train, rounded up to minutes"


def test_a_request_that_slurm_cannot_count_is_not_blamed_on_an_annotation() -> None:
    big = pod(limits={"cpu": "100000"})
    with pytest.raises(UserError) as caught:
        translate(grouping.build(grouping.key_of(big), [big]), settings=SETTINGS, cluster="c")
    assert "resources" in str(caught.value)
    assert "cpu-per-task" not in str(caught.value)


def test_options_under_old_names_count_by_a_setting_and_the_pod_is_told() -> None:
    member = pod({"slinky.slurm.net/partition": "gpu"})
    off, on = spec(member), spec(member, settings=JobSettings(oldOptionKeys=True))
    assert (off.partition, off.notice) == ("slurm-bridge", "")
    assert (on.partition, on.notice) == (
        "gpu",
        "slinky.slurm.net/partition is an old name: write slurmjob.slinky.slurm.net/partition",
    )
    assert essence(member) != essence(pod({"slinky.slurm.net/partition": "cpu"}))
    why = rules(member, settings=JobSettings(oldOptionKeys=True))["partition"].why
    assert why == "annotation slinky.slurm.net/partition of Pod a/p"


CLASSES = JobSettings(
    priorityClasses={"low": PriorityClass(nice=500), "high": PriorityClass(qos="fast", nice=0)}
)


@pytest.mark.parametrize(
    ("name", "annotations", "qos", "nice"),
    [
        ("low", {}, "", 500),
        ("high", {}, "fast", 0),
        ("high", {"qos": "slow"}, "slow", 0),
        ("low", {"nice": "1"}, "", 1),
        ("other", {}, "", None),
        ("", {}, "", None),
    ],
)
def test_a_priority_class_means_what_the_settings_say_unless_an_annotation_does(
    name: str, annotations: dict[str, str], qos: str, nice: int | None
) -> None:
    found = spec(pod(noted(**annotations), priority_class=name), settings=CLASSES)
    assert (found.qos, found.nice, found.priority) == (qos, nice, None)


@pytest.mark.parametrize("meant", [{}, {"priority": 5}, {"nice": -1}, {"nice": 2**31}, {"qos": ""}])
def test_a_priority_class_can_mean_nothing_but_a_qos_and_a_nice(meant: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"^configuration: priorityClasses\.high"):
        from_mapping({"priorityClasses": {"high": meant}})


def test_ephemeral_storage_is_asked_of_slurm_only_where_that_is_switched_on() -> None:
    member = pod(limits={"ephemeral-storage": "1048577"})
    assert spec(member).temporary_disk_mib is None
    assert spec(member, settings=JobSettings(temporaryDisk=True)).temporary_disk_mib == 2
    assert spec(pod(), settings=JobSettings(temporaryDisk=True)).temporary_disk_mib is None
