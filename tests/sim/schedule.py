"""A schedule: what happens when, as data. One seed draws one; playing it is `tests.sim.play`.

An action names its objects, and does nothing where they don't exist (any more): so any part of a schedule is one, too,
and a failing one can be made shorter. As JSON it outlives changes of the drawing.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from bridge.core.jobid import FAST
from tests.sim import node_schedule
from tests.sim.actions import (
    Action,
    Admin,
    BooksAway,
    Clock,
    Compact,
    Cordon,
    Create,
    Deaf,
    Delete,
    Finish,
    Foreign,
    Gang,
    Gone,
    JobEnds,
    Kill,
    KillAtWrite,
    KubeFault,
    Native,
    NodeAway,
    Reboot,
    Rejects,
    Reserve,
    Resize,
    Retime,
    Rival,
    Silence,
    SlurmCrash,
    SlurmDown,
    SlurmFault,
    SlurmHung,
    SlurmRestart,
    Suspend,
    Taint,
    Unlabel,
    Watch,
)

NODES = 3
GPUS = 4  # a node
FREES = frozenset({"ends", "delete", "crash"})  # what a newcomer may get before its time
MIRRORED = 0.3  # of all schedules
MORE = 20  # added to the weight of an action that is wanted
ROOM = 8  # GPUs that the pods of a schedule ask for at most: all of them fit, whatever they are placed like


KUBE_FAULTS = (
    "drop-before", "drop-after", "hang", "hang-done", "truncate", "html", "401", "403", "409", "429", "500", "503",
    "504", "empty-list", "foreign-list",
)  # fmt: skip
SLURM_FAULTS = (
    "drop-before", "drop-after", "truncate", "html", "401", "404", "404-route", "429", "500", "502", "504", "511",
    "errors", "no-id", "empty-list", "short-list", "foreign-list",
)  # fmt: skip
VERBS = ("patch", "patch_status", "bind", "list", "get", "delete", "watch", None)
ROUTES = (
    "POST job/submit",
    "POST job/allocate",
    "GET job/",
    "DELETE job/",
    "jobs/state",
    "conf",
    "ping",
    "slurmdb/",
    ".",
)
ENDS = (
    "CANCELLED",
    "TIMEOUT",
    "PREEMPTED",
    "NODE_FAIL",
    "DEADLINE",
)  # with a status only the bridge ends placeholders
PAUSES = (0.0, 0.01, 0.03, 0.05, 0.1, 0.2, 0.3, 1.0, 3.0)


class Options(msgspec.Struct, frozen=True):
    """What a schedule keeps the same from its beginning to its end."""

    poll: float = 0.5  # seconds between state polls
    latency: float = 0.0  # seconds of every request to either side
    thinking: float = 0.05  # seconds that kube-scheduler takes
    dying: float = 0.0  # share of its grace that a container takes to end
    start_delay: float = 0.0  # seconds that Slurm takes to start a job
    lossy: bool = False  # one watch event of a hundred is lost
    fast: bool = True  # immediate allocations
    held: bool = False  # the token may not choose job ids
    ahead: float = 0.0  # seconds that slurmctld's clock is ahead of all others
    nodes: str = ""  # what they are, where they are mirrored: one of `machines.KINDS`; "" = the mirror is off


class Step(msgspec.Struct, frozen=True):
    at: float  # seconds from the beginning
    action: (
        Create | Gang | Delete | Finish | Native | Foreign | Kill | KillAtWrite | Rival | Clock | KubeFault | Watch
        | Compact | NodeAway | Cordon | SlurmFault | SlurmRestart | SlurmCrash | SlurmDown | SlurmHung | JobEnds
        | Suspend | Retime | BooksAway
        | Silence | Taint | Unlabel | Gone | Resize | Reboot | Rejects | Admin | Reserve | Deaf
    )  # fmt: skip


class Schedule(msgspec.Struct, frozen=True):
    seed: int
    options: Options
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        lines = [f"{step.at:8.2f} s  {step.action}" for step in self.steps]
        return "\n".join([f"seed {self.seed}, {self.options}", *lines])


class _Hand:
    """Draws actions about pods that were created before."""

    WEIGHTS: ClassVar[dict[str, int]] = {
        "create": 22, "gang": 7, "again": 4, "delete": 8, "finish": 4, "native": 2, "foreign": 1, "kill": 5,
        "kill_at_write": 5, "rival": 4, "clock": 2, "kube_fault": 10, "watch": 8, "compact": 3, "node": 3,
        "cordon": 2, "slurm_fault": 10, "restart": 2, "crash": 4, "down": 2, "hung": 3, "ends": 5, "suspend": 2,
        "retime": 2, "books": 2,
    }  # fmt: skip

    def __init__(self, rng: random.Random, more: Sequence[str]) -> None:
        self._rng = rng
        self._weights = self.WEIGHTS | {
            kind: self.WEIGHTS[kind] + MORE for kind in more if kind in self.WEIGHTS
        }
        self._pods: dict[str, int] = {}  # and their GPUs
        self._next = ""  # what shall come next

    def action(self) -> Action:
        rng = self._rng
        kinds = list(self._weights)
        while True:
            kind = self._next or rng.choices(kinds, list(self._weights.values()))[0]
            self._next = ""
            drawn = self._draw(kind)
            if drawn is not None:
                if rng.random() < 0.5:
                    lies = isinstance(drawn, KubeFault) and drawn.kind.endswith("-list")
                    self._next = "create" if kind in FREES else "compact" if lies else ""
                return drawn

    def _draw(self, kind: str) -> Action | None:
        rng = self._rng
        match kind:
            case "create":
                return self._create()
            case "gang":
                return self._gang()
            case "native":
                return Native(gpus=rng.choice((1, 2, 4)), seconds=rng.choice((1.0, 10.0)))
            case "foreign":
                return Foreign(probe=rng.choice((FAST, 0, 1)))
            case "kill":
                return Kill(down=rng.choice((0.0, 0.0, 0.5, 5.0)))
            case "kill_at_write":
                return KillAtWrite(number=rng.randrange(1, 9), down=rng.choice((0.0, 1.0)))
            case "rival":
                return Rival(seconds=rng.choice((5.0, 30.0)))
            case "clock":
                return Clock(seconds=rng.choice((-3600.0, 3600.0, -30.0, 30.0)))
            case "kube_fault":
                return KubeFault(
                    kind=rng.choice(KUBE_FAULTS), verb=rng.choice(VERBS), times=rng.randrange(1, 4)
                )
            case "watch":
                return Watch(how=rng.choice(("cut", "reset", "mute", "repeat", "drop", "delay")))
            case "compact":
                return Compact()
            case "node":
                return NodeAway(node=self._node(), seconds=rng.choice((5.0, 40.0)))
            case "cordon":
                return Cordon(node=self._node(), seconds=rng.choice((1.0, 10.0)))
            case "slurm_fault":
                return SlurmFault(
                    kind=rng.choice(SLURM_FAULTS), route=rng.choice(ROUTES), times=rng.randrange(1, 4)
                )
            case "restart":
                return SlurmRestart()
            case "crash":
                return SlurmCrash(seconds=rng.choice((0.1, 0.5, 2.0, 5.0)))
            case "down":
                return SlurmDown(seconds=rng.choice((2.0, 20.0)))
            case "hung":
                return SlurmHung(
                    seconds=rng.choice((1.0, 8.0, 40.0)),
                    route=rng.choice((".", ".", "POST job/", "slurmdb/")),
                )
            case "books":
                return BooksAway(seconds=rng.choice((5.0, 60.0)))
        if not self._pods:
            return None
        pod = rng.choice(list(self._pods))
        match kind:
            case "again":
                return Create(pod=pod, gpus=self._pods[pod])
            case "delete":
                return Delete(pod=pod, force=rng.random() < 0.2)
            case "finish":
                return Finish(pod=pod, code=rng.choice((0, 0, 1, 137)))
            case "ends":
                return JobEnds(pod=pod, state=rng.choice(ENDS), part=rng.random() < 0.5)
            case "suspend":
                return Suspend(pod=pod, seconds=rng.choice((1.0, 10.0)))
            case "retime":
                return Retime(
                    pod=pod, minutes=rng.choice((0, 1, 1, 2, 60)), seconds=rng.choice((5.0, 28.0, 50.0))
                )
        raise AssertionError(kind)

    def _create(self) -> Action | None:
        rng = self._rng
        gpus = rng.choice((0, 1, 1, 2))
        if gpus + sum(self._pods.values()) > ROOM or len(self._pods) > 9:
            return None
        name = f"p{len(self._pods)}"
        self._pods[name] = gpus
        limit = 1 if rng.random() < 0.05 else 0
        return Create(pod=name, gpus=gpus, gated=rng.random() < 0.8, limit=limit)

    def _gang(self) -> Action | None:
        rng = self._rng
        size, gpus = rng.choice((2, 2, 3)), rng.choice((0, 1, 2))
        first = rng.choice((gpus, gpus, 0, 1))
        if first + (size - 1) * gpus + sum(self._pods.values()) > ROOM or len(self._pods) > 9:
            return None
        name = f"g{len(self._pods)}"
        self._pods |= {member(name, index): gpus if index else first for index in range(size)}
        return Gang(
            name=name,
            pods=size,
            gpus=gpus,
            restart=rng.random() < 0.3,
            first=None if first == gpus else first,
        )

    def _node(self) -> str:
        return f"n{self._rng.randrange(1, NODES + 1)}"


def member(gang: str, index: int) -> str:
    """The name of a gang's pod."""
    return f"{gang}-{index}"


def draw(seed: int, more: Sequence[str] = ()) -> Schedule:
    """`more`: kinds of action that shall come more often. With one of nodes, every schedule is one of nodes."""
    rng, of_nodes = random.Random(seed), random.Random(f"nodes {seed}")
    mirrored = of_nodes.random() < MIRRORED or not node_schedule.WEIGHTS.keys().isdisjoint(more)
    options = Options(
        poll=rng.choice((0.1, 0.5, 0.5, 1.0)),
        latency=rng.choice((0.0, 0.0, 0.002, 0.04)),
        thinking=rng.choice((0.05, 0.05, 0.05, 4.0)),
        dying=rng.choice((0.0, 0.2, 1.0, 1.0)),
        start_delay=rng.choice((0.0, 0.0, 0.3, 2.0)),
        lossy=rng.random() < 0.1,
        fast=rng.random() < 0.7,
        held=rng.random() < 0.15,
        ahead=rng.choice((0.0, 0.0, 0.0, 0.0, -2.0, 2.0)),
        nodes=of_nodes.choice(node_schedule.KINDS) if mirrored else "",
    )
    hand = _Hand(rng, more)
    at = 0.0
    steps: list[Step] = []
    for _ in range(rng.randrange(6, 22)):
        steps.append(Step(at=round(at, 3), action=hand.action()))  # type: ignore[arg-type]
        at += rng.choice(PAUSES)
        while mirrored and of_nodes.random() < node_schedule.SHARE:
            befalls = node_schedule.draw(of_nodes, [f"n{i}" for i in range(1, NODES + 1)], more, MORE)
            steps.append(Step(at=round(at, 3), action=befalls))  # type: ignore[arg-type]
            at += of_nodes.choice(PAUSES)
    if any(isinstance(step.action, Rival) for step in steps):
        # Somebody else's job under our first id that comes or goes between the looks of two leaders: nothing that both
        # write first says which id is asked for (docs/safety.md, "A pod has one job").
        steps = [step for step in steps if not isinstance(step.action, Foreign)]
    return Schedule(seed=seed, options=options, steps=tuple(steps))
