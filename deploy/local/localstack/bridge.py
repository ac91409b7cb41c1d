"""The bridge itself, run from this checkout.

In: a stack whose Kubernetes and Slurm are up. Out: a running `slurm-bridge serve` with the ServiceAccount's
rights; with several replicas, also the one address in front of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from localstack import machine
from localstack.jsonhttp import JsonClient
from localstack.layout import CACHE, LOCAL, REPO, Stack, write_atomically
from localstack.process import Part
from localstack.progress import Failure, failed, run

_PROGRAM = REPO / ".venv" / "bin" / "slurm-bridge"
_DEPENDENCIES = (REPO / "pyproject.toml",)


def build() -> None:
    """Makes the project's environment, unless it is there and younger than the list of dependencies."""
    if not is_built():
        # pyproject.toml pins the whole set. --inexact: leaves alone what else is
        # installed.
        command = [str(machine.uv()), "sync", "--project", str(REPO), "--inexact", "--quiet"]
        log = CACHE / "log" / "bridge-sync.log"
        run("bridge: installing its dependencies", command, log, cwd=REPO, env=_uv_environment())
        if not _PROGRAM.exists():
            raise failed(f"{_PROGRAM} is missing after `uv sync`", log)
        _PROGRAM.touch()


def _uv_environment() -> dict[str, str]:
    """The machine's certificates, as for every download here, and this Python rather than another one."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return {**kept, "UV_SYSTEM_CERTS": "true", "UV_PYTHON_DOWNLOADS": "never", "UV_PYTHON": sys.executable}


def is_built() -> bool:
    youngest = max((file.stat().st_mtime for file in _DEPENDENCIES if file.exists()), default=0.0)
    return _PROGRAM.exists() and _PROGRAM.stat().st_mtime >= youngest


def prepare(stack: Stack) -> None:
    write_atomically(config_file(stack), _config(stack))


def check(stack: Stack) -> None:
    """Whatever the bridge has to say against what `--set` was given: it would only log a key that it doesn't know."""
    if stack.options.settings:
        command = (str(_PROGRAM), "check-config", f"--config={config_file(stack)}")
        said = subprocess.run(command, capture_output=True, text=True).stderr.strip()
        if said:
            raise Failure(f"--set: {said} (`--set KEY=` takes a key back)")


def daemon_names(stack: Stack) -> list[str]:
    return [*stack.bridge_names(), *(["front"] if stack.options.replicas > 1 else [])]


def part(stack: Stack, name: str) -> Part:
    # Ready means that a bridge reads both sides, so it is asked only for that.
    health = JsonClient(stack.url(name))
    if name == "front":
        behind = [stack.address(bridge) for bridge in stack.bridge_names()]
        command = (sys.executable, "-m", "localstack.front", stack.address(name), *behind)
        environment, configuration = {"PYTHONPATH": str(LOCAL)}, ""
    else:
        command = _serve(stack, name)
        environment, configuration = {"PYTHONUNBUFFERED": "1"}, _config(stack)
    return Part(name, command, lambda: health.is_ok("/readyz"), env=environment, configuration=configuration)


def _serve(stack: Stack, name: str) -> tuple[str, ...]:
    return (
        str(_PROGRAM),
        "serve",
        f"--config={config_file(stack)}",
        f"--kubeconfig={stack.kubeconfig('bridge')}",
        f"--listen={stack.address(name)}",
        f"--identity={name}",
    )


def config_file(stack: Stack) -> Path:
    return stack.state / "bridge" / "config.yaml"


def _config(stack: Stack) -> str:
    settings = {
        "schedulerName": "slurm-bridge",
        "schedulerNames": "[slurm-bridge-scheduler]",
        "slurmRestApi": stack.slurm_url,
        "slurmctldAddress": stack.address("slurmctld"),
        "slurmTokenFile": str(stack.token_file),
        "partition": "slurm-bridge",
        "mcsLabel": '""',
        "taintNodes": "false",  # pods of others have no other nodes here
        **stack.options.settings,
    }
    return "".join(f"{key}: {value}\n" for key, value in settings.items())
