"""Which nodes can take a pod: the meaning that the stock kube-scheduler gives to each field."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.constraints import (
    Constraints,
    HostPort,
    Requirement,
    StorageClass,
    Taint,
    Term,
    Toleration,
    Volume,
    VolumeClaim,
)
from bridge.core.fit import Needs, Taken, matches, needs, obstacle, reach, told
from bridge.core.model import Container, KubeNode, Node, Resources
from tests.core.build import pod

NODE = Node(
    name=KubeNode("n1"),
    labels={"disk": "ssd", "cores": "16", "bad": "x16"},
    allocatable={"cpu": "8", "memory": "32Gi", "pods": "2", "nvidia.com/gpu": "4"},
)
GPU = Taint("gpu", "true", "NoSchedule")


def asks(**constraints: Any) -> Needs:
    return Needs(Constraints(**constraints))


def one(key: str, operator: str, *values: str) -> Needs:
    return asks(affinity=(Term((Requirement(key, operator, values),)),))


def named(operator: str, *values: str, key: str = "metadata.name") -> Needs:
    return asks(affinity=(Term(fields=(Requirement(key, operator, values),)),))


def test_a_pod_that_asks_for_nothing_fits_on_every_open_node() -> None:
    assert obstacle(Needs(), NODE) == ""


@pytest.mark.parametrize(
    ("labels", "fits"),
    [
        ((), True),
        ((("disk", "ssd"),), True),
        ((("disk", "ssd"), ("cores", "16")), True),
        ((("disk", "hdd"),), False),
        ((("absent", ""),), False),
        ((("disk", "ssd"), ("zone", "a")), False),
    ],
)
def test_every_label_of_a_node_selector_must_be_there(
    labels: tuple[tuple[str, str], ...], fits: bool
) -> None:
    assert (obstacle(asks(selector=labels), NODE) == "") is fits


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        (one("disk", "In", "hdd", "ssd"), True),
        (one("disk", "In", "hdd"), False),
        (one("absent", "In", "x"), False),
        (one("disk", "NotIn", "hdd"), True),
        (one("disk", "NotIn", "ssd"), False),
        (one("absent", "NotIn", "x"), True),
        (one("disk", "Exists"), True),
        (one("absent", "Exists"), False),
        (one("disk", "DoesNotExist"), False),
        (one("absent", "DoesNotExist"), True),
        (one("cores", "Gt", "15"), True),
        (one("cores", "Gt", "16"), False),
        (one("cores", "Lt", "17"), True),
        (one("cores", "Lt", "16"), False),
        (one("absent", "Gt", "1"), False),
        (one("absent", "Lt", "1"), False),
        (one("bad", "Gt", "1"), False),
        (one("cores", "Gt", "1_0"), False),
        (one("cores", "Gt", "1", "2"), False),
        (one("cores", "Gt"), False),
        (one("disk", "Like", "ssd"), False),
        (named("In", "n1"), True),
        (named("In", "n2"), False),
        (named("NotIn", "n2"), True),
        (named("NotIn", "n1"), False),
        (named("In", "n1", "n2"), False),
        (named("Exists"), False),
        (named("In", "n1", key="metadata.namespace"), False),
        (asks(affinity=()), False),
        (asks(affinity=(Term(),)), False),
        (asks(affinity=None), True),
    ],
)
def test_required_node_affinity_means_what_it_means_to_kube_scheduler(wanted: Needs, fits: bool) -> None:
    assert (obstacle(wanted, NODE) == "") is fits


def test_one_of_several_terms_is_enough_and_all_expressions_of_a_term_are_needed() -> None:
    ssd, hdd = Requirement("disk", "In", ("ssd",)), Requirement("disk", "In", ("hdd",))
    here, there = Requirement("metadata.name", "In", ("n1",)), Requirement("metadata.name", "In", ("n2",))
    assert matches((Term((hdd,)), Term((ssd,))), NODE)
    assert not matches((Term((ssd, hdd)),), NODE)
    assert matches((Term((ssd,), (here,)),), NODE)
    assert not matches((Term((ssd,), (there,)),), NODE)


def test_selector_and_affinity_must_both_match() -> None:
    far = (Term((Requirement("disk", "In", ("hdd",)),)),)
    assert "nodeSelector" in obstacle(asks(selector=(("disk", "hdd"),)), NODE)
    assert "affinity" in obstacle(asks(selector=(("disk", "ssd"),), affinity=far), NODE)


@pytest.mark.parametrize(
    ("toleration", "taint", "fits"),
    [
        (None, GPU, False),
        (None, replace(GPU, effect="NoExecute"), False),
        (None, replace(GPU, effect="PreferNoSchedule"), True),
        (Toleration("gpu", "Equal", "true"), GPU, True),
        (Toleration("gpu", "", "true"), GPU, True),
        (Toleration("gpu", "Equal", "false"), GPU, False),
        (Toleration("gpu", "Exists"), GPU, True),
        (Toleration("gpu", "Exists", effect="NoSchedule"), GPU, True),
        (Toleration("gpu", "Exists", effect="NoExecute"), GPU, False),
        (Toleration("other", "Exists"), GPU, False),
        (Toleration("", "Exists"), GPU, True),
        (Toleration("", "Exists", effect="NoExecute"), GPU, False),
        (Toleration("gpu", "Equal"), Taint("gpu", "", "NoSchedule"), True),
        (Toleration("gpu", "Gt", "10"), Taint("gpu", "11", "NoSchedule"), True),
        (Toleration("gpu", "Gt", "10"), Taint("gpu", "10", "NoSchedule"), False),
        (Toleration("gpu", "Lt", "10"), Taint("gpu", "9", "NoSchedule"), True),
        (Toleration("gpu", "Lt", "10"), GPU, False),
        (Toleration("gpu", "Unheard"), GPU, False),
    ],
)
def test_a_taint_keeps_pods_away_that_do_not_tolerate_it(
    toleration: Toleration | None, taint: Taint, fits: bool
) -> None:
    wanted = asks(tolerations=(toleration,) if toleration else ())
    assert (obstacle(wanted, replace(NODE, taints=(taint,))) == "") is fits


def test_the_toleration_of_our_admission_covers_the_managed_node_taint_whatever_its_effect() -> None:
    ours = asks(tolerations=(Toleration("slinky.slurm.net/managed-node", "Exists"),))
    for effect in ("NoSchedule", "NoExecute"):
        taint = Taint("slinky.slurm.net/managed-node", "slurm-bridge-scheduler", effect)
        assert obstacle(ours, replace(NODE, taints=(taint,))) == ""


def test_all_taints_must_be_tolerated_and_the_message_names_the_one_that_is_not() -> None:
    wanted = asks(tolerations=(Toleration("gpu", "Exists"),))
    node = replace(NODE, taints=(GPU, Taint("team", "a", "NoSchedule"), Taint("old", "", "NoExecute")))
    assert obstacle(wanted, node) == "has a taint that the pod does not tolerate (team=a:NoSchedule)"


def test_a_cordon_keeps_all_away_but_who_tolerates_it() -> None:
    cordoned = replace(NODE, cordoned=True)
    assert obstacle(Needs(), cordoned) == "is cordoned in Kubernetes"
    patient = asks(tolerations=(Toleration("node.kubernetes.io/unschedulable", "Exists"),))
    assert obstacle(patient, cordoned) == ""
    assert obstacle(patient, replace(cordoned, ready=False)) == "is not Ready in Kubernetes"


@pytest.mark.parametrize(
    ("wanted", "used", "fits"),
    [
        (HostPort(80), HostPort(81), True),
        (HostPort(80), HostPort(80), False),
        (HostPort(80), HostPort(80, "UDP"), True),
        (HostPort(80), HostPort(80, "TCP", "10.0.0.1"), False),
        (HostPort(80, "TCP", "10.0.0.1"), HostPort(80), False),
        (HostPort(80, "TCP", "10.0.0.1"), HostPort(80, "TCP", "10.0.0.1"), False),
        (HostPort(80, "TCP", "10.0.0.1"), HostPort(80, "TCP", "10.0.0.2"), True),
    ],
)
def test_a_host_port_has_one_user_for_each_address_and_protocol(
    wanted: HostPort, used: HostPort, fits: bool
) -> None:
    assert (obstacle(asks(ports=(wanted,)), NODE, Taken(1, (used,))) == "") is fits
    assert obstacle(Needs(), NODE, Taken(1, (used,))) == ""


def test_a_node_that_has_as_many_pods_as_it_can_have_takes_no_more() -> None:
    assert obstacle(Needs(), NODE, Taken(1)) == ""
    assert obstacle(Needs(), NODE, Taken(2)) == "has as many pods as it can have"
    assert obstacle(Needs(), replace(NODE, allocatable={}), Taken(1000)) == ""


@pytest.mark.parametrize(
    ("resource", "amount", "fits"),
    [
        ("cpu", 8, True),
        ("cpu", Fraction("8.001"), False),
        ("memory", 32 * 2**30, True),
        ("memory", 32 * 2**30 + 1, False),
        ("nvidia.com/gpu", 4, True),
        ("nvidia.com/gpu", 5, False),
        ("example.com/nic", 1, False),
        ("deviceclass.resource.kubernetes.io/gpu", 1, True),
    ],
)
def test_what_the_whole_node_lacks_it_can_never_give(resource: str, amount: Fraction, fits: bool) -> None:
    wanted = Needs(requests=((resource, Fraction(amount)),))
    assert (obstacle(wanted, NODE) == "") is fits
    assert obstacle(wanted, replace(NODE, allocatable={})) == "", "kubelet has not told yet what it has"


def test_requests_count_for_a_node_and_larger_limits_do_not() -> None:
    asked = Resources(requests={"cpu": "1"}, limits={"cpu": "64", "nvidia.com/gpu": "2"})
    found = needs(pod(containers=(Container(name="c", resources=asked),)))
    assert found.requests == (("cpu", Fraction(1)), ("nvidia.com/gpu", Fraction(2)))
    unread = Resources(requests={"cpu": "many"})
    assert needs(pod(containers=(Container(name="c", resources=unread),))).requests == ()


# --- volumes ----------------------------------------------------------------------------------------

ZONE = (Term((Requirement("zone", "In", ("a",)),)),)
CLAIM = VolumeClaim(namespace="default", name="data", storage_class="fast")


@pytest.mark.parametrize(
    ("claim", "volume", "kind", "expected"),
    [
        (None, None, None, None),
        (replace(CLAIM, volume="v"), Volume(name="v", reach=ZONE), None, ZONE),
        (
            replace(CLAIM, volume="v"),
            Volume(name="v"),
            StorageClass(name="fast", late=True, reach=ZONE),
            None,
        ),
        (replace(CLAIM, volume="v"), None, None, None),
        (CLAIM, None, StorageClass(name="fast", late=True, reach=ZONE), ZONE),
        (CLAIM, None, StorageClass(name="fast", late=True), None),
        (CLAIM, None, StorageClass(name="fast", reach=ZONE), None),
        (CLAIM, None, None, None),
    ],
)
def test_a_volume_is_where_it_says_and_a_late_one_where_its_class_can_make_it(
    claim: VolumeClaim | None, volume: Volume | None, kind: StorageClass | None, expected: object
) -> None:
    assert reach(claim, volume, kind) == expected


def test_a_claim_whose_volume_is_being_made_for_a_node_stays_there() -> None:
    chosen = reach(replace(CLAIM, chosen="n2"), None, StorageClass(name="fast", late=True, reach=ZONE))
    assert chosen is not None
    assert not matches(chosen, NODE)
    assert matches(chosen, replace(NODE, name=KubeNode("n2")))


def test_every_volume_must_be_in_reach() -> None:
    here = (Term((Requirement("disk", "Exists"),)),)
    assert obstacle(Needs(volumes=(here,)), NODE) == ""
    assert obstacle(Needs(volumes=(here, ZONE)), NODE) == "does not reach a volume of the pod"


# --- texts and laws ---------------------------------------------------------------------------------


def test_a_rule_is_told_once_with_the_number_of_nodes_that_it_excludes() -> None:
    cordoned, other = "is cordoned in Kubernetes", "does not match the pod's required node affinity"
    assert told([other, cordoned, cordoned]) == (
        "2 nodes are cordoned in Kubernetes; 1 node does not match the pod's required node affinity"
    )


LABELS = st.dictionaries(st.sampled_from("abc"), st.sampled_from(("1", "2", "x")), max_size=3)
OPERATORS = st.sampled_from(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"))
REQUIREMENTS = st.builds(
    Requirement, st.sampled_from("abc"), OPERATORS, st.lists(st.sampled_from("123"), max_size=2).map(tuple)
)
TERMS = st.lists(st.builds(Term, st.lists(REQUIREMENTS, max_size=2).map(tuple)), max_size=3).map(tuple)
TAINTS = st.builds(
    Taint, st.sampled_from("abc"), st.sampled_from(("", "1")), st.sampled_from(("NoSchedule", "NoExecute"))
)
NODES = st.builds(
    Node,
    name=st.just(KubeNode("n1")),
    labels=LABELS,
    cordoned=st.booleans(),
    taints=st.lists(TAINTS, max_size=2).map(tuple),
)


@given(TERMS, TERMS, NODES)
def test_more_terms_never_take_a_node_away(
    some: tuple[Term, ...], more: tuple[Term, ...], node: Node
) -> None:
    assert matches(some + more, node) == (matches(some, node) or matches(more, node))


@given(st.lists(REQUIREMENTS, min_size=1, max_size=3).map(tuple), NODES)
def test_a_term_is_all_of_its_expressions(wanted: tuple[Requirement, ...], node: Node) -> None:
    assert matches((Term(wanted),), node) == all(matches((Term((one,)),), node) for one in wanted)


@given(st.sampled_from("abc"), st.lists(st.sampled_from("123"), min_size=1).map(tuple), NODES)
def test_not_in_is_the_opposite_of_in_and_does_not_exist_of_exists(
    key: str, values: tuple[str, ...], node: Node
) -> None:
    for yes, no in (("In", "NotIn"), ("Exists", "DoesNotExist")):
        here = matches((Term((Requirement(key, yes, values),)),), node)
        assert here != matches((Term((Requirement(key, no, values),)),), node)


@given(NODES, TERMS)
def test_who_tolerates_everything_and_asks_for_nothing_fits_wherever_a_kubelet_works(
    node: Node, terms: tuple[Term, ...]
) -> None:
    everything = (Toleration(operator="Exists"),)
    assert obstacle(asks(tolerations=everything), node) == ""
    asked = obstacle(asks(tolerations=everything, affinity=terms), node)
    assert (asked == "") == matches(terms, node)
