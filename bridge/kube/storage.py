"""Where volumes lie: claims, volumes and their classes, listed and watched for as long as the process lives.

Goes in: a client. Comes out: three tables of the store. What must stay true: nothing waits for them but pods that mount
something, and those not for what the API server does not let us read: that is a note.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec

from bridge.core.constraints import StorageClass, Volume, VolumeClaim
from bridge.errors import Denied
from bridge.kube import constraints, shapes, view
from bridge.kube.client import KubeClient
from bridge.kube.informer import Informer
from bridge.kube.kinds import Kind
from bridge.kube.store import Store

S = TypeVar("S")
T = TypeVar("T")

DENIED_PAUSE = 60.0  # seconds before the API server is asked again for what it has refused to show


class Storage:
    """`run()` ends only by being cancelled, or with a bug of ours."""

    def __init__(self, client: KubeClient, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._informers: dict[str, Informer[Any]] = {}
        self._refused: Counter[str] = Counter()  # times in a row, by kind
        for kind, table in (
            (claims(), store.claims),
            (volumes(), store.volumes),
            (storage_classes(), store.storage_classes),
        ):
            rest = partial(self._rest, kind.name)
            self._informers[kind.name] = Informer(client, kind, table, clock=clock, sleep=rest)
        store.storage_denied = lambda: bool(self._denied())

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for name, informer in self._informers.items():
                tasks.create_task(informer.run(), name=name)

    def notes(self) -> list[str]:
        denied = self._denied()
        if not denied:
            return []
        text = "may not be listed and watched: no node is excluded for the volumes of a pod"
        return [
            f"storage: {', '.join(denied)} {text}; deploy/manifests/cluster/bridge-rights.yaml has the rights"
        ]

    def _denied(self) -> list[str]:
        """What was listed once is refused twice: an API server that comes up says no before it knows who may what."""
        refused = ((name, one) for name, one in self._informers.items() if isinstance(one.last_error, Denied))
        return [name for name, one in refused if not one.lists or self._refused[name] > 1]

    async def _rest(self, name: str, seconds: float) -> None:
        denied = isinstance(self._informers[name].last_error, Denied)
        self._refused[name] = self._refused[name] + 1 if denied else 0
        await asyncio.sleep(max(seconds, DENIED_PAUSE) if name in self._denied() else seconds)


def claims() -> Kind[VolumeClaim]:
    path = "/api/v1/persistentvolumeclaims"
    return _kind("persistentvolumeclaims", path, shapes.VolumeClaimView, constraints.claim)


def volumes() -> Kind[Volume]:
    path = "/api/v1/persistentvolumes"
    return _kind("persistentvolumes", path, shapes.VolumeView, constraints.volume)


def storage_classes() -> Kind[StorageClass]:
    path = "/apis/storage.k8s.io/v1/storageclasses"
    return _kind("storageclasses", path, shapes.StorageClassView, constraints.storage_class)


def _kind(name: str, path: str, shape: type[S], build: Callable[[S], T]) -> Kind[T]:
    many: msgspec.json.Decoder[shapes.ListView[S]] = msgspec.json.Decoder(shapes.ListView[shape])  # type: ignore[valid-type]
    one = msgspec.json.Decoder(shape)

    def page(raw: bytes) -> view.Page[T]:
        found = view.read(many, raw, f"list of {name}")
        return view.Page(
            tuple(map(build, found.items or ())), found.metadata.version, found.metadata.more or ""
        )

    return Kind(name, path, page, lambda line: view.event(line, one, build))
