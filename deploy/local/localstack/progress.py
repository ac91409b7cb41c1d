"""What the person at the terminal sees.

In: stages and long-running commands. Out: one line per stage on standard error, a line every ten seconds
while a command runs, and `Failure`, the one exception that ends the program with a message instead of a
traceback.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_BEGAN = time.monotonic()
_REPORT_EVERY = 10.0
_given_up = threading.Event()


class Failure(Exception):
    """Something outside this program is not as needed; the message says what and how to go on."""


def say(text: str) -> None:
    print(f"[{time.monotonic() - _BEGAN:4.0f} s] {text}", file=sys.stderr, flush=True)


def last_lines(log: Path, count: int = 10) -> str:
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return f"  ({log} cannot be read)"
    return "\n".join("  " + line[:300] for line in lines[-count:]) or "  (empty)"


def failed(what: str, log: Path) -> Failure:
    """A failure of something that writes a log: names the log and shows its end."""
    return Failure(f"{what}. Log: {log}\n{last_lines(log)}")


def run(
    stage: str,
    command: Sequence[str | Path],
    log: Path,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    hint: Callable[[], str] | None = None,
) -> None:
    """Runs a command that may take minutes, its output going to `log`; `hint` says how far it has come."""
    say(stage)
    began = reported = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        child = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        while child.poll() is None:
            _pause(0.2)
            if time.monotonic() - reported >= _REPORT_EVERY:
                reported = time.monotonic()
                say(f"{stage}: {reported - began:.0f} s; {hint() if hint else last_lines(log, 1).strip()}")
    except BaseException:
        os.killpg(child.pid, signal.SIGTERM)
        child.wait()
        raise
    if child.returncode != 0:
        raise failed(f"{stage}: failed with status {child.returncode}", log)


def wait_until(
    what: str,
    ready: Callable[[], bool],
    *,
    seconds: float,
    log: Path | None = None,
    every: float = 0.05,
) -> None:
    """Polls `ready`; after `seconds` it gives up and shows the log of the part that was waited for."""
    began = reported = time.monotonic()
    while not ready():
        now = time.monotonic()
        if now - began > seconds:
            message = f"{what}: not there after {seconds:.0f} s"
            raise failed(message, log) if log else Failure(message)
        if now - reported >= _REPORT_EVERY:
            reported = now
            say(f"waiting for {what}: {now - began:.0f} s")
        _pause(every)


def give_up() -> None:
    """Makes every wait in every thread end with a failure."""
    _given_up.set()


def _pause(seconds: float) -> None:
    if _given_up.wait(seconds):
        raise Failure("given up, because something else failed or was interrupted")
