"""JobSet, LeaderWorkerSet and the coscheduling PodGroup.

In: a stack whose API server runs. Out: their CustomResourceDefinitions, and a running process with the real controllers
of the first two. `kubectl apply` of a JobSet makes pods.
"""

from __future__ import annotations

from localstack import kubernetes
from localstack.jsonhttp import JsonClient
from localstack.layout import LOCAL, Stack
from localstack.process import Part, forget, launch, settle, stop

NAME = "workload-controllers"
_MANIFESTS = LOCAL / "kubernetes" / "workloads"


def daemon_names(stack: Stack) -> list[str]:
    return [NAME] if stack.options.workloads else []


def start_all(stack: Stack) -> None:
    if not stack.options.workloads:  # what an earlier `up` defined stays defined
        for name in stop(stack, [NAME]):
            forget(stack, name)
        return
    kubernetes.apply(stack, _MANIFESTS)
    # A controller that does not find its kind looks again only after ten seconds.
    kubernetes.kubectl(stack, "wait", "crd", "--all", "--for=condition=Established", "--timeout=30s")
    controllers = part(stack)
    launch(stack, controllers)
    settle(stack, controllers)


def part(stack: Stack) -> Part:
    command = (
        *kubernetes.program(NAME),
        f"--kubeconfig={stack.kubeconfig('controller-manager')}",
        f"--health-probe-bind-address={stack.address(NAME)}",
    )
    health = JsonClient(f"http://{stack.address(NAME)}")
    return Part(NAME, command, lambda: health.is_ok("/healthz"))
