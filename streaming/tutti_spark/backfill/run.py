"""Plans and runs a backfill: resolves the range, finds its missing parts, and writes them into the table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tutti import limits
from tutti.errors import OffsetOutOfRange, UsageError, invariant
from tutti_spark.backfill import job
from tutti_spark.backfill.ledger import Claim, Ledger, State, Step, TableSource, check_source, missing, read
from tutti_spark.backfill.ranges import Live, Position, live_query, offset_of
from tutti_spark.backfill.tables import LEDGER_DIRECTORY, DeltaTable, ParquetTable, Table, check_parquet, check_swap
from tutti_spark.common.options import local_path, parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tutti.sources.source import Source

_WAIT_S = 0.5  # interval between checks whether another run has finished its claim


@dataclass(frozen=True, slots=True)
class Backfill:
    """Options of a backfill.

    Attributes:
        table: directory of the table, or another URI of a Delta table.
        format: delta or parquet (None: the present format of the table, or delta for a new table).
        mode: append, merge or swap.
        read: read options of the data source: gateways or path, topics, columns.
        start, end: positions in the log at which the range starts and ends.
        job: path of a Python file with a function `transform` (None: write the records themselves).
        slice_records: maximum number of records of a transaction (None: the job's default).
        live: checkpoint of the streaming query that writes into the same table (None: no query does).
        ledger: directory of the table's ledger (None: a directory in the table).
        allow_nondeterministic: run a job even if it is not deterministic.
    """

    table: str
    read: Mapping[str, str]
    format: str | None = None
    mode: str = "append"
    start: Position = "earliest"
    end: Position = "latest"
    job: str | None = None
    slice_records: int | None = None
    live: str | None = None
    ledger: str | None = None
    allow_nondeterministic: bool = False


@dataclass(slots=True)
class Report:
    """Result of a run: the range, and the parts of it that this run wrote."""

    log: str
    start: int
    end: int
    table: str
    format: str
    mode: str
    written: list[tuple[int, int]] = field(default_factory=list)

    @property
    def records(self) -> int:
        """Number of offsets that this run wrote."""
        return sum(end - start for start, end in self.written)


class Plan:
    """A backfill with its resolved range, and with options that are checked as far as possible without Spark.

    Raises:
        UsageError: an option is wrong, or conflicts with another option; the message contains the option and the remedy.
        Unavailable: no gateway answers.
    """

    def __init__(self, request: Backfill) -> None:
        from tutti.data.frames.columns import check_columns
        from tutti.sources.source import wait_for_log
        from tutti_spark.source.open_log import source_of

        self.request = request
        self.local = local_directory(request.table)
        self.format = _format_of(request, self.local)
        _check_fits(request, self.format, self.local)
        self.options = parse(request.read, "batch")
        check_columns(self.options.columns)
        self.transform: Callable[[DataFrame], DataFrame] | None = None
        if request.job is not None:
            job.check(request.job)
        source = source_of(self.options)
        frontier = wait_for_log(source)
        self.log = frontier.log
        start, end = self._range(source, frontier)
        self.report = Report(self.log, start, end, request.table, self.format, request.mode)
        state = read(self.ledger)
        if state is not None:
            check_source(state.about, self.about, self.ledger)
        if self.format == "parquet" and request.mode == "swap":
            check_swap(Path(str(self.local)), start, end)

    @property
    def about(self) -> TableSource:
        """Source of the table's rows."""
        topics = self.options.topics
        return TableSource(self.log, self.format, ",".join(sorted(topics)) if topics else self.options.topics_pattern or "")

    @property
    def ledger(self) -> Path:
        """Directory of the ledger."""
        if self.request.ledger is not None:
            return Path(self.request.ledger).absolute()
        if self.local is None:
            raise UsageError(
                f"--table {self.request.table} is not on a file system of this machine, so it cannot hold a locked ledger: give "
                "--ledger DIR, a directory that all backfills of this table share"
            )
        return self.local / LEDGER_DIRECTORY

    def _range(self, source: Source, frontier: Any) -> tuple[int, int]:
        start = offset_of(source, "--start", self.request.start, frontier)
        end = offset_of(source, "--end", self.request.end, frontier)
        if self.request.live is not None:
            end = _end_before_live(live_query(self.request.live, self.log), self.request, end)
            if start > end:
                raise OffsetOutOfRange(
                    f"the range would start at {start}, and the query of --live writes all records from {end} on: start before "
                    f"{end}"
                )
        if start > end:
            raise OffsetOutOfRange(f"the range would start at {start} and end before it, at {end}: exchange --start and --end")
        return start, end

    def nothing_to_do(self) -> bool:
        """Return True if the table has the whole range and no claim in the range is open, so that the backfill needs no Spark."""
        start, end = self.report.start, self.report.end
        state = read(self.ledger)
        if start == end or state is None or self.request.mode == "swap":
            return start == end
        return not missing(start, end, state.done) and not any(claim.start < end and start < claim.end for claim in state.open)

    def run(self, spark: SparkSession, report_progress: Callable[[str], None] = lambda _: None) -> Report:
        """Write the missing parts of the range.

        Args:
            spark: a session, with Delta Lake for a Delta table.
            report_progress: function that gets one line of text for each step.

        Raises:
            UsageError: the job is not usable, or its rows do not fit the table.
        """
        report = self.report
        if self.nothing_to_do():
            return report
        if self.request.job is not None:
            self.transform = job.load(self.request.job)
        ledger = Ledger(self.ledger, self.about)
        try:
            slice_records = self._check_job(ledger, self._rows(spark, report.start, report.end), report_progress)
            table = self._table(spark, ledger)
            for step in self._steps(ledger, slice_records):
                if step.claim is None:
                    report_progress(f"waiting for {', '.join(f'{claim} of {claim.run}' for claim in step.waits_for)}")
                    time.sleep(_WAIT_S)
                elif step.resolve:
                    report_progress(f"resolving {step.claim}, which a dead run left open")
                    table.resolve(step.claim)
                else:
                    report_progress(f"records {step.claim} of [{report.start}, {report.end})")
                    self._check_log()
                    rows = self._rows(spark, step.claim.start, step.claim.end)
                    self._recheck_table(ledger, step.claim, rows)
                    table.put(step.claim, rows)
                    report.written.append((step.claim.start, step.claim.end))
        finally:
            ledger.close()
        return report

    def _steps(self, ledger: Ledger, slice_records: int | None) -> Iterator[Step]:
        """Yield steps until the table contains the range. A swap writes the whole range in one step."""
        start, end = self.report.start, self.report.end
        if self.request.mode == "swap":
            while True:
                step = ledger.step_swap(start, end)
                yield step
                if step.claim is not None and not step.resolve:
                    return
        while (found := ledger.step(start, end, slice_records)) is not None:
            yield found

    def _table(self, spark: SparkSession, ledger: Ledger) -> Table:
        if self.format == "parquet":
            invariant(self.local is not None, "a Parquet table is a directory of this machine")
            return ParquetTable(Path(str(self.local)), ledger, self.request.mode)
        return DeltaTable(spark, str(self.local or self.request.table), ledger, self.log, self.request.mode)

    def _rows(self, spark: SparkSession, start: int, end: int) -> DataFrame:
        """Return the rows of the job for [start, end) as a DataFrame, which Spark has not executed yet."""
        read = {name: value for name, value in self.request.read.items() if value}
        records = spark.read.format("tutti").options(**read).option("startingOffset", start).option("endingOffset", end).load()
        return job.apply(self.transform, records)

    def _check_job(self, ledger: Ledger, rows: DataFrame, report_progress: Callable[[str], None]) -> int | None:
        """Check that the job is deterministic. Return the maximum number of records of a transaction; None for the whole range.

        Raises:
            UsageError: the job is not deterministic, or its result depends on the slices.
        """
        from tutti_spark.deterministic import deterministic

        findings = deterministic(rows)
        for finding in findings:
            report_progress(f"not deterministic: {finding}")
        if findings and not self.request.allow_nondeterministic:
            raise UsageError(
                f"the job is not deterministic, with {counted(len(findings))}: {findings[0]}. Correct the job, or accept different "
                "rows in a repeat with --allow-nondeterministic"
            )
        self._check_table(ledger.state(), rows)
        requested = self.request.slice_records
        found = job.whole_range_operator(rows)
        if found is None:
            return requested or limits.BACKFILL_SLICE_RECORDS
        operator, known_to_user = found
        if requested is not None and not known_to_user:
            raise UsageError(f"--slice {requested} would separate records that {operator} reads together: omit --slice")
        return requested

    def _recheck_table(self, ledger: Ledger, claim: Claim, rows: DataFrame) -> None:
        """Check the table again, because another run may have written since the first check. Drop the claim if the check fails."""
        try:
            self._check_table(ledger.state(), rows)
        except UsageError:
            ledger.drop(claim)
            raise

    def _check_table(self, state: State, rows: DataFrame) -> None:
        """Raise UsageError if the rows of the job do not fit the rows that stay in the table."""
        report, schema = self.report, rows.schema.simpleString()
        remaining = [part for start, end in state.done for part in missing(start, end, [(report.start, report.end)])]
        if self.format == "parquet" and state.schema not in ("", schema) and (remaining or self.request.mode != "swap"):
            raise UsageError(
                f"the result has the schema {schema}, and the table has the schema {state.schema}: replace the whole table with "
                "--mode swap, or use another table"
            )
        keyed = "offset" in rows.columns
        if self.request.mode == "swap" and self.request.live is not None and not keyed:
            raise UsageError(
                "--mode swap of a result without the column `offset` replaces the whole table, including the rows that the query "
                "of --live writes meanwhile: keep the column, or stop the query permanently and omit --live"
            )
        if self.request.mode == "swap" and remaining and not keyed:
            raise UsageError(
                "--mode swap of a result without the column `offset` replaces the whole table, but the table also has the offsets "
                f"{remaining[0][0]} to {remaining[0][1] - 1}, which are outside the range of this run: give a range that includes "
                "them, or keep the column"
            )

    def _check_log(self) -> None:
        from tutti.sources.source import wait_for_log
        from tutti_spark.source.open_log import source_of

        found = wait_for_log(source_of(self.options)).log
        if found != self.log:
            raise UsageError(
                f"{self.options.origin} has log {found} now, but had log {self.log} when this run began: the log was replaced"
            )


def local_directory(table: str) -> Path | None:
    """Return the table's directory on this machine; None for a table that is not in a local file system."""
    path = local_path(table)
    return None if path is None else Path(path).absolute()


def _format_of(options: Backfill, local: Path | None) -> str:
    if options.format is not None:
        return options.format
    state = read(local / LEDGER_DIRECTORY) if local is not None else None
    if state is not None:
        return state.about.format
    return "delta"


def _check_fits(options: Backfill, kind: str, local: Path | None) -> None:
    """Raise UsageError if options exclude each other."""
    if kind == "delta":
        return
    if local is None:
        raise UsageError(f"--table {options.table}: a Parquet table must be a local or mounted directory; use --format delta")
    if options.mode == "merge":
        raise UsageError("--mode merge needs Delta Lake: Parquet files cannot be changed while others read and write them")
    if options.ledger is not None:
        raise UsageError(
            f"--ledger {options.ledger}: a Parquet table contains its ledger, because a swap replaces both together: omit --ledger"
        )
    check_parquet(local)


def _end_before_live(live: Live, options: Backfill, end: int) -> int:
    """Return the end of the range, so that each record is written either by the backfill or by the live query.

    The query appends without a check of the table, so an append must end where the query began. A merge skips existing rows, and a
    swap replaces existing rows, so both modes end at the offset that all streams of the query have finished.

    Raises:
        UsageError: no end is correct for all streams: a record between the positions of two streams would be missing, or would be
            in the table twice.
    """
    if options.mode == "append":
        return _end_before_begin(live, options, end)
    begun = live.begins[-1]
    if options.end != "latest" and end > live.finished:
        raise UsageError(
            f"--end is offset {end}, and the query of --live has finished up to {live.finished} and writes later records itself: "
            f"use --end {live.finished}"
        )
    if options.end == "latest" and live.finished < begun:
        raise UsageError(
            f"--live {options.live}: the streams of its query began at offsets {_joined_text(live.begins)}, and all of them have "
            f"finished up to {live.finished} only. Records {live.finished} to {begun - 1} would be missing from the table: try "
            f"again when all streams have finished up to {begun}, or set --end"
        )
    return end if options.end != "latest" else min(end, live.finished)


def _end_before_begin(live: Live, options: Backfill, end: int) -> int:
    if not live.complete:
        raise UsageError(
            f"--live {options.live} no longer contains the start of its query: omit --live and set --end to the offset at which "
            "the query began, or use --mode merge"
        )
    first = live.begins[0]
    if options.end == "latest" and len(live.begins) > 1:
        raise UsageError(
            f"--mode append with --live {options.live}: the backfill must end where the streams of that query began, but they "
            f"began at different offsets ({_joined_text(live.begins)}). With an end at {first}, the table would lack later records "
            "of the streams that began after it. If the rows have the column `offset`, use --mode merge, which adds each offset "
            "that the table lacks. Otherwise start the query with a new checkpoint, and give all its streams the same "
            "startingOffset or the same lockstep"
        )
    if options.end != "latest" and end > first:
        raise UsageError(
            f"--end is offset {end}, and the query of --live began at {_joined_text(live.begins)} and writes later records itself: "
            f"use --end {first}"
        )
    return min(end, first)


def _joined_text(offsets: Sequence[int]) -> str:
    return " and ".join(filter(None, [", ".join(map(str, offsets[:-1])), str(offsets[-1])]))


def counted(findings: int) -> str:
    """Return the number of findings as text. In the message, the text of the first finding follows."""
    return "one finding" if findings == 1 else f"{findings} findings, the first"
