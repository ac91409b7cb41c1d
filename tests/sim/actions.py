"""What may happen in a schedule, one type for each kind of thing."""

from __future__ import annotations

import msgspec


class Action(msgspec.Struct, frozen=True, tag=True):
    def __str__(self) -> str:
        given = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__)
        return f"{type(self).__name__}({given})"


# --- people and workloads -------------------------------------------------------------------------


class Create(Action, frozen=True):
    """A pod; where one of that name has gone, its controller makes it again."""

    pod: str
    gpus: int = 1
    gated: bool = True
    limit: int = 0  # minutes; 0 = none


class Gang(Action, frozen=True):
    """A Job that asks for a gang, and its pods; where some go, others come for them in the end."""

    name: str
    pods: int
    gpus: int = 1
    restart: bool = False  # as a whole, when one is lost
    first: int | None = None  # GPUs of its first pod, where they are others than those of the rest


class Delete(Action, frozen=True):
    pod: str
    force: bool = False


class Finish(Action, frozen=True):
    """The containers end by themselves."""

    pod: str
    code: int = 0


class Native(Action, frozen=True):
    """An sbatch job of somebody else."""

    gpus: int
    seconds: float


class Foreign(Action, frozen=True):
    """Another cluster's bridge has a placeholder under the very id that our next pod would take."""

    probe: int


# --- the bridge -----------------------------------------------------------------------------------


class Kill(Action, frozen=True):
    """kill -9, and a new process `down` seconds later."""

    down: float


class KillAtWrite(Action, frozen=True):
    """kill -9 when the request with this number from now on has changed something, and before its answer comes."""

    number: int
    down: float


class Rival(Action, frozen=True):
    """A second replica that also believes it leads, for so long."""

    seconds: float


class Clock(Action, frozen=True):
    """The wall clock of the bridge's machine jumps."""

    seconds: float


# --- Kubernetes -----------------------------------------------------------------------------------


class KubeFault(Action, frozen=True):
    """The next `times` such requests suffer one of `play.KUBE_FAULTS`."""

    kind: str
    verb: str | None
    times: int


class Watch(Action, frozen=True):
    """cut, reset, mute, repeat, drop or delay every open watch."""

    how: str


class Compact(Action, frozen=True):
    """The history is gone, and every watch breaks."""


class NodeAway(Action, frozen=True):
    """Not Ready for so long; its containers run on."""

    node: str
    seconds: float


class Cordon(Action, frozen=True):
    node: str
    seconds: float


# --- machines, where the nodes are mirrored ---------------------------------------------------------


class Silence(Action, frozen=True):
    """Ready says something else for so long."""

    node: str  # "" = all of them
    says: str  # "False" or "Unknown"
    seconds: float


class Taint(Action, frozen=True):
    node: str
    key: str
    seconds: float


class Unlabel(Action, frozen=True):
    """For so long it is no external node."""

    node: str
    seconds: float


class Gone(Action, frozen=True):
    """The Node object is deleted; its kubelet makes another one later. Containers run on."""

    node: str
    seconds: float


class Resize(Action, frozen=True):
    """Something else is allocatable."""

    node: str
    cpus: int
    gpus: int
    seconds: float


class Reboot(Action, frozen=True):
    node: str


class Rejects(Action, frozen=True):
    """For so long kubelet takes no pod."""

    node: str
    seconds: float


class Admin(Action, frozen=True):
    """A person or a health check says in Slurm what is to become of a node."""

    node: str
    state: str  # DRAIN, DOWN, FAIL or RESUME
    reason: str = ""
    seconds: float = 0.0  # until they take it back; 0 = never


class Reserve(Action, frozen=True):
    node: str
    seconds: float


class Deaf(Action, frozen=True):
    """slurmctld does not reach it; of an external node only another record mends that."""

    node: str
    seconds: float


# --- Slurm ----------------------------------------------------------------------------------------


class SlurmFault(Action, frozen=True):
    """The next `times` requests that match suffer one of `play.SLURM_FAULTS`."""

    kind: str
    route: str
    times: int


class SlurmRestart(Action, frozen=True):
    pass


class SlurmCrash(Action, frozen=True):
    """kill -9: the last seconds are undone."""

    seconds: float


class SlurmDown(Action, frozen=True):
    """slurmctld is away; slurmrestd answers so."""

    seconds: float


class SlurmHung(Action, frozen=True):
    """SIGSTOP, or only writes that wait for a lock: what is asked meanwhile is done afterwards."""

    seconds: float
    route: str = "."


class BooksAway(Action, frozen=True):
    """slurmrestd answers that slurmdbd does not."""

    seconds: float


class JobEnds(Action, frozen=True):
    """Slurm, or a person, ends the pod's job."""

    pod: str
    state: str
    part: bool = False  # only a component, where the job has several


class Suspend(Action, frozen=True):
    pod: str
    seconds: float


class Retime(Action, frozen=True):
    """`scontrol update TimeLimit=` of the pod's job, whether it waits or runs; what it was before again later."""

    pod: str
    minutes: int  # 0 = UNLIMITED
    seconds: float
