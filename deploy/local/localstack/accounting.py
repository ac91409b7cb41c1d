"""Slurm's accounting: a database, slurmdbd, and a few accounts to try limits and shares with.

In: a stack whose folders are prepared, and its Slurm file system. Out: running mariadbd and slurmdbd.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from localstack.jail import ask, jailed
from localstack.layout import Stack
from localstack.process import Part, start
from localstack.progress import Failure

_CREATE_DATABASE = (
    "create database if not exists slurm_acct_db;"
    " create user if not exists slurm@localhost identified by 'slurm';"
    " grant all on slurm_acct_db.* to slurm@localhost;"
)
_ACCOUNTS = (
    "add cluster local",
    "add account proj fairshare=10",
    "add account other fairshare=5",
    "add user alice account=proj",
    "add user bob account=other",
    "add user slurm account=proj adminlevel=admin",
    "add user root account=proj adminlevel=admin",
    "add qos high priority=1000",
    "add qos gpu8",
    "modify qos gpu8 set MaxTRESPerUser=gres/gpu=8",
    "modify account proj set qos+=high,gpu8",
    "modify user alice,slurm set qos+=high,gpu8",
)


def start_all(stack: Stack, root: Path) -> None:
    _prepare_database(stack, root)
    start(stack, database(stack, root))
    _must(stack, root, "mariadb", "-u", "root", "-e", _CREATE_DATABASE)
    start(stack, slurmdbd(stack, root))
    _add_accounts(stack, root)


def database(stack: Stack, root: Path) -> Part:
    # MariaDB 11.8 checks snapshots in a way that slurmdbd takes as fatal. Older ones ignore the switch
    # (loose-).
    command = (
        "mariadbd",
        "--no-defaults",
        "--user=mysql",
        "--datadir=/var/lib/mysql",
        "--socket=/run/mysqld/mysqld.sock",
        "--skip-networking",
        "--innodb-buffer-pool-size=256M",
        "--innodb-lock-wait-timeout=900",
        "--innodb-flush-log-at-trx-commit=2",
        "--loose-innodb-snapshot-isolation=OFF",
    )
    return Part(
        "mariadbd",
        jailed(stack, root, *command),
        lambda: ask(stack, root, "mariadb-admin", "ping").returncode == 0,
    )


def slurmdbd(stack: Stack, root: Path) -> Part:
    return Part(
        "slurmdbd",
        jailed(stack, root, "slurmdbd", "-D"),
        lambda: ask(stack, root, "sacctmgr", "-n", "show", "cluster").returncode == 0,
        configuration=(stack.slurm_root / "etc/slurm/slurmdbd.conf").read_text(),
    )


def _prepare_database(stack: Stack, root: Path) -> None:
    uid, gid = _database_user(root)
    for folder in ("var/lib/mysql", "run/mysqld"):
        (stack.slurm_root / folder).mkdir(exist_ok=True)
        os.chown(stack.slurm_root / folder, uid, gid)
    other_name = stack.slurm_root / "run/mariadbd"  # where the newer client library looks for the socket
    if not other_name.is_symlink():
        other_name.symlink_to("mysqld")
    tables = stack.slurm_root / "var/lib/mysql/mysql"
    if not tables.exists():
        install = ("mariadb-install-db", "--no-defaults", "--user=mysql", "--datadir=/var/lib/mysql")
        try:
            _must(stack, root, *install, "--auth-root-authentication-method=socket")
        except Failure:
            shutil.rmtree(tables, ignore_errors=True)
            raise


def _database_user(root: Path) -> tuple[int, int]:
    for line in (root / "etc/passwd").read_text().splitlines():
        name, _, uid, gid, *_ = line.split(":")
        if name == "mysql":
            return int(uid), int(gid)
    raise Failure(f"{root} has no user mysql")


def _add_accounts(stack: Stack, root: Path) -> None:
    done = stack.slurm / "accounts-added"
    if done.exists():
        return
    for command in _ACCOUNTS:
        # An entry that is already there is an error to sacctmgr, and no reason for us to stop.
        ask(stack, root, "sacctmgr", "-i", "-Q", *command.split())
    if "root" not in ask(stack, root, "sacctmgr", "-nP", "show", "user", "root").stdout:
        raise Failure(
            "slurmdbd took none of the accounts; its log is slurmdbd.log in slurm/root/var/log/slurm"
        )
    done.touch()


def _must(stack: Stack, root: Path, *command: str) -> None:
    done = ask(stack, root, *command)
    if done.returncode != 0:
        raise Failure(f"{command[0]} failed: {(done.stderr or done.stdout).strip()[-500:]}")
