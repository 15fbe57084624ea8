"""What every test stands on: Linux, Java where Spark starts, tools for the lab, examples that repeat, no address from outside."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.support import spark_classes

ROOT = Path(__file__).resolve().parent.parent

os.environ.setdefault("SPARK_SUBMIT_OPTS", spark_classes.options())

# A failing example in CI must fail again at home; at home each run may look somewhere new. How long one example takes
# depends on the machine, so only the test's own time limit holds.
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.register_profile("home", deadline=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "home")


def pytest_configure(config: pytest.Config) -> None:
    if sys.platform != "linux":
        pytest.exit(f"Tutti runs on Linux only, this is {sys.platform}.", returncode=2)


#: Folders whose tests are fast, unless a test has one of these markers.
FAST_FOLDERS = ("architecture", "property", "sim", "transcripts", "unit")
NOT_FAST = ("faults", "lab", "slow", "soak", "spark")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the fast tests before pytest selects by marker, so that `fast` and `not fast` together are all tests."""
    for item in items:
        folder = item.path.relative_to(ROOT / "tests").parts[0]
        if folder in FAST_FOLDERS and not any(item.get_closest_marker(marker) for marker in NOT_FAST):
            item.add_marker("fast")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Check the tools of the selected tests."""
    for marker, tool in (("spark", "tools/java.sh"), ("lab", "tools/lab.sh")):
        if any(item.get_closest_marker(marker) for item in session.items):
            told = subprocess.run([ROOT / tool, sys.executable], capture_output=True, text=True, check=False)
            if told.returncode:
                pytest.exit(told.stderr.strip(), returncode=2)


@pytest.fixture(scope="module", autouse=True)
def _rooms_of_a_module(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the fixtures of a module put on disk goes with them, unless a test of it failed: a group of three gateways has more than
    a gigabyte, and there are dozens. What those of a whole run make is named session-NAME, a test's own directory test_NAME.
    """
    base, failed = tmp_path_factory.getbasetemp(), request.session.testsfailed
    before = set(base.iterdir())
    yield
    if request.session.testsfailed == failed:
        for place in set(base.iterdir()) - before:
            if not place.name.startswith(("session-", "test_")):
                shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(autouse=True)
def _no_address_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUTTI_URL", raising=False)
