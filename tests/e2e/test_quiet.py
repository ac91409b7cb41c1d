"""With nothing changing nothing is written, neither to Kubernetes nor to Slurm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e import kube as k
from tests.e2e.scene import Scene
from tests.e2e.stack import Stack
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.real
PODS = 20
POLLS = 100  # ten seconds at the pace of a small cluster
PATIENCE = 300.0  # seconds for them on a busy machine, where the bridge polls more slowly
USER = "system:serviceaccount:slurm:slurm-bridge"
READS = {"get", "list", "watch"}


def test_twenty_running_pods_cost_no_write_at_all(scene: Scene) -> None:
    stack = scene.stack
    for i in range(PODS):
        scene.create(k.pod(f"calm-{i}"))
    scene.all_running(PODS)
    eventually("what the start of the pods has caused is over", lambda: _is_calm(scene), within=PATIENCE)

    begin, moment, writes = _logged(stack), scene.slurm.last_update(), _slurm_writes(stack)
    versions, known = _versions(scene), _jobs(scene)
    _run_on(stack, polls=POLLS)

    with Path(stack.facts["audit_log"]).open("rb") as log:
        log.seek(begin)
        calls = [json.loads(line) for line in log if line.endswith(b"}\n")]
    written = [
        f"{call['verb']} {call['requestURI']}"
        for call in calls
        if call["user"]["username"] == USER
        and call["verb"] not in READS
        and call.get("objectRef", {}).get("resource") != "leases"
    ]
    assert written == []
    assert any(call["user"]["username"] == USER for call in calls), "the audit log misses even the lease"
    assert _versions(scene) == versions
    assert _slurm_writes(stack) == writes
    changes = scene.slurm.changes_since(moment + 1)
    assert changes == 0 or known - _jobs(scene), "and slurmctld has not forgotten old jobs, which is a change"


def _is_calm(scene: Scene) -> bool:
    """Nothing is written while the bridge looks at Slurm some times."""
    before = _versions(scene), _slurm_writes(scene.stack)
    _run_on(scene.stack, polls=20)
    return (_versions(scene), _slurm_writes(scene.stack)) == before


def _versions(scene: Scene) -> dict[str, str]:
    return {k.uid(pod): pod["metadata"]["resourceVersion"] for pod in scene.pods()}


def _jobs(scene: Scene) -> set[int]:
    return {job.id for job in scene.slurm.jobs()}


def _logged(stack: Stack) -> int:
    """How many bytes of whole lines the audit log has."""
    log = Path(stack.facts["audit_log"]).read_bytes()
    return log.rfind(b"\n") + 1


def _run_on(stack: Stack, *, polls: int) -> None:
    """The bridge has looked at Slurm that many times more."""
    route = "GET jobs/state/"
    until = stack.metric("slurm_bridge_slurm_request_seconds_count", route=route) + polls
    eventually(
        f"{polls} more polls of Slurm",
        lambda: stack.metric("slurm_bridge_slurm_request_seconds_count", route=route) >= until,
        within=PATIENCE, every=0.5,
    )  # fmt: skip


def _slurm_writes(stack: Stack) -> float:
    """Requests to slurmrestd other than reads, all from one look at the page."""
    counts = (
        line.rpartition(" ")
        for line in stack.bridge.get("/metrics").text.splitlines()
        if line.startswith("slurm_bridge_slurm_request_seconds_count{") and 'route="GET ' not in line
    )
    return sum(float(value) for _, _, value in counts)
