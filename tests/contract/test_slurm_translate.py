"""JobSpec → the JSON of a submit, and a job's JSON → JobRecord."""

from __future__ import annotations

from dataclasses import fields

import msgspec
import pytest

from bridge.core import identity
from bridge.core.model import JobId, JobSpec, SlurmNode
from bridge.errors import UserError
from bridge.slurm import translate, wire
from tests.contract.slurm_fixture import MARK, spec

JOB = JobId(0x02000001)


def test_the_smallest_job_says_only_what_it_must() -> None:
    assert translate.submit_body(JOB, JobSpec(name="web", partition="p", mark=MARK), 45) == {
        "job": {
            "job_id": JOB,
            "name": "web",
            "partition": "p",
            "admin_comment": identity.render(MARK),
            "minimum_nodes": 1,
            "maximum_nodes": 1,
            "tasks": 1,
            "cpus_per_task": 1,
            "memory_per_node": {"set": True, "infinite": False, "number": 256},
            "flags": ["EXTERNAL_JOB"],
        }
    }


def test_every_field_has_its_place_in_the_json() -> None:
    full = JobSpec(
        name="web",
        partition="p",
        mark=MARK,
        nodes_min=2,
        nodes_max=3,
        tasks=4,
        tasks_per_node=2,
        cpus_per_task=5,
        memory_mib=6,
        temporary_disk_mib=9,
        gres="gres/gpu:h100=2",
        exclusive=True,
        time_limit=7,
        account="acc",
        qos="q",
        user="alice",
        group="staff",
        reservation="r",
        wckey="w",
        licenses="m:1",
        constraints="a&b",
        prefer="c",
        priority=0,
        nice=0,
        dependency="afterany:1",
        comment="hello",
        begin="now+1hour",
        deadline="1796015604",
        segment_size=2,
        mcs_label="k8s",
        excluded_nodes=(SlurmNode("n1"), SlurmNode("n2")),
        required_nodes=(SlurmNode("n3"),),
    )
    job = translate.job_body(JOB, full, 45)
    del job["admin_comment"]
    assert job == {
        "job_id": JOB,
        "name": "web",
        "partition": "p",
        "minimum_nodes": 2,
        "maximum_nodes": 3,
        "tasks": 4,
        "tasks_per_node": 2,
        "cpus_per_task": 5,
        "memory_per_node": {"set": True, "infinite": False, "number": 6},
        "temporary_disk_per_node": 9,
        "tres_per_node": "gres/gpu:h100=2",
        "shared": ["none"],
        "time_limit": {"set": True, "infinite": False, "number": 7},
        "account": "acc",
        "qos": "q",
        "user_id": "alice",
        "group_id": "staff",
        "reservation": "r",
        "wckey": "w",
        "licenses": "m:1",
        "constraints": "a&b",
        "prefer": "c",
        "priority": {"set": True, "infinite": False, "number": 0},
        "nice": 0,
        "dependency": "afterany:1",
        "comment": "hello",
        "begin_time": "now+1hour",
        "deadline": 1796015604,
        "segment_size": {"set": True, "infinite": False, "number": 2},
        "mcs_label": "k8s",
        "excluded_nodes": ["n[1-2]"],
        "required_nodes": ["n3"],
        "flags": ["EXTERNAL_JOB"],
    }


def test_no_field_of_a_jobspec_is_forgotten() -> None:
    ours_alone = {
        "user_limit",
        "warnings",
        "notice",
    }  # the limit after which we end the pod; texts for `translate` and for the pod's condition
    ours_alone |= {"size", "pods", "others", "most"}  # whose tasks these are; other components, another form
    assert {field for field, _, _ in translate.FIELDS} == {f.name for f in fields(JobSpec)} - ours_alone


@pytest.mark.parametrize("version", [42, 43, 44, 45])
def test_what_each_version_of_the_api_needs(version: int) -> None:
    queued = translate.submit_body(JOB, spec(group="staff"), version)["job"]
    at_once = translate.allocate_body(JOB, spec(), version)["job"]
    assert at_once["immediate"] is True
    assert "immediate" not in queued
    assert ("flags" in queued) == (version >= 43)
    assert ("script" in queued) == (version < 43)  # Slurm 24.11 has no jobs without a process
    assert "script" not in at_once
    assert ("environment" in queued) == (version < 43)
    assert ("current_working_directory" in queued) == (version < 44)
    assert ("group_id" in queued) == (version >= 43)  # it kills the slurmrestd of 24.11


def test_a_job_that_says_almost_nothing_is_still_a_record() -> None:
    record = translate.record(msgspec.convert({"job_id": 7, "job_state": ["PENDING"]}, wire.Job))
    assert (record.id, record.nodes, record.mark, record.time_limit) == (7, (), None, None)
    assert record.states == {"PENDING"}
    assert (record.submitted, record.started, record.ended, record.preempted) == (0.0, 0.0, 0.0, 0.0)


def test_unset_and_infinite_numbers_are_no_numbers() -> None:
    unset = {"set": False, "infinite": False, "number": 5}
    infinite = {"set": True, "infinite": True, "number": 5}
    for nothing in (unset, infinite):
        job = msgspec.convert(
            {"job_id": 7, "job_state": ["RUNNING"], "start_time": nothing, "time_limit": nothing}, wire.Job
        )
        assert translate.record(job).started == 0.0
        assert translate.record(job).time_limit is None


def test_nodes_keep_slurms_order_and_a_broken_list_is_refused() -> None:
    job = msgspec.convert({"job_id": 7, "job_state": ["RUNNING"], "nodes": "n2,k[0003,0001-0002]"}, wire.Job)
    assert translate.record(job).nodes == ("n2", "k0003", "k0001", "k0002")
    with pytest.raises(UserError):
        translate.record(msgspec.convert({"job_id": 7, "job_state": ["RUNNING"], "nodes": "n["}, wire.Job))


def test_a_huge_foreign_comment_is_cut() -> None:
    job = msgspec.convert({"job_id": 7, "job_state": ["RUNNING"], "admin_comment": "x" * 100_000}, wire.Job)
    assert len(translate.record(job).comment) == translate.COMMENT_LIMIT
