"""Tests of the requirements of Spark's Python: they are one table, and a Python that lacks one is refused before any record is
read.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.datasource import InputPartition

from tutti.errors import UsageError
from tutti_spark.common import requirements
from tutti_spark.common.options import parse
from tutti_spark.common.requirements import VersionRange
from tutti_spark.source.data_source import TuttiDataSource
from tutti_spark.source.partition_reader import read_partition
from tutti_spark.source.planning import RecordsPartition

ROOT = Path(requirements.__file__).parents[3]


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    """Clear the cached answer: a process checks its requirements only once."""
    requirements.check.cache_clear()
    yield
    requirements.check.cache_clear()


def test_the_table_has_the_requirements_of_the_project() -> None:
    """Proves that the named versions are those that an installation brings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = {}
    for line in [*project["dependencies"], *project["optional-dependencies"]["spark"]]:
        found = re.fullmatch(r"([a-z0-9-]+)>=([0-9.]+)(?:,<([0-9.]+))?", line)
        assert found is not None, line
        asked[found[1]] = VersionRange(found[2], found[3] or "")
    assert {name: asked[name] for name in requirements.PACKAGES} == requirements.PACKAGES
    assert {name: asked[name] for name in requirements.OPTIONAL} == requirements.OPTIONAL
    assert asked["pyspark"] == requirements.SPARK
    assert project["requires-python"] == f">={requirements.PYTHON.least},<{requirements.PYTHON.below}"


@pytest.mark.parametrize(
    ("need", "found", "fits"),
    [
        (VersionRange("22"), "22.0.0", True),
        (VersionRange("22"), "21.0.0", False),
        (VersionRange("22"), "100.1", True),
        (VersionRange("4.2", "4.4"), "4.2.0", True),
        (VersionRange("4.2", "4.4"), "4.3.0.dev1", True),
        (VersionRange("4.2", "4.4"), "4.4.0", False),
        (VersionRange("4.2", "4.4"), "4.10.0", False),
        (VersionRange("3.11", "3.14"), "3.9.18", False),
        (VersionRange("2.2", "3"), "3.0.0rc1", False),
    ],
)
def test_versions_are_compared_by_their_numbers(need: VersionRange, found: str, fits: bool) -> None:
    """Proves that 100 is newer than 22, and that a range ends below its end."""
    assert need.fits(found) is fits


def test_this_environment_fits() -> None:
    """Proves that the environment of the tests is not refused."""
    assert requirements.version_errors(requirements.describe_interpreter()) == []
    requirements.check()


def _with(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    found = requirements.describe_interpreter()
    found["packages"].update({name.replace("_", "-"): version for name, version in versions.items()})
    monkeypatch.setattr(requirements, "describe_interpreter", lambda optional=True: found)


def test_an_outdated_library_is_named_with_the_required_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that a source is refused when it is made, in the driver, with all that does not fit."""
    _with(monkeypatch, pyarrow="21.0.0", orjson="")
    with pytest.raises(UsageError) as refused:
        TuttiDataSource({})
    said = str(refused.value)
    assert said.startswith(f"{sys.executable} on host ")
    assert "orjson is missing (3.11 or newer is needed); pyarrow is 21.0.0 (22 or newer is needed). " in said
    assert f"{sys.executable} -m pip install '.[spark]'" in said


def test_a_task_is_refused_too_and_before_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that an executor whose libraries are others than the driver's says so, and not what went wrong for it later."""
    _with(monkeypatch, numpy="1.26.4")
    options = parse({"gateways": "tutti://127.0.0.1:1"})
    with pytest.raises(UsageError, match=re.escape("numpy is 1.26.4 (2.3 or newer is needed)")):
        next(read_partition(options, RecordsPartition("0" * 32, 0, 1, None)))
    assert list(read_partition(options, InputPartition(None))) == []


@pytest.mark.parametrize("spark", ["4.1.1", "4.4.0"])
def test_another_spark_is_refused(monkeypatch: pytest.MonkeyPatch, spark: str) -> None:
    """Proves that the version of Spark counts, whose pyspark its Python processes have."""
    monkeypatch.setattr("pyspark.__version__", spark)
    with pytest.raises(UsageError, match=re.escape(f"pyspark is {spark} (4.2 or newer, below 4.4 is needed)")):
        requirements.check()


def test_another_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that the version of Python counts."""
    monkeypatch.setattr("platform.python_version", lambda: "3.10.12")
    with pytest.raises(UsageError, match=re.escape("it is Python 3.10.12 (3.11 or newer, below 3.14 is needed)")):
        requirements.check()


def test_pandas_counts_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that reading does not need what only a job's own functions use, and that the doctor names it."""
    _with(monkeypatch, pandas="3.0.1", protobuf="")
    assert requirements.version_errors(requirements.describe_interpreter()) == ["pandas is 3.0.1 (2.2 or newer, below 3 is needed)"]


def test_a_bare_python_reports_its_missing_requirements() -> None:
    """Proves that the file's text is enough to ask any Python, with nothing installed in it."""
    text = Path(requirements.__file__).read_text()
    run = subprocess.run([sys.executable, "-I", "-S", "-c", text], capture_output=True, text=True, check=True, cwd="/")
    found = json.loads(run.stdout)
    assert found["missing"] == list(requirements.MODULES)
    assert requirements.version_errors(found) == [
        f"{name} is missing ({need} is needed)" for name, need in requirements.PACKAGES.items()
    ]


def test_a_library_without_its_metadata_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Proves that a library installed without pip is asked for its version itself."""
    (tmp_path / "metadatafree.py").write_text("__version__ = '1.2'\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert requirements._version("metadatafree") == "1.2"
    assert requirements._version("no-such-package") == ""
