"""Kubernetes' daemons.

In: a stack and the executable. Out: running etcd, API server, controller manager, the default scheduler,
ours, and KWOK; kubeconfigs for `admin`, and, with the rights of deploy/manifests and no others, for `bridge`
and `scheduler`.
"""

from __future__ import annotations

import re
import secrets
import subprocess
import time
from dataclasses import replace
from pathlib import Path

from localstack import kubestack
from localstack.jsonhttp import JsonClient
from localstack.layout import LOCAL, REPO, Stack, write_atomically
from localstack.process import Part, launch, settle, start
from localstack.progress import Failure

NAMESPACE = "slurm"
_SCHEDULER_CONFIG = REPO / "scheduler-config" / "kube-scheduler.yaml"
_CLUSTER_MANIFESTS = REPO / "deploy" / "manifests" / "cluster"
_KWOK_CONFIG = LOCAL / "kubernetes" / "kwok.yaml"
_AUDIT_POLICY = LOCAL / "kubernetes" / "audit-policy.yaml"

# Users known to the API server by a token in a file: what a real cluster does with client certificates.
_USERS = {
    "admin": ("admin", "system:masters"),
    "controller-manager": ("system:kube-controller-manager", "system:masters"),
    "default-scheduler": ("system:kube-scheduler", ""),
    "kwok": ("kwok", "system:masters"),
}
# kubeconfig name -> ServiceAccount of deploy/manifests
_SERVICE_ACCOUNTS = {"bridge": "slurm-bridge", "scheduler": "slurm-bridge-scheduler"}
_TOKEN_LIFETIME = "8760h"
_FRESH = 30.0  # seconds in which an API server that says it is ready may still refuse what it will take

# The gang APIs, so that pods in a PodGroup can be tried; off by default in this Kubernetes.
_FEATURE_GATES = "GenericWorkload=true,GangScheduling=true"
_EXTRA_APIS = "scheduling.k8s.io/v1alpha2=true"

_CONTROLLERS = (
    "cronjob-controller",
    "deployment-controller",
    "device-taint-eviction-controller",
    "disruption-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "node-lifecycle-controller",
    "pod-garbage-collector-controller",
    "replicaset-controller",
    "resourceclaim-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "statefulset-controller",
    "taint-eviction-controller",
    "ttl-after-finished-controller",
)


def prepare(stack: Stack) -> None:
    pki = stack.kube / "pki"
    pki.mkdir(parents=True, exist_ok=True)
    stack.kube.chmod(0o700)
    private, public = pki / "service-accounts.key", pki / "service-accounts.pub"
    if not public.exists():
        _openssl("genrsa", "-out", str(private), "2048")
        _openssl("rsa", "-in", str(private), "-pubout", "-out", str(public))
    if not _tokens_file(stack).exists():
        rows = [f'{secrets.token_hex(16)},{user},{name},"{group}"' for name, (user, group) in _USERS.items()]
        write_atomically(_tokens_file(stack), "\n".join(rows) + "\n", 0o600)


def start_all(stack: Stack) -> None:
    start(stack, part(stack, "etcd"))
    start(stack, part(stack, "apiserver"))
    for name in _USERS:
        _write_kubeconfig(stack, name, _static_token(stack, name))
    others = [part(stack, name) for name in ("controller-manager", "default-scheduler", "kwok")]
    for each in others:
        launch(stack, each)
    apply(stack, _CLUSTER_MANIFESTS)
    for name, account in _SERVICE_ACCOUNTS.items():
        if not stack.kubeconfig(name).exists():
            issued = kubectl(
                stack, "create", "token", account, "-n", NAMESPACE, f"--duration={_TOKEN_LIFETIME}"
            )
            _write_kubeconfig(stack, name, issued.strip())
    ours = part(stack, "scheduler")
    launch(stack, ours)
    for each in (*others, ours):
        settle(stack, each)


DAEMONS = ("etcd", "apiserver", "controller-manager", "default-scheduler", "kwok", "scheduler")


def _before_start(stack: Stack, name: str) -> None:
    """Frees what the process of that name held when it was last ended: there is only one, so nobody else holds it.

    Otherwise our scheduler would wait for its own old lease, and KWOK, which takes a new identity at each start, for
    that of every node: until then the node's pods stay Pending.
    """
    leases = "/apis/coordination.k8s.io/v1/namespaces/{}/leases{}"
    if name == "scheduler":
        admin(stack).request("DELETE", leases.format(NAMESPACE, "/slurm-bridge-scheduler"))
    if name == "kwok":
        admin(stack).request("DELETE", leases.format("kube-node-lease", ""))


def part(stack: Stack, name: str) -> Part:
    return replace(_daemon(stack, name), before=lambda: _before_start(stack, name))


def _daemon(stack: Stack, name: str) -> Part:
    match name:
        case "etcd":
            return _etcd(stack)
        case "apiserver":
            return _apiserver(stack)
        case "controller-manager":
            return _controller_manager(stack)
        case "default-scheduler":
            return _scheduler(stack, name, _default_scheduler_config(stack))
        case "scheduler":
            return _scheduler(stack, name, our_scheduler_config(stack))
        case "kwok":
            return _kwok(stack)
    raise Failure(f"Kubernetes has no part named {name}")


def kubectl(stack: Stack, *arguments: str, stdin: str | None = None) -> str:
    """Runs kubectl as admin and returns what it printed."""
    command = [
        str(kubestack.executable()),
        "kubectl",
        "--kubeconfig",
        str(stack.kubeconfig("admin")),
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True, input=stdin or "")
    if done.returncode != 0:
        raise Failure(f"kubectl {' '.join(arguments)}: {done.stderr.strip()[-1000:]}")
    return done.stdout


def admin(stack: Stack) -> JsonClient:
    headers = {"Authorization": f"Bearer {_static_token(stack, 'admin')}"}
    return JsonClient(stack.api_url, headers, authority=_authority(stack))


def our_scheduler_config(stack: Stack) -> str:
    """What a cluster admin deploys, with the three things changed that differ outside a cluster."""
    text = _SCHEDULER_CONFIG.read_text()
    connection = f"clientConnection:\n  kubeconfig: {stack.kubeconfig('scheduler')}"
    text = _replace_once(text, r"^clientConnection:$", connection)
    text = _replace_once(text, r"^- urlPrefix: .*$", f"- urlPrefix: {stack.bridge_url}/scheduler")
    # A scheduler that can't renew its lease ends itself, and nothing here would start it again: tests stop the API
    # server for minutes. `_before_start` makes up for the long lease.
    for key, value in (("leaseDuration", "600s"), ("renewDeadline", "590s")):
        text = _replace_once(text, rf"^  {key}: .*$", f"  {key}: {value}")
    return text


def _replace_once(text: str, pattern: str, replacement: str) -> str:
    changed, count = re.subn(pattern, lambda _: replacement, text, flags=re.MULTILINE)
    if count != 1:
        raise Failure(
            f"{_SCHEDULER_CONFIG} has {count} lines that match {pattern}; the local stack needs exactly one"
        )
    return changed


def _etcd(stack: Stack) -> Part:
    url, peer = f"http://{stack.address('etcd')}", f"http://{stack.address('etcd-peer')}"
    command = (
        *program("etcd"),
        "--name=local",
        f"--data-dir={stack.kube / 'etcd'}",
        f"--listen-client-urls={url}",
        f"--advertise-client-urls={url}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=local={peer}",
        f"--quota-backend-bytes={4 << 30}",
        "--unsafe-no-fsync",  # a power cut may cost this stack its state, and that is all
        "--log-level=warn",
    )
    return Part("etcd", command, lambda: JsonClient(url).is_ok("/readyz"))


def _apiserver(stack: Stack) -> Part:
    pki = stack.kube / "pki"
    audit: tuple[str, ...] = ()
    if stack.options.audit:
        audit = (f"--audit-policy-file={_AUDIT_POLICY}", f"--audit-log-path={stack.audit_log}")
    command = (
        *program("kube-apiserver"),
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={stack.port('apiserver')}",
        f"--etcd-servers=http://{stack.address('etcd')}",
        f"--cert-dir={pki}",  # it makes a certificate for itself there
        f"--token-auth-file={_tokens_file(stack)}",
        "--authorization-mode=RBAC",
        "--anonymous-auth=true",
        "--allow-privileged=true",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki / 'service-accounts.pub'}",
        f"--service-account-signing-key-file={pki / 'service-accounts.key'}",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--endpoint-reconciler-type=none",  # a loopback address is no valid endpoint
        f"--feature-gates={_FEATURE_GATES}",
        f"--runtime-config={_EXTRA_APIS}",
        *audit,
    )
    return Part("apiserver", command, lambda: _api_is_ready(stack))


def _controller_manager(stack: Stack) -> Part:
    command = (
        *program("kube-controller-manager"),
        f"--kubeconfig={stack.kubeconfig('controller-manager')}",
        *_serving(stack, "controller-manager"),
        "--leader-elect=false",
        "--use-service-account-credentials=false",
        f"--service-account-private-key-file={stack.kube / 'pki' / 'service-accounts.key'}",
        f"--root-ca-file={_authority(stack)}",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
        f"--node-monitor-grace-period={stack.options.node_grace}s",
        f"--feature-gates={_FEATURE_GATES}",
        f"--controllers={','.join(_CONTROLLERS)}",
    )
    return Part("controller-manager", command, lambda: _is_healthy(stack, "controller-manager"))


def _scheduler(stack: Stack, name: str, config: str) -> Part:
    file = stack.kube / f"{name}.yaml"
    write_atomically(file, config)
    command = (
        *program("kube-scheduler"),
        f"--config={file}",
        *_serving(stack, name),
        f"--feature-gates={_FEATURE_GATES}",
    )
    return Part(name, command, lambda: _is_healthy(stack, name), configuration=config)


def _default_scheduler_config(stack: Stack) -> str:
    return f"""\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection:
  kubeconfig: {stack.kubeconfig("default-scheduler")}
leaderElection:
  leaderElect: false
"""


def _kwok(stack: Stack) -> Part:
    # A lease is renewed four times in its duration, which must stay well below the grace period.
    lease = 200 if stack.options.node_grace >= 400 else 40
    command = (
        *program("kwok"),
        f"--kubeconfig={stack.kubeconfig('kwok')}",
        f"--config={_KWOK_CONFIG}",
        "--manage-all-nodes=false",
        "--manage-nodes-with-label-selector=type=kwok",
        f"--server-address={stack.address('kwok')}",
        "--node-ip=127.0.0.1",
        f"--node-lease-duration-seconds={lease}",
    )
    health = JsonClient(f"http://{stack.address('kwok')}")
    return Part("kwok", command, lambda: health.is_ok("/healthz"), configuration=_KWOK_CONFIG.read_text())


def program(name: str) -> tuple[str, str]:
    return str(kubestack.executable()), name


def _serving(stack: Stack, name: str) -> tuple[str, ...]:
    """Health and metrics on loopback, readable without asking the API server who is asking."""
    return (
        "--bind-address=127.0.0.1",
        f"--secure-port={stack.port(name)}",
        f"--cert-dir={stack.kube / 'pki' / name}",
        "--authentication-skip-lookup=true",
        "--authorization-always-allow-paths=/*",
    )


def _is_healthy(stack: Stack, name: str) -> bool:
    return JsonClient(f"https://{stack.address(name)}").is_ok("/healthz")


def _api_is_ready(stack: Stack) -> bool:
    authority = _authority(stack)
    return authority.exists() and JsonClient(stack.api_url, authority=authority).is_ok("/readyz")


def _authority(stack: Stack) -> Path:
    return stack.kube / "pki" / "apiserver.crt"


def _tokens_file(stack: Stack) -> Path:
    return stack.kube / "tokens.csv"


def _static_token(stack: Stack, name: str) -> str:
    for row in _tokens_file(stack).read_text().splitlines():
        token, _, uid, _ = row.split(",", 3)
        if uid == name:
            return token
    raise Failure(f"{_tokens_file(stack)} has no user {name}: `stack reset` makes a new one")


def _write_kubeconfig(stack: Stack, name: str, token: str) -> None:
    text = f"""\
apiVersion: v1
kind: Config
current-context: local
contexts:
- name: local
  context: {{cluster: local, user: {name}}}
clusters:
- name: local
  cluster:
    server: {stack.api_url}
    certificate-authority: {_authority(stack)}
users:
- name: {name}
  user: {{token: {token}}}
"""
    write_atomically(stack.kubeconfig(name), text, 0o600)


def apply(stack: Stack, folder: Path) -> None:
    """Tried again: a fresh API server may still be making what the manifests build on."""
    deadline = time.monotonic() + _FRESH
    while True:
        try:
            kubectl(stack, "apply", "-k", str(folder))
            return
        except Failure:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise Failure(f"openssl {arguments[0]}: {done.stderr.strip()}")
