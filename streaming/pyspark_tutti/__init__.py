"""Where Spark finds the data source `tutti`: it looks for modules named `pyspark_*` with a `DefaultSource`.

Spark imports this in every application that uses any Python data source, so it imports little, and nothing that could fail.
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
    """Make the format `tutti` known to `spark` where the package is shipped with the job (`--py-files`) and not installed.

    Spark's driver starts Python processes that plan reads. What `--py-files` ships is not on their path; this puts it there. On a
    local master whose Python nobody chose (PYSPARK_PYTHON), workers become the interpreter that runs now. A format that Spark found
    by itself runs with PYSPARK_DRIVER_PYTHON where that is set, on executors too; one that is registered, with PYSPARK_PYTHON.
    Harmless elsewhere, and when it is called again. With Spark Connect the server plans, and must have the package itself.

    A thread of the driver's program calls it before it writes: Spark looks a sink up in the session that is active in the calling
    thread, and a new thread has none (DATA_SOURCE_NOT_FOUND).

    Raises:
        UsageError: the Spark of this session is of a version that the source does not know.
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
