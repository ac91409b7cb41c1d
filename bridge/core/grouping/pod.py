"""A pod on its own: one pod, one job, whatever created it."""

from __future__ import annotations

from bridge.core.grouping.wishes import Find
from bridge.core.model import GroupKey, Owner, Pod

KIND = "Pod"


def matches(pod: Pod) -> bool:
    """Every pod that no other kind claims."""
    return True


def owner_ref(pod: Pod) -> Owner | None:
    """No owner's annotations count for a bare pod."""
    return None


def family(pod: Pod, find: Find) -> None:
    """A pod alone is no gang."""


def key_of(pod: Pod) -> GroupKey:
    return GroupKey(namespace=pod.namespace, kind=KIND, name=pod.name, uid=pod.uid)


def rank(pod: Pod) -> tuple[int, str]:
    return (0, pod.name)
