"""The annotations: the format of each, who wins, and what a mistake is told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.overrides import BY_KEY, LAYERS, TABLE, OptionError, key, options
from bridge.errors import UserError

UPSTREAM = {
    "account",
    "constraints",
    "cpu-per-task",
    "exclusive",
    "gres",
    "group-id",
    "job-name",
    "licenses",
    "max-nodes",
    "mem-per-node",
    "min-nodes",
    "partition",
    "priority",
    "qos",
    "reservation",
    "timelimit",
    "user-id",
    "wckey",
}
OURS = {
    "gang",
    "nice",
    "dependency",
    "comment",
    "begin",
    "deadline",
    "prefer",
    "segment-size",
    "exclude-nodes",
    "gang-timeout",
    "on-member-failure",
    "inject-env",
    "sizes",
}


def one(suffix: str, text: str) -> Any:
    """The value that one annotation sets, None if it sets nothing."""
    return getattr(options({key(suffix): text}), BY_KEY[key(suffix)].field)


def test_the_table_has_the_old_eighteen_and_ours_and_no_field_twice() -> None:
    assert len(UPSTREAM) == 18
    assert {option.suffix for option in TABLE} == UPSTREAM | OURS
    assert len({option.field for option in TABLE}) == len(TABLE)
    assert all(option.doc.endswith(".") for option in TABLE)


@pytest.mark.parametrize(
    "suffix",
    [
        "account",
        "constraints",
        "group-id",
        "licenses",
        "partition",
        "qos",
        "reservation",
        "user-id",
        "wckey",
        "dependency",
        "prefer",
    ],
)
@given(text=st.text())
def test_a_verbatim_option_keeps_every_character(suffix: str, text: str) -> None:
    assert one(suffix, text) == text


@pytest.mark.parametrize(
    ("suffix", "text", "value"),
    [
        ("gres", "gpu:h100:2, gres/nic=1", "gres/gpu:h100:2,gres/nic=1"),
        ("job-name", "  ", None),
        ("cpu-per-task", "200m", 1),
        ("cpu-per-task", "2", 2),
        ("cpu-per-task", "2.1", 3),
        ("cpu-per-task", "1k", 1000),
        ("mem-per-node", "100Mi", 100),
        ("mem-per-node", "1", 1),
        ("mem-per-node", "1G", 954),
        ("min-nodes", "2", 2),
        ("max-nodes", "+3", 3),
        ("max-nodes", "007", 7),
        ("priority", "0", 0),
        ("priority", "2147483647", 2147483647),
        ("timelimit", "60", 60),
        ("timelimit", "0", 0),
        ("job-name", "train me", "train me"),
        ("exclusive", "false", False),
        ("exclusive", " FALSE\n", False),
        ("exclusive", "true", True),
        ("exclusive", "True ", True),
        ("exclusive", "yes", True),
        ("exclusive", "0", True),
        ("exclusive", "", None),
        ("exclusive", " ", None),
        ("nice", "100", 100),
        ("comment", "for Ada", "for Ada"),
        ("begin", "2026-12-01T08:00:00Z", "1796112000"),
        ("begin", "2026-12-01T09:00:00+01:00", "1796112000"),
        ("deadline", "1796112000", "1796112000"),
        ("segment-size", "4", 4),
        ("exclude-nodes", "n[01-02],m", ("n01", "n02", "m")),
        ("gang", "false", False),
        ("gang", "True", True),
        ("gang-timeout", "300", 300),
        ("inject-env", "true", True),
        ("on-member-failure", "keep", "keep"),
        ("on-member-failure", "restart-gang", "restart-gang"),
    ],
)
def test_a_value_is_read_in_its_format(suffix: str, text: str, value: Any) -> None:
    assert one(suffix, text) == value


@pytest.mark.parametrize(
    ("suffix", "text", "fix"),
    [
        ("cpu-per-task", "-1", "write one such as 2 or 4Gi"),
        ("cpu-per-task", "", "write one such as 2 or 4Gi"),
        ("cpu-per-task", "65534", "65533 CPUs"),
        ("mem-per-node", "4GB", "write one such as 2 or 4Gi"),
        ("min-nodes", "0", "from 1 to 2147483647"),
        ("max-nodes", "two", "whole number of nodes"),
        ("max-nodes", "1.0", "whole number of nodes"),
        ("max-nodes", " 1", "whole number of nodes"),
        ("max-nodes", "1_0", "whole number of nodes"),
        ("max-nodes", "٣", "whole number of nodes"),
        ("priority", "2147483648", "from 0 to 2147483647"),
        ("priority", "-1", "from 0 to 2147483647"),
        ("timelimit", "5m", "whole number of minutes"),
        ("timelimit", "-5", "whole number of minutes"),
        ("timelimit", "", "write one such as 1"),
        ("job-name", "x" * 1025, "at most 1024"),
        ("comment", "x" * 1025, "at most 1024"),
        ("nice", "-1", "from 0"),
        ("begin", "now", "2026-12-01T08:00:00Z"),
        ("begin", "2026-12-01T08:00:00", "with its zone"),
        ("deadline", "", "with its zone"),
        ("segment-size", "0", "from 1"),
        ("exclude-nodes", "n[1", "list of Slurm nodes"),
        ("gang", "yes", "true, false"),
        ("gang-timeout", "5m", "whole number of seconds"),
        ("on-member-failure", "restart", "restart-gang, keep"),
    ],
)
def test_a_malformed_value_is_refused_naming_key_value_and_fix(suffix: str, text: str, fix: str) -> None:
    with pytest.raises(OptionError) as caught:
        options({key(suffix): text})
    message = str(caught.value)
    assert message.startswith(f"{key(suffix)}: '{text[:20]}")
    assert fix in message
    assert (caught.value.layer, caught.value.key) == ("pod", key(suffix))


@pytest.mark.parametrize(
    ("suffix", "near"),
    [
        ("time-limit", "timelimit"),
        ("cpus-per-task", "cpu-per-task"),
        ("Account", "account"),
        ("memory", "mem-per-node"),
        ("exclude", "exclusive"),
        ("user", "user-id"),
    ],
)
def test_an_unknown_option_is_refused_naming_the_nearest(suffix: str, near: str) -> None:
    with pytest.raises(OptionError, match="no such option") as caught:
        options({key(suffix): "1"})
    assert f"did you mean {key(near)}?" in str(caught.value)


def test_annotations_of_others_are_none_of_our_business() -> None:
    found = options({"example.com/timelimit": "x", "slinky.slurm.net/slurm-node": "n1", "timelimit": "x"})
    assert dict(found.sources) == {}


TEXTS = st.fixed_dictionaries(
    {},
    optional={
        "qos": st.text(),
        "account": st.text(),
        "timelimit": st.integers(0, 10**6).map(str),
        "exclusive": st.sampled_from(["true", "false", ""]),
    },
)


@given(st.lists(TEXTS, min_size=1, max_size=4))
def test_the_last_layer_that_says_something_wins_and_is_named(layers: list[dict[str, str]]) -> None:
    found = options(*({key(suffix): text for suffix, text in layer.items()} for layer in layers))
    for suffix in ("qos", "account", "timelimit", "exclusive"):
        field = BY_KEY[key(suffix)].field
        said = [
            n for n, layer in enumerate(layers) if suffix in layer and one(suffix, layer[suffix]) is not None
        ]
        if said:
            assert getattr(found, field) == one(suffix, layers[said[-1]][suffix])
            assert found.sources[field] == LAYERS[len(LAYERS) - len(layers) + said[-1]]
        else:
            assert getattr(found, field) is None
            assert field not in found.sources


def test_a_mistake_in_a_layer_that_loses_is_still_a_mistake() -> None:
    with pytest.raises(OptionError) as caught:
        options({key("timelimit"): "x"}, {key("timelimit"): "5"})
    assert caught.value.layer == "owner"


@pytest.mark.parametrize(
    ("suffix", "text", "word"),
    [
        ("exclusive", "yes", 'write "true"'),
        ("timelimit", "0", "no limit"),
        ("priority", "0", "holds the job"),
        ("cpu-per-task", "0m", "configured minimum"),
        ("mem-per-node", "0.0Gi", "configured minimum"),
    ],
)
def test_a_legal_value_that_may_surprise_is_worth_a_warning(suffix: str, text: str, word: str) -> None:
    (warning,) = options({key(suffix): text}).warnings
    assert warning.startswith(key(suffix))
    assert word in warning


def test_a_warning_about_a_value_that_lost_is_not_given() -> None:
    assert options({key("exclusive"): "yes"}, {key("exclusive"): "true"}).warnings == ()


def test_an_exclusion_of_a_hundred_thousand_nodes_is_refused() -> None:
    """slurmctld looks every name up: one annotation could keep it from everybody else."""
    with pytest.raises(UserError) as caught:
        options({}, {}, {}, {key("exclude-nodes"): "x[0-49999],y[0-49998]"})
    assert "99999" in str(caught.value)


OLD = "slinky.slurm.net/"


def test_a_name_from_before_version_1_is_ignored_and_said_so() -> None:
    found = options({OLD + "partition": "gpu", OLD + "slurm-node": "n1", OLD + "gang": "true"})
    assert found.partition is None
    assert found.warnings == (f"{OLD}partition: is ignored, an old name; write {key('partition')}",)
    assert found.old_names == ()


@pytest.mark.parametrize("suffix", sorted(UPSTREAM))
def test_an_old_name_counts_where_it_is_switched_on_and_asks_for_the_new_one(suffix: str) -> None:
    text = "5"
    old = options({OLD + suffix: text}, old_keys=True)
    new = options({key(suffix): text}, old_keys=True)
    field = BY_KEY[key(suffix)].field
    assert getattr(old, field) == getattr(new, field) is not None
    assert old.keys[field] == OLD + suffix
    assert old.old_names == (f"{OLD}{suffix} is an old name: write {key(suffix)}",)
    assert new.old_names == ()


def test_the_name_of_today_wins_over_the_old_one_beside_it_and_the_pod_over_its_owner_by_either() -> None:
    both = options({key("qos"): "new", OLD + "qos": "old"}, old_keys=True)
    assert (both.qos, both.warnings) == ("new", ())
    assert options({OLD + "qos": "old", key("qos"): "new"}, old_keys=True).qos == "new"
    assert options({key("qos"): "owner"}, {OLD + "qos": "pod"}, old_keys=True).qos == "pod"


def test_a_mistake_under_an_old_name_is_told_with_that_name() -> None:
    with pytest.raises(OptionError, match=rf"^{OLD}timelimit: '5m' is not a whole number"):
        options({OLD + "timelimit": "5m"}, old_keys=True)
