"""Taking over the state with which another member's log begins, where the frames that are missing here were trimmed there (design,
5.4 and 6): piece by piece, then in place of the own log.

All that the state covers is decided, so nothing that was decided is given up by it. A log that has the very frame that the state
ends with is not replaced: it holds everything up to there, and now knows that it is decided. Any other one ends before, or has
frames that nobody can ever decide: they go. Only a damaged end that reaches further may be what others need: so a view change
keeps it.
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
class _Taking:
    """What came of a state."""

    source: int
    view: int
    position: int
    size: int
    data: bytearray = field(default_factory=bytearray)


class Relearning:
    """One state at a time.

    Attributes:
        replacing: whether the disk is replacing the log: until then nothing else is done to it.
    """

    def __init__(self, context: Context, known: Callable[[int], None], replaced: Callable[[], None]) -> None:
        """Prepare.

        Args:
            known: the log has everything up to the position already, and all of it is decided.
            replaced: the log is the state now.
        """
        self._outbox = context.outbox
        self._window = context.window
        self._known = known
        self._replaced = replaced
        self._taking: _Taking | None = None
        self._token = 0
        self._state = LogState()

    @property
    def replacing(self) -> bool:
        """Whether the disk is at it."""
        return self._token > 0

    @property
    def busy(self) -> bool:
        """Whether a state is on its way, or is taking the log's place."""
        return self.replacing or self._taking is not None

    def stop(self) -> None:
        """Whatever is on its way is not wanted any more; what the disk has begun it ends."""
        self._taking = None

    def ask(self) -> None:
        """Ask for the next piece, once more if it was asked for before."""
        taking = self._taking
        if taking is not None:
            self._outbox.send(taking.source, FetchSnapshot(taking.view, taking.position, len(taking.data)))

    def on_piece(self, sender: int, message: FetchedSnapshot, last: int) -> bool:
        """A piece came from who was asked; `last` is how far the log that is wanted goes. False if nothing will come of it, and the
        sender is of no use.
        """
        if self.replacing:
            return True
        taking = self._taking
        if not message.at and message.size:
            if not self._window.frontier < message.position <= last:
                self._taking = None
                return False
            taking = self._taking = _Taking(sender, message.view, message.position, message.size)
        if taking is None or not message.size or sender != taking.source or message.position != taking.position:
            self._taking = None
            return False
        if message.at != len(taking.data) or message.size != taking.size:
            return True  # a copy of an earlier piece
        taking.data += message.data
        if len(taking.data) < taking.size:
            self.ask()
            return True
        self._taking = None
        return self._take(sender, message, bytes(taking.data))

    def _take(self, sender: int, message: FetchedSnapshot, data: bytes) -> bool:
        """The state is whole: the log becomes it."""
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
        if state.position <= window.end and window.chain_at(state.position) == state.chain:
            self._known(state.position)
        else:
            self._state = state
            self._token = self._outbox.replace_log(data)
        return True

    def _unfit(self, state: LogState, position: int) -> str:
        """Why the state cannot take the log's place; empty if it can."""
        log = self._window.log()
        if state.position != position or len(state.log) != limits.ID_BYTES or not state.roster:
            return f"a state up to {state.position} came as one up to {position}, or is of no log"
        if log and state.log != log:
            return f"the state is of log {state.log.hex()}, and this one is {log.hex()}"
        return ""

    def persisted(self, token: int) -> None:
        """Everything up to the Persist with the token is durable."""
        if self._token and token >= self._token:
            self._token = 0
            self._window.replace(self._state)
            self._state = LogState()
            self._replaced()
