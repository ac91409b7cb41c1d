"""What Slurm's hooks are answered, and what an unknown sender can't do: real HTTP in and out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest

from bridge.core.ledger import Claim
from bridge.core.model import JobId
from bridge.errors import Unreachable
from bridge.web.app import App
from bridge.web.extender import Extender
from bridge.web.hooks import HINTS_PER_SECOND, LISTS_PER_SECOND, MOST_LISTS, READS_PER_SECOND
from bridge.web.pages import pages
from tests.web.slurm_side import HOLDER, NATIVE, OURS, SlurmSide
from tests.web.test_extender import View, Writer

CLAIM = Claim(holder=HOLDER, gpus="0-1")


@pytest.fixture
def side() -> SlurmSide:
    return SlurmSide()


@pytest.fixture
async def http(side: SlurmSide) -> AsyncIterator[httpx.AsyncClient]:
    app = App(Extender(View(), Writer()), side.hooks, pages(list, list))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://bridge") as client:
        yield client


async def ask(http: httpx.AsyncClient, job: int = NATIVE, nodes: str = "n1") -> tuple[int, object]:
    answer = await http.get(f"/slurm/handover?job={job}&nodes={nodes}")
    return answer.status_code, answer.json()


# --- hints ----------------------------------------------------------------------------------------


async def test_a_hint_makes_us_look_at_a_job_of_ours(http: httpx.AsyncClient, side: SlurmSide) -> None:
    answer = await http.post(f"/slurm/hint?job={OURS}")
    assert (answer.status_code, answer.content) == (204, b"")
    assert side.hinted == [OURS]


async def test_a_hint_about_a_job_of_others_is_ignored(http: httpx.AsyncClient, side: SlurmSide) -> None:
    assert (await http.post(f"/slurm/hint?job={NATIVE}")).status_code == 204
    assert side.hinted == []


async def test_a_flood_of_hints_is_refused_until_time_has_passed(
    http: httpx.AsyncClient, side: SlurmSide
) -> None:
    answers = [(await http.post(f"/slurm/hint?job={OURS}")).status_code for _ in range(150)]
    assert answers.count(204) == len(side.hinted) == HINTS_PER_SECOND
    assert set(answers[int(HINTS_PER_SECOND) :]) == {429}
    side.now += 0.5
    assert (await http.post(f"/slurm/hint?job={OURS}")).status_code == 204


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("POST", "hint", 400),
        ("POST", "hint?job=", 400),
        ("POST", "hint?job=-5", 400),
        ("POST", "hint?job=1e3", 400),
        ("POST", "hint?job=99999999999999999999", 400),
        ("POST", "hint?job=%D9%A1", 400),
        ("GET", "hint?job=1500", 404),
        ("POST", "handover?job=1500", 404),
        ("GET", "elsewhere?job=1500", 404),
    ],
)
async def test_what_no_hook_sends_is_refused_without_a_look(
    http: httpx.AsyncClient, side: SlurmSide, method: str, target: str, status: int
) -> None:
    answer = await http.request(method, f"/slurm/{target}")
    assert answer.status_code == status
    assert answer.json()["error"]
    assert side.hinted == side.reads == []


# --- hand-over ------------------------------------------------------------------------------------


async def test_a_native_job_on_gpus_of_a_living_pod_is_told_who_holds_them(
    http: httpx.AsyncClient, side: SlurmSide
) -> None:
    side.claims = (CLAIM,)
    assert await ask(http) == (200, {"clear": False, "holders": ["ns/old on n1: gpu 0-1"]})
    side.claims = ()
    assert await ask(http) == (200, {"clear": True})


async def test_a_pod_that_no_watch_told_of_is_no_clear_gpu(http: httpx.AsyncClient, side: SlurmSide) -> None:
    """A watch may be cut off for a while before anybody notices; clear is said on the API server's word."""
    side.holders_on, side.unseen = set(), (HOLDER,)
    assert await ask(http) == (200, {"clear": False, "holders": ["ns/old on n1: gpu 0-1"]})
    side.unseen = ()
    assert await ask(http) == (200, {"clear": True})
    side.silent = Unreachable("no route")
    assert (await ask(http))[0] == 503


async def test_a_flood_of_questions_does_not_reach_the_api_server(
    http: httpx.AsyncClient, side: SlurmSide
) -> None:
    side.holders_on = set()
    answers = [(await ask(http, nodes="n[1-1000]"))[0] for _ in range(10)]
    assert answers == [200] * int(LISTS_PER_SECOND / MOST_LISTS) + [503] * (
        10 - int(LISTS_PER_SECOND / MOST_LISTS)
    )
    side.now += 1.0
    assert (await ask(http))[0] == 200


async def test_a_job_of_ours_is_clear_at_once(http: httpx.AsyncClient, side: SlurmSide) -> None:
    side.claims = (CLAIM,)
    assert await ask(http, OURS) == (200, {"clear": True})
    assert side.reads == []
    assert side.hinted == [OURS], "a job that starts is as good as a hint"


async def test_a_job_on_nodes_without_pods_costs_no_read(http: httpx.AsyncClient, side: SlurmSide) -> None:
    assert await ask(http, nodes="n[2-9]") == (200, {"clear": True})
    assert side.reads == []


async def test_a_hook_that_names_no_nodes_is_answered_too(http: httpx.AsyncClient, side: SlurmSide) -> None:
    side.claims = (CLAIM,)
    assert (await ask(http, nodes=""))[1] == {"clear": False, "holders": ["ns/old on n1: gpu 0-1"]}


async def test_a_waiting_job_is_read_once_however_often_it_asks(
    http: httpx.AsyncClient, side: SlurmSide
) -> None:
    side.claims = (CLAIM,)
    for _ in range(10):
        await ask(http)
        side.now += 1.0
    assert side.reads == [NATIVE]


async def test_a_job_that_starts_again_later_is_read_again(http: httpx.AsyncClient, side: SlurmSide) -> None:
    side.claims = (CLAIM,)
    await ask(http)
    side.now += 60.0
    await ask(http)
    assert len(side.reads) == 2


async def test_a_job_that_ended_under_its_prolog_waits_for_nothing(
    http: httpx.AsyncClient, side: SlurmSide
) -> None:
    assert side.record is not None
    side.claims = (CLAIM,)
    side.record = replace(side.record, states=frozenset({"CANCELLED"}))
    assert await ask(http) == (200, {"clear": True})


@pytest.mark.parametrize("trouble", ["blind", "unreachable", "absent", "without nodes", "broken list"])
async def test_what_cannot_be_told_is_never_clear(
    http: httpx.AsyncClient, side: SlurmSide, trouble: str
) -> None:
    nodes = "n1"
    match trouble:
        case "blind":
            side.why_blind = "watches are old"
        case "unreachable":
            side.failure = Unreachable("slurmrestd does not answer")
        case "absent":
            side.record = None
        case "without nodes":
            assert side.record is not None
            side.record = replace(side.record, nodes=())
        case "broken list":
            nodes = "n[1-"
    status, answer = await ask(http, nodes=nodes)
    assert status == 503
    assert isinstance(answer, dict)
    assert answer["error"]


async def test_a_failed_read_is_repeated_after_a_second_and_not_before(
    http: httpx.AsyncClient, side: SlurmSide
) -> None:
    side.failure = Unreachable("slurmrestd does not answer")
    for _ in range(5):
        assert (await ask(http))[0] == 503
    assert len(side.reads) == 1
    side.now, side.failure = side.now + 1.0, None
    assert await ask(http) == (200, {"clear": True})


async def test_a_flood_of_questions_does_not_reach_slurm(http: httpx.AsyncClient, side: SlurmSide) -> None:
    side.claims = (CLAIM,)
    answers = [(await ask(http, JobId(10_000 + i)))[0] for i in range(100)]
    assert answers.count(200) == len(side.reads) == READS_PER_SECOND
    assert answers.count(503) == 100 - READS_PER_SECOND
