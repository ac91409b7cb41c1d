"""Pods of ours on nodes that no job of ours ever held: created with spec.nodeName, or bound by somebody else.

Goes in: facts, the members that run. Comes out: a Decision. What must stay true: nothing is done to such a pod but to
tell on it, once, what is wrong; and a pod whose job just can't be seen now is not told that it has none.
"""

from __future__ import annotations

from collections.abc import Sequence

from bridge.core.conditions import job_condition, worth_writing
from bridge.core.facts import Facts, Member
from bridge.core.model import Pod
from bridge.core.steps import Decision, Notify, SetConditions, Step
from bridge.core.verdict import Reason, Verdict
from bridge.names import JOB_CONDITION, NODE_ANNOTATION


def stray(facts: Facts, running: Sequence[Member]) -> Decision:
    """They are left alone."""
    text = "the pod sits on a node without a job of ours; it is left alone"
    if not facts.slurm_fresh:
        return Decision(verdict=Verdict(Reason.FOREIGN, text), again=2.0)
    pods = [m.pod for m in running if m.pod.node and not m.pod.deleted and _never_had_a_job(m.pod)]
    if not pods or facts.sights or facts.unknown:
        return Decision(verdict=Verdict(Reason.FOREIGN, text))
    text = (
        f"no job holds node {pods[0].node} for the pod, so Slurm may give its CPUs and GPUs to others; delete the "
        "pod and create it without spec.nodeName: Slurm chooses the node"
    )
    verdict = Verdict(Reason.FOREIGN, text)
    shown = job_condition(None, facts.now, refused=text, reason=verdict.reason)
    steps: list[Step] = []
    for pod in pods:
        if worth_writing(pod, shown, facts.now):
            steps += [SetConditions(pod=pod, conditions=(shown,)), Notify(pod=pod, verdict=verdict)]
    return Decision(verdict=verdict, steps=tuple(steps))


def _never_had_a_job(pod: Pod) -> bool:
    """Label and annotation may be taken off by anybody who may edit the pod; its status is not edited by accident."""
    shown = pod.condition(JOB_CONDITION)
    return NODE_ANNOTATION not in pod.annotations and (shown is None or shown.reason == Reason.FOREIGN)
