"""What `stack` can do.

In: a stack, or a name and the options of one to be. Out: the daemons in the wanted state, and lines on what
was done.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from localstack import (
    bridge,
    jail,
    kubernetes,
    kubestack,
    layout,
    nodes,
    process,
    rootfs,
    slurm,
    workloads,
    wrappers,
)
from localstack.layout import Options, Stack
from localstack.process import Part
from localstack.progress import Failure, give_up, say

# What the state of a stack is made for.
_FIXED = ("suite", "accounting")
# Nodes are added at any time, but taking one away would mean to end what runs there.
_ONLY_GROWING = ("nodes", "hybrid")

# In which order parts end: first those that use the others.
_WAVES = (
    (
        "front",
        "bridge*",
        "scheduler",
        "default-scheduler",
        "controller-manager",
        "kwok",
        workloads.NAME,
        "slurmrestd",
        "slurmd-*",
    ),
    ("apiserver", "slurmctld"),
    ("etcd", "slurmdbd"),
    ("mariadbd",),
)


def find(name: str) -> Stack:
    stack = layout.load(name)
    if stack is None:
        raise Failure(f"there is no stack {name}; `deploy/local/stack up --name {name}` makes one")
    return stack


def up(name: str, asked: dict[str, Any]) -> Stack:
    """Starts what does not run. Options that were not asked for stay as they were."""
    with _alone(name):
        stack = _design(name, asked)
        root = _build(stack)
        slurm.prepare(stack)
        kubernetes.prepare(stack)
        stack.save()
        wrappers.write(stack, root)
        say(f"starting Kubernetes and Slurm on 127.0.0.1:{stack.first_port}-{stack.first_port + 99}")
        _together(lambda: _start_slurm(stack, root), lambda: _start_kubernetes(stack))
        nodes.wait_ready(stack)
        bridge.prepare(stack)  # also without a bridge of ours: tests start their own with this file
        _start_bridges(stack)
    say(f"stack {name} is up")
    return stack


def down(stack: Stack) -> None:
    with _alone(stack.name):
        _down(stack)


def reset(stack: Stack) -> None:
    with _alone(stack.name):
        _down(stack)
        shutil.rmtree(stack.state)
        layout.release_ports(stack.name)
    say(f"stack {stack.name}: state removed, caches kept")


def _down(stack: Stack) -> None:
    names = process.known_parts(stack)
    stopped: list[str] = []
    for wave in _WAVES:
        stopped += process.stop(stack, _matching(wave, names))
    jail.end_inhabitants(stack)
    for name in names:
        process.forget(stack, name)
    say(f"stack {stack.name}: {len(stopped)} parts stopped" if stopped else f"stack {stack.name} did not run")


def status(stack: Stack) -> bool:
    """Prints one line a part; True if all that should run does."""
    wanted = part_names(stack)
    alive = {name: process.running(stack, name) for name in wanted}
    print(f"stack {stack.name}: {stack.state}")
    print("  " + " ".join(f"{key}={value}" for key, value in asdict(stack.options).items()))
    for name in wanted:
        present = alive[name]
        print(f"  {name:20} {f'running, pid {present.pid}' if present else 'not running'}")
    return all(alive.values())


def start_part(stack: Stack, name: str) -> None:
    process.start(stack, _part(stack, name))


def kill_part(stack: Stack, name: str, number: signal.Signals) -> None:
    _known(stack, name)
    if not process.send(stack, name, number):
        raise Failure(f"{name} does not run")


def stop_part(stack: Stack, name: str) -> None:
    _known(stack, name)
    process.stop(stack, [name])


def part_names(stack: Stack) -> list[str]:
    last = bridge.daemon_names(stack) if stack.options.bridge else []
    return [*kubernetes.DAEMONS, *workloads.daemon_names(stack), *slurm.daemon_names(stack), *last]


def _alone(name: str) -> AbstractContextManager[None]:
    """Two commands that start or end parts of one stack wait for one another."""
    return layout.locked(layout.STATES / f".{name}.lock")


def _design(name: str, asked: dict[str, Any]) -> Stack:
    given = {key: value for key, value in asked.items() if value is not None}
    present = layout.load(name)
    kept = present.options.settings if present else {}
    given["settings"] = _merged(kept, given.get("settings", {}))
    if present is None:
        stack = layout.create(name, Options(**given))
    else:
        stack = replace(present, options=replace(present.options, **given))
        _check_change(name, present.options, stack.options)
    if stack.options.nodes < 0:
        raise Failure(f"--nodes {stack.options.nodes}: 0 or more")
    if not 0 <= stack.options.hybrid <= layout.MAX_HYBRID:
        raise Failure(f"--hybrid {stack.options.hybrid}: from 0 to {layout.MAX_HYBRID}")
    if not 1 <= stack.options.replicas <= layout.MAX_REPLICAS:
        raise Failure(f"--replicas {stack.options.replicas}: from 1 to {layout.MAX_REPLICAS}")
    return stack


def _merged(kept: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """A key set to nothing is as if it had never been set."""
    return {key: value for key, value in {**kept, **given}.items() if value}


def _check_change(name: str, old: Options, new: Options) -> None:
    for key in (*_FIXED, *_ONLY_GROWING):
        before, after = getattr(old, key), getattr(new, key)
        if key in _FIXED and before != after:
            raise Failure(
                f"--{key} is {before} and can't change: `deploy/local/stack reset --name {name}` first"
            )
        if key in _ONLY_GROWING and before > after:
            raise Failure(
                f"--{key} is {before} and can't shrink: `deploy/local/stack reset --name {name}` first"
            )


def _build(stack: Stack) -> Path:
    """Whatever is not in the cache yet; compiling waits for the processor and unpacking for the network."""
    _together(
        lambda: rootfs.build(stack.options.suite, stack.options.accounting),
        kubestack.build,
        bridge.build if stack.options.bridge else lambda: None,
    )
    return rootfs.path(stack.options.suite, stack.options.accounting)


def _start_slurm(stack: Stack, root: Path) -> None:
    slurm.start_all(stack, root)
    nodes.create_external(stack)


def _start_bridges(stack: Stack) -> None:
    wanted = bridge.daemon_names(stack) if stack.options.bridge else []
    running = _matching(("front", "bridge*"), process.known_parts(stack))
    for name in process.stop(stack, [name for name in running if name not in wanted]):
        process.forget(stack, name)
    if wanted:
        bridge.check(stack)
    for name in wanted:
        process.start(stack, bridge.part(stack, name))


def _start_kubernetes(stack: Stack) -> None:
    kubernetes.start_all(stack)
    nodes.create_twins(stack)
    workloads.start_all(stack)


def _together(*tasks: Callable[[], object]) -> None:
    """Runs all at the same time. If one fails, or the user has had enough, the others stop, too."""
    with ThreadPoolExecutor(len(tasks)) as pool:
        futures = [pool.submit(task) for task in tasks]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            give_up()
            raise


def _part(stack: Stack, name: str) -> Part:
    _known(stack, name)
    if name in bridge.daemon_names(stack):
        return bridge.part(stack, name)
    if name in kubernetes.DAEMONS:
        return kubernetes.part(stack, name)
    if name == workloads.NAME:
        return workloads.part(stack)
    return slurm.part(stack, rootfs.path(stack.options.suite, stack.options.accounting), name)


def _known(stack: Stack, name: str) -> None:
    names = [*part_names(replace(stack, options=replace(stack.options, bridge=True)))]
    if name not in names:
        raise Failure(f"there is no part {name}; the parts are: {' '.join(names)}")


def _matching(wave: tuple[str, ...], names: Iterable[str]) -> list[str]:
    return [name for name in names if any(fnmatch(name, pattern) for pattern in wave)]
