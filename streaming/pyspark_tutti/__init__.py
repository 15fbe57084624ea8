"""Entry point of the data source `tutti`: Spark imports every module named `pyspark_*` and uses its class `DefaultSource`.

Spark imports this module in every application that uses any Python data source. So the module imports little, and only modules
whose import cannot fail.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import tutti
import tutti_spark
from tutti.errors import UsageError
from tutti_spark.common import requirements
from tutti_spark.source.data_source import TuttiDataSource as DefaultSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DefaultSource", "register"]


def register(spark: SparkSession) -> None:
    """Register the format `tutti` in a session whose job ships the package with `--py-files` instead of installing it.

    The Python processes that plan reads do not have the files of `--py-files` on their path, so this function adds these files. On
    a local master without PYSPARK_PYTHON, the function makes workers use the current interpreter. A registered format runs with
    PYSPARK_PYTHON, and a format that Spark discovers runs with PYSPARK_DRIVER_PYTHON, if set, even on executors. Repeated calls are
    harmless. With Spark Connect, the server plans reads, so the package must be installed on the server.

    Call this function in each thread that writes. Spark looks up a sink in the active session of the calling thread. A new thread
    has no active session, so without the call the write fails (DATA_SOURCE_NOT_FOUND).

    Raises:
        UsageError: the source does not support the session's Spark version.
    """
    from pyspark.sql.utils import is_remote

    if not requirements.SPARK.fits(spark.version):
        raise UsageError(f"this session runs on Spark {spark.version}, and the format tutti needs {requirements.SPARK}")
    if not is_remote():
        context = spark.sparkContext
        roots = [str(Path(module.__file__ or "").parents[1]) for module in (sys.modules[__name__], tutti_spark, tutti)]
        paths = context.environment.get("PYTHONPATH", "").split(os.pathsep)
        missing = [root for root in dict.fromkeys(roots) if root not in paths]
        if missing:
            context.environment["PYTHONPATH"] = os.pathsep.join(filter(None, [*missing, *paths]))
        if (context.master or "").startswith("local") and "PYSPARK_PYTHON" not in os.environ:
            context.pythonExec = sys.executable
        if context._jvm is not None:
            context._jvm.SparkSession.setActiveSession(spark._jsparkSession)
    spark.dataSource.register(DefaultSource)
