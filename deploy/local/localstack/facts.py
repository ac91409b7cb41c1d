"""What a client of the stack needs to know.

In: a stack. Out: shell lines for `eval`, or one JSON object for tests.
"""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from localstack import process, slurm
from localstack.layout import REPO, Stack


def as_shell(stack: Stack) -> str:
    values = {
        "KUBECONFIG": stack.kubeconfig("admin"),
        "SLURM_URL": stack.slurm_url,
        "SLURM_API": slurm.api_version(stack),
        "SLURM_TOKEN_FILE": stack.token_file,
        "SLURM_JWT_KEY": jwt_key(stack),
        "SLURM_STATE_DIR": stack.state,
        "SLURM_BRIDGE_URL": stack.bridge_url,
        "SLURM_BRIDGE_STACK": stack.name,
    }
    lines = [f"export {key}={shlex.quote(str(value))}" for key, value in values.items()]
    return "\n".join([*lines, f"export PATH={shlex.quote(str(stack.bin))}:$PATH"])


def as_object(stack: Stack) -> dict[str, Any]:
    parts = process.known_parts(stack)
    return {
        "name": stack.name,
        "options": asdict(stack.options),
        "repo": str(REPO),
        "state_dir": str(stack.state),
        "log_dir": str(stack.logs),
        "bin_dir": str(stack.bin),
        "kubeconfigs": {name: str(stack.kubeconfig(name)) for name in ("admin", "bridge", "scheduler")},
        "api_url": stack.api_url,
        "slurm_url": stack.slurm_url,
        "slurm_api": slurm.api_version(stack),
        "token_file": str(stack.token_file),
        "jwt_key": str(jwt_key(stack)),
        "slurmctld_address": stack.address("slurmctld"),
        "slurm_conf": str(stack.slurm_root / "etc/slurm/slurm.conf"),
        "slurm_log_dir": str(stack.slurm_root / "var/log/slurm"),
        "slurm_tmp_dir": str(stack.slurm_root / "tmp"),
        "bridge_url": stack.bridge_url,
        "bridge_urls": {name: stack.url(name) for name in stack.bridge_names()},
        "bridge_config": str(stack.state / "bridge" / "config.yaml"),
        "scheduler_url": f"https://{stack.address('scheduler')}",
        "default_scheduler_url": f"https://{stack.address('default-scheduler')}",
        "etcd_url": f"http://{stack.address('etcd')}",
        "audit_log": str(stack.audit_log) if stack.options.audit else None,
        "nodes": {"hybrid": stack.hybrid_names(), "external": stack.external_names()},
        "pid_files": {name: str(process.pid_file(stack, name)) for name in parts},
        "pids": {name: alive.pid for name in parts if (alive := process.running(stack, name))},
    }


def jwt_key(stack: Stack) -> Path:
    return stack.slurm_root / "etc/slurm/jwt_hs256.key"
