"""Whose annotations count for a pod, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from bridge.core import grouping
from bridge.core.grouping.gangs import Family
from bridge.core.grouping.owners import (
    BUILT_IN_GROUP,
    COSCHEDULING_GROUP,
    DEEPEST,
    Absence,
    Chain,
    Lookup,
    Reference,
    chain,
    merged,
    whose,
)
from bridge.core.model import Owner, Pod, Uid, Workload
from bridge.core.overrides import key
from bridge.names import JOBSET_RESTART, LWS_GROUP_INDEX, LWS_NAME, LWS_REVISION, LWS_SIZE, POD_GROUP_LABEL

APPS, BATCH, JOBSET, LWS = "apps/v1", "batch/v1", "jobset.x-k8s.io/v1alpha2", "leaderworkerset.x-k8s.io/v1"
BUILT_IN, COSCHEDULING = f"{BUILT_IN_GROUP}/v1alpha2", f"{COSCHEDULING_GROUP}/v1alpha1"


def work(kind: str, version: str, name: str, *above: Owner, **more: Any) -> Workload:
    return Workload(
        namespace="a", kind=kind, name=name, uid=Uid(f"uid-{name}"), api_version=version, owners=above,
        annotations={"who": name, f"of-{name}": "yes"}, **more,
    )  # fmt: skip


def ref(found: Workload, *, controller: bool = True) -> Owner:
    return Owner(
        api_version=found.api_version, kind=found.kind, name=found.name, uid=found.uid, controller=controller
    )


def pod(*above: Owner, **more: Any) -> Pod:
    return Pod(namespace="a", name="p", uid=Uid("uid-p"), owners=above, **more)


def among(*known: Workload, read: Callable[[Reference], bool] = lambda ref: True) -> Lookup:
    """`read`: is that kind read here."""
    there = {(found.group, found.kind, found.namespace, found.name): found for found in known}

    def find(namespace: str, asked: Reference) -> Workload | Absence:
        if not read(asked):
            return Absence.UNREAD
        return there.get((asked.group, asked.kind, namespace, asked.name), Absence.NOT_YET)

    return find


def names(found: Chain) -> Sequence[str]:
    return [each.name for each in found.workloads]


JS = work("JobSet", JOBSET, "js")
JOB = work("Job", BATCH, "job", ref(JS))


def test_a_pod_alone_has_nobody_above_it() -> None:
    assert chain(pod(), among()) == Chain()


def test_a_job_is_stronger_than_the_jobset_that_made_it() -> None:
    found = chain(pod(ref(JOB)), among(JOB, JS))
    assert (names(found), found.nearest, found.awaited) == (["js", "job"], JOB, "")
    assert merged(found.workloads) == {"who": "job", "of-js": "yes", "of-job": "yes"}
    assert whose(found.workloads, "of-js") is JS
    assert whose(found.workloads, "who") is JOB
    assert whose(found.workloads, "of-nobody") is None


def test_an_owner_that_does_not_control_the_pod_does_not_count() -> None:
    assert chain(pod(ref(JOB, controller=False)), among(JOB, JS)) == Chain()


def test_an_owner_that_should_be_there_is_waited_for_and_what_is_below_it_counts() -> None:
    found = chain(pod(ref(JOB)), among(JOB))
    assert (names(found), found.awaited) == (["job"], "JobSet a/js")
    assert chain(pod(ref(JOB)), among(JS)).awaited == "Job a/job"


def test_an_earlier_object_of_that_name_is_not_the_owner() -> None:
    earlier = Owner(api_version=BATCH, kind="Job", name="job", uid=Uid("uid-of-before"), controller=True)
    found = chain(pod(earlier), among(JOB, JS))
    assert (names(found), found.awaited) == ([], "Job a/job")


def test_an_owner_of_a_kind_that_is_not_read_is_not_waited_for() -> None:
    ray = Owner(api_version="ray.io/v1", kind="RayCluster", name="r", uid=Uid("uid-r"), controller=True)
    found = chain(pod(ref(JOB)), among(work("Job", BATCH, "job", ray), read=lambda ref: ref.group == "batch"))
    assert (names(found), found.awaited) == (["job"], "")


def test_a_circle_of_owners_ends() -> None:
    one = Owner(api_version=APPS, kind="ReplicaSet", name="one", uid=Uid("uid-one"), controller=True)
    two = work("ReplicaSet", APPS, "two", one)
    found = chain(pod(one), among(work("ReplicaSet", APPS, "one", ref(two)), two))
    assert names(found) == ["two", "one"]


def test_a_tower_of_owners_ends() -> None:
    tower = [work("Job", BATCH, "0")]
    for level in range(1, 2 * DEEPEST):
        tower.append(work("Job", BATCH, str(level), ref(tower[-1])))
    assert len(chain(pod(ref(tower[-1])), among(*tower)).workloads) == DEEPEST


def test_the_set_counts_for_its_workers_whose_stateful_set_belongs_to_their_leader() -> None:
    whole = work("LeaderWorkerSet", LWS, "lws")
    leaders = work("StatefulSet", APPS, "leaders", ref(whole))
    leader = work("Pod", "v1", "leader", ref(leaders))
    workers = work("StatefulSet", APPS, "workers", ref(leader))
    found = chain(pod(ref(workers)), among(whole, leaders, leader, workers))
    assert names(found) == ["lws", "leaders", "workers"]  # what the leader says is for the leader


def test_pods_of_another_revision_of_a_leader_worker_set_are_another_gang_and_say_how_many_they_are() -> None:
    lws = work("LeaderWorkerSet", LWS, "lws", size=4, sizes={"leader": 1, "worker": 1})

    def family(revision: str, size: str) -> Family | None:
        labels = {LWS_GROUP_INDEX: "0", LWS_REVISION: revision}
        one = pod(ref(lws), labels=labels, annotations={LWS_SIZE: size})
        return grouping.family_of(one, chain(one, among(lws)))

    old, new = family("a1", "3"), family("b2", "4")
    assert old is not None
    assert new is not None
    assert old.uid != new.uid
    assert (old.gang.wanted, new.gang.wanted) == (3, 4)


def test_workers_whose_leader_is_another_schedulers_are_a_gang_without_it() -> None:
    """What their StatefulSet belongs to is not read; they name the set themselves."""
    lws = work("LeaderWorkerSet", LWS, "lws", sizes={"leader": 0, "worker": 1})
    leader = work("Pod", "v1", "leader")
    workers = work("StatefulSet", APPS, "workers", ref(leader))
    labels = {LWS_GROUP_INDEX: "0", LWS_NAME: "lws"}
    one = pod(ref(workers), labels=labels, annotations={LWS_SIZE: "3"})
    found = chain(one, among(lws, workers))
    assert (found.awaited, names(found)) == ("", ["workers", "lws"])
    family = grouping.family_of(one, found)
    assert family is not None
    assert family.gang.wanted == 2


@pytest.mark.parametrize("who", ["pod", "group", "job", "plan"])
def test_what_a_gang_does_about_a_lost_member_may_stand_on_anything_above_its_pods(who: str) -> None:
    """Its pods are a gang by a PodGroup, and a Job makes them."""
    said = {key("on-member-failure"): "restart-gang", key("gang-timeout"): "7"}
    group = work("PodGroup", BUILT_IN, "group", parent="plan", size=2)
    found = [group, JOB, work("Workload", BUILT_IN, "plan")]
    above = [replace(one, annotations=said if one.name == who else {}) for one in found]
    one = pod(ref(JOB), scheduling_group="group", annotations=said if who == "pod" else {})
    family = grouping.family_of(one, chain(one, among(*above)))
    assert family is not None
    assert (family.gang.restart, family.gang.timeout) == (True, 7)


def test_the_pods_of_another_restart_of_a_jobset_are_another_gang() -> None:
    whole = work("JobSet", JOBSET, "js", size=2)
    whole = replace(whole, annotations={key("gang"): "true"})

    def family(attempt: str) -> str:
        one = pod(ref(whole), labels={JOBSET_RESTART: attempt})
        found = grouping.family_of(one, chain(one, among(whole)))
        assert found is not None
        return found.uid

    assert len({family("0"), family("1"), family("2")}) == 3


@pytest.mark.parametrize("version", ["v1alpha2", "v1alpha3", "v1beta1"])
def test_a_built_in_pod_group_is_weaker_and_its_workload_stronger_than_the_controllers(version: str) -> None:
    group = work("PodGroup", f"{BUILT_IN_GROUP}/{version}", "group", parent="plan")
    plan = work("Workload", f"{BUILT_IN_GROUP}/{version}", "plan")
    found = chain(pod(ref(JOB), scheduling_group="group"), among(JOB, JS, group, plan))
    assert (names(found), found.nearest) == (["group", "js", "job", "plan"], JOB)
    assert chain(pod(scheduling_group="group"), among(group)).awaited == "Workload a/plan"


def test_of_kubernetes_1_35_the_pod_names_the_workload_itself() -> None:
    plan = work("Workload", f"{BUILT_IN_GROUP}/v1alpha1", "plan")
    assert names(chain(pod(scheduling_group="plan/workers/0"), among(plan))) == ["plan"]


def test_a_coscheduling_pod_group_is_the_strongest_and_no_built_in_one_of_that_name() -> None:
    ours, other = work("PodGroup", COSCHEDULING, "group"), work("PodGroup", BUILT_IN, "group")
    found = chain(pod(ref(JOB), labels={POD_GROUP_LABEL: "group"}), among(JOB, JS, ours, other))
    assert found.workloads == (JS, JOB, ours)


def test_a_label_for_a_pod_group_in_a_cluster_without_them_is_ignored() -> None:
    found = chain(pod(labels={POD_GROUP_LABEL: "group"}), among(read=lambda ref: False))
    assert found == Chain()


def test_a_group_without_more_has_its_workload_for_an_owner() -> None:
    built = grouping.build(grouping.key_of(pod()), [pod()], JOB)
    assert (built.workload, built.owners) == (JOB, (JOB,))
    built = grouping.build(grouping.key_of(pod()), [pod()], JOB, (JS, JOB))
    assert (built.workload, built.owners) == (JOB, (JS, JOB))
