"""Which optional kinds the cluster has, and an informer for each of them.

In: what the API server serves, looked at every half minute, and at once when something refers to a kind that it did not
serve. Out: the tables of `bridge.kube.workloads`. A kind that is not there is nothing to wait for and nothing to say;
one that may not be read is a note. Neither stops anything.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from bridge.core.model import Workload
from bridge.errors import BridgeError, Denied, ProtocolError
from bridge.kube.client import KubeClient
from bridge.kube.informer import Informer
from bridge.kube.kinds import OPTIONAL, OptionalKind
from bridge.kube.workloads import KindId, Workloads

log = logging.getLogger(__name__)
PACE = 30.0  # seconds between looks
HASTE = 5.0  # seconds at least, whoever wants a look
RETRY = 1.0  # seconds after a look that failed
ABSENT = 2  # looks that must agree that a kind has gone: an API server that has just started knows no CRD yet
LASTING = 60.0  # seconds that a kind has not been read before that is worth a note


@dataclass(slots=True)
class _Watched:
    version: str
    informer: Informer[Workload]
    task: asyncio.Task[None]
    absent: int = 0  # looks in a row that did not find the kind


class Discovery:
    """`run()` ends only by being cancelled, or with a bug of ours."""

    def __init__(
        self,
        client: KubeClient,
        workloads: Workloads,
        *,
        kinds: Sequence[OptionalKind] = OPTIONAL,
        pace: float = PACE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._workloads = workloads
        self._kinds = kinds
        self._pace = pace
        self._clock = clock
        self._watched: dict[OptionalKind, _Watched] = {}
        self._strange: dict[OptionalKind, tuple[str, ...]] = {}  # served only in versions that we can't read
        self._looks = self._failures = 0
        self._settled = False
        self._error: BridgeError | None = None
        self._want = asyncio.Event()
        workloads.settled = self.settled
        workloads.denied = self._denied
        workloads.wanted = self._want.set

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while True:
                try:
                    found = await self._look()
                except BridgeError as error:
                    self._failures += 1
                    self._error = error
                    log.info("asking for API groups: %s: %s", type(error).__name__, error)
                else:
                    self._follow(found, tasks)
                    self._looks += 1
                    self._failures, self._error = 0, None
                if self._failures:
                    await asyncio.sleep(RETRY)
                else:
                    await asyncio.sleep(min(HASTE, self._pace))
                    await self._pause(self._pace - HASTE)

    def settled(self) -> bool:
        """Every kind that the cluster had at first is listed, or can't be; later ones hold up nobody."""
        if not self._settled:
            informers = [watched.informer for watched in self._watched.values()]
            listed = all(informer.lists or informer.last_error for informer in informers)
            self._settled = listed if self._looks else self._failures > ABSENT
        return self._settled

    def notes(self) -> list[str]:
        """What is not read, why, and what helps."""
        found = []
        if self._error is not None and self._failures > ABSENT:
            found.append(f"optional kinds: the API server doesn't say which it has: {self._error}")
        for kind, versions in self._strange.items():
            found.append(
                f"{kind.name}: served as {', '.join(versions)}; this version of the bridge reads"
                f" {', '.join(kind.versions)}: what {kind.kind}s say does not count"
            )
        for kind, watched in self._watched.items():
            error = watched.informer.last_error
            if isinstance(error, Denied):
                found.append(
                    f"{kind.name}: the API server does not let the bridge list and watch them, so what {kind.kind}s"
                    " say does not count; apply the ClusterRole slurm-bridge of this version"
                    " (deploy/manifests/cluster/bridge-rights.yaml)"
                )
            elif error is not None and watched.informer.age() > LASTING:
                found.append(f"{kind.name}: not read for a while: {error}")
        return found

    def ages(self) -> Mapping[str, float]:
        """Seconds since each kind that could be listed was known to be current."""
        return {
            kind.name: watched.informer.age()
            for kind, watched in self._watched.items()
            if watched.informer.lists
        }

    async def _look(self) -> dict[OptionalKind, str]:
        """The best version of each kind that is served; of a kind that can't be told now, the present one."""
        groups = await self._client.api_groups()
        found: dict[OptionalKind, str] = {}
        self._strange.clear()
        for group in dict.fromkeys(kind.group for kind in self._kinds):
            served = {version: await self._resources(group, version) for version in groups.get(group, ())}
            for kind in (kind for kind in self._kinds if kind.group == group):
                versions = [version for version, names in served.items() if names and kind.resource in names]
                readable = [version for version in kind.versions if version in versions]
                if None in served.values() and kind in self._watched:
                    found[kind] = self._watched[kind].version
                elif readable:
                    found[kind] = readable[0]
                elif versions:
                    self._strange[kind] = tuple(versions)
        return found

    async def _resources(self, group: str, version: str) -> frozenset[str] | None:
        """None: the API server does not say."""
        try:
            return await self._client.resources(group, version)
        except ProtocolError:  # 404: gone since we asked for the groups
            return frozenset()
        except BridgeError as error:
            log.info("asking for %s/%s: %s: %s", group, version, type(error).__name__, error)
            return None

    def _follow(self, found: Mapping[OptionalKind, str], tasks: asyncio.TaskGroup) -> None:
        for kind in self._kinds:
            version, watched = found.get(kind, ""), self._watched.get(kind)
            if watched is not None and version in ("", watched.version):
                watched.absent = 0 if version else watched.absent + 1
                if watched.absent >= ABSENT:
                    log.info("%s are no longer served", kind.name)
                    self._stop(kind)
                    self._workloads.withdraw((kind.group, kind.kind))
            elif version:
                if watched is not None:
                    self._stop(kind)
                log.info("watching %s, version %s", kind.name, version)
                table = self._workloads.serve((kind.group, kind.kind))
                informer = Informer(self._client, kind.at(version), table, clock=self._clock)
                task = tasks.create_task(informer.run(), name=kind.name)
                self._watched[kind] = _Watched(version, informer, task)

    def _stop(self, kind: OptionalKind) -> None:
        self._watched.pop(kind).task.cancel()

    def _denied(self, kind: KindId) -> bool:
        return any(
            isinstance(watched.informer.last_error, Denied)
            for known, watched in self._watched.items()
            if (known.group, known.kind) == kind
        )

    async def _pause(self, seconds: float) -> None:
        """Until somebody wants a look, or so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds)):
                await self._want.wait()
        self._want.clear()
