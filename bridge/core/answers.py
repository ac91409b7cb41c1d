"""What the extender answers: may this pod be bound, and where? Values in, a node or a refusal out.

Invariant 1: only to a node that the pod's own RUNNING job holds. A picture that is too old refuses; it never guesses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from bridge.core import devices, ledger
from bridge.core.attempt import parse as parse_attempt
from bridge.core.model import (
    GroupKey,
    JobId,
    JobRecord,
    KubeNode,
    Node,
    Pod,
    SlurmNode,
    States,
    Uid,
    is_granted,
)
from bridge.core.twins import kube_name
from bridge.core.verdict import Reason, Verdict
from bridge.errors import ProtocolError
from bridge.names import ATTEMPT_ANNOTATION, GANG_ANNOTATION, GPUS_ANNOTATION, JOB_ID_LABEL, NODE_ANNOTATION


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The pod as kube-scheduler, or our own store, shows it."""

    uid: Uid
    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    @property
    def job(self) -> JobId | None:
        """The job that the leader wrote on the pod at the grant."""
        text = self.labels.get(JOB_ID_LABEL, "")
        return JobId(int(text)) if text.isascii() and text.isdigit() else None

    def joins(self, group: GroupKey) -> bool:
        """It came for a lost member of that gang."""
        gang = self.annotations.get(GANG_ANNOTATION, "")
        return bool(gang) and group.uid.endswith(f".{gang}")


def allowed(
    pod: Asked,
    *,
    cluster: str,
    states: States | None,
    record: JobRecord | None,
    nodes: Mapping[SlurmNode, Node],
    holders: Callable[[KubeNode], Iterable[ledger.Holder]] = lambda node: (),
    beside: Iterable[Pod] = (),
) -> KubeNode | Verdict:
    """The one node that Slurm gave this pod, or why there is none.

    `states` is what Slurm lists for `pod.job` now; `holders` are the pods on a node whose containers may live, `beside`
    other pods of the job there.
    """
    wanted = pod.annotations.get(NODE_ANNOTATION, "")
    if pod.job is None or not wanted:
        return Verdict(Reason.NOT_GRANTED, "waiting for Slurm to grant nodes")
    if states is None or record is None or record.states != states:
        return Verdict(Reason.STALE, f"job {pod.job} has not been read yet")
    if not is_granted(states):
        return Verdict(Reason.NOT_GRANTED, f"job {pod.job} is {'+'.join(sorted(states))}")
    mark = record.mark
    if mark is not None and mark.cluster == cluster and pod.uid not in mark.uids and pod.joins(mark.group):
        return Verdict(
            Reason.STALE, f"job {pod.job} was read before the pod took the place of a lost one in it"
        )
    if mark is None or mark.cluster != cluster or pod.uid not in mark.uids:
        return Verdict(Reason.FOREIGN, f"job {pod.job} does not carry this pod's mark")
    if mark.attempt < parse_attempt(pod.annotations.get(ATTEMPT_ANNOTATION, "")).number:
        return Verdict(Reason.LOST_GRANT, f"the grant of job {pod.job} was given back")
    held = {node.name for name in record.nodes if (node := nodes.get(name)) is not None}
    if wanted not in held:
        return Verdict(Reason.OTHER_NODE, f"job {pod.job} holds {','.join(record.nodes)}, not {wanted}")
    try:
        granted = _granted(record, nodes, wanted)
        busy = ledger.blocking(record, lambda name: kube_name(nodes, name), holders, only=KubeNode(wanted))
    except ProtocolError as error:
        return Verdict(Reason.REFUSED, str(error))
    told = ledger.indices(pod.annotations.get(GPUS_ANNOTATION, ""))
    if told is None or not told <= granted or (len(mark.uids) == 1 and told != granted):
        text = f"job {pod.job} holds GPUs {devices.spell(granted) or 'none'} of {wanted}, and the pod is told others"
        return Verdict(Reason.OTHER_NODE, text)
    for other in beside:
        if told & (ledger.indices(other.annotations.get(GPUS_ANNOTATION, "")) or frozenset()):
            text = f"GPUs {devices.spell(told)} of {wanted} are those of pod {other.ref} of its gang, too"
            return Verdict(Reason.OTHER_NODE, text)
    return Verdict(Reason.DEVICES_BUSY, ledger.Busy(claims=busy).text) if busy else KubeNode(wanted)


def _granted(record: JobRecord, nodes: Mapping[SlurmNode, Node], wanted: str) -> frozenset[int]:
    """The GPUs of that node that the job holds."""
    for name, text in zip(record.nodes, record.gres, strict=False):
        if (node := nodes.get(name)) is not None and node.name == wanted:
            return frozenset(devices.indices(text))
    return frozenset()
