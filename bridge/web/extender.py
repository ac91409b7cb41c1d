"""filter and bind for kube-scheduler: the only two requests on its critical path.

filter answers from memory and writes nothing; where memory may lag behind a grant (a follower polls Slurm at a tenth of
the leader's rate) it reads that one job first, within limits. bind verifies pod, job and node again, POSTs the binding
with UID and resourceVersion, and is idempotent: "already bound there" is success. Everything else is an error, and the
leader decides what follows. Both are plain ASGI: a web framework would cost ten times the CPU of the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

import msgspec

from bridge.core.answers import Asked
from bridge.core.model import JobId, KubeNode, Pod, Uid
from bridge.core.steps import Bind
from bridge.core.verdict import Reason, Verdict
from bridge.errors import BridgeError, Conflict, NotFound
from bridge.log import logger
from bridge.metrics import EXTENDER
from bridge.web import wire
from bridge.web.budget import Budget

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

log = logger("extender")
LAGGING = (Reason.STALE, Reason.NOT_GRANTED)  # refusals that a newer look at the job may turn
BODY_LIMIT = 16 << 20  # bytes; 10,000 node names are 300 KB
READS_PER_SECOND = 50.0  # of jobs in Slurm, for all that kube-scheduler asks
READ_AGAIN = 1.0  # seconds between two reads of one job
READ_TIMEOUT = 1.0  # seconds that an answer may take longer for it; kube-scheduler gives up after 5
BIND_TRIES = 3  # a pod that changes under a bind is read again


class View(Protocol):
    """What the extender may see; `bridge.grants` gives it."""

    def allowed(self, pod: Asked) -> KubeNode | Verdict: ...
    async def confirm(self, pod: Asked) -> KubeNode | Verdict: ...
    async def alone(self, pod: Asked, node: KubeNode) -> KubeNode | Verdict: ...
    def pod(self, namespace: str, name: str) -> Pod | None: ...
    async def fresh_pod(self, namespace: str, name: str) -> Pod: ...


class Writer(Protocol):
    async def apply(self, step: Bind) -> object: ...


class Extender:
    """`clock` is monotonic."""

    def __init__(self, view: View, writer: Writer, clock: Callable[[], float] = time.monotonic) -> None:
        self._view = view
        self._writer = writer
        self._clock = clock
        self._reads = Budget(READS_PER_SECOND, clock)
        self._read_at: dict[JobId, float] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        verb = scope["path"].rsplit("/", 1)[-1]
        body = await _body(receive)
        if body is None:
            await _reply(send, 413, b'{"Error":"request body too large"}')
            return
        begun = time.perf_counter()
        try:
            reply: wire.FilterResult | wire.BindResult
            if verb == "filter":
                answer, reply = await self.filter(wire.filter_args.decode(body))
            elif verb == "bind":
                answer, reply = await self.bind(wire.bind_args.decode(body))
            else:
                await _reply(send, 404, b'{"Error":"unknown verb: filter and bind exist"}')
                return
        except msgspec.MsgspecError as error:
            await _reply(send, 400, wire.encode(wire.BindResult(error=f"cannot read the request: {error}")))
            return
        EXTENDER.labels(verb, answer).observe(time.perf_counter() - begun)
        await _reply(send, 200, wire.encode(reply))

    async def filter(self, args: wire.FilterArgs) -> tuple[str, wire.FilterResult]:
        meta = args.pod.metadata
        asked = Asked(uid=Uid(meta.uid), labels=meta.labels, annotations=meta.annotations)
        answer = self._view.allowed(asked)
        if isinstance(answer, Verdict) and answer.reason in LAGGING and self._may_read(asked.job):
            with contextlib.suppress(BridgeError, TimeoutError):
                async with asyncio.timeout(READ_TIMEOUT):
                    answer = await self._view.confirm(asked)
        nodes = args.nodes or []
        if not isinstance(answer, Verdict):
            if answer in nodes:
                return "allowed", wire.FilterResult(nodes=[answer])
            answer = Verdict(Reason.OTHER_NODE, f"Slurm granted {answer}, which is not among the candidates")
        # One node carries the reason: kube-scheduler counts the texts, and 1,000 copies would only cost time.
        failed = {nodes[0]: f"slurm-bridge: {answer.text}"} if nodes else {}
        return "refused", wire.FilterResult(nodes=[], failed=failed)

    def _may_read(self, job: JobId | None) -> bool:
        now = self._clock()
        if job is None or now - self._read_at.get(job, float("-inf")) < READ_AGAIN or not self._reads.spend():
            return False
        self._read_at = {j: at for j, at in self._read_at.items() if now - at < READ_AGAIN} | {job: now}
        return True

    async def bind(self, args: wire.BindArgs) -> tuple[str, wire.BindResult]:
        try:
            refusal = await self._bind(args)
        except BridgeError as error:
            refusal = f"{type(error).__name__}: {error}"
        if refusal:
            log.warning("bind refused", pod=f"{args.namespace}/{args.name}", node=args.node, why=refusal)
            return "refused", wire.BindResult(error=f"slurm-bridge: {refusal}")
        return "bound", wire.BindResult()

    async def _bind(self, args: wire.BindArgs) -> str:
        """ "" = bound. The pod in memory may lag behind kube-scheduler's: then it is read once from the API server."""
        pod = self._view.pod(args.namespace, args.name)
        read = False
        refusal = ""
        for _ in range(BIND_TRIES):
            if pod is not None and pod.uid == args.uid and pod.node == args.node:
                return ""
            refusal = _same(pod, args) or await self._refusal(pod, args)
            if not refusal:
                assert pod is not None
                try:
                    await self._writer.apply(Bind(pod=pod, node=KubeNode(args.node)))
                except Conflict:
                    refusal = "the pod changed while it was bound"
                else:
                    return ""
            elif read:
                return refusal
            try:
                pod, read = await self._view.fresh_pod(args.namespace, args.name), True
            except NotFound:
                return "the pod is gone"
        return refusal

    async def _refusal(self, pod: Pod | None, args: wire.BindArgs) -> str:
        if pod is None:
            return "the pod is not known"
        asked = Asked(uid=pod.uid, labels=pod.labels, annotations=pod.annotations)
        answer = self._view.allowed(asked)
        if isinstance(answer, Verdict) and answer.reason in LAGGING:
            answer = await self._view.confirm(asked)
        if not isinstance(answer, Verdict):
            answer = await self._view.alone(asked, answer)
        if isinstance(answer, Verdict):
            return answer.text
        return "" if answer == args.node else f"Slurm granted {answer}, not {args.node}"


def _same(pod: Pod | None, args: wire.BindArgs) -> str:
    if pod is None or pod.uid == args.uid:
        return ""
    return "another pod has this name now"


async def _body(receive: Receive) -> bytes | None:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        part = message.get("body", b"")
        size += len(part)
        if size > BODY_LIMIT:
            return None
        parts.append(part)
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def _reply(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
