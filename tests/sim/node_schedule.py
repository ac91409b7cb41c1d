"""What befalls nodes in a schedule whose nodes are mirrored: one action a draw."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from tests.sim.actions import (
    Action,
    Admin,
    Cordon,
    Deaf,
    Gone,
    KubeFault,
    NodeAway,
    Reboot,
    Rejects,
    Reserve,
    Resize,
    Silence,
    SlurmFault,
    Taint,
    Unlabel,
)

KINDS: Final = ("external", "external", "slurmd", "both")
SHARE: Final = 0.5  # of the steps of such a schedule
WEIGHTS: Final = {
    "node_cordon": 14, "node_away": 6, "silence": 8, "node_taint": 8, "unlabel": 5, "gone": 6, "resize": 6, "reboot": 3,
    "rejects": 3, "admin": 22, "reserve": 4, "deaf": 4, "node_list": 6, "node_fault": 8,
}  # fmt: skip
TAINTS: Final = ("node.kubernetes.io/disk-pressure", "node.kubernetes.io/out-of-service", "example.com/mine")
REASONS: Final = (
    "fan broken", "health check: XID 79", "see slurm-bridge: cordoned in Kubernetes", "slurm-operator: maintenance",
    "Slurm-bridge: no", "two\nlines with \"quotes\"", "",
)  # fmt: skip
STATES: Final = ("DRAIN", "DRAIN", "DRAIN", "DRAIN", "RESUME", "RESUME", "FAIL", "DOWN")
WHILES: Final = (1.0, 3.0, 10.0, 40.0)


def draw(rng: random.Random, nodes: Sequence[str], more: Sequence[str], extra: int) -> Action:
    """`more`: kinds that shall come more often, by so much weight."""
    weights = {kind: weight + extra * (kind in more) for kind, weight in WEIGHTS.items()}
    node, seconds = rng.choice(nodes), rng.choice(WHILES)
    match rng.choices(list(weights), list(weights.values()))[0]:
        case "node_cordon":
            return Cordon(node=node, seconds=seconds)
        case "node_away":
            return NodeAway(node=node, seconds=seconds)
        case "silence":
            return Silence(
                node=rng.choice(("", node)), says=rng.choice(("False", "Unknown")), seconds=seconds
            )
        case "node_taint":
            return Taint(node=node, key=rng.choice(TAINTS), seconds=seconds)
        case "unlabel":
            return Unlabel(node=node, seconds=rng.choice((*WHILES, 130.0)))
        case "gone":
            return Gone(node=node, seconds=rng.choice((*WHILES, 130.0)))
        case "resize":
            cpus, gpus = rng.choice(((64, 3), (32, 4), (63, 4), (48, 4)))
            return Resize(node=node, cpus=cpus, gpus=gpus, seconds=rng.choice((1.0, 10.0, 40.0, 150.0)))
        case "reboot":
            return Reboot(node=node)
        case "rejects":
            return Rejects(node=node, seconds=rng.choice((10.0, 40.0)))
        case "admin":
            state = rng.choice(STATES)
            reason = "" if state == "RESUME" else rng.choice(REASONS)
            stays = state == "RESUME" or rng.random() < 0.3
            return Admin(node=node, state=state, reason=reason, seconds=0.0 if stays else seconds)
        case "reserve":
            return Reserve(node=node, seconds=seconds)
        case "deaf":
            return Deaf(node=node, seconds=seconds)
        case "node_list":
            if rng.random() < 0.5:
                return KubeFault(kind="empty-nodes", verb=None, times=rng.randrange(1, 3))
            kind = rng.choice(("empty-nodes", "short-nodes"))
            return SlurmFault(kind=kind, route="", times=rng.randrange(1, 4))
        case "node_fault":
            kind = rng.choice(("drop-before", "drop-after", "500", "502", "truncate", "errors", "html"))
            route = rng.choice(("POST node/", "GET node", "new/node", "DELETE node/"))
            return SlurmFault(kind=kind, route=route, times=rng.randrange(1, 4))
    raise AssertionError
