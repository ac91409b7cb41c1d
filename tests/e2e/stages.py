"""Stacks and scenes, opened for as long as they are needed.

A stack is named $SLURM_BRIDGE_STACK, "test" if that isn't set, or that and a suffix.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.e2e.kube import Kube
from tests.e2e.scene import Scene
from tests.e2e.slurm import Slurm
from tests.e2e.stack import Stack, command

NAME = os.environ.get("SLURM_BRIDGE_STACK", "test")
in_use: list[Stack] = []  # whose bridge a failing test is explained with
CHOSEN, HELD = "chosen", "held"  # who numbers our jobs: the bridge, Slurm
BOOT_GRACE = 15  # seconds, on stacks whose slurmctld starts often
in_both_modes = pytest.mark.parametrize("scene", [CHOSEN, HELD], indirect=True)


@contextmanager
def opened(name: str, *options: str) -> Iterator[Stack]:
    command("up", name, "--audit", *options)
    stack = Stack(name)
    stack.wait_leading()
    in_use.append(stack)
    yield stack
    in_use.remove(stack)
    stack.close()


@contextmanager
def own(suffix: str, *options: str) -> Iterator[Stack]:
    """A stack for a few tests only: clean at the start, down at the end."""
    name = f"{NAME}-{suffix}"
    command("reset", name)
    try:
        with opened(name, *options) as found:
            yield found
    finally:
        command("down", name)


@contextmanager
def staged(stack: Stack) -> Iterator[Scene]:
    assert (sick := stack.heal()) == [], f"dead or hung since the test before, started again: {sick}"
    kube, slurm = Kube(stack.facts["kubeconfigs"]["admin"]), Slurm(stack)
    scene = Scene(stack, kube, slurm)
    try:
        yield scene
        scene.close()
    finally:
        kube.close()
        slurm.close()
