"""What the API server last told us of one kind, by key: filled by an informer, read by anybody.

A read between two pages of a list sees some objects newer than others, never one older than it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")
In = TypeVar("In", contravariant=True)
Key = tuple[str, ...]
Clock = Callable[[], float]


class Sink(Protocol[In]):
    """Where an informer puts what it reads."""

    def put(self, item: In, /) -> None:
        """Added or changed, or the same again."""

    def drop(self, item: In, /) -> None:
        """Deleted; `item` is the final state."""

    def begin(self) -> None:
        """A list starts: every item that isn't put before `end` is gone."""

    def end(self) -> None:
        """The list is complete."""

    def fresh(self, at: float, /) -> None:
        """At that monotonic time we knew all there was to know."""

    def watching(self, on: bool, /) -> None:
        """A watch tells what is new, or none does any more."""


class Table(Generic[T]):
    """Objects of one kind by key. `version` counts changes; `synced` is True after the first complete
    list.
    """

    def __init__(self, key: Callable[[T], Key], *, clock: Clock = time.monotonic) -> None:
        self._key = key
        self._clock = clock
        self._items: dict[Key, T] = {}
        self._listed: set[Key] | None = None
        self._fresh = float("-inf")
        self._unwatched: float | None = float("-inf")  # since when; None: it is watched
        self._listeners: list[Callable[[T | None, T | None], None]] = []
        self.version = 0
        self.synced = False

    def get(self, *key: str) -> T | None:
        return self._items.get(key)

    def __iter__(self) -> Iterator[T]:
        return iter(tuple(self._items.values()))

    def __len__(self) -> int:
        return len(self._items)

    def age(self) -> float:
        """Seconds since we last knew that we were current; infinite before the first list."""
        return self._clock() - self._fresh

    def unwatched(self) -> float:
        """Seconds for which nobody has told what is new; 0.0 = a watch is open, which may be silent."""
        return 0.0 if self._unwatched is None else self._clock() - self._unwatched

    # --- for the informer -------------------------------------------------------------------------

    def put(self, item: T) -> None:
        key = self._key(item)
        if self._listed is not None:
            self._listed.add(key)
        old = self._items.get(key)
        if not self._stale(old, item):
            self._items[key] = item
            self._changed(old, item)

    def learn(self, item: T) -> None:
        """The answer to a write of ours, ahead of the watch; ignored if there is no such item, or a list comes in."""
        if self._listed is None and self._key(item) in self._items:
            self.put(item)

    def drop(self, item: T) -> None:
        key = self._key(item)
        old = self._items.get(key)
        if old is None or self._stale(old, item, dropping=True):
            return
        del self._items[key]
        self._removed(old, item)

    def begin(self) -> None:
        self._listed = set()

    def end(self) -> None:
        if self._listed is not None:
            for key in self._items.keys() - self._listed:
                self._removed(self._items.pop(key), None)
        self._listed = None
        if not self.synced:
            self.version += 1
        self.synced = True

    def fresh(self, at: float) -> None:
        self._fresh = at

    def watching(self, on: bool) -> None:
        self._unwatched = None if on else self._clock()

    # --- what differs by kind ---------------------------------------------------------------------

    def _stale(self, old: T | None, new: T, *, dropping: bool = False) -> bool:
        """Nothing new in `new`: the same again, or older than what we hold."""
        return not dropping and old == new

    def on_change(self, listener: Callable[[T | None, T | None], None]) -> None:
        """Of what came (None, new), changed, or went (old, None)."""
        self._listeners.append(listener)

    def _changed(self, old: T | None, new: T) -> None:
        self.version += 1
        for listener in self._listeners:
            listener(old, new)

    def _removed(self, old: T, final: T | None) -> None:
        self.version += 1
        for listener in self._listeners:
            listener(old, None)
