"""The keyed queue: no key is lost, none is worked on twice at once."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from bridge.loops.queue import KeyedQueue


async def test_a_key_added_twice_comes_once() -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    queue.add("a")
    queue.add("a")
    assert await queue.get() == "a"
    assert len(queue) == 0


async def test_a_key_added_while_it_is_worked_on_comes_again_afterwards() -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    queue.add("a")
    key = await queue.get()
    queue.add("a")
    assert len(queue) == 0  # no second worker on the same key
    queue.done(key)
    assert await queue.get() == "a"


async def test_urgent_keys_come_first_and_only_once() -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    for key in "abc":
        queue.add(key)
    queue.add("c", urgent=True)
    queue.add("c", urgent=True)
    order = []
    while len(queue):
        order.append(await queue.get())
        queue.done(order[-1])
    assert order == ["c", "a", "b"]


async def test_the_nearest_of_two_delays_counts() -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    queue.add_after("a", 30.0)
    queue.add_after("a", 0.01)
    queue.add_after("a", 60.0)
    async with asyncio.timeout(5):
        assert await queue.get() == "a"
    queue.close()


async def test_failures_back_off_and_success_forgets_them() -> None:
    queue: KeyedQueue[str] = KeyedQueue()
    delays = [queue.retry("a") for _ in range(12)]
    assert delays[:3] == [0.2, 0.4, 0.8]
    assert delays[-1] == 30.0
    queue.succeeded("a")
    assert queue.retry("a") == 0.2
    assert queue.retry("b", at_least=7.0) == 7.0
    queue.close()


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["add", "urgent", "take"])), max_size=40))
def test_every_added_key_is_delivered_after_its_last_add(script: list[tuple[str, str]]) -> None:
    """`take`: take the next key, if any, and finish it."""

    async def play() -> None:
        queue: KeyedQueue[str] = KeyedQueue()
        owed: set[str] = set()
        for key, what in script:
            if what != "take":
                queue.add(key, urgent=what == "urgent")
                owed.add(key)
            elif len(queue):
                taken = await queue.get()
                owed.discard(taken)
                queue.done(taken)
        while len(queue):
            taken = await queue.get()
            owed.discard(taken)
            queue.done(taken)
        assert not owed

    asyncio.run(play())
