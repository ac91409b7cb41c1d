"""What the bridge does not do: hold up the pods of others, end the jobs of others, use rights it need not have."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.e2e import kube as k
from tests.e2e.kube import Kube, Object
from tests.e2e.scene import ORPHANED, Scene
from tests.e2e.stack import REPO, Stack
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.real
OUR_IDS = 0x02000000, 0x03FDFFFF


def test_while_the_bridge_is_away_pods_of_others_run_and_ours_wait(scene: Scene) -> None:
    with scene.stack.without("bridge"):
        scene.create(k.pod("theirs", scheduler="default-scheduler"))
        scene.create(k.pod("gated"))
        scene.create(k.pod("open"))
        scene.ungate("open")
        scene.running("theirs")

        def asked(pod: Object) -> bool:
            shown = k.condition(pod, "PodScheduled")
            return shown is not None and "/scheduler/filter" in shown.get("message", "")

        scene.when("open", "kube-scheduler has asked for it in vain", asked)
        assert [k.node_of(scene.get(name)) for name in ("gated", "open")] == ["", ""]
    scene.running("gated")
    scene.running("open")


@pytest.fixture
def urgent(scene: Scene) -> Iterator[str]:
    """A PriorityClass above that of every other pod here."""
    classes, name = "/apis/scheduling.k8s.io/v1/priorityclasses", f"urgent-{scene.namespace}"
    scene.kube.must("POST", classes, {"metadata": {"name": name}, "value": 1_000_000})
    yield name
    scene.kube.must("DELETE", f"{classes}/{name}")


def test_a_pod_of_the_highest_priority_evicts_nobody_and_goes_where_there_is_room(
    scene: Scene, urgent: str
) -> None:
    """Slurm knows nothing of pods of others: it grants a node where kube-scheduler must not put the pod beside one."""
    theirs = k.pod("theirs", scheduler="default-scheduler")
    theirs["metadata"]["labels"] = {"whose": "theirs"}
    theirs["spec"]["nodeName"] = "n1"
    uid = scene.create(theirs)
    scene.running("theirs")
    blocker = scene.slurm.sbatch("--exclusive", "--nodelist=n2")
    scene.job_becomes(blocker, "RUNNING")
    ours = k.pod("ours", options=scene.only("n1", "n2"))
    ours["spec"]["priorityClassName"] = urgent
    apart = {"labelSelector": {"matchLabels": {"whose": "theirs"}}, "topologyKey": "kubernetes.io/hostname"}
    ours["spec"]["affinity"] = {
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}
    }
    scene.create(ours)
    scene.when("ours", "is granted n1", lambda pod: k.annotation(pod, k.NODE) == "n1")
    scene.slurm.scancel(blocker)
    assert k.node_of(scene.running("ours", within=90)) == "n2"
    assert k.uid(scene.get("theirs")) == uid
    assert not scene.get("theirs")["metadata"].get("deletionTimestamp")


def test_the_sweep_ends_orphans_and_nothing_else(scene: Scene) -> None:
    slurm, cluster = scene.slurm, scene.kube.cluster_id()
    first = OUR_IDS[0] + int(scene.namespace[-6:], 16)

    def marked(name: str, number: int, whose: str, **job: object) -> int:
        uid = f"00000000-0000-0000-0000-{number:012d}"
        mark = {
            "v": 1, "cluster": whose, "group": f"Pod/{scene.namespace}/{name}/{uid}",
            "attempt": 0, "uids": [uid], "grace": 0,
        }  # fmt: skip
        return _submit(scene, number, {"pods": [f"{scene.namespace}/{name}"], "bridge": mark}, **job)

    spared = [
        marked("other-cluster", first, "another-cluster"),
        marked("other-cluster-waits", first + 1, "another-cluster", hold=True),
        _submit(scene, first + 2, {"pods": [f"{scene.namespace}/of-the-go-project"]}),
        _submit(scene, first + 3, None),
        scene.slurm.sbatch("--constraint=slurmd"),
        scene.slurm.sbatch("--hold"),
    ]
    held = marked("held", first + 4, cluster, hold=True)
    runs = marked("runs", first + 5, cluster)
    for orphan in (held, runs):
        slurm.disown(orphan)

    scene.job_becomes(held, "CANCELLED", within=ORPHANED)
    scene.job_becomes(runs, "CANCELLED", within=ORPHANED)
    for number in spared:
        job = slurm.job(number)
        assert job is not None
        assert job.live


def _submit(scene: Scene, number: int, mark: Object | None, **job: object) -> int:
    comment = {"admin_comment": json.dumps(mark)} if mark is not None else {}
    return scene.slurm.submit(
        job_id=number, cpus_per_task=1, memory_per_node={"set": True, "number": 100}, **comment, **job
    )


def test_a_label_that_names_a_strangers_job_gives_no_power_over_it(scene: Scene) -> None:
    native = scene.slurm.sbatch("--constraint=slurmd")
    scene.job_becomes(native, "RUNNING")
    scene.create(k.pod("liar"))
    pod = scene.running("liar")
    own = k.job_label(pod)
    for lie in (str(native), str(native + 1000), None):  # the second is nobody's
        scene.patch("liar", {"metadata": {"labels": {k.JOB_LABEL: lie}}})
        eventually("the label is repaired", lambda: k.job_label(scene.get("liar")) == own)
    assert "deletionTimestamp" not in scene.get("liar")["metadata"]
    scene.delete("liar")
    scene.job_becomes(own, "CANCELLED", "COMPLETED", "FAILED")
    job = scene.slurm.job(native)
    assert job is not None
    assert job.running


def test_a_forged_grant_binds_nothing(scene: Scene) -> None:
    """Labels and annotations are the user's to write; only the mark of the job itself counts."""
    scene.create(k.pod("holder", options=scene.only("n1")))
    held = scene.running("holder")
    native = scene.slurm.sbatch("--exclusive", "--nodelist=n2")
    scene.job_becomes(native, "RUNNING")
    forged = [("by-a-pods-job", k.job_label(held), "n1"), ("by-a-native-job", native, "n2")]
    for name, number, node in forged:
        pod = k.pod(name, options=scene.only("n2"))
        pod["metadata"]["labels"] = {k.JOB_LABEL: str(number)}
        pod["metadata"]["annotations"][k.NODE] = node
        uid = scene.create(pod)
        scene.ungate(name)
        scene.waiting_job(uid)
        scene.is_refused(name)
    scene.slurm.scancel(native)
    for name, number, _ in forged:
        assert k.job_label(scene.running(name)) != number


@pytest.fixture
def bridge_account(stack: Stack) -> Iterator[Kube]:
    """The API server as the bridge's ServiceAccount sees it."""
    client = Kube(stack.facts["kubeconfigs"]["bridge"])
    yield client
    client.close()


@pytest.mark.parametrize(
    "what",
    [
        "get secrets", "list secrets", "list configmaps", "create pods", "update pods", "deletecollection pods",
        "create nodes", "update nodes", "delete nodes", "update nodes/status", "create pods/exec",
        "create pods/eviction", "create serviceaccounts/token", "patch jobs.batch", "delete jobs.batch",
        "patch namespaces", "delete namespaces", "create clusterrolebindings.rbac.authorization.k8s.io",
        "patch mutatingadmissionpolicies.admissionregistration.k8s.io", "delete leases.coordination.k8s.io",
        "impersonate users", "get nodes/proxy", "create persistentvolumeclaims", "delete events",
    ],
)  # fmt: skip
def test_the_bridge_has_no_right_to(what: str, bridge_account: Kube) -> None:
    assert not _may(bridge_account, what)


@pytest.mark.parametrize(
    "what",
    [
        "patch pods", "delete pods", "create pods/binding", "patch pods/status", "list nodes", "patch nodes",
        "patch nodes/status", "create events",
    ],
)  # fmt: skip
def test_the_bridge_has_the_right_to(what: str, bridge_account: Kube) -> None:
    assert _may(bridge_account, what)


def _may(client: Kube, what: str) -> bool:
    verb, _, rest = what.partition(" ")
    resource, _, group = rest.partition(".")
    resource, _, subresource = resource.partition("/")
    asked = {
        "verb": verb,
        "group": group,
        "resource": resource,
        "subresource": subresource,
        "namespace": "default",
    }
    answer = client.must(
        "POST",
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        {"spec": {"resourceAttributes": asked}},
    )
    return bool(answer["status"]["allowed"])


def test_the_manifests_are_what_the_api_server_takes(stack: Stack) -> None:
    printed = stack.run(
        "kubectl", "apply", "-k", str(REPO / "deploy" / "manifests"), "--dry-run=server", "-o", "name"
    )
    assert {"deployment.apps/slurm-bridge", "deployment.apps/slurm-bridge-scheduler"} <= set(printed.split())
