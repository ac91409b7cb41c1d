"""Whatever a pod asks Kubernetes for, in whatever spelling, the job that is sent has at least as much of it."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from bridge.config import JobSettings
from bridge.core import demand, devices, grouping, quantity
from bridge.core.jobspec import translate
from bridge.core.model import Container, JobId, Pod, Resources, Uid
from bridge.slurm import translate as wire

SETTINGS = JobSettings(temporaryDisk=True)
MIB = quantity.MIB

WHOLE = st.integers(0, 4096)
CPU = st.one_of(
    st.builds("{}{}".format, WHOLE, st.sampled_from(["", "m", "u", "n", "e-2"])),
    st.decimals(0, 64, places=3, allow_nan=False).map(str),
)
BYTES = st.builds("{}{}".format, WHOLE, st.sampled_from(["", "k", "Ki", "M", "Mi", "G", "Gi", "e3", "m"]))
PIECES = st.integers(0, 16).map(str)
NAMES: Mapping[str, st.SearchStrategy[str]] = {
    demand.CPU: CPU,
    demand.MEMORY: BYTES,
    demand.DISK: BYTES,
    "nvidia.com/gpu": PIECES,
}
AMOUNTS = st.fixed_dictionaries({}, optional=dict(NAMES))
RESOURCES = st.builds(Resources, requests=AMOUNTS, limits=AMOUNTS)
CONTAINERS = st.lists(st.builds(Container, name=st.just("c"), resources=RESOURCES), max_size=3)
STEPS = st.lists(
    st.builds(Container, name=st.just("i"), resources=RESOURCES, sidecar=st.booleans()), max_size=3
)


def asked(container: Container, resource: str) -> Fraction:
    """The larger of request and limit: what the container may use."""
    both = (container.resources.requests.get(resource), container.resources.limits.get(resource))
    return max(quantity.parse(text or "0") for text in both)


@given(containers=CONTAINERS, steps=STEPS, overhead=AMOUNTS)
def test_the_job_has_at_least_what_its_pod_asks_for_of_every_resource(
    containers: list[Container], steps: list[Container], overhead: dict[str, str]
) -> None:
    pod = Pod(
        namespace="a",
        name="p",
        uid=Uid("u"),
        containers=tuple(containers),
        init_containers=tuple(steps),
        overhead=overhead,
    )
    group = grouping.build(grouping.key_of(pod), [pod])
    spec = translate(group, settings=SETTINGS, cluster="c")
    body = wire.job_body(JobId(1), spec, 45)
    sent = {
        demand.CPU: Fraction(body["cpus_per_task"] * body["tasks"]),
        demand.MEMORY: Fraction(body["memory_per_node"]["number"]) * MIB,
        demand.DISK: Fraction(body.get("temporary_disk_per_node", 0)) * MIB,
        "nvidia.com/gpu": Fraction(devices.wanted(body.get("tres_per_node", ""))),
    }
    sidecars = [step for step in steps if step.sidecar]
    for resource, amount in sent.items():
        on_top = quantity.parse(overhead.get(resource, "0"))
        requests = [quantity.parse(c.resources.requests.get(resource, "0")) for c in (*containers, *sidecars)]
        limits = [quantity.parse(c.resources.limits.get(resource, "0")) for c in (*containers, *sidecars)]
        assert amount >= max(sum(requests), sum(limits)) + on_top
        assert all(amount >= asked(container, resource) for container in (*containers, *steps))


@given(text=BYTES, settings=st.sampled_from([SETTINGS, JobSettings()]))
def test_memory_never_rounds_down_nor_up_by_a_whole_mib(text: str, settings: JobSettings) -> None:
    box = Container(name="c", resources=Resources(limits={"memory": text, "ephemeral-storage": text}))
    pod = Pod(namespace="a", name="p", uid=Uid("u"), containers=(box,))
    spec = translate(grouping.build(grouping.key_of(pod), [pod]), settings=settings, cluster="c")
    exact = quantity.parse(text)
    for sent, least in ((spec.memory_mib, settings.minimumMemoryMiB), (spec.temporary_disk_mib or 0, 0)):
        if exact and sent:
            assert exact <= sent * MIB < exact + MIB
        else:
            assert sent == least


@given(cpu=CPU, memory=BYTES, disk=BYTES, more=st.sampled_from(["1m", "1", "7Mi"]))
def test_who_asks_for_more_is_never_sent_less(cpu: str, memory: str, disk: str, more: str) -> None:
    def job(*boxes: Resources) -> tuple[int, int, int]:
        containers = tuple(Container(name=f"c{n}", resources=box) for n, box in enumerate(boxes))
        pod = Pod(namespace="a", name="p", uid=Uid("u"), containers=containers)
        spec = translate(grouping.build(grouping.key_of(pod), [pod]), settings=SETTINGS, cluster="c")
        return spec.cpus_per_task, spec.memory_mib or 0, spec.temporary_disk_mib or 0

    one = Resources(requests={"cpu": cpu, "memory": memory, "ephemeral-storage": disk})
    extra = Resources(limits={"cpu": "1m", "memory": more, "ephemeral-storage": more})
    alone, together = job(one), job(one, extra)
    # A pod that asks for no memory gets the configured minimum, and one that asks for a little just that.
    assert together[0] >= alone[0]
    assert together[1] >= alone[1] or alone[1] == SETTINGS.minimumMemoryMiB
    assert together[2] >= alone[2]
