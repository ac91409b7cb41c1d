"""What slurmrestd serves: its own OpenAPI document → the version that we speak, and whether accounting can be asked.

Pure. What must stay true: the routes are the truth about versions, whatever else the document says.
"""

from __future__ import annotations

import re
from typing import Final

from bridge.errors import ProtocolError
from bridge.slurm import wire

SUPPORTED: Final = (45, 44, 43, 42)  # data_parser v0.0.N, newest first
_ROUTE = re.compile(r"^/slurm/v0\.0\.(\d+)/job/submit$")


def chosen(document: wire.OpenApi) -> int:
    """The newest that both sides know. Raises ProtocolError when there is none."""
    served = {int(m[1]) for m in map(_ROUTE.match, document.paths) if m}
    common = [v for v in SUPPORTED if v in served]
    if not common:
        raise ProtocolError(
            f"slurmrestd serves data_parser v0.0.N for N in {sorted(served)}, we know {SUPPORTED}; "
            "Slurm 24.11 to 26.05 is supported, with openapi/slurmctld among slurmrestd's plugins"
        )
    return common[0]


def accounts(document: wire.OpenApi, version: int) -> bool:
    """slurmrestd has the plugin that asks slurmdbd. It refuses to load without one."""
    return f"/slurmdb/v0.0.{version}/job/{{job_id}}" in document.paths
