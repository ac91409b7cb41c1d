"""Every metric in one place, named and explained as the dashboards use them. Low cardinality: no pod, no job id."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

FAST = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
WAITS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 2, 5, 10, 30, 60, 300, 3600)

DECISIONS = Counter("slurm_bridge_decisions_total", "Looks at a group, by the verdict's reason.", ["reason"])
GROUPS = Gauge("slurm_bridge_groups", "Pods or gangs by the verdict on them now (the leader's).", ["reason"])
LONGEST = Gauge(
    "slurm_bridge_longest_seconds", "How long one of them has had that verdict, at most.", ["reason"]
)
STEPS = Counter(
    "slurm_bridge_steps_total", "Writes, by step type and result (ok or error class).", ["step", "result"]
)
SUBMITS = Counter("slurm_bridge_submits_total", "Answers to submits (docs/outcomes.md).", ["outcome"])
EXTENDER = Histogram("slurm_bridge_extender_seconds", "Extender answers.", ["verb", "answer"], buckets=FAST)
GRANT_TO_BOUND = Histogram(
    "slurm_bridge_grant_to_bound_seconds",
    "From seeing the job RUNNING to seeing the pod bound.",
    buckets=WAITS,
)
CREATE_TO_BOUND = Histogram(
    "slurm_bridge_create_to_bound_seconds", "From the pod's creation to seeing it bound.", buckets=WAITS
)
SLURM_REQUESTS = Histogram(
    "slurm_bridge_slurm_request_seconds", "Requests to slurmrestd.", ["route", "status"], buckets=FAST
)
SLURM_BYTES = Counter("slurm_bridge_slurm_bytes_total", "Bytes read from slurmrestd.", ["route"])
KUBE_REQUESTS = Histogram(
    "slurm_bridge_kubernetes_request_seconds", "Requests to the API server.", ["verb", "status"], buckets=FAST
)
POLL_AGE = Gauge("slurm_bridge_slurm_poll_age_seconds", "Age of the last complete state poll of Slurm.")
WATCH_AGE = Gauge(
    "slurm_bridge_kubernetes_watch_age_seconds", "Age of the picture of Kubernetes.", ["resource"]
)
TOKEN_EXPIRY = Gauge("slurm_bridge_slurm_token_expiry_seconds", "Seconds until the Slurm token expires.")
LEADING = Gauge("slurm_bridge_leading", "1 while this process holds the Lease.")
OFFICE = Counter(
    "slurm_bridge_leader_changes_total",
    "Changes of this process's office: won, lapsed (no renewal in time), ousted (another took the Lease), released.",
    ["change"],
)
QUEUE = Gauge("slurm_bridge_queue_length", "Groups waiting for a decision.")
NODES = Gauge("slurm_bridge_nodes", "Nodes of which the mirror says so: its reasons.", ["reason"])
NODE_POLL_AGE = Gauge("slurm_bridge_slurm_nodes_age_seconds", "Age of the picture of Slurm's nodes.")
BREAKER = Gauge("slurm_bridge_breaker_held_jobs", "Jobs that the breaker holds back; above 0: it is open.")
BREAKER_NODES = Gauge(
    "slurm_bridge_breaker_held_nodes", "Nodes whose drain the breaker holds back; above 0: it is open."
)
UNGATED = Gauge("slurm_bridge_ungated_unbound_pods", "Pods un-gated and not yet bound.")
DEVICES_AWAITED = Gauge(
    "slurm_bridge_devices_awaited",
    "Granted jobs of ours that wait until the last holder of their GPUs is dead.",
)
DEVICE_WAITS_EXPIRED = Counter(
    "slurm_bridge_device_waits_expired_total",
    "Grants given back because the last holder of their GPUs did not die within deviceWait. Alert on any.",
)
HANDOVERS = Counter(
    "slurm_bridge_handover_answers_total",
    "Answers to Slurm's hand-over hook: clear, busy, unknown (it can't be told, and is asked again); overrun: a native "
    "job runs beside a pod that may still use its GPUs, as its hook waited no longer. Alert on any overrun.",
    ["answer"],
)
HINTS = Counter(
    "slurm_bridge_hints_total",
    "Hints of Slurm's hooks: taken, foreign (no job of ours), limited.",
    ["answer"],
)
STALL = Gauge("slurm_bridge_loop_stall_seconds", "Longest stall of the event loop in the last 10 s.")
