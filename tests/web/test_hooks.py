"""What Slurm's hooks are answered, and what an unknown sender can't do: real HTTP in and out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest

from bridge.core.ledger import Claim
from bridge.core.model import JobId
from bridge.errors import Unreachable
from bridge.web import hooks
from bridge.web.app import App
from bridge.web.extender import Extender
from bridge.web.hooks import HINTS_PER_SECOND, LISTS_PER_SECOND, MOST_LISTS, NAMED, READS_PER_SECOND
from bridge.web.pages import pages
from tests.contract.slurm_fixture import MARK
from tests.web.slurm_side import HOLDER, NATIVE, NUMBERED, OURS, SlurmSide
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


@pytest.mark.parametrize(("cluster", "clear"), [("here", True), ("elsewhere", False), ("", False)])
async def test_of_a_job_with_a_number_of_slurms_only_its_mark_tells_that_it_is_ours(
    http: httpx.AsyncClient, side: SlurmSide, cluster: str, clear: bool
) -> None:
    assert side.record is not None
    side.claims = (CLAIM,)
    side.record = replace(side.record, mark=replace(MARK, cluster=cluster) if cluster else None)
    status, answer = await ask(http, NUMBERED)
    assert isinstance(answer, dict)
    assert (status, answer["clear"]) == (200, clear)


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


def in_trouble(side: SlurmSide, trouble: str) -> str:
    """The nodes that the hook names."""
    assert side.record is not None
    match trouble:
        case "blind":
            side.why_blind = "watches are old"
        case "unreachable":
            side.failure = Unreachable("slurmrestd does not answer")
        case "absent":
            side.record = None
        case "without nodes":
            side.record = replace(side.record, nodes=())
        case "hung":
            side.answers.clear()
        case "broken list":
            return "n[1-"
        case "no list":
            side.failure = Unreachable("slurmrestd does not answer")
            return ""
    return "n1"


@pytest.mark.parametrize("trouble", ["blind", "broken list", "no list"])
async def test_what_cannot_be_told_is_never_clear(
    http: httpx.AsyncClient, side: SlurmSide, trouble: str
) -> None:
    status, answer = await ask(http, nodes=in_trouble(side, trouble))
    assert status == 503
    assert isinstance(answer, dict)
    assert answer["error"]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for slurmrestd for long."""
    monkeypatch.setattr(hooks, "ANSWER", 0.1)


UNREAD = ["unreachable", "absent", "without nodes", "hung"]


@pytest.mark.parametrize("trouble", UNREAD)
@pytest.mark.parametrize("told", ["by the watch", "by the API server"])
async def test_a_job_that_cannot_be_read_waits_for_whoever_has_gpus_on_its_nodes(
    http: httpx.AsyncClient, side: SlurmSide, soon: None, trouble: str, told: str
) -> None:
    """The hook takes a 503 for a bridge that is away, and starts the job soon."""
    nodes = in_trouble(side, trouble)
    if told == "by the API server":
        side.holders_on, side.unseen = set(), (HOLDER,)
    for _ in range(2):  # at once again, when the job may not even be asked for
        assert await ask(http, nodes=nodes) == (200, {"clear": False, "holders": ["ns/old on n1: gpu 0-1"]})
    side.holders_on, side.unseen = set(), ()
    assert await ask(http, nodes=nodes) == (200, {"clear": True})


async def test_a_blind_bridge_still_names_those_that_it_saw(http: httpx.AsyncClient, side: SlurmSide) -> None:
    side.why_blind, side.claims = "watches are old", (CLAIM,)
    assert await ask(http) == (200, {"clear": False, "holders": ["ns/old on n1: gpu 0-1"]})
    side.failure, side.now = Unreachable("slurmrestd does not answer"), side.now + 60.0
    assert await ask(http) == (200, {"clear": False, "holders": ["ns/old on n1: gpu 0-1"]})
    side.holders_on = set()
    assert (await ask(http))[0] == 503


async def test_a_slow_read_is_waited_for_once_and_its_answer_is_taken(
    http: httpx.AsyncClient, side: SlurmSide, soon: None
) -> None:
    in_trouble(side, "hung")
    for _ in range(2):
        assert (await ask(http))[1] == {"clear": False, "holders": ["ns/old on n1: gpu 0-1"]}
        side.now += 2.0
    side.answers.set()
    assert await ask(http) == (200, {"clear": True})
    assert side.reads == [NATIVE]


async def test_a_job_that_had_no_nodes_when_it_was_read_is_read_again(
    http: httpx.AsyncClient, side: SlurmSide
) -> None:
    record = side.record
    in_trouble(side, "without nodes")
    await ask(http)
    side.record, side.now = record, side.now + 1.0
    assert await ask(http) == (200, {"clear": True})


async def test_an_answer_stays_short_however_many_are_in_the_way(
    http: httpx.AsyncClient, side: SlurmSide
) -> None:
    """bash reads it byte by byte, in the two seconds that the hook has for a request."""
    side.holders_on = {f"n{i}" for i in range(1, 1001)}
    in_trouble(side, "unreachable")
    status, answer = await ask(http, nodes="n[1-1000]")
    assert isinstance(answer, dict)
    assert (status, answer["clear"], len(answer["holders"])) == (200, False, NAMED)


async def test_a_failed_read_is_repeated_after_a_second_and_not_before(
    http: httpx.AsyncClient, side: SlurmSide
) -> None:
    side.failure = Unreachable("slurmrestd does not answer")
    for _ in range(5):
        await ask(http)
    assert len(side.reads) == 1
    side.now, side.failure = side.now + 1.0, None
    assert await ask(http) == (200, {"clear": True})


async def test_a_flood_of_questions_does_not_reach_slurm(http: httpx.AsyncClient, side: SlurmSide) -> None:
    side.claims = (CLAIM,)
    answers = [await ask(http, JobId(10_000 + i)) for i in range(100)]
    assert len(side.reads) == READS_PER_SECOND
    assert all(answer == (200, {"clear": False, "holders": [str(CLAIM)]}) for answer in answers)
