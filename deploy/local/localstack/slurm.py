"""Slurm's daemons.

In: a stack and the Slurm file system. Out: running slurmctld, slurmds and slurmrestd (with accounting also
slurmdbd and its database), the token that the bridge reads, and `rest`, a client for slurmrestd.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from localstack import accounting, slurmconf
from localstack.jail import ask, jailed
from localstack.jsonhttp import JsonClient
from localstack.layout import Stack, write_atomically
from localstack.process import Part, launch, settle
from localstack.rootfs import SLURM_UID, SLURMREST_UID

_TOKEN_LIFETIME = 365 * 86400


def api_version(stack: Stack) -> str:
    return "v0.0.45" if stack.options.external_nodes else "v0.0.42"


def prepare(stack: Stack) -> None:
    """Writes the stack's own folders: configuration, keys and the bridge's token."""
    overlay = stack.slurm_root
    _make_folders(overlay)
    host = socket.gethostname().partition(".")[0]
    write_atomically(overlay / "etc/hosts", f"127.0.0.1 localhost {host}\n")
    etc = overlay / "etc/slurm"
    _make_key(etc / "slurm.key", 1024)
    _make_key(etc / "jwt_hs256.key", 32)
    for name, text in slurmconf.files(stack, host).items():
        write_atomically(etc / name, text, 0o755 if text.startswith("#!") else 0o644)
    for node in stack.hybrid_names():
        for folder in ("var/spool/slurmd", "run/slurmd"):
            (overlay / folder / node).mkdir(parents=True, exist_ok=True)
    if stack.options.accounting:
        os.chown(etc / "slurmdbd.conf", SLURM_UID, SLURM_UID)
        (etc / "slurmdbd.conf").chmod(0o600)  # slurmdbd refuses a file that others may read
    if not stack.token_file.exists():
        write_atomically(stack.token_file, token(stack, "slurm") + "\n", 0o600)


def start_all(stack: Stack, root: Path) -> None:
    if stack.options.accounting:
        accounting.start_all(stack, root)
    parts = [part(stack, root, name) for name in _core_daemons(stack)]
    for each in parts:
        launch(stack, each)
    for each in parts:
        settle(stack, each)


def daemon_names(stack: Stack) -> list[str]:
    """In the order in which they may be started one by one."""
    return [*(["mariadbd", "slurmdbd"] if stack.options.accounting else []), *_core_daemons(stack)]


def part(stack: Stack, root: Path, name: str) -> Part:
    match name:
        case "mariadbd":
            return accounting.database(stack, root)
        case "slurmdbd":
            return accounting.slurmdbd(stack, root)
        case "slurmctld":
            return _daemon(stack, root, name, ("slurmctld", "-D"), lambda: _controller_is_up(stack, root))
        case "slurmrestd":
            return _daemon(stack, root, name, _slurmrestd(stack), lambda: _rest_is_up(stack))
    node = name.removeprefix("slurmd-")
    slurmd = _daemon(stack, root, name, ("slurmd", "-D", "-N", node), lambda: _node_is_up(stack, node))
    return replace(slurmd, env={"SLURMD_RUN": f"run/slurmd/{node}"})


def _core_daemons(stack: Stack) -> list[str]:
    return ["slurmctld", "slurmrestd", *(f"slurmd-{node}" for node in stack.hybrid_names())]


def _daemon(stack: Stack, root: Path, name: str, command: tuple[str, ...], ready: Callable[[], bool]) -> Part:
    etc = stack.slurm_root / "etc/slurm"
    configuration = "".join((etc / file).read_text() for file in ("slurm.conf", "gres.conf"))
    return Part(name, jailed(stack, root, *command), ready, configuration=configuration)


def rest(stack: Stack) -> JsonClient:
    return JsonClient(stack.slurm_url, {"X-SLURM-USER-TOKEN": stack.token_file.read_text().strip()})


def token(stack: Stack, user: str) -> str:
    """A JSON web token as `scontrol token` makes it, without needing a running slurmctld."""
    key = (stack.slurm_root / "etc/slurm/jwt_hs256.key").read_bytes()
    now = int(time.time())
    claims = {"exp": now + _TOKEN_LIFETIME, "iat": now, "sun": user}
    signed = ".".join(_base64(json.dumps(part).encode()) for part in ({"alg": "HS256", "typ": "JWT"}, claims))
    return f"{signed}.{_base64(hmac.new(key, signed.encode(), hashlib.sha256).digest())}"


def _base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _make_folders(overlay: Path) -> None:
    owned_by_slurm = ("var/lib/slurm", "var/lib/slurm/ctld", "var/log/slurm", "run/slurmctld", "run/slurmdbd")
    # slurmd insists that /run/slurm is root's.
    for folder in (*owned_by_slurm, "etc/slurm", "var/spool/slurmd", "var/lib/mysql", "run/slurm", "tmp"):
        (overlay / folder).mkdir(parents=True, exist_ok=True)
    for folder in owned_by_slurm:
        os.chown(overlay / folder, SLURM_UID, SLURM_UID)
    (overlay / "tmp").chmod(0o1777)


def _make_key(path: Path, size: int) -> None:
    if not path.exists():
        path.write_bytes(secrets.token_bytes(size))
    path.chmod(0o600)
    os.chown(path, SLURM_UID, SLURM_UID)


def _slurmrestd(stack: Stack) -> tuple[str, ...]:
    plugins: tuple[str, ...] = ()
    if not stack.options.accounting:  # the accounting plugin refuses to load without slurmdbd
        names = "openapi/slurmctld,openapi/util" if stack.options.external_nodes else "openapi/slurmctld"
        plugins = ("-s", names)
    return (
        *("setpriv", f"--reuid={SLURMREST_UID}", f"--regid={SLURMREST_UID}", "--clear-groups"),
        # SLURM_JWT: must be set for tokens to be accepted at all. SLURM_JSON: smaller answers.
        *("env", "SLURM_JWT=daemon", "SLURM_JSON=compact"),
        *("slurmrestd", "-a", "rest_auth/jwt", *plugins, "-t", "4", "--max-connections", "1024"),
        stack.address("slurmrestd"),
    )


def _controller_is_up(stack: Stack, root: Path) -> bool:
    if not (stack.slurm_root / "run/slurmctld/sack.socket").is_socket():
        return False
    return "is UP" in ask(stack, root, "scontrol", "ping").stdout


def _rest_is_up(stack: Stack) -> bool:
    try:
        _, answer = rest(stack).request("GET", f"/slurm/{api_version(stack)}/ping/", timeout=5)
    except OSError:
        return False
    pings = answer.get("pings", []) if isinstance(answer, dict) else []
    return any(ping.get("responding") for ping in pings)


def _node_is_up(stack: Stack, node: str) -> bool:
    try:
        _, answer = rest(stack).request("GET", f"/slurm/{api_version(stack)}/node/{node}", timeout=5)
    except OSError:
        return False
    nodes = answer.get("nodes", []) if isinstance(answer, dict) else []
    states = {state for each in nodes for state in each["state"]}
    return bool(states) and not {"UNKNOWN", "NOT_RESPONDING", "DOWN"} & states
