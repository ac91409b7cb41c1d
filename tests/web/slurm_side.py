"""Hooks over a ledger and a Slurm that a test controls."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import replace

from bridge.core.jobid import IdRange
from bridge.core.ledger import Claim, Holder
from bridge.core.model import JobId, JobRecord, KubeNode, SlurmNode, Uid
from bridge.errors import BridgeError, NotFound
from bridge.web.hooks import Hooks

IDS = IdRange(1000, 2000)
OURS, NATIVE, NUMBERED = JobId(1500), JobId(7), JobId(8)  # NUMBERED: once one of ours, by Slurm's numbers
CLUSTER = "here"
HOLDER = Holder(uid=Uid("u"), pod="ns/old", node=KubeNode("n1"), gpus=frozenset({0, 1}))


class SlurmSide:
    """`claims` stand in the way of `record`; each read of it counts, and fails with `failure` if there is one."""

    def __init__(self) -> None:
        self.now = 100.0
        self.why_blind = ""
        self.holders_on: set[str] = {"n1"}
        self.claims: tuple[Claim, ...] = ()
        self.record: JobRecord | None = JobRecord(
            id=NATIVE, states=frozenset({"RUNNING", "CONFIGURING"}), nodes=(SlurmNode("n1"),)
        )
        self.failure: BridgeError | None = None
        self.unseen: tuple[Holder, ...] = ()  # by the API server's own word
        self.silent: BridgeError | None = None  # it gives none
        self.answers = asyncio.Event()  # slurmrestd does
        self.answers.set()
        self.reads: list[JobId] = []
        self.hinted: list[JobId] = []
        self.hooks = Hooks(
            lambda job: job in IDS or job == NUMBERED,
            self,
            chosen=IDS,
            cluster=CLUSTER,
            hint=self.hinted.append,
            job=self.job,
            there=self.there,
            clock=lambda: self.now,
        )

    def blind(self) -> str:
        return self.why_blind

    def on(self, names: Iterable[SlurmNode]) -> tuple[Holder, ...]:
        return tuple(replace(HOLDER, node=KubeNode(name)) for name in names if name in self.holders_on)

    def blocking(self, record: JobRecord, also: Collection[Holder] = ()) -> tuple[Claim, ...]:
        return self.claims or tuple(Claim(holder=holder, gpus="0-1") for holder in also)

    async def there(self, names: Iterable[SlurmNode]) -> tuple[Holder, ...]:
        if self.silent is not None:
            raise self.silent
        return self.unseen

    async def job(self, job: JobId) -> JobRecord:
        self.reads.append(job)
        await self.answers.wait()
        if self.failure is not None:
            raise self.failure
        if self.record is None:
            raise NotFound(f"no job {job}")
        return self.record
