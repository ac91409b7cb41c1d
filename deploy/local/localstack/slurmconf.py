"""slurm.conf and its companions.

In: a stack's options and ports, and the hook of deploy/slurm. Out: the text of each file in /etc/slurm. Nothing is
written here.
"""

from __future__ import annotations

from localstack.layout import REPO, Stack
from localstack.rootfs import GPUS

CPUS_HYBRID, MEMORY_HYBRID = 32, 64000
CPUS_EXTERNAL, MEMORY_EXTERNAL = 64, 512000
GPU_TYPE = "h100"
JWT_KEY = "/etc/slurm/jwt_hs256.key"
HOOK = "/etc/slurm/handover"


def files(stack: Stack, host: str) -> dict[str, str]:
    texts = {
        "slurm.conf": _slurm_conf(stack, host),
        "gres.conf": _gres_conf(stack),
        "cgroup.conf": "CgroupPlugin=disabled\n",
        "handover": (REPO / "deploy/slurm/handover").read_text(),
        "handover.conf": f"SLURM_BRIDGE={stack.bridge_url.removeprefix('http://')}\nSLURM_BRIDGE_LOG=/tmp/handover.log\n",
    }
    if stack.options.accounting:
        texts["slurmdbd.conf"] = _slurmdbd_conf(stack, host)
    return texts


def _slurm_conf(stack: Stack, host: str) -> str:
    operator = stack.options.slurm_conf == "operator"
    sections = [
        _addresses(stack, host),
        _authentication(stack),
        _ONE_MACHINE,
        _as_the_operator_does(stack) if operator else _tuned(stack) + _hooks(stack),
        _accounting(stack),
        _nodes(stack, host),
        _partitions(operator),
    ]
    return "\n".join(section for section in sections if section)


def _addresses(stack: Stack, host: str) -> str:
    return f"""\
ClusterName=local
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={stack.port("slurmctld")}
SlurmdPort={stack.port("slurmd-n1")}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
"""


def _authentication(stack: Stack) -> str:
    # auth/slurm signs job credentials too, but only from 25.05 on.
    credentials = "cred/slurm" if stack.options.suite == "trixie" else "auth/slurm"
    return f"""\
SlurmUser=slurm
AuthType=auth/slurm
AuthInfo=use_client_ids
CredType={credentials}
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={JWT_KEY}
"""


# Several slurmds on one machine, without cgroups and without the hardware that they claim to have.
_ONE_MACHINE = """\
StateSaveLocation=/var/lib/slurm/ctld
SlurmdSpoolDir=/var/spool/slurmd/%n
SlurmctldPidFile=/run/slurmctld/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd-%n.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MailProg=/bin/true
SlurmdParameters=config_overrides
ReturnToService=2
GresTypes=gpu
"""


def _as_the_operator_does(stack: Stack) -> str:
    """What an installation by Slurm's Kubernetes operator has; what is not here stays at Slurm's default."""
    return f"""\
MaxNodeCount=1024
MinJobAge={stack.options.min_job_age}
SlurmctldParameters=enable_configless
"""


def _tuned(stack: Stack) -> str:
    trixie = stack.options.suite == "trixie"
    # Where a job's `extra` is read as a selector, ours must be taken all the same.
    selectors = "" if trixie else "extra_constraints,"
    return f"""\
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
# Without a default an sbatch job takes all memory of its node, and nothing can share the node with it.
DefMemPerCPU=1000
MCSPlugin=mcs/{"user" if trixie else "label"}
MCSParameters=ondemand{"" if trixie else ",ondemandselect"}
MaxNodeCount=12000
MaxJobCount=50000
MinJobAge={stack.options.min_job_age}
SlurmctldParameters=enable_job_state_cache
# Starts a job within half a second of its submission instead of two.
SchedulerParameters={selectors}batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1,default_queue_depth=1000
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
"""


def _hooks(stack: Stack) -> str:
    """Hints for the bridge; the hook that native jobs wait for makes each start slower, so it must be asked for."""
    lines = [f"EpilogSlurmctld={HOOK}", "JobCompType=jobcomp/script", f"JobCompLoc={HOOK}"]
    if stack.options.handover:
        lines.append(f"PrologSlurmctld={HOOK}")
    return "\n".join(lines) + "\n"


def _accounting(stack: Stack) -> str:
    if not stack.options.accounting:
        return ""
    return f"""\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={stack.port("slurmdbd")}
AccountingStorageTRES=gres/gpu
AccountingStorageEnforce=associations,limits,qos
AccountingStoreFlags=job_comment,job_extra
PriorityType=priority/multifactor
PriorityWeightFairshare=10000
PriorityWeightQOS=1000
"""


def _nodes(stack: Stack, host: str) -> str:
    count = stack.options.hybrid
    lines = ["NodeSet=bridge Feature=bridge"]
    if count:
        first = stack.port("slurmd-n1")
        lines.append(
            f"NodeName=n[1-{count}] NodeHostname={host} NodeAddr=127.0.0.1 Port={first}-{first + count - 1}"
            f" CPUs={CPUS_HYBRID} Boards=1 SocketsPerBoard=2 CoresPerSocket={CPUS_HYBRID // 2}"
            f" ThreadsPerCore=1 RealMemory={MEMORY_HYBRID} Gres=gpu:{GPU_TYPE}:{GPUS}"
            " Feature=slurmd,bridge State=UNKNOWN"
        )
    return "\n".join(lines) + "\n"


def _partitions(operator: bool) -> str:
    """Pods and sbatch jobs share the nodes at one priority tier; `hi` exists to preempt both."""
    tier = "" if operator else " PriorityTier=1"
    lines = [
        f"PartitionName=all Nodes=ALL Default=YES MaxTime=UNLIMITED State=UP{tier}",
        f"PartitionName=slurm-bridge Nodes=bridge MaxTime=UNLIMITED State=UP{tier}",
    ]
    if not operator:
        lines.append("PartitionName=hi Nodes=ALL MaxTime=UNLIMITED State=UP PriorityTier=100")
    return "\n".join(lines) + "\n"


def _gres_conf(stack: Stack) -> str:
    lines = ["AutoDetect=off"]
    if stack.options.hybrid:
        nodes = f"n[1-{stack.options.hybrid}]"
        lines.append(f"NodeName={nodes} Name=gpu Type={GPU_TYPE} File=/srv/gpu[0-{GPUS - 1}]")
    return "\n".join(lines) + "\n"


def external_node(stack: Stack, name: str) -> str:
    """The definition of a node without a slurmd.

    Its address is that of n1's slurmd: whatever slurmctld sends to the node (a signal, say) is answered there
    with "no such job". At a dead address the first unanswered message would mark the node as not responding
    for ever.
    """
    sink = f" Port={stack.port('slurmd-n1')}" if stack.options.hybrid else ""
    half, last = GPUS // 2, GPUS - 1
    cores = CPUS_EXTERNAL // 2
    gpus = "+".join(
        f"count={half},name=gpu,type={GPU_TYPE},file=/dev/nvidia[{devices}],cpus={cpus}"
        for devices, cpus in (
            (f"0-{half - 1}", f"0-{cores - 1}"),
            (f"{half}-{last}", f"{cores}-{CPUS_EXTERNAL - 1}"),
        )
    )
    return (
        f"NodeName={name} NodeAddr=127.0.0.1{sink} State=EXTERNAL CPUs={CPUS_EXTERNAL} SocketsPerBoard=2"
        f" CoresPerSocket={cores} RealMemory={MEMORY_EXTERNAL} Gres=gpu:{GPU_TYPE}:{GPUS} GresConf={gpus}"
        " Feature=bridge"
    )


def _slurmdbd_conf(stack: Stack, host: str) -> str:
    return f"""\
AuthType=auth/slurm
AuthInfo=use_client_ids
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={JWT_KEY}
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={stack.port("slurmdbd")}
SlurmUser=slurm
LogFile=/var/log/slurm/slurmdbd.log
PidFile=/run/slurmdbd/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
StorageHost=localhost
CommunicationParameters=NoInAddrAny
"""
