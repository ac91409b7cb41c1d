"""The demonstration: a pod, a Job and an sbatch job share the same nodes, and Slurm says who gets what.

In: nothing but this checkout. Out: a stack named demo, the story told on standard output, and exit status 0
only if every promise was kept: each pod on the node of its Slurm job, with as many GPUs, and COMPLETED in
Slurm at the end.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from io import TextIOWrapper
from typing import Any

from localstack import commands, kubernetes, rootfs
from localstack.jail import ask
from localstack.layout import Options, Stack
from localstack.process import log_of
from localstack.progress import Failure, last_lines, say, wait_until

_NAME = "demo"
# Four nodes, each with kubelet and slurmd, and no others: pods and sbatch jobs have nowhere else to go.
_OPTIONS = Options(hybrid=4, nodes=0)
_GPUS_PER_NODE = 8
_JOB_ID = "scheduler.slinky.slurm.net/slurm-jobid"
_RUN_SECONDS = 20
_PODS = 3  # the bare pod and the two of the Job
_LABEL = "demo=slurm-bridge"


@dataclass(frozen=True)
class Place:
    """Where a workload is, as one of the two sides tells it."""

    node: str
    gpus: int


@dataclass(frozen=True)
class SlurmJob:
    number: str
    state: str
    place: Place
    devices: str
    """Which of the node's GPUs: "0-1"."""


@dataclass(frozen=True)
class Workload:
    name: str
    job: SlurmJob
    seen: Place | None
    """Where Kubernetes has it; None for an sbatch job, of which Kubernetes knows nothing."""


def main() -> int:
    try:
        stack = commands.up(_NAME, asdict(_OPTIONS))
        _tell(stack)
    except Failure as failure:
        print(f"demo: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("demo: interrupted; the stack still runs: deploy/local/stack down --name demo", file=sys.stderr)
        return 130
    return 0


def _tell(stack: Stack) -> None:
    _clean(stack)
    print("\nA pod (1 GPU), a Job of two pods (1 GPU each) and an sbatch job (2 GPUs), submitted at once.\n")
    sbatch_job = _submit(stack)
    _wait(stack, "all four to run", lambda: _all_run(stack, sbatch_job), seconds=90)
    job_ids = _show_places(stack, sbatch_job)
    print(f"\nThe containers run for {_RUN_SECONDS} s.\n")
    _wait(stack, "all four to complete", lambda: _all_complete(stack, job_ids), seconds=90 + _RUN_SECONDS)
    _show_ends(stack, job_ids)
    print(_GO_ON)


_GO_ON = """
Every pod ran on the node of its Slurm job, with as many GPUs, and the job is COMPLETED in Slurm.

Go on by hand:
    eval "$(deploy/local/stack env --name demo)"
    kubectl get pods -o wide
    squeue --states=all
    sbatch --gres=gpu:2 --wrap='sleep 60'
Stop it:
    deploy/local/stack down --name demo
"""


def _clean(stack: Stack) -> None:
    kubernetes.kubectl(stack, "delete", "job,pod", "-l", _LABEL, "--ignore-not-found", "--wait")


def _submit(stack: Stack) -> str:
    """Submits all of them at the same time; returns the id of the sbatch job."""
    root = rootfs.path(stack.options.suite, stack.options.accounting)
    script = f"echo GPUs: $CUDA_VISIBLE_DEVICES; sleep {_RUN_SECONDS}"

    def sbatch() -> str:
        done = ask(stack, root, "sbatch", "--parsable", "--gres=gpu:2", "--wrap", script)
        if done.returncode != 0:
            raise Failure(f"sbatch: {done.stderr.strip()}")
        return done.stdout.strip()

    with ThreadPoolExecutor() as pool:
        pod = pool.submit(_apply, stack, _bare_pod())
        job = pool.submit(_apply, stack, _job(stack))
        number = pool.submit(sbatch).result()
        pod.result()
        job.result()
    return number


def _apply(stack: Stack, manifest: dict[str, Any]) -> None:
    kubernetes.kubectl(stack, "apply", "-f", "-", stdin=json.dumps(manifest))


def _bare_pod() -> dict[str, Any]:
    containers = [{"name": "train", "image": "busybox"}]
    spec = {"restartPolicy": "Never", "containers": containers}
    return _for_slurm({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "demo-pod"}, "spec": spec})


def _job(stack: Stack) -> dict[str, Any]:
    """What `kubectl create job` makes, with what any pod needs to be placed by Slurm."""
    create = ("create", "job", "demo-job", "--image=busybox", "--dry-run=client", "-o", "json")
    job: dict[str, Any] = json.loads(kubernetes.kubectl(stack, *create, "--", "train"))
    job["metadata"]["labels"] = _labels()
    job["spec"].update(parallelism=2, completions=2)
    _for_slurm(job["spec"]["template"])
    return job


def _for_slurm(pod: dict[str, Any]) -> dict[str, Any]:
    """The scheduler's name and the resources are all that a user has to write; the annotation is for KWOK."""
    pod.setdefault("metadata", {})["labels"] = _labels()
    pod["metadata"]["annotations"] = {"bench/run-seconds": f"{_RUN_SECONDS}s"}
    pod["spec"]["schedulerName"] = "slurm-bridge"
    resources = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}
    for container in pod["spec"]["containers"]:
        container["resources"] = {"requests": resources, "limits": resources}
    return pod


def _labels() -> dict[str, str]:
    key, value = _LABEL.split("=")
    return {key: value}


def _pods(stack: Stack) -> list[dict[str, Any]]:
    listed: dict[str, Any] = json.loads(kubernetes.kubectl(stack, "get", "pods", "-l", _LABEL, "-o", "json"))
    pods: list[dict[str, Any]] = listed["items"]
    return pods


def _slurm_jobs(stack: Stack) -> dict[str, SlurmJob]:
    """All jobs that slurmctld knows of, finished ones included."""
    root = rootfs.path(stack.options.suite, stack.options.accounting)
    answer = ask(stack, root, "scontrol", "--oneliner", "--details", "show", "job")
    if answer.returncode != 0:
        raise Failure(f"scontrol: {answer.stderr.strip()}")
    return {job.number: job for job in map(_slurm_job, answer.stdout.splitlines()) if job}


def _slurm_job(line: str) -> SlurmJob | None:
    """Reads `JobId=7 … NodeList=n1 … GRES=gpu:h100:2(IDX:0-1) …`; a job that doesn't run has no GRES any more."""
    fields = dict(re.findall(r"(?:^| )(\w+)=(\S*)", line))
    if "JobId" not in fields:
        return None
    gpus = re.match(r"gpu:\w+:(\d+)\(IDX:(.*)\)", fields.get("GRES", ""))
    place = Place(fields.get("NodeList", ""), int(gpus[1]) if gpus else 0)
    return SlurmJob(fields["JobId"], fields["JobState"], place, gpus[2] if gpus else "")


def _all_run(stack: Stack, sbatch_job: str) -> bool:
    pods = _pods(stack)
    running = len(pods) == _PODS and all(pod["status"]["phase"] == "Running" for pod in pods)
    if any(pod["status"]["phase"] in ("Succeeded", "Failed") for pod in pods):
        raise Failure("a pod ended before all of them ran")
    return running and _slurm_jobs(stack)[sbatch_job].state == "RUNNING"


def _all_complete(stack: Stack, job_ids: Sequence[str]) -> bool:
    jobs = _slurm_jobs(stack)
    states = {number: jobs[number].state if number in jobs else "not in squeue" for number in job_ids}
    on_the_way = {"RUNNING", "COMPLETING", "COMPLETED"}
    if wrong := {number: state for number, state in states.items() if state not in on_the_way}:
        raise Failure(f"Slurm jobs that should run or be COMPLETED: {wrong}")
    pods_ended = all(pod["status"]["phase"] == "Succeeded" for pod in _pods(stack))
    return pods_ended and set(states.values()) == {"COMPLETED"}


def _show_places(stack: Stack, sbatch_job: str) -> list[str]:
    """Prints who has what, as both sides say; fails if they differ. Returns the ids of all jobs."""
    jobs = _slurm_jobs(stack)
    workloads = [_workload(pod, jobs) for pod in _pods(stack)]
    workloads.append(Workload("demo-sbatch (sbatch)", jobs[sbatch_job], None))
    _print_places(workloads)
    for each in workloads:
        if each.seen not in (None, each.job.place):
            raise Failure(
                f"{each.name} has {each.seen}, but its Slurm job {each.job.number} {each.job.place}"
            )
    _check_gpus(workloads)
    return [each.job.number for each in workloads]


def _workload(pod: dict[str, Any], jobs: dict[str, SlurmJob]) -> Workload:
    name = pod["metadata"]["name"]
    number = pod["metadata"].get("labels", {}).get(_JOB_ID)
    if number not in jobs:
        raise Failure(f"pod {name} runs, but Slurm has no job for it (label {_JOB_ID}: {number})")
    limits = [container["resources"]["limits"] for container in pod["spec"]["containers"]]
    gpus = sum(int(limit["nvidia.com/gpu"]) for limit in limits)
    return Workload(name, jobs[number], Place(pod["spec"]["nodeName"], gpus))


def _print_places(workloads: Sequence[Workload]) -> None:
    layout = "{:<24}{:<12}{:<14}{:<8}{:<12}{:<8}{}"
    print(layout.format("", "", "IN KUBERNETES", "", "IN SLURM", "", "").rstrip())
    print(layout.format("WORKLOAD", "SLURM JOB", "NODE", "GPUS", "NODE", "GPUS", "WHICH"))
    for each in workloads:
        seen = (each.seen.node, each.seen.gpus) if each.seen else ("-", "-")
        granted = each.job.place
        print(layout.format(each.name, each.job.number, *seen, granted.node, granted.gpus, each.job.devices))


def _check_gpus(workloads: Sequence[Workload]) -> None:
    used: Counter[str] = Counter()
    for each in workloads:
        used[each.job.place.node] += each.job.place.gpus
    for node, count in used.items():
        if count > _GPUS_PER_NODE:
            raise Failure(f"{count} GPUs of {node} are given out, and it has {_GPUS_PER_NODE}")


def _show_ends(stack: Stack, job_ids: Sequence[str]) -> None:
    jobs = _slurm_jobs(stack)
    names = {pod["metadata"]["labels"][_JOB_ID]: pod for pod in _pods(stack)}
    layout = "{:<24}{:<12}{:<14}{:<12}"
    print(layout.format("WORKLOAD", "SLURM JOB", "KUBERNETES", "SLURM").rstrip())
    for number in job_ids:
        pod = names.get(number)
        name, phase = (
            (pod["metadata"]["name"], pod["status"]["phase"]) if pod else ("demo-sbatch (sbatch)", "-")
        )
        print(layout.format(name, number, phase, jobs[number].state).rstrip())


def _wait(stack: Stack, what: str, done: Callable[[], bool], *, seconds: float) -> None:
    say(f"waiting for {what}")
    try:
        wait_until(what, done, seconds=seconds, every=0.5)
    except Failure as failure:
        pods = kubernetes.kubectl(stack, "get", "pods", "-l", _LABEL, "-o", "wide")
        log = log_of(stack, "bridge")
        raise Failure(f"{failure}\n{pods}\nThe bridge's log: {log}\n{last_lines(log)}") from None


if __name__ == "__main__":
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # in step with the progress on standard error
    sys.exit(main())
