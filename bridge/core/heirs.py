"""Whose place in their job those pods get that come for lost ones.

In: the names of a job's pods in the order of their places, as its mark has them, and who came. Out: the place of each.
What must stay true: it is that of the lost pod with the same name, else of one whose name differs in its end alone, as
a controller makes it for the same index, whatever the order in which they come; so who comes for a pod whose containers
may live waits for that one's place, though another is free.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from bridge.core.model import Pod, Uid


def _stem(ref: str) -> str:
    return ref.rpartition("-")[0]


_LIKENESS: tuple[Callable[[str], str], ...] = (str, _stem, lambda ref: "")  # from the closest to none at all


def heirs(
    named: Sequence[str],
    lost: Sequence[int],
    leaving: Collection[int],
    new: Sequence[Pod],
    fits: Callable[[Pod, int], bool],
) -> tuple[dict[Uid, int], set[Uid]]:
    """The places of those that came, and who has to wait for one; who is neither gets none.

    `named`: "namespace/name" of each place. `lost`: free places, in the order in which they are given to pods that
    come for nobody in particular. `leaving`: places of pods on their way out. `fits`: is the place of the pod's size?
    """
    found: dict[Uid, int] = {}
    waiting: set[Uid] = set()
    for likeness in _LIKENESS:
        taken = set(found.values())
        free = _by([at for at in lost if at not in taken], named, likeness)
        going = _by(leaving, named, likeness)
        for pod in new:
            if pod.uid in found or pod.uid in waiting:
                continue
            alike = free.get(likeness(pod.ref), [])
            if (place := next((at for at in alike if fits(pod, at)), None)) is not None:
                found[pod.uid] = place
                alike.remove(place)
            elif not pod.node and any(fits(pod, at) for at in going.get(likeness(pod.ref), ())):
                waiting.add(pod.uid)
    return found, waiting


def _by(places: Iterable[int], named: Sequence[str], likeness: Callable[[str], str]) -> dict[str, list[int]]:
    """A gang may have a thousand places, and lose all of them at once."""
    found: dict[str, list[int]] = {}
    for at in places:
        found.setdefault(likeness(named[at]), []).append(at)
    return found
