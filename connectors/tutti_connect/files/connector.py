"""From a directory of files into the log: sessions, one after another, until it is told to end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from tutti.errors import ConfigError, DirectoryRefused, Fenced, FormatError, InvariantViolated, TuttiError, UsageError
from tutti.runtime.backoff import Doubling
from tutti_connect.files import limits
from tutti_connect.files.discovery.directory import Directory
from tutti_connect.files.discovery.ledger import Ledger
from tutti_connect.files.session import Session
from tutti_connect.quarantine import Quarantine

if TYPE_CHECKING:
    from tutti_connect.files.config import Inflow

LOG = logging.getLogger("tutti.files")

#: What trying again cannot mend. A fenced one ends: who took over would be fenced in turn.
_FINAL = (ConfigError, DirectoryRefused, Fenced, FormatError, InvariantViolated, UsageError)


class Connector:
    """Brings the files of a directory into the log, each row once, in order.

    `run` belongs to one thread; the figures may be looked at by others (metrics).

    Attributes:
        records, bytes, files: committed, read (after decompression), taken whole, by this instance.
        failures: times that it had to begin again, or a file could not be read.
        changed: files that were another one than what was taken.
        waiting: bytes in the directory that are not taken yet, as of the last look.
        flowing: whether it sends; it waits to begin again otherwise.
    """

    def __init__(self, config: Inflow) -> None:
        """Prepare.

        Raises:
            ConfigError: the directory is not as it has to be, or the quarantine cannot be written.
        """
        self.config = config
        self.directory = Directory(config)
        self.directory.check()  # before anything is made
        self.quarantine = Quarantine(config.quarantine)
        self.records = self.bytes = self.files = self.failures = self.changed = self.waiting = 0
        self.flowing = False
        self._waits = Doubling(limits.RETRY_S_MIN, limits.RETRY_S_MAX)
        self._told: set[str] = set()
        self._trouble = ""

    def run(self, stop: threading.Event, ready: Callable[[], None]) -> None:
        """Until `stop`, or something that trying again cannot mend.

        Raises:
            ConfigError: the state cannot be written.
            Unavailable: at the start no gateway answered, or another process kept the ledger.
            Fenced: another instance of the name has taken over.
            TuttiError: ledger and log do not go together.
        """
        config = self.config
        ledger = Ledger(config.state, config.name, grows=config.files.grows)
        begun = False
        try:
            while not stop.is_set():
                try:
                    session = Session(self, ledger, stop)
                    try:
                        if not begun:
                            ready()
                        begun = self.flowing = True
                        session.run()
                    finally:
                        self.flowing = False
                        session.close()
                except _FINAL:
                    raise
                except (TuttiError, OSError) as error:
                    if not begun:
                        raise
                    self._fail(error)
                    stop.wait(self._waits.next_s())
        finally:
            ledger.close()

    def well(self) -> None:
        """Something was committed: the next failure is a new one."""
        self._waits.reset()
        self._trouble = ""

    def tell_strange(self) -> None:
        """Tell of names that are passed by, each once."""
        for strange in sorted(self.directory.strange - self._told):
            LOG.warning("%s: it is passed by", strange)
        self._told = set(self.directory.strange)

    def _fail(self, error: Exception) -> None:
        self.failures += 1
        trouble = f"{type(error).__name__}: {error}"
        if trouble != self._trouble:
            LOG.warning("%s: begins again behind what is in the log: %s", self.config.name, trouble)
        self._trouble = trouble
