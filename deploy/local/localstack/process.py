"""Daemons: started once, found again, ended with certainty and never by mistake.

In: a `Part` (a command with its log and its test of readiness). Out: a running process whose pid file tells
it apart from a later process with the same number, because it also holds the process's start time.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from localstack.layout import Stack, write_atomically
from localstack.progress import failed, say, wait_until

_USUAL_PATIENCE = 10.0
_HUNG = 15.0  # seconds in which a part that runs already should answer
# The API server would wait a minute for the watches of clients that stay; slurmctld saves what it knows when it ends.
_PATIENCE = {"apiserver": 3.0, "slurmctld": 60.0}


@dataclass(frozen=True)
class Part:
    name: str
    command: tuple[str, ...]
    ready: Callable[[], bool]
    env: Mapping[str, str] = field(default_factory=dict)
    configuration: str = ""
    """Text that the daemon reads at its start; if it or the command changes, `up` restarts the daemon."""
    patience: float = 180.0
    before: Callable[[], None] = lambda: None
    """Called each time just before the daemon is started."""

    def fingerprint(self) -> str:
        text = "\0".join(
            [*self.command, *(f"{key}={value}" for key, value in self.env.items()), self.configuration]
        )
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Running:
    """A process that we started and that still runs."""

    pid: int
    started: str
    fingerprint: str


def log_of(stack: Stack, name: str) -> Path:
    return stack.logs / f"{name}.log"


def pid_file(stack: Stack, name: str) -> Path:
    return stack.pids / f"{name}.pid"


def running(stack: Stack, name: str) -> Running | None:
    try:
        pid, started, fingerprint = pid_file(stack, name).read_text().split()
    except (FileNotFoundError, ValueError):
        return None
    recorded = Running(int(pid), started, fingerprint)
    return recorded if _is_alive(recorded) else None


def known_parts(stack: Stack) -> list[str]:
    return sorted(path.stem for path in stack.pids.glob("*.pid"))


def launch(stack: Stack, part: Part) -> bool:
    """Starts the part unless it runs with the same configuration. Does not wait. True if it was started."""
    present = running(stack, part.name)
    if present and present.fingerprint == part.fingerprint():
        return False
    if present:
        say(f"{part.name}: its configuration changed, restarting")
        stop(stack, [part.name])
    part.before()
    stack.logs.mkdir(parents=True, exist_ok=True)
    with log_of(stack, part.name).open("ab") as log:
        child = subprocess.Popen(
            part.command,
            env={**_plain_environment(), **part.env},
            cwd=stack.state,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    _record(stack, part, child.pid)
    return True


def settle(stack: Stack, part: Part) -> None:
    """Waits until the part is ready; fails at once if its process has ended."""

    def ready() -> bool:
        if running(stack, part.name) is None:
            raise failed(f"{part.name} has ended", log_of(stack, part.name))
        return part.ready()

    wait_until(part.name, ready, seconds=part.patience, log=log_of(stack, part.name))


def start(stack: Stack, part: Part) -> None:
    """Also restarts a part that runs and answers nobody."""
    if not launch(stack, part) and not _answers(part):
        say(f"{part.name}: runs and does not answer, restarting")
        stop(stack, [part.name])
        launch(stack, part)
    settle(stack, part)


def _answers(part: Part) -> bool:
    deadline = time.monotonic() + _HUNG
    while not part.ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def stop(stack: Stack, names: Iterable[str]) -> list[str]:
    """Ends the named parts together: TERM, then KILL for those that take too long. Returns those that ran."""
    victims = {name: present for name in names if (present := running(stack, name))}
    for victim in victims.values():
        _send(victim, signal.SIGTERM)
    began = time.monotonic()
    for name, victim in victims.items():
        patience = _PATIENCE.get(name, _USUAL_PATIENCE)
        while _is_alive(victim) and time.monotonic() - began < patience:
            time.sleep(0.02)
        if _is_alive(victim):
            say(f"{name} did not stop within {patience:.0f} s: killed")
            _send(victim, signal.SIGKILL)
        while _is_alive(victim):
            time.sleep(0.02)
    return list(victims)


def forget(stack: Stack, name: str) -> None:
    pid_file(stack, name).unlink(missing_ok=True)


def send(stack: Stack, name: str, number: signal.Signals) -> bool:
    present = running(stack, name)
    if present:
        _send(present, number)
    return present is not None


def _record(stack: Stack, part: Part, pid: int) -> None:
    started = _start_time(pid) or "0"
    write_atomically(pid_file(stack, part.name), f"{pid}\n{started}\n{part.fingerprint()}\n")


def _start_time(pid: int) -> str | None:
    """Ticks since boot at which the process began, or None if there is none.

    A zombie counts as gone, but not before its last thread: until then its ports and locks are taken.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *rest = stat.rpartition(")")[2].split()
    threads, began = rest[16], rest[18]
    return None if state in "ZX" and int(threads) <= 1 else began


def _is_alive(process: Running) -> bool:
    return _start_time(process.pid) == process.started


def _send(target: Running, number: signal.Signals) -> None:
    try:
        os.kill(target.pid, number)
        if number == signal.SIGTERM:
            os.kill(target.pid, signal.SIGCONT)  # a stopped process would not see the signal
    except ProcessLookupError:
        pass


def _plain_environment() -> dict[str, str]:
    """Daemons don't inherit what a caller's shell exports: a stray KUBECONFIG or SLURM_CONF would count."""
    kept = ("PATH", "HOME", "LANG", "TZ", "SSL_CERT_FILE")
    return {key: os.environ[key] for key in kept if key in os.environ}
