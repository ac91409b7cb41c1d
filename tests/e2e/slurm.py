"""A thin client of slurmrestd with the bridge's token, which sees every job. Only tests read the whole job list."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.stack import Stack
from tests.e2e.waiting import eventually

ENDED = {
    "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY",
}  # fmt: skip
PARTITION = "slurm-bridge"
CHOSEN_IDS = 0x02000000  # where ids begin that a bridge chooses


@dataclass(frozen=True)
class Job:
    id: int
    states: frozenset[str]
    nodes: str  # Slurm's hostlist; one name for a job of one node
    reason: str
    exit_code: int
    submitted: int
    started: int
    ended: int
    gpus: frozenset[tuple[str, int]]  # node and index; empty unless it runs on one node
    mark: dict[str, Any]  # the bridge's part of the mark; {} for a job of others
    comment: str
    excluded: str  # Slurm's hostlist
    memory: int  # MiB of its node
    time_limit: int  # minutes
    tasks: int
    cpus: int  # of all its nodes

    @property
    def stillborn(self) -> bool:
        """An immediate allocation that found no room, or whose caller was gone when slurmctld made it; or one that
        Slurm numbered and that was never let go, as its pod names another."""
        double = self.id < CHOSEN_IDS and "CANCELLED" in self.states and not self.nodes
        return double or ("FAILED" in self.states and (not self.nodes or self.reason == "RaisedSignal"))

    @property
    def live(self) -> bool:
        return not self.states & ENDED

    @property
    def running(self) -> bool:
        return "RUNNING" in self.states

    @property
    def uids(self) -> set[str]:
        return set(self.mark.get("uids", ()))


class Slurm:
    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._token = Path(stack.facts["token_file"])
        self._http = httpx.Client(
            base_url=f"{stack.facts['slurm_url']}/slurm/{stack.facts['slurm_api']}/", timeout=60.0
        )
        self._natives: dict[int, bool] = {}  # made by this test → it ended them itself
        self.state = Path(stack.facts["slurm_conf"]).parents[2] / "var/lib/slurm/ctld"  # slurmctld's folder

    def close(self) -> None:
        self._http.close()

    def ask(self, method: str, path: str, body: object = None) -> httpx.Response:
        headers = {"X-SLURM-USER-TOKEN": self._token.read_text().strip()}
        return self._http.request(method, path, json=body, headers=headers)

    def books(self, number: int) -> bytes:
        """What accounting says of a job, as it says it; b"" where there is none."""
        facts = self._stack.facts
        if not facts["options"]["accounting"]:
            return b""
        reply = self.ask("GET", f"{facts['slurm_url']}/slurmdb/{facts['slurm_api']}/job/{number}")
        return reply.content if reply.is_success else b""

    # --- looks ------------------------------------------------------------------------------------

    def job(self, number: int) -> Job | None:
        reply = self.ask("GET", f"job/{number}")
        if reply.status_code == 404:
            return None
        assert reply.is_success, f"job {number}: {reply.status_code} {reply.text[:300]}"
        return _job(reply.json()["jobs"][0])

    def jobs(self) -> list[Job]:
        reply = self.ask("GET", "jobs/")
        assert reply.is_success, f"all jobs: {reply.status_code} {reply.text[:300]}"
        return [_job(job) for job in reply.json()["jobs"]]

    def jobs_of(self, *uids: str) -> list[Job]:
        """Every job, live or ended, whose mark names one of these pods."""
        return [job for job in self.jobs() if job.uids & set(uids)]

    def live_jobs_of(self, *uids: str) -> list[Job]:
        return [job for job in self.jobs_of(*uids) if job.live]

    def changes_since(self, moment: int) -> int:
        """How many jobs slurmctld sends to one who saw them all at `moment`: none, or every one."""
        return len(self.ask("GET", f"jobs/?update_time={moment}").json()["jobs"])

    def last_update(self) -> int:
        return int(self.ask("GET", "jobs/").json()["last_update"]["number"])

    # --- what people do ---------------------------------------------------------------------------

    def sbatch(self, *words: str, script: str = "sleep 600") -> int:
        """A native job, ended after the test, which must find it untouched."""
        number = int(self._stack.run("sbatch", "--parsable", *words, "--wrap", script))
        self._natives[number] = False
        return number

    def submit(self, **job: Any) -> int:
        """A job without a script, with whatever id and mark the test gives it."""
        body = {"partition": PARTITION, "flags": ["EXTERNAL_JOB"], "name": "e2e", **job}
        reply = self.ask("POST", "job/submit", {"job": body})
        assert reply.is_success, f"submit: {reply.status_code} {reply.text[:500]}"
        number = int(reply.json()["job_id"])
        self._natives[number] = False
        return number

    def scancel(self, number: int) -> None:
        if number in self._natives:
            self._natives[number] = True
        self._stack.run("scancel", str(number))

    def saves(self) -> None:
        """Returns once slurmctld has written down all that has happened so far, as it does every few seconds."""
        bookmark, text = self.submit(hold=True), f"saved-{time.time()}"
        self._stack.run("scontrol", "update", f"jobid={bookmark}", f"comment={text}")
        eventually("slurmctld has saved the jobs", lambda: text.encode() in self._saved())

    def _saved(self) -> bytes:
        """slurmctld puts a new file in the place of the old one, and for a moment there is none."""
        try:
            return (self.state / "job_state").read_bytes()
        except FileNotFoundError:
            return b""

    def disown(self, number: int) -> None:
        """The bridge is expected to end this job."""
        self._natives[number] = True

    def harmed(self) -> list[str]:
        """Native jobs of this test that somebody else has ended."""
        found = {number: self.job(number) for number, own in self._natives.items() if not own}
        return [
            f"job {number} is {'+'.join(sorted(job.states)) if job else 'gone'}"
            for number, job in found.items()
            if job is None or job.states & {"CANCELLED", "FAILED"}
        ]

    def clean(self) -> None:
        for number in self._natives:
            self._stack.run("scancel", str(number), check=False)
        self._natives.clear()


def _job(raw: dict[str, Any]) -> Job:
    try:
        mark = json.loads(raw["admin_comment"])["bridge"]
    except (ValueError, KeyError, TypeError):
        mark = {}
    return Job(
        id=raw["job_id"],
        states=frozenset(raw["job_state"]),
        nodes=raw["nodes"],
        reason=raw["state_reason"],
        exit_code=raw["exit_code"]["return_code"]["number"],
        submitted=raw["submit_time"]["number"],
        started=raw["start_time"]["number"],
        ended=raw["end_time"]["number"],
        gpus=frozenset((raw["nodes"], index) for text in raw["gres_detail"] for index in _indices(text)),
        mark=mark,
        comment=raw["comment"],
        excluded=raw["excluded_nodes"],
        memory=raw["memory_per_node"]["number"],
        time_limit=raw["time_limit"]["number"],
        tasks=raw["tasks"]["number"],
        cpus=raw["cpus"]["number"],
    )


def _indices(text: str) -> set[int]:
    """ "gpu:h100:3(IDX:0-1,5)" → {0, 1, 5}."""
    found = re.search(r"\(IDX:([\d,-]+)\)", text)
    return parse_indices(found[1]) if found else set()


def parse_indices(text: str) -> set[int]:
    """ "0-1,5" → {0, 1, 5}."""
    indices: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        indices |= set(range(int(first), int(last or first) + 1))
    return indices
