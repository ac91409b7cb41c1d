"""The Slurm file system: Debian's Slurm packages unpacked once, then shared read-only by all stacks.

In: the Debian suite, and whether accounting is wanted. Out: the path of the root folder.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from pathlib import Path

from localstack import machine
from localstack.layout import CACHE, locked
from localstack.progress import run

_PACKAGES = (
    "slurmctld",
    "slurmrestd",
    "slurmd",
    "slurm-client",
    "slurm-wlm-basic-plugins",
    "slurm-wlm-jwt-plugin",
)
_ACCOUNTING_PACKAGES = ("slurmdbd", "slurm-wlm-mysql-plugin", "mariadb-server")
_RECIPE = "1"  # raise it when this file changes what ends up in the folder

SLURM_UID = 64030  # Debian's package creates this user
SLURMREST_UID = 64031
USERS = {"slurmrest": SLURMREST_UID, "alice": 1001, "bob": 1002}
GPUS = 8
_FOLDERS = ("etc/slurm", "var/lib/slurm", "var/log/slurm", "var/spool/slurmd", "var/lib/mysql", "mnt", "srv")


def path(suite: str, accounting: bool) -> Path:
    key = "\0".join((_RECIPE, *_packages(accounting)))
    variant = f"{suite}-accounting" if accounting else suite
    return CACHE / f"slurm-{variant}-{hashlib.sha256(key.encode()).hexdigest()[:12]}" / "rootfs"


def build(suite: str, accounting: bool) -> Path:
    root = path(suite, accounting)
    if root.exists():
        return root
    with locked(CACHE / f"slurm-{suite}.lock"):
        if root.exists():
            return root
        draft = root.parent.with_name(f"{root.parent.name}.{os.getpid()}")
        log = CACHE / "log" / f"slurm-{suite}.log"
        try:
            draft.mkdir(parents=True)
            run(
                f"Slurm: unpacking Debian {suite} (about 1 min, once)",
                _debootstrap(suite, accounting, draft),
                log,
            )
            _furnish(draft / "rootfs")
            draft.rename(root.parent)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return root


def _packages(accounting: bool) -> tuple[str, ...]:
    return _PACKAGES + (_ACCOUNTING_PACKAGES if accounting else ())


def _debootstrap(suite: str, accounting: bool, draft: Path) -> list[str]:
    unneeded = ("man", "doc", "locale")
    return [
        "mmdebstrap",
        "--mode=root",
        "--variant=minbase",
        '--aptopt=Apt::Install-Recommends "false"',
        # A machine whose clock is off, or a mirror that lags, must not end the build: the signature is still
        # checked.
        '--aptopt=Acquire::Check-Valid-Until "false"',
        '--aptopt=Acquire::Check-Date "false"',
        *(f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in unneeded),
        f"--include={','.join(_packages(accounting))}",
        suite,
        str(draft / "rootfs"),
        machine.debian_mirror(),
    ]


def _furnish(root: Path) -> None:
    """Adds users who submit jobs, folders that a stack lays its own over, and devices that pass for GPUs."""
    for name, number in USERS.items():
        with (root / "etc/passwd").open("a") as passwd, (root / "etc/group").open("a") as group:
            passwd.write(f"{name}:x:{number}:{number}::/tmp:/bin/sh\n")
            group.write(f"{name}:x:{number}:\n")
    for folder in _FOLDERS:
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "etc/hosts").touch()
    for index in range(GPUS):
        # slurmd accepts only a device node as a GPU; this one is /dev/null under another name.
        os.mknod(root / f"srv/gpu{index}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
