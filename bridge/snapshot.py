"""The READ door: joins the caches of Kubernetes and Slurm into frozen facts about one group.

Goes in: the pod store, the Slurm watcher, and the few things only this process knows (when it first saw a grant, what
Slurm just refused). Comes out: `Facts` for core.lifecycle, keys to look at for every change. Nothing here waits for the
network but `read`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from bridge.candidates import Candidates
from bridge.config import Settings
from bridge.core import attempt as attempts
from bridge.core import devices, held, jobid, takeover
from bridge.core.conditions import waiting_job
from bridge.core.facts import NEVER, PATIENCE, Facts, Limits, Sight
from bridge.core.grouping.gangs import family_uid
from bridge.core.model import (
    Group,
    GroupKey,
    JobId,
    JobRecord,
    JobSpec,
    Node,
    Pod,
    SlurmNode,
    Uid,
    is_ended,
)
from bridge.core.twins import Naming
from bridge.inherited import Inherited
from bridge.kube.client import KubeClient
from bridge.kube.store import Store
from bridge.ledger import Ledger
from bridge.members import Members
from bridge.memory import HUNG, LATE, Memory
from bridge.names import JOB_ID_LABEL
from bridge.owners import Owners
from bridge.roster import Roster
from bridge.slurm.client import SlurmClient
from bridge.slurm.watch import JobWatcher
from bridge.translator import Translator
from bridge.twins import Twins, nodes_of

YOUNG = 60.0  # seconds after a start of slurmctld in which its nodes may not have registered yet
EARLIER_ATTEMPTS = 32  # so many back, a live job of this group is still looked for


class Snapshot:
    def __init__(
        self,
        store: Store,
        watcher: JobWatcher,
        slurm: SlurmClient,
        kube: KubeClient,
        settings: Settings,
        cluster: str,
        *,
        named: Callable[[], Naming | None] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.cluster = cluster
        self.ids = jobid.IdRange(settings.jobs.jobIdFirst, settings.jobs.jobIdStop)
        self._store = store
        self._watcher = watcher
        self._slurm = slurm
        self._kube = kube
        self._settings = settings
        self._monotonic = monotonic
        self._wall = wall
        self.slurm_now = watcher.slurm_now  # Unix seconds by slurmctld's clock, by ours before it was asked
        self._limits = Limits(
            bind_timeout=settings.placement.bindTimeout,
            death_margin=settings.placement.deathMargin,
            boot_grace=settings.slurm.bootGrace,
            max_attempts=settings.placement.maxAttempts,
            poll_age=settings.slurm.freshness,
        )
        store.nodes.on_change(self._on_node)
        self._named = named
        twins = self._twins = Twins(store.nodes, named or (lambda: None))
        self.nodes, self.kube_name = twins.nodes, twins.kube_name
        self.memory = Memory(monotonic)
        by_resource = settings.jobs.gresByResource.items()
        self.gpu_resources = tuple(name for name, gres in by_resource if devices.is_gpu(gres))
        self.candidates = Candidates(store, self.nodes, lambda names: nodes_of(watcher.partitions, names))
        self.owners = Owners(kube, store, monotonic)
        place = (cluster, self.nodes, self.candidates, self._longest, wall, self.owners)
        self._translator = Translator(
            store, self.memory, settings.jobs, *place, lambda: slurm.rights.undivided(slurm.release)
        )
        self.ledger = Ledger(
            store,
            self.kube_name,
            self.memory.ready_for,
            lambda: watcher.records,
            cluster=cluster,
            resources=self.gpu_resources,
            margin=settings.placement.deathMargin,
            wait=settings.placement.deviceWait,
            clock=monotonic,
            slurm_now=self.slurm_now,
            catching_up=watcher.catching_up,
            jobs_of=lambda uid: self.roster.jobs_of(uid),
        )
        self._members = Members(store, self.memory, self.kube_name, cluster, monotonic)
        self._inherited = Inherited(store.pods, watcher, self.ids, cluster)
        self.roster = Roster(store, watcher, self.memory, self._inherited, wall, cluster)

    # --- events in --------------------------------------------------------------------------------

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        node = new or old
        assert node is not None
        self.memory.note_node(node.name, ready=new is not None and new.ready, told=node.ready_since)

    def job_changed(self, job: JobId) -> Iterator[GroupKey]:
        """Keeps what is counted per job; yields the groups that must look again."""
        record = self._watcher.records.get(job)
        self.memory.note_job(job, self._watcher.newest(job), record, self._watcher.boot_time)
        self.ledger.job_changed(job)
        yield from self.roster.job_changed(job)
        if (asked := self.memory.asker(job)) is not None:
            yield asked
        mark = record.mark if record else None
        if (
            mark is not None
            and mark.cluster == self.cluster
            and mark.group != asked
            and mark.group in self.roster
        ):
            yield mark.group

    def learn(self, pod: Pod) -> None:
        """The answer to a write of ours, ahead of the watch."""
        self._store.pods.learn(pod)

    async def read(self, pod: Pod) -> None:
        """The pod as the API server has it, ahead of the watch."""
        self._store.pods.learn(await self._kube.pod(pod.namespace, pod.name))

    def stirred(self) -> dict[GroupKey, None]:
        """Groups that may find other nodes able to take their pods than when they looked last; each is told once."""
        keys = map(self.roster.key_of, self.candidates.stirred())
        return dict.fromkeys(key for key in keys if key is not None)

    # --- looks ------------------------------------------------------------------------------------

    @property
    def young(self) -> bool:
        """slurmctld has started within the last minute."""
        return self.boot_age() < YOUNG

    @property
    def unsettled(self) -> bool:
        """slurmctld may still lack jobs whose pods run, and give their devices away."""
        return self.boot_age() < self._limits.boot_grace

    @property
    def synced(self) -> bool:
        """Kubernetes has been listed completely once, and Slurm's nodes, if they are read."""
        return self._store.synced and (self._named is None or self._named() is not None)

    def missing(self) -> list[str]:
        """Why decisions can't be made yet, in sentences."""
        lacking = []
        if not self._store.synced:
            lacking.append("the first complete list of pods, nodes and jobs from the API server")
        if self._store.synced and not self.synced:
            lacking.append(
                "a first list of Slurm's nodes with a node in it: their records say where each lives"
            )
        if self._watcher.age() == NEVER:
            lacking.append(f"a first state poll of Slurm ({self._watcher.problem or 'under way'})")
        elif why := self._slurm.stranger():
            lacking.append(f"a token of SlurmUser: {why}")
        return lacking

    def notes(self) -> list[str]:
        """What works worse than it should; running pods are not touched by any of it."""
        found = []
        if not self._watcher.healthy:
            found.append(f"Slurm: {self._watcher.problem}")
        found += self._watcher.notes()
        if why := self._slurm.rights.note():
            found.append(f"job ids: {why}")
        if self._store.synced and (why := self.ledger.blind()):
            found.append(why)
        found += self.ledger.notes()
        return found + [f"nodes: {text}; neither is used" for text in self._twins.duplicates()]

    def facts(self, key: GroupKey) -> Facts | None:
        """None for a group that is unknown or while Kubernetes has not been listed completely."""
        uids = self.roster.members(key)
        if not uids or not self.synced:
            return None
        members = tuple(m for uid in uids if (m := self._members.of(uid)) is not None)
        if all(m.pod.uid in self._store.pods.gone and m.exists for m in members):
            return None  # missing from one list proves nothing: the sweep takes two more
        pods = [m.pod for m in members]
        number = attempts.of_group(Group(key=key, pods=tuple(pods)), at_least=self._attempted(key))
        gang = self.roster.gang(key)
        asked = self._translator.job(key, members, number, gang)
        attempted = range(max(0, number.number - EARLIER_ATTEMPTS), number.number + 1)
        probes = [jobid.candidates(self.ids, self.cluster, family_uid(key), n) for n in attempted]
        takeovers = self._inherited.takeovers(pods, self.nodes())
        marked = self._inherited.of_group(key)
        seen = self._sights(
            pods, (*marked, *self.memory.live_of(key), *(job for ids in probes for job in ids))
        )
        sights = {s.id: takeover.counted(s, takeovers.get(s.id), key) for s in seen}
        owner = self._slurm.rights.owner() if self._slurm.rights.held else ""
        for job in sights.keys() if owner else sights.keys() & set(probes[-1]):
            sights[job] = takeover.recognized(
                sights[job], key, pods, cluster=self.cluster, attempt=number.number, owner=owner
            )
        busy = self.ledger.awaited(key, members, sights.values())
        for job in busy:
            self.memory.note_released(job)  # kube-scheduler's time begins when the GPUs are free
        granted = [age for job in sights if (age := self.memory.unbound_for(job)) is not None]
        former = probes[-2] if len(probes) > 1 else ()
        current = probes[-1]
        numbered = self._slurm.rights.held
        waited = [shown for pod in pods if (shown := waiting_job(pod)) is not None]
        labelled = tuple(self._ids_of(pods, waited))
        return Facts(
            group=asked.group,
            members=members,
            ghosts=tuple(self._members.ghosts(key, members, sights.values())) if gang is not None else (),
            attempt=number,
            cluster=self.cluster,
            now=self._wall(),
            slurm_now=self.slurm_now(),
            spec=asked.spec,
            refusal=asked.refusal,
            epoch=self._translator.epoch,
            fit=asked.fit,
            beside=self.candidates.beside(pods, sights.values()) if gang is not None else {},
            unread=self._translator.unread(key, pods),
            fast_id=current[0],
            fast_allowed=asked.spec is not None and self._fast_allowed(key, asked.spec),
            probes=current[1:],
            current=frozenset((*current, *self._counting(key, number, sights), *_overwritten(sights))),
            former=former,
            rivals=dict(self.roster.rivals(key)) if gang is not None else {},
            unseen=tuple(self._watcher.unseen()) if gang is not None and not sights else (),
            doubted=self._doubted(
                (job for ids in probes for job in ids), sights, HUNG if gang is not None else LATE
            ),
            held=numbered,
            unknown=numbered and self._unknown(key, sights),
            surveyed=not numbered or self._watcher.unknown_for() <= self._watcher.age(),
            sights=sights,
            takeovers=takeovers,
            nodes=self.nodes(),
            poll_age=self._watcher.age(),
            known_for=self.memory.known_for(key),
            steady=self._watcher.healthy,
            boot_age=self.boot_age(),
            booted=self._watcher.boot_time,
            watched=self.memory.watched,
            seen_running=frozenset(
                job for job in sights if self.memory.ran_under(job, self._watcher.boot_time)
            ),
            denied=self._watcher.denied(self._ids_of(pods, (*former, *current, *marked, *sights))),
            recallable=self._watcher.recallable(labelled),
            recalled=self._watcher.recalled(labelled),
            drained=self.memory.drained(self.boot_age()),
            ran=self.memory.ran(key),
            claim_refused=self.memory.claim(key),
            moved=frozenset(job for job in sights if self.memory.moved(job, self._watcher.records.get(job))),
            trouble=self.memory.lasting_trouble(key, PATIENCE),
            barred=self.memory.barred(key, PATIENCE),
            stuck=self.memory.barred(key, self._limits.bind_timeout),
            granted_age=min((*granted, self._watcher.fresh_for())) if granted else 0.0,
            busy=busy,
            wanted=self.ledger.wanted(uids),
            room=self.roster.on_their_way() < self._settings.placement.ungatedLimit,
            catching_up=self._watcher.catching_up(),
            limits=self._limits,
        )

    def _attempted(self, key: GroupKey) -> int:
        """Of live jobs: the pods may be seen as they were before, or have been edited."""
        records = (self._watcher.records.get(job) for job in self.memory.live_of(key))
        return max((r.mark.attempt for r in records if r is not None and r.mark is not None), default=0)

    def _counting(
        self, key: GroupKey, number: attempts.Attempt, sights: Mapping[JobId, Sight]
    ) -> Iterator[JobId]:
        """Jobs outside of our range that are this attempt's; not one that ended before it was named or had a node."""
        for job in self._inherited.of_attempt(key, number.number):
            sight = sights.get(job)
            placed = sight is not None and sight.record is not None and bool(sight.record.nodes)
            if sight is None or sight.live or sight.named or placed:
                yield job

    def _unknown(self, key: GroupKey, sights: Mapping[JobId, Sight]) -> bool:
        """Slurm numbers our jobs: may there be one of this group that has not been read?"""
        if any(s.live and s.id in self._inherited.of_group(key) for s in sights.values()):
            self.memory.sure(key)
        age = self._watcher.unknown_for()
        return age == NEVER or self.memory.doubts(key, age)

    def _doubted(self, ids: Iterable[JobId], sights: Mapping[JobId, Sight], late: float) -> frozenset[JobId]:
        if not self.memory.doubting:
            return frozenset()
        for job, sight in sights.items():
            if sight.states is not None:
                self.memory.sure(job)
        return frozenset(job for job in ids if self.memory.doubts(job, self._watcher.age(), late))

    def _ids_of(self, pods: Iterable[Pod], ids: Iterable[JobId]) -> Iterable[JobId]:
        """These, and those that the pods are labelled with."""
        labelled = (pod.labels.get(JOB_ID_LABEL, "") for pod in pods)
        known = (JobId(int(text)) for text in labelled if text.isascii() and text.isdigit())
        return dict.fromkeys((*ids, *known))

    def _sights(self, pods: Iterable[Pod], ids: Iterable[JobId]) -> Iterator[Sight]:
        pods = tuple(pods)
        for job in self._ids_of(pods, ids):
            states = self._watcher.newest(job)
            record = self._watcher.records.get(job)
            if states is not None or record is not None:
                polled = states == self._watcher.states.get(job)
                age = self._watcher.record_age(job)
                yield Sight(
                    id=job,
                    states=states,
                    record=record,
                    polled=polled,
                    read_age=age,
                    named=record is not None and any(held.names(pod, record) for pod in pods),
                )

    def _fast_allowed(self, key: GroupKey, spec: JobSpec) -> bool:
        """design: owner = the token's user, nothing of ours waits in the partition, once per attempt (its own id)."""
        plain = not (spec.user or spec.group or spec.begin or spec.dependency or spec.priority is not None)
        plain = plain and not spec.others and self.memory.fast(key)
        return self._settings.jobs.fastPath and plain and self.memory.waiting_in(spec.partition) == 0

    def boot_age(self) -> float:
        """Since the boot changed under our eyes; for one that is older than we are, slurmctld's own uptime."""
        seen = self._watcher.boot_age()
        if seen != NEVER or not self._watcher.boot_time:
            return seen
        return max(0.0, self.slurm_now() - self._watcher.boot_time)

    def dead_for(self, name: SlurmNode) -> float:
        """Seconds since this process first saw that the node is not Ready in Kubernetes, or not there; 0.0 = it is."""
        return self.memory.dead_for(self.kube_name(name))

    def ready_for(self, name: SlurmNode) -> float:
        """Seconds since this process first saw that the node is Ready in Kubernetes; 0.0 = it isn't."""
        return self.memory.ready_for(self.kube_name(name))

    def node_view_age(self) -> float:
        """Seconds for which nodes have not been seen: what was so may no longer be."""
        return self._store.nodes.age()

    def _longest(self, partition: str) -> int | None:
        found = self._watcher.partitions.get(partition)
        return found.longest if found is not None else None

    def unconfirmed(self) -> dict[Uid, str]:
        """Pods ("namespace/name") that a list did not show and whose deletion no watch event told."""
        return {uid: gone.pod.ref for uid, gone in self._store.pods.gone.items() if not gone.deleted}

    def confirm_gone(self, uids: Iterable[Uid]) -> Iterator[GroupKey]:
        """Two complete lists don't have these either: yields the groups that must look again."""
        for uid in uids:
            self._store.pods.confirm(uid)
            if (key := self.roster.key_of(uid)) is not None:
                yield key

    def restore(self, pod: Pod) -> None:
        """A list did not show it, and the API server has it all the same."""
        self._store.pods.restore(pod)

    def suspects(self) -> Iterator[JobRecord]:
        """Live jobs with our mark whose group has no pod here, none even that has just gone; read at least once."""
        for job, states in self._watcher.states.items():
            record = self._watcher.records.get(job)
            mark = record.mark if record else None
            if record is None or mark is None or is_ended(states) or record.states != states:
                continue
            if mark.cluster != self.cluster or mark.group in self.roster:
                continue
            if record.submitted:
                yield record
            else:  # known from our own submit only
                self._watcher.want(job)


def _overwritten(sights: Mapping[JobId, Sight]) -> Iterator[JobId]:
    return (job for job, sight in sights.items() if sight.record is not None and sight.record.overwritten)
