"""Every well-known name in one place; each line says who writes it and who reads it.

Constants only. Names shared with SlinkyProject/slurm-bridge are a compatibility promise: never rename them.
"""

from typing import Final

# --- scheduling -----------------------------------------------------------------------------------
SCHEDULER_NAME: Final = (
    "slurm-bridge"  # users write it in spec.schedulerName; kube-scheduler's profile has it
)
UPSTREAM_SCHEDULER_NAME: Final = (
    "slurm-bridge-scheduler"  # the Go project's default: an identical second profile
)
DEFAULT_SCHEDULER_NAME: Final = "default-scheduler"  # Kubernetes' own: never ours
SCHEDULING_GATE: Final = (
    "scheduler.slinky.slurm.net/slurm"  # admission adds it; the leader lifts it at the grant
)

# --- pod metadata ---------------------------------------------------------------------------------
JOB_ID_LABEL: Final = (
    "scheduler.slinky.slurm.net/slurm-jobid"  # leader writes at the grant; filter and bind read
)
NODE_ANNOTATION: Final = (
    "slinky.slurm.net/slurm-node"  # leader writes: the Kubernetes node name; filter reads
)
GPUS_ANNOTATION: Final = "slinky.slurm.net/gpus"  # leader writes: Slurm's GRES indices; the container reads
GANG_ANNOTATION: Final = (
    "slinky.slurm.net/gang"  # leader writes at the grant, reads after a restart: which pods share a job
)
STARTED_ANNOTATION: Final = (
    "slinky.slurm.net/slurm-started"  # leader writes at the grant, reads: the job's start that gave the GPUs
)
ENVIRONMENT_PREFIX: Final = (
    "env.slinky.slurm.net/"  # leader writes: Slurm's variables by their names; the container reads
)
RANK_ANNOTATION: Final = f"{ENVIRONMENT_PREFIX}SLURM_PROCID"  # one of them; the leader reads it, too
SUBMITTED_ANNOTATION: Final = (
    "slinky.slurm.net/slurm-submitted"  # leader writes, reads: which job of the label's id
)
ATTEMPT_ANNOTATION: Final = (
    "slinky.slurm.net/attempt"  # leader writes after a lost grant (JSON), leader reads
)
UPSTREAM_FINALIZER: Final = "scheduler.slinky.slurm.net/finalizer"  # the Go project's; we only ever remove it

# --- node metadata --------------------------------------------------------------------------------
SLURM_NODENAME_LABEL: Final = "slinky.slurm.net/slurm-nodename"  # admins write: the Slurm name of this node
EXTERNAL_NODE_LABEL: Final = (
    "scheduler.slinky.slurm.net/external-node"  # admins write, with any value: registered in Slurm by us
)
NODE_PARTITIONS_ANNOTATION: Final = (
    "scheduler.slinky.slurm.net/external-node-partitions"  # admins write, "a,b": its features in Slurm
)
TOPOLOGY_ANNOTATION: Final = (
    "topology.slinky.slurm.net/spec"  # admins write: Slurm's topology of an external node; the operator reads
)
SLURM_NODE_CONDITION: Final = (
    "slinky.slurm.net/SlurmNode"  # leader writes on nodes: whether Slurm can use it, and why not
)
MANAGED_NODE_TAINT: Final = (
    "slinky.slurm.net/managed-node"  # leader and kubelet write; admission adds a toleration to our pods
)
UNAVAILABLE_TAINT: Final = (
    "slinky.slurm.net/slurm-unavailable"  # leader writes while Slurm can't use the node, and takes away
)
SLURMD_LABEL: Final = "app.kubernetes.io/name"  # slurm-operator writes "slurmd" on pods: never touched

# --- pod conditions -------------------------------------------------------------------------------
JOB_CONDITION: Final = "slinky.slurm.net/SlurmJob"  # leader writes: what Slurm says about the pod's job
DISRUPTION_CONDITION: Final = "DisruptionTarget"  # leader writes before a delete; podFailurePolicy reads
SCHEDULED_CONDITION: Final = "PodScheduled"  # kube-scheduler's; the leader repairs it after a late bind reply
OPERATOR_STATE_CONDITION: Final = (
    "SlurmNodeState"  # slurm-operator writes on slurmd pods, followed by a state of Slurm's; `nodes` shows it
)

# --- per-job options that users annotate ----------------------------------------------------------
OPTION_PREFIX: Final = "slurmjob.slinky.slurm.net/"  # users write; core.overrides reads
OLD_OPTION_PREFIX: Final = "slinky.slurm.net/"  # where the Go project had them before 1.0

# --- labels of others -----------------------------------------------------------------------------
COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"  # Job controller writes; grouping reads
JOBSET_JOB_INDEX: Final = "jobset.sigs.k8s.io/job-global-index"  # JobSet controller writes; grouping reads
JOBSET_RESTART: Final = "jobset.sigs.k8s.io/restart-attempt"  # a label: the same
LWS_GROUP_INDEX: Final = "leaderworkerset.sigs.k8s.io/group-index"  # LWS controller writes; grouping reads
LWS_NAME: Final = "leaderworkerset.sigs.k8s.io/name"  # a label: the same
LWS_REVISION: Final = "leaderworkerset.sigs.k8s.io/template-revision-hash"  # a label: the same
LWS_SIZE: Final = "leaderworkerset.sigs.k8s.io/size"  # an annotation: pods of the group
LWS_WORKER_INDEX: Final = "leaderworkerset.sigs.k8s.io/worker-index"  # the same; the leader is 0
POD_INDEX: Final = "apps.kubernetes.io/pod-index"  # StatefulSet controller writes; grouping reads
POD_GROUP_LABEL: Final = (
    "scheduling.x-k8s.io/pod-group"  # users write: the coscheduling PodGroup; grouping reads
)
SELECTED_NODE_ANNOTATION: Final = (
    "volume.kubernetes.io/selected-node"  # kube-scheduler writes on a claim: where its volume is made
)
EXTENDED_DEVICE_CLASS_PREFIX: Final = "deviceclass.resource.kubernetes.io/"  # DRA resources by device class

# --- the bridge's Lease ---------------------------------------------------------------------------
CLOSE_BREAKER_ANNOTATION: Final = (
    "slinky.slurm.net/close-breaker"  # operators write anything new; the leader reads
)
WATCHED_ANNOTATION: Final = (
    "slinky.slurm.net/watched-until"  # leader writes: slurmctld's time; the next one reads
)

# --- Slurm ----------------------------------------------------------------------------------------
DRAIN_PREFIX: Final = (
    "slurm-bridge:"  # how the reason of a drain of ours begins; nobody else's drain is ever cleared
)
EXTERNAL_JOB_FLAG: Final = "EXTERNAL_JOB"  # submit writes: the job has no process of Slurm's own

# --- ourselves ------------------------------------------------------------------------------------
COMPONENT: Final = "slurm-bridge"  # Event source, field manager, lease name
