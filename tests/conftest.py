"""Options of the whole test suite."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.patience import forgiving

# The same examples in every run, and no clock: what is red is red because of a change. New examples for whoever looks
# for them: pytest --hypothesis-profile=explore
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("same")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite the expected files of tests/golden from what the code says now; review the diff",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On real daemons a test has a second try. The summary names each that needed it: a bug, until shown otherwise.

    After a broken invariant nothing has one.
    """
    for item in items:
        if item.get_closest_marker("real"):
            item.add_marker(pytest.mark.flaky(reruns=1, condition=forgiving))
