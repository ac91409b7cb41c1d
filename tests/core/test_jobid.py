"""The ids that we choose: always in range, the same for the same question, different for every other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.jobid import FAST, PROBES, IdRange, candidates, job_id

ranges = st.tuples(st.integers(1, 2**26), st.integers(1, 2**20)).map(lambda r: IdRange(r[0], r[0] + r[1]))


@given(ranges, st.text(), st.text(), st.integers(0, 1000), st.integers(0, 200))
def test_every_id_is_in_range_and_the_same_again(
    ids: IdRange, cluster: str, uid: str, attempt: int, probe: int
) -> None:
    chosen = job_id(ids, cluster, uid, attempt, probe)
    assert chosen in ids
    assert job_id(ids, cluster, uid, attempt, probe) == chosen


def test_the_range_is_half_open_and_holds_only_numbers() -> None:
    ids = IdRange(10, 12)
    assert [n for n in range(8, 14) if n in ids] == [10, 11]
    assert "10" not in ids
    assert None not in ids


def test_cluster_group_attempt_and_probe_all_count() -> None:
    ids = IdRange()
    base = job_id(ids, "c", "u", 0, 0)
    others = [
        job_id(ids, "d", "u", 0, 0),
        job_id(ids, "c", "v", 0, 0),
        job_id(ids, "c", "u", 1, 0),
        job_id(ids, "c", "u", 0, 1),
    ]
    assert len({base, *others}) == 5


def test_an_attempt_has_one_fast_id_and_its_probes_after_it() -> None:
    ids = IdRange()
    ours = candidates(ids, "c", "u", 3)
    assert ours[0] == job_id(ids, "c", "u", 3, FAST)
    assert ours[1:] == tuple(job_id(ids, "c", "u", 3, probe) for probe in range(PROBES))
    assert len(set(ours)) == PROBES + 1


@pytest.mark.parametrize("groups", [10_000])
def test_ten_thousand_groups_hardly_ever_meet(groups: int) -> None:
    ids = IdRange()
    chosen = {job_id(ids, "c", f"uid-{n}", 0, 0) for n in range(groups)}
    assert groups - len(chosen) <= 10  # two are expected; each just takes its next probe


def test_the_choice_never_changes_between_versions_of_the_bridge() -> None:
    """A later version must find the jobs of this one."""
    assert job_id(IdRange(), "cluster", "0a1b2c3d", 0, 0) == 56003791
