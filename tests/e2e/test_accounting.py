"""How pods ended, as the site's accounting shows it afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import kube as k
from tests.e2e.kube import Object
from tests.e2e.scene import Scene
from tests.e2e.stack import Stack
from tests.e2e.stages import own, staged
from tests.e2e.waiting import eventually

pytestmark = [pytest.mark.real, pytest.mark.timeout(1200)]  # the first start on a machine unpacks a database
LIVE = {"", "PENDING", "RUNNING"}  # "": slurmdbd has not heard of it yet


@pytest.fixture(scope="module")
def accounting() -> Iterator[Stack]:
    with own("accounting", "--accounting", "--min-job-age", "10") as found:
        yield found


@pytest.fixture
def scene(accounting: Stack) -> Iterator[Scene]:
    with staged(accounting) as found:
        yield found


def test_sacct_shows_how_each_pod_ended(scene: Scene) -> None:
    ends = {
        "good": (k.pod("good", run=1), "COMPLETED", "0:0"),
        "bad": (k.pod("bad", run=1, exit_code=3), "FAILED", "3:0"),
        "too-big": (_says("too-big", "exit-reason", "OOMKilled"), "OUT_OF_MEMORY", "0:125"),
        "evicted": (_says("evicted", "pod-reason", "Evicted"), "FAILED", "0:15"),
        "too-long": (_says("too-long", "pod-reason", "DeadlineExceeded"), "FAILED", "0:24"),
        "deleted": (k.pod("deleted"), "CANCELLED", "0:0"),
        "cancelled": (k.pod("cancelled"), "CANCELLED", "0:0"),
    }
    for pod, _, _ in ends.values():
        scene.create(pod)
    jobs = {name: k.job_label(scene.when(name, "has a job", k.job_label)) for name in ends}
    for name in ("deleted", "cancelled"):
        scene.running(name)
    scene.delete("deleted")
    scene.slurm.scancel(jobs["cancelled"])

    def told() -> dict[str, tuple[str, str]]:
        return {name: _accounted(scene, number) for name, number in jobs.items()}

    wanted = {name: (state, code) for name, (_, state, code) in ends.items()}
    eventually(
        "sacct knows all ends",
        lambda: not LIVE & {state for state, _ in told().values()},
        within=90, every=0.5,
    )  # fmt: skip
    assert told() == wanted


@pytest.mark.parametrize("limit", ["qos", "refusing qos", "association"])
def test_a_time_limit_that_just_fits_is_granted_and_one_that_does_not_stays_refused(
    scene: Scene, limit: str
) -> None:
    sacctmgr = (
        "sacctmgr",
        "-i",
        "modify",
        *(("account", "proj") if limit == "association" else ("qos", "normal")),
    )
    flags = ["Flags=DenyOnLimit"] if limit == "refusing qos" else []
    scene.stack.run(*sacctmgr, "set", "MaxWall=5", *flags)
    try:
        scene.create(k.pod("fits", options={"timelimit": "5"}))
        scene.create(k.pod("too-long", options={"timelimit": "6"}))
        scene.running("fits")
        assert "no more than 5 min" in scene.says("fits", "RUNNING")
        job = k.job_label(scene.get("fits"))
        assert scene.stack.run("squeue", "-h", f"-j{job}", "-o%l").strip() == "5:00"
        scene.says("too-long", "2050" if flags else "MaxWallDurationPerJobLimit")
        assert not k.job_label(scene.get("too-long")), (
            "MaxWall does not count for a job that SlurmUser has updated"
        )
    finally:
        scene.stack.run(*sacctmgr, "set", "MaxWall=-1", *(["Flags=-1"] if flags else []))


@pytest.fixture
def by_qos(accounting: Stack) -> Iterator[Scene]:
    """Preemption as QOS say, with a grace time of theirs. The bridge asks for these at its start, then now and then."""
    path = Path(accounting.facts["slurm_conf"])
    before = path.read_text()
    path.write_text(before.replace("preempt/partition_prio", "preempt/qos"))
    modify = ("sacctmgr", "-i", "modify", "qos")
    accounting.run(*modify, "normal", "set", "GraceTime=40", "PreemptMode=cancel")
    accounting.run(*modify, "high", "set", "Preempt=normal")
    try:
        for part in ("slurmctld", "bridge"):
            accounting.restart(part)
        accounting.wait_leading()
        with staged(accounting) as found:
            yield found
    finally:
        path.write_text(before)
        accounting.run(*modify, "normal", "set", "GraceTime=0")
        accounting.run(*modify, "high", "set", "Preempt=")
        accounting.restart("slurmctld")


def test_a_pod_preempted_by_its_qos_is_told_while_slurm_still_leaves_it_its_node(by_qos: Scene) -> None:
    uid = by_qos.create(k.pod("checkpoints", grace=5, options=by_qos.only("n1")))
    number = k.job_label(by_qos.running("checkpoints"))
    by_qos.slurm.sbatch("-A", "proj", "--qos=high", "--exclusive", "--nodelist=n1", "--mem=1000")
    by_qos.gone("checkpoints")
    assert k.shown(by_qos.last_of(uid), "DisruptionTarget")["reason"] == "SlurmPreempting"
    ended = by_qos.job_becomes(number, "CANCELLED", "COMPLETED", "PREEMPTED")
    assert "PREEMPTED" not in ended.states


def test_what_slurm_ended_and_forgot_while_the_bridge_was_away_is_ended_right(scene: Scene) -> None:
    """slurmctld purges once a minute what ended longer ago than MinJobAge."""
    uids = {name: scene.create(k.pod(name)) for name in ("cancelled", "steady")}
    for name in uids:
        scene.running(name)
    job, kept = (k.job_label(scene.get(name)) for name in uids)
    with scene.stack.without("bridge"):
        scene.slurm.scancel(job)
        eventually("slurmctld has forgotten it", lambda: scene.slurm.job(job) is None, within=150, every=1.0)
    told = scene.last_of(uids["cancelled"], within=60)
    (shown,) = (c for c in told["status"]["conditions"] if c["type"] == "DisruptionTarget")
    assert "was cancelled in Slurm, as Slurm's accounting says" in shown["message"]
    assert scene.slurm.jobs_of(uids["cancelled"]) == [], "its place is not asked for again"
    assert scene.slurm.live_jobs_of(uids["steady"])
    assert k.job_label(scene.get("steady")) == kept


def test_who_waited_goes_with_a_job_that_was_cancelled_and_forgotten_while_the_bridge_was_away(
    scene: Scene,
) -> None:
    uid = scene.create(k.pod("waits", options={"begin": "2040-01-01T00:00:00Z"}))
    job = scene.waiting_job(uid).id
    scene.says("waits", f"job {job} is PENDING")
    with scene.stack.without("bridge"):
        scene.slurm.scancel(job)
        eventually("slurmctld has forgotten it", lambda: scene.slurm.job(job) is None, within=150, every=1.0)
    scene.gone("waits", within=60)
    assert scene.slurm.jobs_of(uid) == [], "nothing more is asked for"


def _says(name: str, key: str, value: str) -> Object:
    """A pod that kubelet says this of when it ends."""
    pod = k.pod(name, run=1)
    del pod["metadata"]["annotations"]["bench/exit-code"]
    pod["metadata"]["annotations"][f"bench/{key}"] = value
    return pod


def _accounted(scene: Scene, number: int) -> tuple[str, str]:
    """State and exit code. A cancelled job names the user after its state."""
    row = scene.stack.run("sacct", "-nPX", f"-j{number}", "-oState,ExitCode")
    state, _, code = row.partition("|")
    return state.split(" ")[0], code
