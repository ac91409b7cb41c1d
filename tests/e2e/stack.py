"""The real stack of deploy/local, as a test sees it: facts, parts that can be killed, commands for people."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.waiting import eventually

REPO = Path(__file__).resolve().parents[2]
_STACK = str(REPO / "deploy" / "local" / "stack")
_PATIENCE = 900.0  # seconds; a warm start takes fifteen, but the first one on a machine compiles Kubernetes
_READY = 60.0  # seconds in which a bridge that was started answers and leads
# A connection that the bridge is about to close as idle, after five seconds, must not be used again.
_FRESH = httpx.Limits(keepalive_expiry=2.0)


def command(verb: str, name: str, *arguments: str) -> str:
    """`stack VERB --name NAME …`. Its progress goes where pytest puts standard error."""
    done = subprocess.run(
        [_STACK, verb, "--name", name, *arguments],
        stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, timeout=_PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"stack {verb} {' '.join(arguments)}: exit status {done.returncode}"
    return done.stdout


class Stack:
    def __init__(self, name: str) -> None:
        self.name = name
        self.facts: Mapping[str, Any] = json.loads(command("env", name, "--json"))
        self.bridges = {
            name: httpx.Client(base_url=url, timeout=30.0, limits=_FRESH)
            for name, url in self.facts["bridge_urls"].items()
        }
        self.bridge = self.bridges["bridge"]

    @property
    def hybrid(self) -> list[str]:
        return list(self.facts["nodes"]["hybrid"])

    @property
    def nodes(self) -> list[str]:
        """Every node of the partition that our jobs go to."""
        return [*self.facts["nodes"]["hybrid"], *self.facts["nodes"]["external"]]

    def close(self) -> None:
        for client in self.bridges.values():
            client.close()

    # --- parts ------------------------------------------------------------------------------------

    def pid(self, part: str) -> int:
        return int(Path(self.facts["pid_files"][part]).read_text().split()[0])

    def runs(self, part: str) -> bool:
        """A zombie doesn't, once its last thread has let go of its ports and locks."""
        try:
            stat = Path(f"/proc/{self.pid(part)}/stat").read_text()
        except OSError:
            return False
        state, *rest = stat.rpartition(")")[2].split()
        return state not in "ZX" or int(rest[16]) > 1

    def send(self, part: str, number: signal.Signals) -> None:
        os.kill(self.pid(part), number)

    def kill(self, part: str) -> None:
        """kill -9, and no doubt that it is gone."""
        self.send(part, signal.SIGKILL)
        eventually(f"{part} is gone", lambda: not self.runs(part), every=0.01)

    def start(self, part: str) -> None:
        command("start", self.name, part)

    def restart(self, part: str) -> None:
        command("restart", self.name, part)

    @contextmanager
    def starting(self, part: str) -> Iterator[None]:
        """Started for the length of the block, which needn't wait until it is ready; killed at its end."""
        words = [_STACK, "start", "--name", self.name, part]
        before = self.pid(part)
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
            eventually(f"{part} is started", lambda: self.pid(part) != before and self.runs(part), every=0.01)
            yield
            self.kill(part)

    @contextmanager
    def without(self, part: str) -> Iterator[None]:
        """Killed for the length of the block, started again whatever happens in it."""
        self.kill(part)
        try:
            yield
        finally:
            self.start(part)

    @contextmanager
    def stopped(self, part: str) -> Iterator[None]:
        """SIGSTOP for the length of the block: it holds its connections and answers nothing."""
        self.send(part, signal.SIGSTOP)
        try:
            yield
        finally:
            self.send(part, signal.SIGCONT)

    # --- the bridge's own pages -------------------------------------------------------------------

    def metric(self, name: str, *, of: str = "bridge", **labels: str) -> float:
        """The sum of all samples of that name that have these labels."""
        total = 0.0
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        for line in self.bridges[of].get("/metrics").text.splitlines():
            sample, _, value = line.rpartition(" ")
            if sample.partition("{")[0] == name and all(text in sample for text in wanted):
                total += float(value)
        return total

    def ready(self, part: str = "bridge") -> bool:
        try:
            return self.bridges[part].get("/readyz", timeout=5.0).status_code == 200
        except httpx.TransportError:
            return False

    def leader(self) -> str:
        """The replica that leads; "" while none says so."""
        return next((part for part in self.bridges if self.leads(part)), "")

    def leads(self, part: str) -> bool:
        with suppress(httpx.TransportError):
            return self.metric("slurm_bridge_leading", of=part) == 1
        return False

    def wait_leading(self) -> None:
        for part in self.bridges:
            eventually(f"{part} is ready", partial(self.ready, part), within=_READY)
        eventually("a bridge leads", self.leader, within=_READY)

    def heal(self) -> list[str]:
        """Starts again what is dead or hangs, so that one failure doesn't become that of all tests."""
        sick = [part for part in self.facts["pid_files"] if not self.runs(part)]
        for part in self.bridges:
            try:
                eventually(f"{part} is ready", partial(self.ready, part), within=_READY)
            except AssertionError:
                sick.append(part)
        for part in dict.fromkeys(sick):
            if self.runs(part):
                self.kill(part)
            self.start(part)
        return sick

    def log_tail(self, part: str = "bridge", lines: int = 60) -> str:
        text = (Path(self.facts["log_dir"]) / f"{part}.log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    # --- people's commands ------------------------------------------------------------------------

    def run(self, *words: str, stdin: str | None = None, check: bool = True) -> str:
        """kubectl, sbatch, scancel, squeue … as the stack's bin folder has them."""
        done = subprocess.run(
            [str(Path(self.facts["bin_dir"]) / words[0]), *words[1:]],
            input=stdin, capture_output=True, text=True, timeout=120, check=False,
            cwd=self.facts["state_dir"], env={"PATH": os.environ["PATH"]},
        )  # fmt: skip
        assert done.returncode == 0 or not check, f"{' '.join(words)}: {done.stderr.strip()[-800:]}"
        return done.stdout.strip() if done.returncode == 0 else done.stderr.strip()
