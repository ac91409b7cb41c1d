"""Why something is as it is: one small object that becomes log line, metric label, Event, condition and refusal.

`Reason` is a closed set, so dashboards and alerts keep working when the wording improves.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """CamelCase as Kubernetes wants it for Event and condition reasons."""

    # waiting
    GATHERING = "Gathering"  # members or foreign gates are still missing
    READY = "Ready"  # complete; the job is about to be submitted
    QUEUED = "Queued"  # Slurm has the job and has not started it
    GRANTED = "Granted"  # Slurm runs the job; the pod is on its way to the node
    DEVICES_BUSY = "DevicesBusy"  # granted; the GPUs' last holder is not known dead
    THROTTLED = "Throttled"  # granted; waits because enough pods are un-gated already
    # placed
    BOUND = "Bound"
    RUNNING = "Running"
    SUSPENDED = "Suspended"  # Slurm suspended the job; the pod lives
    FINISHING = "Finishing"  # the pod ended; the job is being ended
    DRAINING = "WaitingForContainers"  # the pod object went; its containers are not known dead yet
    DONE = "Done"
    # trouble
    LOST_GRANT = "LostGrant"  # a grant that no longer holds, before the pod was bound
    JOB_ENDED = "JobEnded"  # Slurm ended the job of a bound pod
    JOB_ABSENT = "JobAbsent"  # Slurm does not list the job of a bound pod; the pod is kept
    HELD_BACK = "HeldBack"  # so many at once may be an accident: the breaker is open
    PREEMPTING = "Preempting"  # Slurm has begun the grace time of a preemption
    TIME_LIMIT = "TimeLimit"  # the user's time limit is over
    MEMBER_LOST = "MemberLost"  # of a gang that is to restart as a whole
    CANCELLED = "Cancelled"  # a person cancelled the job of a waiting pod
    ORPHAN = "Orphan"  # a job of ours whose pods are gone
    REFUSED = "Refused"  # Slurm, or we, cannot ever take this as it is written
    STALE = "StaleView"  # our picture of Slurm or Kubernetes is too old to decide
    FOREIGN = "Foreign"  # not ours
    TAKEN_OVER = "TakenOver"  # a job of the Go project's becomes ours
    UNAVAILABLE = "SlurmUnavailable"  # slurmrestd or slurmctld does not answer
    # nodes
    NODE_DRAINED = "NodeDrained"  # drained in Slurm, or as good as that
    NODE_WAITS = "NodeWaits"  # something is to happen to it, and waits
    NODE_REFUSED = "NodeRefused"  # what is written on the node, or what it runs on, can't be served
    NODE_DEAF = "NodeNotResponding"  # Slurm doesn't reach it
    PODS_DO_NOT_START = "PodsDoNotStart"  # kubelet rejected several pods
    # extender
    NOT_GRANTED = "NotGranted"
    OTHER_NODE = "GrantedElsewhere"
    ALLOWED = "Allowed"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A reason and a sentence for people; the sentence names objects and, where one exists, the fix."""

    reason: Reason
    text: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.text}"
