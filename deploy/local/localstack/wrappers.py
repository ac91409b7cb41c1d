"""Commands for people and tests.

In: a stack. Out: `kubectl`, `squeue`, `sbatch` and the like in the stack's bin folder, each a few lines of
shell.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from localstack import jail, kubestack
from localstack.layout import Stack, write_atomically

_SLURM_COMMANDS = ("squeue", "sinfo", "scontrol", "scancel", "srun", "salloc", "sbatch")
_ACCOUNTING_COMMANDS = ("sacct", "sacctmgr", "sreport")

_KUBECTL = """\
#!/bin/sh
# kubectl for the local stack {name}; a KUBECONFIG of the caller's own counts.
KUBECONFIG=${{KUBECONFIG:-{kubeconfig}}} exec {kubestack} kubectl "$@"
"""

_SLURM = """\
#!/bin/sh
# {program} for the local stack {name}. SLURM_AS=alice (or bob) runs it as that user instead of root.
exec unshare -m --propagation private {jail} {root} {overlay} '' {program} "$@"
"""

# sbatch reads its script from the caller's folder, which it sees as /mnt; the job itself runs in the stack's
# /tmp.
_SBATCH = """\
#!/bin/sh
# sbatch for the local stack {name}: takes a script by its name, relative to here, or from standard input.
# Jobs run in {overlay}/tmp, where their output is.
# SLURM_AS=alice (or bob) submits as that user instead of root.
exec unshare -m --propagation private {jail} {root} {overlay} "$PWD" sbatch --chdir=/tmp "$@"
"""


def write(stack: Stack, root: Path) -> None:
    _write(stack, "kubectl", _KUBECTL, kubeconfig=stack.kubeconfig("admin"), kubestack=kubestack.executable())
    programs = _SLURM_COMMANDS + (_ACCOUNTING_COMMANDS if stack.options.accounting else ())
    for program in programs:
        template = _SBATCH if program == "sbatch" else _SLURM
        paths = {"jail": jail.PROGRAM, "root": root, "overlay": stack.slurm_root}
        _write(stack, program, template, program=program, **paths)


def _write(stack: Stack, command: str, template: str, **values: str | Path) -> None:
    quoted = {key: shlex.quote(str(value)) for key, value in values.items()}
    write_atomically(stack.bin / command, template.format(name=stack.name, **quoted), 0o755)
