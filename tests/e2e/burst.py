"""Pods that are on their way while the bridge is killed and started again and again."""

from __future__ import annotations

from collections.abc import Callable

from tests.e2e import kube as k
from tests.e2e.scene import Scene
from tests.e2e.waiting import eventually

GPUS = 50  # pods that get one; the stack has 64


def bound_between_kills(scene: Scene, *, kills: int, pods: int, changes: Callable[[], int]) -> set[str]:
    """UIDs. At each start `pods` of them or more have no node, and each life ends after so many changes of pods.

    However late a kill comes, the next life has as much to do as the first.
    """
    stack, witness = scene.stack, scene.witness
    uids: set[str] = set()
    unbound = []
    stack.kill("bridge")
    try:
        for _ in range(kills):
            while len(uids) < witness.bound + pods:
                number = len(uids)
                uids.add(scene.create(k.pod(f"burst-{number}", gpus=int(number < GPUS))))
            eventually("the witness knows all pods", lambda: len(witness.last) == len(uids))
            with stack.starting("bridge"):
                until = witness.events + changes()
                eventually(
                    "pods change",
                    lambda: witness.events >= until or witness.bound == len(uids),  # noqa: B023
                    every=0.001,
                )
            unbound.append(len(uids) - witness.bound)
    finally:
        stack.start("bridge")
    print(f"pods without a node at each kill: {unbound}")
    assert len([left for left in unbound if left]) > kills // 2, "most kills came too late to mean anything"
    return uids
