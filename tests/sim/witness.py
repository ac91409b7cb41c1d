"""Who looks at both worlds after every change, and says what must not be.

In: the worlds themselves (the truth, not what the bridge believes), as pictures of the nouns of `core.model`. Out: the
first violation of `core.invariants`, with its moment. What must stay true: it only looks.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import msgspec

from bridge.config import Settings
from bridge.core.grouping.wishes import ON_FAILURE
from bridge.core.identity import remembered
from bridge.core.invariants import (
    bound_on_a_grant,
    containers_first,
    placed_by_slurm,
    positive_evidence,
    violations,
)
from bridge.core.model import JobId, JobRecord, KubeNode, Node, Pod, SlurmNode, Uid, is_ended, torn
from bridge.core.nodeinvariants import (
    drains_are_true,
    few_at_once,
    holders_kept,
    strangers_kept,
    taint_stays,
    words_stand,
)
from bridge.core.nodes import NodeRecord, operator_pod
from bridge.core.picture import Change, Picture
from bridge.core.twins import by_slurm_name
from bridge.core.violation import Violation
from bridge.kube import node_view, view
from bridge.slurm import components, nodes, translate, wire
from tests.sim.kubelets import Kubelets
from tests.worlds import slurm_nodes
from tests.worlds.kube import KubeWorld
from tests.worlds.kube_merge import Object
from tests.worlds.slurm import SlurmWorld
from tests.worlds.slurm_jobs import WorldJob
from tests.worlds.slurm_shown import shown

VIEW = {
    bound_on_a_grant: 2.5,
    positive_evidence: 6.0,
    containers_first: 6.0,
}  # seconds: on looks so old these acts may rest
# The same of acts on nodes that rest on a look at Kubernetes' nodes, and at Slurm's.
NODES_SEEN = {drains_are_true: 20.0, taint_stays: 20.0, strangers_kept: 20.0}
RECORDS_SEEN = {words_stand: 1.0, few_at_once: 1.0, holders_kept: 1.0, taint_stays: 6.0}
PATIENCE = 700.0  # seconds: longer than the longest time in which a watch may be blind
LIMIT_MARGIN = 60.0
HEED = 90.0  # seconds without trouble in which a pod whose time is over has gone


@dataclass(frozen=True, slots=True)
class Seen:
    """A violation, and when."""

    violation: Violation
    at: float


class Witness:
    """`clock` is monotonic, `wall` Unix seconds, and slurmctld's are `ahead` of them."""

    def __init__(
        self,
        kube: KubeWorld,
        slurm: SlurmWorld,
        kubelets: Kubelets,
        settings: Settings,
        *,
        clock: Callable[[], float],
        wall: Callable[[], float],
        repair: float,
        ahead: float,
        changed: Callable[[], None],
    ) -> None:
        self._kube = kube
        self._slurm = slurm
        self._kubelets = kubelets
        self._schedulers = settings.cluster.schedulers
        self._cluster = settings.cluster.clusterId
        self._clock = clock
        self._wall = wall
        self._boot_grace = settings.slurm.bootGrace - ahead  # counted from slurmctld's own time of its start
        self._repair = repair
        self._skew = 1.0 + abs(ahead)  # Kubernetes writes whole seconds
        self._pass_on = changed
        self._pods: dict[str, Pod] = {}  # by UID, as converted last
        self._gone: dict[str, Pod] = {}
        self._bound: dict[Uid, float] = {}  # when each was first on a node
        self._jobs: dict[JobId, tuple[WorldJob, JobRecord]] = {}
        self._nodes: tuple[int, dict[SlurmNode, Node]] = (0, {})
        self._hosts: dict[SlurmNode, SlurmNode] = {}
        self._settings = settings.nodes
        self._mirrors = settings.nodes.nodeStateToSlurm
        self._records: dict[SlurmNode, tuple[object, NodeRecord]] = {}
        self._drained: dict[SlurmNode, float] = {}  # since when, by slurmctld's clock
        self._former: deque[tuple[Picture, float]] = deque()  # of nodes, and until when they were so
        self._blind = False  # a watch has lost something, and may lack it until everything is listed again
        # A list lacked some: who never saw those pods holds them for dead in the end, and asks for no place on a node
        # that is not there.
        self._deceived: set[str] = set()
        self._hung = 0.0  # until when requests may be carried out that were sent long before
        self.leaders = 0  # that may all believe that they lead
        self.rivals = False  # there have been two
        self._calm = math.inf  # since when
        self._removed: set[Uid] = set()
        self._ended: set[JobId] = set()  # by the bridge
        self._torn: set[JobId] = set()
        self._recent: deque[tuple[Picture, float]] = deque()  # and until when it was so
        self.failed = asyncio.Event()
        self.first: Seen | None = None
        self.before = self.picture()
        kube.on_change = self._kube_changed
        slurm.on_change = self._changed

    # --- looking ----------------------------------------------------------------------------------

    def _kube_changed(self, resource: str) -> None:
        if resource in ("pods", "nodes"):
            self._changed()

    def _changed(self) -> None:
        self._pass_on()
        before, after = self.before, self.picture()
        if not self._kube.serving:
            left = {pod.uid: pod for pod in after.pods}
            for pod in before.pods:
                if not pod.deleted and ((now := left.get(pod.uid)) is None or now.deleted):
                    self._removed.add(pod.uid)
        job, node = self._slurm.serving, self._slurm.serving_node
        touched = frozenset({job}) if job is not None else frozenset()
        self.before = after
        self._recent.append((before, after.now))
        while after.now - self._recent[0][1] > max(VIEW.values()):
            self._recent.popleft()
        if self._mirrors and (before.nodes is not after.nodes or before.records != after.records):
            self._former.append((before, after.now))
            while after.now - self._former[0][1] > PATIENCE:
                self._former.popleft()
        if self.first is not None:
            return
        change = Change(
            before=before,
            after=after,
            touched=touched,
            altered=frozenset({SlurmNode(node)} if node and self._mirrors else ()),
            shown=frozenset(self._shown(before, after) if self._kube.serving and self._mirrors else ()),
            removed=frozenset(self._removed),
        )
        for found in (*violations(change), *self._own_ends(change)):
            if not self._was_right(change, found):
                self.fail(found)
                return

    def _shown(self, before: Picture, after: Picture) -> Iterator[KubeNode]:
        if before.nodes is not after.nodes:
            yield from (node.name for name, node in after.nodes.items() if before.nodes.get(name) is not node)

    def _own_ends(self, change: Change) -> Iterator[Violation]:
        """What the bridge cancelled itself is no person's wish that a waiting pod goes."""
        ended = {job.id for job in change.after.jobs if is_ended(job.states)} & change.touched
        self._ended -= {job.id for job in change.after.jobs if not is_ended(job.states)}  # back, or another's
        self._ended |= ended - {job.id for job in change.before.jobs if is_ended(job.states)}
        self._torn |= {job.id for job in change.before.jobs if torn(job.states)}
        left = {pod.uid: pod for pod in change.after.pods}
        for pod in change.before.pods:
            if pod.node or pod.deleted or pod.uid in self._removed or not self._kube.serving:
                continue
            if (now := left.get(pod.uid)) is not None and not now.deleted:
                continue
            own = change.after.own(pod.uid)
            cancelled = {job.id for job in own if "CANCELLED" in job.states}
            late = any("DEADLINE" in job.states for job in own)
            part = any(job.id in self._torn for job in own)  # somebody ended a component of it
            meant = late or part or change.before.bereft(pod)
            if cancelled and cancelled <= self._ended and not meant:
                text = f"pod {pod.ref} was deleted for the end of a job that the bridge itself ended"
                yield Violation("own_end", text)

    def _was_right(self, change: Change, found: Violation) -> bool:
        """There was a reason, and it was taken back before the bridge could know."""
        if self._deceived and found.invariant == placed_by_slurm.__name__:
            return True  # a pod that it does not see gets its place back once it does: told by `converged`
        for holds, age in VIEW.items():
            if holds.__name__ != found.invariant:
                continue
            about = " ".join(found.text.split(" ", 2)[:2])  # "pod default/p1"
            for picture, until in self._recent:
                if change.after.now - until <= age:
                    jobs = change.before.jobs if holds is containers_first else picture.jobs
                    before = replace(picture, pods=change.before.pods, jobs=jobs)
                    if not any(about in still.text for still in holds(replace(change, before=before))):
                        return True
        if found.invariant == placed_by_slurm.__name__ and self._bound_before(change.after, found):
            return True
        return self._mirrors and self._was_right_of_nodes(change, found)

    def _bound_before(self, picture: Picture, found: Violation) -> bool:
        """The boot that forgot its job; a repair of its condition says later."""
        since = picture.booted + picture.view_age + picture.skew
        named = (pod for pod in picture.pods if f"pod {pod.ref} " in found.text)
        return picture.settling and any(self._bound.get(pod.uid, math.inf) <= since for pod in named)

    def _was_right_of_nodes(self, change: Change, found: Violation) -> bool:
        now = change.after.now
        if "pods" in self._deceived and found.invariant == holders_kept.__name__:
            return True
        for holds, age in NODES_SEEN.items():
            age = PATIENCE if self._blind or now < self._hung else age
            for picture, until in self._former if holds.__name__ == found.invariant else ():
                seen = replace(change, before=replace(change.before, nodes=picture.nodes))
                if now - until <= age and not holds(seen):
                    return True
        for holds, age in RECORDS_SEEN.items():
            age = PATIENCE if now < self._hung else age
            for picture, until in self._former if holds.__name__ == found.invariant else ():
                seen = replace(change, before=replace(change.before, records=picture.records))
                if now - until <= age and not holds(seen):
                    return True
        return False

    def _restarting(self) -> Iterator[Uid]:
        for job in self._kube.storage.all("jobs"):
            if (job["metadata"].get("annotations") or {}).get(ON_FAILURE) == "restart-gang":
                yield Uid(job["metadata"]["uid"])

    def bridge_starts(self) -> None:
        """Of pods that went before, and whose jobs slurmctld has lost, neither side can tell it anything."""
        named = {uid for job in self.before.jobs if job.mark is not None for uid in job.mark.uids}
        for uid in [uid for uid in self._gone if uid not in named]:
            del self._gone[uid]

    def blind(self) -> None:
        """Something of what Kubernetes told was lost."""
        self._blind = True

    def deceived(self, resource: str) -> None:
        """A list of pods or nodes that was not true."""
        self._deceived.add(resource)

    def hangs(self, seconds: float) -> None:
        """Requests to Slurm may be carried out so late."""
        self._hung = max(self._hung, self._wall() + seconds)

    def calm(self) -> None:
        """From now on nothing is in anybody's way."""
        self._calm = self._clock()

    def fail(self, violation: Violation) -> None:
        if self.first is None:
            self.first = Seen(violation, self._clock())
        self.failed.set()

    # --- pictures ---------------------------------------------------------------------------------

    def picture(self) -> Picture:
        pods = tuple(self._pod(p) for p in self._kube.storage.all("pods") if self._is_ours(p))
        uids = {pod.uid for pod in pods}
        for uid in [uid for uid in self._pods if uid not in uids]:
            self._gone[uid] = self._pods.pop(uid)
        return Picture(
            cluster=self._cluster,
            now=self._wall(),
            pods=pods,
            gone=tuple(self._gone.values()),
            dead=self._dead(pods),
            restarts=frozenset(self._restarting()),
            jobs=tuple(self._whole()),
            nodes=self._node_table(),
            drained=self._closed(),
            records=self._node_records() if self._mirrors else {},
            since=dict(self._drained) if self._mirrors else {},
            author=self._slurm.asker,
            drain_taints=self._settings.drainTaints,
            drain_share=self._settings.drainShare,
            recreation_share=self._settings.recreationShare,
            alone=self.leaders < 2,
            booted=math.floor(self._slurm.came_up),  # as Slurm tells starts: whole seconds
            boot_grace=self._boot_grace,
            repair=self._repair,
            skew=self._skew,
            patience=PATIENCE,
            limit_margin=LIMIT_MARGIN,
            heeds_limits=self._clock() - self._calm > HEED,
            handover=False,
        )

    def _closed(self) -> frozenset[SlurmNode]:
        """Slurm starts nothing there: without the mirror only drains do that, and no record ever goes."""
        known = self._slurm.nodes
        if not self._mirrors:
            return frozenset(SlurmNode(name) for name, node in known.items() if node.drained)
        lacking = (name for name in self._node_table() if name not in known)
        return frozenset([*(SlurmNode(name) for name, node in known.items() if node.closed), *lacking])

    def _node_records(self) -> dict[SlurmNode, NodeRecord]:
        found: dict[SlurmNode, NodeRecord] = {}
        for name, node in self._slurm.nodes.items():
            jobs = slurm_nodes.on(self._slurm, name)
            now = (node, *jobs)
            known = self._records.get(SlurmNode(name))
            if known is None or known[0] != now:
                shown_node = slurm_nodes.shown(node, jobs, external=True)
                known = (now, nodes.record(msgspec.convert(shown_node, wire.Node)))
                self._records[SlurmNode(name)] = known
            found[SlurmNode(name)] = known[1]
            if node.drained:
                self._drained.setdefault(SlurmNode(name), self._slurm.clock())
            else:
                self._drained.pop(SlurmNode(name), None)
        return found

    def _known(self) -> Iterator[WorldJob]:
        """What slurmctld has, and ends that it has forgotten since: slurmdbd tells whoever asks, or the bridge has read
        them."""
        yield from self._slurm.jobs.values()
        books = self._slurm.books.rows if self._slurm.books.open else {}
        for job in (books | {job: known for job, (known, _) in self._jobs.items()}).values():
            if job.id not in self._slurm.jobs and is_ended(job.states):
                yield job

    def _is_ours(self, pod: Object) -> bool:
        return pod["spec"].get("schedulerName") in self._schedulers

    def _pod(self, found: Object) -> Pod:
        meta = found["metadata"]
        known = self._pods.get(meta["uid"])
        if known is None or known.version != meta["resourceVersion"]:
            known = self._pods[meta["uid"]] = view.pod_from_object(found)
            if known.node:
                self._bound.setdefault(known.uid, self._wall())
        return known

    def _dead(self, pods: tuple[Pod, ...]) -> frozenset[Uid]:
        """Of the machines' own knowledge: nothing runs any more."""
        running = self._kubelets.containers
        over = [pod.uid for pod in self._gone.values() if pod.uid not in running]
        return frozenset([*over, *(p.uid for p in pods if p.phase != "Pending" and p.uid not in running)])

    def _whole(self) -> Iterator[JobRecord]:
        """As the jobs that they are: a component is told with its leader."""
        known = tuple(self._known())
        parts: dict[JobId, list[JobRecord]] = {}
        for job in known:
            if job.leader:
                parts.setdefault(JobId(job.leader), []).append(self._job(job))
        for job in known:
            if not job.leader:
                yield self._job(job)
            elif job.leader == job.id:
                yield components.joined(sorted(parts[job.id], key=lambda one: one.id))

    def _job(self, job: WorldJob) -> JobRecord:
        known = self._jobs.get(job.id)
        if known is None or known[0] is not job:
            read = translate.record(msgspec.convert(shown(job), wire.Job))
            read = remembered(known[1] if known is not None else None, read)
            if read.vague:
                read = replace(read, ended=float(int(job.ended)))
            known = self._jobs[job.id] = (job, read)
        return known[1]

    def _node_table(self) -> dict[SlurmNode, Node]:
        version = sum(int(n["metadata"]["resourceVersion"]) for n in self._kube.storage.all("nodes"))
        if self._nodes[0] != version:
            found = [node_view.node(msgspec.json.encode(n)) for n in self._kube.storage.all("nodes")]
            self._nodes = (version, by_slurm_name(found)[0])
        for (
            name,
            node,
        ) in self._slurm.nodes.items():  # as slurm-operator has said once, whatever became of that
            if (pod := operator_pod(node.comment)) is not None and SlurmNode(pod.node) in self._nodes[1]:
                self._hosts[SlurmNode(name)] = SlurmNode(pod.node)
        return self._nodes[1] | {
            name: at for name, own in self._hosts.items() if (at := self._nodes[1].get(own))
        }
