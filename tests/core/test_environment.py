"""Slurm's variables for the containers of pods that ask for them: what is written, when, and for whom not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge.core import environment
from bridge.core.lifecycle import decide
from bridge.core.model import Group, JobRecord, KubeNode, Pod, SlurmNode, Uid
from bridge.core.placement import Slot
from bridge.core.steps import Decision, Nominate, Release
from bridge.names import ENVIRONMENT_PREFIX, SCHEDULING_GATE
from tests.core.build import FIRST, KEY, facts, pod, record, released, sight

KEY_UID = Uid(KEY.uid)
ASKS = {environment.ASKED: "true"}
GRANTED = record(FIRST, "RUNNING", nodes=(SlurmNode("n1"),), gres=("gpu:h100:2(IDX:0-1)",))


def variables(group: Group, member: Pod, gpus: str = "", job: JobRecord = GRANTED) -> dict[str, str]:
    slot = Slot(pod=member.uid, node=KubeNode("n1"), gpus=gpus, rank=group.pods.index(member))
    found = environment.of_pod(group, member, slot, job)
    return {name.removeprefix(ENVIRONMENT_PREFIX): value for name, value in found.items()}


def release(decision: Decision) -> Release:
    (found,) = (step for step in decision.steps if isinstance(step, Release))
    return found


def test_a_pod_that_asks_gets_what_slurm_would_tell_its_only_task() -> None:
    member = pod(annotations=ASKS)
    assert variables(Group(key=KEY, pods=(member,)), member, "0-1,4") == {
        "SLURM_JOB_NODELIST": "n1",
        "SLURM_NNODES": "1",
        "SLURM_NTASKS": "1",
        "SLURM_PROCID": "0",
        "SLURM_JOB_GPUS": "0,1,4",
    }


def test_the_pods_of_a_group_are_its_tasks_in_rank_order_on_the_nodes_by_slurms_names() -> None:
    members = tuple(pod(uid=Uid(f"u{i}"), name=f"train-{i}", annotations=ASKS) for i in range(4))
    wide = replace(GRANTED, nodes=tuple(SlurmNode(f"gpu{i:02}") for i in (1, 2, 3, 7)))
    found = [variables(Group(key=KEY, pods=members), member, job=wide) for member in members]
    assert [one["SLURM_PROCID"] for one in found] == ["0", "1", "2", "3"]
    assert {(one["SLURM_JOB_NODELIST"], one["SLURM_NNODES"], one["SLURM_NTASKS"]) for one in found} == {
        ("gpu[01-03,07]", "4", "4")
    }
    assert not any("SLURM_JOB_GPUS" in one for one in found)


@pytest.mark.parametrize("said", [{}, {environment.ASKED: "false"}, {environment.ASKED: "yes please"}])
def test_nothing_is_written_for_a_pod_that_does_not_ask(said: dict[str, str]) -> None:
    assert release(decide(facts(pod(annotations=said), sights=(sight(GRANTED),)))).environment == {}


def test_the_variables_are_written_in_the_patch_that_lets_the_pod_go() -> None:
    decision = decide(facts(pod(annotations=ASKS), sights=(sight(GRANTED),)))
    assert [type(step) for step in decision.steps] == [Nominate, Release]
    assert release(decision).environment == environment.of_pod(
        Group(key=KEY, pods=(pod(annotations=ASKS),)),
        pod(annotations=ASKS),
        Slot(pod=KEY_UID, node=KubeNode("n1"), gpus="0-1"),
        GRANTED,
    )


def test_a_released_pod_whose_variables_are_someone_elses_gets_its_own_before_it_is_bound() -> None:
    whole = dict(release(decide(facts(pod(annotations=ASKS), sights=(sight(GRANTED),)))).environment)
    there = released(FIRST)

    def on_its_way(**changes: str) -> Decision:
        noted = {**there.annotations, **ASKS, **whole, **changes}
        return decide(facts(replace(there, annotations=noted), sights=(sight(GRANTED),)))

    assert not [step for step in on_its_way().steps if isinstance(step, Release)]
    stale = on_its_way(**{f"{ENVIRONMENT_PREFIX}SLURM_JOB_NODELIST": "n9"})
    assert release(stale).environment == whole


def test_admission_points_the_containers_at_what_the_leader_writes() -> None:
    """The expressions of the policy and the names in the code are two places for one promise."""
    manifest = Path(__file__).parents[2] / "deploy/manifests/cluster/environment.yaml"
    policy: dict[str, Any] = next(iter(yaml.safe_load_all(manifest.read_text())))
    wanted = next(one for one in policy["spec"]["variables"] if one["name"] == "wanted")
    for variable, source in environment.SOURCES.items():
        assert f'"{variable}"' in wanted["expression"]
        prefix = source.removesuffix("']").removesuffix(variable)
        assert prefix in wanted["expression"]
    conditions = " ".join(one["expression"] for one in policy["spec"]["matchConditions"])
    assert environment.ASKED in conditions
    assert SCHEDULING_GATE not in conditions
