"""Before a binding, while slurmctld may have lost jobs whose pods run, the API server is asked who is on the node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from bridge.core.answers import Asked
from bridge.core.model import JobId, JobRecord, KubeNode, Pod, States, Uid
from bridge.core.verdict import Reason, Verdict
from bridge.grants import Grants
from tests.core.build import CLUSTER, FIRST, NODES, bound, record, released

N1 = KubeNode("n1")
ON_ITS_WAY = released(FIRST)
UNSEEN = bound(JobId(77), uid=Uid("uid-2"), name="unseen")  # on n1, with GPUs 0-1


class Sides:
    """What is known here, and what the API server would say."""

    def __init__(self, *there: Pod, unsettled: bool = True) -> None:
        self.there = there
        self.asked: list[KubeNode] = []
        self.booted = 600.0
        self.records: dict[JobId, JobRecord] = {FIRST: record(FIRST, "RUNNING")}
        one = cast(Any, self)
        self.grants = Grants(
            one,
            one,
            one,
            one,
            one,
            cluster=CLUSTER,
            nodes=lambda: NODES,
            kube_name=KubeNode,
            resources=(),
            unsettled=lambda: unsettled,
            view_age=1.0,
        )

    def age(self) -> float:
        return 0.0

    def record_age(self, job: JobId) -> float:
        return 5.0

    def boot_age(self) -> float:
        return self.booted

    def newest(self, job: JobId) -> States:
        return self.records[job].states

    def holders(self, node: KubeNode) -> tuple[()]:
        return ()

    async def pods_on(self, node: KubeNode, timeout: float) -> tuple[Pod, ...]:
        self.asked.append(node)
        return self.there

    async def alone(self, pod: Pod = ON_ITS_WAY) -> KubeNode | Verdict:
        asked = Asked(uid=pod.uid, labels=pod.labels, annotations=pod.annotations)
        assert self.grants.allowed(asked) == N1
        return await self.grants.alone(asked, N1)


async def test_a_pod_that_was_bound_out_of_our_sight_stops_the_binding() -> None:
    answer = await Sides(UNSEEN).alone()
    assert isinstance(answer, Verdict)
    assert answer.reason is Reason.DEVICES_BUSY
    assert "default/unseen on n1: gpu 0-1" in answer.text


@pytest.mark.parametrize(
    "other",
    [
        ON_ITS_WAY,
        replace(UNSEEN, phase="Succeeded"),
        replace(UNSEEN, node=KubeNode("n2")),
        replace(UNSEEN, annotations={}),
    ],
)
async def test_whoever_uses_none_of_its_gpus_does_not(other: Pod) -> None:
    assert await Sides(other).alone() == N1


async def test_a_record_from_before_a_start_of_slurmctld_lets_nobody_in() -> None:
    sides = Sides()
    sides.booted = 4.9  # the record is 5 seconds old
    asked = Asked(uid=ON_ITS_WAY.uid, labels=ON_ITS_WAY.labels, annotations=ON_ITS_WAY.annotations)
    answer = sides.grants.allowed(asked)
    assert isinstance(answer, Verdict)
    assert answer.reason is Reason.STALE
    assert "before slurmctld started anew" in answer.text


async def test_otherwise_slurms_word_will_do_and_nobody_is_asked() -> None:
    settled = Sides(UNSEEN, unsettled=False)
    assert await settled.alone() == N1
    assert settled.asked == []
