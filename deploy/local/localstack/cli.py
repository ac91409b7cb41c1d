"""In: the command line of `deploy/local/stack`. Out: a call of `commands`, and the exit status."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from typing import Any

from localstack import commands, facts, layout
from localstack.layout import Options
from localstack.progress import Failure

_DEFAULTS = Options()


def main(arguments: Sequence[str]) -> int:
    asked = _parser().parse_args(arguments)
    try:
        return _run(asked)
    except Failure as failure:
        print(f"stack: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stack: interrupted; `up` goes on from here, `down` ends what runs", file=sys.stderr)
        return 130


def _run(asked: argparse.Namespace) -> int:
    match asked.command:
        case "up":
            options: dict[str, Any] = {key: getattr(asked, key) for key in vars(_DEFAULTS)}
            options["settings"] = dict(asked.settings or ())
            commands.up(asked.name, options)
            print(f'To use it:  eval "$(deploy/local/stack env --name {asked.name})"', file=sys.stderr)
        case "down" | "reset" if layout.load(asked.name) is None:
            print(f"there is no stack {asked.name}", file=sys.stderr)
        case "down":
            commands.down(commands.find(asked.name))
        case "reset":
            commands.reset(commands.find(asked.name))
        case "status":
            return 0 if commands.status(commands.find(asked.name)) else 1
        case "env":
            stack = commands.find(asked.name)
            print(json.dumps(facts.as_object(stack), indent=2) if asked.json else facts.as_shell(stack))
        case "start":
            commands.start_part(commands.find(asked.name), asked.part)
        case "stop":
            commands.stop_part(commands.find(asked.name), asked.part)
        case "restart":
            commands.stop_part(commands.find(asked.name), asked.part)
            commands.start_part(commands.find(asked.name), asked.part)
        case "kill":
            commands.kill_part(commands.find(asked.name), asked.part, asked.signal)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="stack", description="A real Kubernetes and Slurm on this machine.")
    verbs = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    up = _verb(verbs, "up", "start what does not run; an option that is not given keeps its value")
    _add_options(up)
    _verb(verbs, "down", "end what was started; state is kept")
    _verb(verbs, "reset", "down, and remove the state; caches are kept")
    _verb(verbs, "status", "one line a part; exit status 1 if one of them does not run")
    env = _verb(verbs, "env", "shell lines for eval")
    env.add_argument("--json", action="store_true", help="all facts as one JSON object")
    for name, text in (
        ("start", "start one part and wait until it is ready"),
        ("stop", "end one part and wait for it"),
        ("restart", "stop and start one part"),
        ("kill", "send one part a signal"),
    ):
        verb = _verb(verbs, name, text)
        verb.add_argument("part", metavar="PART", help="as `status` lists them")
        if name == "kill":
            verb.add_argument("signal", nargs="?", type=_signal, default=signal.SIGKILL, metavar="SIGNAL")
    return parser


def _verb(verbs: Any, name: str, text: str) -> argparse.ArgumentParser:
    verb: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=text)
    verb.add_argument(
        "--name", default="default", type=_name, help="which stack; several may run side by side"
    )
    return verb


def _add_options(up: argparse.ArgumentParser) -> None:
    """Without defaults: an option that is not given must be told from one given with the default's value."""
    flag = argparse.BooleanOptionalAction
    add, seconds = up.add_argument, "SECONDS"
    add("--nodes", type=int, help=f"external nodes, for pods only ({_DEFAULTS.nodes})")
    add("--hybrid", type=int, help=f"nodes with a slurmd, for pods and sbatch jobs ({_DEFAULTS.hybrid})")
    add("--accounting", action=flag, help="with slurmdbd and MariaDB")
    add("--suite", choices=("sid", "trixie"), help="the Debian suite that Slurm comes from (sid)")
    add("--slurm-conf", choices=("tuned", "operator"), help="operator: as Slurm's operator writes it (tuned)")
    add("--handover", action=flag, help="native jobs wait for GPUs that pods still use (docs/handover.md)")
    add("--bridge", action=flag, help="with the bridge of this checkout (yes)")
    add("--workloads", action=flag, help="with JobSet, LeaderWorkerSet and PodGroup (yes)")
    add("--replicas", type=int, help=f"bridges side by side, behind one address ({_DEFAULTS.replicas})")
    add(
        "--set",
        dest="settings",
        action="append",
        type=_setting,
        metavar="KEY=VALUE",
        help="a key of the bridge's configuration file; may be repeated; KEY= takes it back",
    )
    add("--audit", action=flag, help="log who asks the API server for what")
    add("--min-job-age", type=int, metavar=seconds, help=f"MinJobAge ({_DEFAULTS.min_job_age})")
    add("--node-grace", type=int, metavar=seconds, help=f"from silent to NotReady ({_DEFAULTS.node_grace})")


def _name(text: str) -> str:
    if not layout.is_name(text):
        raise argparse.ArgumentTypeError(f"{text!r}: use 1 to 30 lower-case letters, digits and dashes")
    return text


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key.isalnum() and equals and value.isprintable()):
        raise argparse.ArgumentTypeError(f"{text!r}: must be KEY=VALUE on one line, for example bootGrace=20")
    return key, value.strip()


def _signal(text: str) -> signal.Signals:
    try:
        if text.isdigit():
            return signal.Signals(int(text))
        return signal.Signals[f"SIG{text.upper().removeprefix('SIG')}"]
    except (KeyError, ValueError):
        raise argparse.ArgumentTypeError(f"{text} is no signal") from None
