"""A gang's job: a task for each pod, each with its own CPUs, memory and GPUs, and as many on a node as Slurm likes.

Slurm is asked by the task: memory by the CPU, GPUs by the task (both measured with external jobs of 26.05), so that it
may pack unlike numbers of pods on nodes and still count exactly. What a person asks for by the node stays by the node.
"""

from __future__ import annotations

import math
from dataclasses import replace

from bridge.core import devices
from bridge.core.constraints import HostPort
from bridge.core.model import JobSpec
from bridge.core.overrides import Options, key
from bridge.errors import UserError

BY_PERSON = ("owner", "pod")  # layers of annotations


def by_task(spec: JobSpec, options: Options, gpus: int = 0) -> JobSpec:
    """The same by the task; whole nodes, or as many as pods, get like numbers of pods, and memory by the node. Of GPUs
    by the node each pod gets as many as kubelet gives it, `gpus`, and one at least."""
    memory = memory_of_one = spec.memory_mib
    per_cpu: int | None = None
    if options.sources.get("memory_mib") not in BY_PERSON and memory is not None:
        per_cpu = math.ceil(memory / spec.cpus_per_task)
        memory = None
    by_node = options.sources.get("gres") in BY_PERSON
    most = math.ceil(spec.tasks / spec.nodes_min) if spec.exclusive or spec.nodes_min == spec.tasks else None
    if most is not None and per_cpu is not None and memory_of_one is not None:
        memory, per_cpu = memory_of_one * most, None  # of whole nodes every CPU would count
    if by_node and (shared := devices.wanted(spec.gres)):
        enough = max(1, shared // max(1, gpus))
        most = enough if most is None else min(most, enough)
    return replace(
        spec,
        memory_mib=memory,
        memory_per_cpu=per_cpu,
        gres=spec.gres if by_node else "",
        gres_per_task="" if by_node else spec.gres,
        tasks_per_node=most,
    )


def node_counts(pods: int, options: Options, whose: str, port: HostPort | None = None) -> Options:
    """Whole nodes: one for each pod; also of pods that use one host port, `port`. Raises UserError for more nodes than
    pods, for fewest above most, and for fewer nodes than such pods."""
    asked = {field: options.sources.get(field) in BY_PERSON for field in ("nodes_min", "nodes_max")}
    low, high = options.nodes_min or 1, options.nodes_max or pods
    if port is not None and asked["nodes_max"] and high < pods:
        raise UserError(
            f"{whose}: {key('max-nodes')}: {high} nodes for {pods} pods that use host port {port};"
            " allow one for each, or take the host port out"
        )
    if port is not None or (options.exclusive and not any(asked.values())):
        return replace(options, nodes_min=pods, nodes_max=pods)
    if low > pods:
        raise UserError(f"{whose}: {key('min-nodes')}: {low} nodes for {pods} pods; ask for {pods} at most")
    if low > high:
        raise UserError(
            f"{whose}: {key('min-nodes')} {low} is more than {key('max-nodes')} {high};"
            " raise the second or lower the first"
        )
    return replace(options, nodes_min=low, nodes_max=min(high, pods))
