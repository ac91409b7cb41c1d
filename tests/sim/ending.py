"""Has everything come right, when nothing goes wrong any more? And what people do about what waits for them.

In: a simulation, and its machines where the nodes are mirrored. Out: what is left to be done, as a violation.
"""

from __future__ import annotations

from dataclasses import replace

from bridge.core.invariants import converged
from bridge.core.model import is_ended
from bridge.core.nodeinvariants import nodes_agree
from bridge.core.violation import Violation
from bridge.names import JOB_CONDITION, OPTION_PREFIX
from tests.sim.machines import Machines
from tests.sim.simulation import Simulation

LIMIT = f"{OPTION_PREFIX}timelimit"
SHORT = 10  # minutes: a job with such a limit ends while everything calms down


def unfinished(sim: Simulation, machines: Machines | None) -> Violation | None:
    """There is room for everybody, but where a node stays drained, as pods use there what Slurm doesn't count."""
    seen = sim.witness.picture()
    room = sum(1 for name in seen.nodes if name not in seen.drained)
    taken = any(job.nodes and not is_ended(job.states) for job in seen.jobs)
    for pod in seen.pods:
        live = [job for job in seen.own(pod.uid) if not is_ended(job.states)]
        if any("PENDING" in job.states and job.parts for job in live) and (
            len(live[0].parts) > room or taken
        ):
            continue  # components share no node, and Slurm gives the first its node without a thought for the next
        shown = pod.condition(JOB_CONDITION)
        if not live and shown is not None and "sizes: most" in shown.message:
            continue  # where Slurm numbers the jobs, pods of several sizes are refused, with what to do
        short = any(0 < (job.time_limit or 0) <= SHORT for job in live) if live else LIMIT in pod.annotations
        less = not pod.node and bool(seen.drained)
        if not pod.ended and not less and (pod.phase != "Running" or short):
            what = "runs on, although its time is over" if short else "does not run, although there is room"
            return Violation("converged", f"pod {pod.ref} {what}")
    # Slurm has no compare-and-set: two leaders that drain and mark a node in one moment leave it to a person.
    judged = machines is not None and not sim.witness.rivals
    found = converged(seen) + (nodes_agree(seen) if judged else ())
    if found:
        return found[0]
    return machines.unfinished() if machines is not None else None


def resume_empty(sim: Simulation, machines: Machines | None) -> None:
    """A person has looked at nodes that were drained because something might still run there: nothing does."""
    if machines is not None:
        machines.give_back()
        return
    used = {pod["spec"].get("nodeName") for pod in sim.pods()}
    for node in tuple(sim.slurm.nodes.values()):
        if node.drained and node.name not in used:
            sim.slurm.set_node(replace(node, drained=False))
