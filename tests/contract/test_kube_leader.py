"""One leader at a time, and a successor soon. Time is virtual except against the real API server."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge.core.lease import DURATION, LOOK, RETRY, LeaseRecord
from bridge.errors import Conflict, Invalid, NotFound
from bridge.kube.client import KubeClient
from bridge.kube.leader import Leader
from bridge.kube.wire import STRATEGIC_MERGE
from tests.contract import kube_fixture
from tests.contract.kube_fixture import Side, eventually
from tests.contract.kube_offices import Scene, running, states, stop
from tests.worlds.kube_faults import DropBefore

side = kube_fixture.side


@pytest.fixture
def scene() -> Scene:
    return Scene()


# --- both API servers -----------------------------------------------------------------------------


async def test_a_lease_is_created_once_and_updated_at_its_version(side: Side) -> None:
    with pytest.raises(NotFound):
        await side.client.lease(side.namespace, "l")
    wanted = LeaseRecord(holder="me", duration=15, acquired=1e9, renewed=1.5e9, transitions=2)
    made = await side.client.create_lease(side.namespace, "l", wanted)
    assert made.same_renewal(wanted)
    assert made.version
    with pytest.raises(Conflict) as found:
        await side.client.create_lease(side.namespace, "l", wanted)
    assert found.value.code == "AlreadyExists"
    free = await side.client.update_lease(side.namespace, "l", replace(made, holder=""))
    assert free.holder == ""
    with pytest.raises(Conflict) as found:
        await side.client.update_lease(side.namespace, "l", made)
    assert found.value.code == "Conflict"
    with pytest.raises(Invalid):
        await side.client.update_lease(side.namespace, "l", replace(free, duration=0))
    assert await side.client.lease(side.namespace, "l") == free


async def test_an_update_makes_a_lease_that_was_deleted(side: Side) -> None:
    wanted = LeaseRecord(holder="me", acquired=1e9, renewed=1e9, version="5")
    made = await side.client.update_lease(side.namespace, "l", wanted)
    assert made.same_renewal(wanted)
    assert made == await side.client.lease(side.namespace, "l")


async def test_a_clean_shutdown_hands_over_at_once(side: Side) -> None:
    one, two = (
        Leader(side.client, side.namespace, "l", name, retry=0.1, look=0.1) for name in ("one", "two")
    )
    async with running(one) as first:
        await eventually(lambda: one.leading, within=10)
        async with running(two):
            await eventually(lambda: two.holder == "one")
            assert not two.leading
            await stop(first)
            assert not one.leading
            await eventually(lambda: two.leading, within=DURATION - 1, promised=True)
            assert (await side.client.lease(side.namespace, "l")).holder == "two"


async def test_a_second_process_of_one_name_takes_over_and_the_first_one_stops(side: Side) -> None:
    one, two = (Leader(side.client, side.namespace, "l", "pod-0", retry=0.1, look=0.1) for _ in "12")
    async with running(one):
        await eventually(lambda: one.leading, within=10)
        before = await side.client.lease(side.namespace, "l")
        async with running(two):
            await eventually(lambda: two.leading and not one.leading)
            after = await side.client.lease(side.namespace, "l")
            assert after.transitions == before.transitions + 1
            assert after.acquired > before.acquired


async def test_what_people_write_on_the_lease_outlives_renewals_and_is_seen(side: Side) -> None:
    seen: list[LeaseRecord] = []
    one = Leader(side.client, side.namespace, "l", "one", retry=0.1, seen=seen.append)
    path = f"/apis/coordination.k8s.io/v1/namespaces/{side.namespace}/leases/l"
    async with running(one):
        await eventually(lambda: one.leading, within=10)
        generation = seen[-1].generation
        patch = {"metadata": {"annotations": {"example.com/a": "b"}, "labels": {"c": "d"}}}
        await side.must("PATCH", path, patch, content_type=STRATEGIC_MERGE)
        await eventually(lambda: seen[-1].annotations == {"example.com/a": "b"})
        renewals = len(seen)
        await eventually(lambda: len(seen) > renewals + 2)
        assert one.leading
    left = await side.client.lease(side.namespace, "l")
    assert (left.annotations, left.labels, left.uid) == (seen[-1].annotations, {"c": "d"}, seen[0].uid)
    assert left.transitions == generation.transitions


async def test_what_a_leader_tells_the_next_one_is_written_with_its_renewals(side: Side) -> None:
    seen: list[LeaseRecord] = []
    one = Leader(side.client, side.namespace, "l", "one", retry=0.1, tell=lambda led: {"led": f"{led > 0.2}"})
    two = Leader(side.client, side.namespace, "l", "two", retry=0.1, look=0.1, seen=seen.append)
    async with running(one) as first, running(two):
        await eventually(lambda: bool(seen) and seen[-1].annotations == {"led": "True"})
        await stop(first)
        await eventually(lambda: two.leading, within=DURATION - 1, promised=True)
    assert seen[-1].annotations == {"led": "True"}, "kept by one who tells nothing"


# --- virtual time ---------------------------------------------------------------------------------


async def test_there_is_never_more_than_one_leader_and_it_renews(scene: Scene) -> None:
    one, two = scene.leader("one"), scene.leader("two")
    async with running(one), running(two):
        for _ in range(240):
            await scene.clock.advance(0.5)
            assert states(one, two).count(True) == 1
        assert scene.world.writes["update", "leases"] == pytest.approx(60, abs=2)


async def test_a_stranger_takes_over_once_the_record_stood_still_for_its_duration(scene: Scene) -> None:
    dead, heir = scene.leader("dead"), scene.leader("heir")
    async with running(dead) as task:
        await scene.clock.advance(1)
        async with running(heir):
            await scene.clock.advance(5)
            assert states(dead, heir) == [True, False]
            scene.world.faults.plan(
                DropBefore(), verb="update", times=-1
            )  # the release is lost as in a crash
            await stop(task)
            scene.world.faults.clear()
            await scene.clock.advance(DURATION - RETRY - 0.1)
            assert states(dead, heir) == [False, False]
            await scene.clock.advance(RETRY + LOOK + 0.1)
            assert states(dead, heir) == [False, True]


async def test_the_same_identity_is_back_at_once(scene: Scene) -> None:
    one = scene.leader("pod-0")
    async with running(one) as task:
        await scene.clock.advance(1)
        assert one.leading
        scene.world.faults.plan(DropBefore(), verb="update", times=-1)  # the release is lost as in a crash
        await stop(task)
    scene.world.faults.clear()
    assert scene.holder == "pod-0"
    again = scene.leader("pod-0")
    async with running(again):
        await scene.clock.settle()
        assert again.leading


@pytest.mark.parametrize("head_start", [0.0, 0.5, 3.0, 100.0])
async def test_of_two_processes_of_one_name_the_later_leads_and_stays(
    scene: Scene, head_start: float
) -> None:
    one, two = scene.leader("pod-0"), scene.leader("pod-0")
    async with running(one):
        await scene.clock.advance(head_start)
        async with running(two):
            await scene.clock.advance(RETRY + 0.1)
            won = states(one, two)
            assert won.count(True) == 1
            assert won == [False, True] or head_start == 0.0
            for _ in range(300):
                await scene.clock.advance(1)
                assert states(one, two) == won


async def test_a_clean_shutdown_frees_the_lease(scene: Scene) -> None:
    one = scene.leader("one")
    async with running(one):
        await scene.clock.advance(1)
        assert scene.holder == "one"
    assert scene.holder == ""
    assert not one.leading


async def test_a_follower_does_not_free_the_lease_of_the_leader(scene: Scene) -> None:
    one, two = scene.leader("one"), scene.leader("two")
    async with running(one):
        await scene.clock.advance(1)
        async with running(two):
            await scene.clock.advance(3)
        assert scene.holder == "one"


def test_times_that_cannot_be_safe_are_refused(scene: Scene) -> None:
    with pytest.raises(ValueError, match="renew_deadline"):
        Leader(KubeClient(scene.world), "default", "l", "one", duration=5, renew_deadline=10)
