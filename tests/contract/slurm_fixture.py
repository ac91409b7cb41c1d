"""The two Slurms that one suite of tests runs against: the in-memory world, and the real daemons of deploy/local.

`slurm` gives a connected client, ids of this test's own, and whatever else a test needs to be unkind to either.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import random
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest

from bridge.config import SlurmSettings
from bridge.core.model import GroupKey, JobId, JobSpec, Mark, SlurmNode, Uid
from bridge.slurm.client import SlurmClient
from bridge.slurm.completion import Completion
from tests.contract.slurm_proxy import LossyProxy
from tests.patience import PATIENCE
from tests.worlds.slurm import SlurmWorld
from tests.worlds.slurm_completion import WorldCompletion
from tests.worlds.slurm_faults import Fault, Kind
from tests.worlds.slurm_jobs import WorldNode

REPO = Path(__file__).resolve().parents[2]
FACTS_ENV = (
    "SLURM_BRIDGE_FACTS"  # a JSON file instead of `stack env`: real daemons that something else started
)
IDS_PER_TEST = 256

MARK = Mark(
    cluster="contract",
    group=GroupKey(namespace="team", kind="Pod", name="web", uid="5c0f"),
    attempt=0,
    uids=(Uid("5c0f"),),
    pods=("team/web",),
)
SPEC = JobSpec(
    name="web", partition="slurm-bridge", mark=MARK, memory_mib=512, gres="gres/gpu=1", time_limit=10
)


class Completes(Protocol):
    async def complete(self, job: JobId, wait_status: int) -> bool: ...


@dataclass
class Slurm:
    """One Slurm and this test's share of it."""

    client: SlurmClient
    settings: SlurmSettings
    completion: Completes
    nodes: tuple[SlurmNode, ...]  # of external nodes (or slurmd nodes, before 25.05)
    world: SlurmWorld | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    base: int = 0
    used: int = 0

    def id(self) -> JobId:
        """A fresh one of this test's range; whatever gets it is ended after the test."""
        self.used += 1
        return JobId(self.base + self.used)

    def only(self, *wanted: SlurmNode) -> tuple[SlurmNode, ...]:
        """The excluded_nodes that leave just these."""
        known = {n for names in self.facts.get("nodes", {"": self.nodes}).values() for n in names}
        return tuple(sorted(SlurmNode(n) for n in known - set(wanted)))

    def connect(self, *, transport: httpx.AsyncBaseTransport | None = None, **changes: Any) -> SlurmClient:
        """Another client of the same Slurm, with other settings."""
        if transport is None and self.world is not None:
            transport = httpx.ASGITransport(self.world)
        return SlurmClient(self.settings.model_copy(update=changes), transport=transport)

    @asynccontextmanager
    async def losing_the_reply(self) -> AsyncIterator[SlurmClient]:
        """A client whose next POST is carried out, and whose answer never comes back."""
        if self.world is not None:
            self.world.faults.add(Fault(pattern="^POST ", kind=Kind.DROP_AFTER))
            client = self.connect()
            yield client
            await client.close()
            return
        async with LossyProxy(self.settings.slurmRestApi) as url:
            client = self.connect(slurmRestApi=url)
            yield client
            await client.close()

    @contextmanager
    def stopped(self, daemon: str) -> Iterator[None]:
        """SIGSTOP for the length of the block (real daemons only)."""
        pid = int(self.facts["pids"][daemon])
        subprocess.run(["kill", "-STOP", str(pid)], check=True)
        try:
            yield
        finally:
            subprocess.run(["kill", "-CONT", str(pid)], check=True)


def stack_facts() -> dict[str, Any]:
    """What `deploy/local/stack env --json` says of a stack that is up; fails the test when it is not."""
    if os.environ.get(FACTS_ENV):
        given: dict[str, Any] = json.loads(Path(os.environ[FACTS_ENV]).read_text())
        return given
    name = os.environ.get("SLURM_BRIDGE_STACK", "test")
    command = [str(REPO / "deploy/local/stack"), "env", "--name", name, "--json"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    facts: dict[str, Any] = json.loads(found.stdout) if found.returncode == 0 else {}
    if not {"slurmctld", "slurmrestd"} <= facts.get("pids", {}).keys():
        pytest.fail(
            f"the stack {name!r} is not up: run `deploy/local/stack up --name {name}` first, or name another one in "
            f"SLURM_BRIDGE_STACK {found.stderr.strip()[-300:]}",
            pytrace=False,
        )
    return facts


def spec(**changes: Any) -> JobSpec:
    """A small placeholder: 1 CPU, 512 MiB, 1 GPU."""
    return replace(SPEC, **changes)


async def eventually(check: Callable[[], object], within: float = 30.0) -> None:
    """Returns once `check` (plain or a coroutine function) gives something true; fails after `within` seconds.

    The seconds are those of a machine that is ours alone: tests/patience.py.
    """
    within *= PATIENCE
    deadline = asyncio.get_running_loop().time() + within
    while True:
        value = check()
        if await value if inspect.isawaitable(value) else value:
            return
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"not so within {within} s: {inspect.getsource(check).strip()}")
        await asyncio.sleep(0.02)


async def states_are(slurm: Slurm, job: JobId, *wanted: str) -> bool:
    """The full record of the job shows these states, whatever others it shows."""
    return set(wanted) <= (await slurm.client.job(job)).states


@pytest.fixture(name="slurm", params=["world", "world-24.11", pytest.param("real", marks=pytest.mark.real)])
async def slurm_fixture(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Slurm]:
    slurm = _real() if request.param == "real" else _world(tmp_path, 45 if request.param == "world" else 42)
    async with _cleaned_up(slurm):
        yield slurm


@pytest.fixture(name="real")
async def real_fixture() -> AsyncIterator[Slurm]:
    """For what only real daemons can show. Mark the test `real`."""
    slurm = _real()
    async with _cleaned_up(slurm):
        yield slurm


@asynccontextmanager
async def _cleaned_up(slurm: Slurm) -> AsyncIterator[None]:
    """Ids that nobody has; and afterwards no job of the test holds anything any more."""
    taken = await slurm.client.states()
    while True:
        slurm.base = random.randrange(0x02000000, 0x03FD0000, IDS_PER_TEST)
        if not any(slurm.base <= job < slurm.base + IDS_PER_TEST for job in taken):
            break
    yield
    made = [JobId(slurm.base + number) for number in range(1, slurm.used + 1)]
    for job in made:
        await slurm.client.cancel(job)

    async def all_free() -> bool:
        states = await slurm.client.states()
        return not any("COMPLETING" in states.get(job, ()) for job in made)

    await eventually(all_free)
    await slurm.client.close()


def _world(tmp_path: Path, version: int) -> Slurm:
    world = SlurmWorld(tuple(WorldNode(f"k{n:04}") for n in range(1, 5)), version=version)
    token = tmp_path / "token"
    token.write_text(world.token)
    settings = SlurmSettings(slurmRestApi="http://world", slurmTokenFile=token)
    return Slurm(
        client=SlurmClient(settings, transport=httpx.ASGITransport(world)),
        settings=settings,
        completion=WorldCompletion(world),
        nodes=tuple(SlurmNode(n) for n in world.nodes),
        world=world,
    )


def _real() -> Slurm:
    facts = stack_facts()
    settings = SlurmSettings(slurmRestApi=facts["slurm_url"], slurmTokenFile=Path(facts["token_file"]))
    client = SlurmClient(settings)
    nodes = facts["nodes"]["external"] or facts["nodes"]["hybrid"]
    return Slurm(
        client=client,
        settings=settings,
        completion=Completion(
            [facts["slurmctld_address"]], client.token.read, lambda: client.release, client.partitions
        ),
        nodes=tuple(SlurmNode(n) for n in nodes),
        facts=facts,
    )
