"""The store's indexes follow every change, and a pod of ours never vanishes without a trace."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from bridge import names
from bridge.core.model import KubeNode, Node, Owner, Pod, Uid, Workload
from bridge.kube.store import Pods, Store

OURS = "slurm-bridge"


def pod(
    name: str, version: int = 1, *, uid: str = "", job: str = "", owner: str = "", scheduler: str = OURS
) -> Pod:
    owners = (
        (Owner(api_version="batch/v1", kind="Job", name="j", uid=Uid(owner), controller=True),)
        if owner
        else ()
    )
    return Pod(
        namespace="ns",
        name=name,
        uid=Uid(uid or f"uid-{name}"),
        version=str(version),
        scheduler=scheduler,
        labels={names.JOB_ID_LABEL: job} if job else {},
        owners=owners,
    )


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pods(clock: Clock) -> Pods:
    return Pods({OURS}, clock=clock)


def test_a_pod_is_found_by_name_uid_job_and_owner(pods: Pods) -> None:
    a, b = pod("a", job="7", owner="o"), pod("b", 2, job="7", owner="o")
    pods.put(a)
    pods.put(b)
    assert pods.get("ns", "a") is a
    assert pods.by_uid(a.uid) is a
    assert pods.by_job("7") == (a, b)
    assert pods.by_owner(Uid("o")) == (a, b)
    assert pods.ours == {a.uid: a, b.uid: b}
    assert len(pods) == 2


def test_a_new_job_label_moves_the_pod_in_the_index(pods: Pods) -> None:
    pods.put(pod("a", 1, job="7"))
    pods.put(moved := pod("a", 2, job="8"))
    assert pods.by_job("7") == ()
    assert pods.by_job("8") == (moved,)


def test_an_owner_that_is_no_controller_does_not_count(pods: Pods) -> None:
    owner = Owner(api_version="v1", kind="X", name="x", uid=Uid("o"))
    pods.put(replace(pod("a"), owners=(owner,)))
    assert pods.by_owner(Uid("o")) == ()


def test_the_indexes_are_empty_once_everything_is_gone(pods: Pods) -> None:
    pods.put(a := pod("a", job="7", owner="o"))
    pods.drop(replace(a, version="2"))
    assert (pods._by_job, pods._by_owner, dict(pods.ours), list(pods)) == ({}, {}, {}, [])


@pytest.mark.parametrize("version", [1, 2])
def test_an_older_or_equal_state_changes_nothing(pods: Pods, version: int) -> None:
    told: list[Pod | None] = []
    pods.put(newer := pod("a", 2, job="8"))
    pods.on_pod(lambda old, new: told.append(new))
    before = pods.version
    pods.put(pod("a", version, job="7"))
    assert (pods.get("ns", "a"), pods.version, told) == (newer, before, [])


def test_a_list_is_believed_even_with_lower_versions(pods: Pods) -> None:
    pods.put(pod("a", 900))
    pods.begin()
    pods.put(restored := pod("a", 5))
    pods.end()
    assert pods.get("ns", "a") is restored


def test_a_pod_that_went_is_kept_until_forgotten(pods: Pods, clock: Clock) -> None:
    pods.put(a := pod("a"))
    clock.now = 123.0
    final = replace(a, version="5", phase="Failed")
    pods.drop(final)
    gone = pods.gone[a.uid]
    assert (gone.pod, gone.at, gone.deleted) == (final, 123.0, True)
    pods.forget(a.uid)
    pods.forget(a.uid)
    assert not pods.gone


def test_a_pod_missing_from_a_list_is_gone_without_a_deletion(pods: Pods) -> None:
    pods.put(a := pod("a"))
    pods.put(b := pod("b"))
    pods.begin()
    pods.put(b)
    assert not pods.gone
    pods.end()
    assert [(g.pod, g.deleted) for g in pods.gone.values()] == [(a, False)]
    assert pods.synced


def test_a_pod_that_comes_back_is_no_longer_gone(pods: Pods) -> None:
    pods.put(a := pod("a"))
    pods.begin()
    pods.end()
    assert a.uid in pods.gone
    pods.put(a)
    assert not pods.gone


def test_a_pod_that_further_lists_lack_may_have_gone_just_now(clock: Clock, pods: Pods) -> None:
    """The first list may have lied: the containers get their grace from the last word on."""
    pods.put(a := pod("a"))
    pods.begin()
    pods.end()
    clock.now += 50.0
    pods.confirm(a.uid)
    assert (pods.gone[a.uid].deleted, pods.gone[a.uid].at) == (True, clock.now)
    clock.now += 50.0
    pods.confirm(a.uid)
    assert pods.gone[a.uid].at == clock.now - 50.0


def test_a_pod_that_was_sent_to_its_node_and_went_unseen_may_have_been_bound(pods: Pods) -> None:
    sent = replace(pod("a", job="7"), annotations={names.NODE_ANNOTATION: "n1"})
    for seen, node in ((sent, "n1"), (replace(sent, gates=(names.SCHEDULING_GATE,)), ""), (pod("a"), "")):
        pods.put(seen)
        pods.begin()
        pods.end()
        pods.confirm(seen.uid)
        assert pods.gone[seen.uid].pod.node == node
        pods.forget(seen.uid)


def test_a_pod_that_a_list_lacked_and_the_api_server_has_is_there(pods: Pods) -> None:
    pods.put(a := pod("a"))
    pods.begin()
    pods.end()
    pods.restore(a)
    assert pods.ours[a.uid] == a
    pods.drop(a)
    pods.restore(a)  # what was asked for before it went
    assert a.uid not in pods.ours


def test_the_late_deletion_of_an_earlier_pod_does_not_hit_its_successor(pods: Pods) -> None:
    pods.put(pod("a", 1, uid="one"))
    pods.put(two := pod("a", 5, uid="two"))
    pods.drop(pod("a", 4, uid="one"))
    assert pods.get("ns", "a") is two
    assert set(pods.gone) == {"one"}


def test_our_own_writes_can_be_learned_ahead_of_the_watch(pods: Pods) -> None:
    pods.put(pod("a", 1))
    pods.learn(patched := pod("a", 3, job="7"))
    assert pods.by_job("7") == (patched,)
    pods.put(pod("a", 2))  # the watch, a step behind
    assert pods.by_job("7") == (patched,)
    pods.drop(pod("a", 4))
    pods.learn(pod("a", 3, job="7"))
    assert pods.get("ns", "a") is None
    pods.put(pod("a", 6, uid="other"))
    pods.learn(pod("a", 7))
    assert pods.by_job("7") == ()


def test_foreign_pods_are_not_announced_and_leave_no_trace(pods: Pods) -> None:
    told: list[Pod | None] = []
    pods.on_pod(lambda old, new: told.append(new))
    pods.put(theirs := pod("a", scheduler="default-scheduler"))
    assert pods.by_uid(theirs.uid) is theirs
    pods.drop(theirs)
    assert (told, dict(pods.gone), pods.by_uid(theirs.uid)) == ([], {}, None)


def test_the_whole_store_is_as_old_and_as_complete_as_its_oldest_table(clock: Clock) -> None:
    store = Store({OURS}, clock=clock)
    assert store.age() == math.inf
    for table in (store.pods, store.nodes):
        table.begin()
        table.end()
        table.fresh(clock.now)
    early = store.synced
    store.jobs.begin()
    store.jobs.end()
    store.jobs.fresh(clock.now - 5)
    assert (early, store.synced) == (False, True)
    assert store.age() == 5.0


def test_the_version_changes_only_with_the_content(clock: Clock) -> None:
    store = Store({OURS}, clock=clock)
    store.nodes.put(Node(name=KubeNode("n")))
    before = store.version
    store.nodes.put(Node(name=KubeNode("n")))
    assert store.version == before
    store.nodes.put(Node(name=KubeNode("n"), cordoned=True))
    assert store.version == before + 1
    found = store.node(KubeNode("n"))
    assert found is not None
    assert found.cordoned
    store.nodes.drop(Node(name=KubeNode("n")))
    assert store.node(KubeNode("n")) is None


def work(kind: str, version: str, name: str, *above: Owner, **more: Any) -> Workload:
    return Workload(
        namespace="ns",
        kind=kind,
        name=name,
        uid=Uid(f"uid-{name}"),
        api_version=version,
        owners=above,
        **more,
    )


def below(found: Workload) -> Owner:
    return Owner(
        api_version=found.api_version, kind=found.kind, name=found.name, uid=found.uid, controller=True
    )


def test_two_kinds_of_one_name_do_not_collide() -> None:
    store = Store({OURS})
    ours, theirs = work("PodGroup", "scheduling.x-k8s.io/v1alpha1", "g"), work("PodGroup", "b.io/v1", "g")
    store.workloads.serve(("scheduling.x-k8s.io", "PodGroup")).put(ours)
    store.workloads.serve(("b.io", "PodGroup")).put(theirs)
    assert store.workload("PodGroup", "ns", "g", "scheduling.x-k8s.io") is ours
    assert store.workload("PodGroup", "ns", "g", "b.io") is theirs
    assert store.workload("Job", "ns", "g") is None


def test_the_pods_of_an_object_are_found_however_many_stand_between() -> None:
    store = Store({OURS})
    jobset = work("JobSet", "jobset.x-k8s.io/v1alpha2", "js")
    job = work("Job", "batch/v1", "j", below(jobset))
    store.workloads.serve(("jobset.x-k8s.io", "JobSet")).put(jobset)
    store.jobs.put(job)
    store.pods.put(member := pod("a", owner=job.uid))
    store.pods.put(pod("alone"))
    assert list(store.pods_below(jobset)) == [member]
    assert list(store.pods_below(job)) == [member]
    store.jobs.drop(job)
    assert list(store.pods_below(jobset)) == []


def test_the_workers_of_a_set_are_found_through_their_leader() -> None:
    store = Store({OURS})
    whole = work("LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", "lws")
    sets = store.workloads.serve(("apps", "StatefulSet"))
    sets.put(leaders := work("StatefulSet", "apps/v1", "leaders", below(whole)))
    store.pods.put(leader := pod("leader", owner=leaders.uid))
    above = Owner(api_version="v1", kind="Pod", name="leader", uid=leader.uid, controller=True)
    sets.put(workers := work("StatefulSet", "apps/v1", "workers", above))
    store.pods.put(worker := pod("worker", owner=workers.uid))
    assert list(store.pods_below(whole)) == [leader, worker]


def test_the_pods_that_name_a_group_are_found_and_those_of_a_workload_through_its_pod_groups() -> None:
    store = Store({OURS})
    group = work("PodGroup", "scheduling.k8s.io/v1beta1", "g", parent="plan")
    plan = work("Workload", "scheduling.k8s.io/v1beta1", "plan")
    store.workloads.serve((group.group, "PodGroup")).put(group)
    store.pods.put(member := replace(pod("a"), scheduling_group="g"))
    labelled = replace(pod("b"), labels={names.POD_GROUP_LABEL: "g"})
    store.pods.put(labelled)
    assert list(store.pods_below(group)) == [member]
    assert list(store.pods_below(plan)) == [member]
    assert list(store.pods_below(work("PodGroup", "scheduling.x-k8s.io/v1alpha1", "g"))) == [labelled]


def test_what_was_of_a_kind_that_went_away_is_told_once() -> None:
    store = Store({OURS})
    told: list[tuple[Workload | None, Workload | None]] = []
    store.workloads.on_change(lambda old, new: told.append((old, new)))
    kind = ("jobset.x-k8s.io", "JobSet")
    store.workloads.serve(kind).put(jobset := work("JobSet", "jobset.x-k8s.io/v1alpha2", "js"))
    version = store.version
    store.workloads.withdraw(kind)
    assert told == [(None, jobset), (jobset, None)]
    assert store.workloads.find(kind, "ns", "js") is None
    assert store.version > version
