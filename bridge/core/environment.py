"""The variables that a Slurm user expects in a job, for the containers of a pod that asks for them.

In: a group, one of its pods with its place, its granted job. Out: annotations, one a variable, written in
the same PATCH that lets the pod go; admission has pointed the containers' environment at them, and kubelet reads them
when a container starts (deploy/manifests/cluster/environment.yaml). The job id has a label already. Nothing for others.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from bridge.core import devices, hostlist
from bridge.core.model import Group, JobRecord, Pod
from bridge.core.overrides import flag, key
from bridge.core.placement import Slot
from bridge.errors import UserError
from bridge.names import ENVIRONMENT_PREFIX, JOB_ID_LABEL, RANK_ANNOTATION

ASKED = key("inject-env")
_NODELIST, _NODES, _TASKS, _GPUS = (
    ENVIRONMENT_PREFIX + name
    for name in ("SLURM_JOB_NODELIST", "SLURM_NNODES", "SLURM_NTASKS", "SLURM_JOB_GPUS")
)
# Variable → the field of the pod that it comes from, as the downward API spells it.
SOURCES: Mapping[str, str] = {
    "SLURM_JOB_ID": f"metadata.labels['{JOB_ID_LABEL}']",
    **{
        name.removeprefix(ENVIRONMENT_PREFIX): f"metadata.annotations['{name}']"
        for name in (_NODELIST, _NODES, _TASKS, RANK_ANNOTATION, _GPUS)
    },
}


def asks(pod: Pod) -> bool:
    """The pod itself, as admission sees it: nobody knows its owner there. A malformed word is a refusal elsewhere."""
    try:
        return flag(pod.annotations.get(ASKED, "false"))
    except UserError:
        return False


def of_pod(group: Group, pod: Pod, slot: Slot, record: JobRecord) -> Mapping[str, str]:
    """Annotation → value; {} for a pod that does not ask. `slot`: of this pod.

    One task is one pod: what waits for SLURM_NTASKS processes must not wait for more than there are.
    """
    if not asks(pod):
        return {}
    found = {
        _NODELIST: hostlist.compress(record.nodes),
        _NODES: str(len(record.nodes)),
        _TASKS: str((record.tasks if group.gang is not None else None) or len(group.pods)),
        RANK_ANNOTATION: str(slot.rank),
    }
    with suppress(UserError):  # somebody wrote over a running pod's annotation
        if indices := devices.unspell(slot.gpus):
            found[_GPUS] = ",".join(map(str, indices))  # as Slurm writes them: every index, no ranges
    return found


def written(pod: Pod) -> tuple[str, ...]:
    """The annotations of this module that the pod carries."""
    return tuple(name for name in pod.annotations if name.startswith(ENVIRONMENT_PREFIX))
