"""Many jobs end at once and nobody said so: most of their pods wait until Slurm has said it again, or a person has."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.e2e import kube as k
from tests.e2e.kube import Object
from tests.e2e.scene import Scene
from tests.e2e.stack import REPO, Stack, command
from tests.e2e.waiting import eventually, throughout

pytestmark = pytest.mark.real
LOST, UNHARMED = 25, 5
AT_ONCE = 10  # pods that nobody minds
NAMESPACE = "slurm"  # of the Lease
EVENTS = f"/api/v1/namespaces/{NAMESPACE}/events"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/slurm-bridge"


@pytest.fixture
def graceless(stack: Stack) -> Iterator[None]:
    """A bridge, with nothing in its memory, that believes what slurmctld says right after its start."""
    stack.kill("bridge")
    command("up", stack.name, "--set", "bootGrace=0")
    stack.wait_leading()
    yield
    command("up", stack.name, "--set", "bootGrace=")
    stack.wait_leading()


@pytest.mark.usefixtures("graceless")
def test_nodes_that_fail_at_once_lose_ten_pods_and_the_rest_waits_for_a_command(scene: Scene) -> None:
    stack = scene.stack
    scene.kube.must("DELETE", EVENTS, fieldSelector="involvedObject.kind=Lease")  # of earlier runs
    external = stack.facts["nodes"]["external"]
    for i in range(LOST):
        scene.create(k.pod(f"lost-{i}", options=scene.only(*external)))
    for i in range(UNHARMED):
        scene.create(k.pod(f"unharmed-{i}", options=scene.only("n1")))
    pods = scene.all_running(LOST + UNHARMED)
    lost = {k.uid(pod): k.job_label(pod) for pod in pods if k.node_of(pod) in external}
    assert len(lost) == LOST

    with _down(scene, external):
        eventually(
            "the rest is held back",
            lambda: stack.metric("slurm_bridge_breaker_held_jobs") == LOST - AT_ONCE,
            every=0.1,
        )
        eventually("ten are deleted", lambda: len(_alive(scene)) == LOST - AT_ONCE + UNHARMED)
        note = stack.bridge.get("/readyz").text
        assert f"note: breaker open: {LOST - AT_ONCE} jobs are held back" in note
        assert f"kubectl -n {NAMESPACE} annotate lease slurm-bridge" in note
        many = f"{LOST - AT_ONCE} jobs are held back ("
        told = eventually("an Event tells of them all", lambda: _event(scene, "BreakerOpen", many))
        assert told is not None
        assert told["type"] == "Warning"
        assert any(str(job) in told["message"] for job in lost.values())
        assert told["involvedObject"]["uid"] == scene.kube.must("GET", LEASE)["metadata"]["uid"]
        throughout(
            "nothing more is deleted", 3.0, lambda: len(_alive(scene)) == LOST - AT_ONCE + UNHARMED, every=0.5
        )

        said = _close_breaker(scene)
        assert "slinky.slurm.net/close-breaker=" in said
        # Sooner than the bridge could have read each job twice again.
        eventually("the rest is deleted", lambda: len(_alive(scene)) == UNHARMED, within=8)
        closed = eventually("an Event tells why", lambda: _event(scene, "BreakerClosed"))
        assert closed is not None
        assert f"{LOST - AT_ONCE} jobs are no longer held back: an operator said so" in closed["message"]
        assert stack.metric("slurm_bridge_breaker_held_jobs") == 0
        assert "breaker" not in stack.bridge.get("/readyz").text
    assert not {k.uid(pod) for pod in _alive(scene)} & lost.keys()
    assert all(scene.job_of(pod).running for pod in _alive(scene))


@contextmanager
def _down(scene: Scene, nodes: list[str]) -> Iterator[None]:
    names = ",".join(nodes)
    scene.stack.run("scontrol", "update", f"nodename={names}", "state=down", "reason=e2e")
    try:
        yield
    finally:
        scene.stack.run("scontrol", "update", f"nodename={names}", "state=resume")
        eventually(
            "the nodes are back",
            lambda: "down" not in scene.stack.run("sinfo", "--noheader", "--nodes", names, "--format=%T"),
        )


def _alive(scene: Scene) -> list[Object]:
    return [pod for pod in scene.pods() if "deletionTimestamp" not in pod["metadata"]]


def _event(scene: Scene, reason: str, begins: str = "") -> Object | None:
    """The one on the bridge's Lease, once its message begins like this."""
    found = scene.kube.items(EVENTS, fieldSelector=f"involvedObject.kind=Lease,reason={reason}")
    assert len(found) <= 1
    return found[0] if found and found[0]["message"].startswith(begins) else None


def _close_breaker(scene: Scene) -> str:
    words = [
        str(REPO / ".venv" / "bin" / "slurm-bridge"), "close-breaker",
        f"--config={scene.stack.facts['bridge_config']}", f"--kubeconfig={scene.stack.facts['kubeconfigs']['admin']}",
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
