"""GPUs that change hands while the old pod's containers still run, and Slurm's hooks at work (docs/handover.md).

The stack of these tests has all three hooks, and a bridge that polls Slurm so rarely that what is seen quickly was
seen by a hint.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from tests.e2e import kube as k
from tests.e2e.kube import Object
from tests.e2e.scene import Scene
from tests.e2e.stack import Stack
from tests.e2e.stages import own, staged
from tests.e2e.waiting import eventually, throughout

pytestmark = pytest.mark.real

GRACE = 25  # seconds that the old pod's containers run on
POLL = 12.0  # seconds between two polls of the bridge


@pytest.fixture(scope="module")
def hooked() -> Iterator[Stack]:
    with own("handover", "--handover", "--set", f"pollInterval={POLL}") as found:
        yield found


@pytest.fixture
def scene(hooked: Stack) -> Iterator[Scene]:
    with staged(hooked) as found:
        yield found


def whole_node(scene: Scene, name: str, **changes: object) -> Object:
    """A pod that wants all GPUs of n1."""
    return k.pod(name, gpus=8, options=scene.only("n1"), **changes)  # type: ignore[arg-type]


def stubborn(scene: Scene) -> Object:
    """Runs on all GPUs of n1, and goes on for its whole grace when it is deleted."""
    scene.create(whole_node(scene, "old", grace=GRACE, dies_after=GRACE))
    return scene.running("old")


def cancelled(scene: Scene, pod: Object) -> None:
    scene.slurm.scancel(k.job_label(pod))
    scene.when("old", "is told to end", lambda pod: "deletionTimestamp" in pod["metadata"])


def died(scene: Scene, uid: str) -> float:
    """When kubelet says that the containers ended, in whole seconds."""
    state = scene.last_of(uid, within=GRACE + 60)["status"]["containerStatuses"][0]["state"]
    return datetime.fromisoformat(state["terminated"]["finishedAt"]).timestamp()


def native(scene: Scene) -> tuple[int, Path]:
    """A job that wants all GPUs of n1, and the file into which its script writes when it starts."""
    name = f"started-{scene.namespace}"
    script = f"date +%s.%N >/tmp/{name}; sleep 600"
    number = scene.slurm.sbatch("--nodelist=n1", "--gres=gpu:8", "--mem=1000", script=script)
    return number, Path(scene.stack.facts["slurm_tmp_dir"]) / name


@contextmanager
def configured(stack: Stack, **settings: object) -> Iterator[Path]:
    """The hook with these settings on top; what it has to say is in the file."""
    etc = Path(stack.facts["slurm_conf"]).parent
    file, log = etc / "handover.conf", Path(stack.facts["slurm_tmp_dir"]) / "handover.log"
    before = file.read_text()
    file.write_text(before + "".join(f"SLURM_BRIDGE_{key}={value}\n" for key, value in settings.items()))
    try:
        yield log
    finally:
        file.write_text(before)


def said(log: Path, job: int) -> list[str]:
    lines = log.read_text().splitlines() if log.exists() else []
    return [line for line in lines if f"job {job}: " in line]


def test_a_pod_waits_for_the_gpus_of_a_pod_that_slurm_has_ended(scene: Scene) -> None:
    old = stubborn(scene)
    new = scene.create(whole_node(scene, "new"))
    scene.waiting_job(new)
    cancelled(scene, old)
    text = scene.says("new", "not known dead", within=GRACE)
    assert f"{scene.namespace}/old on n1: gpu 0-7" in text
    assert "is RUNNING" in text, "Slurm has granted the GPUs already"
    eventually("it is counted", lambda: scene.stack.metric("slurm_bridge_devices_awaited") == 1, within=GRACE)
    assert f"waits for pod {scene.namespace}/old" in _without_numbers(scene.stack.bridge.get("/readyz").text)
    scene.running("new", within=GRACE + 60)
    bound = k.shown(scene.get("new"), "PodScheduled")["lastTransitionTime"]
    assert datetime.fromisoformat(bound).timestamp() >= died(scene, k.uid(old))
    eventually("nobody waits", lambda: scene.stack.metric("slurm_bridge_devices_awaited") == 0)
    assert scene.stack.metric("slurm_bridge_device_waits_expired_total") == 0


def test_a_native_job_starts_when_the_pod_before_it_is_dead(scene: Scene) -> None:
    old = stubborn(scene)
    job, started = native(scene)
    with configured(scene.stack) as log:
        cancelled(scene, old)
        scene.job_becomes(job, "CONFIGURING", within=GRACE)
        eventually("its script starts", lambda: started.exists() and started.read_text(), within=GRACE + 60)
    assert float(started.read_text()) >= died(scene, k.uid(old))
    first, last = said(log, job)
    assert f"{scene.namespace}/old on n1: gpu 0-7" in first
    assert "are clear" in last


def test_while_slurmrestd_is_away_a_native_job_waits_for_the_pods_on_its_node(scene: Scene) -> None:
    old = stubborn(scene)
    job, started = native(scene)
    with configured(scene.stack, SILENT=1) as log:
        with scene.stack.stopped("slurmrestd"):
            scene.slurm.scancel(k.job_label(old))
            eventually("the hook waits", lambda: said(log, job), within=GRACE)
            throughout("it has not started", 10.0, lambda: not started.exists())
        eventually("its script starts", lambda: started.exists() and started.read_text(), within=GRACE + 90)
    assert float(started.read_text()) >= died(scene, k.uid(old))
    assert f"{scene.namespace}/old on n1: gpu 0-7" in said(log, job)[0]


def test_a_native_job_beside_pods_that_hold_other_gpus_starts_at_once(scene: Scene) -> None:
    scene.create(k.pod("beside", gpus=4, options=scene.only("n1")))
    scene.running("beside")
    number = scene.slurm.sbatch("--nodelist=n1", "--gres=gpu:4", "--mem=1000")
    # Had it been told to wait, it would for the two minutes that the hook has.
    eventually("it runs", lambda: (job := scene.slurm.job(number)) is not None and job.states == {"RUNNING"})
    assert scene.stack.metric("slurm_bridge_handover_answers_total", answer="clear") > 0


def test_without_a_bridge_a_native_job_starts_after_a_bounded_wait_and_says_so(scene: Scene) -> None:
    with scene.stack.without("bridge"), configured(scene.stack, SILENT=2) as log:
        job, started = native(scene)
        eventually("its script starts", lambda: started.exists() and started.read_text(), within=60)
        assert any("does not answer: it starts all the same" in line for line in said(log, job))
    scene.stack.wait_leading()


def test_a_native_job_whose_hook_waits_no_longer_is_told_while_the_pod_lives(scene: Scene) -> None:
    old = stubborn(scene)
    job, _ = native(scene)
    with configured(scene.stack, WAIT=2):
        cancelled(scene, old)
        scene.job_becomes(job, "RUNNING", within=20)
        told = f"native job {job} runs, though a pod may still use its GPUs: {scene.namespace}/old"
        eventually("it is told", lambda: told in scene.stack.bridge.get("/readyz").text, within=GRACE - 5)
        assert scene.stack.metric("slurm_bridge_handover_answers_total", answer="overrun") >= 1
    died(scene, k.uid(old))
    eventually("no more", lambda: told not in scene.stack.bridge.get("/readyz").text, within=GRACE + 15)


def test_a_hook_that_fails_closed_has_slurm_requeue_the_job(scene: Scene) -> None:
    with scene.stack.without("bridge"), configured(scene.stack, SILENT=1, FAIL="closed") as log:
        job, started = native(scene)
        eventually("the hook gave up", lambda: said(log, job), within=60)
        assert "may not start" in said(log, job)[0]
        assert scene.job_becomes(job, "PENDING").live
        assert not started.exists()
    scene.stack.wait_leading()


def test_a_bridge_that_hangs_holds_up_nobody_for_longer_than_the_bound(scene: Scene) -> None:
    with scene.stack.stopped("bridge"), configured(scene.stack, SILENT=2) as log:
        job, started = native(scene)
        eventually("its script starts", lambda: started.exists() and started.read_text(), within=60)
        assert any("does not answer" in line for line in said(log, job))


def test_hints_make_ends_be_seen_before_the_next_poll(scene: Scene) -> None:
    def hints() -> float:
        return scene.stack.metric("slurm_bridge_hints_total", answer="taken")

    for i in range(4):
        before, name = hints(), f"quick-{i}"
        scene.create(k.pod(name, grace=3, dies_after=3))
        pod = scene.running(name)
        scene.slurm.scancel(k.job_label(pod))
        scene.when(name, "is told to end", lambda pod: "deletionTimestamp" in pod["metadata"], POLL / 2)
        eventually("a hint was taken", lambda: hints() > before)  # noqa: B023
        scene.gone(name)


def test_the_cancel_of_a_waiting_job_is_hinted_too(scene: Scene) -> None:
    uid = scene.create(k.pod("waits", options={"begin": "2040-01-01T00:00:00Z"}))
    job = scene.waiting_job(uid)
    before = scene.stack.metric("slurm_bridge_hints_total", answer="taken")
    scene.slurm.scancel(job.id)
    eventually(
        "Slurm told of it", lambda: scene.stack.metric("slurm_bridge_hints_total", answer="taken") > before
    )
    scene.gone("waits")


def _without_numbers(text: str) -> str:
    """ "job 5 waits 12 s for pod x" → "job waits for pod x"."""
    return " ".join(word for word in text.split() if not word.isdigit() and word != "s")
