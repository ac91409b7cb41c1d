"""The job that a group of pods needs, asked of `core.jobspec` only when what it depends on has changed.

Goes in: the group's members, the attempt, the nodes to avoid. Comes out: the job, or why there can't be one. A cache
like all of memory: most looks at a pod follow a change of its status, on which no job depends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bridge.config import JobSettings
from bridge.core import attempt as attempts
from bridge.core import grouping
from bridge.core.facts import Member, Refusal
from bridge.core.grouping.owners import Chain, chain
from bridge.core.jobspec import capped, essence, translate, unpadded
from bridge.core.model import Gang, Group, GroupKey, JobSpec, Node, Pod, SlurmNode
from bridge.errors import UserError
from bridge.kube.store import Store
from bridge.memory import Memory
from bridge.owners import Owners

OWNER_PATIENCE = 10.0  # seconds that a pod waits for what stands above it to show up; then it goes on without
KEPT = 20_000  # answers; then all are forgotten


@dataclass(frozen=True, slots=True)
class _Answer:
    question: tuple[object, ...]
    spec: JobSpec | None
    error: str = ""


class Translator:
    """`nodes`: Kubernetes nodes by Slurm name; `longest`: MaxTime of a partition in minutes, None = unlimited; `wall`
    gives Unix seconds.
    """

    def __init__(
        self,
        store: Store,
        memory: Memory,
        settings: JobSettings,
        cluster: str,
        nodes: Callable[[], Mapping[SlurmNode, Node]],
        longest: Callable[[str], int | None],
        wall: Callable[[], float],
        owners: Owners,
    ) -> None:
        self._store = store
        self._memory = memory
        self._settings = settings
        self._cluster = cluster
        self._nodes = nodes
        self._longest = longest
        self._wall = wall
        self._owners = owners
        self._answers: dict[GroupKey, _Answer] = {}

    def job(
        self, key: GroupKey, members: Sequence[Member], number: attempts.Attempt, gang: Gang | None = None
    ) -> tuple[JobSpec | None, Refusal | None, Group]:
        """The job, or why there is none, and the group in rank order."""
        present = tuple(m.pod for m in members if m.exists) or tuple(m.pod for m in members)
        above = self._above(present)
        group = grouping.build(key, present, above.nearest, above.workloads, gang)
        answer = self._answer(group, number)
        if answer.spec is None:
            return None, Refusal(text=answer.error, retry_in=None), group
        bare = number.bare or self._memory.unpadded(key)
        asked = unpadded(answer.spec) if bare else answer.spec
        spec = capped(asked, self._longest(asked.partition))
        return spec, self._memory.refusal(key, spec), group

    def _answer(self, group: Group, number: attempts.Attempt) -> _Answer:
        avoided = self._avoided(number)
        question = (
            number.number,
            avoided,
            group.workload,
            group.owners,
            group.gang,
            *map(essence, group.pods),
        )
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
                excluded=avoided,
            )
            answer = _Answer(question, spec)
        except UserError as error:
            answer = _Answer(question, None, str(error))
        self._answers[group.key] = answer
        return answer

    def _avoided(self, number: attempts.Attempt) -> tuple[SlurmNode, ...]:
        """What earlier attempts taught, and every closed node that Slurm is known to have: it refuses unknown names."""
        nodes = self._nodes()
        closed = sorted(name for name, node in nodes.items() if not node.usable)
        known = (name for name in closed if name in self._memory.slurm_nodes)
        return tuple(dict.fromkeys((*number.avoided(nodes, self._wall()), *known)))

    def unread_owner(self, key: GroupKey, pods: Sequence[Pod]) -> str:
        """The pods' watch may run ahead of their owner's: its annotations must not be missed."""
        awaited = self._above(pods).awaited
        waits = self._owners.awaited(pods) or self._memory.known_for(key) <= OWNER_PATIENCE
        return awaited if waits else ""

    def _above(self, pods: Sequence[Pod]) -> Chain:
        return chain(pods[0], self._store.lookup) if pods else Chain()
