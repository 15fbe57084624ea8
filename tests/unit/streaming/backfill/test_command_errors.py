"""Tests of the errors of `tutti backfill`: if a job or Spark fails, the message is the cause, in one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tutti.errors import UsageError
from tutti_spark.backfill import job
from tutti_spark.backfill.command import cause

_INTERRUPTED = """
import signal
from types import SimpleNamespace
from tutti_spark.backfill import command, spark_session

def of_spark(*_):
    signal.signal(signal.SIGINT, lambda *_: print("Spark's"))
    return SimpleNamespace(stop=print)

spark_session.session = of_spark
plan = SimpleNamespace(nothing_to_do=lambda: False, request=SimpleNamespace(table="t"), format="parquet")
plan.run = lambda *_: signal.raise_signal(signal.SIGINT)
command._run(plan, None, {})
"""
_TASK = """An exception was thrown from the Python worker: Traceback (most recent call last):
  File "/opt/jobs/delays.py", line 7, in number
    return int(value)
ValueError: invalid literal for int()

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/opt/jobs/delays.py", line 9, in number
    raise TypeError(value)
TypeError: a value is no number
\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:1)
"""


def test_the_cause_is_the_last_exception_of_python() -> None:
    """Proves that the message is the error of Spark's Python process, not the first lines of its traceback."""
    assert cause(_TASK) == "TypeError: a value is no number"


@pytest.mark.parametrize(
    "text", ["[PATH_NOT_FOUND] no such path\n\n  at A\n  at B\n  at C", "[PATH_NOT_FOUND] no such path at A at B"]
)
def test_the_cause_of_a_spark_error_is_its_beginning(text: str) -> None:
    """Proves that the message of other errors is their first lines."""
    assert cause(text) == "[PATH_NOT_FOUND] no such path at A at B"


def test_a_transform_that_fails_is_the_job_s_fault() -> None:
    """Proves that an error of the user's function is reported as such, with its text."""

    def transform() -> None:
        """Have no parameter for the records."""

    wrong: Any = transform
    records: Any = object()
    with pytest.raises(UsageError, match=r"transform\(records\) of --job fails: TypeError: .*0 positional"):
        job.apply(wrong, records)


def test_a_job_that_ends_the_process_is_refused(tmp_path: Path) -> None:
    """Proves that a script that runs completely on import does not end the command silently."""
    script = tmp_path / "script.py"
    script.write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(UsageError, match="fails when it is loaded: SystemExit: 3"):
        job.load(str(script))


def test_ctrl_c_ends_it_with_one_line() -> None:
    """Proves that Spark's own way with Ctrl-C, which prints tracebacks of its connection to the JVM, is not taken."""
    ended = subprocess.run([sys.executable, "-c", _INTERRUPTED], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "interrupted\n")
