"""A pod on its own: one pod, one job, whatever created it."""

from __future__ import annotations

from bridge.core.model import GroupKey, Pod

KIND = "Pod"


def key_of(pod: Pod) -> GroupKey:
    return GroupKey(namespace=pod.namespace, kind=KIND, name=pod.name, uid=pod.uid)
