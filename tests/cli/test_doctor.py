"""`slurm-bridge doctor`: what it finds in an installation, and what it makes of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from bridge.core import report
from bridge.core.model import JobId
from bridge.core.report import Report
from bridge.doctor import CannotLook
from bridge.names import DRAIN_PREFIX
from tests.cli.surveyed import JOB, NOW, Installation


@pytest.fixture
def here(tmp_path: Path) -> Installation:
    return Installation(tmp_path)


def said(found: Report, *, urgent: bool = True) -> str:
    return "\n".join(finding.text for finding in found.findings if finding.urgent is urgent)


def broken(found: Report) -> list[str]:
    return [each.name for each in found.invariants if each.violations]


# --- what it finds --------------------------------------------------------------------------------


async def test_a_healthy_installation_is_fine(here: Installation) -> None:
    here.job(here.pod("runs", node="n1"))
    here.slurm.native()
    found = await here.examine()
    assert found.exit_status == 0
    assert not found.findings
    assert not broken(found)
    assert dict(found.sides) == {
        "Kubernetes": "v1.36.3; 2 nodes, 2 usable; pods of ours: 1 on a node, 0 waiting, 0 ended",
        "Slurm": "26.05 (v0.0.45), slurmctld up for 60 min; jobs of ours: 1 RUNNING; of others: 1",
        "Token": "of slurm, who is SlurmUser; valid for 400 days",
        "Leader": "bridge-0, renewed 1 s ago",
        "Bridge": "not asked: give --bridge URL",
    }


async def test_it_only_reads(here: Installation) -> None:
    here.pod("lost", node="n1")
    here.job("uid-of-nobody", number=JOB + 1)
    await here.examine()
    assert here.looked_again
    assert all(request.startswith("GET ") for request in here.slurm.requests)
    assert not here.kube.writes


async def test_native_jobs_are_not_read(here: Installation) -> None:
    for _ in range(5):
        here.slurm.native()
    here.job(here.pod("runs", node="n1"))
    await here.examine()
    assert here.slurm.count("GET job/{id}") == 1


async def test_a_broken_invariant_names_the_objects_and_needs_a_person(here: Installation) -> None:
    here.pod("lost", node="n1")
    found = await here.examine()
    assert broken(found) == ["placed_by_slurm"]
    (text,) = found.invariants[0].violations
    assert text == "pod ai/lost is on n1, where no job of its own is: it has none"
    assert found.exit_status == 1


async def test_what_a_second_look_does_not_show_is_not_told(here: Installation) -> None:
    uid = here.pod("just-bound", node="n1")
    here.between = lambda: here.job(uid)
    found = await here.examine()
    assert here.looked_again
    assert not broken(found)
    assert not found.unfinished


async def test_what_a_young_slurmctld_may_have_forgotten_is_not_counted_yet(here: Installation) -> None:
    here.slurm.booted = NOW - 20
    here.pod("lost", node="n1")
    found = await here.examine()
    assert not broken(found)
    assert "slurmctld started 20 s ago" in said(found, urgent=False)


async def test_pods_of_other_schedulers_are_none_of_its_business(here: Installation) -> None:
    here.kube.add("pods", {"metadata": {"name": "web"}, "spec": {"nodeName": "n1", "containers": []}})
    found = await here.examine()
    assert found.exit_status == 0
    assert "0 on a node" in dict(found.sides)["Kubernetes"]


async def test_waiting_pods_say_why_longest_first(here: Installation) -> None:
    for name, age in (("young", 40.0), ("old", 9000.0), ("silent", 20.0)):
        number = JobId(JOB + int(age))
        says = "" if name == "silent" else f"job {number} is PENDING (Priority)"
        here.job(here.pod(name, age=age, says=says), "PENDING", number=number, node="")
    found = await here.examine()
    assert [(each.pod, each.seconds) for each in found.waiting] == [
        ("ai/old", 9000.0),
        ("ai/young", 40.0),
        ("ai/silent", 20.0),
    ]
    assert found.waiting[0].why == f"job {JOB + 9000} is PENDING (Priority)"
    assert found.exit_status == 0


async def test_a_job_without_pods_is_under_way(here: Installation) -> None:
    here.job("uid-of-nobody")
    found = await here.examine()
    assert found.unfinished == (f"job {JOB} is RUNNING and none of ai/train needs it",)
    assert found.exit_status == 0


async def test_a_job_of_another_cluster_is_not_ours_to_judge(here: Installation) -> None:
    here.job("uid-of-nobody", cluster="there")
    found = await here.examine()
    assert found.exit_status == 0
    assert not found.unfinished


async def test_a_node_that_we_drained_needs_a_person(here: Installation) -> None:
    here.slurm.set_node(replace(here.slurm.nodes["n1"], drained=True, reason=f"{DRAIN_PREFIX} dead"))
    assert "node n1 is drained: slurm-bridge: dead" in said(await here.examine())


async def test_what_slurms_configuration_means_is_good_to_know(here: Installation) -> None:
    here.slurm.conf |= {
        "SlurmctldParameters": [],
        "DefMemPerCPU": {"set": True, "infinite": False, "number": 0},
        "PrologSlurmctld": [],
        "MinJobAge": 2,
        "SchedulerParameters": ["defer"],
        "GresTypes": [],
    }
    found = await here.examine()
    told = said(found, urgent=False)
    for part in (
        "state cache",
        "DefMemPerCPU",
        "not guaranteed",
        "MinJobAge is 2 s",
        "delay is 3 s",
        "lacks gpu",
    ):
        assert part in told
    assert found.exit_status == 0


async def test_memory_for_jobs_that_name_none_may_be_set_per_node(here: Installation) -> None:
    here.slurm.conf |= {"DefMemPerCPU": {"set": False}, "DefMemPerNode": {"set": True, "number": 4000}}
    assert "DefMem" not in said(await here.examine(), urgent=False)


async def test_an_older_slurm_is_looked_at_with_what_it_has(tmp_path: Path) -> None:
    found = await Installation(tmp_path, version=42).examine()
    assert "no jobs without a process" in said(found, urgent=False)
    assert "Slurm 24.11 (data_parser v0.0.42) does not show its configuration" in said(found, urgent=False)
    assert "SlurmUser" not in dict(found.sides)["Token"]


async def test_a_kubernetes_that_hides_its_version_is_no_obstacle(here: Installation) -> None:
    here.kube.git_version = ""
    found = await here.examine()
    assert "version not told" in dict(found.sides)["Kubernetes"]
    assert not found.findings


# --- token and leader -----------------------------------------------------------------------------


async def test_a_token_of_another_user_writes_nothing_where_we_are_to_number_our_jobs(tmp_path: Path) -> None:
    here = Installation(tmp_path, jobIds="chosen")
    here.give_token("alice", 86_400 * 9)
    found = await here.examine()
    assert "the Slurm token is alice's; it must be SlurmUser's (slurm): nothing is written" in said(found)
    assert dict(found.sides)["Token"] == "of alice; SlurmUser is slurm; valid for 9 days"


async def test_where_slurm_numbers_our_jobs_they_are_found_by_their_mark(here: Installation) -> None:
    here.give_token("alice", 86_400 * 9)
    here.job("uid-of-nobody", number=4711)
    here.slurm.native()
    found = await here.examine()
    assert "Slurm numbers our jobs" in said(found, urgent=False)
    assert found.unfinished == ("job 4711 is RUNNING and none of ai/train needs it",)
    assert dict(found.sides)["Slurm"].endswith("jobs of ours: 1 RUNNING; of others: 1")


async def test_a_token_that_ends_soon_needs_a_person(here: Installation) -> None:
    here.give_token("slurm", 3600 * 5)
    found = await here.examine()
    assert "the Slurm token ends in 5 h" in said(found)
    assert found.exit_status == 1


async def test_a_token_that_is_no_jwt_says_nothing_of_itself(here: Installation) -> None:
    here.slurm.token = "secret"
    here.token.write_text("secret")
    found = await here.examine()
    assert dict(found.sides)["Token"] == (
        "of nobody that it names; SlurmUser is slurm; it does not say for how long it is valid"
    )
    assert "secret" not in json.dumps(report.body(found))


async def test_nobody_who_leads_needs_a_person(here: Installation) -> None:
    here.lease(NOW - 31)
    found = await here.examine()
    assert said(found) == "nobody leads: the Lease slurm/slurm-bridge was last renewed 31 s ago"
    here.kube.storage.objects["leases"].clear()
    found = await here.examine()
    assert "was never renewed" in said(found)
    assert dict(found.sides)["Leader"] == "nobody"
    here.lease(NOW - 30)
    assert not said(await here.examine())


async def test_a_lease_that_may_not_be_read_proves_nothing(here: Installation) -> None:
    here.kube.denied.add(("get", "leases"))
    found = await here.examine()
    assert found.exit_status == 0
    assert "may not be read" in dict(found.sides)["Leader"]


# --- the bridge's own word ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "side", "urgent"),
    [
        (httpx.Response(200, text="ok\n"), "ok (http://b/readyz: 200)", []),
        (
            httpx.Response(503, text="not ready\nmissing: a token of SlurmUser\n"),
            "not ready (http://b/readyz: 503)",
            ["the bridge says: missing: a token of SlurmUser"],
        ),
        (
            httpx.Response(200, text="ok\nnote: breaker open: the ends of 12 jobs\nnote: Slurm: 504\n"),
            "ok (http://b/readyz: 200)",
            ["the bridge says: note: breaker open: the ends of 12 jobs"],
        ),
        (httpx.Response(204), "says nothing (http://b/readyz: 204)", []),
    ],
)
async def test_the_bridges_own_word_is_passed_on(
    here: Installation, answer: httpx.Response, side: str, urgent: list[str]
) -> None:
    found = await here.examine("http://b/", answer)
    assert dict(found.sides)["Bridge"] == side
    assert [finding.text for finding in found.findings if finding.urgent] == urgent
    assert found.exit_status == bool(urgent)


@pytest.mark.parametrize("page", ["http://127.0.0.1:1", "http://[", "nonsense"])
async def test_a_bridge_that_does_not_answer_needs_a_person(here: Installation, page: str) -> None:
    found = await here.examine(page)
    assert f"the bridge does not answer at {page}/readyz" in said(found)
    assert found.exit_status == 1


# --- when it can't look ---------------------------------------------------------------------------


async def cannot_look(here: Installation) -> tuple[str, ...]:
    with pytest.raises(CannotLook) as caught:
        await here.examine()
    return caught.value.sides


async def test_each_side_that_could_not_be_read_is_named_with_its_cause_and_cure(tmp_path: Path) -> None:
    here = Installation(tmp_path, clusterId="")
    here.slurm.down = True
    here.kube.denied.add(("get", "namespaces"))
    kube, slurm = await cannot_look(here)
    assert kube.startswith("Kubernetes could not be read: ")
    assert "bridge-rights.yaml" in kube
    assert slurm == (
        "Slurm could not be read: slurmctld does not answer slurmrestd; look at slurmctld's host and log"
    )


async def test_a_token_that_slurm_refuses_is_told_with_its_file(here: Installation) -> None:
    here.token.write_text("another")
    (slurm,) = await cannot_look(here)
    assert "Slurm could not be read" in slurm
    here.token.unlink()
    (slurm,) = await cannot_look(here)
    assert slurm.endswith(f"put a valid token of SlurmUser into {here.token}")


async def test_what_breaks_off_in_the_middle_is_told(here: Installation) -> None:
    here.kube.denied.add(("list", "pods"))
    (text,) = await cannot_look(here)
    assert "broke off" in text
