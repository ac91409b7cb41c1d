"""The command line: serve | doctor | nodes | close-breaker | check-config | explain | translate.

The last two work offline, on a manifest.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from bridge import config, configfile, log, offline
from bridge.core import evictions, nodetable, report
from bridge.errors import BridgeError, ConfigError
from bridge.explain import explain as explain_pod

DEFAULT_LISTEN = "0.0.0.0:8080"


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    try:
        code: int = args.run(args)
    except BridgeError as error:
        print(f"slurm-bridge: {error}", file=sys.stderr)
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="slurm-bridge",
        description="Kubernetes pods and sbatch jobs share one set of nodes; Slurm decides.",
    )
    parser.add_argument("--config", type=Path, help=f"configuration file (default {configfile.DEFAULT_PATH})")
    verbs = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = verbs.add_parser("serve", help="run the bridge")
    _config_flag(serve)
    serve.add_argument("--kubeconfig", help="instead of the pod's ServiceAccount")
    serve.add_argument("--listen", default=DEFAULT_LISTEN, metavar="HOST:PORT", help="default %(default)s")
    serve.add_argument(
        "--identity", default=socket.gethostname(), help="name in the Lease (default: host name)"
    )
    serve.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    serve.set_defaults(run=_serve)

    look = verbs.add_parser("doctor", help="look at both sides and say what is amiss; changes nothing")
    _config_flag(look)
    look.add_argument("--kubeconfig", help="instead of the pod's ServiceAccount")
    look.add_argument("--bridge", default="", metavar="URL", help="ask this running bridge, too")
    look.add_argument("--json", action="store_true", help="for machines")
    look.add_argument("--timeout", type=float, default=120.0, metavar="SECONDS", help="default %(default)s")
    look.set_defaults(run=_doctor)

    nodes = verbs.add_parser(
        "nodes",
        help="each node as both sides have it, and what the bridge would do; changes nothing",
        description="With `plan`: whom the taint managed-node would evict. Exit status: 0 it was read, and the plan "
        "may be applied; 1 a node refuses the plan; 2 a side could not be read.",
    )
    _config_flag(nodes)
    nodes.add_argument("plan", nargs="?", choices=["plan"], help="whom the taint managed-node would evict")
    nodes.add_argument("--kubeconfig", help="instead of the pod's ServiceAccount")
    nodes.add_argument("-o", "--output", choices=["wide", "json"], help="more columns; for machines")
    nodes.add_argument(
        "--differences", action="store_true", help="only nodes of which something is to be said or done"
    )
    nodes.add_argument(
        "--effect", choices=["NoSchedule", "NoExecute"], help="plan: as if taintEffect were this"
    )
    nodes.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS", help="default %(default)s")
    nodes.set_defaults(run=_nodes)

    close = verbs.add_parser("close-breaker", help="let happen what the open breaker holds back now")
    _config_flag(close)
    close.add_argument("--kubeconfig", help="instead of the pod's ServiceAccount")
    close.set_defaults(run=_close_breaker)

    check = verbs.add_parser("check-config", help="read the configuration and print what it means")
    _config_flag(check)
    check.set_defaults(run=_check)

    explain = verbs.add_parser("explain", help="why is this pod where it is (from `kubectl get pod -o yaml`)")
    _config_flag(explain)
    explain.add_argument("pod", metavar="POD", help="name or namespace/name in the manifest")
    explain.add_argument("-f", "--file", type=Path, default=Path("-"), help="manifest, - for standard input")
    explain.set_defaults(run=_explain)

    translate = verbs.add_parser("translate", help="show the Slurm job that a manifest becomes")
    _config_flag(translate)
    translate.add_argument("-f", "--file", type=Path, required=True, help="manifest, - for standard input")
    translate.set_defaults(run=_translate)
    return parser


def _config_flag(parser: argparse.ArgumentParser) -> None:
    """Also after the verb, where people write it."""
    parser.add_argument("--config", type=Path, default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def _settings(args: argparse.Namespace, *, offline_use: bool = False) -> config.Settings:
    """Offline verbs work without a file: then every setting has its default."""
    path: Path | None = args.config
    if path is None and offline_use and not configfile.DEFAULT_PATH.exists():
        return config.Settings()
    return configfile.load(path or configfile.DEFAULT_PATH)


def _serve(args: argparse.Namespace) -> int:
    import uvloop

    from bridge import app

    log.setup(args.log_level)
    host, _, port = args.listen.rpartition(":")
    if not port.isdigit():
        raise ConfigError(f"--listen: {args.listen!r} must be HOST:PORT, for example {DEFAULT_LISTEN}")
    place = app.Place(
        host=host.strip("[]") or "0.0.0.0", port=int(port), identity=args.identity, kubeconfig=args.kubeconfig
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(app.run(_settings(args), place))
    return 0


def _doctor(args: argparse.Namespace) -> int:
    """0: all is well; 1: a person is needed; 2: it could not look."""
    from bridge import doctor

    try:
        look = doctor.run(_settings(args), kubeconfig=args.kubeconfig, page=args.bridge, timeout=args.timeout)
        found = asyncio.run(look)
    except BridgeError as error:
        sides = error.sides if isinstance(error, doctor.CannotLook) else (str(error),)
        if args.json:
            print(json.dumps({"cannot_look": sides, "exit_status": 2}))
        else:
            print("\n".join(sides), file=sys.stderr)
        return 2
    print(json.dumps(report.body(found)) if args.json else report.text(found))
    return found.exit_status


def _nodes(args: argparse.Namespace) -> int:
    """0: it was read, and a plan may be applied; 1: a node refuses the plan; 2: a side could not be read."""
    from bridge import nodelist

    try:
        settings = _settings(args)
    except BridgeError as error:
        print(f"slurm-bridge: {error}", file=sys.stderr)
        return 2
    wanted, ours = settings.nodes, settings.cluster.schedulers
    if args.effect:
        wanted = wanted.model_copy(update={"taintEffect": args.effect})
    look = asyncio.run(nodelist.run(settings, kubeconfig=args.kubeconfig, timeout=args.timeout))
    found = nodetable.judged(look.sides, look.around, wanted, ours)
    for trouble in look.troubles:
        print(trouble, file=sys.stderr)
    if args.plan and look.troubles:
        return 2
    if args.plan:
        plan = evictions.plan(found, look.sides.pods or (), look.around, wanted, ours)
        print(json.dumps(evictions.body(plan)) if args.output == "json" else evictions.text(plan))
        return 0 if plan.applies else 1
    rows = [
        row
        for row in nodetable.rows(look.sides, found, look.around, wanted)
        if row.amiss or not args.differences
    ]
    if args.output == "json":
        print(json.dumps(nodetable.body(rows, look.troubles, look.around.cluster)))
    else:
        print(nodetable.text(rows, look.sides, wide=args.output == "wide"))
    return 2 if look.troubles else 0


def _close_breaker(args: argparse.Namespace) -> int:
    from bridge import app

    print(asyncio.run(app.close_breaker(_settings(args, offline_use=True), args.kubeconfig)))
    return 0


def _check(args: argparse.Namespace) -> int:
    settings = _settings(args)
    print(config.describe(settings))
    for warning in settings.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return 0


def _explain(args: argparse.Namespace) -> int:
    print(explain_pod(args.file, args.pod, _settings(args, offline_use=True)))
    return 0


def _translate(args: argparse.Namespace) -> int:
    shown = offline.translate("-" if str(args.file) == "-" else args.file, _settings(args, offline_use=True))
    print(shown.text)
    return 1 if shown.failed else 0


if __name__ == "__main__":
    sys.exit(main())
