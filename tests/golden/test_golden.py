"""Manifest → job → placement, one folder a case; `pytest --update-golden` rewrites what is expected.

A case is a folder with `in.yaml`, and, as its author likes, `settings.yaml` (configuration keys) and `grant.json`
(what Slurm answers about the running job: nodes and gres_detail; default: node n1 and the GPUs asked for; a list, of
each component, where the job has several).
Expected are `job.json` (the POSTed JSON; a list if the manifest makes several jobs), `placement.json` (rank order),
`says.txt` (rules, warnings, errors as `slurm-bridge translate` prints them).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge import config, offline
from bridge.core import hostlist
from bridge.core.model import KubeNode, SlurmNode
from bridge.core.placement import Slot, place
from bridge.offline import Entry
from bridge.slurm import translate, wire

HERE = Path(__file__).parent
CASES = sorted(path.parent for path in HERE.glob("*/in.yaml"))
EXPECTED = ("job.json", "placement.json", "says.txt")


def twin(node: SlurmNode) -> KubeNode:
    """Slurm cuts names at the first dot; the two vocabularies differ on purpose."""
    return KubeNode(f"{node}.example.com")


def produced(case: Path) -> dict[str, str]:
    """File name → text, for everything that the case is expected to produce."""
    settings_file = case / "settings.yaml"
    body = yaml.safe_load(settings_file.read_text()) if settings_file.exists() else {}
    found = offline.read((case / "in.yaml").read_text(), name="in.yaml", settings=config.from_mapping(body))
    made = [entry for entry in found.entries if entry.body is not None]
    files = {"says.txt": "\n".join(offline.render(entry, with_body=False) for entry in found.entries)}
    if made:
        files["job.json"] = _json([entry.body for entry in made])
        files["placement.json"] = _json([_slots(case, entry) for entry in made])
    return files


def _json(values: Sequence[Any]) -> str:
    return json.dumps(values[0] if len(values) == 1 else values, indent=2) + "\n"


def _slots(case: Path, entry: Entry) -> list[Mapping[str, str]]:
    assert entry.group is not None
    assert entry.body is not None
    grant_file = case / "grant.json"
    bodies = entry.body.get("jobs") or [entry.body["job"]]
    said = json.loads(grant_file.read_text()) if grant_file.exists() else _default_grant(bodies[0])
    grants = said if isinstance(said, list) else [said]
    leader = bodies[0]["job_id"]
    jobs = tuple(
        wire.Job(
            job_id=body["job_id"],
            job_state=("RUNNING",),
            nodes=grant["nodes"],
            gres_detail=tuple(grant["gres_detail"]),
            tasks=wire.Number(set=True, number=body["tasks"]),
            job_resources=_resources(grant),
            admin_comment=body["admin_comment"],
            het_job_id=wire.Number(set=True, number=leader if len(bodies) > 1 else 0),
            het_job_offset=wire.Number(set=True, number=at),
        )
        for at, (body, grant) in enumerate(zip(bodies, grants, strict=True))
    )
    record = translate.whole(wire.JobAnswer(jobs=jobs), leader)
    assert record is not None
    return [_shown(slot) for slot in place(entry.group, record, twin, entry.spec)]


def _resources(grant: Mapping[str, Any]) -> wire.Resources | None:
    """`cpus`, where the grant gives them: of each node."""
    if "cpus" not in grant:
        return None
    names = hostlist.expand(grant["nodes"])
    held = (
        wire.HeldNode(name=n, cpus=wire.HeldCpus(count=c)) for n, c in zip(names, grant["cpus"], strict=True)
    )
    return wire.Resources(nodes=wire.HeldNodes(allocation=tuple(held)))


def _default_grant(job: Mapping[str, Any]) -> Mapping[str, Any]:
    gpus = job.get("tres_per_node", "").partition("gres/gpu=")[2]
    return {"nodes": "n1", "gres_detail": [f"gpu:{gpus}(IDX:0-{int(gpus) - 1})"] if gpus.isdigit() else [""]}


def _shown(slot: Slot) -> Mapping[str, str]:
    return {"pod": slot.pod, "node": slot.node, "gpus": slot.gpus}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_manifest_becomes_the_job_and_the_placement_on_record(
    case: Path, request: pytest.FixtureRequest
) -> None:
    files = produced(case)
    if request.config.getoption("--update-golden"):
        for name in EXPECTED:
            (case / name).unlink(missing_ok=True)
        for name, text in files.items():
            (case / name).write_text(text)
    expected = {name: (case / name).read_text() for name in EXPECTED if (case / name).exists()}
    assert files == expected, (
        f"review the difference, then run pytest tests/golden --update-golden ({case.name})"
    )


def test_there_are_cases() -> None:
    assert len(CASES) >= 50
