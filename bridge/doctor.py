"""`slurm-bridge doctor`: one look at both sides, as the bridge sees them, and what a person should know of it.

In: the settings and clients that `serve` uses. Out: a `Report`, or `CannotLook` with the side, the cause and the cure.
What must stay true: it only reads. What the first look finds amiss is looked at again, since pods and jobs are read one
after the other and something may have happened in between.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

import httpx

from bridge.config import Settings
from bridge.core import checkup, invariants
from bridge.core.checkup import Finding, SlurmSetup, span
from bridge.core.jobid import IdRange
from bridge.core.lease import LeaseRecord
from bridge.core.model import JobId, JobRecord, Pod, States, is_ended
from bridge.core.nodes import NodeRecord
from bridge.core.picture import Picture
from bridge.core.report import Invariant, Report, Waiting
from bridge.core.takeover import CLOCK_SKEW, label_of
from bridge.core.twins import by_slurm_name
from bridge.core.violation import Violation
from bridge.errors import BridgeError, Busy, Denied, NotFound
from bridge.kube import kinds
from bridge.kube.client import ClusterWire, KubeClient
from bridge.names import COMPONENT, JOB_CONDITION
from bridge.slurm.auth import expires_in, subject
from bridge.slurm.client import SlurmClient

AGAIN = 3.0  # seconds between two looks
PATIENCE = 30.0  # seconds that a pod may wait in silence; the bridge speaks after ten
LEASE_AGE = 30.0  # seconds; a leader renews every two, and one that died is replaced after eleven
PAGE_TIMEOUT = 5.0  # seconds

_MINOR = re.compile(r"v?(\d+)\.(\d+)")


class CannotLook(BridgeError):
    """`sides`: a sentence for each that could not be read: which, why, and what to do."""

    def __init__(self, sides: Sequence[str]) -> None:
        super().__init__("; ".join(sides))
        self.sides = tuple(sides)


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """One look."""

    picture: Picture
    records: tuple[NodeRecord, ...]
    duplicates: tuple[str, ...]
    others: int  # live jobs that are none of ours


async def run(settings: Settings, *, kubeconfig: str | None, page: str, timeout: float) -> Report:
    """With clients of its own, closed at the end. Raises CannotLook, after `timeout` seconds at the latest."""
    slurm = SlurmClient(settings.slurm)
    try:
        async with asyncio.timeout(timeout):
            wire = await ClusterWire.connect(kubeconfig)
            try:
                return await Doctor(settings, KubeClient(wire), slurm, page=page).examine()
            finally:
                await wire.close()
    except TimeoutError as error:
        text = (
            f"nothing came of it within {timeout:.0f} s; one side answers too slowly: give a longer --timeout"
        )
        raise CannotLook([text]) from error
    finally:
        await slurm.close()


class Doctor:
    """`page`: the address of a running bridge, if its own word is wanted."""

    def __init__(
        self,
        settings: Settings,
        kube: KubeClient,
        slurm: SlurmClient,
        *,
        page: str = "",
        pages: httpx.AsyncBaseTransport | None = None,
        wall: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._settings = settings
        self._kube = kube
        self._slurm = slurm
        self._page = page
        self._pages = pages
        self._wall = wall
        self._sleep = sleep
        self._ids = IdRange(settings.jobs.jobIdFirst, settings.jobs.jobIdStop)
        self._cluster = settings.cluster.clusterId
        self._setup: SlurmSetup | None = None
        self._booted = 0.0

    async def examine(self) -> Report:
        """Raises CannotLook."""
        await self._meet()
        try:
            looked = await self._look()
            standing, unfinished = _amiss(looked.picture)
            if standing or unfinished:
                await self._sleep(AGAIN)
                looked = await self._look()
                now_standing, now_unfinished = _amiss(looked.picture)
                standing = [found for found in now_standing if found in standing]
                unfinished = [found for found in now_unfinished if found in unfinished]
            version, lease = await self._version(), await self._lease()
        except BridgeError as error:
            raise CannotLook([f"Something broke off while it was read: {error}; try again"]) from error
        said, of_the_page = await self._ask_the_bridge()
        now = self._wall()
        findings = [*of_the_page, *self._findings(looked, version, lease, now)]
        sides = (
            ("Kubernetes", _kubernetes_text(version, looked.picture)),
            ("Slurm", self._slurm_text(looked, now)),
            ("Token", self._token_text(now)),
            ("Leader", _leader_text(lease, now)),
            ("Bridge", said),
        )
        return Report(
            when=now,
            cluster=self._cluster,
            sides=sides,
            invariants=tuple(
                Invariant(
                    name=holds.__name__,
                    promise=(holds.__doc__ or "").splitlines()[0],
                    violations=tuple(v.text for v in standing if v.invariant == holds.__name__),
                )
                for holds in invariants.STANDING
            ),
            unseen=tuple(holds.__name__ for holds in (*invariants.MOVING, invariants.quiet)),
            unfinished=tuple(found.text for found in unfinished),
            waiting=tuple(sorted(_waiting(looked.picture), key=lambda each: -each.seconds)),
            findings=tuple(sorted(findings, key=lambda finding: not finding.urgent)),
        )

    # --- looks ------------------------------------------------------------------------------------

    async def _meet(self) -> None:
        """Both sides answer, and say who they are. Each is asked, so that both troubles are told at once."""
        kube, slurm = await asyncio.gather(self._meet_kube(), self._meet_slurm(), return_exceptions=True)
        troubles = []
        for error in (kube, slurm):
            if error is not None and not isinstance(error, BridgeError):
                raise error
        if isinstance(kube, BridgeError):
            troubles.append(checkup.no_kubernetes(kube))
        if isinstance(slurm, BridgeError):
            troubles.append(checkup.no_slurm(slurm, self._settings))
        if troubles:
            raise CannotLook(troubles)

    async def _meet_kube(self) -> None:
        self._cluster = self._cluster or await self._kube.namespace_uid("kube-system")

    async def _meet_slurm(self) -> None:
        if not await self._slurm.ping():
            raise Busy("slurmctld does not answer slurmrestd")
        self._booted = await self._slurm.boot_time()
        self._setup = await self._slurm.setup()

    async def _look(self) -> Looked:
        ours = self._settings.cluster.schedulers
        pods = [
            pod
            async for page in self._kube.pages(kinds.pods(ours.__contains__))
            for pod in page.items
            if pod.scheduler in ours
        ]
        nodes = [node async for page in self._kube.pages(kinds.nodes()) for node in page.items]
        twins, duplicates = by_slurm_name(nodes)
        states = await self._slurm.states()
        jobs = await self._jobs(states, pods)
        settings = self._settings
        picture = Picture(
            cluster=self._cluster,
            now=self._wall(),
            pods=tuple(pods),
            jobs=jobs,
            nodes=twins,
            booted=self._booted,
            boot_grace=settings.slurm.bootGrace,
            view_age=settings.placement.viewAge,
            skew=CLOCK_SKEW,
            patience=PATIENCE,
            handover=self._setup is not None and self._setup.hands_over,
        )
        live = {job for job, found in states.items() if not is_ended(found)}
        return Looked(
            picture=picture,
            records=(await self._slurm.nodes.list()).nodes,
            duplicates=duplicates,
            others=len(live - {job.id for job in jobs if picture.ours(job)}),
        )

    async def _jobs(self, states: dict[JobId, States], pods: Sequence[Pod]) -> tuple[JobRecord, ...]:
        """Live ones of our range, and those that pods name. Native jobs are read only where no range tells them."""
        named = {label for pod in pods if (label := label_of(pod)) in states}
        ids = states if self._slurm.rights.held else self._ids
        live = {job for job, found in states.items() if job in ids and not is_ended(found)}
        found = await asyncio.gather(*(self._job(job) for job in sorted(live | named)))
        return tuple(record for record in found if record is not None)

    async def _job(self, job: JobId | None) -> JobRecord | None:
        try:
            return await self._slurm.job(job) if job is not None else None
        except NotFound:  # gone since the poll
            return None

    async def _version(self) -> str:
        try:
            return await self._kube.version()
        except BridgeError:  # a cluster may hide it, and nothing hangs on it
            return ""

    async def _lease(self) -> LeaseRecord | None:
        """None: nobody has to lead, or it can't be read with these rights."""
        settings = self._settings.cluster
        try:
            return (
                await self._kube.lease(settings.leaseNamespace, COMPONENT) if settings.leaderElect else None
            )
        except NotFound:
            return LeaseRecord()
        except Denied:
            return None

    async def _ask_the_bridge(self) -> tuple[str, list[Finding]]:
        if not self._page:
            return "not asked: give --bridge URL", []
        where = f"{self._page.rstrip('/')}/readyz"
        try:
            async with httpx.AsyncClient(
                transport=self._pages, timeout=PAGE_TIMEOUT, trust_env=False
            ) as client:
                answer = await client.get(where)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            text = f"the bridge does not answer at {where}: {error or type(error).__name__}"
            return "does not answer", [Finding(text=text, do="check --bridge, and that it runs", urgent=True)]
        said, *lines = answer.text.splitlines() or [""]
        found = [
            Finding(text=f"the bridge says: {line}", do=_PAGE_DOES, urgent=line.startswith(_PAGE_URGENT))
            for line in lines
        ]
        return f"{said or 'says nothing'} ({where}: {answer.status_code})", found

    # --- what it means ----------------------------------------------------------------------------

    def _findings(
        self, looked: Looked, version: str, lease: LeaseRecord | None, now: float
    ) -> Iterator[Finding]:
        settings, partition = self._settings, self._settings.jobs.partition
        token = self._slurm.token.read()
        parser = int(self._slurm.version.rpartition(".")[2])
        minor = _MINOR.match(version)
        kubernetes = (int(minor[1]), int(minor[2])) if minor else None
        rights = self._slurm.rights
        yield from checkup.token(subject(token), rights.stranger(), rights.note(), expires_in(token, now))
        if lease is not None and now - lease.renewed > LEASE_AGE:
            last = (
                f"was last renewed {span(now - lease.renewed)} ago" if lease.renewed else "was never renewed"
            )
            yield Finding(
                text=f"nobody leads: the Lease {settings.cluster.leaseNamespace}/{COMPONENT} {last}",
                do="look whether the bridge runs, and at its log",
                urgent=True,
            )
        if looked.picture.settling:
            yield Finding(
                text=f"slurmctld started {span(now - self._booted)} ago: what it may have forgotten is not counted"
                f" against anybody before it is {span(settings.slurm.bootGrace)} old",
                do="look again then",
            )
        yield from checkup.nodes(
            looked.records, looked.picture.nodes, looked.duplicates, self._setup, partition
        )
        if self._setup is not None:
            yield from checkup.handover(self._setup, looked.records, partition)
            yield from checkup.configuration(self._setup, settings)
            yield from checkup.preemption(self._setup, settings, accounting=self._slurm.accounting)
        yield from checkup.versions(parser, self._slurm.release, kubernetes, settings)

    def _slurm_text(self, looked: Looked, now: float) -> str:
        major, minor = self._slurm.release
        ours = (job for job in looked.picture.jobs if looked.picture.ours(job) and not is_ended(job.states))
        jobs = Counter(state for job in ours for state in sorted(job.states))
        shown = ", ".join(f"{count} {state}" for state, count in sorted(jobs.items())) or "none"
        return (
            f"{major}.{minor:02} ({self._slurm.version}), slurmctld up for {span(now - self._booted)};"
            f" jobs of ours: {shown}; of others: {looked.others}"
        )

    def _token_text(self, now: float) -> str:
        token = self._slurm.token.read()
        who = subject(token) or "nobody that it names"
        user = self._setup.user if self._setup is not None else ""
        if user:
            who += ", who is SlurmUser" if who == user else f"; SlurmUser is {user}"
        left = expires_in(token, now)
        if math.isnan(left):
            return f"of {who}; it does not say for how long it is valid"
        return f"of {who}; " + (f"valid for {span(left)}" if left > 0 else "no longer valid")


_PAGE_URGENT = ("missing:", "note: breaker", "note: devices: native job")
_PAGE_DOES = "docs/operations.md, What to do when"


def _amiss(picture: Picture) -> tuple[list[Violation], list[Violation]]:
    return list(invariants.violations(picture)), list(invariants.converged(picture))


def _waiting(picture: Picture) -> Iterator[Waiting]:
    for pod in picture.pods:
        if not pod.node and not pod.ended and not pod.deleted:
            shown = pod.condition(JOB_CONDITION)
            why = shown.message if shown is not None else "says nothing yet"
            yield Waiting(pod=pod.ref, seconds=max(0.0, picture.now - pod.created), why=why)


def _kubernetes_text(version: str, picture: Picture) -> str:
    usable = sum(node.usable for node in picture.nodes.values())
    ended = sum(pod.ended for pod in picture.pods)
    placed = sum(bool(pod.node) and not pod.ended for pod in picture.pods)
    waiting = len(picture.pods) - ended - placed
    return (
        f"{version or 'version not told'}; {len(picture.nodes)} nodes, {usable} usable;"
        f" pods of ours: {placed} on a node, {waiting} waiting, {ended} ended"
    )


def _leader_text(lease: LeaseRecord | None, now: float) -> str:
    if lease is None:
        return "nobody is elected, or the Lease may not be read"
    if not lease.holder:
        return "nobody"
    return f"{lease.holder}, renewed {span(max(0.0, now - lease.renewed))} ago"
