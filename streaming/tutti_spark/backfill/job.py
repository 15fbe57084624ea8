"""Loads the user's function that turns records into rows, and analyses the plan of its result."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutti.errors import UsageError
from tutti_spark.query_plan import class_name, is_tutti, printed, to_list

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FUNCTION = "transform"
#: Operators that compute each output row from a single input row.
_ROW_BY_ROW = {
    "Project", "Filter", "SubqueryAlias", "View", "ResolvedHint", "Generate", "Repartition", "RepartitionByExpression", "Sort",
    "EventTimeWatermark",
}  # fmt: skip
_BY_BATCH = {"MapInPandas", "MapInArrow", "PythonMapInArrow"}
#: Kinds of joins that process one side row by row: number of this side (0: left, 1: right) -> kinds.
_JOINS = {0: {"Inner$", "Cross$", "LeftOuter$", "LeftSemi$", "LeftAnti$"}, 1: {"Inner$", "Cross$", "RightOuter$"}}


def check(path: str) -> None:
    """Raise UsageError unless the path is a Python file. Unlike `load`, this check needs no Spark session."""
    if not Path(path).is_file() or not path.endswith(".py"):
        raise UsageError(f"--job {path} is not a Python file: name a file that has a function {FUNCTION}(records)")


def load(path: str) -> Callable[[DataFrame], DataFrame]:
    """Return the function `transform` of a Python file, which may use the active Spark session.

    Raises:
        UsageError: the file has no such function, or its import fails.
    """
    from pyspark import cloudpickle

    file = Path(path)
    name = f"tutti_backfill_{file.stem}"  # with a prefix, so that the file never shadows an installed module
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UsageError(f"--job {path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # Pickle the functions of the file by value, because workers cannot import the module by name.
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # cloudpickle has no type hints
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(f"--job {path} fails when it is loaded: {type(error).__name__}: {error}") from error
    function = getattr(module, FUNCTION, None)
    if not callable(function):
        raise UsageError(f"--job {path} has no function {FUNCTION}(records), which takes a DataFrame and returns one")
    chosen: Callable[[DataFrame], DataFrame] = function
    return chosen


def apply(transform: Callable[[DataFrame], DataFrame] | None, records: DataFrame) -> DataFrame:
    """Return the rows that the function `transform` computes from the records; without a function, the records.

    Raises:
        UsageError: the job fails, or does not return a DataFrame.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import DataFrame as Rows

    if transform is None:
        return records
    try:
        rows = transform(records)
    except PySparkException:
        raise  # Spark's message already names the part of the plan that is wrong
    except Exception as error:
        raise UsageError(f"{FUNCTION}(records) of --job fails: {type(error).__name__}: {error}") from error
    if not isinstance(rows, Rows):
        raise UsageError(f"{FUNCTION}(records) of --job returned {type(rows).__name__}, not a DataFrame")
    return rows


def whole_range_operator(rows: DataFrame) -> tuple[str, bool] | None:
    """Return the first operator (as Spark prints it) whose result depends on which records are read together.

    The second value is True if the operator is a user function over batches, whose behaviour is unknown. Return None if each row
    depends on a single record.
    """
    waiting: list[Any] = [rows._jdf.queryExecution().analyzed()]
    by_batch: str | None = None
    while waiting:
        node = waiting.pop()
        name = class_name(node)
        if is_tutti(name, node):
            continue
        below = to_list(node.children())
        reading = [_reads_tutti(child) for child in below]
        if any(_reads_tutti(query) for query in to_list(node.subqueries())):
            return printed(node), False
        if name == "Join":
            side = reading.index(True) if any(reading) else 0
            if all(reading) or class_name(node.joinType()) not in _JOINS[side]:
                return printed(node), False
        elif name in _BY_BATCH:
            by_batch = by_batch or printed(node)
        elif name not in _ROW_BY_ROW:
            return printed(node), False
        waiting.extend(child for child, reads in zip(below, reading, strict=True) if reads)
    return (by_batch, True) if by_batch else None


def _reads_tutti(root: Any) -> bool:
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if is_tutti(class_name(node), node):
            return True
        waiting.extend([*to_list(node.children()), *to_list(node.subqueries())])
    return False
