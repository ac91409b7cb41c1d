"""Jobs of several tasks, as gangs ask for them, on the world and on the daemons."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge.core import devices
from bridge.core.claims import pinned
from bridge.core.model import JobId, JobRecord, JobSpec, SlurmNode, is_granted
from bridge.errors import Invalid
from bridge.slurm.translate import job_body
from tests.contract.slurm_fixture import Slurm, eventually, slurm_fixture, spec

__all__ = ["slurm_fixture"]


def tasks(count: int, *, cpus: int = 2, gpus: int = 2, **changes: object) -> JobSpec:
    """So many tasks, each with its own CPUs, memory and GPUs."""
    asked = f"gres/gpu={gpus}" if gpus else ""
    base = spec(
        tasks=count, cpus_per_task=cpus, memory_mib=None, memory_per_cpu=100, gres="", gres_per_task=asked
    )
    return replace(base, nodes_max=count, **changes)  # type: ignore[arg-type]


def gpus_of(record: JobRecord) -> list[int]:
    """How many it has on each of its nodes."""
    return [len(devices.indices(text)) for text in record.gres]


async def granted(slurm: Slurm, asked: JobSpec) -> JobRecord:
    job = slurm.id()
    await slurm.client.submit(job, asked)

    async def runs() -> bool:
        return is_granted((await slurm.client.job(job)).states)

    await eventually(runs)
    return await slurm.client.job(job)


async def test_each_task_has_its_own_and_the_record_tells_what_every_node_holds(slurm: Slurm) -> None:
    record = await granted(slurm, tasks(5, gpus=3, excluded_nodes=slurm.nodes[3:]))
    assert record.tasks == 5
    assert sum(gpus_of(record)) == 15
    assert all(count % 3 == 0 for count in gpus_of(record))
    assert [cpus // 2 for cpus in record.cpus_by_node] == [count // 3 for count in gpus_of(record)]
    assert len(record.nodes) == len(record.cpus_by_node) == len(record.gres)


async def test_tasks_without_gpus_are_counted_by_cpus(slurm: Slurm) -> None:
    record = await granted(slurm, tasks(3, cpus=3, gpus=0))
    assert sum(record.cpus_by_node) == 9
    assert record.memory_mib is None


async def test_one_task_a_node_where_that_is_asked(slurm: Slurm) -> None:
    record = await granted(slurm, tasks(3, gpus=1, nodes_min=3, tasks_per_node=1))
    assert gpus_of(record) == [1, 1, 1]
    assert record.cpus_by_node == (2, 2, 2)


@pytest.mark.parametrize(("pods", "a_node"), [(1, 1), (4, 2)])
async def test_memory_by_the_node_leaves_each_task_its_gpus(slurm: Slurm, pods: int, a_node: int) -> None:
    """One pod that is left of a gang, or whole numbers of pods on each node."""
    asked = tasks(pods, nodes_min=pods // a_node, tasks_per_node=a_node, memory_mib=200 * a_node)
    record = await granted(slurm, replace(asked, memory_per_cpu=None, nodes_max=pods // a_node))
    assert gpus_of(record) == [2 * a_node] * (pods // a_node)
    assert record.cpus_by_node == (2 * a_node,) * (pods // a_node)
    assert record.memory_mib == 200 * a_node


async def test_a_gangs_places_are_claimed_task_by_task(slurm: Slurm) -> None:
    first, second = slurm.nodes[0], slurm.nodes[2]
    job = slurm.id()
    await slurm.client.allocate(job, pinned(tasks(3), (second, first, second)))
    record = await slurm.client.job(job)
    held = dict(zip(record.nodes, gpus_of(record), strict=True))
    assert held == {first: 2, second: 4}
    assert record.tasks == 3


async def test_a_gang_that_fits_no_cluster_is_refused(slurm: Slurm) -> None:
    with pytest.raises(Invalid):
        await slurm.client.submit(slurm.id(), tasks(40, gpus=8))


def test_a_hostlist_would_forget_that_a_node_is_named_twice() -> None:
    """So the nodes of a claim are sent one by one where they repeat."""

    twice = pinned(tasks(3), (SlurmNode("n1"), SlurmNode("n2"), SlurmNode("n1")))
    body = job_body(JobId(1), twice, 45)
    assert body["required_nodes"] == ["n1", "n2", "n1"]
    assert body["distribution"] == "arbitrary"
    assert body["minimum_nodes"] == body["maximum_nodes"] == 2
