"""GRES texts as slurmctld writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.devices import Held, held, indices, spell, unspell
from bridge.errors import ProtocolError


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("", ()),
        ("(null)", ()),
        ("gpu:h100:2(IDX:0-1)", (0, 1)),
        ("gpu:h100:4(IDX:4-7)(S:1)", (4, 5, 6, 7)),
        ("gpu:3(IDX:0,2-3)", (0, 2, 3)),
        ("gpu:h100:2(IDX:0-1),gpu:a100:1(IDX:4)", (0, 1, 4)),
        ("gpu:a100:1(IDX:4),nic:2(IDX:0-1),gpu:h100:1(IDX:1)", (1, 4)),
        ("gpu:1g.5gb:2(IDX:2-3)", (2, 3)),
        ("gpu:h100:8(S:0-1)", ()),
        ("gpu:h100:0(IDX:N/A)", ()),
        ("gpu:2(CNT:2)", ()),
        ("nic:1(IDX:3)", ()),
    ],
)
def test_the_indices_of_gpus_are_found_in_every_form(text: str, gpus: tuple[int, ...]) -> None:
    assert indices(text) == gpus


def test_every_entry_tells_name_type_count_and_indices() -> None:
    assert held("gpu:h100:2(IDX:0-1),shard:h100:2(0/4,2/4),lic:2K,nic,gpu:tesla") == (
        Held(name="gpu", type="h100", count=2, indices=(0, 1)),
        Held(name="shard", type="h100", count=2),
        Held(name="lic", count=2048),
        Held(name="nic", count=1),
        Held(name="gpu", type="tesla", count=1),
    )
    assert indices("gpu:1(IDX:0),nic:1(IDX:3)", name="nic") == (3,)


@pytest.mark.parametrize(
    "text", ["gpu::2", "gpu:2(", "gpu,", ",gpu", "gpu:2 (IDX:0-1)", "gpu:2(IDX:a-b)", "<html>gpu: 1"]
)
def test_a_text_that_no_slurm_writes_proves_nothing(text: str) -> None:
    with pytest.raises(ProtocolError, match="not a form"):
        held(text)


def test_more_or_fewer_indices_than_devices_prove_nothing() -> None:
    with pytest.raises(ProtocolError, match="1 indices for 2 devices"):
        held("gpu:2(IDX:0)")


def test_one_device_named_twice_proves_nothing() -> None:
    with pytest.raises(ProtocolError, match="twice"):
        indices("gpu:a:2(IDX:0-1),gpu:b:1(IDX:1)")


@pytest.mark.parametrize(
    ("numbers", "text"), [((), ""), ((3,), "3"), ((0, 1, 2, 3), "0-3"), ((0, 1, 4), "0-1,4")]
)
def test_indices_are_spelled_as_slurm_spells_them(numbers: tuple[int, ...], text: str) -> None:
    assert spell(numbers) == text


@given(st.sets(st.integers(0, 200), min_size=1))
def test_what_is_spelled_is_read_back(numbers: set[int]) -> None:
    assert indices(f"gpu:h100:{len(numbers)}(IDX:{spell(numbers)})") == tuple(sorted(numbers))
    assert unspell(spell(numbers)) == tuple(sorted(numbers))
