"""Job options that people write as annotations: one table, suffix → field, format, meaning.

In: layers of annotations, weakest first (defaults < derived < owner < pod). Out: `Options`, each value
parsed, with the layer that set it. Values keep the Go project's formats byte for byte; what that project
ignores or retries for ever (an unknown suffix, a malformed value) is an `OptionError` that names key, value
and fix.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from bridge.config import NICE_LIMIT
from bridge.core import hostlist, quantity
from bridge.core.model import SlurmNode
from bridge.errors import UserError, trim
from bridge.names import OLD_OPTION_PREFIX, OPTION_PREFIX

LAYERS: Final = ("defaults", "derived", "owner", "pod")  # weakest first
TEXT_LIMIT: Final = 1024  # bytes of a job's name or comment that Slurm takes
INT32: Final = 2**31 - 1
CPUS_LIMIT: Final = 65_533  # Slurm counts the CPUs of a task in 16 bits and keeps the top values for itself
HOSTS_LIMIT: Final = 2_000  # node names in one annotation

_NUMBER = re.compile(r"[+-]?[0-9]{1,20}")


class OptionError(UserError):
    """An annotation of ours is wrong. `layer` says whose it is, `key` is the whole annotation key."""

    def __init__(self, message: str, *, layer: str, key: str) -> None:
        super().__init__(message)
        self.layer = layer
        self.key = key


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Everything that annotations may say. None = said by nobody; fields are called as in `JobSpec`."""

    account: str | None = None
    begin: str | None = None  # Unix seconds
    comment: str | None = None
    constraints: str | None = None
    cpus_per_task: int | None = None
    deadline: str | None = None  # Unix seconds
    dependency: str | None = None
    excluded_nodes: tuple[SlurmNode, ...] | None = None
    exclusive: bool | None = None
    gang: bool | None = None
    gang_timeout: int | None = None  # seconds
    gres: str | None = None
    group: str | None = None
    inject_env: bool | None = None
    licenses: str | None = None
    memory_mib: int | None = None
    name: str | None = None
    nice: int | None = None
    nodes_max: int | None = None
    nodes_min: int | None = None
    on_member_failure: str | None = None
    partition: str | None = None
    prefer: str | None = None
    priority: int | None = None
    qos: str | None = None
    reservation: str | None = None
    segment_size: int | None = None
    sizes: str | None = None
    user: str | None = None
    user_limit: int | None = None  # minutes; 0 = none of the pod's own
    wckey: str | None = None
    sources: Mapping[str, str] = field(default_factory=dict)  # field → the layer that set it
    keys: Mapping[str, str] = field(default_factory=dict)  # field → the annotation's key as it was written
    warnings: tuple[str, ...] = ()
    old_names: tuple[str, ...] = ()  # a sentence for each annotation that counts under its old name


# --- formats: (text) → value, or UserError with the rest of the sentence ----------------------------


def _verbatim(text: str) -> str:
    return text


def _short(text: str) -> str:
    if (size := len(text.encode())) > TEXT_LIMIT:
        raise UserError(f"has {size} bytes; Slurm takes at most {TEXT_LIMIT}, write less")
    return text


def _name(text: str) -> str | None:
    """An empty one says nothing: a job without a name holds up all that depend on singleton."""
    return _short(text) if text.strip() else None


def _gres(text: str) -> str:
    """As sbatch --gres takes it; slurmrestd wants each entry named as a resource."""
    entries = (entry.strip() for entry in text.split(","))
    return ",".join(e if not e or e.startswith(("gres/", "gres:")) else f"gres/{e}" for e in entries)


def _whole(unit: str, low: int, high: int = INT32) -> Callable[[str], int]:
    """Base 10 with an optional sign and nothing around it, as Go's ParseInt reads it."""

    def read(text: str) -> int:
        number = int(text) if _NUMBER.fullmatch(text) else None
        if number is None or not low <= number <= high:
            raise UserError(
                f"is not a whole number of {unit} from {low} to {high}; write one such as {low or 1}"
            )
        return number

    return read


def _cpus(text: str) -> int:
    count = _measured(quantity.cpus, text)
    if count > CPUS_LIMIT:
        raise UserError(f"is more than the {CPUS_LIMIT} CPUs that Slurm can give one task; write fewer")
    return count


def _mib(text: str) -> int:
    return _measured(quantity.mib, text)


def _measured(read: Callable[[str], int], text: str) -> int:
    try:
        return read(text)
    except UserError as error:
        raise UserError("is not a Kubernetes quantity of 0 or more; write one such as 2 or 4Gi") from error


def _exclusive(text: str) -> bool | None:
    """Only the word "false" shares the node; an empty value says nothing."""
    word = text.strip().lower()
    return None if not word else word != "false"


def flag(text: str) -> bool:
    """Raises UserError with the rest of the sentence."""
    return _one_of("true", "false")(text.strip().lower()) == "true"


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise UserError(f"is none of {', '.join(words)}; write one of them")
        return text

    return read


def _moment(text: str) -> str:
    """RFC 3339 with a zone, or Unix seconds → Unix seconds: Slurm and the cluster may live in two zones."""
    if text.isascii() and text.isdigit() and len(text) < 12:
        return text
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise UserError('is not a time with its zone; write one such as "2026-12-01T08:00:00Z"')
    return str(int(moment.timestamp()))


def _hosts(text: str) -> tuple[SlurmNode, ...]:
    try:
        found = hostlist.expand(text)
    except UserError as error:
        raise UserError('is not a list of Slurm nodes; write one such as "n[01-04],n7"') from error
    if len(found) > HOSTS_LIMIT:  # slurmctld looks each of them up while everybody waits
        raise UserError(f"names {len(found)} nodes; name {HOSTS_LIMIT} at most, or use constraints")
    return tuple(SlurmNode(name) for name in found)


# --- what is legal and still worth a word -----------------------------------------------------------


def _silent(text: str) -> str:
    return ""


def _odd_exclusive(text: str) -> str:
    word = text.strip().lower()
    return "" if word in ("", "true", "false") else 'is read as "true", as only "false" shares; write "true"'


def _zero(consequence: str) -> Callable[[str], str]:
    return lambda text: consequence if re.fullmatch(r"[+-]?[0.]+[A-Za-z]*", text) else ""


# --- the table --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Option:
    """One annotation: suffix after the prefix, field of `Options`, format, meaning."""

    suffix: str
    field: str
    read: Callable[[str], Any]
    doc: str
    note: Callable[[str], str] = _silent

    @property
    def key(self) -> str:
        return OPTION_PREFIX + self.suffix


_NOTHING = "asks for nothing: the configured minimum is sent"
_THEIRS: Final = (  # the Go project's: meaning and format are a promise
    Option("account", "account", _verbatim, "Slurm account that pays."),
    Option("constraints", "constraints", _verbatim, "Node features that the job needs."),
    Option("cpu-per-task", "cpus_per_task", _cpus, "CPUs, a quantity rounded up.", _zero(_NOTHING)),
    Option("exclusive", "exclusive", _exclusive, 'Whole nodes, unless "false".', _odd_exclusive),
    Option("gres", "gres", _gres, "Devices of each node as Slurm spells them, no fewer GPUs than the pod's."),
    Option("group-id", "group", _verbatim, "Unix group of the job, name or number."),
    Option("job-name", "name", _name, "Name of the job; default: the pod's."),
    Option("licenses", "licenses", _verbatim, "Licenses that the job holds."),
    Option("max-nodes", "nodes_max", _whole("nodes", 1), "Most nodes."),
    Option("mem-per-node", "memory_mib", _mib, "Memory of a node, a quantity rounded up.", _zero(_NOTHING)),
    Option("min-nodes", "nodes_min", _whole("nodes", 1), "Fewest nodes."),
    Option("partition", "partition", _verbatim, "Slurm partition."),
    Option("priority", "priority", _whole("points", 0), "Absolute priority.", _zero("holds the job")),
    Option("qos", "qos", _verbatim, "Slurm quality of service."),
    Option("reservation", "reservation", _verbatim, "Reservation to run in."),
    Option("timelimit", "user_limit", _whole("minutes", 0), "Minutes after which the pod is ended.",
           _zero("sets no limit of the pod's own: Slurm's default counts")),
    Option("user-id", "user", _verbatim, "Unix user of the job, name or number."),
    Option("wckey", "wckey", _verbatim, "Workload characterisation key."),
)  # fmt: skip
_OURS: Final = (
    Option("begin", "begin", _moment, "Earliest start, RFC 3339 or Unix seconds."),
    Option("comment", "comment", _short, "Comment of the job."),
    Option("deadline", "deadline", _moment, "Latest end, RFC 3339 or Unix seconds."),
    Option("dependency", "dependency", _verbatim, "Jobs to wait for, as sbatch spells them."),
    Option("exclude-nodes", "excluded_nodes", _hosts, "Slurm nodes that the job must not get, a hostlist."),
    Option("gang", "gang", flag, "All pods of the workload are one job."),
    Option("gang-timeout", "gang_timeout", _whole("seconds", 1), "How long a gang waits for its members."),
    Option("inject-env", "inject_env", flag, "Containers get Slurm's variables; read on the pod alone."),
    Option("nice", "nice", _whole("points", 0, NICE_LIMIT), "How far the job steps back in the queue."),
    Option("on-member-failure", "on_member_failure", _one_of("restart-gang", "keep"), "What a loss does."),
    Option("prefer", "prefer", _verbatim, "Node features that the job would like."),
    Option("segment-size", "segment_size", _whole("nodes", 1), "Nodes of one topology segment."),
    Option("sizes", "sizes", _one_of("own", "most"), "A gang's pods of different sizes: each its own, or the most."),
)  # fmt: skip
TABLE: Final = _THEIRS + _OURS
BY_KEY: Final[Mapping[str, Option]] = {option.key: option for option in TABLE}
BY_OLD_KEY: Final[Mapping[str, Option]] = {OLD_OPTION_PREFIX + option.suffix: option for option in _THEIRS}


def key(suffix: str) -> str:
    """The whole annotation key of a suffix in the table."""
    return OPTION_PREFIX + suffix


def counts(name: str) -> bool:
    """The annotation may change a job, under its name of today or under its old one."""
    return name.startswith(OPTION_PREFIX) or name in BY_OLD_KEY


def options(*layers: Mapping[str, str], old_keys: bool = False) -> Options:
    """Merge annotations; a later layer wins, value by value. The layers are the last of `LAYERS`: one is the
    pod's, two are the owner's and the pod's. Other people's annotations are skipped. `old_keys`: the names that
    options had before 1.0 of the Go project count, too, where the name of today does not stand beside them.

    Raises OptionError for an unknown suffix or a malformed value, also in a layer that loses.
    """
    found: dict[str, Any] = {}
    sources: dict[str, str] = {}
    keys: dict[str, str] = {}
    notes: dict[str, str] = {}  # by field, so that who wins has the last word
    old_names: dict[str, None] = {}
    for layer, written in zip(LAYERS[len(LAYERS) - len(layers) :], layers, strict=True):
        for name, text in written.items():
            option = BY_OLD_KEY.get(name)
            if option is not None:
                if option.key in written:
                    continue
                if not old_keys:
                    notes[name] = f"{name}: is ignored, an old name; write {option.key}"
                    continue
                old_names[f"{name} is an old name: write {option.key}"] = None
            elif name.startswith(OPTION_PREFIX):
                option = _known(layer, name, text)
            else:
                continue
            value = _read(option, layer, name, text)
            if value is None:
                continue
            found[option.field], sources[option.field], keys[option.field] = value, layer, name
            note = option.note(text)
            notes[option.field] = f"{name}: {trim(repr(text), 60)} {note}" if note else ""
    warnings = (*old_names, *(note for note in notes.values() if note))
    return Options(**found, sources=sources, keys=keys, warnings=warnings, old_names=tuple(old_names))


def _known(layer: str, name: str, text: str) -> Option:
    option = BY_KEY.get(name)
    if option is None:
        wish = name.removeprefix(OPTION_PREFIX).lower()
        near = difflib.get_close_matches(wish, [known.suffix for known in TABLE], n=1, cutoff=0.0)[0]
        message = f"{trim(name, 100)}: {trim(repr(text), 60)}: no such option; did you mean {key(near)}?"
        raise OptionError(message, layer=layer, key=name)
    return option


def _read(option: Option, layer: str, name: str, text: str) -> Any:
    try:
        return option.read(text)
    except UserError as error:
        field = "what its containers ask for (resources)" if layer == "derived" else name
        raise OptionError(f"{field}: {trim(repr(text), 60)} {error}", layer=layer, key=name) from error
