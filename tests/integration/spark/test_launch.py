"""Tests of the launch: Spark finds the format and its Python outside of an activated environment, and if the package is shipped and
not installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.integration.spark.rows import WAIT_S, numbered, send
from tests.support.gateway_process import GatewayProcess
from tutti_spark.launch import LOCAL_SETTINGS, spark_home, spark_submit, write_zip

pytestmark = [pytest.mark.spark, pytest.mark.slow]
COUNT = 7
#: Batch, stream and a function of the user's own: each is run by another Python process of Spark's.
SCRIPT = """
import os, sys
os.environ.pop("PYSPARK_PYTHON", None) if {unset} else None  # what the installed default sets
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
spark = SparkSession.builder.getOrCreate()
{prepare}
url, directory = sys.argv[1:]
print("BATCH", spark.read.format("tutti").option("gateways", url).option("topics", "launch").load().count())
stream = spark.readStream.format("tutti").option("gateways", url).option("topics", "launch").option("startingOffset", "earliest")
counted = []
query = stream.load().writeStream.foreachBatch(lambda rows, batch: counted.append(rows.count()))
query.option("checkpointLocation", directory).trigger(availableNow=True).start().awaitTermination()
print("STREAM", sum(counted))
print("OWN", spark.range(1).select(udf(lambda _: sys.version_info[:2].__repr__())("id")).first()[0])
spark.stop()
"""
REGISTER = "import pyspark_tutti; pyspark_tutti.register(spark)"


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """The environment of a newcomer: nothing is activated, and `python3` is one without packages."""
    python3 = tmp_path / "bin" / "python3"
    python3.parent.mkdir()
    python3.write_text(f'#!/bin/sh\nexec {os.path.realpath(sys.executable)} -S "$@"\n')
    python3.chmod(0o755)
    kept = {name: os.environ[name] for name in ("JAVA_HOME", "HOME", "LANG") if name in os.environ}
    java = shutil.which("java")
    assert java is not None
    return kept | {"PATH": f"{python3.parent}:{Path(java).parent}:/usr/bin:/bin", "SPARK_LOCAL_IP": "127.0.0.1"}


def run(command: list[str], environment: dict[str, str], cwd: Path) -> None:
    done = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith(("BATCH", "STREAM", "OWN"))] == [
        f"BATCH {COUNT}",
        f"STREAM {COUNT}",
        f"OWN {sys.version_info[:2]!r}",
    ]


@pytest.fixture(scope="module")
def url(gateway: GatewayProcess) -> str:
    """Of a gateway with `COUNT` records."""
    send(gateway.url, "launch", numbered("l", COUNT))
    return gateway.url


@pytest.mark.soak
def test_a_script_run_by_our_python_needs_register_and_nothing_else(url: str, bare: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    settings = "".join(f".config({name!r}, {value!r})" for name, value in LOCAL_SETTINGS.items())
    script.write_text(SCRIPT.format(prepare=REGISTER, unset=True).replace("builder.", f"builder.master('local[2]'){settings}."))
    run([sys.executable, str(script), url, str(tmp_path / "c")], bare, tmp_path)


@pytest.mark.soak
def test_the_launcher_needs_nothing(url: str, bare: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(prepare="", unset=False))
    submit = spark_submit(script, url, str(tmp_path / "c"))
    run([sys.executable, "-m", "tutti_spark.launch", "spark-submit", *submit[1:]], bare, tmp_path)


@pytest.mark.soak
def test_a_package_that_is_shipped_and_not_installed_needs_register(url: str, bare: dict[str, str], tmp_path: Path) -> None:
    """With `--py-files` what reads is on the path of workers, but not of the driver's own Python processes."""
    shipped = write_zip(tmp_path / "tutti.zip")
    # All that is installed but this package: a directory on PYTHONPATH has no use for the file that points to a checkout.
    environment = bare | {
        "PYSPARK_PYTHON": str(tmp_path / "bin" / "python3"),
        "PYTHONPATH": sysconfig.get_path("purelib"),
        "SPARK_HOME": str(spark_home()),
    }
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(prepare=REGISTER, unset=False))
    command = spark_submit(script, url, str(tmp_path / "c"), conf={"spark.submit.pyFiles": str(shipped)})
    run(command, environment, tmp_path)
