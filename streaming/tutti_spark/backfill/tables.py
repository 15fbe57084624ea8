"""Tables that take a claimed range whole or not at all, and can tell afterwards which of both it was."""

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
from tutti.runtime.fsync import open_file, sync_directory
from tutti_spark.backfill.ledger import FILE, LOCK, RUNS, Claim, Ledger, finish_claim, missing, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Hidden from Spark, and from VACUUM of Delta Lake, by its first letter.
OWN = "_tutti"
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
    """What a backfill writes into."""

    def put(self, claim: Claim, rows: DataFrame) -> None:
        """Bring in the rows of a claim, all or none, once however often it is called; the ledger says so then."""

    def settle(self, claim: Claim) -> None:
        """Have the ledger say what became of the claim of a run that is dead, so that it comes to nothing later, either."""


class DeltaTable:
    """A Delta table. Each claim is one transaction of its own application id, which Delta Lake takes once.

    A claim is settled by an empty transaction of the same id: it is skipped where the claim is in the table, and keeps it out for
    ever where it is not, also if a Spark whose driver was killed is still at it. The history tells which.
    """

    def __init__(self, spark: SparkSession, path: str, ledger: Ledger, log: str, mode: str) -> None:
        self._spark = spark
        self._path = path
        self._ledger = ledger
        self._ledger_id = ledger.state().id  # it is there from the ledger's first write on
        self._log = log
        self._mode = mode

    def put(self, claim: Claim, rows: DataFrame) -> None:
        """Append, merge or replace; other writers' commits in between are no reason to give up.

        Raises:
            UsageError: rows of this range are there that no backfill put there, or the table has no column to tell them by.
        """
        keyed = _OFFSET in rows.columns
        if self._mode == "merge" and not keyed:
            raise UsageError(
                "--mode merge goes by the column `offset`, which the result does not have: keep it, or use another mode"
            )
        there = self._there()
        if self._mode == "append" and there:
            self._check_free(claim)
        _again_after_conflicts(lambda: self._write(claim, rows, keyed, there))
        self._ledger.finish(claim, rows.schema.simpleString(), alone=self._mode == "swap" and not keyed)

    def settle(self, claim: Claim) -> None:
        """By an empty transaction in its place."""
        if not self._there():
            self._ledger.drop(claim)
            return
        empty = self._spark.read.format("delta").load(self._path).limit(0)
        _again_after_conflicts(lambda: self._commit(empty, claim, "fence", {}))
        told = self._spark.sql(f"DESCRIBE HISTORY {self._name}").where(f"userMetadata LIKE '%{self._id(claim)}%'")
        found = [json.loads(row.userMetadata) for row in told.select("userMetadata").collect()]
        kinds = {one["did"] for one in found if one["tutti"] == self._id(claim)}
        if "fence" in kinds:
            self._ledger.drop(claim)
        elif kinds:
            self._ledger.finish(claim, alone=kinds == {"swap all"})
        else:
            raise TuttiError(
                f"the run that worked on {claim} is gone, and the history of {self._path} no longer says whether it wrote: look "
                f"whether the table has the records of this range, and move the claim {claim.number} in "
                f"{self._ledger.directory / FILE} from `open` to `done`, or take it away"
            )

    def _write(self, claim: Claim, rows: DataFrame, keyed: bool, there: bool) -> None:
        if self._mode == "swap":
            range_only = {"replaceWhere": f"{_OFFSET} >= {claim.start} AND {_OFFSET} < {claim.end}"} if there else {}
            self._commit(rows, claim, "swap", range_only, "overwrite") if keyed else self._commit(
                rows, claim, "swap all", {"overwriteSchema": "true"}, "overwrite"
            )
        elif self._mode == "merge" and there:
            self._merge(claim, rows)
        else:
            self._commit(rows, claim, self._mode, {})

    def _commit(self, rows: DataFrame, claim: Claim, did: str, options: dict[str, str], mode: str = "append") -> None:
        writer = rows.write.format("delta").mode(mode).options(**options)
        writer = writer.option("txnAppId", self._id(claim)).option("txnVersion", "1")
        writer.option("userMetadata", self._told(claim, did)).save(self._path)

    def _merge(self, claim: Claim, rows: DataFrame) -> None:
        view = f"tutti_backfill_{claim.number}"
        rows.createOrReplaceTempView(view)
        settings = {_TXN_APP: self._id(claim), _TXN_VERSION: "1", _USER_METADATA: self._told(claim, "merge")}
        with _settings(self._spark, settings):
            self._spark.sql(
                f"MERGE INTO {self._name} t USING {view} s ON t.{_OFFSET} = s.{_OFFSET} AND t.{_OFFSET} >= {claim.start} "
                f"AND t.{_OFFSET} < {claim.end} WHEN NOT MATCHED THEN INSERT *"
            )
        self._spark.catalog.dropTempView(view)

    def _check_free(self, claim: Claim) -> None:
        """Only rows with their offset can be seen; of others the ledger alone knows."""
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
                f"{self._path} has rows with offsets {row.low} to {row.high} that no backfill put there, in the range {claim}: end "
                f"at {row.low} (--end, or --live CHECKPOINT of the query that wrote them), or add what is missing with --mode merge"
            )

    def _there(self) -> bool:
        """Asked of Delta, as the table may be anywhere."""
        from pyspark.errors import AnalysisException

        try:
            self._spark.read.format("delta").load(self._path).schema  # noqa: B018 - asks for it
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
        """The transaction of a claim, which Delta Lake takes once, for ever.

        It has the ledger's id in it: a new ledger of the same table counts its claims from 1 again.
        """
        name = f"tutti/{self._log}/{claim.start}-{claim.end}/{claim.number}"
        return f"{name}/{self._ledger_id}" if self._ledger_id else name

    def _told(self, claim: Claim, did: str) -> str:
        return json.dumps({"tutti": self._id(claim), "did": did, "log": self._log, "start": claim.start, "end": claim.end})


class ParquetTable:
    """A directory of this machine (or mounted there), with one directory for each range: `offsets=FIRST-LAST`.

    A range is staged out of sight, and appears by one rename. A swap stages a whole table beside this one, with hard links to what
    stays, and exchanges the two directories.
    """

    def __init__(self, path: Path, ledger: Ledger, mode: str) -> None:
        self._path = path
        self._ledger = ledger
        self._mode = mode

    def put(self, claim: Claim, rows: DataFrame) -> None:
        """Stage and rename, or stage and exchange.

        Raises:
            UsageError: a swap would cut a range in two, or its directory is not one of ours.
            Lost: another run has taken the claim over.
        """
        if self._mode == "swap":
            self._swap(claim, rows)
            return
        staged = self._path / OWN / "staged" / _staged_name(claim.number)
        rows.write.mode("overwrite").parquet(str(staged))
        _sync_tree(staged)
        with self._ledger.locked() as state:
            schema = rows.schema.simpleString()
            if state.schema not in ("", schema):
                raise UsageError(f"another run began this table meanwhile with {state.schema}, and the result has {schema}")
            finish_claim(state, claim, self._ledger.run, schema)
            staged.rename(self._path / directory_name(claim.start, claim.end))
            sync_directory(self._path)

    def settle(self, claim: Claim) -> None:
        """What is there under its name is whole; what is staged is not, and goes."""
        shutil.rmtree(self._path / OWN / "staged" / _staged_name(claim.number), ignore_errors=True)
        shutil.rmtree(self._beside(claim), ignore_errors=True)
        if not claim.swap and (self._path / directory_name(claim.start, claim.end)).exists():
            self._ledger.finish(claim)
        else:
            self._ledger.drop(claim)

    def _swap(self, claim: Claim, rows: DataFrame) -> None:
        """No claim but this one is open, so nobody writes here or beside, but for what is not of backfills.

        Raises:
            UsageError: that came meanwhile; where it is now is told.
        """
        check_swap(self._path, claim.start, claim.end)
        beside = self._beside(claim)
        for left in self._path.parent.glob(f".{glob.escape(self._path.name)}.{_staged_name('*')}"):
            shutil.rmtree(left, ignore_errors=True)
        rows.write.mode("overwrite").parquet(str(beside / directory_name(claim.start, claim.end)))
        with self._ledger.locked() as state:
            check_parquet(self._path)
            finish_claim(state, claim, self._ledger.run, rows.schema.simpleString())
            for directory in (found for found in ranges_of(self._path) if missing(*_span(found), [(claim.start, claim.end)])):
                shutil.copytree(directory, beside / directory.name, copy_function=os.link)
            own, new = self._path / OWN, beside / OWN
            (new / RUNS).mkdir(parents=True)
            os.link(own / LOCK, new / LOCK)
            for run in (own / RUNS).iterdir():
                os.link(run, new / RUNS / run.name)
            write(new, state)
            _sync_tree(beside)
            _exchange(beside, self._path)
            sync_directory(self._path.parent)
        try:
            check_parquet(beside)
        except UsageError as error:
            kept = beside.rename(self._path.with_name(f"{self._path.name}.before-{claim.number}"))
            raise UsageError(
                f"{self._path} was swapped, and who else wrote into it meanwhile wrote into what it was before: that is {kept} now"
            ) from error
        shutil.rmtree(beside, ignore_errors=True)

    def _beside(self, claim: Claim) -> Path:
        return self._path.with_name(f".{self._path.name}.{_staged_name(claim.number)}")


def directory_name(start: int, end: int) -> str:
    """Of a range in a Parquet table: sorts as offsets do, and Spark reads it as the text column `offsets`."""
    return f"offsets={start:019}-{end - 1:019}"


def ranges_of(path: Path) -> list[Path]:
    """The directories of the ranges of a Parquet table, in order."""
    return sorted(path.glob("offsets=*-*"))


def check_parquet(path: Path) -> None:
    """Raise UsageError where a directory holds something else than such a table."""
    if (path / "_spark_metadata").exists():
        raise UsageError(
            f"--table {path} is written by a streaming query, and who reads it sees only what that query lists: use --format delta "
            "for both, or fill another directory and read the two together"
        )
    strange = [file.name for file in path.iterdir() if not file.name.startswith(("offsets=", "_", "."))] if path.exists() else []
    if strange:
        raise UsageError(f"--table {path} has {strange[0]!r}, which no backfill put there: name an empty directory, or a new one")


def _staged_name(number: object) -> str:
    return f"claim-{number}"


def check_swap(path: Path, start: int, end: int) -> None:
    """Raise UsageError where a swap of [start, end) would cut the range of a directory in two."""
    held = [_span(directory) for directory in ranges_of(path)]
    cut = [span for span in held if span[0] < start < span[1] or span[0] < end < span[1]]
    if cut:
        low, high = min(start, cut[0][0]), max(end, cut[-1][1])
        raise UsageError(
            f"--mode swap of [{start}, {end}) would cut the range [{cut[0][0]}, {cut[0][1]}), which is one directory of the table: "
            f"swap --start {low} --end {high}, or use --format delta"
        )


def _span(directory: Path) -> tuple[int, int]:
    """The range [start, end) of a range's directory."""
    first, _, last = directory.name.partition("=")[2].partition("-")
    return int(first), int(last) + 1


def _sync_tree(root: Path) -> None:
    """Have all below a directory on disk: a name that appears names something whole, also after a loss of power."""
    for place, _, files in os.walk(root):
        for name in files:
            found = open_file(os.path.join(place, name), os.O_RDONLY)
            try:
                os.fsync(found)
            finally:
                os.close(found)
        sync_directory(Path(place))


def _exchange(one: Path, other: Path) -> None:
    """Let two directories change places, in one step (renameat2(2)).

    Raises:
        UsageError: the file system cannot.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise UsageError(
            f"{other} and its new content cannot change places ({os.strerror(number)}): ext4, xfs, btrfs and tmpfs can do that; "
            "use --format delta elsewhere"
        )


def _again_after_conflicts(work: Callable[[], None]) -> None:
    """Delta Lake refuses a commit that another one, made meanwhile, might have changed: it is made anew on what is there then."""
    for left in reversed(range(_TRIES)):
        try:
            work()
            return
        except Exception as error:
            if not left or not any(sign in str(error) for sign in _CONFLICTS):
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
