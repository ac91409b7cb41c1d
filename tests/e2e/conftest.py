"""The stacks that most tests of this folder run on, brought up here if they aren't there.

The first one stays up afterwards. The second, with the Slurm configuration of a real operator install, that on which
Slurm numbers our jobs, and that of the fault table exist only for the tests that ask for them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from tests.e2e.faulttable import FaultTable
from tests.e2e.scene import Scene
from tests.e2e.stack import Stack, command
from tests.e2e.stages import BOOT_GRACE, CHOSEN, HELD, NAME, in_use, opened, own, staged


@pytest.fixture(scope="session")
def stack() -> Iterator[Stack]:
    with opened(NAME) as found:
        yield found


@pytest.fixture(scope="module", params=["tuned", "operator"])
def either_stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    """Slurm as we would configure it, then Slurm as an operator's installation has it."""
    if request.param == "tuned":
        yield request.getfixturevalue("stack")
        return
    with own("operator", "--slurm-conf", "operator") as found:
        yield found


@pytest.fixture(scope="session")
def held_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The bridge's token may not choose job ids: an administrator's in Slurm's accounting, who isn't SlurmUser."""
    with own(HELD, "--accounting", "--min-job-age", "7200", "--set", f"bootGrace={BOOT_GRACE}") as found:
        found.run("sacctmgr", "-i", "modify", "user", "alice", "set", "adminlevel=Administrator")
        token = tmp_path_factory.mktemp(HELD) / "token"
        token.write_text(found.run("scontrol", "token", "username=alice", "lifespan=86400"))
        # With an accounting a slurmctld that is killed before it has written its usage files, after five minutes or at
        # a clean end, does not start again.
        found.restart("slurmctld")
        command("up", found.name, "--set", f"slurmTokenFile={token}")
        found.wait_leading()
        yield found


@pytest.fixture
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    """A namespace of the test's own; after the test the invariants are checked and nothing of it is left.

    Its parameter, CHOSEN without one, is who numbers the jobs. A module may have a `stack` of its own.
    """
    held = getattr(request, "param", CHOSEN) == HELD
    with staged(request.getfixturevalue("held_stack" if held else "stack")) as found:
        yield found


@pytest.fixture
def either_scene(either_stack: Stack) -> Iterator[Scene]:
    with staged(either_stack) as found:
        yield found


@pytest.fixture(scope="session")
def fault_table() -> Iterator[FaultTable]:
    table = FaultTable(f"{NAME}-faults")
    yield table
    table.close()


@pytest.fixture(scope="session", autouse=True)
def _started_early(request: pytest.FixtureRequest) -> None:
    """The fault table takes as long as all other tests together, and does most of it waiting."""
    if any(_wants_fault_table(item) for item in request.session.items):
        request.getfixturevalue("fault_table")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Its verdicts are asked for last, and before them whatever runs where Slurm numbers our jobs."""
    items.sort(key=lambda item: (_wants_fault_table(item), _is_held(item)))


def _is_held(item: pytest.Item) -> bool:
    drawn = getattr(item, "callspec", None)
    return drawn is not None and drawn.params.get("scene") == HELD


def _wants_fault_table(item: pytest.Item) -> bool:
    return "fault_table" in getattr(item, "fixturenames", ())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What the bridge said belongs to a failure."""
    report = yield
    if report.failed:
        report.sections += [(f"bridge of stack {stack.name}", stack.log_tail()) for stack in in_use]
    return report
