"""Delta and Parquet tables. A table adds a claimed range atomically, and can later determine whether it contains the range."""

from __future__ import annotations

import ctypes
import glob
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tutti.errors import TuttiError, UsageError
from tutti.runtime.durable_files import open_file, sync_directory
from tutti_spark.backfill.ledger import FILE, LOCK, RUNS, Claim, Ledger, finish_claim, missing, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Name of the ledger's directory in a table. The underscore hides it from Spark, and from VACUUM of Delta Lake.
LEDGER_DIRECTORY = "_tutti"
DELTA_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
_TXN_APP, _TXN_VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_CONFLICTS = ("DELTA_CONCURRENT_", "DELTA_METADATA_CHANGED", "DELTA_PROTOCOL_CHANGED", "ConcurrentModificationException")
_TRIES, _PAUSE_S = 30, 0.2
_OFFSET = "offset"
_RENAME_EXCHANGE, _AT_FDCWD = 2, -100


class Table(Protocol):
    """Target of a backfill."""

    def put(self, claim: Claim, rows: DataFrame) -> None:
        """Add the rows of a claim atomically, and once even after repeated calls. Mark the claim as written in the ledger."""

    def resolve(self, claim: Claim) -> None:
        """Determine whether a dead run wrote the claim, record this in the ledger, and prevent a later write of the claim."""


class DeltaTable:
    """A Delta table. Each claim is one transaction with its own application id, which Delta Lake accepts once.

    An empty transaction with the same id resolves a claim. If the claim is already in the table, Delta Lake skips the empty
    transaction. Otherwise, the empty transaction permanently prevents the commit of the claim, even if a Spark process without a
    driver is still writing. The history of the table shows which of the two transactions committed.
    """

    def __init__(self, spark: SparkSession, path: str, ledger: Ledger, log: str, mode: str) -> None:
        self._spark = spark
        self._path = path
        self._ledger = ledger
        self._ledger_id = ledger.state().id  # empty for a ledger of version 1
        self._log = log
        self._mode = mode

    def put(self, claim: Claim, rows: DataFrame) -> None:
        """Append, merge or replace the rows, and retry after conflicts with other writers.

        Raises:
            UsageError: the table has rows of this range from another writer, or a merge has no column `offset`.
        """
        keyed = _OFFSET in rows.columns
        if self._mode == "merge" and not keyed:
            raise UsageError("--mode merge needs the column `offset`, which the result does not have: keep it, or use another mode")
        exists = self._table_exists()
        if self._mode == "append" and exists:
            self._check_foreign_rows(claim)
        _retry_conflicts(lambda: self._write(claim, rows, keyed, exists))
        self._ledger.finish(claim, rows.schema.simpleString(), alone=self._mode == "swap" and not keyed)

    def resolve(self, claim: Claim) -> None:
        """Resolve a claim: commit an empty transaction with the id of the claim, and look both up in the table's history."""
        if not self._table_exists():
            self._ledger.drop(claim)
            return
        empty = self._spark.read.format("delta").load(self._path).limit(0)
        _retry_conflicts(lambda: self._commit(empty, claim, "fence", {}))
        history = self._spark.sql(f"DESCRIBE HISTORY {self._name}").where(f"userMetadata LIKE '%{self._id(claim)}%'")
        found = [json.loads(row.userMetadata) for row in history.select("userMetadata").collect()]
        kinds = {one["did"] for one in found if one["tutti"] == self._id(claim)}
        if "fence" in kinds:
            self._ledger.drop(claim)
        elif kinds:
            self._ledger.finish(claim, alone=kinds == {"swap all"})
        else:
            raise TuttiError(
                f"the run with the claim {claim} is dead, and the history of {self._path} no longer shows whether it wrote: check "
                f"whether the table has the records of this range, and move the claim {claim.number} in "
                f"{self._ledger.directory / FILE} from `open` to `done`, or delete it"
            )

    def _write(self, claim: Claim, rows: DataFrame, keyed: bool, exists: bool) -> None:
        if self._mode == "swap":
            range_only = {"replaceWhere": f"{_OFFSET} >= {claim.start} AND {_OFFSET} < {claim.end}"} if exists else {}
            self._commit(rows, claim, "swap", range_only, "overwrite") if keyed else self._commit(
                rows, claim, "swap all", {"overwriteSchema": "true"}, "overwrite"
            )
        elif self._mode == "merge" and exists:
            self._merge(claim, rows)
        else:
            self._commit(rows, claim, self._mode, {})

    def _commit(self, rows: DataFrame, claim: Claim, action: str, options: dict[str, str], mode: str = "append") -> None:
        writer = rows.write.format("delta").mode(mode).options(**options)
        writer = writer.option("txnAppId", self._id(claim)).option("txnVersion", "1")
        writer.option("userMetadata", self._commit_metadata(claim, action)).save(self._path)

    def _merge(self, claim: Claim, rows: DataFrame) -> None:
        view = f"tutti_backfill_{claim.number}"
        rows.createOrReplaceTempView(view)
        settings = {_TXN_APP: self._id(claim), _TXN_VERSION: "1", _USER_METADATA: self._commit_metadata(claim, "merge")}
        with _settings(self._spark, settings):
            self._spark.sql(
                f"MERGE INTO {self._name} t USING {view} s ON t.{_OFFSET} = s.{_OFFSET} AND t.{_OFFSET} >= {claim.start} "
                f"AND t.{_OFFSET} < {claim.end} WHEN NOT MATCHED THEN INSERT *"
            )
        self._spark.catalog.dropTempView(view)

    def _check_foreign_rows(self, claim: Claim) -> None:
        """Raise UsageError if rows of another writer are in the range. Do nothing for a table without the column `offset`."""
        table = self._spark.read.format("delta").load(self._path)
        if _OFFSET not in table.columns:
            return
        found = table.where(f"{_OFFSET} >= {claim.start} AND {_OFFSET} < {claim.end}").selectExpr(
            f"min({_OFFSET}) AS low", f"max({_OFFSET}) AS high"
        )
        row = found.collect()[0]
        if row.low is not None:
            self._ledger.drop(claim)
            raise UsageError(
                f"{self._path} has rows with offsets {row.low} to {row.high} in the range {claim} that no backfill wrote: end at "
                f"{row.low} (--end, or --live CHECKPOINT of the query that wrote them), or add the missing rows with --mode merge"
            )

    def _table_exists(self) -> bool:
        """Return True if the table exists. Spark opens the table for this check, because the table may be on any file system."""
        from pyspark.errors import AnalysisException

        try:
            self._spark.read.format("delta").load(self._path).schema  # noqa: B018 - this access makes Spark open the table
        except AnalysisException as error:
            if error.getCondition() in (
                "DELTA_TABLE_NOT_FOUND",
                "PATH_NOT_FOUND",
                "DELTA_PATH_DOES_NOT_EXIST",
                "DELTA_SCHEMA_NOT_SET",
            ):
                return False
            raise
        return True

    @property
    def _name(self) -> str:
        return f"delta.`{self._path}`"

    def _id(self, claim: Claim) -> str:
        """Return the application id of a claim's transaction. Delta Lake accepts each id once.

        The id contains the ledger's id, because a new ledger of the same table numbers its claims from 1 again.
        """
        name = f"tutti/{self._log}/{claim.start}-{claim.end}/{claim.number}"
        return f"{name}/{self._ledger_id}" if self._ledger_id else name

    def _commit_metadata(self, claim: Claim, action: str) -> str:
        return json.dumps({"tutti": self._id(claim), "did": action, "log": self._log, "start": claim.start, "end": claim.end})


class ParquetTable:
    """A Parquet table: a local or mounted directory with one subdirectory per range, `offsets=FIRST-LAST`.

    A run stages a range in a hidden directory, and one rename makes the range visible. A swap stages a whole new table next to the
    old one, with hard links to the ranges that stay. Then the swap exchanges the two directories.
    """

    def __init__(self, path: Path, ledger: Ledger, mode: str) -> None:
        self._path = path
        self._ledger = ledger
        self._mode = mode

    def put(self, claim: Claim, rows: DataFrame) -> None:
        """Stage the rows, then rename their directory into the table. With mode "swap", exchange the whole table.

        Raises:
            UsageError: the schemas differ, a swap would split a range, or the directory has foreign files.
            ClaimLost: another run took over the claim.
        """
        if self._mode == "swap":
            self._swap(claim, rows)
            return
        staged = self._path / LEDGER_DIRECTORY / "staged" / _staged_name(claim.number)
        rows.write.mode("overwrite").parquet(str(staged))
        _sync_tree(staged)
        with self._ledger.locked() as state:
            schema = rows.schema.simpleString()
            if state.schema not in ("", schema):
                raise UsageError(
                    f"the rows of this run have the schema {schema}, but an earlier run began the table {self._path} with the "
                    f"schema {state.schema}: use another table"
                )
            finish_claim(state, claim, self._ledger.run, schema)
            staged.rename(self._path / directory_name(claim.start, claim.end))
            sync_directory(self._path)

    def resolve(self, claim: Claim) -> None:
        """Resolve a claim: it is in the table if its directory has the final name. Delete a staged directory."""
        shutil.rmtree(self._path / LEDGER_DIRECTORY / "staged" / _staged_name(claim.number), ignore_errors=True)
        shutil.rmtree(self._swap_directory(claim), ignore_errors=True)
        if not claim.swap and (self._path / directory_name(claim.start, claim.end)).exists():
            self._ledger.finish(claim)
        else:
            self._ledger.drop(claim)

    def _swap(self, claim: Claim, rows: DataFrame) -> None:
        """Replace the table. During a swap, no other claim is open, so only a foreign process could write to the table.

        Raises:
            UsageError: a foreign process wrote during the swap; the message contains the directory of its files.
        """
        check_swap(self._path, claim.start, claim.end)
        new_table = self._swap_directory(claim)
        for leftover in self._path.parent.glob(f".{glob.escape(self._path.name)}.{_staged_name('*')}"):
            shutil.rmtree(leftover, ignore_errors=True)
        rows.write.mode("overwrite").parquet(str(new_table / directory_name(claim.start, claim.end)))
        with self._ledger.locked() as state:
            check_parquet(self._path)
            finish_claim(state, claim, self._ledger.run, rows.schema.simpleString())
            for directory in (found for found in ranges_of(self._path) if missing(*_span(found), [(claim.start, claim.end)])):
                shutil.copytree(directory, new_table / directory.name, copy_function=os.link)
            own, new = self._path / LEDGER_DIRECTORY, new_table / LEDGER_DIRECTORY
            (new / RUNS).mkdir(parents=True)
            os.link(own / LOCK, new / LOCK)
            for run in (own / RUNS).iterdir():
                os.link(run, new / RUNS / run.name)
            write(new, state)
            _sync_tree(new_table)
            _exchange(new_table, self._path)
            sync_directory(self._path.parent)
        try:
            check_parquet(new_table)
        except UsageError as error:
            kept = new_table.rename(self._path.with_name(f"{self._path.name}.before-{claim.number}"))
            raise UsageError(
                f"{self._path} was swapped, and another process wrote into the old table meanwhile: check the files of the old "
                f"table in {kept}"
            ) from error
        shutil.rmtree(new_table, ignore_errors=True)

    def _swap_directory(self, claim: Claim) -> Path:
        return self._path.with_name(f".{self._path.name}.{_staged_name(claim.number)}")


def directory_name(start: int, end: int) -> str:
    """Return the directory name of a range. Names sort in the order of offsets, and Spark reads them as text column `offsets`."""
    return f"offsets={start:019}-{end - 1:019}"


def ranges_of(path: Path) -> list[Path]:
    """Return the range directories of a Parquet table, in order."""
    return sorted(path.glob("offsets=*-*"))


def check_parquet(path: Path) -> None:
    """Raise UsageError if a directory contains files that do not belong to the Parquet table of a backfill."""
    if (path / "_spark_metadata").exists():
        raise UsageError(
            f"a streaming query writes --table {path}, and readers of it see only the files that the query lists: use --format "
            "delta for both, or fill another directory and read the two together"
        )
    foreign = [file.name for file in path.iterdir() if not file.name.startswith(("offsets=", "_", "."))] if path.exists() else []
    if foreign:
        raise UsageError(f"--table {path} has {foreign[0]!r}, which no backfill wrote: name an empty directory, or a new one")


def _staged_name(number: object) -> str:
    return f"claim-{number}"


def check_swap(path: Path, start: int, end: int) -> None:
    """Raise UsageError if a swap of [start, end) would replace only a part of a range directory."""
    ranges = [_span(directory) for directory in ranges_of(path)]
    split = [span for span in ranges if span[0] < start < span[1] or span[0] < end < span[1]]
    if split:
        low, high = min(start, split[0][0]), max(end, split[-1][1])
        raise UsageError(
            f"--mode swap of [{start}, {end}) would split the range [{split[0][0]}, {split[0][1]}), which is one directory of the "
            f"table: swap --start {low} --end {high}, or use --format delta"
        )


def _span(directory: Path) -> tuple[int, int]:
    """Return the range of offsets in a directory of the table, as (start, end). `end` is exclusive."""
    first, _, last = directory.name.partition("=")[2].partition("-")
    return int(first), int(last) + 1


def _sync_tree(root: Path) -> None:
    """Sync all files below a directory, so that the files are complete after a later rename, even after a power loss."""
    for directory, _, files in os.walk(root):
        for name in files:
            found = open_file(os.path.join(directory, name), os.O_RDONLY)
            try:
                os.fsync(found)
            finally:
                os.close(found)
        sync_directory(Path(directory))


def _exchange(one: Path, other: Path) -> None:
    """Exchange two directories atomically, with renameat2(2).

    Raises:
        UsageError: the file system does not support the exchange.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise UsageError(
            f"{other} and its new content cannot be exchanged ({os.strerror(number)}): ext4, xfs, btrfs and tmpfs support it; use "
            "--format delta elsewhere"
        )


def _retry_conflicts(commit: Callable[[], None]) -> None:
    """Run a commit. If Delta Lake reports a conflict with a concurrent commit, repeat the commit on the newer table."""
    for tries_left in reversed(range(_TRIES)):
        try:
            commit()
            return
        except Exception as error:
            if not tries_left or not any(sign in str(error) for sign in _CONFLICTS):
                raise
        time.sleep(_PAUSE_S)


@contextmanager
def _settings(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)
