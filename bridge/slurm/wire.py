"""The JSON of slurmrestd, v0.0.42 to v0.0.45: exactly the fields that we read, and nothing else.

A field with a default may be absent. One without is what the answer is about: when it is missing, the decode
fails and the client raises ProtocolError, so that half an answer is never taken for an empty one.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Wire(msgspec.Struct, frozen=True, gc=False):
    """Base of everything read; unknown fields are skipped unparsed."""


class Number(Wire, frozen=True):
    """Slurm's number that may be unset or infinite."""

    set: bool = False
    infinite: bool = False
    number: float = 0

    @property
    def value(self) -> float:
        """0 for unset and infinite."""
        return self.number if self.set and not self.infinite else 0.0

    @property
    def limit(self) -> int | None:
        """None for unset and infinite."""
        return int(self.number) if self.set and not self.infinite else None


UNSET = Number()


class Error(Wire, frozen=True):
    description: str = ""
    error_number: int = 0
    error: str = ""


class Warn(Wire, frozen=True):
    description: str = ""


class Version(Wire, frozen=True):
    """Strings on the wire: {"major": "26", "minor": "05", "micro": "5"}."""

    major: str = ""
    minor: str = ""


class Slurm(Wire, frozen=True):
    version: Version = Version()
    cluster: str = ""  # ClusterName


class Meta(Wire, frozen=True):
    slurm: Slurm = Slurm()


class Envelope(Wire, frozen=True, kw_only=True):
    """What every JSON answer carries beside its subject."""

    errors: tuple[Error, ...] = ()
    warnings: tuple[Warn, ...] = ()
    meta: Meta = Meta()


# --- GET jobs/state/ ------------------------------------------------------------------------------


class JobState(Wire, frozen=True):
    job_id: str  # "100", of a het job "100+0"; of an array "100_7"
    state: tuple[str, ...]


class StatesAnswer(Envelope, frozen=True, kw_only=True):
    jobs: tuple[JobState, ...]


# --- GET job/{id} ---------------------------------------------------------------------------------


class Signal(Wire, frozen=True):
    id: Number = UNSET


class ExitCode(Wire, frozen=True):
    return_code: Number = UNSET
    signal: Signal = Signal()


class HeldCpus(Wire, frozen=True):
    count: int = 0


class HeldNode(Wire, frozen=True):
    name: str = ""
    cpus: HeldCpus = HeldCpus()


class HeldNodes(Wire, frozen=True):
    allocation: tuple[HeldNode, ...] = ()  # in the order of the job's nodes


class Resources(Wire, frozen=True):
    nodes: HeldNodes = HeldNodes()


class Job(Wire, frozen=True):
    job_id: int
    job_state: tuple[str, ...]
    submit_time: Number = UNSET
    start_time: Number = UNSET
    end_time: Number = UNSET
    preempt_time: Number = UNSET
    suspend_time: Number = UNSET  # of the last suspension, or of its end
    state_reason: str = ""
    nodes: str = ""  # a hostlist: "k[0001-0004]"
    gres_detail: tuple[str, ...] = ()
    cpus: Number = UNSET
    tasks: Number = UNSET
    cpus_per_task: Number = UNSET
    memory_per_cpu: Number = UNSET
    job_resources: Resources | None = None  # a running job's
    memory_per_node: Number = UNSET
    name: str = ""
    user_name: str = ""
    partition: str = ""
    qos: str = ""
    time_limit: Number = UNSET
    priority: Number = UNSET
    excluded_nodes: str = ""  # a hostlist
    required_nodes: str = ""  # a hostlist
    exit_code: ExitCode = ExitCode()
    admin_comment: str = ""
    het_job_id: Number = UNSET  # of a component: its leader's id; 0 = it is none
    het_job_offset: Number = UNSET


class JobAnswer(Envelope, frozen=True, kw_only=True):
    jobs: tuple[Job, ...]


# --- GET /slurmdb/…/job/{id} ----------------------------------------------------------------------


class AccountedState(Wire, frozen=True):
    current: tuple[str, ...] = ()


class AccountedTime(Wire, frozen=True):
    submission: float = 0
    start: float = 0
    end: float = 0  # 0 while it runs, as far as slurmdbd knows
    limit: Number = UNSET


class AccountedComment(Wire, frozen=True):
    administrator: str = ""  # slurmctld sends it with the job's end, not before


class Accounted(Wire, frozen=True):
    job_id: int
    state: AccountedState
    time: AccountedTime
    cluster: str = ""
    comment: AccountedComment = AccountedComment()
    nodes: str = ""  # a hostlist, or "None assigned"
    name: str = ""
    user: str = ""
    partition: str = ""


class AccountedAnswer(Envelope, frozen=True, kw_only=True):
    """One job for each submit of the id, of every cluster that slurmdbd serves."""

    jobs: tuple[Accounted, ...]


# --- writes ---------------------------------------------------------------------------------------


class SubmitAnswer(Envelope, frozen=True, kw_only=True):
    """Of job/submit and job/allocate. A 200 without job_id: nothing was submitted."""

    job_id: int = 0
    job_submit_user_msg: str = ""


class KillError(Wire, frozen=True):
    code: int = 0
    string: str = ""


class KillStatus(Wire, frozen=True):
    error: KillError = KillError()


class KillAnswer(Envelope, frozen=True, kw_only=True):
    """Of DELETE job/{id}: an empty status is success."""

    status: tuple[KillStatus, ...]


class UpdateResult(Wire, frozen=True):
    error_code: int = 0
    error: str = ""


class UpdateAnswer(Envelope, frozen=True, kw_only=True):
    """Of POST job/{id}."""

    results: tuple[UpdateResult, ...] | None = None  # null when all is well


# --- daemons --------------------------------------------------------------------------------------


class Ping(Wire, frozen=True):
    responding: bool = False


class PingAnswer(Envelope, frozen=True, kw_only=True):
    pings: tuple[Ping, ...]


class Statistics(Wire, frozen=True):
    req_time: Number = UNSET
    req_time_start: Number = UNSET
    dbd_agent_queue_size: int = 0  # messages for slurmdbd that slurmctld has not sent yet


class DiagAnswer(Envelope, frozen=True, kw_only=True):
    statistics: Statistics


class ConfMeta(Wire, frozen=True):
    BOOT_TIME: int = 0
    LastUpdate: int = 0  # when slurmctld wrote this answer, by its own clock
    NEXT_JOB_ID: Number = UNSET


class Conf(Wire, frozen=True):
    SlurmUser: str = ""
    AccountingStorageType: str = ""
    MinJobAge: int = 0  # seconds
    MaxNodeCount: int = 0
    DefMemPerCPU: Number = UNSET
    DefMemPerNode: Number = UNSET
    SlurmctldParameters: tuple[str, ...] = ()
    SchedulerParameters: tuple[str, ...] = ()
    PrologSlurmctld: tuple[str, ...] = ()
    GresTypes: tuple[str, ...] = ()
    MCSPlugin: str = ""
    PreemptType: str = ""


class ConfAnswer(Envelope, frozen=True, kw_only=True):
    slurm_conf_meta: ConfMeta
    slurm_conf: Conf = Conf()


class Node(Wire, frozen=True):
    """Nothing that changes by itself, such as the load of its CPUs: an equal node is the same node."""

    name: str
    state: tuple[str, ...]
    reason: str = ""
    reason_set_by_user: str = ""
    reason_changed_at: Number = UNSET
    partitions: tuple[str, ...] = ()
    reservation: str = ""
    features: tuple[str, ...] = ()
    topology: str = ""
    comment: str = ""
    extra: str = ""
    address: str = ""
    hostname: str = ""
    cpus: int = 0
    real_memory: int = 0  # MiB
    gres: str = ""
    threads: int = 1  # of a core
    specialized_cores: int = 0
    specialized_memory: int = 0  # MiB
    boot_time: Number = UNSET
    last_busy: Number = UNSET


class NodesAnswer(Envelope, frozen=True, kw_only=True):
    nodes: tuple[Node, ...]
    last_update: Number = UNSET  # when slurmctld wrote this answer, by its own clock


class Maximums(Wire, frozen=True):
    time: Number = UNSET  # minutes


class PartitionNodes(Wire, frozen=True):
    configured: str = ""  # a hostlist


class Partition(Wire, frozen=True):
    name: str = ""
    nodes: PartitionNodes = PartitionNodes()
    grace_time: int = 0  # seconds that a preempted job gets
    maximums: Maximums = Maximums()


class PartitionsAnswer(Envelope, frozen=True, kw_only=True):
    partitions: tuple[Partition, ...]


class QosLimits(Wire, frozen=True):
    grace_time: int = 0  # seconds that a preempted job gets


class Qos(Wire, frozen=True):
    name: str = ""
    limits: QosLimits = QosLimits()


class QosAnswer(Envelope, frozen=True, kw_only=True):
    """Of /slurmdb/…/qos/."""

    qos: tuple[Qos, ...]


class XSlurm(Wire, frozen=True):
    version: Version = Version()


class Info(Wire, frozen=True, rename={"slurm": "x-slurm"}):
    slurm: XSlurm = XSlurm()


class OpenApi(Wire, frozen=True):
    """Of GET /openapi/v3: the routes are the truth about versions, whatever the info says."""

    paths: dict[str, msgspec.Raw]
    info: Info = Info()


class Refusal(Envelope, frozen=True, kw_only=True):
    """The body of a refused request. `errors` must be there: other services send JSON errors too."""

    errors: tuple[Error, ...]


encode = msgspec.json.Encoder().encode
Body = dict[str, Any]  # what we send, built by translate
