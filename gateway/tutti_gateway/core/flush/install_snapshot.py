"""Installation of a snapshot from a member that has already trimmed the frames which this log lacks (protocol/flush, F16).

The snapshot arrives in chunks, and the complete snapshot replaces this member's log. Everything in a snapshot is decided, so the
replacement loses no decided frame. If this log already holds the last frame of the snapshot, the log is kept, and counts as decided
up to that frame. Otherwise this log ends earlier, or holds frames that can no longer be decided. During a view change, a snapshot
does not replace a corrupt end of the log that reaches beyond the snapshot, because other members may need its vote mark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tutti.data.log_state import LogState
from tutti.errors import FormatError
from tutti_gateway.core import limits
from tutti_gateway.core.context import Context
from tutti_gateway.core.protocol.messages import FetchedSnapshot, FetchSnapshot


@dataclass(slots=True)
class _Incoming:
    """A snapshot of which some chunks have arrived."""

    source: int
    view: int
    position: int
    size: int
    data: bytearray = field(default_factory=bytearray)


class SnapshotInstall:
    """Installs one snapshot at a time."""

    def __init__(self, context: Context, known: Callable[[int], None], replaced: Callable[[], None]) -> None:
        """Prepare the installation.

        Args:
            known: function that is called with the snapshot's position if the log already holds all frames up to that position.
            replaced: function that is called when the snapshot has durably replaced the log.
        """
        self._outbox = context.outbox
        self._window = context.window
        self._known = known
        self._replaced = replaced
        self._incoming: _Incoming | None = None
        self._token = 0
        self._state = LogState()

    @property
    def replacing(self) -> bool:
        """True while the disk replaces the log by a snapshot, and nothing else may change the log."""
        return self._token > 0

    @property
    def busy(self) -> bool:
        """True while the chunks of a snapshot arrive or the disk replaces the log."""
        return self.replacing or self._incoming is not None

    def stop(self) -> None:
        """Drop the chunks that have arrived. If the disk has already begun to replace the log, the replacement continues."""
        self._incoming = None

    def request_next(self) -> None:
        """Request the next chunk of the snapshot, or repeat the request for it."""
        incoming = self._incoming
        if incoming is not None:
            self._outbox.send(incoming.source, FetchSnapshot(incoming.view, incoming.position, len(incoming.data)))

    def on_chunk(self, sender: int, message: FetchedSnapshot, last: int) -> bool:
        """Store a chunk, and install the snapshot after the last chunk. Return False if another source is needed.

        Args:
            sender: number of the gateway that sent the chunk.
            message: the message with the chunk.
            last: last position that this member wants to copy.
        """
        if self.replacing:
            return True
        incoming = self._incoming
        # A chunk at byte 0 begins a new snapshot even if an older one is incomplete, because the source may have trimmed again.
        if not message.at and message.size:
            # A snapshot up to the frontier has no new content, and a snapshot beyond `last` does not belong to the wanted log.
            if not self._window.frontier < message.position <= last:
                self._incoming = None
                return False
            incoming = self._incoming = _Incoming(sender, message.view, message.position, message.size)
        # Size 0 means that the source no longer has this snapshot.
        if incoming is None or not message.size or sender != incoming.source or message.position != incoming.position:
            self._incoming = None
            return False
        if message.at != len(incoming.data) or message.size != incoming.size:
            return True  # a duplicate of an earlier chunk
        incoming.data += message.data
        if len(incoming.data) < incoming.size:
            self.request_next()
            return True
        self._incoming = None
        return self._install(sender, message, bytes(incoming.data))

    def _install(self, sender: int, message: FetchedSnapshot, data: bytes) -> bool:
        """Replace the log by the complete snapshot. Return False if the snapshot is invalid."""
        window = self._window
        try:
            state = LogState.from_bytes(data)
        except FormatError as error:
            self._outbox.drop(message, sender, str(error))
            return False
        wrong = self._unfit(state, message.position)
        if wrong:
            self._outbox.drop(message, sender, wrong)
            return False
        # An equal chain value proves that this log already holds all frames up to the snapshot, so the log is kept.
        if state.position <= window.end and window.chain_at(state.position) == state.chain:
            self._known(state.position)
        else:
            self._state = state
            self._token = self._outbox.replace_log(data)
        return True

    def _unfit(self, state: LogState, position: int) -> str:
        """Return the reason why the snapshot must not replace the log; empty if the snapshot fits."""
        # A blank disk has no uuid of a log yet, so it may install the snapshot of any log.
        log = self._window.log()
        if state.position != position or len(state.log) != limits.ID_BYTES or not state.roster:
            return f"the snapshot up to {state.position} was announced up to {position}, or names no log"
        if log and state.log != log:
            return f"the snapshot belongs to log {state.log.hex()}, but this log is {log.hex()}"
        return ""

    def persisted(self, token: int) -> None:
        """Handle the report that all writes up to the token are durable. One of them may be the replacement of the log."""
        if self._token and token >= self._token:
            self._token = 0
            # The frontier moves only now, because readers must not see records that a crash could take back.
            self._window.replace(self._state)
            self._state = LogState()
            self._replaced()
