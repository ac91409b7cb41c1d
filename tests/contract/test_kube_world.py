"""The world's kubelet and scheduler do what the real ones do to the bridge."""

from __future__ import annotations

from typing import Any

import pytest

from bridge import names
from bridge.core.model import KubeNode
from bridge.kube.client import KubeClient
from tests.worlds import kube_objects
from tests.worlds.kube import KubeWorld
from tests.worlds.kube_agents import Kubelet, Scheduler
from tests.worlds.kube_clock import VirtualClock


class Scene:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.world = KubeWorld(clock=self.clock.time, now=self.clock.unix, sleep=self.clock.sleep)
        self.client = KubeClient(self.world)
        self.kubelet = Kubelet(self.world)
        self.asked: list[list[str]] = []
        self.allowed: set[str] = set()
        self.bind_error = ""
        self.filter_error = ""
        self.scheduler = Scheduler(
            self.world, [names.SCHEDULER_NAME], filter=self.filter, bind=self.bind, clock=self.clock.time
        )
        for i in range(3):
            self.world.add("nodes", kube_objects.node(f"n{i}"))

    async def filter(self, args: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(args["nodenames"])
        return {"nodenames": [n for n in args["nodenames"] if n in self.allowed], "error": self.filter_error}

    async def bind(self, args: dict[str, Any]) -> dict[str, Any]:
        if self.bind_error:
            return {"error": self.bind_error}
        where = args["podNamespace"], args["podName"], args["podUID"], args["node"]
        await self.client.bind(*where)
        return {"error": ""}

    def pod(self, gates: tuple[str, ...] = ()) -> None:
        self.world.add("pods", kube_objects.pod("a", gates=gates))


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_a_gated_pod_is_left_alone(scene: Scene) -> None:
    scene.pod(gates=(names.SCHEDULING_GATE,))
    assert await scene.scheduler.step() == 0
    assert scene.asked == []


async def test_the_nominated_node_is_asked_about_alone(scene: Scene) -> None:
    scene.pod()
    scene.allowed = {"n1"}
    pod = await scene.client.pod("default", "a")
    await scene.client.patch_pod_status(pod, nominated=KubeNode("n1"))
    assert await scene.scheduler.step() == 1
    assert scene.asked == [["n1"]]
    assert (await scene.client.pod("default", "a")).node == "n1"


async def test_a_refused_nomination_makes_it_ask_about_all_nodes_that_take_pods(scene: Scene) -> None:
    scene.pod()
    scene.world.storage.patch("nodes", "", "n2", {"spec": {"unschedulable": True}})
    pod = await scene.client.pod("default", "a")
    await scene.client.patch_pod_status(pod, nominated=KubeNode("n1"))
    assert await scene.scheduler.step() == 0
    assert scene.asked == [["n1"], ["n0", "n1"]]
    after = await scene.client.pod("default", "a")
    assert after.nominated == ""
    said = after.condition(names.SCHEDULED_CONDITION)
    assert said is not None
    assert said.reason == "Unschedulable"


@pytest.mark.parametrize("verb", ["bind", "filter"])
async def test_an_error_clears_the_nomination_and_backs_off(scene: Scene, verb: str) -> None:
    scene.pod()
    scene.allowed = {"n1"}
    setattr(scene, f"{verb}_error", "no")
    pod = await scene.client.pod("default", "a")
    await scene.client.patch_pod_status(pod, nominated=KubeNode("n1"))
    assert await scene.scheduler.step() == 0
    after = await scene.client.pod("default", "a")
    assert after.nominated == ""
    setattr(scene, f"{verb}_error", "")
    assert await scene.scheduler.step() == 0
    await scene.clock.advance(1.0)
    assert await scene.scheduler.step() == 1


async def test_a_pod_runs_and_ends_with_its_exit_code(scene: Scene) -> None:
    scene.pod()
    scene.allowed = {"n0"}
    await scene.scheduler.step()
    scene.kubelet.step()
    pod = await scene.client.pod("default", "a")
    assert (pod.phase, pod.statuses[0].running) == ("Running", True)
    scene.kubelet.finish("a", 3)
    pod = await scene.client.pod("default", "a")
    assert (pod.phase, pod.statuses[0].terminated, pod.statuses[0].exit_code) == ("Failed", True, 3)


async def test_a_deleted_pod_is_terminal_before_it_is_gone(scene: Scene) -> None:
    scene.pod()
    scene.allowed = {"n0"}
    await scene.scheduler.step()
    scene.kubelet.step()
    pod = await scene.client.pod("default", "a")
    await scene.client.delete_pod("default", "a", pod.uid)
    assert (await scene.client.pod("default", "a")).deleted > 0
    before = scene.world.storage.version
    scene.kubelet.step()
    assert scene.world.get("pods", "a") is None
    last = [r.line for r in scene.world.storage.since("pods", before)]
    assert b'"phase":"Failed"' in last[0]
    assert b'"type":"DELETED"' in last[-1]


async def test_writes_are_counted_by_verb_and_resource(scene: Scene) -> None:
    scene.pod()
    pod = await scene.client.pod("default", "a")
    await scene.client.patch_pod(pod, labels={"a": "b"})
    await scene.client.patch_pod_status(pod, nominated=KubeNode("n0"))
    await scene.client.bind("default", "a", pod.uid, KubeNode("n0"))
    await scene.client.delete_pod("default", "a", pod.uid)
    assert dict(scene.world.writes) == {
        ("patch", "pods"): 1,
        ("patch_status", "pods"): 1,
        ("bind", "pods"): 1,
        ("delete", "pods"): 1,
    }
