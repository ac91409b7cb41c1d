"""Where everything is.

In: a stack's name and options. Out: `Stack`, which knows its folders and ports, and the folders that all
stacks share. Nothing here starts or changes anything, except that a new name is given its block of ports.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from localstack.progress import Failure

REPO = Path(__file__).resolve().parents[3]
LOCAL = REPO / "deploy" / "local"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "slurm-bridge"
STATES = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "slurm-bridge"

_FIRST_PORT = 16000
_PORTS_PER_STACK = 100
MAX_HYBRID = 64
MAX_REPLICAS = 9
_PORT_NAMES = (
    "etcd", "etcd-peer", "apiserver", "controller-manager", "default-scheduler", "scheduler", "kwok",
    "slurmctld", "slurmrestd", "slurmdbd", "bridge", "front", "workload-controllers",
)  # fmt: skip
_SLURMD_OFFSET = 20
_REPLICA_OFFSET = _SLURMD_OFFSET + MAX_HYBRID  # of the second bridge


@dataclass(frozen=True)
class Options:
    """What `stack up` was asked for. Kept in stack.json: an option that a later `up` doesn't name stays."""

    nodes: int = 4
    hybrid: int = 4
    accounting: bool = False
    suite: str = "sid"
    slurm_conf: str = "tuned"
    handover: bool = False
    bridge: bool = True
    workloads: bool = True
    replicas: int = 1
    settings: Mapping[str, str] = field(default_factory=dict)
    """Keys of the bridge's configuration file, with the YAML text of what they are set to."""
    audit: bool = False
    min_job_age: int = 300
    node_grace: int = 600
    """Seconds without a heartbeat until a node is NotReady. Long: a busy small machine is late with them."""

    @property
    def external_nodes(self) -> bool:
        """Slurm before 25.11 has no nodes without a slurmd."""
        return self.suite != "trixie"


@dataclass(frozen=True)
class Stack:
    name: str
    options: Options
    first_port: int

    @property
    def state(self) -> Path:
        return STATES / self.name

    @property
    def kube(self) -> Path:
        return self.state / "kube"

    @property
    def slurm(self) -> Path:
        return self.state / "slurm"

    @property
    def slurm_root(self) -> Path:
        """The folders that this stack lays over the shared Slurm file system."""
        return self.slurm / "root"

    @property
    def logs(self) -> Path:
        return self.state / "log"

    @property
    def pids(self) -> Path:
        return self.state / "pid"

    @property
    def bin(self) -> Path:
        return self.state / "bin"

    @property
    def token_file(self) -> Path:
        return self.slurm / "token"

    @property
    def audit_log(self) -> Path:
        return self.logs / "audit.log"

    def port(self, part: str) -> int:
        if part.startswith("slurmd-n"):
            return self.first_port + _SLURMD_OFFSET + int(part.removeprefix("slurmd-n")) - 1
        if part.startswith("bridge-"):
            return self.first_port + _REPLICA_OFFSET + int(part.removeprefix("bridge-")) - 2
        return self.first_port + _PORT_NAMES.index(part)

    def address(self, part: str) -> str:
        return f"127.0.0.1:{self.port(part)}"

    @property
    def slurm_url(self) -> str:
        return self.url("slurmrestd")

    @property
    def bridge_url(self) -> str:
        """Where kube-scheduler asks."""
        return self.url("front" if self.options.replicas > 1 else "bridge")

    def url(self, part: str) -> str:
        return f"http://{self.address(part)}"

    @property
    def api_url(self) -> str:
        return f"https://{self.address('apiserver')}"

    def kubeconfig(self, user: str) -> Path:
        return self.kube / f"{user}.kubeconfig"

    def hybrid_names(self) -> list[str]:
        return [f"n{i}" for i in range(1, self.options.hybrid + 1)]

    def bridge_names(self) -> list[str]:
        return ["bridge", *(f"bridge-{i}" for i in range(2, self.options.replicas + 1))]

    def external_names(self) -> list[str]:
        return [f"k{i:04d}" for i in range(1, self.options.nodes + 1)] if self.options.external_nodes else []

    def save(self) -> None:
        facts = {"name": self.name, "first_port": self.first_port, "options": asdict(self.options)}
        write_atomically(self.state / "stack.json", json.dumps(facts, indent=2) + "\n")


def load(name: str) -> Stack | None:
    """The stack of that name as it was last brought up, or None if there is none."""
    try:
        facts: dict[str, Any] = json.loads((STATES / name / "stack.json").read_text())
    except FileNotFoundError:
        return None
    known = {field.name for field in fields(Options)}
    options = Options(**{key: value for key, value in facts["options"].items() if key in known})
    return Stack(name, options, facts["first_port"])


def is_name(text: str) -> bool:
    """Names become folders: nothing in one may lead elsewhere."""
    return re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,28}[a-z0-9])?", text) is not None


def create(name: str, options: Options) -> Stack:
    """A stack that is not there yet, with a block of ports that stays its own until `reset`."""
    return Stack(name, options, _claim_ports(name))


def release_ports(name: str) -> None:
    with _port_table() as table:
        table.pop(name, None)


def write_atomically(path: Path, text: str, mode: int = 0o644) -> None:
    """Readers see the old content or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.chmod(mode)
    draft.replace(path)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock among all processes that ask for the same path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _port_table() -> Iterator[dict[str, int]]:
    file = STATES / "ports.json"
    with locked(STATES / "ports.lock"):
        table: dict[str, int] = json.loads(file.read_text()) if file.exists() else {}
        yield table
        write_atomically(file, json.dumps(table, indent=2) + "\n")


def _claim_ports(name: str) -> int:
    with _port_table() as table:
        if name in table:
            return table[name]
        # The first block is kept for the stack without a name, so that its addresses are the same everywhere.
        blocks = range(_FIRST_PORT + (0 if name == "default" else _PORTS_PER_STACK), 30000, _PORTS_PER_STACK)
        for first in blocks:
            if first not in table.values() and _all_free(first):
                table[name] = first
                return first
    raise Failure("no free block of 100 ports between 16000 and 30000 on 127.0.0.1")


def _all_free(first: int) -> bool:
    offsets = [*range(len(_PORT_NAMES)), *range(_SLURMD_OFFSET, _REPLICA_OFFSET + MAX_REPLICAS - 1)]
    return all(_is_free(first + offset) for offset in offsets)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
