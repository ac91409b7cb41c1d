"""An API server in memory that the bridge's client talks to without a socket.

`KubeWorld` is a `bridge.kube.wire.Wire`: real paths, JSON, Status bodies and watch lines, over
`kube_storage`. Time is injected (`clock` monotonic, `now` Unix seconds, `sleep`), accidents are planned with
`world.faults.plan(...)` and `world.cut_watches()`, and every write that was carried out is counted in
`world.writes[verb, resource]`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

import msgspec

from bridge.errors import UnknownOutcome, Unreachable
from bridge.kube.wire import JSON, STRATEGIC_MERGE, Query, Reply, refusal
from tests.worlds import kube_apis
from tests.worlds.kube_faults import Answer, DropAfter, DropBefore, Effect, Faults, Hang, Request, Truncate
from tests.worlds.kube_merge import Object
from tests.worlds.kube_paths import parse
from tests.worlds.kube_storage import Refused, Resource, Storage, encode, status

BOOKMARK_SECONDS = 60.0


class KubeWorld:
    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._watches: dict[_Watch, None] = {}  # a set that keeps its order
        self._snapshots: dict[str, list[Object]] = {}
        self.on_change: Callable[[str], None] = lambda resource: None  # after every change of any object
        self.serving = False  # a client's request is being carried out now: what changes, it changes
        self.storage = Storage(now, self._wake)
        self.faults = Faults()
        self.writes: Counter[tuple[str, str]] = Counter()
        self.reads: Counter[tuple[str, str]] = Counter()
        self.denied: set[tuple[str, str]] = set()  # (verb, resource) that RBAC refuses
        self.latency = 0.0  # seconds before every answer
        self.loses: Callable[[], bool] = lambda: False  # asked for each event of each watch: is it lost?
        self.now = now

    # --- for tests and agents: no faults, no counters ---------------------------------------------

    def install(self, name: str, kind: str, group: str) -> str:
        """Serve the namespaced resource `name` at `group`, "jobset.x-k8s.io/v1alpha2". Returns what `add` calls it."""
        return self.storage.install(Resource(name, kind, group))

    def uninstall(self, key: str) -> None:
        """No longer served: its objects are gone, and its watches end."""
        self.storage.uninstall(key)
        self.cut_watches(key)

    def namespace(self, name: str) -> Object:
        return self.storage.create("namespaces", "", {"metadata": {"name": name}})

    def add(self, resource: str, body: Mapping[str, Any], namespace: str = "") -> Object:
        where = namespace or (body.get("metadata") or {}).get("namespace") or "default"
        return self.storage.create(
            resource, where if self.storage.resources[resource].namespaced else "", body
        )

    def get(self, resource: str, name: str, namespace: str = "default") -> Object | None:
        where = namespace if self.storage.resources[resource].namespaced else ""
        return self.storage.objects[resource].get((where, name))

    def compact(self) -> None:
        """All history so far is gone: resuming a watch or a list from before answers 410."""
        self.storage.compact()
        self._snapshots.clear()

    # --- accidents of watches ---------------------------------------------------------------------

    def cut_watches(self, resource: str | None = None, *, reset: bool = False) -> int:
        """Every open watch ends: silently (EOF), or with a reset connection. Returns how many."""
        return self._each(resource, lambda watch: watch.cut("reset" if reset else "eof"))

    def mute_watches(self, resource: str | None = None) -> int:
        """Every open watch stays open and says nothing any more."""
        return self._each(resource, lambda watch: watch.cut("mute"))

    def repeat_events(self, resource: str | None = None) -> int:
        """The next event of every open watch comes twice."""
        return self._each(resource, _Watch.repeat)

    def drop_events(self, resource: str | None = None, *, count: int = 1) -> int:
        """The next `count` events of every open watch are lost, without a sign."""
        return self._each(resource, lambda watch: watch.skip(count))

    def delay_watches(self, seconds: float, resource: str | None = None) -> int:
        """Every open watch says nothing for so long, and then everything."""
        until = self._clock() + seconds
        return self._each(resource, lambda watch: watch.delay(until))

    def _each(self, resource: str | None, act: Callable[[_Watch], None]) -> int:
        chosen = [watch for watch in self._watches if resource in (None, watch.resource)]
        for watch in chosen:
            act(watch)
        return len(chosen)

    def _wake(self, resource: str) -> None:
        for watch in self._watches:
            if watch.resource == resource:
                watch.changed.set()
        self.on_change(resource)

    # --- Wire -------------------------------------------------------------------------------------

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout: float,
    ) -> Reply:
        await (self._sleep(self.latency) if self.latency else asyncio.sleep(0))
        asked, sub = parse(method, path, self.storage.resources)
        if asked is None:
            return Reply(404, {}, b"404 page not found\n")
        effect = self.faults.strike(asked)
        await self._before(effect, timeout, f"{method} {path}")
        if isinstance(effect, Answer):
            found = effect.body or status(
                effect.status, effect.reason, "planned by the test", name=asked.name
            )
            return Reply(effect.status, effect.headers, found)
        reply = self._serve(asked, sub, method, query or {}, body, content_type, accept)
        if isinstance(effect, DropAfter):
            raise UnknownOutcome(f"{method} {path}: the reply was lost")
        if isinstance(effect, Hang):
            await self._sleep(timeout)
            raise UnknownOutcome(f"{method} {path}: no answer in time")
        if isinstance(effect, Truncate):
            return Reply(reply.status, reply.headers, reply.body[: effect.keep])
        return reply

    async def _before(self, effect: Effect | None, timeout: float, what: str) -> None:
        if isinstance(effect, DropBefore):
            raise Unreachable(f"{what}: connection refused")
        if isinstance(effect, Hang) and not effect.done:
            await self._sleep(timeout)
            raise UnknownOutcome(f"{what}: no answer in time")

    def _serve(
        self,
        asked: Request,
        sub: str,
        method: str,
        query: Query,
        body: bytes | None,
        content_type: str,
        accept: str,
    ) -> Reply:
        if (asked.verb, asked.resource) in self.denied:
            text = f'{asked.resource} is forbidden: cannot {asked.verb} resource "{asked.resource}"'
            return Reply(403, {}, status(403, "Forbidden", text, kind=asked.resource))
        if asked.resource not in (*self.storage.resources, "apis"):
            text = "the server could not find the requested resource"
            return Reply(404, {}, status(404, "NotFound", text))
        try:
            found: Any = msgspec.json.decode(body) if body else {}
            if not isinstance(found, dict):
                raise Refused(400, "BadRequest", "json: cannot unmarshal")
            if method == "PATCH" and content_type != STRATEGIC_MERGE:
                raise Refused(415, "UnsupportedMediaType", "415: Unsupported Media Type")
            self.serving = True
            code, answer = self._carry_out(asked, sub, query, found, accept)
        except Refused as refused:
            return Reply(refused.code, {}, refused.body)
        finally:
            self.serving = False
        counter = self.reads if method == "GET" else self.writes
        counter[asked.verb, asked.resource] += 1
        return Reply(code, {}, answer)

    def _carry_out(
        self, asked: Request, sub: str, query: Query, body: Object, accept: str
    ) -> tuple[int, bytes]:
        store, resource, namespace, name = self.storage, asked.resource, asked.namespace, asked.name
        if resource == "apis":
            served = store.resources.values()
            return 200, kube_apis.resources(served, name) if name else kube_apis.groups(served)
        match asked.verb:
            case "list":
                return 200, self._list(resource, namespace, query, accept)
            case "get":
                return 200, encode(store.get(resource, namespace, name))
            case "create":
                return 201, encode(store.create(resource, namespace, body))
            case "update":
                return 200, encode(store.replace(resource, namespace, name, body))
            case "patch" | "patch_status":
                return 200, encode(store.patch(resource, namespace, name, body, subresource=sub))
            case "bind":
                store.bind(namespace, name, body)
                return 201, status(201, "", "")
            case "delete":
                return 200, encode(store.delete(resource, namespace, name, body))
            case verb:
                raise Refused(405, "MethodNotAllowed", verb)

    def _list(self, resource: str, namespace: str, query: Query, accept: str) -> bytes:
        limit = int(query.get("limit", "0"))
        token = query.get("continue", "")
        if token:
            key, version = _read_token(token)
            if key not in self._snapshots:
                raise Refused(410, "Expired", "The provided continue parameter is too old")
            items = self._snapshots.pop(key)
        else:
            items, version = list(self.storage.all(resource, namespace)), str(self.storage.version)
            if selector := query.get("fieldSelector"):
                field, _, value = selector.partition("=")
                assert field == "spec.nodeName", f"this world does not select by {field}"
                items = [item for item in items if item["spec"].get("nodeName", "") == value]
        meta: Object = {"resourceVersion": version}
        if limit and len(items) > limit:
            key = f"{version}-{resource}-{len(items)}-{len(self._snapshots)}"
            self._snapshots[key] = items[limit:]
            meta["continue"] = base64.b64encode(json.dumps([key, version]).encode()).decode()
            meta["remainingItemCount"] = len(items) - limit
            items = items[:limit]
        if kube_apis.wants_metadata(accept):
            items = [kube_apis.bare(item) for item in items]
        kind = self.storage.resources[resource]
        return encode(
            {"kind": f"{kind.kind}List", "apiVersion": kind.group, "metadata": meta, "items": items}
        )

    @asynccontextmanager
    async def stream(
        self, path: str, query: Query, timeout: float, accept: str = JSON
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        await (self._sleep(self.latency) if self.latency else asyncio.sleep(0))
        asked, _ = parse("GET", path, self.storage.resources)
        if asked is None:
            raise refusal(404, {}, b"404 page not found\n", f"WATCH {path}")
        asked = Request("watch", asked.resource, asked.namespace, "")
        effect = self.faults.strike(asked)
        await self._before(effect, timeout, f"WATCH {path}")
        if isinstance(effect, Answer):
            found = effect.body or status(effect.status, effect.reason, "planned by the test")
            raise refusal(effect.status, effect.headers, found, f"WATCH {path}")
        if ("watch", asked.resource) in self.denied:
            raise refusal(403, {}, status(403, "Forbidden", "is forbidden"), f"WATCH {path}")
        self.reads["watch", asked.resource] += 1
        watch = _Watch(self, asked, int(query.get("resourceVersion") or self.storage.version), timeout)
        if isinstance(effect, DropAfter):
            watch.cut("reset")
        self._watches[watch] = None
        try:
            seconds = float(query.get("timeoutSeconds", "3600"))
            async with aclosing(watch.lines(seconds, query.get("allowWatchBookmarks") == "true")) as lines:
                yield _bare(lines) if kube_apis.wants_metadata(accept) else lines
        finally:
            self._watches.pop(watch, None)


class _Watch:
    def __init__(self, world: KubeWorld, asked: Request, version: int, silence: float) -> None:
        self._world = world
        self._version = version
        self._silence = silence
        self._end = ""  # eof, reset, mute
        self._repeats = 0
        self._skips = 0
        self._later = float("-inf")  # says nothing before
        self.resource = asked.resource
        self.changed = asyncio.Event()

    def cut(self, how: str) -> None:
        self._end = how
        self.changed.set()

    def repeat(self) -> None:
        self._repeats += 1

    def skip(self, count: int) -> None:
        self._skips += count

    def delay(self, until: float) -> None:
        self._later = until

    async def lines(self, seconds: float, bookmarks: bool) -> AsyncGenerator[bytes, None]:
        world, clock = self._world, self._world._clock
        if self._version < world.storage.compacted:
            expired = json.loads(status(410, "Expired", f"too old resource version: {self._version}"))
            yield encode({"type": "ERROR", "object": expired})
            return
        start = spoke = clock()
        bookmark = start + BOOKMARK_SECONDS
        while True:
            self.changed.clear()
            if self._end == "" and clock() >= self._later:
                upto = world.storage.version  # more may come while we yield
                for record in list(world.storage.since(self.resource, self._version)):
                    self._version = record.version
                    if self._skips:
                        self._skips -= 1
                        continue
                    if world.loses():
                        continue
                    spoke = clock()
                    yield record.line
                    if self._repeats:
                        self._repeats -= 1
                        yield record.line
                    if self._end:
                        break
                if self._end == "":
                    self._version = max(self._version, upto)
            at = clock()
            if self._end == "eof" or (at >= start + seconds and self._end == ""):
                return
            if self._end == "reset":
                raise UnknownOutcome(f"WATCH {self.resource}: connection reset")
            if at >= spoke + self._silence:
                raise UnknownOutcome(f"WATCH {self.resource}: silent for {self._silence} s")
            if bookmarks and at >= bookmark and self._end == "":
                bookmark, spoke = at + BOOKMARK_SECONDS, at
                if self._version > world.storage.version:
                    continue  # the client is ahead of us: the real server keeps quiet, too
                kind = self._world.storage.resources[self.resource]
                meta = {"resourceVersion": str(self._version), "creationTimestamp": None}
                mark = {"kind": kind.kind, "apiVersion": kind.group, "metadata": meta}
                yield encode({"type": "BOOKMARK", "object": mark})
            deadlines = [spoke + self._silence]
            if self._end == "":
                deadlines += [start + seconds, *([bookmark] if bookmarks else [])]
            if self._later > clock():
                deadlines.append(self._later)
            # At least a step that the clock can show: a rounding error short of a deadline, time would stand still.
            await self._pause(max(1e-6, min(deadlines) - clock()))

    async def _pause(self, seconds: float) -> None:
        """Until something changes, or that much of the world's time has passed."""
        if self.changed.is_set():
            return
        if self._world._sleep is asyncio.sleep:  # the loop's own time: a tenth of the cost of two tasks
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.changed.wait()
            return
        waits = [
            asyncio.ensure_future(self.changed.wait()),
            asyncio.ensure_future(self._world._sleep(seconds)),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
            await asyncio.gather(*waits, return_exceptions=True)


async def _bare(lines: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    async for line in lines:
        yield kube_apis.bare_line(line)


def _read_token(token: str) -> tuple[str, str]:
    try:
        key, version = json.loads(base64.b64decode(token))
    except ValueError:
        raise Refused(400, "BadRequest", "invalid continue token") from None
    return key, version
