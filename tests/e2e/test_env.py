"""Slurm's variables in the containers of pods that ask for them, and in no others.

The nodes have no kubelet that would start a container, so what it would do is done here: each variable is taken from
the field of the pod that its spec names.
"""

from __future__ import annotations

import copy
import re

import pytest

from tests.e2e import kube as k
from tests.e2e.kube import Object
from tests.e2e.scene import Scene
from tests.e2e.slurm import parse_indices

pytestmark = pytest.mark.real

ASKS = {"inject-env": "true"}
NAMES = (
    "SLURM_JOB_ID",
    "SLURM_JOB_NODELIST",
    "SLURM_NNODES",
    "SLURM_NTASKS",
    "SLURM_PROCID",
    "SLURM_JOB_GPUS",
)
_FIELD = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


def started(pod: Object, container: Object) -> dict[str, str]:
    """The environment as kubelet makes it at the container's start; a field that isn't there is empty."""
    found: dict[str, str] = {}
    for one in container.get("env", []):
        if "value" in one:
            found[one["name"]] = one["value"]
            continue
        field = one["valueFrom"]["fieldRef"]
        assert field["apiVersion"] == "v1"
        match = _FIELD.fullmatch(field["fieldPath"])
        assert match is not None, field
        found[one["name"]] = pod["metadata"].get(match[1], {}).get(match[2], "")
    return found


def with_company(pod: Object) -> Object:
    """An init container, a sidecar and a second container beside the first."""
    (first,) = pod["spec"]["containers"]
    bare = {"image": "busybox", "resources": {"limits": {"cpu": "100m", "memory": "16Mi"}}}
    pod["spec"]["initContainers"] = [
        {"name": "fetch", **copy.deepcopy(bare)},
        {
            "name": "log",
            "restartPolicy": "Always",
            "env": [{"name": "LEVEL", "value": "1"}],
            **copy.deepcopy(bare),
        },
    ]
    first["env"] = [
        {"name": "SLURM_NTASKS", "value": "8"},
        {"name": "ADDRESS", "value": "worker-$(SLURM_PROCID)"},
    ]
    pod["spec"]["containers"].append({"name": "side", **copy.deepcopy(bare)})
    return pod


def test_every_container_of_a_pod_that_asks_finds_slurms_variables(scene: Scene) -> None:
    scene.create(with_company(k.pod("asks", gpus=2, options=ASKS)))
    pod = scene.running("asks")
    job = scene.job_of(pod)
    expected = {
        "SLURM_JOB_ID": str(job.id),
        "SLURM_JOB_NODELIST": job.nodes,
        "SLURM_NNODES": "1",
        "SLURM_NTASKS": "1",
        "SLURM_PROCID": "0",
        "SLURM_JOB_GPUS": ",".join(map(str, sorted(index for _, index in job.gpus))),
    }
    assert len(job.gpus) == 2
    assert parse_indices(k.annotation(pod, k.GPUS)) == {index for _, index in job.gpus}
    fetch, log = (started(pod, one) for one in pod["spec"]["initContainers"])
    train, side = (started(pod, one) for one in pod["spec"]["containers"])
    assert fetch == side == expected
    assert log == {**expected, "LEVEL": "1"}
    assert train == {**expected, "SLURM_NTASKS": "8", "ADDRESS": "worker-$(SLURM_PROCID)"}
    # What refers to another variable must stand after it.
    order = [one["name"] for one in pod["spec"]["containers"][0]["env"]]
    assert order.index("SLURM_PROCID") < order.index("ADDRESS")
    assert len(set(order)) == len(order)
    assert k.gates(pod) == set()


def test_a_pod_without_gpus_has_an_empty_list_of_them(scene: Scene) -> None:
    scene.create(k.pod("plain", options={"inject-env": " True "}))
    pod = scene.running("plain")
    found = started(pod, pod["spec"]["containers"][0])
    assert tuple(found) == NAMES
    assert found["SLURM_JOB_GPUS"] == ""
    assert found["SLURM_JOB_NODELIST"] == scene.job_of(pod).nodes


@pytest.mark.parametrize("options", [{}, {"inject-env": "false"}], ids=["silent", "declines"])
def test_nothing_changes_for_a_pod_that_does_not_ask(scene: Scene, options: dict[str, str]) -> None:
    scene.create(with_company(k.pod("silent", options=options)))
    pod = scene.running("silent")
    for container in (*pod["spec"]["initContainers"], *pod["spec"]["containers"]):
        assert not [one for one in container.get("env", []) if "valueFrom" in one]
    assert not [name for name in pod["metadata"]["annotations"] if name.startswith("env.slinky.slurm.net/")]


def test_nor_for_a_pod_of_another_scheduler_that_does(scene: Scene) -> None:
    scene.create(k.pod("theirs", scheduler="default-scheduler", options=ASKS))
    assert "env" not in scene.running("theirs")["spec"]["containers"][0]


def test_the_pods_of_a_job_find_each_its_own(scene: Scene) -> None:
    ours = k.pod("rank", options=ASKS)
    template = {"metadata": {"annotations": ours["metadata"]["annotations"]}, "spec": ours["spec"]}
    spec = {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "template": template}
    scene.kube.must("POST", scene.jobs_path, {"metadata": {"name": "rank"}, "spec": spec})
    pods = scene.all_running(2)
    found = [started(pod, pod["spec"]["containers"][0]) for pod in pods]
    assert all(tuple(one) == (*NAMES, "JOB_COMPLETION_INDEX") for one in found)
    assert {one["SLURM_JOB_ID"] for one in found} == {str(k.job_label(pod)) for pod in pods}
    assert len({one["SLURM_JOB_ID"] for one in found}) == 2


def test_a_pod_as_large_as_they_come_stays_within_the_budget_of_the_policy(scene: Scene) -> None:
    """An API server stops an expression that costs too much, and the pod would be refused."""
    pod = k.pod("huge", options=ASKS)
    (first,) = pod["spec"]["containers"]
    many = [{"name": f"V{number}", "value": "x" * 20} for number in range(200)]
    pod["spec"]["containers"] = [{**first, "name": f"c{number}", "env": many} for number in range(60)]
    pod["spec"]["initContainers"] = [{**first, "name": f"i{number}", "env": many} for number in range(20)]
    made = scene.kube.must("POST", scene.pods_path, pod, dryRun="All")
    for container in (*made["spec"]["containers"], *made["spec"]["initContainers"]):
        assert [one["name"] for one in container["env"]] == [*NAMES, *(one["name"] for one in many)]
