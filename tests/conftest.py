"""Setup of all tests: the operating system, Java and lab tools, hypothesis profiles, the marker `fast`, and temporary files."""

import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from benchmarks.load.generator import lacking
from tests.support import spark_classes

ROOT = Path(__file__).resolve().parent.parent

os.environ.setdefault("SPARK_SUBMIT_OPTS", spark_classes.options())

# An example that fails in CI must fail again elsewhere; other runs draw new examples. The time of one example depends on the
# machine, so only the time limit of the test applies.
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.register_profile("home", deadline=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "home")


def pytest_configure(config: pytest.Config) -> None:
    if sys.platform != "linux":
        pytest.exit(f"Tutti runs on Linux only, this is {sys.platform}.", returncode=2)


def pytest_report_header() -> str | None:
    """Report the tests that tests/integration/load/conftest.py leaves out."""
    return f"left out: the tests of the load generator, because {lacking()} is missing" if lacking() else None


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


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Freeze the million objects that collection creates, so that the garbage collector does not walk them in every test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Check the tools of the selected tests."""
    for marker, tool in (("spark", "tools/java.sh"), ("lab", "tools/lab.sh")):
        if any(item.get_closest_marker(marker) for item in session.items):
            found = subprocess.run([ROOT / tool, sys.executable], capture_output=True, text=True, check=False)
            if found.returncode:
                pytest.exit(found.stderr.strip(), returncode=2)


@pytest.fixture(scope="module", autouse=True)
def _remove_files_of_module(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Remove the files that the fixtures of a module made, unless one of its tests failed.

    A group of three gateways has more than a gigabyte, and dozens of modules start one. Fixtures of a session name their
    directories session-NAME. pytest itself removes the directory of a test, test_NAME.
    """
    base, failed = tmp_path_factory.getbasetemp(), request.session.testsfailed
    before = set(base.iterdir())
    yield
    if request.session.testsfailed == failed:
        for path in set(base.iterdir()) - before:
            if not path.name.startswith(("session-", "test_")):
                shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(autouse=True)
def _no_url_from_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TUTTI_URL", raising=False)
