"""What a client saw, written down as it happened: one line a fact, so that a killed client's journal is still good.

A producer's: `b T SEQUENCE PLACE` a life of it begins, and `resume` told so (`r` within a life); `s USE PLACE T` a record was
handed to `send`; then of that use `c USE OFFSET T` it was reported committed, `a USE T` aborted, `u USE T` unknown, `f USE T`
fenced; `e T` it ended in order. A use is one call of `send`, counted over all lives; the place is the record's number in the
source. They differ once something is sent again. What is sent unordered has a journal of its own, in which `c USE OFFSET T LANE`
names the lane, and `a` stands also for what was said to be in no lane.

A reader's: `q START END SHA256` these records were read (`digest_of`), with LANE behind it where they are a lane's; `n T` somebody
begins to ask for the frontier; `f OFFSET STATE T` he was shown that one.

T is the monotonic clock of the machine, ns, the same for all processes.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BLOCK = 256  # records that are summed up in one line, from a multiple of it on
BESIDE = "~"  # stands before the producer's name in the value of what it sends unordered
COLUMNS = ("offset", "topic", "key", "value", "timestamp", "headers", "gateway", "producer", "sequence", "view", "tick")
_LARGE = 30_000  # so that segments fill and close within a run


def value_of(producer: str, use: int, place: int) -> bytes:
    """What the record of a use holds: who and what it is, and a tail that makes sizes differ."""
    tail = _LARGE if use % 31 == 0 else use * 7919 % 300
    return b"%s %d %d " % (producer.encode(), use, place) + b"x" * tail


def parse_value(value: bytes) -> tuple[str, int, int]:
    """Producer, use and place of a value; ("", 0, 0) of one that no producer of these tests made."""
    parts = value.split(b" ", 3)
    try:
        name, use, place = parts[0].decode(), int(parts[1]), int(parts[2])
    except (ValueError, IndexError):
        return "", 0, 0
    return (name, use, place) if value == value_of(name, use, place) else ("", 0, 0)


def digest_of(rows: Iterable[Sequence[Any]]) -> str:
    """One number for records with all their columns; each row in the order of `COLUMNS`."""
    hasher = hashlib.sha256()
    for row in rows:
        hasher.update(repr(tuple(row)).encode())
    return hasher.hexdigest()


def lanes_journal(path: Path) -> Path:
    """Where a producer writes down what it sends unordered, beside its journal."""
    return path.with_name(f"{path.name}.lanes")


class Writer:
    """Appends lines, each by one write, so that a kill cuts the last one at most."""

    def __init__(self, path: Path) -> None:
        """Open or go on."""
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._lock = threading.Lock()
        if os.fstat(self._fd).st_size and path.read_bytes()[-1:] != b"\n":
            os.write(self._fd, b"\n")  # the line that a kill cut off is nobody's

    def note(self, *facts: object) -> None:
        """Write a line."""
        with self._lock:
            os.write(self._fd, (" ".join(map(str, facts)) + "\n").encode())

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


@dataclass
class Use:
    """One call of `send`, and what became of it. `outcome`: "" none was told, or the letter of its line. `lane`: if unordered."""

    place: int
    sent: int
    life: int
    outcome: str = ""
    offset: int = -1
    told: int = 0
    lane: str = ""


@dataclass
class Life:
    """One run of a producer: when it began, what `resume` told it, and what had been reported committed before."""

    begun: int
    sequence: int
    place: int
    committed_before: int
    place_before: int
    ended: bool = False


@dataclass
class Story:
    """A journal of one producer.

    Attributes:
        dense: it sends each place of its source once (it uses progress).
        unordered: it is of what was sent so; the producer's name is that in the values.
    """

    producer: str
    dense: bool = False
    unordered: bool = False
    uses: dict[int, Use] = field(default_factory=dict)
    lives: list[Life] = field(default_factory=list)

    def receipts(self) -> list[int]:
        """When each record was reported committed."""
        return sorted(use.told for use in self.uses.values() if use.outcome == "c")


@dataclass
class View:
    """The journal of one reader."""

    reader: str
    read: list[tuple[int, int, str]] = field(default_factory=list)
    frontiers: list[list[int]] = field(default_factory=list)
    lanes: dict[str, list[tuple[int, int, str]]] = field(default_factory=dict)  # as `read`, of each lane


def lines_of(path: Path) -> Iterator[list[str]]:
    """Whole lines of a journal, in words; of one that goes on in the next line's place nothing is lost but itself."""
    text = path.read_text("ascii") if path.exists() else ""
    for line in text.splitlines(keepends=True):
        if line.endswith("\n") and line.strip():
            yield line.split()


def read_story(producer: str, path: Path, *, dense: bool = False, unordered: bool = False) -> Story:
    """The story in a file. A line that a kill cut short is passed over."""
    story = Story(producer, dense, unordered)
    committed = place = 0
    for kind, *words in lines_of(path):
        lane = words.pop() if unordered and kind == "c" and len(words) == 4 else ""
        try:
            numbers = [int(word) for word in words]
        except ValueError:
            continue
        if kind == "b" and len(numbers) == 3:
            story.lives.append(Life(numbers[0], numbers[1], numbers[2], committed, place))
        elif kind == "s" and len(numbers) == 3:
            story.uses[numbers[0]] = Use(numbers[1], numbers[2], len(story.lives) - 1)
        elif kind == "c" and len(numbers) == 3 and bool(lane) is unordered:
            use = story.uses[numbers[0]]
            use.outcome, use.offset, use.told, use.lane = kind, numbers[1], numbers[2], lane
            committed, place = committed + 1, max(place, use.place)
        elif kind in "auf" and len(numbers) == 2:
            use = story.uses[numbers[0]]
            use.outcome, use.told = kind, numbers[1]
        elif kind == "e" and story.lives:
            story.lives[-1].ended = True
    return story


def read_view(reader: str, path: Path) -> View:
    """The view in a file."""
    view = View(reader)
    for kind, *words in lines_of(path):
        if kind == "q" and len(words) in (3, 4) and len(words[2]) == 64:
            read = view.read if len(words) == 3 else view.lanes.setdefault(words[3], [])
            read.append((int(words[0]), int(words[1]), words[2]))
        elif kind == "n":
            view.frontiers.append([])
        elif kind == "f" and len(words) == 3:
            view.frontiers[-1].append(int(words[0]))
    return view
