"""What the annotations of a workload and its pods say about gangs, read before the job is translated.

A malformed value says nothing here: the translation refuses it, and names object, key and fix.
"""

from __future__ import annotations

from collections.abc import Mapping

from bridge.core.grouping.owners import Chain
from bridge.core.model import Gang, Pod, Workload
from bridge.names import OPTION_PREFIX

GANG = OPTION_PREFIX + "gang"
WITHIN = OPTION_PREFIX + "gang-timeout"
ON_FAILURE = OPTION_PREFIX + "on-member-failure"
TIMEOUT = 300  # seconds

UNKNOWN = Gang(wanted=1, timeout=TIMEOUT)  # what is known of a gang by its job alone


def asked(pod: Pod, *owners: Workload) -> bool | None:
    """Do the pod or its owners, nearest first, ask for a gang? None: nobody says."""
    layers = (pod.annotations, *(owner.annotations for owner in owners))
    return next((said for layer in layers if (said := asks(layer)) is not None), None)


def asks(annotations: Mapping[str, str]) -> bool | None:
    """What these alone say."""
    return {"true": True, "false": False}.get(annotations.get(GANG, "").strip().lower())


def gang(wanted: int, pod: Pod, above: Chain, timeout: int | None = None, *, at_least: bool = False) -> Gang:
    """With the wishes of the pod, else of all that stands above it, strongest first. `timeout`: what the object that
    makes the gang says itself."""
    layers = (pod.annotations, *(work.annotations for work in reversed(above.workloads)))
    seconds, meant = _first(layers, WITHIN), timeout or TIMEOUT
    return Gang(
        wanted=max(1, wanted),
        at_least=at_least,
        restart=_first(layers, ON_FAILURE) == "restart-gang",
        timeout=int(seconds) if seconds.isascii() and seconds.isdigit() and int(seconds) else meant,
    )


def _first(layers: tuple[Mapping[str, str], ...], key: str) -> str:
    return next((said for layer in layers if (said := layer.get(key, ""))), "")
