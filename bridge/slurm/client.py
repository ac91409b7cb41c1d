"""The client of slurmrestd: one method a request. Raises only classes of bridge.errors (table: faults.py).

In: SlurmSettings, and a transport in tests. Out: values of core.model. What must stay true: `states` gives the whole
list or raises; it never gives a part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import httpx

from bridge.config import SlurmSettings
from bridge.core import identity
from bridge.core.checkup import SlurmSetup
from bridge.core.model import JobId, JobRecord, JobSpec, Mark, Partition, SlurmNode, States
from bridge.errors import Busy, Denied, Invalid, ProtocolError, RefusedError, UserError
from bridge.slurm import faults, translate, wire
from bridge.slurm.nodes import NodeRequests
from bridge.slurm.rest import Observe, Rest
from bridge.slurm.rights import Rights

FIRST_WITH_CONF: Final = (
    45  # GET conf, which tells the boot; before that /diag tells when its statistics began
)
MIN_JOB_AGE: Final = 300  # Slurm's own default
PING_TIMEOUT: Final = 2.0  # seconds; 2 ms when all is well, 60 ms when slurmctld is down


class SlurmClient(Rest):
    """Jobs, and slurmctld itself; `nodes` has the requests about nodes."""

    def __init__(
        self,
        settings: SlurmSettings,
        transport: httpx.AsyncBaseTransport | None = None,
        observe: Observe | None = None,
    ) -> None:
        super().__init__(settings, transport, observe)
        self.rights = Rights(settings.jobIds, self.token)
        self.nodes = NodeRequests(self, settings.readTimeout)
        self.preempts = ""  # PreemptType; "" = not known (before v0.0.45)
        self.min_job_age = MIN_JOB_AGE  # seconds that slurmctld remembers a job that ended, as far as it says
        self.slurm_time = 0.0  # slurmctld's own clock when it was last asked for its boot time; 0.0 = never

    def stranger(self) -> str:
        """Why nothing may be written with this token, "" = all is well."""
        return self.rights.stranger()

    # --- reads ------------------------------------------------------------------------------------

    async def ping(self, timeout: float = PING_TIMEOUT) -> bool:
        """Does slurmctld answer slurmrestd? Cheap even if it doesn't. Raises when slurmrestd itself fails."""
        answer = await self.read("ping/", "ping/", wire.PingAnswer, lane=self.polls, timeout=timeout)
        return any(p.responding for p in answer.pings)

    async def boot_time(self) -> float:
        """Unix seconds of slurmctld's start; another value = another boot.

        Before v0.0.45 it is the time from which /diag counts. That also moves at midnight UTC and at
        `sdiag --reset`, which then looks like a boot: that costs a grace, a missed boot would cost pods.
        """
        await self.connected()
        if self._version >= FIRST_WITH_CONF:
            conf = await self.read("conf", "conf", wire.ConfAnswer, lane=self.polls)
            boot = float(conf.slurm_conf_meta.BOOT_TIME)
            self.slurm_time = float(conf.slurm_conf_meta.LastUpdate)
            self.rights.learn(conf.slurm_conf)
            self.preempts = conf.slurm_conf.PreemptType
            self.min_job_age = conf.slurm_conf.MinJobAge or MIN_JOB_AGE
        else:
            diag = await self.read("diag/", "diag/", wire.DiagAnswer, lane=self.polls)
            boot = diag.statistics.req_time_start.value
            self.slurm_time = diag.statistics.req_time.value
        if not boot:  # in its first second slurmctld doesn't say
            raise Busy("slurmctld does not say yet when it started")
        return boot

    async def states(self) -> dict[JobId, States]:
        """Every job that Slurm has, native ones too. Empty is what Slurm said, never a failed question."""
        answer = await self.read("jobs/state/", "jobs/state/", wire.StatesAnswer, lane=self.polls)
        try:
            return translate.states(answer)
        except ValueError as error:
            raise ProtocolError(f"GET jobs/state/: a job id that is none: {error}") from error

    async def job(self, job: JobId) -> JobRecord:
        """One full read. NotFound: Slurm itself says that it has no such job now."""
        answer = await self.read("job/{id}", f"job/{job}", wire.JobAnswer, lane=self.reads)
        try:
            found = translate.whole(answer, job)
        except UserError as error:
            raise ProtocolError(f"GET job/{job}: {error}") from error
        if found is None:
            raise ProtocolError(f"GET job/{job}: the answer holds {len(answer.jobs)} jobs and not this one")
        return found

    async def accounted(self, job: JobId, timeout: float) -> JobRecord | None:
        """What Slurm's accounting has under this id, of the last submit. None: nothing of this Slurm cluster."""
        ask: dict[str, Any] = {"lane": self.accounts, "timeout": timeout, "base": "slurmdb"}
        answer = await self.read("slurmdb/job/{id}", f"job/{job}", wire.AccountedAnswer, **ask)
        return translate.accounted(answer, job)

    async def unsent(self) -> int:
        """Messages for slurmdbd that slurmctld has not sent yet: what the accounting says may be out of date."""
        diag = await self.read("diag/", "diag/", wire.DiagAnswer, lane=self.polls)
        return diag.statistics.dbd_agent_queue_size

    async def graces_of_qos(self, timeout: float) -> dict[str, float]:
        """Seconds that a preempted job has left, by QOS; Slurm's accounting tells."""
        ask: dict[str, Any] = {"lane": self.accounts, "timeout": timeout, "base": "slurmdb"}
        answer = await self.read("slurmdb/qos/", "qos/", wire.QosAnswer, **ask)
        return {q.name: float(q.limits.grace_time) for q in answer.qos}

    async def partitions(self) -> dict[str, Partition]:
        """By name."""
        answer = await self.read("partitions/", "partitions/", wire.PartitionsAnswer, lane=self.polls)
        return {p.name: translate.partition(p) for p in answer.partitions}

    async def setup(self) -> SlurmSetup | None:
        """slurmctld's configuration, as far as pods depend on it. None: before v0.0.45 it is not told."""
        await self.connected()
        if self._version < FIRST_WITH_CONF:
            return None
        return translate.setup(await self.read("conf", "conf", wire.ConfAnswer, lane=self.polls))

    # --- writes -----------------------------------------------------------------------------------

    async def submit(self, job: JobId, spec: JobSpec) -> translate.Submitted:
        """Queue the job under the id that we chose. Conflict: that id exists already, ours or not."""
        await self.connected()
        return await self._submit("job/submit", job, translate.submit_body(job, spec, self._version))

    async def submit_held(self, spec: JobSpec) -> translate.Submitted:
        """Queue the job under an id of Slurm's own, held: it does not run before `unhold`."""
        await self.connected()
        try:
            return await self._submit("job/submit", None, translate.held_body(spec, self._version))
        except Denied as error:
            error.saying(self.rights.refusal(error.said or str(error)))
            raise

    async def unhold(self, job: JobId) -> None:
        """Let a held job run."""
        await self._update(job, {"hold": False})

    async def update_priority(self, job: JobId, priority: int) -> None:
        """Of a job that waits; refused while it is held."""
        await self._update(job, {"priority": translate.number(priority)})

    async def allocate(self, job: JobId, spec: JobSpec) -> translate.Submitted:
        """Place the job now or not at all: on return it is RUNNING. Its owner is the token's user, always.

        Invalid with code 2016 (no room now), 2013 (others come first), 2014 or 2015 (never): Slurm then keeps
        a FAILED record under this id.
        """
        await self.connected()
        return await self._submit("job/allocate", job, translate.allocate_body(job, spec, self._version))

    async def _submit(self, route: str, job: JobId | None, body: wire.Body) -> translate.Submitted:
        answer = await self.write("POST", route, route, wire.SubmitAnswer, body, self._settings.submitTimeout)
        warnings = tuple(w.description for w in answer.warnings)
        if answer.job_submit_user_msg:
            warnings += (answer.job_submit_user_msg,)
        if not answer.job_id:
            reasons = "; ".join(warnings) or faults.describe(answer.errors) or "no reason given"
            raise Invalid(f"POST {route}: nothing was submitted: {reasons}", status=200)
        if job is not None and answer.job_id != job:
            raise ProtocolError(
                f"POST {route}: asked for job {job}, got {answer.job_id}; the token must be SlurmUser's",
                status=200,
            )
        return translate.Submitted(job_id=JobId(answer.job_id), warnings=warnings)

    async def cancel(self, job: JobId, comment: str = "", mark: Mark | None = None) -> None:
        """End the job. Returns when it ended or Slurm knows no live one. Comment and mark, if given, go first."""
        first: wire.Body = {"comment": translate.fitting(comment)} if comment else {}
        if mark is not None:
            first["admin_comment"] = identity.render(mark)
        if first:
            with suppress(RefusedError):  # ended or unknown: the DELETE decides
                await self._update(job, first)
        what = f"DELETE job/{job}"
        answer = await self.write(
            "DELETE", "job/{id}", f"job/{job}", wire.KillAnswer, None, self._settings.readTimeout
        )
        for status in answer.status:
            if status.error.code and status.error.code not in faults.GONE:
                text = f"{what}: {status.error.string} ({status.error.code})"
                raise faults.from_number(text, status.error.code, status=200)

    async def update_comment(self, job: JobId, text: str) -> None:
        """Set the job's `comment`, as much of it as Slurm takes; its admin_comment is our mark and stays."""
        await self._update(job, {"comment": translate.fitting(text)})

    async def update_mark(self, job: JobId, mark: Mark) -> None:
        """Another admin_comment for a live job: it is ours from then on."""
        await self._update(job, {"admin_comment": identity.render(mark)})

    async def update_excluded(self, job: JobId, nodes: Sequence[SlurmNode]) -> None:
        """The nodes that a waiting job must not get. An empty list would change nothing: one empty name clears it."""
        await self._update(job, {"excluded_nodes": translate.node_list(nodes)})

    async def _update(self, job: JobId, body: wire.Body) -> None:
        answer = await self.write(
            "POST", "job/{id}", f"job/{job}", wire.UpdateAnswer, body, self._settings.readTimeout
        )
        for result in answer.results or ():
            if result.error_code:
                what = f"POST job/{job}: {result.error} ({result.error_code})"
                raise faults.from_number(what, result.error_code, status=200)
