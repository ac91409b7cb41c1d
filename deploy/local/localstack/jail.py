"""Programs inside the Slurm file system.

In: a stack, the shared root folder, a command. Out: the command line that runs it there, or what it answered.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from localstack.layout import LOCAL, Stack

PROGRAM = LOCAL / "slurm" / "jail"
_PATIENCE = ((signal.SIGTERM, 0.5), (signal.SIGKILL, 10.0))  # seconds that each signal has to take effect


def jailed(stack: Stack, root: Path, *command: str) -> tuple[str, ...]:
    """In a mount namespace of its own, with the stack's folders laid over the shared ones."""
    inside = (str(PROGRAM), str(root), str(stack.slurm_root), "", *command)
    return ("unshare", "-m", "--propagation", "private", *inside)


def ask(stack: Stack, root: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        jailed(stack, root, *command),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        cwd=stack.state,
    )


def end_inhabitants(stack: Stack) -> None:
    """Ends what still runs in there. Jobs outlive their slurmd, as on a real node; with the stack they go, too.

    Nobody is left who could write into a folder that is about to be removed.
    """
    for number, seconds in _PATIENCE:
        deadline = time.monotonic() + seconds
        while left := [pid for pid in _processes() if _lives_in(stack, pid)]:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _lives_in(stack: Stack, pid: int) -> bool:
    """True for a process whose /tmp is this stack's own: only programs in the jail see it under that name."""
    try:
        return os.path.samefile(f"/proc/{pid}/root/tmp", stack.slurm_root / "tmp")
    except OSError:
        return False
