"""deploy/slurm/handover itself, run as slurmctld runs it, against a bridge of a few lines."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "deploy" / "slurm" / "handover"
OURS, NATIVE = "33554432", "4711"
CLEAR = '200 OK|{"clear":true}'
BUSY = '200 OK|{"clear":false,"holders":["ns/old on n1: gpu 0-7"]}'
UNKNOWN = '503 Service Unavailable|{"error":"not yet"}'
SILENCE = ""  # the connection is taken, and nothing comes


class Bridge:
    """Gives one answer after the other, the last one for ever."""

    def __init__(self) -> None:
        self.answers: Sequence[str] = (CLEAR,)
        self.asked: list[str] = []
        self.address = ""
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.asked.append(" ".join(head.split()[:2]))
        answer = self.answers[min(len(self.asked), len(self.answers)) - 1]
        if answer == SILENCE:
            await reader.read()  # until the other side has had enough
        else:
            status, _, body = answer.partition("|")
            writer.write(f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
        writer.close()


WALL = """
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long ahead(void) {
    long seconds = 0;
    FILE *file = fopen(getenv("AHEAD"), "r");
    if (file && fscanf(file, "%ld", &seconds) != 1) seconds = 0;
    if (file) fclose(file);
    return seconds;
}
int gettimeofday(struct timeval *found, void *zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    found->tv_sec = now.tv_sec + ahead();
    found->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *found) {
    struct timeval now;
    gettimeofday(&now, 0);
    if (found) *found = now.tv_sec;
    return now.tv_sec;
}
"""


@dataclass
class Wall:
    file: Path
    environment: dict[str, str]

    def jump(self, seconds: int) -> None:
        self.file.write_text(str(seconds))


@dataclass
class Run:
    status: int
    said: str
    seconds: float


@pytest.fixture
async def bridge() -> AsyncIterator[Bridge]:
    found = Bridge()
    await found.start()
    yield found
    await found.stop()


@pytest.fixture
def wall(tmp_path: Path) -> Wall:
    """A wall clock that can be set, for a program that is run with `wall.environment`."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("needs a C compiler")
    source, library = tmp_path / "wall.c", tmp_path / "wall.so"
    source.write_text(WALL)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return Wall(tmp_path / "ahead", {"LD_PRELOAD": str(library), "AHEAD": str(tmp_path / "ahead")})


async def run(environment: dict[str, str], program: Path = PROGRAM) -> Run:
    """With nothing but this in its environment, as slurmctld does it, and all that it says on one pipe."""
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        program,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        # The pipe ends when nobody has it any more: a child left over would hold it.
        said, _ = await asyncio.wait_for(process.communicate(), 30)
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode is not None
    return Run(process.returncode, said.decode(), time.monotonic() - began)


async def prolog(bridge: Bridge, job: str = NATIVE, program: Path = PROGRAM, **settings: str) -> Run:
    slurm = {"SLURM_SCRIPT_CONTEXT": "prolog_slurmctld", "SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": "n[1-2]"}
    return await run(
        {"SLURM_BRIDGE": bridge.address, "SLURM_BRIDGE_LOG": "/dev/stderr"} | slurm | settings, program
    )


async def test_a_native_job_whose_gpus_are_clear_starts_after_one_question(bridge: Bridge) -> None:
    done = await prolog(bridge)
    assert (done.status, done.said) == (0, "")
    assert bridge.asked == [f"GET /slurm/handover?job={NATIVE}&nodes=n[1-2]"]
    assert done.seconds < 1


async def test_a_native_job_waits_until_its_gpus_are_clear(bridge: Bridge) -> None:
    bridge.answers = (BUSY, UNKNOWN, CLEAR)
    done = await prolog(bridge)
    assert (done.status, len(bridge.asked)) == (0, 3)
    assert "waits for its GPUs" in done.said
    assert "ns/old on n1: gpu 0-7" in done.said
    assert "are clear after" in done.said


@pytest.mark.parametrize(
    ("fail", "status", "word"), [("open", 0, "starts all the same"), ("closed", 1, "may not")]
)
async def test_a_wait_ends_at_its_bound_in_the_way_the_site_has_chosen(
    bridge: Bridge, fail: str, status: int, word: str
) -> None:
    bridge.answers = (BUSY,)
    done = await prolog(bridge, SLURM_BRIDGE_WAIT="1", SLURM_BRIDGE_FAIL=fail)
    assert done.status == status
    assert word in done.said
    assert "ns/old" in done.said.splitlines()[-1]
    assert done.seconds < 5


@pytest.mark.parametrize("seconds", [3600, -3600])
async def test_a_wall_clock_that_jumps_neither_ends_a_wait_nor_makes_it_longer(
    bridge: Bridge, wall: Wall, seconds: int
) -> None:
    bridge.answers = (BUSY,)
    waits = asyncio.ensure_future(prolog(bridge, NATIVE, PROGRAM, SLURM_BRIDGE_WAIT="4", **wall.environment))
    await asyncio.sleep(1.5)
    wall.jump(seconds)
    done = await waits
    assert 3.0 < done.seconds < 8.0


def by_its_own_clock(folder: Path) -> tuple[Path, Path]:
    """The program, and the file that it takes for the machine's uptime."""
    program, clock = folder / "handover", folder / "uptime"
    program.write_text(PROGRAM.read_text().replace("/proc/uptime", str(clock)))
    program.chmod(0o755)
    return program, clock


@pytest.mark.parametrize("told", [None, "", "soon 1.0\n"], ids=["none", "empty", "odd"])
async def test_without_a_clock_a_wait_is_as_long_as_its_pauses(
    bridge: Bridge, tmp_path: Path, told: str | None
) -> None:
    program, clock = by_its_own_clock(tmp_path)
    if told is not None:
        clock.write_text(told)
    bridge.answers = (BUSY,)
    done = await prolog(bridge, program=program, SLURM_BRIDGE_WAIT="2")
    assert 1.9 < done.seconds < 6.0
    assert len(bridge.asked) == 3
    assert "uptime" not in done.said


async def test_a_clock_that_is_lost_for_a_moment_ends_no_wait(bridge: Bridge, tmp_path: Path) -> None:
    program, clock = by_its_own_clock(tmp_path)
    bridge.answers = (BUSY,)
    waits = asyncio.ensure_future(prolog(bridge, program=program, SLURM_BRIDGE_WAIT="30"))
    await asyncio.sleep(0.5)
    clock.write_text("100000.50 7.00\n")
    await asyncio.sleep(1.5)
    assert not waits.done()
    clock.write_text("100040.50 7.00\n")
    done = await waits
    assert "not clear" in done.said.splitlines()[-1]
    assert done.seconds < 6.0


@pytest.mark.parametrize("answers", [(SILENCE,), (UNKNOWN,), ("404 Not Found|",)], ids=["hung", "503", "404"])
async def test_a_bridge_that_says_nothing_useful_is_waited_for_less_long(
    bridge: Bridge, answers: tuple[str, ...]
) -> None:
    bridge.answers = answers
    done = await prolog(bridge, SLURM_BRIDGE_SILENT="1", SLURM_BRIDGE_WAIT="600")
    assert done.status == 0
    assert "does not answer: it starts all the same" in done.said
    assert done.seconds < 8


async def test_a_bridge_that_is_away_holds_up_nobody_for_longer_than_that(bridge: Bridge) -> None:
    await bridge.stop()
    done = await prolog(bridge, SLURM_BRIDGE_SILENT="0")
    assert done.status == 0
    assert "does not answer" in done.said
    assert done.seconds < 2


@pytest.mark.parametrize(
    "told",
    [
        {"SLURM_SCRIPT_CONTEXT": "prolog_slurmctld", "SLURM_JOB_ID": OURS},
        {"SLURM_SCRIPT_CONTEXT": "epilog_slurmctld", "SLURM_JOB_ID": OURS},
        {"JOBID": OURS, "JOBSTATE": "CANCELLED"},
    ],
    ids=["prolog", "epilog", "jobcomp"],
)
async def test_a_job_of_the_bridge_is_hinted_and_waits_for_nothing(
    bridge: Bridge, told: dict[str, str]
) -> None:
    bridge.answers = ("204 No Content|",)
    done = await run({"SLURM_BRIDGE": bridge.address} | told)
    assert (done.status, done.said) == (0, "")
    assert bridge.asked == [f"POST /slurm/hint?job={OURS}"]


@pytest.mark.parametrize(
    "told", [{"SLURM_SCRIPT_CONTEXT": "epilog_slurmctld", "SLURM_JOB_ID": NATIVE}, {"JOBID": NATIVE}]
)
async def test_the_end_of_a_native_job_is_nobodys_business(bridge: Bridge, told: dict[str, str]) -> None:
    done = await run({"SLURM_BRIDGE": bridge.address} | told)
    assert (done.status, done.said, bridge.asked) == (0, "", [])


async def test_where_slurm_numbers_the_bridges_jobs_every_end_is_hinted_and_every_start_asked(
    bridge: Bridge,
) -> None:
    await prolog(bridge, SLURM_BRIDGE_JOBS="any")
    await run({"SLURM_BRIDGE": bridge.address, "SLURM_BRIDGE_JOBS": "any", "JOBID": NATIVE})
    assert bridge.asked == [
        f"GET /slurm/handover?job={NATIVE}&nodes=n[1-2]",
        f"POST /slurm/hint?job={NATIVE}",
    ]


async def test_a_job_of_the_bridge_never_fails_for_want_of_it(bridge: Bridge) -> None:
    await bridge.stop()
    assert (await prolog(bridge, OURS, SLURM_BRIDGE_FAIL="closed")).status == 0


async def test_settings_stand_in_a_file_that_is_read_and_never_executed(
    bridge: Bridge, tmp_path: Path
) -> None:
    program, trap = tmp_path / "handover", tmp_path / "executed"
    program.write_text(PROGRAM.read_text())
    program.chmod(0o755)
    (tmp_path / "handover.conf").write_text(
        f"# the bridge\nSLURM_BRIDGE={bridge.address}\r\nSLURM_BRIDGE_JOBS=4000-5000\n"
        f"SLURM_BRIDGE_WAIT=$(touch {trap})\nPATH=/nowhere\ntouch {trap}\nSLURM_BRIDGE_WAIT[$(touch {trap})]=1\n"
    )
    done = await run({"SLURM_SCRIPT_CONTEXT": "prolog_slurmctld", "SLURM_JOB_ID": NATIVE}, program)
    assert (done.status, done.said) == (0, "")
    assert bridge.asked == [f"POST /slurm/hint?job={NATIVE}"]
    assert not trap.exists()


async def test_without_settings_the_hook_does_nothing() -> None:
    done = await run({"SLURM_SCRIPT_CONTEXT": "prolog_slurmctld", "SLURM_JOB_ID": NATIVE})
    assert (done.status, done.said) == (0, "")
