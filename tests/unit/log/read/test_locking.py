"""One caller's long look at a log keeps nobody else from the frontier."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.log.history import sample, write_log
from tutti.data.frames.frame import Kind
from tutti.data.frames.schema import decode_batch
from tutti.data.log_state import LogState
from tutti.log.read import name_registry
from tutti.log.read.reader import LogReader
from tutti.log.read.segment_catalog import Catalog

HISTORY = sample(40)


class Gate:
    """Where a caller is held while others are to go on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def before(self, act: Callable[..., Any]) -> Callable[..., Any]:
        """The same act, which waits here first."""

        def held(*args: Any) -> Any:
            self.reached.set()
            assert self.opened.wait(30)
            return act(*args)

        return held


class Held(np.ndarray[Any, Any]):
    """Rows that nobody can look into before the gate is opened."""

    gate = Gate()

    def __getitem__(self, key: Any) -> Any:
        return self.gate.before(super().__getitem__)(key)


@pytest.mark.parametrize("what", ["state", "ticks", "find", "offset_for_time", "name", "topic_numbers"])
def test_nobody_waits_for_anothers_long_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    write_log(tmp_path, HISTORY)
    end = len(HISTORY.records)
    forgotten = next(number for number, name in HISTORY.names.items() if HISTORY.producers[name][0] != number)
    asks: dict[str, Callable[[LogReader], object]] = {
        "state": lambda reader: reader.state(),
        "ticks": lambda reader: reader.ticks(0, end),
        "find": lambda reader: reader.find(1, 1),
        "offset_for_time": lambda reader: reader.offset_for_time(HISTORY.clock - 5000),
        "name": lambda reader: reader.name_of(Kind.EPOCH, forgotten),
        "topic_numbers": lambda reader: reader.topic_numbers(["topic1"]),
    }
    reader = LogReader(tmp_path)
    expected = asks[what](LogReader(tmp_path))
    gate = Gate()
    if what == "state":
        monkeypatch.setattr(LogState, "apply", gate.before(LogState.apply))
        for snapshot in (tmp_path / "log").glob("*.snap"):
            snapshot.unlink()
    elif what == "offset_for_time":
        monkeypatch.setattr("tutti.log.read.reader.decode_batch", gate.before(decode_batch))
    elif what in {"name", "topic_numbers"}:
        for snapshot in (tmp_path / "log").glob("*.snap"):
            snapshot.unlink()
        monkeypatch.setattr(name_registry, "_registered_by", gate.before(name_registry._registered_by))
    else:
        rows, onward = Catalog.rows, Catalog.onward

        def held_rows(*args: Any) -> Any:
            return [part.view(Held) for part in rows(*args)]

        def held_onward(*args: Any) -> Any:
            for view, parts in onward(*args):
                yield view, [part.view(Held) for part in parts]

        monkeypatch.setattr(Held, "gate", gate)
        monkeypatch.setattr(Catalog, "rows", held_rows)
        monkeypatch.setattr(Catalog, "onward", held_onward)
    answers: list[object] = []
    asking = threading.Thread(target=lambda: answers.append(asks[what](reader)))
    asking.start()
    assert gate.reached.wait(30)
    others: list[int] = []
    other = threading.Thread(target=lambda: others.append(reader.frontier().offset))
    other.start()
    other.join(5)
    meanwhile = list(others)
    gate.opened.set()
    other.join(30)
    asking.join(30)
    assert meanwhile == [end]
    assert answers == [expected]
