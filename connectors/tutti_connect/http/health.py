"""How the group is: looked at once a second, so that posts are refused at once while nobody could commit them. And the process
itself: what large bodies and pages took goes back to the system after a busy second.
"""

from __future__ import annotations

import logging
import threading

import pyarrow as pa

from tutti.errors import TuttiError, Unavailable
from tutti.runtime import malloc
from tutti.sources.flight import Reads
from tutti_connect.http import limits

LOG = logging.getLogger("tutti.http")
_READY = "primary"


class Health:
    """Looks in a thread of its own.

    Attributes:
        state: of the best gateway that answered: primary, minority, joining, halted; "unavailable" when none did.
        frontier: how far the log is committed, as far as it was seen.
        message: why nothing can be committed now, empty if nothing is known that stands against it.
        busy: set by who took much memory.
    """

    def __init__(self, reads: Reads) -> None:
        """Nothing is known yet."""
        self.busy = False
        self.state = "unknown"
        self.frontier = 0
        self.message = "the gateways were not asked yet"
        self._reads = reads
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)

    @property
    def ready(self) -> bool:
        """Whether a post can be committed, as far as is known."""
        return not self.message

    def start(self, *, needed: bool) -> None:
        """Look at once; then again and again.

        Args:
            needed: whether a gateway has to answer; without it, what comes meanwhile goes into a spool.

        Raises:
            TuttiError: no gateway answers where one is needed, or it does not let the connector look.
        """
        try:
            self._look(None if needed else limits.LOOK_WAIT_S)
        except Unavailable as error:
            if needed:
                raise
            self.state, self.message = "unavailable", str(error)
            LOG.warning("no gateway answers, posts go into the spool: %s", error)
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(limits.LOOK_WAIT_S)

    def _run(self) -> None:
        while not self._over.wait(limits.LOOK_S):
            try:
                self._look(limits.LOOK_WAIT_S)
            except TuttiError as error:
                self.state, self.message = "unavailable", str(error)
            if self.busy:
                self.busy = False
                pa.default_memory_pool().release_unused()
                malloc.give_back()

    def _look(self, patience: float | None) -> None:
        found = self._reads.frontier(patience=patience)
        self.state, self.frontier = found.state, max(self.frontier, found.offset)
        if not found.log:
            self.message = "the group is not founded yet: `tutti members` says who is missing"
        elif found.state != _READY:
            self.message = f"the gateways that answer are no majority of the group (state {found.state}): nothing can be committed"
        else:
            self.message = ""
