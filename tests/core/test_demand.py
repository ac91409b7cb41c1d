"""What a pod asks for, added up as Kubernetes does, and its devices in Slurm's words."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.demand import cpus, effective, gres, memory_mib
from bridge.core.model import Container, Pod, Resources, Uid
from bridge.errors import UserError
from bridge.names import EXTENDED_DEVICE_CLASS_PREFIX as CLASS

MAPPING = {
    "nvidia.com/gpu": "gpu",
    "amd.com/gpu": "gpu",
    "example.com/nic": "nic:fast",
    "nvidia.com/gpu.shared": "",
}


def box(name: str = "c", *, sidecar: bool = False, limits: Any = None, **requests: str) -> Container:
    return Container(name=name, sidecar=sidecar, resources=Resources(requests=requests, limits=limits or {}))


def pod(*containers: Container, **more: Any) -> Pod:
    return Pod(namespace="a", name="p", uid=Uid("u"), containers=containers, **more)


def cpu_of(asked: Pod) -> Fraction:
    return effective(asked).get("cpu", Fraction(0))


def test_containers_are_added() -> None:
    found = effective(pod(box(cpu="500m", memory="1Gi"), box(cpu="1", memory="1")))
    assert found == {"cpu": Fraction(3, 2), "memory": 2**30 + 1}


def test_the_larger_of_request_and_limit_counts() -> None:
    assert cpu_of(pod(box(cpu="1", limits={"cpu": "4"}))) == 4
    assert cpu_of(pod(box(cpu="2"), box(limits={"cpu": "1"}))) == 3


def test_a_limit_alone_is_a_request_too() -> None:
    assert cpu_of(pod(box(limits={"cpu": "2"}), box(cpu="1"))) == 3


def test_the_largest_init_step_counts_when_it_is_larger_than_everything_after_it() -> None:
    steps = (box("i1", cpu="5"), box("i2", cpu="3"))
    assert cpu_of(pod(box(cpu="2"), box(cpu="2"), init_containers=steps)) == 5
    assert cpu_of(pod(box(cpu="3"), box(cpu="3"), init_containers=steps)) == 6


def test_sidecars_run_beside_the_containers_and_beside_later_init_steps() -> None:
    steps = (
        box("i1", cpu="5"),
        box("s1", cpu="1", sidecar=True),
        box("i2", cpu="7"),
        box("s2", cpu="2", sidecar=True),
    )
    assert cpu_of(pod(box(cpu="1"), init_containers=steps)) == 8
    assert cpu_of(pod(box(cpu="6"), init_containers=steps)) == 9


def test_overhead_is_added_to_requests_and_to_limits_that_exist() -> None:
    asked = pod(box(cpu="1", limits={"cpu": "2"}, memory="10Mi"), overhead={"cpu": "250m", "memory": "6Mi"})
    assert effective(asked) == {"cpu": Fraction(9, 4), "memory": 16 * 2**20}
    assert effective(pod(overhead={"cpu": "1"})) == {"cpu": 1}


def test_pod_level_resources_replace_cpu_and_memory_and_nothing_else() -> None:
    level = Resources(requests={"cpu": "2"}, limits={"cpu": "4", "nvidia.com/gpu": "9"})
    asked = pod(
        box(cpu="9", memory="5", limits={"nvidia.com/gpu": "1"}), resources=level, overhead={"cpu": "1"}
    )
    assert effective(asked) == {"cpu": 5, "memory": 5, "nvidia.com/gpu": 1}
    assert effective(pod(resources=Resources(requests={"hugepages-2Mi": "2Mi"}))) == {"hugepages-2Mi": 2**21}


def test_cpus_of_a_dra_driver_are_cpus() -> None:
    assert cpus(effective(pod(box(cpu="1", limits={CLASS + "dra.cpu": "4"})))) == 4
    assert gres(effective(pod(box(limits={CLASS + "dra.cpu": "4"}))), MAPPING) == ("", ())


def test_a_pod_that_asks_for_nothing_asks_for_zero() -> None:
    assert (cpus({}), memory_mib({}), gres({}, MAPPING)) == (0, 0, ("", ()))


MILLI = st.integers(0, 10_000)
BOXES = st.lists(st.tuples(MILLI, MILLI), max_size=4)


@given(BOXES, st.lists(st.tuples(st.booleans(), MILLI, MILLI), max_size=4), MILLI)
def test_what_is_sent_is_never_less_than_any_moment_of_the_pod_needs(
    apps: list[tuple[int, int]], steps: list[tuple[bool, int, int]], overhead: int
) -> None:
    def made(request: int, limit: int, sidecar: bool = False) -> Container:
        return box(
            sidecar=sidecar,
            cpu=f"{request}m",
            memory=f"{request}",
            limits={"cpu": f"{limit}m", "memory": f"{limit}"},
        )

    asked = pod(
        *(made(*app) for app in apps),
        init_containers=tuple(made(request, limit, sidecar) for sidecar, request, limit in steps),
        overhead={"cpu": f"{overhead}m", "memory": f"{overhead}"},
    )
    for side in (0, 1):
        beside = 0
        moments = []
        for step in steps:
            moments.append(beside + step[1 + side])
            beside += step[1 + side] if step[0] else 0
        moments.append(beside + sum(app[side] for app in apps))
        need = max(moments)
        assert cpus(effective(asked)) * 1000 >= need + (overhead if need else 0)
        assert memory_mib(effective(asked)) * 2**20 >= need


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"nvidia.com/gpu": "2"}, "gres/gpu=2"),
        ({"nvidia.com/gpu": "2", "amd.com/gpu": "1"}, "gres/gpu=3"),
        ({"nvidia.com/gpu": "0"}, ""),
        ({"example.com/nic": "1", "nvidia.com/gpu": "2"}, "gres/gpu=2,gres/nic:fast=1"),
        ({CLASS + "h100": "2"}, "gres/gpu:h100=2"),
        ({CLASS + "h100": "2", CLASS + "a100": "1"}, "gres/gpu:a100=1,gres/gpu:h100=2"),
        ({"nvidia.com/gpu.shared": "1", "cpu": "1", "memory": "1", "ephemeral-storage": "1Gi"}, ""),
    ],
)
def test_devices_become_gres_all_of_them(limits: dict[str, str], text: str) -> None:
    assert gres(effective(pod(box(limits=limits))), MAPPING) == (text, ())


def test_the_configuration_may_name_a_device_class() -> None:
    amounts = effective(pod(box(limits={CLASS + "nic.example.com": "1"})))
    assert gres(amounts, {CLASS + "nic.example.com": "nic"}) == ("gres/nic=1", ())


@given(
    st.dictionaries(st.sampled_from(["nvidia.com/gpu", "amd.com/gpu", "example.com/nic"]), st.integers(0, 16))
)
def test_no_device_is_lost_on_the_way(limits: dict[str, int]) -> None:
    text, _ = gres(effective(pod(box(limits={name: str(count) for name, count in limits.items()}))), MAPPING)
    sent = sum(int(part.partition("=")[2]) for part in text.split(",") if part)
    assert sent == sum(limits.values())


@pytest.mark.parametrize("name", ["rdma/hca", "hugepages-2Mi", "example.com/fpga"])
def test_a_device_that_slurm_does_not_count_passes_with_a_warning(name: str) -> None:
    text, (warning,) = gres(effective(pod(box(limits={name: "1"}))), MAPPING)
    assert text == ""
    assert warning.startswith(f"resource {name}: ")


@pytest.mark.parametrize("name", ["nvidia.com/mig-1g.5gb", "gpu.intel.com/i915", "nvidia.com/gpu.other"])
def test_a_gpu_that_slurm_does_not_count_is_refused_naming_the_fix(name: str) -> None:
    with pytest.raises(UserError, match="gresByResource") as caught:
        gres(effective(pod(box(limits={name: "1"}))), MAPPING)
    assert name in str(caught.value)


def test_one_gres_with_and_without_types_is_refused_with_the_reason() -> None:
    amounts = effective(pod(box(limits={"nvidia.com/gpu": "1", CLASS + "h100": "1"})))
    with pytest.raises(UserError, match="asks for gpu and for gpu:h100"):
        gres(amounts, MAPPING)


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        (pod(box("main", cpu="x")), r"container main: resources\.requests\.cpu"),
        (pod(box("main", limits={"memory": "-1"})), r"container main: resources\.limits\.memory"),
        (pod(init_containers=(box("first", cpu="1Q"),)), r"container first: resources\.requests\.cpu"),
        (pod(overhead={"cpu": "x"}), r"overhead\.cpu"),
        (pod(resources=Resources(limits={"cpu": "x"})), r"resources\.limits\.cpu"),
    ],
)
def test_a_malformed_quantity_is_refused_naming_container_and_field(asked: Pod, field: str) -> None:
    with pytest.raises(UserError, match=f"^{field}: "):
        effective(asked)
