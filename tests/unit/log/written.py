"""A log that is written while it is read."""

from __future__ import annotations

from pathlib import Path

from tests.unit.log.history import History, decide, firsts, fit, opened, settle
from tutti.data.hard_state import HardState


class Written:
    """A log whose writer goes on all the time: nothing makes a reader look anew but what it does."""

    def __init__(self, path: Path) -> None:
        self.path, self.history, self._done = path, History(), 0
        self.writer, _, self.close = opened(path)
        view = self.history.view_id
        self.writer.write_hard_state(HardState(view, view, view))

    def write(self) -> None:
        """What the history has more."""
        history = self.history
        while self._done < len(history.frames):
            end = min(self._done + 7, len(history.frames))
            self.writer.append(history.frames[self._done : end])
            self.writer.sync()
            decide(self.writer, history, self._done + 1, end)
            self._done = end

    def trim(self, keep: int) -> int:
        """Have the log begin some segments before its end; the offset."""
        position = fit(self.path, self.history)[-keep]
        begin = self.history.offset_after(position - 1)
        self.history.trim(position, begin)
        self.write()
        settle(self.writer)
        assert firsts(self.path)[0] == position
        return begin
