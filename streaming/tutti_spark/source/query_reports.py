"""Reports a query's progress to the gateways, for `tutti queries` and for producers that wait for the query.

A thread sends a report when the position moves, and otherwise a keep-alive, so that the query never waits for a gateway. A failed
report never ends a query, because the thread repeats it.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tutti import limits
from tutti.errors import Refused

if TYPE_CHECKING:
    from tutti.sources.query_progress import QueryProgress
    from tutti.sources.source import Source
    from tutti_spark.common.options import ReadOptions

_INTERVAL_S = limits.SPARK_REPORT_US / 1e6
_KEEP_ALIVE_S = limits.SPARK_ALIVE_US / 1e6
_UNSUPPORTED_PAUSE_S = 60.0  # pause after a gateway of an older release refused the report
_LABEL_CHARACTERS_MAX = 200
_SUBMIT = "org.apache.spark.deploy.SparkSubmit"


class Reporter:
    """Reports the position of a query run to the gateways, from the first call of `processed` until `stop`."""

    def __init__(
        self,
        source: Source,
        options: ReadOptions,
        lag_at: Callable[[int], tuple[int, int]],
        least: Callable[[int], int | None] = lambda offset: offset,
    ) -> None:
        """Start the report thread, if `source` reads from gateways.

        Args:
            source: source of the query's records.
            options: options of the read.
            lag_at: function that returns the lag at an offset as (records, milliseconds).
            least: function from this stream's offset to the lowest position of all streams with the query name (None: unknown).
        """
        self._gateways = _gateways_of(source, options)
        self._options = options
        self._lag_at = lag_at
        self._name_position = least
        self._run_id = secrets.token_hex(8)
        self._changed = threading.Condition()
        self._offset = self._reported = -1
        self._started = False  # True after a gateway has stored a position of this run; later positions are never lower
        self._flushing = self._stopped = False
        if self._gateways is not None:
            self._label = driver_label()
            threading.Thread(target=self._run_thread, args=(self._gateways,), name="tutti-report", daemon=True).start()

    def processed(self, offset: int) -> None:
        """Record that all records below `offset` are processed. The method must be cheap, because Spark calls it every 10 ms."""
        if offset != self._offset:
            with self._changed:
                self._offset = offset
                self._changed.notify_all()

    def flush(self, seconds: float) -> None:
        """Wait up to `seconds` until the last position is reported. Useful before the process may end."""
        if self._gateways is None:
            return
        with self._changed:
            self._flushing = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._reported == self._offset or self._stopped, seconds)
            self._flushing = False

    def stop(self) -> None:
        """Stop reporting."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _has_update(self) -> bool:
        return self._stopped or self._reported != self._offset

    def _wait(self, seconds: float) -> bool:
        """Wait for a new position or the next keep-alive, at least `seconds` unless `flush` waits. Return False after `stop`."""
        until = time.monotonic() + seconds
        with self._changed:
            self._changed.wait_for(self._has_update, _KEEP_ALIVE_S)
            self._changed.wait_for(lambda: self._stopped or self._flushing, max(0.0, until - time.monotonic()))
            return not self._stopped

    def _run_thread(self, gateways: QueryProgress) -> None:
        pause = 0.0
        while self._wait(pause):
            pause = _INTERVAL_S
            offset = self._offset
            if offset < 0:
                continue
            try:
                position = self._name_position(offset)
                if position is None:
                    continue
                trouble = self._report(gateways, offset, position)
            except Refused as error:
                pause = _UNSUPPORTED_PAUSE_S if error.code == "unknown_action" else _KEEP_ALIVE_S
                continue
            except Exception:  # noqa: BLE001 - a failed report must not end the query, and the next report may succeed
                pause = _KEEP_ALIVE_S
                continue
            with self._changed:
                self._reported = offset
                self._started = self._started or not trouble
                self._changed.notify_all()

    def _report(self, gateways: QueryProgress, offset: int, position: int) -> str:
        options = self._options
        _, lag_ms = self._lag_at(offset)
        return gateways.report(
            self._run_id,
            position,
            name=options.query_name,
            label=self._label,
            topics=options.topics and options.topics[: limits.TOPICS_A_REPORT_MAX],
            lag_ms=lag_ms,
            back=not self._started,  # a run with an older checkpoint begins below the stored position
            patience=_KEEP_ALIVE_S,
        )


def _gateways_of(source: Source, options: ReadOptions) -> QueryProgress | None:
    if options.gateways is None:
        return None
    from tutti.sources.query_progress import QueryProgress
    from tutti.sources.tiered import TieredSource

    log = source.log if isinstance(source, TieredSource) else source
    return log if isinstance(log, QueryProgress) else None


def driver_label() -> str:
    """Return the script (or the `--name`) that runs the driver, its host and its process id, as `SCRIPT@HOST:PID`.

    Spark does not pass the application's name to a source, so this function reads the command line of its parent, the driver, in
    /proc.
    """
    driver = os.getppid()
    what = _job_of(_command(driver)) or _script_of(_command(_parent(driver))) or "spark"
    return f"{what}@{socket.gethostname()}:{driver}"[:_LABEL_CHARACTERS_MAX]


def _job_of(command: list[str]) -> str:
    """Return the name of the job in a `spark-submit` command line; empty for another command line."""
    if _SUBMIT not in command:
        return ""
    arguments = command[command.index(_SUBMIT) + 1 :]
    if "--name" in arguments[:-1] and arguments[-1] != "pyspark-shell":
        return arguments[arguments.index("--name") + 1]
    job = next((Path(word).name for word in arguments if word.endswith((".py", ".jar"))), "")
    if not job and "--class" in arguments[:-1]:
        return arguments[arguments.index("--class") + 1].rpartition(".")[2]  # one of Spark's own servers
    return job


def _script_of(command: list[str]) -> str:
    """Return the script or module that a Python process runs."""
    for number, word in enumerate(command[1:], 2):
        if word == "-m" and number < len(command):
            return command[number]
        if not word.startswith("-"):
            return Path(word).name
    return Path(command[0]).name if command else ""


def _command(process: int) -> list[str]:
    """Return the command line of a process; empty if /proc does not contain it."""
    try:
        return Path(f"/proc/{process}/cmdline").read_text("utf-8", "replace").rstrip("\0").split("\0")
    except OSError:
        return []


def _parent(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0
