"""The stack under test: brought up, asked where everything is, taken down.

In: options of `deploy/local/stack`. Out: `Stack`, addresses, files and pids of its parts. Only this module starts or
ends anything, and only what it started itself.
"""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

REPO = Path(__file__).resolve().parents[1]
STACK = REPO / "deploy" / "local" / "stack"
SCHEDULER_CONFIG = REPO / "scheduler-config" / "kube-scheduler.yaml"
LIMIT_SCHEDULER = "bench-limit"  # the scheduler name of limit A's pods
PORT_OFFSET = 99  # the last port of the stack's block of a hundred, which no part uses
PATIENCE = 60.0  # seconds


@dataclass(frozen=True)
class Stack:
    name: str
    facts: dict[str, Any]
    ours: dict[str, int] = field(default_factory=dict)  # what the benchmark started itself: name → pid

    @property
    def pids(self) -> dict[str, int]:
        """Asked anew: the bridge is another process after each restart."""
        found: dict[str, int] = _env(self.name)["pids"]
        return {**found, **self.ours}

    @property
    def audit_log(self) -> Path:
        return Path(self.facts["audit_log"])

    @property
    def bridge_url(self) -> str:
        return str(self.facts["bridge_url"])

    @property
    def log_dir(self) -> Path:
        return Path(self.facts["log_dir"])

    def part(self, verb: str, part: str) -> None:
        """verb: start, stop or restart."""
        _stack(verb, part, "--name", self.name)


def up(name: str, nodes: int, min_job_age: int, settings: Sequence[str] = ()) -> Stack:
    """One hybrid node beside the external ones: its slurmd answers for them (the sink). `settings` of the bridge."""
    options = (
        "--nodes",
        str(nodes),
        "--hybrid",
        "1",
        "--min-job-age",
        str(min_job_age),
        "--audit",
        "--no-workloads",
        *(word for setting in settings for word in ("--set", setting)),
    )
    _stack("up", "--name", name, *options)
    return Stack(name, _env(name))


def down(stack: Stack) -> None:
    _stack("down", "--name", stack.name)


@contextmanager
def limit_scheduler(stack: Stack) -> Iterator[None]:
    """A third kube-scheduler: our configuration (QPS and all) without the extender. What limit A is measured with."""
    folder = Path(stack.facts["state_dir"]) / "bench"
    folder.mkdir(exist_ok=True)
    config = folder / "limit-scheduler.yaml"
    kubeconfig = Path(stack.facts["state_dir"]) / "kube" / "default-scheduler.kubeconfig"
    config.write_text(_limit_config(kubeconfig))
    port = int(stack.facts["bridge_url"].rsplit(":", 1)[1]) // 100 * 100 + PORT_OFFSET
    program = os.readlink(f"/proc/{stack.pids['default-scheduler']}/exe")
    command = [program, "kube-scheduler", f"--config={config}", "--bind-address=127.0.0.1"]
    command += [f"--secure-port={port}", f"--cert-dir={folder}", "--authorization-always-allow-paths=/*"]
    with (stack.log_dir / "limit-scheduler.log").open("w") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        _wait_healthy(f"https://127.0.0.1:{port}/healthz", process)
        stack.ours["limit-scheduler"] = process.pid
        yield
    finally:
        stack.ours.clear()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _limit_config(kubeconfig: Path) -> str:
    config: dict[str, Any] = yaml.safe_load(SCHEDULER_CONFIG.read_text())
    config.pop("extenders")
    config["clientConnection"]["kubeconfig"] = str(kubeconfig)
    config["leaderElection"] = {"leaderElect": False}
    config["profiles"] = [{**config["profiles"][0], "schedulerName": LIMIT_SCHEDULER}]
    return yaml.safe_dump(config)


def _wait_healthy(url: str, process: subprocess.Popen[bytes]) -> None:
    trust = ssl.create_default_context()
    trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE  # made by itself, on loopback
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(url, timeout=2, context=trust):
                return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(
        "the scheduler of limit A does not come up: log/limit-scheduler.log of the stack says why"
    )


def _stack(*arguments: str) -> None:
    done = subprocess.run([str(STACK), *arguments], stdin=subprocess.DEVNULL, stdout=sys.stderr, env=_clean())
    if done.returncode:
        raise SystemExit(f"benchmark: `stack {' '.join(arguments)}` failed")


def _env(name: str) -> dict[str, Any]:
    command = [str(STACK), "env", "--name", name, "--json"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True, env=_clean())
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _clean() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
