"""Files connector: runs sessions, one after another, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from tutti.errors import ConfigError, DirectoryRefused, Fenced, FormatError, InvariantViolated, TuttiError, UsageError
from tutti.runtime.backoff import Backoff
from tutti_connect.files import limits
from tutti_connect.files.discovery.directory import Directory
from tutti_connect.files.discovery.ledger import Ledger
from tutti_connect.files.session import Session
from tutti_connect.quarantine import Quarantine

if TYPE_CHECKING:
    from tutti_connect.files.config import SourceConfig

LOG = logging.getLogger("tutti.files")

#: Errors that a retry cannot resolve. A fenced instance must end, because its restart would fence the newer instance.
_FATAL_ERRORS = (ConfigError, DirectoryRefused, Fenced, FormatError, InvariantViolated, UsageError)


class Connector:
    """Copies the files of a directory to the log, each row once, in order.

    One thread calls `run`; the metrics thread may read the counters at any time.

    Attributes:
        records: number of records that this instance has committed.
        bytes: number of bytes read, after decompression; for Parquet the number of rows.
        files: number of files that this instance has copied completely.
        failures: number of restarts, and of files that could not be read.
        changed: number of files whose content changed after it was copied.
        waiting: number of bytes that the last scan found and that are not copied yet.
        flowing: whether a session runs; if false, the connector waits to start the next one.
    """

    def __init__(self, config: SourceConfig) -> None:
        """Check the directories.

        Raises:
            ConfigError: the source directory is not usable (the message has the reason), or the quarantine directory is not
                writable.
        """
        self.config = config
        self.directory = Directory(config)
        self.directory.check()  # check before anything is created
        self.quarantine = Quarantine(config.quarantine)
        self.records = self.bytes = self.files = self.failures = self.changed = self.waiting = 0
        self.flowing = False
        self._backoff = Backoff(limits.RETRY_S_MIN, limits.RETRY_S_MAX)
        self._logged: set[str] = set()
        self._last_error = ""

    def run(self, stop: threading.Event, ready: Callable[[], None]) -> None:
        """Run until `stop` is set, or until an error that a retry cannot resolve.

        Raises:
            ConfigError: the state directory is not writable.
            Unavailable: at the start, no gateway answers or another process holds the ledger.
            Fenced: another instance of the same name has taken over.
            TuttiError: the ledger and the log do not match.
        """
        config = self.config
        ledger = Ledger(config.state, config.name, grows=config.files.grows)
        started = False
        try:
            while not stop.is_set():
                try:
                    session = Session(self, ledger, stop)
                    try:
                        if not started:
                            ready()
                        started = self.flowing = True
                        session.run()
                    finally:
                        self.flowing = False
                        session.close()
                except _FATAL_ERRORS:
                    raise
                except (TuttiError, OSError) as error:
                    if not started:
                        raise
                    self._fail(error)
                    stop.wait(self._backoff.next_s())
        finally:
            ledger.close()

    def reset_backoff(self) -> None:
        """Reset the retry delay after a commit."""
        self._backoff.reset()
        self._last_error = ""

    def log_skipped(self) -> None:
        """Log each skipped name once."""
        for name in sorted(self.directory.skipped - self._logged):
            LOG.warning("%s: skipped", name)
        self._logged = set(self.directory.skipped)

    def _fail(self, error: Exception) -> None:
        self.failures += 1
        message = f"{type(error).__name__}: {error}"
        if message != self._last_error:
            LOG.warning("%s: restarts after the last committed record: %s", self.config.name, message)
        self._last_error = message
