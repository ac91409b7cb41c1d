"""What the API server refuses of pods of ours, and what it lets through."""

from __future__ import annotations

import pytest

from tests.e2e import kube as k
from tests.e2e.scene import Scene

pytestmark = pytest.mark.real


@pytest.mark.parametrize("scheduler", [k.SCHEDULER, k.ALIAS])
def test_a_pod_of_ours_that_brings_its_node_is_refused_with_the_fix(scene: Scene, scheduler: str) -> None:
    with_node = k.pod("with-node", scheduler=scheduler)
    with_node["spec"]["nodeName"] = scene.stack.nodes[0]
    answer = scene.kube.ask("POST", scene.pods_path, with_node)
    assert answer.status_code == 422
    assert "remove spec.nodeName" in answer.json()["message"]
    assert scheduler in answer.json()["message"]


def test_pods_of_others_bring_their_node_as_ever_and_ours_are_bound_by_the_scheduler(scene: Scene) -> None:
    theirs = k.pod("theirs", scheduler="default-scheduler")
    theirs["spec"]["nodeName"] = scene.stack.nodes[0]
    scene.create(theirs)
    scene.running("theirs")
    scene.create(k.pod("ours"))
    scene.running("ours")
