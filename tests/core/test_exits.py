"""Which exit status a job gets from its pods, and what its comment says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bridge.core.lifecycle import decide
from bridge.core.model import Container, ContainerStatus, Group, Pod, Uid, Workload
from bridge.core.steps import EndJob
from tests.core.build import FIRST, KEY, NOW, SPEC, bound, facts, record, sight


def _end(failed: Pod, **changes: Any) -> EndJob:
    (step,) = decide(facts(failed, sights=(sight(record(FIRST, "RUNNING")),), **changes)).steps
    assert isinstance(step, EndJob)
    return step


def test_a_pod_failed_without_an_exit_code_is_not_reported_as_success() -> None:
    failed = bound(FIRST, phase="Failed")
    assert _end(failed).wait_status == 1 << 8


def test_a_container_that_was_killed_for_its_memory_makes_its_job_out_of_memory() -> None:
    status = ContainerStatus(name="c", terminated=True, exit_code=137, reason="OOMKilled")
    step = _end(bound(FIRST, phase="Failed", statuses=(status,)), spec=replace(SPEC, comment="run 7"))
    assert (step.wait_status, step.note) == (253, "run 7; container c of default/train-0 was OOMKilled")


@pytest.mark.parametrize(("reason", "signal"), [("Evicted", 15), ("DeadlineExceeded", 24)])
@pytest.mark.parametrize("codes", [(), (143,)])
def test_a_pod_that_was_evicted_or_took_too_long_says_so_in_slurm(
    reason: str, signal: int, codes: tuple[int, ...]
) -> None:
    statuses = tuple(ContainerStatus(name="c", terminated=True, exit_code=code) for code in codes)
    step = _end(bound(FIRST, phase="Failed", statuses=statuses, reason=reason, message="too much"))
    assert (step.wait_status, step.note) == (signal, f"default/train-0: {reason}: too much")


@pytest.mark.parametrize("overdue", ["", "Job was active longer than specified deadline"])
def test_a_pod_that_went_because_its_job_took_too_long_says_so_in_slurm(overdue: str) -> None:
    """The Job controller deletes it, as a person does; the Job tells why."""
    job = Workload(namespace="default", kind="Job", name="train", uid=Uid("job-1"), overdue=overdue)
    statuses = (ContainerStatus(name="c", terminated=True, exit_code=143),)
    pod = bound(FIRST, phase="Failed", statuses=statuses, deleted=NOW)
    group = Group(key=KEY, pods=(pod,), workload=job)
    (step,) = decide(facts(pod, sights=(sight(record(FIRST, "RUNNING")),), group=group)).steps
    assert isinstance(step, EndJob)
    told = (24, f"Job default/train: DeadlineExceeded: {overdue}") if overdue else (None, "")
    assert (step.wait_status, step.note) == told


def test_a_pod_that_its_node_refused_to_start_says_why_in_slurm() -> None:
    step = _end(bound(FIRST, phase="Failed", reason="OutOfcpu"))
    assert (step.wait_status, step.note) == (1 << 8, "default/train-0: OutOfcpu")


def test_a_container_that_died_of_a_signal_gives_its_job_that_signal() -> None:
    status = ContainerStatus(name="c", terminated=True, exit_code=139, signal=11)
    assert _end(bound(FIRST, phase="Failed", statuses=(status,))).wait_status == 11


def test_a_sidecar_that_kubelet_ended_hides_no_exit_code() -> None:
    """kubelet ends sidecars last, with SIGTERM, whatever became of the containers."""
    statuses = (
        ContainerStatus(name="side", terminated=True, exit_code=143),
        ContainerStatus(name="c", terminated=True, exit_code=3),
    )
    sidecar = (Container(name="side", sidecar=True),)
    pod = bound(FIRST, phase="Failed", statuses=statuses, init_containers=sidecar)
    assert _end(pod).wait_status == 3 << 8


def test_an_init_container_that_failed_gives_the_job_its_exit_code() -> None:
    status = ContainerStatus(name="setup", terminated=True, exit_code=4)
    failed = bound(FIRST, phase="Failed", statuses=(status,), init_containers=(Container(name="setup"),))
    assert _end(failed).wait_status == 4 << 8
