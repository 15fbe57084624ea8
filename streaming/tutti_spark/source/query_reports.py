"""What a query has processed, told to the gateways: for `tutti queries`, and for producers that wait for it.

A thread tells of it, when it has moved and once a second otherwise, so that nothing waits for a gateway. It is a hint: what fails
is tried again, and never ends a query.
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
    from tutti.sources.query_progress import Progress
    from tutti.sources.source import Source
    from tutti_spark.common.options import ReadOptions

_PACE_S = limits.SPARK_REPORT_US / 1e6
_ALIVE_S = limits.SPARK_ALIVE_US / 1e6
_NOT_KNOWN_S = 60.0  # before a gateway is told again that does not know of queries
_LABEL_CHARACTERS_MAX = 200
_SUBMIT = "org.apache.spark.deploy.SparkSubmit"


class Reporter:
    """Tells gateways how far one run of a query is, from its first word until `stop`."""

    def __init__(
        self,
        source: Source,
        options: ReadOptions,
        behind: Callable[[int], tuple[int, int]],
        least: Callable[[int], int | None] = lambda offset: offset,
    ) -> None:
        """Tell those of `source`, where it is gateways: of files nobody is told. `behind` gives the lag of an offset: records and
        milliseconds. `least` gives the position of the query's name when this stream is at an offset, None while it is not known.
        """
        self._gateways = _gateways_of(source, options)
        self._options = options
        self._behind = behind
        self._least = least
        self._run = secrets.token_hex(8)
        self._changed = threading.Condition()
        self._offset = self._told = -1
        self._began = False  # the position is that of this run: from now on it does not go back
        self._hurried = self._stopped = False
        if self._gateways is not None:
            self._label = driver_label()
            threading.Thread(target=self._tell, args=(self._gateways,), name="tutti-report", daemon=True).start()

    def processed(self, offset: int) -> None:
        """What lies below `offset` is processed. Comes every 10 ms, and costs next to nothing."""
        if offset != self._offset:
            with self._changed:
                self._offset = offset
                self._changed.notify_all()

    def flush(self, seconds: float) -> None:
        """Wait until that was told, but no longer than so many seconds: the process may be about to end."""
        if self._gateways is None:
            return
        with self._changed:
            self._hurried = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._told == self._offset or self._stopped, seconds)
            self._hurried = False

    def stop(self) -> None:
        """Tell no more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _news(self) -> bool:
        return self._stopped or self._told != self._offset

    def _rest(self, seconds: float) -> bool:
        """Wait for something to tell, and so long at least, or until somebody is in a hurry; False at the end."""
        until = time.monotonic() + seconds
        with self._changed:
            self._changed.wait_for(self._news, _ALIVE_S)
            self._changed.wait_for(lambda: self._stopped or self._hurried, max(0.0, until - time.monotonic()))
            return not self._stopped

    def _tell(self, gateways: Progress) -> None:
        rest = 0.0
        while self._rest(rest):
            rest = _PACE_S
            offset = self._offset
            if offset < 0:
                continue
            try:
                position = self._least(offset)
                if position is None:
                    continue
                trouble = self._report(gateways, offset, position)
            except Refused as error:
                rest = _NOT_KNOWN_S if error.code == "unknown_action" else _ALIVE_S
                continue
            except Exception:  # noqa: BLE001 - a hint: whatever it was, the query goes on, and the next word may get through
                rest = _ALIVE_S
                continue
            with self._changed:
                self._told = offset
                self._began = self._began or not trouble
                self._changed.notify_all()

    def _report(self, gateways: Progress, offset: int, position: int) -> str:
        options = self._options
        _, lag_ms = self._behind(offset)
        return gateways.report(
            self._run,
            position,
            name=options.query_name,
            label=self._label,
            topics=options.topics and options.topics[: limits.TOPICS_A_REPORT_MAX],
            lag_ms=lag_ms,
            back=not self._began,
            patience=_ALIVE_S,
        )


def _gateways_of(source: Source, options: ReadOptions) -> Progress | None:
    if options.gateways is None:
        return None
    from tutti.sources.query_progress import Progress
    from tutti.sources.tiered import Archived

    log = source.log if isinstance(source, Archived) else source
    return log if isinstance(log, Progress) else None


def driver_label() -> str:
    """What runs the driver, and where: the script (or what was named with --name), the host, and the driver's process id.

    Spark does not tell a source whose it is; this process is a child of the driver's.
    """
    driver = os.getppid()
    what = _job_of(_command(driver)) or _script_of(_command(_parent(driver))) or "spark"
    return f"{what}@{socket.gethostname()}:{driver}"[:_LABEL_CHARACTERS_MAX]


def _job_of(command: list[str]) -> str:
    """What `spark-submit` was told to run; empty where a program of its own started the driver."""
    if _SUBMIT not in command:
        return ""
    told = command[command.index(_SUBMIT) + 1 :]
    if "--name" in told[:-1] and told[-1] != "pyspark-shell":
        return told[told.index("--name") + 1]
    job = next((Path(word).name for word in told if word.endswith((".py", ".jar"))), "")
    if not job and "--class" in told[:-1]:
        return told[told.index("--class") + 1].rpartition(".")[2]  # a server of Spark's own
    return job


def _script_of(command: list[str]) -> str:
    """The script or module that a Python process runs."""
    for number, word in enumerate(command[1:], 2):
        if word == "-m" and number < len(command):
            return command[number]
        if not word.startswith("-"):
            return Path(word).name
    return Path(command[0]).name if command else ""


def _command(process: int) -> list[str]:
    """The command line of a process; empty where it is not told."""
    try:
        return Path(f"/proc/{process}/cmdline").read_text("utf-8", "replace").rstrip("\0").split("\0")
    except OSError:
        return []


def _parent(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0
