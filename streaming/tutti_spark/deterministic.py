"""Static check of a job: `deterministic(df)` reads the plan of a DataFrame and lists its nondeterministic parts.

The log always returns the same records in the same order, and with the option `cut` the same micro-batches. A job's result is
repeatable only if each expression depends on the record alone, or on the rows of a group in any order. Order matters because Spark
passes rows between partitions in the order in which tasks finish. Tables in this module list all other expressions by Spark's class
name, and one pass over the plan finds these expressions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.types import StructType

from tutti.errors import UsageError
from tutti_spark.common.options import parse
from tutti_spark.query_plan import (
    IN_ORDER,
    STREAMS,
    class_name,
    column_ids,
    is_tutti,
    is_unique,
    printed,
    referenced_column_ids,
    short,
    to_list,
)
from tutti_spark.source.catalog import merge_table_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tutti_spark.common.options import Kind, ReadOptions

_EMPTY_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"


@dataclass(frozen=True, slots=True)
class Finding:
    """One nondeterministic part of a job.

    Attributes:
        expression: the expression as Spark prints it, without column ids.
        operator: the operator of the plan that contains the expression, as Spark prints it, shortened.
        why: the dependency that makes the result differ between runs.
        instead: a deterministic replacement.
    """

    expression: str
    operator: str
    why: str
    instead: str

    def __str__(self) -> str:
        """Return the finding as one line of text."""
        location = "" if self.operator == self.expression else f" in {self.operator}"
        return f"{self.expression}{location}: {self.why}; {self.instead}"


class _Reason(NamedTuple):
    why: str
    instead: str


def _reasons(reason: _Reason, names: str) -> dict[str, _Reason]:
    return dict.fromkeys(names.split(), reason)


_UNIQUE_ORDER = "add a unique column to the order: `offset` is unique in the tutti source"
_CLOCK = _Reason(
    "it is the time at which a batch is planned, and a replay is planned at another time",
    "use the record's own time: its column `timestamp`, or a time in its value",
)
_RANDOM = _Reason(
    "planning draws its seed; a stream draws one for each micro-batch even if you set one; in a batch with a seed, a row's value "
    "depends on the row's position in its partition",
    "derive the value from the record: `offset` itself, or a hash of columns as in pmod(xxhash64(offset), 100)",
)
_SAMPLE = _Reason(
    "the choice of rows depends on their positions in their partitions, even with a seed",
    "filter by a hash of columns, as in pmod(xxhash64(offset), 100) < 10",
)
_PARTITIONS = _Reason(
    "its value depends on partitions, and the number of partitions depends on processors and sizes",
    "use `offset`",
)
_FILES = _Reason(
    "its value is the name of the file that Spark reads, not part of the data, and is empty for other sources",
    "store the name in the record",
)
_MARKED = _Reason(
    "it is marked as nondeterministic, so Spark may run it again with another result",
    "if it gives the same result for the same row, declare it deterministic (a UDF without asNondeterministic, a table function "
    "with asDeterministic); else compute the value before the record is sent",
)
_ADDITION = _Reason(
    "it adds floating-point numbers in the order in which partitions arrive, and rounding depends on that order",
    "add integers (cents, microseconds) or decimals, and divide sums",
)
_SKETCH = _Reason(
    "it is an estimate whose error depends on the order in which rows and partitions arrive",
    "use an exact function: percentile, count(distinct ...), group and count",
)
_ANY_ROW = _Reason(
    "its choice of a row in a group depends on the order in which rows arrive",
    "use min_by or max_by with a unique order, such as `offset`",
)
_ARRIVAL = _Reason(
    "its elements are in the order in which rows arrive",
    "sort the elements: sort_array(collect_list(struct(offset, ...))), listagg(...) WITHIN GROUP (ORDER BY ...)",
)
_TIED_VALUE = _Reason(
    "among rows that are equal in the order it takes the first to arrive",
    "order by struct(column, offset), which is unique",
)
_TIED_MODE = _Reason("among equally frequent values it takes any", "use mode(column, True), which takes the lowest of them")
_TIED_WINDOW = _Reason("rows that are equal in the order of the window are in any order", _UNIQUE_ORDER)
_TIED_LIMIT = _Reason("among rows that are equal in the preceding order it takes any", _UNIQUE_ORDER)
_NO_ORDER = _Reason("without a preceding order it takes the first rows to arrive", _UNIQUE_ORDER)
_DUPLICATE = _Reason(
    "it keeps the first row of each key to arrive: the first in the log within one partition, any row between partitions",
    "use all columns that may differ as keys, select only the keys first, or group by the keys and use min_by(struct(...), offset)",
)
_CLOCK_TIMERS = _Reason("its timers use the clock of the run", "use event time and a watermark")
_NO_CUT = _Reason(
    "its micro-batches end at the frontier of the moment; watermarks, lateness, and the time of output depend on these ends",
    'use option("cut", "tick:N") with option("maxRecordsPerTrigger", 1): each ends at the next tick divisible by N',
)
_LOOSE_CUT = _Reason(
    "its micro-batches end at ticks, but the choice of ticks depends on how many existed when Spark asked",
    'use option("maxRecordsPerTrigger", 1) with `cut`: each micro-batch then ends at the next tick divisible by N',
)
_OTHER_STREAM = _Reason(
    "its micro-batches end at its newest record of the moment; watermarks, lateness, and the time of output depend on these ends",
    'send its records to Tutti, and read them with option("cut", "tick:N")',
)
_MANY_STREAMS = _Reason(
    "Spark asks each stream separately, so the pairing of their micro-batches depends on time, under any policy for several "
    "watermarks; a self-join reads its stream twice",
    'set the same option("lockstep", NAME) on each, or read all topics as one stream and keep its state by key',
)
_EMPTY = _Reason(
    "Spark runs a micro-batch without records when none are available: later records may then be late, but not in a replay",
    f'set spark.conf.set("{_EMPTY_BATCHES}", False)',
)
_LATEST_START = _Reason(
    "a new query begins at the frontier of the moment", 'set the start: option("startingOffset", "earliest") or an offset'
)
_LATEST_END = _Reason(
    "the first action reads up to the frontier of the moment", 'set the end: option("endingOffset", N) or endingTimestamp'
)

#: Expressions whose value depends on time, a random seed, partitions or files, and not only on their row.
_EXPRESSIONS: dict[str, _Reason] = (
    _reasons(_CLOCK, "CurrentTimestamp Now CurrentDate CurrentTime LocalTimestamp CurrentBatchTimestamp")
    | _reasons(_RANDOM, "Rand Randn RandStr Uniform Uuid Shuffle")
    | _reasons(_PARTITIONS, "MonotonicallyIncreasingID SparkPartitionID")
    | _reasons(_FILES, "InputFileName InputFileBlockStart InputFileBlockLength")
)
#: Aggregates and window functions whose result depends on the order of the rows.
_AGGREGATES: dict[str, _Reason] = (
    _reasons(_ANY_ROW, "First Last AnyValue")
    | _reasons(_ARRIVAL, "CollectList CollectSet ListAgg")
    | _reasons(_TIED_VALUE, "MaxBy MinBy MaxMinByK")
    | _reasons(_TIED_MODE, "Mode PandasMode")
    | _reasons(_TIED_WINDOW, "RowNumber NTile Lag Lead NthValue")
    | _reasons(_ADDITION, "Sum Average Product StddevPop StddevSamp VariancePop VarianceSamp Skewness Kurtosis Corr CovPopulation")
    | _reasons(_ADDITION, "CovSample RegrAvgX RegrAvgY RegrIntercept RegrR2 RegrSlope RegrSXX RegrSXY RegrSYY PandasCovar")
    | _reasons(_ADDITION, "PandasKurtosis PandasProduct PandasSkewness PandasStddev PandasVariance")
    | _reasons(_SKETCH, "ApproximatePercentile HistogramNumeric ApproxTopK ApproxTopKAccumulate ApproxTopKCombine HllSketchAgg")
    | _reasons(_SKETCH, "HllUnionAgg KllSketchAggBigint KllSketchAggDouble KllSketchAggFloat KllMergeAggBigint KllMergeAggDouble")
    | _reasons(_SKETCH, "KllMergeAggFloat ThetaSketchAgg ThetaUnionAgg TupleSketchAggDouble TupleSketchAggInteger")
    | _reasons(_SKETCH, "TupleUnionAggDouble TupleUnionAggInteger")
)
_FLOATS = ("double", "float")
_EXACT_FOR_WHOLE_NUMBERS = {"Sum", "Average"}  # `Average` adds integers as doubles, which are exact up to 2^53
_RANKS = {"Rank", "DenseRank", "PercentRank", "CumeDist"}  # functions that give equal ranks to rows that are equal in the order
#: Array functions whose result does not depend on the order of the array's elements.
_ANY_ORDER = {"SortArray", "Size", "ArrayContains", "ArrayMax", "ArrayMin"}
_AGGREGATING = {"Aggregate", "Window"}
_PLAIN = {"AttributeReference", "Literal"}
_SUBQUERIES = {"ScalarSubquery", "Exists", "ListQuery", "LateralSubquery", "FunctionTableSubqueryArgumentExpression"}
_UDFS = {"PythonUDF", "PythonUDAF", "PythonUDTF", "ScalaUDF"}
_LIMITS = {"GlobalLimit", "Offset", "Tail"}
_DUPLICATES = {"Deduplicate", "DeduplicateWithinWatermark"}
_STATES = {"FlatMapGroupsWithState", "FlatMapGroupsInPandasWithState", "TransformWithState", "TransformWithStateInPySpark"}
_STATEFUL = {"Aggregate", "Distinct", "Join", "GlobalLimit"} | _DUPLICATES | _STATES


def deterministic(df: DataFrame) -> list[Finding]:
    """Return the parts of a job whose result may differ after a restart, a delay or a replay. A deterministic job has none.

    The check works for batch reads and for streams that have not started, and runs no job. `str(finding)` is one line of text.

    The check never reports these parts, although they may be nondeterministic:
    - your own functions (UDFs not marked as nondeterministic, mapInPandas, applyInPandas, stateful functions), which get the rows
      of a group in any order;
    - batch sources other than tutti, sinks, the session's time zone and other settings;
    - the trigger `once`, which ignores `cut`;
    - operators below a checkpoint() or in foreachBatch, for which you can call `deterministic` again.

    The check knows these unique columns: `offset` of the tutti source, the keys of groups and deduplications, and pairs of these in
    a join. The check reports an order by any other column, even if the column is unique.

    Raises:
        UsageError: `df` is not a DataFrame of classic Spark. (Clients of Spark Connect cannot read plans.)
    """
    frame = getattr(df, "_jdf", None)
    if frame is None:
        kind = f"{type(df).__module__}.{type(df).__qualname__}"
        raise UsageError(
            f"deterministic() needs a DataFrame of classic Spark, and this is {kind}: create it in a session without Spark Connect "
            "(no `remote`); for pandas on Spark call to_spark()"
        )
    java: Any = df.sparkSession.sparkContext._jvm
    check = _PlanCheck(java.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE())
    check.plan(frame.queryExecution().analyzed())
    if check.stateful:
        check.check_streams(frame.sparkSession().conf().get(_EMPTY_BATCHES) == "true")
    return list(check.findings)


class _PlanCheck:
    """The findings of one pass over a plan, without duplicates, in the plan's order."""

    def __init__(self, clock: Any) -> None:
        """Create an empty result; `clock` is Spark's tree pattern for expressions with the current time."""
        self._clock = clock
        self.findings: dict[Finding, None] = {}
        self.stateful: list[str] = []  # stateful operators on streams, as text
        self._watermarks: list[str] = []
        self._streams: dict[str, Any] = {}  # sources by their column ids, so that a source in two branches of the plan counts once

    def plan(self, root: Any) -> None:
        """Check each operator and its expressions, including the plans of subqueries."""
        waiting = [root]
        while waiting:
            node = waiting.pop()
            self._operator(class_name(node), node)
            waiting.extend(reversed([*to_list(node.subqueries()), *to_list(node.children())]))

    def check_streams(self, empty_batches: bool) -> None:
        """Check that the ends of micro-batches are deterministic, because these ends affect stateful operators."""
        lockstep_names: set[str | None] = set()
        for stream in self._streams.values():
            expression = f"stream {stream.sourceName()}"
            if not is_tutti(class_name(stream), stream):
                self._add(_OTHER_STREAM, expression, self.stateful[0])
                lockstep_names.add(None)
                continue
            options = _options(stream, stream.extraOptions(), "stream")
            lockstep_names.add(options.lockstep)
            if options.cut_ticks is None or options.records_max != 1:
                self._add(_NO_CUT if options.cut_ticks is None else _LOOSE_CUT, expression, self.stateful[0])
        if len(self._streams) > 1 and (len(lockstep_names) > 1 or None in lockstep_names):
            self._add(_MANY_STREAMS, f"{len(self._streams)} streams", self.stateful[0])
        if empty_batches and self._watermarks:
            self._add(_EMPTY, _EMPTY_BATCHES, self._watermarks[0])

    def _operator(self, name: str, node: Any) -> None:
        if name in STREAMS:
            self._stream(name, node)
        elif is_tutti(name, node):
            if _options(node, node.options(), "batch").end == "latest":
                self._add(_LATEST_END, "endingOffset latest", printed(node))
        elif name == "EventTimeWatermark" and node.isStreaming():
            self._watermarks.append(printed(node))
        elif name == "Sample":
            self._add(_SAMPLE, printed(node), printed(node))
        elif name in _LIMITS:
            self._limit(node)
        elif name in _DUPLICATES:
            keys = column_ids(node.keys())
            if not set(column_ids(node.output())) <= set(keys) and not is_unique(node.child(), keys):
                self._add(_DUPLICATE, printed(node), printed(node))
        elif name in _STATES:
            time = node.timeMode() if name.startswith("TransformWithState") else node.timeout()
            if time.toString().startswith("ProcessingTime"):
                self._add(_CLOCK_TIMERS, time.toString(), printed(node))
        if name in _STATEFUL and all(below.isStreaming() for below in to_list(node.children())[: 2 if name == "Join" else 1]):
            self.stateful.append(printed(node))
        # Ask Spark about the whole operator first, because a plan may have thousands of expressions.
        if name in _AGGREGATING or not node.deterministic() or node.containsPattern(self._clock):
            grouped = column_ids(node.groupingExpressions()) if name == "Aggregate" else []
            for expression in to_list(node.expressions()):
                self._expressions(expression, node, grouped)

    def _stream(self, name: str, node: Any) -> None:
        self._streams[node.output().toString()] = node
        if is_tutti(name, node) and _options(node, node.extraOptions(), "stream").start == "latest":
            self._add(_LATEST_START, "startingOffset latest", printed(node))

    def _limit(self, node: Any) -> None:
        """Report a limit unless it follows a unique order or its input has at most one row; others keep arbitrary rows."""
        below = node.child()
        while class_name(below) in IN_ORDER:
            below = below.child()
        is_sorted = class_name(below) == "Sort" and getattr(below, "global")()
        if not is_unique(node.child(), []) and not (is_sorted and is_unique(below.child(), column_ids(below.order()))):
            self._add(_TIED_LIMIT if is_sorted else _NO_ORDER, printed(node), printed(node))

    def _expressions(self, root: Any, node: Any, grouped: list[int]) -> None:
        """Check the expression `root` of `node`, and all expressions below; `grouped` are the grouping columns of `node`."""
        waiting = [("", root)]
        while waiting:
            above, expression = waiting.pop()
            name = class_name(expression)
            if name in _PLAIN:
                continue
            children = to_list(expression.children())
            reason = _EXPRESSIONS.get(name)
            if name == "WindowExpression":
                reason = _window_reason(expression, node)
            elif name == "AggregateExpression" and above != "WindowExpression":
                reason = _aggregate_reason(expression.aggregateFunction(), above, node, grouped)
            elif reason is None and _is_marked(name, expression, children):
                reason = _MARKED
            if reason is not None:
                self._add(reason, short(expression.sql()), printed(node))
            waiting.extend((name, child) for child in reversed(children))

    def _add(self, reason: _Reason, expression: str, operator: str) -> None:
        self.findings[Finding(expression, operator, *reason)] = None


def _aggregate_reason(function: Any, above: str, node: Any, grouped: list[int]) -> _Reason | None:
    """Return why an aggregate depends on the order of its rows, or None.

    `above` is the class name of the expression that uses the aggregate's result, such as "SortArray"; "" at the top.
    """
    name = class_name(function)
    reason = _AGGREGATES.get(name)
    if reason is None or (reason is _ADDITION and not _adds_floats(name, function)):
        return None
    if reason is _ARRIVAL and (above in _ANY_ORDER or (name == "ListAgg" and _list_is_ordered(function, node))):
        return None
    if reason is _TIED_VALUE:
        order = function.orderingExpr()
        order = column_ids(order.children() if class_name(order) == "CreateNamedStruct" else [order])
        if referenced_column_ids(function.valueExpr()) <= set(order) or is_unique(node.child(), order):
            return None
    if name == "Mode" and function.reverseOpt().isDefined():
        return None
    return None if is_unique(node.child(), grouped) else reason


def _window_reason(expression: Any, node: Any) -> _Reason | None:
    """Return why the result of a window function depends on rows that are equal in the window's order, or None."""
    function, window = to_list(expression.children())[:2]
    if class_name(function) == "AggregateExpression":
        function = function.aggregateFunction()
    order = to_list(window.orderSpec())
    if class_name(function) in _RANKS or is_unique(node.child(), column_ids([*to_list(window.partitionSpec()), *order])):
        return None
    reason = _aggregate_reason(function, "", node, [])
    if reason is None:
        frame = window.frameSpecification()
        ends = (class_name(frame.lower()), class_name(frame.upper()))
        is_part = class_name(frame.frameType()) == "RowFrame$" and ends != ("UnboundedPreceding$", "UnboundedFollowing$")
        return _TIED_WINDOW if is_part else None
    return _TIED_WINDOW if order and reason in (_ANY_ROW, _ARRIVAL) else reason


def _list_is_ordered(function: Any, node: Any) -> bool:
    """Return True if `listagg` has an order in which equal rows have equal elements."""
    order = column_ids(function.orderExpressions())
    return bool(order) and (referenced_column_ids(function.child()) <= set(order) or is_unique(node.child(), order))


def _adds_floats(name: str, function: Any) -> bool:
    if name not in _EXACT_FOR_WHOLE_NUMBERS:
        return True
    return any(child.dataType().typeName() in _FLOATS for child in to_list(function.children()))


def _is_marked(name: str, expression: Any, children: list[Any]) -> bool:
    """Return True if Spark marks the expression itself as nondeterministic, and not only one of its subexpressions."""
    if expression.deterministic() or name in _SUBQUERIES:
        return False
    if name in _UDFS:
        return not expression.udfDeterministic()
    return all(child.deterministic() for child in children)


def _options(node: Any, given: Any, kind: Kind) -> ReadOptions:
    """Return the options of a read, including the options of its table in Spark's catalog."""
    schema = StructType.fromJson(json.loads(node.table().schema().json()))
    return parse(merge_table_options(dict(given.asCaseSensitiveMap()), schema), kind)
