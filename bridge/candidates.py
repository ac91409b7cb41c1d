"""Which nodes can take which waiting pods: `core.fit`, asked again only where a change of a node or a pod counts.

Goes in: every change of nodes, pods and storage. Comes out: the `Fit` of some pods, at any moment, and which pods may
have another one since they asked last. Pods of equal needs share an answer, and a change of one node costs one question
an answer, so that a thousand nodes and ten thousand waiting pods cost little. A cache like all of memory: the first
look at a pod after a restart makes its answer again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from fractions import Fraction
from sys import intern

from bridge.core import fit as core_fit
from bridge.core.constraints import HostPort, StorageClass, Terms, Volume, VolumeClaim
from bridge.core.facts import Sight
from bridge.core.fit import EVERYWHERE, OVERCOMMITTED, STRANGER, UNUSED, UNWANTED, Fit, Needs, Taken
from bridge.core.model import KubeNode, Node, Pod, SlurmNode, Uid
from bridge.core.twins import slurm_name
from bridge.kube.store import Store
from bridge.names import NODE_ANNOTATION

ABSENT = "waiting for"  # begins what is said of an object that is certainly not there

Amounts = tuple[tuple[str, Fraction], ...]
_Source = tuple[
    str, ...
]  # an object of storage: ("claim", namespace, name), ("volume", name), ("class", name)
_Seat = tuple[KubeNode, tuple[HostPort, ...], Amounts]  # what a pod takes on its node


class _Answer:
    """For all pods of equal needs."""

    def __init__(self, needs: Needs, obstacles: dict[KubeNode, str]) -> None:
        self.needs = needs
        self.obstacles = obstacles  # of every node of Kubernetes
        self.pods: dict[Uid, None] = {}
        self.fits: dict[
            str, tuple[object, object, Fit]
        ] = {}  # by partition; the nodes of both sides it is made of


class Candidates:
    """`nodes`: Kubernetes nodes by Slurm name, the same mapping until one changes; `known`: the Slurm nodes of a
    partition, the same set until it changes, None = they have not been read."""

    def __init__(
        self,
        store: Store,
        nodes: Callable[[], Mapping[SlurmNode, Node]],
        known: Callable[[str], frozenset[SlurmNode] | None],
    ) -> None:
        self._store = store
        self._nodes = nodes
        self._known = known
        self._answers: dict[Needs, _Answer] = {}
        self._asked: dict[Uid, tuple[Pod, _Answer]] = {}
        self._seated: dict[KubeNode, tuple[int, Counter[HostPort]]] = {}
        self._amounts: dict[tuple[KubeNode, bool], dict[str, Fraction]] = {}  # of pods of ours, or of others
        self._tight = frozenset[KubeNode]()
        self._users: dict[_Source, dict[Uid, None]] = {}
        self._uses: dict[Uid, tuple[_Source, ...]] = {}
        self._stirred: dict[_Answer, None] = {}
        self._stirred_pods: dict[Uid, None] = {}
        self._seen: Mapping[SlurmNode, Node] | None = None
        self._overcommitted = frozenset[SlurmNode]()
        store.nodes.on_change(self._on_node)
        store.pods.on_change(self._on_seat)
        store.pods.on_pod(self._on_pod)
        store.claims.on_change(lambda old, new: self._on_storage(_claim(old or new)))
        store.volumes.on_change(lambda old, new: self._on_storage(_named("volume", old or new)))
        store.storage_classes.on_change(lambda old, new: self._on_storage(_named("class", old or new)))

    # --- questions --------------------------------------------------------------------------------

    def fit(
        self,
        pods: Iterable[Pod],
        partition: str,
        unwanted: Collection[SlurmNode] = (),
        *,
        named: bool = False,
    ) -> Fit:
        """Of those that wait for a node: what one of them cannot use, none gets. `unwanted` by their own word. `named`:
        others read the answer, too."""
        asking: dict[_Answer, list[Pod]] = {}
        for pod in pods:
            if not pod.node and pod.uid in self._store.pods.ours:
                asking.setdefault(self._answer(pod), []).append(pod)
        if not asking:
            return EVERYWHERE
        found = self._found(list(asking), partition)
        if not found.hopeless and not self._none_left(found, partition, unwanted):
            return found
        (first, *_) = asking.values()
        named = named or len(asking) > 1 or len(first) > 1
        if found.hopeless and not named:
            return found
        return replace(found, hopeless=self._hopeless(asking, partition, unwanted, named=named))

    def _found(self, answers: list[_Answer], partition: str) -> Fit:
        if len(answers) == 1:
            return self._shared(answers[0], partition)
        return self._fit({n: why for a in reversed(answers) for n, why in a.obstacles.items()}, partition)

    def _none_left(self, found: Fit, partition: str, unwanted: Collection[SlurmNode]) -> bool:
        known = self._known(partition)
        return bool(known and unwanted and known.issubset({*unwanted, *(found.excluded or ())}))

    def _hopeless(
        self,
        asking: Mapping[_Answer, list[Pod]],
        partition: str,
        unwanted: Collection[SlurmNode],
        *,
        named: bool,
    ) -> str:
        """No node can take all of them: perhaps as one kind of pod finds none."""
        kinds: list[tuple[list[Pod], Collection[str]]] = []
        for answer, pods in asking.items():
            found = self._shared(answer, partition)
            known = self._known(partition)
            shut = dict(found.obstacles)
            if known is not None:
                shut = {name: found.obstacles.get(name, STRANGER) for name in found.excluded or ()}
                if not found.hopeless:
                    shut = dict.fromkeys(known.intersection(unwanted), UNWANTED) | shut
            if found.hopeless or self._none_left(found, partition, unwanted):
                where = partition if known is not None else ""
                return core_fit.none_can(shut.values(), where, pods if named else ())
            kinds.append((pods, shut.values()))
        return core_fit.at_odds(kinds, partition)

    def beside(self, pods: Iterable[Pod], sights: Iterable[Sight]) -> Mapping[SlurmNode, Taken]:
        """On the nodes of their jobs, while none of them has been let go: what pods take that Slurm does not count."""
        if any(NODE_ANNOTATION in pod.annotations for pod in pods):
            return {}
        twins = self._nodes()
        held = {n for s in sights if s.live and s.record is not None for n in s.record.nodes}
        return {name: self._beside(twins[name].name) for name in held if name in twins}

    def unread(self, pods: Iterable[Pod]) -> str:
        """That what they mount is not there, or that nobody has read yet where it lies; "" = neither."""
        settled, denied = self._store.storage_settled, self._store.storage_denied()
        for pod in pods:
            for name in pod.volume_claims:
                if not settled:
                    return f"PersistentVolumeClaim {pod.namespace}/{name} has not been read yet"
                if not denied and self._store.claims.get(pod.namespace, name) is None:
                    return f"{ABSENT} PersistentVolumeClaim {pod.namespace}/{name}, which does not exist"
        return ""

    def stirred(self) -> list[Uid]:
        """Waiting pods that may have another answer than when they asked last; each is told once."""
        nodes, before = self._nodes(), self._seen
        self._seen = nodes
        if before is not None and before is not nodes and before.keys() != nodes.keys():
            self._stirred |= dict.fromkeys(self._answers.values())
        self._stir_partitions()
        found = dict(self._stirred_pods)
        for answer in self._stirred:
            found |= answer.pods
        self._stirred.clear()
        self._stirred_pods.clear()
        return list(found)

    def _stir_partitions(self) -> None:
        """A node that has just been registered is in none before Slurm is asked again which nodes they have."""
        for answer in self._answers.values():
            for name in [name for name, found in answer.fits.items() if found[1] is not self._known(name)]:
                del answer.fits[name]
                self._stirred[answer] = None

    def overcommitted(self, names: frozenset[SlurmNode]) -> None:
        """These no pod gets, whatever it asks for."""
        if names == self._overcommitted:
            return
        self._overcommitted = names
        for answer in self._answers.values():
            answer.fits.clear()
            self._stirred[answer] = None

    def tight(self, names: frozenset[KubeNode]) -> None:
        """Slurm offers more of these than kubelet can hold: what pods of ours take there counts, too."""
        changed, self._tight = names ^ self._tight, names
        for name in changed:
            if (node := self._store.node(name)) is not None:
                self._look_again(name, node)

    # --- answers ----------------------------------------------------------------------------------

    def _answer(self, pod: Pod) -> _Answer:
        known = self._asked.get(pod.uid)
        if known is not None and _alike(known[0], pod):
            self._asked[pod.uid] = pod, known[1]
            return known[1]
        self._leave(pod.uid)
        volumes, sources = self._reach(pod)
        needs = core_fit.needs(pod, volumes)
        answer = self._answers.get(needs)
        if answer is None:
            obstacles = {node.name: why for node in self._store.nodes if (why := self._obstacle(needs, node))}
            answer = self._answers[needs] = _Answer(needs, obstacles)
        answer.pods[pod.uid] = None
        self._asked[pod.uid] = pod, answer
        if sources:
            self._uses[pod.uid] = sources
            for source in sources:
                self._users.setdefault(source, {})[pod.uid] = None
        return answer

    def _reach(self, pod: Pod) -> tuple[tuple[Terms, ...], tuple[_Source, ...]]:
        """Where its volumes can be mounted, and on what that depends, objects that aren't there included."""
        found: list[Terms] = []
        sources: list[_Source] = []
        for name in pod.volume_claims:
            claim = self._store.claims.get(pod.namespace, name)
            volume = self._store.volumes.get(claim.volume) if claim is not None else None
            kind = self._store.storage_classes.get(claim.storage_class) if claim is not None else None
            sources.append(("claim", pod.namespace, name))
            if claim is not None:
                sources += [("volume", claim.volume), ("class", claim.storage_class)]
            if (terms := core_fit.reach(claim, volume, kind)) is not None:
                found.append(terms)
        return tuple(found), tuple(sources)

    def _obstacle(self, needs: Needs, node: Node) -> str:
        # A thousand nodes may fail by one rule.
        return intern(core_fit.obstacle(needs, node, self._beside(node.name)))

    def _beside(self, name: KubeNode) -> Taken:
        seated = self._seated.get(name)
        return Taken(*seated, self._taken(name)) if seated is not None else UNUSED

    def _taken(self, name: KubeNode) -> Mapping[str, Fraction]:
        others = self._amounts.get((name, False), {})
        if name not in self._tight:
            return others
        mine = self._amounts.get((name, True), {})
        return {of: others.get(of, Fraction()) + mine.get(of, Fraction()) for of in (*others, *mine)}

    def _shared(self, answer: _Answer, partition: str) -> Fit:
        nodes, known = self._nodes(), self._known(partition)
        before = answer.fits.get(partition)
        if before is not None and before[0] is nodes and before[1] is known:
            return before[2]
        found = self._fit(answer.obstacles, partition)
        answer.fits[partition] = nodes, known, found
        return found

    def _fit(self, obstacles: Mapping[KubeNode, str], partition: str) -> Fit:
        nodes, known = self._nodes(), self._known(partition)
        failing = {name: why for name, node in nodes.items() if (why := obstacles.get(node.name, ""))}
        failing |= dict.fromkeys(self._overcommitted & nodes.keys(), OVERCOMMITTED)
        if known is None:
            return Fit(failing, None, _none_can(failing.values(), len(nodes)))
        strangers = dict.fromkeys(known - nodes.keys(), STRANGER)
        shut = strangers | {name: failing[name] for name in known.intersection(failing)}
        return Fit(failing, tuple(sorted(shut)), _none_can(shut.values(), len(known), partition))

    def _leave(self, uid: Uid) -> None:
        """The pod waits no longer, or asks for something else."""
        for source in self._uses.pop(uid, ()):
            self._users[source].pop(uid, None)
            if not self._users[source]:
                del self._users[source]
        known = self._asked.pop(uid, None)
        if known is not None:
            known[1].pods.pop(uid, None)
            if not known[1].pods:
                del self._answers[known[1].needs]

    # --- changes ----------------------------------------------------------------------------------

    def _on_node(self, old: Node | None, new: Node | None) -> None:
        node = new or old
        assert node is not None
        renamed = old is None or new is None or slurm_name(old) != slurm_name(new)
        self._look_again(node.name, new, everybody=renamed)

    def _look_again(self, name: KubeNode, node: Node | None, *, everybody: bool = False) -> None:
        for answer in self._answers.values():
            why = self._obstacle(answer.needs, node) if node is not None else ""
            same = why == answer.obstacles.get(name, "")
            if why:
                answer.obstacles[name] = why
            else:
                answer.obstacles.pop(name, None)
            if everybody or not same:
                answer.fits.clear()
                self._stirred[answer] = None

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is not None and (new is None or new.node or new.ended):
            self._leave(pod.uid)

    def _on_seat(self, old: Pod | None, new: Pod | None) -> None:
        """Of every pod of the cluster: what it takes on its node while it has not ended."""
        if old is not None and new is not None and _sits_alike(old, new):
            return
        for pod, seat, sign in ((old, _seat(old), -1), (new, _seat(new), 1)):
            if pod is not None and seat is not None:
                self._seat(*seat, sign, ours=self._store.pods.is_ours(pod.scheduler))

    def _seat(
        self, name: KubeNode, ports: tuple[HostPort, ...], amounts: Amounts, sign: int, *, ours: bool
    ) -> None:
        count, used = self._seated.get(name, (0, Counter[HostPort]()))
        for port in ports:
            used[port] += sign
            if not used[port]:
                del used[port]
        node = self._store.node(name)
        limit = core_fit.most_pods(node) if node is not None else None
        turns = limit is not None and (count >= limit) != (count + sign >= limit)
        sums = self._amounts.setdefault((name, ours), {})
        for of, amount in amounts:
            sums[of] = sums.get(of, Fraction()) + sign * amount
        if count + sign or used:
            self._seated[name] = count + sign, used
        else:
            self._seated.pop(name, None)
            self._amounts.pop((name, True), None)
            self._amounts.pop((name, False), None)
        if ports or turns or (amounts and (not ours or name in self._tight)):
            self._look_again(name, node)

    def _on_storage(self, source: _Source) -> None:
        for uid in tuple(self._users.get(source, ())):
            self._leave(uid)
            self._stirred_pods[uid] = None


def _alike(one: Pod, other: Pod) -> bool:
    """Nothing that their needs are made of differs."""
    return one is other or _asks(one) == _asks(other)


def _sits_alike(one: Pod, other: Pod) -> bool:
    return (one.node, one.ended) == (other.node, other.ended) and _alike(one, other)


def _asks(pod: Pod) -> tuple[object, ...]:
    return (
        pod.constraints, pod.containers, pod.init_containers, pod.overhead, pod.resources, pod.volume_claims
    )  # fmt: skip


def _seat(pod: Pod | None) -> _Seat | None:
    if pod is None or not pod.node or pod.ended:
        return None
    return pod.node, pod.constraints.ports, core_fit.needs(pod, ()).requests


def _claim(claim: VolumeClaim | None) -> _Source:
    return ("claim", claim.namespace, claim.name) if claim is not None else ()


def _named(kind: str, found: Volume | StorageClass | None) -> _Source:
    return (kind, found.name) if found is not None else ()


def _none_can(obstacles: Collection[str], nodes: int, partition: str = "") -> str:
    """Of so many nodes; "" if one has no obstacle, or if there are none at all."""
    return core_fit.none_can(obstacles, partition) if nodes and len(obstacles) >= nodes else ""
