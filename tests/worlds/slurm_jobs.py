"""The nouns of the Slurm world: nodes, jobs, and slurmctld's no."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from bridge.core import hostlist
from bridge.core.model import JobId, States, is_ended


class Refused(Exception):
    """slurmctld says no: Slurm's error number and text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


@dataclass(frozen=True)
class WorldNode:
    name: str
    cpus: int = 64
    memory: int = 512_000  # MiB
    gpus: int = 8
    gpu_type: str = "h100"
    drained: bool = False
    reason: str = ""  # of the drain
    reason_by: str = "root"
    reason_at: float = 0.0
    external: bool = True  # no slurmd, where Slurm is new enough
    dynamic: bool = True  # slurm.conf does not have it
    failing: bool = False
    down: bool = False
    silent: bool = False  # slurmctld does not reach it
    reservation: str = ""
    features: tuple[str, ...] = ("bridge",)
    topology: str = ""
    comment: str = ""
    extra: str = ""
    address: str = "127.0.0.1"
    booted: float = 0.0
    last_busy: float = 0.0

    @property
    def closed(self) -> bool:
        """Nothing starts there, but for whom it is reserved."""
        return self.drained or self.failing or self.down or self.silent or bool(self.reservation)


@dataclass(frozen=True, kw_only=True)
class WorldJob:
    id: JobId
    states: States
    submitted: float
    name: str = ""
    user: str = "slurm"
    partition: str = "slurm-bridge"
    admin_comment: str = ""
    comment: str = ""
    external: bool = True
    reason: str = "None"
    started: float = 0.0
    ended: float = 0.0
    preempted: float = 0.0
    paused: float = 0.0  # the last suspension
    time_limit: int | None = None  # minutes
    exit_code: int = 0
    exit_signal: int = 0
    # what it asks for, a node
    node_count: int = 1
    cpus: int = 1
    memory: int = 0  # MiB; 0 = all of the node
    gpu_count: int = 0
    whole: bool = False
    on_hold: bool = False
    priority: int | None = None  # None: Slurm's own
    excluded: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()
    tasks: int | None = (
        None  # of a gang: as many on a node as fit; cpus, memory and gpu_count are then a task's
    )
    layout: tuple[str, ...] = ()  # one node a task
    a_node: int | None = None  # tasks on one node at most
    by_node: bool = True  # memory is a node's; of a gang it may be a task's
    leader: int = 0  # of the job of several sizes that it is a component of, itself perhaps; 0 = of none
    # what it has
    held: dict[str, int] = field(default_factory=dict)  # node → tasks there, of a gang
    gpus: dict[str, tuple[int, ...]] = field(default_factory=dict)  # node → device indices, in Slurm's order
    gpu_type: str = "h100"

    def over(self, state: str, now: float, exit_code: int, exit_signal: int) -> WorldJob:
        """The same, ended."""
        paused = self.paused if "SUSPENDED" in self.states else 0.0
        over = replace(self, states=frozenset({state}), ended=now, paused=paused)
        return replace(over, exit_code=exit_code, exit_signal=exit_signal)

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(self.gpus)

    @property
    def holds(self) -> bool:
        return bool(self.gpus) and not is_ended(self.states)

    @property
    def listed(self) -> str:
        """Its id in the list of states."""
        return f"{self.id}+{self.id - self.leader}" if self.leader else str(self.id)

    def cpus_on(self, node: str) -> int:
        return self.cpus * self.held.get(node, 1)

    def memory_on(self, node: str) -> int:
        """MiB; 0 = all of it."""
        return self.memory if self.by_node else self.memory * self.held.get(node, 1)

    def busy_cpus(self, node: str) -> int:
        """A suspended job keeps its memory and its GPUs, and lends its CPUs."""
        return 0 if "SUSPENDED" in self.states else self.cpus_on(node)


def names_of(hostlists: Iterable[str]) -> frozenset[str]:
    """An array of names or of hostlists, as Slurm takes both."""
    return frozenset(name for text in hostlists if text for name in hostlist.expand(text))
