"""One test's share of a stack: a namespace, a witness of everything that happens to its pods, and the invariants.

When a test is over `close` checks what must always hold and can be seen from outside, deletes the pods, and waits until
no job is left for them. What must hold: docs/design.md.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterable

import httpx

from bridge.core.model import Pod
from bridge.core.violation import Violation
from bridge.kube import view
from tests import patience
from tests.e2e import hindsight
from tests.e2e import kube as k
from tests.e2e.kube import Kube, Object
from tests.e2e.slurm import Job, Slurm
from tests.e2e.stack import Stack
from tests.e2e.waiting import EVERY, eventually

CLOSING_POD = "the-end"
# Seconds in which the sweep has ended a job whose pods went without a word: deathMargin, their grace, twice its pace.
ORPHANED = 150.0
# Seconds in which a pod runs. One with GPUs may wait for containers of an earlier test's pods, until their grace and
# deathMargin are over: a bridge that was started since knows of them by their jobs only.
RUNS, HAUNTED = 30.0, 150.0


class Witness:
    """Sees every state of every pod of a namespace, those that no test would be quick enough to ask for included."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self.bindings: dict[str, Object] = {}  # UID → the pod as it was when it first had a node
        self.last: dict[str, Object] = {}  # UID → its last state, also of pods that are gone
        self.gone: set[str] = set()
        self.events = 0
        self.shared: list[Violation] = []  # GPUs that two pods of the namespace had at one moment
        self._placed: dict[str, Pod] = {}
        self._path = f"/api/v1/namespaces/{namespace}/pods"
        self._kube = kube
        self._version = kube.must("GET", self._path)["metadata"]["resourceVersion"]
        self._thread = threading.Thread(target=self._look, name=f"witness of {namespace}", daemon=True)
        self._failure: Exception | None = None
        self._thread.start()

    @property
    def bound(self) -> int:
        """Pods that have, or had, a node."""
        return len(self.bindings)

    def finish(self) -> None:
        """Returns once everything that has happened so far has been seen."""
        closing = k.pod(CLOSING_POD, scheduler="nobody")
        self._kube.must("POST", self._path, closing)
        self._thread.join(20)
        assert self._failure is None, f"the watch of the test itself failed: {self._failure}"
        assert not self._thread.is_alive(), "the watch of the test itself hangs"

    def _look(self) -> None:
        try:
            while not self._follow():
                # The API server ended it, or ended itself: nothing is lost after the last version seen.
                time.sleep(EVERY)
        except Exception as error:  # told to the test by finish()
            self._failure = error

    def _follow(self) -> bool:
        """One connection. True if the closing pod was seen."""
        with contextlib.suppress(httpx.TransportError):
            for line in self._kube.watch(self._path, self._version):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return self._start_over(event["object"])
                if event["object"]["metadata"]["name"] == CLOSING_POD:
                    return True
                self._see(event["type"], event["object"])
        return False

    def _start_over(self, status: Object) -> bool:
        """An API server that was killed has forgotten its history (410): what it has now is the new beginning."""
        if status.get("code") != 410:
            raise RuntimeError(status["message"])
        listed = self._kube.must("GET", self._path)
        for uid in self.last.keys() - {k.uid(pod) for pod in listed["items"]}:
            self._lose(uid)
        for pod in listed["items"]:
            if pod["metadata"]["name"] != CLOSING_POD:
                self._see("MODIFIED", pod)
        self._version = listed["metadata"]["resourceVersion"]
        return any(pod["metadata"]["name"] == CLOSING_POD for pod in listed["items"])

    def _see(self, kind: str, pod: Object) -> None:
        uid = k.uid(pod)
        self.events += 1
        self._version = pod["metadata"]["resourceVersion"]
        self.last[uid] = pod
        if kind == "DELETED":
            self._lose(uid)
        elif k.node_of(pod):
            if hindsight.is_ours(pod):
                self._placed[uid] = view.pod_from_object(pod)
            if uid not in self.bindings:
                self.shared += hindsight.shared(self._placed.values(), time.time())
            self.bindings.setdefault(uid, pod)

    def _lose(self, uid: str) -> None:
        self.gone.add(uid)
        self._placed.pop(uid, None)


class Scene:
    def __init__(self, stack: Stack, kube: Kube, slurm: Slurm) -> None:
        self.stack, self.kube, self.slurm = stack, kube, slurm
        self.namespace = f"e2e-{uuid.uuid4().hex[:8]}"
        kube.namespace(self.namespace)
        self.pods_path = f"/api/v1/namespaces/{self.namespace}/pods"
        self.jobs_path = f"/apis/batch/v1/namespaces/{self.namespace}/jobs"
        self.witness = Witness(kube, self.namespace)

    # --- pods -------------------------------------------------------------------------------------

    def create(self, manifest: Object) -> str:
        """The new pod's UID."""
        return k.uid(self.kube.must("POST", self.pods_path, manifest))

    def find(self, name: str) -> Object | None:
        return self.kube.find(f"{self.pods_path}/{name}")

    def get(self, name: str) -> Object:
        found = self.find(name)
        assert found is not None, f"pod {name} is gone"
        return found

    def pods(self) -> list[Object]:
        return self.kube.items(self.pods_path)

    def delete(self, name: str, **options: object) -> None:
        self.kube.must("DELETE", f"{self.pods_path}/{name}", options or None)

    def patch(self, name: str, body: Object, *, subresource: str = "") -> Object:
        return self.kube.must("PATCH", f"{self.pods_path}/{name}{subresource}", body, kind=k.MERGE)

    def finish(self, name: str, exit_code: int = 0) -> None:
        """The container ends now, by kubelet's own word."""
        statuses = self.get(name)["status"]["containerStatuses"]
        state = {"terminated": {"exitCode": exit_code}}
        ended = [{**status, "state": state, "ready": False, "started": False} for status in statuses]
        phase = "Failed" if exit_code else "Succeeded"
        self.patch(name, {"status": {"phase": phase, "containerStatuses": ended}}, subresource="/status")

    def ungate(self, name: str) -> None:
        """As if the pod had come in without our gate."""
        self.patch(name, {"spec": {"schedulingGates": [{"name": k.GATE, "$patch": "delete"}]}})

    def when(
        self,
        name: str,
        what: str,
        true: Callable[[Object], object],
        within: float = 30.0,
        *,
        promised: bool = False,
    ) -> Object:
        """The pod, as soon as it is so."""

        def look() -> Object | None:
            pod = self.get(name)
            return pod if true(pod) else None

        found = eventually(f"{name}: {what}", look, within, promised=promised)
        assert found is not None
        return found

    def running(self, name: str, within: float = 0.0, *, promised: bool = False) -> Object:
        """`within` 0.0: as long as it may take if nothing is wrong."""
        patience = within or (HAUNTED if k.wants_gpus(self.get(name)) else RUNS)
        return self.when(
            name, "is Running", lambda pod: k.phase(pod) == "Running", patience, promised=promised
        )

    def ended(self, name: str, within: float = 30.0) -> Object:
        return self.when(name, "has ended", lambda pod: k.phase(pod) in ("Succeeded", "Failed"), within)

    def says(self, name: str, text: str, within: float = 90.0) -> str:
        """The message of the pod's condition SlurmJob, once `text` is in it. It is written once a minute at most."""

        def told(pod: Object) -> bool:
            shown = k.condition(pod, k.CONDITION)
            return shown is not None and text in shown["message"]

        pod = self.when(name, f"its condition says {text!r}", told, within)
        return str(k.shown(pod, k.CONDITION)["message"])

    def gone(self, name: str, within: float = 30.0) -> None:
        eventually(f"pod {name} is gone", lambda: self.find(name) is None, within)

    def all_running(self, count: int, within: float = HAUNTED, *, promised: bool = False) -> list[Object]:
        def look() -> list[Object]:
            pods = self.pods()
            running = [pod for pod in pods if k.phase(pod) == "Running"]
            return pods if len(pods) == len(running) == count else []

        return eventually(f"{count} pods are Running", look, within, every=0.2, promised=promised)

    def told(self, name: str, reason: str) -> str:
        """The message of the pod's Event of this reason, as soon as there is one."""
        path = f"/api/v1/namespaces/{self.namespace}/events"
        which = f"involvedObject.name={name},reason={reason}"
        found = eventually(
            f"an Event {reason} tells of {name}", lambda: self.kube.items(path, fieldSelector=which)
        )
        return str(found[0]["message"])

    def last_of(self, uid: str, within: float = 30.0) -> Object:
        """The last state of a pod that is gone."""
        eventually(f"the witness has seen pod {uid} go", lambda: uid in self.witness.gone, within)
        return self.witness.last[uid]

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        return self.stack.run("kubectl", "-n", self.namespace, *words, stdin=stdin)

    def is_refused(self, name: str) -> None:
        """kube-scheduler asks the bridge about an un-gated pod, and the answer is no."""

        def refusals() -> float:
            return self.stack.metric("slurm_bridge_extender_seconds_count", verb="filter", answer="refused")

        before = refusals()
        self.patch(name, {"metadata": {"labels": {"wake": "up"}}})  # every update makes it ask again
        eventually("kube-scheduler has asked and was refused", lambda: refusals() > before)
        assert not k.node_of(self.get(name))

    # --- jobs of pods -----------------------------------------------------------------------------

    def job_of(self, pod: Object) -> Job:
        """The job that the pod's label names."""
        job = self.slurm.job(k.job_label(pod))
        assert job is not None, f"Slurm has no job {k.job_label(pod)} for {pod['metadata']['name']}"
        return job

    def real_jobs_of(self, uids: Iterable[str]) -> list[Job]:
        """Every job that these pods ever had, but for allocations that came to nothing."""
        return [job for job in self.slurm.jobs_of(*uids) if not job.stillborn]

    def waiting_job(self, uid: str, within: float = 15.0) -> Job:
        """The one PENDING job that is marked with this pod."""

        def look() -> Job | None:
            jobs = self.slurm.live_jobs_of(uid)
            return jobs[0] if len(jobs) == 1 and "PENDING" in jobs[0].states else None

        found = eventually(f"one waiting job of {uid}", look, within)
        assert found is not None
        return found

    def job_becomes(self, number: int, *states: str, within: float = 30.0) -> Job:
        def look() -> Job | None:
            job = self.slurm.job(number)
            return job if job is not None and job.states & set(states) else None

        found = eventually(f"job {number} is {' or '.join(states)}", look, within)
        assert found is not None
        return found

    def no_live_jobs(self, uids: Iterable[str], within: float = 30.0, *, promised: bool = False) -> None:
        wanted = set(uids)
        eventually(
            "no job is left for pods that are gone",
            lambda: not [job for job in self.slurm.jobs() if job.live and job.uids & wanted],
            within, every=0.2, promised=promised,
        )  # fmt: skip

    def only(self, *nodes: str) -> dict[str, str]:
        """Options of a pod whose job can get just these nodes."""
        return {"exclude-nodes": ",".join(node for node in self.stack.nodes if node not in nodes)}

    # --- the end ----------------------------------------------------------------------------------

    def close(self) -> None:
        try:
            self.witness.finish()
            self.check()
            harmed = self.slurm.harmed()
            patience.broken += map(str, harmed)
            assert not harmed, f"native jobs were ended: {harmed}"
            self._remove_pods()
            self.no_live_jobs(self.witness.last, within=ORPHANED)
        finally:
            self.slurm.clean()
            self.kube.ask("DELETE", f"/api/v1/namespaces/{self.namespace}")

    def check(self) -> None:
        """The invariants, of this test's pods."""
        seen = self.witness
        story = hindsight.Story.of(seen.bindings, seen.last, seen.gone)
        broken = dict.fromkeys((*seen.shared, *hindsight.judge(story, self.kube, self.slurm, time.time())))
        patience.broken += map(str, broken)
        assert not broken, "what must always hold did not:\n" + "\n".join(map(str, broken))

    def _remove_pods(self) -> None:
        self.kube.must("DELETE", self.jobs_path, propagationPolicy="Background")
        self.kube.must("DELETE", self.pods_path)
        eventually("all pods of the test are gone", lambda: not self.pods(), within=90, every=0.2)
