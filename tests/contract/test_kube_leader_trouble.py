"""The Lease in trouble: an API server that hangs or loses answers, people who edit and delete. Time is virtual."""

from __future__ import annotations

import pytest

from bridge.core.lease import DURATION, LOOK, RENEW_DEADLINE, RETRY
from bridge.kube.client import KubeClient
from bridge.kube.leader import Leader
from bridge.metrics import OFFICE
from tests.contract.kube_offices import Scene, running, states, stop
from tests.worlds.kube_faults import Answer, DropAfter, DropBefore, Hang


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_after_a_crash_a_stranger_waits_the_lease_out(scene: Scene) -> None:
    one, two = scene.leader("one"), scene.leader("two")
    async with running(one), running(two):
        await scene.clock.advance(5)
        assert one.leading
        scene.world.faults.plan(DropBefore(), verb="update", when=lambda _: True, times=-1)
        crash = scene.clock.time()
        while states(one, two) == [True, False]:
            await scene.clock.advance(0.25)
        assert states(one, two) == [False, False]
        assert scene.clock.time() - crash <= RENEW_DEADLINE
        scene.world.faults.clear()
        await scene.clock.advance(20)
        assert states(one, two).count(True) == 1


async def test_one_that_was_ousted_leads_again_only_after_the_lease_stood_still(scene: Scene) -> None:
    one, two = scene.leader("pod-0"), scene.leader("pod-0")
    async with running(one):
        await scene.clock.advance(1)
        async with running(two) as task:
            await scene.clock.advance(5)
            assert states(one, two) == [False, True]
            scene.world.faults.plan(DropBefore(), verb="update", times=-1)
            await stop(task)
            scene.world.faults.clear()
            await scene.clock.advance(DURATION - RETRY - 0.1)
            assert not one.leading
            await scene.clock.advance(RETRY + LOOK + 0.1)
            assert one.leading


@pytest.mark.parametrize("effect", [Hang(), Hang(done=True), DropAfter(), Answer(500), Answer(403)], ids=repr)
async def test_leading_ends_by_itself_when_renewals_fail(scene: Scene, effect: Hang) -> None:
    one = scene.leader("one")
    async with running(one):
        await scene.clock.advance(1)
        assert one.leading
        scene.world.faults.plan(effect, resource="leases", times=-1)
        failing_since = scene.clock.time()
        while states(one) == [True]:
            await scene.clock.advance(0.1)
            assert scene.clock.time() - failing_since <= RENEW_DEADLINE + 0.01
        scene.world.faults.clear()
        await scene.clock.advance(20)
        assert states(one) == [True]


async def test_a_renewal_whose_reply_was_lost_costs_nothing(scene: Scene) -> None:
    one = scene.leader("one")
    async with running(one):
        await scene.clock.advance(1)
        scene.world.faults.plan(DropAfter(), verb="update")
        for _ in range(60):
            await scene.clock.advance(0.1)
            assert one.leading
        assert scene.transitions == 0


@pytest.mark.parametrize("verb", ["create", "update"])
async def test_an_acquisition_whose_reply_was_lost_is_made_again_under_a_new_generation(
    scene: Scene, verb: str
) -> None:
    if verb == "update":
        scene.world.add("leases", {"metadata": {"name": "l"}, "spec": {"holderIdentity": ""}})
    scene.world.faults.plan(DropAfter(), verb=verb)
    one = scene.leader("one")
    async with running(one):
        await scene.clock.settle()
        assert scene.holder == "one"
        assert states(one) == [False], "it can't know yet that this was its own write"
        before = scene.transitions
        await scene.clock.advance(RETRY + 0.1)
        assert one.leading
        assert scene.transitions == before + 1


async def test_a_healthy_leader_outlives_an_api_server_that_hangs_for_seconds(scene: Scene) -> None:
    one = scene.leader("one")
    async with running(one):
        for offset in range(20):  # wherever between two renewals it begins
            await scene.clock.advance(10 + offset / 10)
            scene.world.faults.plan(Hang(), resource="leases", times=-1)
            await scene.clock.advance(3.4)
            assert one.leading
            scene.world.faults.clear()
            await scene.clock.advance(3)
            assert one.leading
        assert scene.transitions == 0


async def test_after_an_outage_of_the_api_server_the_leader_goes_on_and_others_follow(scene: Scene) -> None:
    """Nobody could write, so nobody waits the Lease out."""
    one, two = scene.leader("one"), scene.leader("two")
    async with running(one), running(two):
        await scene.clock.advance(5)
        scene.world.faults.plan(Answer(500), resource="leases", times=-1)
        await scene.clock.advance(8)
        assert states(one, two) == [False, False]
        scene.world.faults.clear()
        await scene.clock.advance(RETRY + 0.1)
        assert states(one, two).count(True) == 1


async def test_a_lease_that_somebody_took_is_lost_at_once(scene: Scene) -> None:
    one = scene.leader("one")
    async with running(one):
        await scene.clock.advance(1)
        scene.world.storage.patch("leases", "default", "l", {"spec": {"holderIdentity": "thief"}})
        await scene.clock.advance(2.5)
        assert not one.leading
        assert one.holder == "thief"


async def test_a_lease_that_was_deleted_is_made_again(scene: Scene) -> None:
    one = scene.leader("one")
    async with running(one):
        await scene.clock.advance(1)
        scene.world.storage.delete("leases", "default", "l", {})
        await scene.clock.advance(5)
        assert one.leading
        assert scene.holder == "one"


async def test_a_follower_does_not_take_a_lease_that_was_deleted_under_a_living_leader(scene: Scene) -> None:
    one, two = scene.leader("one"), scene.leader("two")
    async with running(one), running(two):
        await scene.clock.advance(3.5)
        assert states(one, two) == [True, False]
        scene.world.storage.delete("leases", "default", "l", {})
        for _ in range(50):
            await scene.clock.advance(0.1)
            assert states(one, two) == [True, False]
        assert scene.holder == "one"


async def test_an_edit_of_the_lease_by_a_person_costs_nothing(scene: Scene) -> None:
    one = scene.leader("one")
    async with running(one):
        await scene.clock.advance(1)
        for turn in range(20):
            note = {"metadata": {"annotations": {"example.com/note": str(turn)}}}
            scene.world.storage.patch("leases", "default", "l", note)
            await scene.clock.advance(1.3)
            assert one.leading
        assert scene.transitions == 0


async def test_a_clean_shutdown_frees_a_lease_whose_renewal_was_under_way(scene: Scene) -> None:
    one = scene.leader("one")
    async with running(one) as task:
        await scene.clock.advance(1)
        scene.world.faults.plan(Hang(done=True), verb="update")
        await scene.clock.advance(1.5)
        await stop(task)
    assert scene.holder == ""


async def test_a_clean_shutdown_does_not_free_a_lease_under_a_twin_that_may_still_lead(scene: Scene) -> None:
    one, two, heir = scene.leader("pod-0"), scene.leader("pod-0"), scene.leader("heir")
    async with running(one):
        await scene.clock.advance(0.5)
        async with running(two) as task, running(heir):
            await scene.clock.settle()
            assert states(one, two) == [True, True], "the first one has yet to notice"
            await stop(task)
            await scene.clock.advance(1)
            assert not heir.leading


async def test_a_clean_shutdown_leaves_a_lease_that_somebody_took(scene: Scene) -> None:
    one = scene.leader("one")
    async with running(one):
        await scene.clock.advance(1)
        scene.world.storage.patch("leases", "default", "l", {"spec": {"holderIdentity": "thief"}})
    assert scene.holder == "thief"


async def test_a_missing_namespace_is_no_reason_to_hammer(scene: Scene) -> None:
    calls: list[str] = []
    one = Leader(
        KubeClient(scene.world, lambda verb, *_: calls.append(verb)), "nowhere", "l", "one",
        clock=scene.clock.time, now=scene.clock.unix, sleep=scene.clock.sleep,
    )  # fmt: skip
    async with running(one):
        await scene.clock.advance(10)
    assert not one.leading
    assert len(calls) <= 14


async def test_each_change_of_office_is_told_with_its_generation(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> list[str]:
        fields = [getattr(record, "fields", {}) for record in caplog.records]
        return [f"{f.get('why', 'won')} {f['generation']}" for f in fields if "generation" in f]

    before = {change: _changes(change) for change in ("won", "lapsed", "ousted", "released")}
    one = scene.leader("one")
    with caplog.at_level("INFO", logger="bridge.leader"):
        async with running(one):
            await scene.clock.advance(1)
            scene.world.faults.plan(Answer(500), resource="leases", times=-1)
            await scene.clock.advance(RENEW_DEADLINE + 1)
            scene.world.faults.clear()
            await scene.clock.advance(RETRY)
            theft = {"spec": {"holderIdentity": "thief", "leaseTransitions": 7}}
            scene.world.storage.patch("leases", "default", "l", theft)
            await scene.clock.advance(RETRY + 0.1)
            assert not one.leading
            await scene.clock.advance(DURATION + LOOK)
    assert told() == ["won 0", "lapsed 0", "won 1", "ousted 7", "won 8", "released 8"]
    grown = {change: _changes(change) - was for change, was in before.items()}
    assert grown == {"won": 3, "lapsed": 1, "ousted": 1, "released": 1}


def _changes(change: str) -> float:
    return float(OFFICE.labels(change)._value.get())
