"""The fault table: running pods, a bridge behind the fault proxy, and one fault after the other.

A row takes more than a minute, and most of it is waiting. So the table has a stack and a thread of its own and runs
beside the other tests; tests/e2e/test_faults.py asks for the verdict of each row in the end.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from tests.e2e import kube as k
from tests.e2e.faultproxy import Fault, FaultProxy
from tests.e2e.faults import FAULTS
from tests.e2e.kube import Kube
from tests.e2e.scene import Scene
from tests.e2e.slurm import CHOSEN_IDS, Slurm
from tests.e2e.stack import Stack, command
from tests.e2e.waiting import eventually, throughout

PODS = 50
SECONDS = float(os.environ.get("SLURM_BRIDGE_FAULT_SECONDS", "60"))  # that each fault lasts
RECOVERY = 60.0  # seconds after a fault in which new pods run again
HUNG = "slurmctld-hung"
# Where Slurm numbers our jobs a submit can't be repeated under its id, and what is listed decides: those that lie about
# jobs once more.
HELD = {f"{name}-held": name for name in ("404-of-the-job", "short-list", "answer-lost", HUNG)}
ROWS = [*(fault.name for fault in FAULTS), HUNG, *HELD]
_ROW = SECONDS + 2 * RECOVERY + 60  # seconds that one row takes at most
_START = 1200.0  # seconds; the first start on a machine compiles Kubernetes
# A short grace after a boot: the long one of real life would excuse most of what this table is to find.
_SETTINGS = {"bootGrace": "5", "sweepInterval": "2"}


class FaultTable:
    def __init__(self, name: str) -> None:
        self._name = name
        self._thread = ThreadPoolExecutor(1, "fault table")
        self._began = self._thread.submit(self._begin)
        faults = {fault.name: fault for fault in FAULTS}
        self._rows = {
            name: self._thread.submit(self._row, name, faults.get(name)) for name in (*faults, HUNG)
        }
        self._changed = self._thread.submit(self._change_to_held)
        self._rows |= {
            row: self._thread.submit(self._row, row, faults.get(name)) for row, name in HELD.items()
        }
        self._ended = self._thread.submit(self._end)

    def row(self, name: str) -> float:
        """Seconds in which the bridge recovered. Waits for the row, and fails as it did."""
        self._began.result(_START)
        if name in HELD:
            self._changed.result(_ROW * len(ROWS))
        return self._rows[name].result(_ROW * (1 + ROWS.index(name)))

    def end(self) -> None:
        """The invariants over the whole table."""
        self._ended.result(_ROW)

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)
        if self._began.done() and not self._began.exception():
            self._began.result()[1].close()
        command("down", self._name)

    # --- on the table's own thread ----------------------------------------------------------------

    def _begin(self) -> tuple[Scene, FaultProxy]:
        command("reset", self._name)
        command("up", self._name, "--no-bridge", "--min-job-age", "7200")
        proxy = FaultProxy(Stack(self._name).facts["slurm_url"])
        settings = _SETTINGS | {"slurmRestApi": proxy.url}
        sets = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        command("up", self._name, "--bridge", *sets)
        stack = Stack(self._name)
        stack.wait_leading()
        scene = Scene(stack, Kube(stack.facts["kubeconfigs"]["admin"]), Slurm(stack))
        for i in range(PODS):
            scene.create(k.pod(f"chosen-{i}"))
        scene.slurm.sbatch("--constraint=slurmd", script=f"sleep {len(ROWS) * _ROW:.0f}")
        scene.all_running(PODS, within=180)
        return scene, proxy

    def _change_to_held(self) -> None:
        """The token could do more, but the bridge is told to let Slurm number jobs: those of fifty other pods."""
        scene, _ = self._began.result()
        with _explained(scene.stack):
            command("up", self._name, "--set", "jobIds=held")
            scene.stack.wait_leading()
            scene.kube.must("DELETE", scene.pods_path)
            eventually("all pods are gone", lambda: not scene.pods(), within=60)
            for i in range(PODS):
                scene.create(k.pod(f"held-{i}"))
            pods = scene.all_running(PODS, within=180)
            assert all(k.job_label(pod) < CHOSEN_IDS for pod in pods)

    def _row(self, name: str, fault: Fault | None) -> float:
        scene, proxy = self._began.result()
        with _explained(scene.stack):
            scene.stack.heal()  # whatever the row before left
            bridge = scene.stack.pid("bridge")
            jobs = {k.uid(pod): k.job_label(pod) for pod in scene.pods() if k.phase(pod) == "Running"}
            scene.create(k.pod(f"ends-{name}"))
            ending = k.job_label(scene.running(f"ends-{name}"))
            assert len(jobs) >= PODS, f"only {len(jobs)} pods have survived the rows before"
            with proxy.failing(fault) if fault else scene.stack.stopped("slurmctld"):
                scene.create(k.pod(f"during-{name}"))
                scene.finish(f"ends-{name}", 3)
                scene.ended(f"ends-{name}")
                scene.delete(f"ends-{name}")  # and with it all that anybody but the bridge knows of its end
                throughout(
                    "every running pod is left alone", SECONDS, lambda: _unharmed(scene, jobs), every=1.0
                )
                assert fault is None or proxy.faulted, "not a single request met the fault"
            over = time.monotonic()
            scene.create(k.pod(f"after-{name}"))
            for new in (f"during-{name}", f"after-{name}"):
                pod = scene.running(new, within=RECOVERY - (time.monotonic() - over), promised=True)
                jobs[k.uid(pod)] = k.job_label(pod)
            recovered = time.monotonic() - over
            ended = scene.job_becomes(ending, "FAILED", within=RECOVERY - recovered)
            assert ended.exit_code == 3, f"{name}: job {ending}, whose pod failed meanwhile, ended otherwise"

            assert scene.stack.pid("bridge") == bridge
            assert scene.stack.runs("bridge")
            assert _unharmed(scene, jobs)
            eventually("each pod has its job and no other", lambda: _one_each(scene, jobs))
            scene.check()
            return recovered

    def _end(self) -> None:
        scene, _ = self._began.result()
        with _explained(scene.stack):
            scene.close()
        scene.kube.close()
        scene.slurm.close()
        scene.stack.close()


def _unharmed(scene: Scene, uids: dict[str, int]) -> bool:
    alive = {
        k.uid(p) for p in scene.pods() if k.phase(p) == "Running" and "deletionTimestamp" not in p["metadata"]
    }
    return uids.keys() <= alive


def _one_each(scene: Scene, jobs: dict[str, int]) -> bool:
    live = scene.slurm.live_jobs_of(*jobs)
    return all(job.running for job in live) and sorted(job.id for job in live) == sorted(jobs.values())


@contextmanager
def _explained(stack: Stack) -> Iterator[None]:
    """What the bridge said belongs to a failure; by the time it is told it has said much else."""
    try:
        yield
    except Exception as error:
        error.add_note(f"bridge of stack {stack.name}:\n{stack.log_tail()}")
        raise
