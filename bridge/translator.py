"""The job that a group of pods needs, asked of `core.jobspec` only when what it depends on has changed.

Goes in: the group's members, the attempt, the nodes to avoid. Comes out: the job, or why there can't be one. A cache
like all of memory: most looks at a pod follow a change of its status, on which no job depends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version

from bridge.candidates import ABSENT, Candidates
from bridge.config import JobSettings
from bridge.core import attempt as attempts
from bridge.core import grouping
from bridge.core.changed import epoch, stamped
from bridge.core.facts import Member, Refusal
from bridge.core.fit import EVERYWHERE, Fit
from bridge.core.grouping.owners import LWS_GROUP, Absence, Chain, above_all, chain, named
from bridge.core.jobspec import avoiding, capped, essence, translate, unpadded
from bridge.core.model import Gang, Group, GroupKey, JobSpec, Node, Pod, SlurmNode
from bridge.errors import UserError
from bridge.kube.store import Store
from bridge.memory import Memory
from bridge.owners import Owners

PATIENCE = 10.0  # seconds that a pod waits for what its job depends on to be read; then it goes on without
KEPT = 20_000  # answers; then all are forgotten


@dataclass(frozen=True, slots=True)
class _Answer:
    question: tuple[object, ...]
    spec: JobSpec | None
    error: str = ""
    avoided: Mapping[str, tuple[SlurmNode, ...]] = field(default_factory=dict)
    avoiding: JobSpec | None = None  # the same job on none of those


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Of a group in rank order: its job, or why there is none, and which nodes can take its pods."""

    group: Group
    spec: JobSpec | None = None
    refusal: Refusal | None = None
    fit: Fit = EVERYWHERE


class Translator:
    """`nodes`: Kubernetes nodes by Slurm name, `candidates`: which of them can take a pod; `longest`: MaxTime of a
    partition in minutes, None = unlimited; `wall` gives Unix seconds; `undivided`: why Slurm takes no job of several
    sizes.
    """

    def __init__(
        self,
        store: Store,
        memory: Memory,
        settings: JobSettings,
        cluster: str,
        nodes: Callable[[], Mapping[SlurmNode, Node]],
        candidates: Candidates,
        longest: Callable[[str], int | None],
        wall: Callable[[], float],
        owners: Owners,
        undivided: Callable[[], str],
    ) -> None:
        self._store = store
        self._memory = memory
        self._settings = settings
        self._cluster = cluster
        self._nodes = nodes
        self._candidates = candidates
        self._longest = longest
        self._wall = wall
        self._owners = owners
        self._undivided = undivided
        self.epoch = epoch(settings, version("slurm-bridge"))
        self._answers: dict[GroupKey, _Answer] = {}

    def job(
        self, key: GroupKey, members: Sequence[Member], number: attempts.Attempt, gang: Gang | None = None
    ) -> Job:
        present = tuple(m.pod for m in members if m.exists) or tuple(m.pod for m in members)
        above = self._above(present)
        beside = above_all(present, self._store.lookup) if gang is not None else ()
        group = grouping.build(key, present, above.nearest, above.workloads, gang, beside)
        answer = self._answer(group, number)
        if answer.spec is None:
            return Job(group=group, refusal=Refusal(text=answer.error, retry_in=None))
        fit = self._fit(group, answer.spec)
        wanted = self._avoiding(key, answer, answer.spec, self._avoided(key, number, fit))
        bare = number.bare or self._memory.unpadded(key)
        spec = capped(unpadded(wanted) if bare else wanted, self._longest(wanted.partition))
        return Job(group=group, spec=spec, refusal=self._memory.refusal(key, spec), fit=fit)

    def _fit(self, group: Group, spec: JobSpec) -> Fit:
        """Components of a job have lists of their own."""
        own = spec.excluded_nodes
        whole = self._candidates.fit(group.pods, spec.partition, own)
        if not spec.others:
            return whole
        members = {pod.uid: pod for pod in group.pods}
        parts = {
            one.size: self._candidates.fit([members[u] for u in one.pods], spec.partition, own, named=True)
            for one in (spec, *spec.others)
        }
        none = next((part.hopeless for part in parts.values() if part.hopeless), "")
        return replace(whole, hopeless=none, parts=parts)

    def _answer(self, group: Group, number: attempts.Attempt) -> _Answer:
        undivided = self._undivided() if group.gang is not None else ""
        about = (number.number, group.workload, group.owners, group.beside, group.gang, undivided)
        question = (*about, *map(essence, group.pods))
        known = self._answers.get(group.key)
        if known is not None and known.question == question:
            return known
        if len(self._answers) >= KEPT:
            self._answers.clear()
        try:
            spec = translate(
                group,
                settings=self._settings,
                cluster=self._cluster,
                attempt=number.number,
                undivided=undivided,
            )
            answer = _Answer(question, stamped(spec, self.epoch))
        except UserError as error:
            answer = _Answer(question, None, str(error))
        self._answers[group.key] = answer
        return answer

    def _avoiding(
        self, key: GroupKey, answer: _Answer, spec: JobSpec, avoided: Mapping[str, tuple[SlurmNode, ...]]
    ) -> JobSpec:
        if answer.avoiding is not None and answer.avoided == avoided:
            return answer.avoiding
        wanted = avoiding(spec, avoided)
        self._answers[key] = replace(answer, avoided=avoided, avoiding=wanted)
        return wanted

    def _avoided(
        self, key: GroupKey, number: attempts.Attempt, fit: Fit
    ) -> Mapping[str, tuple[SlurmNode, ...]]:
        """What earlier attempts taught, and every node that can't take the pod and that Slurm is known to have: it
        refuses unknown names. By the size of the pods, "" = for all that have no list of their own."""
        return {size: self._shut(key, number, one) for size, one in {"": fit, **fit.parts}.items()}

    def _shut(self, key: GroupKey, number: attempts.Attempt, fit: Fit) -> tuple[SlurmNode, ...]:
        nodes = self._nodes()
        taught = number.avoided(lambda name: name in nodes and name not in fit.obstacles, self._wall())
        taught = (*taught, *self._memory.shunned(key))
        shut = fit.excluded
        if shut is None:
            shut = tuple(sorted(name for name in fit.obstacles if name in self._memory.slurm_nodes))
        return tuple(dict.fromkeys((*taught, *shut))) if taught else shut

    def unread(self, key: GroupKey, pods: Sequence[Pod]) -> str:
        """That what decides about the group's job has not been read yet, or is not there; "" = all is, or it doesn't
        come. The pods' watch may run ahead of their owner's: its annotations must not be missed."""
        patient = self._memory.known_for(key) <= PATIENCE
        above = self._above(pods).awaited
        if above and (patient or self._owners.awaited(pods)):
            return f"{above} has not been read yet"
        mounts = self._candidates.unread(pods)
        if mounts and (patient or mounts.startswith(ABSENT)):
            return mounts
        return next(self._absent(pods), "")

    def _absent(self, pods: Sequence[Pod]) -> Iterator[str]:
        """Groups that the pods name themselves: without them nobody knows how many start together."""
        for pod in pods[:1]:
            for ref in named(pod):
                if ref.group != LWS_GROUP and self._store.lookup(pod.namespace, ref) is Absence.NOT_YET:
                    yield f"{ABSENT} {ref.kind} {pod.namespace}/{ref.name}, which does not exist"

    def _above(self, pods: Sequence[Pod]) -> Chain:
        return chain(pods[0], self._store.lookup) if pods else Chain()
