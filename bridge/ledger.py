"""The ledger at work: which pods hold GPUs on which node, and which grants wait for them.

In: the pod store's events, and records of jobs. Out: living holders of a node, claims against a job, ages of waits. It
keeps only what the store, the pods and the jobs themselves show: after a restart it is the same again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from bridge.core import devices, held
from bridge.core.attempt import parse as parse_attempt
from bridge.core.facts import Member, Sight
from bridge.core.ghosts import ghosts
from bridge.core.ledger import Busy, Claim, Holder, blocking, destination, holding
from bridge.core.model import GroupKey, JobId, JobRecord, KubeNode, Pod, SlurmNode, Uid, is_ended, is_granted
from bridge.core.takeover import label_of
from bridge.errors import ProtocolError
from bridge.kube.store import Store
from bridge.metrics import DEVICE_WAITS_EXPIRED
from bridge.names import ATTEMPT_ANNOTATION

OLD_VIEW = 150.0  # seconds; a healthy watch of a quiet cluster is re-opened after 60 to 90
LOOKED_LATELY = 10.0  # seconds; a wait that nobody looks at any more is over, or another replica's
SHOWN = 10  # waits that /readyz tells one by one
HAUNTED = 3600.0  # seconds since our start in which a job may be read whose pods had gone before


@dataclass(slots=True, kw_only=True)
class _Entry:
    holder: Holder
    bound_with: Holder  # by what was known first; the job's record adds what it says now, and no more
    pod: Pod  # its last state that we know
    gone_at: float | None = None  # monotonic, when we saw the object disappear


def _entry(holder: Holder, pod: Pod, gone_at: float | None = None) -> _Entry:
    return _Entry(holder=holder, bound_with=holder, pod=pod, gone_at=gone_at)


@dataclass(slots=True, kw_only=True)
class _Wait:
    job: JobId
    since: float  # monotonic
    looked: float = 0.0  # monotonic
    claims: tuple[Claim, ...] = ()
    expired: bool = False


class Ledger:
    """`kube_name`: a node's name in Kubernetes, even if it is gone; `ready_for`: seconds that one has been Ready;
    `records`: of jobs; `resources`: what pods ask for that is a GPU in Slurm; `wait`: seconds that a grant may wait;
    `clock` is monotonic, `slurm_now` slurmctld's; `catching_up`: jobs that ended before we began are still unread;
    `jobs_of`: live jobs of a pod's group.
    """

    def __init__(
        self,
        store: Store,
        kube_name: Callable[[SlurmNode], KubeNode],
        ready_for: Callable[[KubeNode], float],
        records: Callable[[], Mapping[JobId, JobRecord]],
        *,
        cluster: str,
        resources: Collection[str],
        margin: float,
        wait: float,
        clock: Callable[[], float],
        slurm_now: Callable[[], float],
        catching_up: Callable[[], bool],
        jobs_of: Callable[[Uid], Iterable[JobId]],
    ) -> None:
        self._store = store
        self._kube_name = kube_name
        self._ready_for = ready_for
        self._records = records
        self._cluster = cluster
        self._resources = resources
        self._margin = margin
        self._limit = wait
        self._clock = clock
        self._slurm_now = slurm_now
        self._catching_up = catching_up
        self._jobs_of = jobs_of
        self._began = clock()
        self._seen: set[Uid] = set()
        self._unjudged: dict[JobId, None] = {}  # jobs, ghosts of whose pods have not been looked for
        self._judged: set[JobId] = set()
        self._ghosts: dict[Uid, set[KubeNode]] = {}  # where each has an entry
        self._entries: dict[KubeNode, dict[Uid, _Entry]] = {}
        self._handed_over: dict[KubeNode, dict[Uid, Pod]] = {}  # may be bound there, and not seen so yet
        self._waits: dict[GroupKey, _Wait] = {}
        self.changed: Callable[[GroupKey], None] = lambda key: None  # what a group waits for may be over
        store.pods.on_pod(self._on_pod)

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        assert pod is not None
        if new is None and (gone := self._store.pods.gone.get(pod.uid)) is not None:
            # Its last state may be news; where nobody has seen that, it may have been bound.
            pod = gone.pod if gone.deleted else replace(gone.pod, node=gone.pod.node or destination(gone.pod))
        self._lay(pod.uid)
        entry = self._entries.get(pod.node, {}).get(pod.uid)
        gone_at = self._clock() if new is None else None
        if entry is not None:
            # What the pod was bound with counts: a later edit of its annotation frees no GPU.
            entry.pod, entry.gone_at = pod, gone_at
        elif (holder := holding(pod, self._resources)) is not None:
            tuple(self.holders(pod.node))  # forgets the dead
            self._entries.setdefault(pod.node, {})[pod.uid] = _entry(holder, pod, gone_at)
        self._note_recorded(pod)
        if old is not None:
            self._handed_over.get(destination(old), {}).pop(old.uid, None)
        if new is not None and (there := destination(new)):
            self._handed_over.setdefault(there, {})[new.uid] = new
        for key, wait in self._waits.items():
            if any(claim.holder.uid == pod.uid for claim in wait.claims):
                self.changed(key)

    # --- who holds what ---------------------------------------------------------------------------

    def holders(self, node: KubeNode) -> Iterator[Holder]:
        """Pods on that node whose containers are not known dead."""
        self._judge()
        present = self._entries.get(node, {})
        for uid, entry in tuple(present.items()):
            if self._member(entry).containers_dead(self._margin):
                del present[uid]
            else:
                yield entry.holder
        for pod in self._handed_over.get(node, {}).values():
            if gpus := self._recorded(pod, node, _of(pod)):
                yield Holder(uid=pod.uid, pod=pod.ref, node=node, gpus=gpus)

    def lingering(self, node: KubeNode) -> str:
        """Why GPUs there may be in use that Slurm counts for nobody; "" = they aren't."""
        for holder in self.holders(node):
            entry = self._entries.get(node, {}).get(holder.uid)
            if entry is not None and (entry.gone_at is not None or self._over(entry.pod)):
                return f"containers of {holder.pod} may still run"
        return ""

    def occupied(self, node: KubeNode, lives: Callable[[JobId], bool]) -> bool:
        """GPUs there may be in use, whoever counts them.

        Not by pods that are to stay and none of whose jobs lives: Slurm can give them their place back only when the
        node's record is in order again.
        """
        return any(not self._lost(holder.uid, lives) for holder in self.holders(node))

    def _lost(self, uid: Uid, lives: Callable[[JobId], bool]) -> bool:
        pod = self._store.pods.ours.get(uid)
        if pod is None or not pod.node or pod.deleted or pod.ended:
            return False
        return not any(lives(job) for job in (label_of(pod), *self._jobs_of(uid)) if job is not None)

    def _over(self, pod: Pod) -> bool:
        """Its job has ended, or is forgotten, or elsewhere since a crash, and won't be asked for again there."""
        job = label_of(pod)
        if job is not None and self._holds(job, pod.node) and is_ended(self._records()[job].states):
            return True
        return bool(pod.deleted) and not any(self._holds(live, pod.node) for live in self._jobs_of(pod.uid))

    def _holds(self, job: JobId, node: KubeNode) -> bool:
        record = self._records().get(job)
        return record is not None and any(self._kube_name(name) == node for name in record.nodes)

    def _recorded(self, pod: Pod, node: KubeNode, attempt: int | None = None) -> frozenset[int]:
        """The GPUs of that node that the pod's job holds, as far as its record is known."""
        job = label_of(pod)
        record = self._records().get(job) if job is not None else None
        if record is None or record.mark is None or pod.uid not in record.mark.uids:
            return frozenset()
        if attempt not in (None, record.mark.attempt):
            return frozenset()  # given back: nobody binds it any more
        found: set[int] = set()
        for name, text in zip(record.nodes, record.gres, strict=False):
            if self._kube_name(name) == node:
                with suppress(ProtocolError):
                    found.update(devices.indices(text))
        return frozenset(found)

    def job_changed(self, job: JobId) -> None:
        """Its record may tell more than the annotations of its pods, which anybody may edit."""
        record = self._records().get(job)
        for uid in record.mark.uids if record is not None and record.mark is not None else ():
            if (pod := self._store.pods.ours.get(uid)) is not None:
                self._note_recorded(pod)
        if job not in self._judged:
            self._unjudged[job] = None
            self._judge()

    def _judge(self) -> None:
        """Looks for ghosts; only the complete list of pods tells who is one."""
        if not self._unjudged or not self._store.synced:
            return
        jobs, self._unjudged = self._unjudged, {}
        if not self._young():
            self._seen.clear()
            self._judged.clear()
            return
        for job in jobs:
            record = self._records().get(job)
            if record is None or not record.nodes:
                continue  # it may get some
            self._judged.add(job)
            found = ghosts(
                record,
                self._kube_name,
                self._ready_since,
                cluster=self._cluster,
                seen=self._seen,
                now=self._slurm_now(),
                margin=self._margin,
            )
            for holder in found:
                self._haunt(holder, grace=record.mark.grace if record.mark is not None else 0)

    def _ready_since(self, name: KubeNode) -> float:
        node = self._store.node(name)
        return node.ready_since if node is not None and node.ready else math.inf

    def _haunt(self, holder: Holder, *, grace: int) -> None:
        """As if its object had gone now: a kubelet that was cut off may have heard of it only just."""
        namespace, _, name = holder.pod.partition("/")
        pod = Pod(namespace=namespace, name=name, uid=holder.uid, node=holder.node, grace=grace)
        present = self._entries.setdefault(holder.node, {})
        if (other := present.get(holder.uid)) is not None:  # of another job of the same pod
            pod = max(pod, other.pod, key=lambda one: one.grace)
            holder = holder.together(other.holder)
        present[holder.uid] = _entry(holder, pod, self._clock())
        self._ghosts.setdefault(holder.uid, set()).add(holder.node)

    def _lay(self, ghost: Uid) -> None:
        """It has an object, so it is none."""
        for node in self._ghosts.pop(ghost, ()):
            self._entries[node].pop(ghost, None)
        if self._young():
            self._seen.add(ghost)

    def _young(self) -> bool:
        return self._clock() - self._began < HAUNTED

    def _note_recorded(self, pod: Pod) -> None:
        gpus = self._recorded(pod, pod.node) if pod.node else frozenset()
        if not gpus:
            return
        present = self._entries.setdefault(pod.node, {})
        if (entry := present.get(pod.uid)) is not None:
            entry.holder = replace(entry.bound_with, gpus=gpus | (entry.bound_with.gpus or frozenset()))
        elif not pod.ended:
            present[pod.uid] = _entry(Holder(uid=pod.uid, pod=pod.ref, node=pod.node, gpus=gpus), pod)

    def _gone_for(self, entry: _Entry) -> float | None:
        """None: it is there, or only missing from a list, which proves nothing."""
        gone = self._store.pods.gone.get(entry.pod.uid)
        if gone is not None:
            return self._clock() - gone.at if gone.deleted else None
        return None if entry.gone_at is None else self._clock() - entry.gone_at

    def _member(self, entry: _Entry) -> Member:
        node = self._store.node(entry.pod.node)
        return Member(
            pod=entry.pod,
            gone_age=self._gone_for(entry),
            node_ready=node is not None and node.ready,
            node_ready_for=self._ready_for(entry.pod.node),
            node_view_age=self._store.nodes.age(),
        )

    def blocking(self, record: JobRecord, also: Collection[Holder] = ()) -> tuple[Claim, ...]:
        """What stands in the way of a job, ours or not; `also`: holders that nobody told us of. ProtocolError: its GPUs
        can't be told."""
        return blocking(
            record, self._kube_name, lambda node: (*self.holders(node), *(h for h in also if h.node == node))
        )

    def on(self, names: Iterable[SlurmNode]) -> tuple[Holder, ...]:
        """Who holds GPUs on any of these nodes."""
        return tuple(holder for name in names for holder in self.holders(self._kube_name(name)))

    def blind(self) -> str:
        """Why nothing can be said about containers; "" = all is well."""
        if not self._store.synced:
            return "Kubernetes: pods have not been listed completely yet"
        if self._store.age() > OLD_VIEW:
            return f"Kubernetes: watches are {self._store.age():.0f} s old"
        if self._catching_up():
            return "Slurm: jobs that ended before this process began have not been read yet"
        return ""

    # --- grants of ours that wait -----------------------------------------------------------------

    def awaited(
        self, key: GroupKey, members: Iterable[Member], sights: Iterable[Sight]
    ) -> Mapping[JobId, Busy]:
        """Grants of the group over GPUs that others still hold; remembers since when it waits for them."""
        if any(member.exists and not member.pod.node and not member.pod.ended for member in members):
            for sight in sights:
                record = sight.read
                if record is None or not is_granted(record.states):
                    continue
                if record.mark is None or record.mark.group != key:
                    continue
                found = self._against(record)
                if found:
                    return {record.id: self._busy(key, record.id, found)}
        self._waits.pop(key, None)
        return {}

    def _against(self, record: JobRecord) -> tuple[Claim, ...]:
        try:
            return self.blocking(record)
        except ProtocolError:
            return ()  # such a grant is not handed over at all

    def _busy(self, key: GroupKey, job: JobId, found: tuple[Claim, ...]) -> Busy:
        now = self._clock()
        wait = self._waits.get(key)
        if wait is None or wait.job != job:
            wait = self._waits[key] = _Wait(job=job, since=now)
        wait.looked, wait.claims = now, found
        overdue = now - wait.since > self._limit
        if overdue and not wait.expired:
            DEVICE_WAITS_EXPIRED.inc()
            wait.expired = True
        homeless = any(self._homeless(claim.holder.uid) for claim in found)
        return Busy(claims=found, waited=now - wait.since, overdue=overdue, homeless=homeless)

    def _homeless(self, uid: Uid) -> bool:
        """A pod that is to stay, and whose place is asked for again, ahead of the queue: nobody else gets it."""
        pod = self._store.pods.ours.get(uid)
        if pod is None or pod.deleted or pod.ended:
            return False
        records = (self._records().get(job) for job in self._jobs_of(uid))
        return any(r is not None and "PENDING" in r.states and r.reason != held.REASON for r in records)

    def wanted(self, pods: Collection[Uid]) -> bool:
        """A grant waits for devices that one of these uses."""
        waits = (w for w in self._waits.values() if self._clock() - w.looked < LOOKED_LATELY)
        return any(claim.holder.uid in pods for wait in waits for claim in wait.claims)

    def waits(self) -> list[_Wait]:
        """Longest first."""
        now = self._clock()
        self._waits = {key: w for key, w in self._waits.items() if now - w.looked < LOOKED_LATELY}
        return sorted(self._waits.values(), key=lambda wait: wait.since)

    def notes(self) -> list[str]:
        """For /readyz."""
        now, waits = self._clock(), self.waits()
        notes = [
            f"devices: job {w.job} waits {now - w.since:.0f} s for pod {w.claims[0]}" for w in waits[:SHOWN]
        ]
        return notes + ([f"devices: {len(waits) - SHOWN} more jobs wait"] if len(waits) > SHOWN else [])


def _of(pod: Pod) -> int:
    return parse_attempt(pod.annotations.get(ATTEMPT_ANNOTATION, "")).number
