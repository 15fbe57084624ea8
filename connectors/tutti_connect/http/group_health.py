"""Health of the group: a thread polls it each second, so that posts fail at once while the group cannot commit.

The same thread returns freed memory to the system after large bodies and pages.
"""

from __future__ import annotations

import logging
import threading

import pyarrow as pa

from tutti.errors import TuttiError, Unavailable
from tutti.runtime import malloc
from tutti.sources.flight import FlightSource
from tutti_connect.http import limits

LOG = logging.getLogger("tutti.http")
_READY = "primary"


class Health:
    """Polls the group in its own thread.

    Attributes:
        state: state of the gateway that answered (primary, minority, joining, halted), or "unavailable" if no gateway answered.
        frontier: highest known frontier of the log.
        message: reason why the group cannot commit records now; "" if the group can.
        busy: set by operations that use much memory, so that the next poll returns freed memory to the system.
    """

    def __init__(self, reads: FlightSource) -> None:
        """Prepare without a request. The group counts as unable to commit until the first poll."""
        self.busy = False
        self.state = "unknown"
        self.frontier = 0
        self.message = "no gateway has been asked yet"
        self._reads = reads
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)

    @property
    def ready(self) -> bool:
        """True if a post can probably be committed."""
        return not self.message

    def start(self, *, needed: bool) -> None:
        """Poll once now, and then periodically.

        Args:
            needed: whether to fail if no gateway answers; False with a spool, which accepts posts without a gateway.

        Raises:
            TuttiError: no gateway answers although `needed` is True, or the gateway rejects the connector.
        """
        try:
            self._poll(None if needed else limits.POLL_WAIT_S)
        except Unavailable as error:
            if needed:
                raise
            self.state, self.message = "unavailable", str(error)
            LOG.warning("no gateway answers; posts go to the spool: %s", error)
        self._thread.start()

    def stop(self) -> None:
        """Stop polling."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(limits.POLL_WAIT_S)

    def _run(self) -> None:
        while not self._stopped.wait(limits.POLL_S):
            try:
                self._poll(limits.POLL_WAIT_S)
            except TuttiError as error:
                self.state, self.message = "unavailable", str(error)
            if self.busy:
                self.busy = False
                pa.default_memory_pool().release_unused()
                malloc.release_free_memory()

    def _poll(self, patience: float | None) -> None:
        found = self._reads.frontier(patience=patience)
        self.state, self.frontier = found.state, max(self.frontier, found.offset)
        if not found.log:
            self.message = "the group is not founded yet: `tutti members` shows the missing gateways"
        elif found.state != _READY:
            self.message = (
                f"the gateways that answer are not a majority of the group (state {found.state}): nothing can be committed"
            )
        else:
            self.message = ""
