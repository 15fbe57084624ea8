"""Is a job deterministic? `deterministic(df)` reads the plan of a DataFrame and says what need not come out the same twice.

The log gives the same records in the same order for ever, and with the option `cut` the same micro-batches. What a job makes of
them is the same only when each of its expressions is a function of the record, or of the rows of a group in whatever order: Spark
passes rows between partitions in the order in which tasks happen to finish. Tables name what is not, by the class of Spark's
expression; one walk through the plan looks for it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.types import StructType

from tutti.errors import UsageError
from tutti_spark.common.options import parse
from tutti_spark.query_plan import IN_ORDER, STREAMS, all_columns, columns, is_tutti, items, name_of, printed, short, total
from tutti_spark.source.catalog import with_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tutti_spark.common.options import Kind, ReadOptions

_EMPTY_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"


@dataclass(frozen=True, slots=True)
class Finding:
    """One part of a job that need not come out the same twice.

    Attributes:
        expression: as Spark prints it, without the numbers of columns.
        operator: the operator of the plan that it stands in, or is, as Spark prints it, shortened.
        why: what its result depends on besides the records.
        instead: what to write for it.
    """

    expression: str
    operator: str
    why: str
    instead: str

    def __str__(self) -> str:
        """One line for people."""
        place = "" if self.operator == self.expression else f" in {self.operator}"
        return f"{self.expression}{place}: {self.why}; {self.instead}"


class _Reason(NamedTuple):
    why: str
    instead: str


def _named(reason: _Reason, names: str) -> dict[str, _Reason]:
    return dict.fromkeys(names.split(), reason)


_UNIQUE_ORDER = "order by something unique as well: `offset` is, in what the tutti source reads"
_CLOCK = _Reason(
    "it is the time at which a batch is planned, another one when it is replayed",
    "take the record's own time: its column `timestamp`, or one of its value",
)
_CHANCE = _Reason(
    "its seed is drawn when the plan is made, in a stream for each micro-batch even where one is given; with one, in a batch, what "
    "a row gets depends on its place in its partition",
    "derive it from the record: `offset` itself, or a hash of columns as in pmod(xxhash64(offset), 100)",
)
_SAMPLE = _Reason(
    "which rows are taken depends on their places in their partitions, even with a seed",
    "filter by a hash of columns, as in pmod(xxhash64(offset), 100) < 10",
)
_PARTITIONS = _Reason(
    "it goes by partitions, and how a range is read in partitions depends on processors and sizes",
    "use `offset`",
)
_FILES = _Reason(
    "it tells which file Spark reads at the moment, not what is in it; nothing at all for rows of other sources",
    "have the name in the record",
)
_MARKED = _Reason(
    "Spark holds it for non-deterministic: it is marked so, and may be run again with another result",
    "if it gives the same for the same row, say so (a UDF without asNondeterministic, a table function with asDeterministic); else "
    "compute it before the record is sent",
)
_ADDITION = _Reason(
    "floating-point numbers are added in the order in which partitions come, and rounded differently in another one",
    "add integers (cents, microseconds) or decimals, and divide sums",
)
_SKETCH = _Reason(
    "it is an estimate whose error depends on the order in which rows and partitions come",
    "use the exact one: percentile, count(distinct ...), group and count",
)
_ANY_ROW = _Reason(
    "which row of a group it takes depends on the order in which rows come",
    "use min_by or max_by with an order in which no two rows are equal, like `offset`",
)
_ARRIVAL = _Reason(
    "its elements stand in the order in which rows come",
    "sort it where it is made: sort_array(collect_list(struct(offset, ...))), listagg(...) WITHIN GROUP (ORDER BY ...)",
)
_TIED_VALUE = _Reason(
    "of rows that are equal in that order it takes the one that comes first",
    "order by struct(column, offset), in which no two are equal",
)
_TIED_MODE = _Reason("of values that are equally frequent it takes any", "use mode(column, True): the lowest of them")
_TIED_WINDOW = _Reason("rows that are equal in the order of the window stand in any order", _UNIQUE_ORDER)
_TIED_LIMIT = _Reason("of rows that are equal in the order before it, which ones are in is left to chance", _UNIQUE_ORDER)
_NO_ORDER = _Reason("without an order before it, it takes the rows that come first", _UNIQUE_ORDER)
_DUPLICATE = _Reason(
    "that each key is there once holds; which of its rows stays is the first that comes: that of the log within a partition, any "
    "between partitions",
    "name all columns that may differ as keys, keep only the keys (select before it), or group by the keys and take "
    "min_by(struct(...), offset)",
)
_CLOCK_TIMERS = _Reason("its timers go by the clock of the run", "use event time and a watermark")
_NO_CUT = _Reason(
    "its micro-batches end where the log ended when Spark asked; watermarks, what counts as late, and when rows come go by them",
    'use option("cut", "tick:N") with option("maxRecordsPerTrigger", 1): each ends at the next tick whose number N divides',
)
_LOOSE_CUT = _Reason(
    "its micro-batches end at ticks, but at which ones depends on how many were there when Spark asked",
    'use option("maxRecordsPerTrigger", 1) with `cut`: each ends at the next tick whose number N divides',
)
_OTHER_STREAM = _Reason(
    "its micro-batches end where it was when Spark asked; watermarks, what counts as late, and when rows come go by them",
    'send its records to Tutti, and read them with option("cut", "tick:N")',
)
_MANY_STREAMS = _Reason(
    "each is asked by itself, so which of their micro-batches meet depends on time, whatever the policy for several watermarks; a "
    "join of a stream with itself reads it twice",
    'give each the same option("lockstep", NAME), or read all topics as one stream and keep its state by key',
)
_EMPTY = _Reason(
    "Spark puts in a micro-batch without records when none are there at the moment: what comes then is late, in a replay it is not",
    f'set spark.conf.set("{_EMPTY_BATCHES}", False)',
)
_LATEST_START = _Reason(
    "a new query begins where the log ends at that moment", 'say where: option("startingOffset", "earliest") or an offset'
)
_LATEST_END = _Reason(
    "the first action reads up to where the log ends at that moment", 'say where: option("endingOffset", N) or endingTimestamp'
)

#: Expressions that are no function of the row.
_EXPRESSIONS: dict[str, _Reason] = (
    _named(_CLOCK, "CurrentTimestamp Now CurrentDate CurrentTime LocalTimestamp CurrentBatchTimestamp")
    | _named(_CHANCE, "Rand Randn RandStr Uniform Uuid Shuffle")
    | _named(_PARTITIONS, "MonotonicallyIncreasingID SparkPartitionID")
    | _named(_FILES, "InputFileName InputFileBlockStart InputFileBlockLength")
)
#: Aggregates that are no function of the set of rows.
_AGGREGATES: dict[str, _Reason] = (
    _named(_ANY_ROW, "First Last AnyValue")
    | _named(_ARRIVAL, "CollectList CollectSet ListAgg")
    | _named(_TIED_VALUE, "MaxBy MinBy MaxMinByK")
    | _named(_TIED_MODE, "Mode PandasMode")
    | _named(_TIED_WINDOW, "RowNumber NTile Lag Lead NthValue")
    | _named(_ADDITION, "Sum Average Product StddevPop StddevSamp VariancePop VarianceSamp Skewness Kurtosis Corr CovPopulation")
    | _named(_ADDITION, "CovSample RegrAvgX RegrAvgY RegrIntercept RegrR2 RegrSlope RegrSXX RegrSXY RegrSYY PandasCovar")
    | _named(_ADDITION, "PandasKurtosis PandasProduct PandasSkewness PandasStddev PandasVariance")
    | _named(_SKETCH, "ApproximatePercentile HistogramNumeric ApproxTopK ApproxTopKAccumulate ApproxTopKCombine HllSketchAgg")
    | _named(_SKETCH, "HllUnionAgg KllSketchAggBigint KllSketchAggDouble KllSketchAggFloat KllMergeAggBigint KllMergeAggDouble")
    | _named(_SKETCH, "KllMergeAggFloat ThetaSketchAgg ThetaUnionAgg TupleSketchAggDouble TupleSketchAggInteger")
    | _named(_SKETCH, "TupleUnionAggDouble TupleUnionAggInteger")
)
_FLOATS = ("double", "float")
_EXACT_FOR_WHOLE_NUMBERS = {"Sum", "Average"}  # an average of integers adds doubles that hold them exactly, up to 2^53
_RANKS = {"Rank", "DenseRank", "PercentRank", "CumeDist"}  # equal rows get equal ones
#: What makes the same of an array in any order.
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
    """What in the job behind `df` need not come out the same when it is restarted, slowed down or replayed; empty when nothing is.

    Works for streams before they are started and for batch reads, and runs nothing. `str(finding)` is a line for people.

    Trusted, and in no finding: functions of your own (UDFs that are not marked non-deterministic, mapInPandas, applyInPandas, those
    with state: the rows of a group come in any order), sources other than tutti that a batch reads, the session's time zone and
    other settings, triggers (`once` takes all that there is, whatever `cut` says), sinks, and what lies behind a checkpoint() or in
    foreachBatch: ask there again. Taken for unique are `offset` of the tutti source, what is grouped or deduplicated by, and pairs
    of these in a join; an order by a column that is unique for another reason is found all the same.

    Raises:
        UsageError: `df` is no DataFrame of classic Spark: Spark Connect shows no plan to its clients.
    """
    frame = getattr(df, "_jdf", None)
    if frame is None:
        kind = f"{type(df).__module__}.{type(df).__qualname__}"
        raise UsageError(
            f"deterministic() reads the plan of a DataFrame of classic Spark, this is {kind}: make it in a session without Spark "
            "Connect (no `remote`); of pandas on Spark take to_spark()"
        )
    java: Any = df.sparkSession.sparkContext._jvm
    walk = _Walk(java.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE())
    walk.plan(frame.queryExecution().analyzed())
    if walk.stateful:
        walk.streams_meet(frame.sparkSession().conf().get(_EMPTY_BATCHES) == "true")
    return list(walk.findings)


class _Walk:
    """What one walk through a plan found, each once, in the plan's order."""

    def __init__(self, clock: Any) -> None:
        """`clock` is the mark that Spark puts on all plans in which somebody asks for the time."""
        self._clock = clock
        self.findings: dict[Finding, None] = {}
        self.stateful: list[str] = []  # operators of a stream that keep state, as they are printed
        self._watermarks: list[str] = []
        self._streams: dict[str, Any] = {}  # sources by their columns: one that is read in two branches counts once

    def plan(self, root: Any) -> None:
        """Look at each operator and its expressions; subqueries are plans, too."""
        waiting = [root]
        while waiting:
            node = waiting.pop()
            self._operator(name_of(node), node)
            waiting.extend(reversed([*items(node.subqueries()), *items(node.children())]))

    def streams_meet(self, empty_batches: bool) -> None:
        """Findings of how the streams are cut into micro-batches, which matters where there is state."""
        together: set[str | None] = set()
        for stream in self._streams.values():
            expression = f"stream {stream.sourceName()}"
            if not is_tutti(name_of(stream), stream):
                self._add(_OTHER_STREAM, expression, self.stateful[0])
                together.add(None)
                continue
            options = _options(stream, stream.extraOptions(), "stream")
            together.add(options.lockstep)
            if options.cut_ticks is None or options.records_max != 1:
                self._add(_NO_CUT if options.cut_ticks is None else _LOOSE_CUT, expression, self.stateful[0])
        if len(self._streams) > 1 and (len(together) > 1 or None in together):
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
            keys = columns(node.keys())
            if not set(columns(node.output())) <= set(keys) and not total(node.child(), keys):
                self._add(_DUPLICATE, printed(node), printed(node))
        elif name in _STATES:
            time = node.timeMode() if name.startswith("TransformWithState") else node.timeout()
            if time.toString().startswith("ProcessingTime"):
                self._add(_CLOCK_TIMERS, time.toString(), printed(node))
        if name in _STATEFUL and all(below.isStreaming() for below in items(node.children())[: 2 if name == "Join" else 1]):
            self.stateful.append(printed(node))
        # Wide and deep plans have many thousand expressions: most operators are asked as a whole.
        if name in _AGGREGATING or not node.deterministic() or node.containsPattern(self._clock):
            grouped = columns(node.groupingExpressions()) if name == "Aggregate" else []
            for expression in items(node.expressions()):
                self._expressions(expression, node, grouped)

    def _stream(self, name: str, node: Any) -> None:
        self._streams[node.output().toString()] = node
        if is_tutti(name, node) and _options(node, node.extraOptions(), "stream").start == "latest":
            self._add(_LATEST_START, "startingOffset latest", printed(node))

    def _limit(self, node: Any) -> None:
        """Rows cut off: the same ones only below an order without ties, or when there is at most one."""
        below = node.child()
        while name_of(below) in IN_ORDER:
            below = below.child()
        is_sorted = name_of(below) == "Sort" and getattr(below, "global")()
        if not total(node.child(), []) and not (is_sorted and total(below.child(), columns(below.order()))):
            self._add(_TIED_LIMIT if is_sorted else _NO_ORDER, printed(node), printed(node))

    def _expressions(self, root: Any, node: Any, grouped: list[int]) -> None:
        """`root` and all below it, in their order; `grouped` are the columns that `node` groups by."""
        waiting = [("", root)]
        while waiting:
            above, expression = waiting.pop()
            name = name_of(expression)
            if name in _PLAIN:
                continue
            children = items(expression.children())
            reason = _EXPRESSIONS.get(name)
            if name == "WindowExpression":
                reason = _in_window(expression, node)
            elif name == "AggregateExpression" and above != "WindowExpression":
                reason = _in_group(expression.aggregateFunction(), above, node, grouped)
            elif reason is None and _is_marked(name, expression, children):
                reason = _MARKED
            if reason is not None:
                self._add(reason, short(expression.sql()), printed(node))
            waiting.extend((name, child) for child in reversed(children))

    def _add(self, reason: _Reason, expression: str, operator: str) -> None:
        self.findings[Finding(expression, operator, *reason)] = None


def _in_group(function: Any, above: str, node: Any, grouped: list[int]) -> _Reason | None:
    """Why an aggregate of a group is no function of its rows in any order; `above` is the class of the expression around it."""
    name = name_of(function)
    reason = _AGGREGATES.get(name)
    if reason is None or (reason is _ADDITION and not _adds_floats(name, function)):
        return None
    if reason is _ARRIVAL and (above in _ANY_ORDER or (name == "ListAgg" and _listed(function, node))):
        return None
    if reason is _TIED_VALUE:
        order = function.orderingExpr()
        order = columns(order.children() if name_of(order) == "CreateNamedStruct" else [order])
        if all_columns(function.valueExpr()) <= set(order) or total(node.child(), order):
            return None
    if name == "Mode" and function.reverseOpt().isDefined():
        return None
    return None if total(node.child(), grouped) else reason


def _in_window(expression: Any, node: Any) -> _Reason | None:
    """Why the function of a window depends on more than the order that the window names."""
    function, window = items(expression.children())[:2]
    if name_of(function) == "AggregateExpression":
        function = function.aggregateFunction()
    order = items(window.orderSpec())
    if name_of(function) in _RANKS or total(node.child(), columns([*items(window.partitionSpec()), *order])):
        return None
    reason = _in_group(function, "", node, [])
    if reason is None:
        frame = window.frameSpecification()
        ends = (name_of(frame.lower()), name_of(frame.upper()))
        is_part = name_of(frame.frameType()) == "RowFrame$" and ends != ("UnboundedPreceding$", "UnboundedFollowing$")
        return _TIED_WINDOW if is_part else None
    return _TIED_WINDOW if order and reason in (_ANY_ROW, _ARRIVAL) else reason


def _listed(function: Any, node: Any) -> bool:
    """Whether `listagg` names an order in which rows that are equal have equal elements."""
    order = columns(function.orderExpressions())
    return bool(order) and (all_columns(function.child()) <= set(order) or total(node.child(), order))


def _adds_floats(name: str, function: Any) -> bool:
    if name not in _EXACT_FOR_WHOLE_NUMBERS:
        return True
    return any(child.dataType().typeName() in _FLOATS for child in items(function.children()))


def _is_marked(name: str, expression: Any, children: list[Any]) -> bool:
    """Whether Spark holds the expression itself for non-deterministic, not only one below it."""
    if expression.deterministic() or name in _SUBQUERIES:
        return False
    if name in _UDFS:
        return not expression.udfDeterministic()
    return all(child.deterministic() for child in children)


def _options(node: Any, given: Any, kind: Kind) -> ReadOptions:
    """The options of a read, those of its table in Spark's catalog among them."""
    schema = StructType.fromJson(json.loads(node.table().schema().json()))
    return parse(with_table(dict(given.asCaseSensitiveMap()), schema), kind)
