"""filter and bind as kube-scheduler sees them: real JSON in and out, a view and a writer that we control."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from bridge.core.answers import Asked
from bridge.core.model import KubeNode, Pod, Uid
from bridge.core.steps import Bind
from bridge.core.verdict import Reason, Verdict
from bridge.errors import BridgeError, Conflict, NotFound, UnknownOutcome
from bridge.names import JOB_ID_LABEL, NODE_ANNOTATION
from bridge.web import wire
from bridge.web.app import App
from bridge.web.extender import Extender
from bridge.web.pages import pages
from tests.core.build import FIRST, bound, pod, released
from tests.web.slurm_side import SlurmSide

POD = released(FIRST)


class View:
    """Memory holds `held`; the API server would answer `fresh`; Slurm allows `answer`."""

    def __init__(self) -> None:
        self.held: Pod | None = POD
        self.fresh: Pod | None = POD
        self.answer: KubeNode | Verdict = KubeNode("n1")
        self.confirmed: KubeNode | Verdict | None = None
        self.failure: BridgeError | None = None
        self.others: Verdict | None = None  # pods that use its devices
        self.reads = 0
        self.confirms = 0

    def allowed(self, asked: Asked) -> KubeNode | Verdict:
        if asked.labels.get(JOB_ID_LABEL) is None:
            return Verdict(Reason.NOT_GRANTED, "waiting for Slurm to grant nodes")
        return self.answer

    async def confirm(self, asked: Asked) -> KubeNode | Verdict:
        self.confirms += 1
        if self.failure is not None:
            raise self.failure
        return self.allowed(asked) if self.confirmed is None else self.confirmed

    async def alone(self, asked: Asked, node: KubeNode) -> KubeNode | Verdict:
        return node if self.others is None else self.others

    def pod(self, namespace: str, name: str) -> Pod | None:
        return self.held

    async def fresh_pod(self, namespace: str, name: str) -> Pod:
        self.reads += 1
        if self.fresh is None:
            raise NotFound("no such pod")
        return self.fresh


class Writer:
    def __init__(self, *failures: BridgeError) -> None:
        self.failures = list(failures)
        self.bound: list[Bind] = []

    async def apply(self, step: Bind) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.bound.append(step)


async def post(view: View, writer: Writer, verb: str, body: Any) -> dict[str, Any]:
    app = App(Extender(view, writer), SlurmSide().hooks, pages(list, list))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://bridge") as client:
        answer = await client.post(f"/scheduler/{verb}", content=json.dumps(body))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def filter_body(nodes: list[str], found: Pod = POD) -> dict[str, Any]:
    meta = {
        "name": found.name,
        "namespace": found.namespace,
        "uid": found.uid,
        "labels": dict(found.labels),
        "annotations": dict(found.annotations),
    }
    return {"Pod": {"metadata": meta, "spec": {"containers": []}}, "Nodes": None, "NodeNames": nodes}


BIND = {"PodName": POD.name, "PodNamespace": POD.namespace, "PodUID": POD.uid, "Node": "n1"}


async def test_filter_leaves_exactly_the_granted_node() -> None:
    answer = await post(View(), Writer(), "filter", filter_body(["n2", "n1", "n3"]))
    assert answer["NodeNames"] == ["n1"]
    assert answer["Error"] == ""


async def test_filter_refuses_a_waiting_pod_with_a_reason_and_writes_nothing() -> None:
    writer = Writer()
    answer = await post(View(), writer, "filter", filter_body(["n1", "n2"], pod()))
    assert answer["NodeNames"] == []
    assert "waiting for Slurm" in answer["FailedNodes"]["n1"]
    assert writer.bound == []


async def test_filter_refuses_when_the_granted_node_is_no_candidate() -> None:
    answer = await post(View(), Writer(), "filter", filter_body(["n2", "n3"]))
    assert answer["NodeNames"] == []
    assert "n1" in answer["FailedNodes"]["n2"]


async def test_bind_posts_the_binding_for_the_pod_that_was_verified() -> None:
    writer = Writer()
    assert (await post(View(), writer, "bind", BIND))["Error"] == ""
    assert writer.bound == [Bind(pod=POD, node=KubeNode("n1"))]


async def test_bind_to_another_node_than_slurm_granted_is_refused() -> None:
    writer = Writer()
    answer = await post(View(), writer, "bind", {**BIND, "Node": "n2"})
    assert "n1" in answer["Error"]
    assert writer.bound == []


async def test_bind_of_a_pod_that_is_bound_there_already_is_success_without_a_write() -> None:
    view, writer = View(), Writer()
    view.held = bound(FIRST)
    assert (await post(view, writer, "bind", BIND))["Error"] == ""
    assert writer.bound == []


async def test_a_lost_bind_reply_is_success_when_the_pod_sits_there() -> None:
    """Our POST got through, its answer did not: the second try finds 409, reads, and sees the pod bound there."""
    view, writer = View(), Writer(Conflict("already assigned", status=409))
    view.fresh = bound(FIRST)
    assert (await post(view, writer, "bind", BIND))["Error"] == ""
    assert view.reads == 1


async def test_bind_of_a_pod_that_sits_elsewhere_is_an_error() -> None:
    view, writer = View(), Writer(Conflict("already assigned", status=409))
    view.fresh = bound(FIRST, "n2")
    view.answer = Verdict(Reason.OTHER_NODE, "job holds n2, not n1")
    assert "n2" in (await post(view, writer, "bind", BIND))["Error"]


async def test_a_pod_in_memory_that_lags_behind_is_read_once() -> None:
    view, writer = View(), Writer()
    view.held = pod()  # not released yet, as far as we have heard
    assert (await post(view, writer, "bind", BIND))["Error"] == ""
    assert view.reads == 1
    assert writer.bound == [Bind(pod=POD, node=KubeNode("n1"))]


async def test_a_pod_that_changed_under_the_bind_is_verified_again() -> None:
    view, writer = View(), Writer(Conflict("changed", status=409))
    view.fresh = replace(POD, version="101")
    assert (await post(view, writer, "bind", BIND))["Error"] == ""
    assert [step.pod.version for step in writer.bound] == ["101"]


async def test_a_grant_given_back_during_the_bind_is_refused() -> None:
    view, writer = View(), Writer(Conflict("changed", status=409))
    view.fresh = pod(gates=(), annotations={})
    answer = await post(view, writer, "bind", BIND)
    assert answer["Error"] != ""
    assert writer.bound == []


async def test_bind_of_a_successor_with_the_same_name_is_refused() -> None:
    view, writer = View(), Writer()
    view.held = view.fresh = replace(POD, uid=Uid("uid-2"))
    assert "another pod" in (await post(view, writer, "bind", BIND))["Error"]
    assert writer.bound == []


async def test_bind_of_a_pod_that_is_gone_is_refused() -> None:
    view, writer = View(), Writer()
    view.held = view.fresh = None
    assert "gone" in (await post(view, writer, "bind", BIND))["Error"]


async def test_a_stale_view_asks_slurm_once_and_never_guesses() -> None:
    view, writer = View(), Writer()
    view.answer = Verdict(Reason.STALE, "too old")
    view.confirmed = KubeNode("n1")
    assert (await post(view, writer, "bind", BIND))["Error"] == ""
    view.confirmed = Verdict(Reason.NOT_GRANTED, "job 5 is CANCELLED")
    view.held = view.fresh = POD
    assert "CANCELLED" in (await post(view, writer, "bind", BIND))["Error"]


async def test_a_follower_that_lags_behind_a_grant_reads_the_job_before_it_refuses() -> None:
    view = View()
    view.answer = Verdict(Reason.STALE, "job 5 has not been read yet")
    view.confirmed = KubeNode("n1")
    assert (await post(view, Writer(), "filter", filter_body(["n1", "n2"])))["NodeNames"] == ["n1"]
    assert (await post(view, Writer(), "bind", BIND))["Error"] == ""


async def test_filter_reads_a_job_once_a_second_however_often_it_is_asked() -> None:
    view, now = View(), [100.0]
    view.answer = view.confirmed = Verdict(Reason.NOT_GRANTED, "job 5 is PENDING")
    extender = Extender(view, Writer(), lambda: now[0])
    args = wire.filter_args.decode(json.dumps(filter_body(["n1"])).encode())
    for _ in range(20):
        await extender.filter(args)
    assert view.confirms == 1
    now[0] += 1.0
    await extender.filter(args)
    assert view.confirms == 2


async def test_a_slurm_that_does_not_answer_makes_filter_refuse_with_what_it_knows() -> None:
    view = View()
    view.answer = Verdict(Reason.NOT_GRANTED, "job 5 is PENDING")
    view.failure = UnknownOutcome("no answer")
    answer = await post(view, Writer(), "filter", filter_body(["n1"]))
    assert "job 5 is PENDING" in answer["FailedNodes"]["n1"]


async def test_an_unanswered_binding_is_an_error_and_never_success() -> None:
    answer = await post(View(), Writer(UnknownOutcome("time-out")), "bind", BIND)
    assert "UnknownOutcome" in answer["Error"]


@pytest.mark.parametrize("body", [b"", b"{", b'{"Pod": 5}', b"[]", b'{"PodName": "x"}'])
async def test_a_request_that_cannot_be_read_gets_a_sentence_and_no_crash(body: bytes) -> None:
    app = App(Extender(View(), Writer()), SlurmSide().hooks, pages(list, list))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://bridge") as client:
        for verb in ("filter", "bind"):
            answer = await client.post(f"/scheduler/{verb}", content=body)
            assert answer.status_code == 400
            assert "cannot read" in answer.json()["Error"]


async def test_readyz_names_what_is_missing() -> None:
    app = App(
        Extender(View(), Writer()),
        SlurmSide().hooks,
        pages(lambda: ["a first state poll of Slurm"], lambda: ["old token"]),
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://bridge") as client:
        answer = await client.get("/readyz")
        assert answer.status_code == 503
        assert "state poll of Slurm" in answer.text
        assert (await client.get("/livez")).status_code == 200
        assert "slurm_bridge_" in (await client.get("/metrics")).text


def test_the_annotation_alone_never_grants() -> None:
    """The view above stands for core.answers; this pins the name both sides read."""
    assert NODE_ANNOTATION in POD.annotations
