"""Name registry: the names of topics, producers and gateways for the numbers in frames.

A number permanently stands for one name, even after a FORGET has removed the producer from the received-table. So reading a range
gives the same result at any time (C8).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager

import numpy as np

from tutti import limits
from tutti.data.frames.bodies import EpochBody, RosterBody, TopicBody, decode_body
from tutti.data.frames.frame import Frame, Kind
from tutti.data.log_state import LogState
from tutti.errors import Damaged, OffsetOutOfRange
from tutti.log.files.layout import segment_missing
from tutti.log.format.index import Rows
from tutti.log.format.snapshot import Snapshot, newest_snapshot, read_snapshot
from tutti.log.read.segment_catalog import Catalog, trimmed_error
from tutti.log.read.segment_view import ReadLimit, SegmentView

_KIND_NAMES = {Kind.TOPIC: "topic", Kind.EPOCH: "producer", Kind.ROSTER: "gateway"}
_KINDS = np.array(list(_KIND_NAMES), dtype=np.uint8)

_NEIGHBOURS = 1024  # number of producers that one lookup loads

Names = dict[tuple[int, int], str]


class NameForgotten(OffsetOutOfRange):
    """The number was registered and deleted below the current start of the log, so the log no longer has the name."""


class NameRegistry:
    """Looks up names and caches them. Not thread-safe: callers hold a lock.

    The kind of a name is the kind of frame that registers it: TOPIC, EPOCH (producers) or ROSTER (gateways).
    """

    def __init__(self, catalog: Catalog, lock: AbstractContextManager[None]) -> None:
        """Use the log of `catalog`. The lock `lock` is held only during each access to the catalog."""
        self._catalog = catalog
        self._lock = lock
        self._known: Names = {}
        self._loaded_upto = 0  # registrations up to this position are in the cache
        self._numbers: dict[int, int] = {}  # segment -> next producer number at its start
        self._begin: Snapshot | None = None  # snapshot at the start of the log, as of the last check

    def of(self, kind: Kind, number: int, upto: ReadLimit) -> str:
        """Return the name for a number; empty for 0.

        Raises:
            Damaged: the log up to `upto` does not have the name.
            NameForgotten: the log permanently lacks the name.
            OffsetOutOfRange: a trim removed the registration.
        """
        if not number:
            return ""
        damage: Damaged | None = None
        name = self._known.get((kind, number))
        if name is None and self._loaded_upto < upto.position:
            damage = self._load(upto)
            name = self._known.get((kind, number))
        return self._search(kind, number, upto, damage) if name is None else name

    def topics(self, names: Collection[str], upto: ReadLimit) -> frozenset[int]:
        """Return the numbers of the topics that are registered in the log; skip the others.

        Raises:
            Damaged: a topic is unknown, and frames that may register it are unreadable.
        """
        damage = self._load(upto) if self._loaded_upto < upto.position else None
        found = {name: number for (kind, number), name in self._known.items() if kind == Kind.TOPIC}
        if damage is not None and not found.keys() >= set(names):
            raise damage
        return frozenset(found[name] for name in names if name in found)

    def _load(self, upto: ReadLimit) -> Damaged | None:
        """Load the registrations since the last call. The first call and a call after a trim start at the newest snapshot.

        Return the first corruption that no snapshot covers; the next call reads it again.
        """
        self._limit_cache()
        with self._lock:
            begin = self._catalog.start.first
        for trimmed in [first for first in self._numbers if first < begin]:
            del self._numbers[trimmed]
        if not self._loaded_upto or self._loaded_upto < begin - 1:
            self._load_snapshot(upto)
        damage = self._load_frames(upto)
        while damage is not None and self._load_snapshot(upto):
            damage = self._load_frames(upto)
        return damage

    def _load_snapshot(self, upto: ReadLimit) -> bool:
        """Load the names of the newest snapshot. Return True if it is ahead of the cache."""
        with self._lock:
            state = newest_snapshot(self._catalog.directory, upto.position).state
        if state.position <= self._loaded_upto:
            return False
        self._known.update(_known_to(state))
        self._loaded_upto = state.position
        return True

    def _load_frames(self, upto: ReadLimit) -> Damaged | None:
        """Load registrations from all readable frames. Return the first corruption; the next call starts before it."""
        damage: Damaged | None = None
        position = self._loaded_upto + 1
        with self._lock:
            first = self._catalog.holding_position(position)
            if not first and (first := self._catalog.after(0)):
                damage = segment_missing(self._catalog.directory, position, first)
        while first and position <= upto.position:
            wrong: Damaged | None = None
            try:
                view, parts, next_damage = self._rows(first, upto)
            except Damaged as error:  # the file was removed since the listing
                parts, next_damage = [], error
            for rows in parts:
                some = rows[max(position - int(rows["position"][0]), 0) :]
                if len(some):
                    new = self._load_rows(view, some[np.isin(some["kind"], _KINDS)])
                    wrong = wrong or new
                    position = int(some["position"][-1]) + 1
            with self._lock:
                following, last = self._catalog.after(first), self._catalog.last_of(first, upto)
            if next_damage is None and position <= last:
                next_damage = segment_missing(self._catalog.directory, position, following)
            if damage is None:
                damage = wrong or next_damage
                self._loaded_upto = position - 1 if wrong is None else wrong.position - 1
            # Frames after a corrupt or missing part can still register names.
            first, position = following, max(position, following)
        return damage

    def _limit_cache(self) -> None:
        if len(self._known) > limits.NAMES_KEPT_MAX:
            self._known.clear()
            self._loaded_upto = 0  # the next lookup loads the names again

    def _rows(self, first: int, upto: ReadLimit) -> tuple[SegmentView, list[Rows], Damaged | None]:
        with self._lock:
            return self._catalog.view(first), *self._catalog.readable_rows(first, upto)

    def _load_rows(self, view: SegmentView, rows: Rows) -> Damaged | None:
        """Load the names that the frames of `rows` register. Return the first corruption.

        A corrupt frame hides only its own name, which may also be in other files.
        """
        damage: Damaged | None = None
        for row in rows:
            try:
                self._known.update(_registered_by(view.frame(row)))
            except Damaged as error:
                damage = damage or error
        return damage

    def _search(self, kind: Kind, number: int, upto: ReadLimit, damage: Damaged | None) -> str:
        """Search for a name that is not cached: first in the likeliest segment, then in all others, because that segment may be
        corrupt.

        `damage`: the first known corruption; it is raised as the reason if the search fails.
        """
        self._limit_cache()
        forgotten = self._forgotten(kind, number)
        if forgotten and kind == Kind.EPOCH:  # later frames never register the number again
            raise forgotten
        for first in self._segments_by_likelihood(kind, number):
            view, parts, _ = self._rows(first, upto)
            for rows in parts:
                self._load_rows(view, _around(rows[rows["kind"] == kind], kind, number))
            name = self._known.get((kind, number)) or self._known_at_start(first).get((kind, number))
            if name is not None:
                self._known[kind, number] = name
                return name
        if forgotten:
            raise forgotten
        if self._catalog.shortened:
            raise trimmed_error(self._catalog.start)  # the frame or snapshot with the name was trimmed
        raise Damaged(
            f"the log in {self._catalog.directory} does not hold the name of {_KIND_NAMES[kind]} number {number}: "
            f"see `tutti log verify {self._catalog.directory}`",
            0 if damage is None else damage.position,
        )

    def _forgotten(self, kind: Kind, number: int) -> NameForgotten | None:
        """Return the error for a number that was registered and deleted below the start of the log, else None."""
        first = self._catalog.start.first
        if self._begin is None or self._begin.position != first:
            self._begin = self._snapshot(first)
        if self._begin is None:
            return None  # the snapshot may be corrupt, and a repair can restore it
        state = self._begin.state
        below, named = {
            Kind.TOPIC: (state.next_topic, state.topics.keys()),
            Kind.EPOCH: (state.next_producer, state.producers.keys()),
            Kind.ROSTER: (state.next_gateway, state.roster.keys()),
        }[kind]
        if number >= below or number in named:
            return None
        return NameForgotten(str(trimmed_error(self._catalog.start)))  # all ordered records of that number lay below the start

    def _segments_by_likelihood(self, kind: Kind, number: int) -> Iterator[int]:
        """Yield all segments, the likeliest first.

        Producer numbers grow in log order, and the snapshot of each segment holds the next number. So a binary search over the
        snapshots finds the segment that registers a producer.
        """
        firsts = self._catalog.firsts
        low, high = 0, len(firsts)
        while low < high and kind == Kind.EPOCH:
            middle = (low + high) // 2
            if self._next_number(firsts[: middle + 1]) <= number:
                low = middle + 1
            else:
                high = middle
        high = max(high, 1)  # the snapshot at the start of the log holds names registered below it
        yield from reversed(firsts[:high])
        yield from reversed(firsts[high:])

    def _next_number(self, firsts: Sequence[int]) -> int:
        """Return the next producer number at the start of the last of these segments with a valid snapshot."""
        for first in reversed(firsts):
            if first not in self._numbers:
                snapshot = self._snapshot(first)
                if snapshot is None:
                    continue
                self._numbers[first] = snapshot.state.next_producer
            return self._numbers[first]
        return 0

    def _known_at_start(self, first: int) -> Names:
        snapshot = self._snapshot(first)
        return {} if snapshot is None else _known_to(snapshot.state)

    def _snapshot(self, first: int) -> Snapshot | None:
        return read_snapshot(self._catalog.directory, first)


def _around(rows: Rows, kind: Kind, number: int) -> Rows:
    """Return the rows that register a name and its neighbours.

    The neighbours are often looked up next, and a segment can register many producers.
    """
    if kind != Kind.EPOCH:
        return rows
    low = number - number % _NEIGHBOURS
    return rows[(rows["producer"] >= low) & (rows["producer"] < low + _NEIGHBOURS)]


def _known_to(state: LogState) -> Names:
    found: Names = {(Kind.TOPIC, number): topic.name for number, topic in state.topics.items()}
    found |= {(Kind.EPOCH, number): producer.name for number, producer in state.producers.items()}
    return found | {(Kind.ROSTER, number): voter.name for number, voter in state.roster.items()}


def _registered_by(frame: Frame) -> Names:
    if frame.kind == Kind.TOPIC:
        return {(Kind.TOPIC, frame.topic): decode_body(TopicBody, frame.body).name}
    if frame.kind == Kind.EPOCH:
        return {(Kind.EPOCH, frame.producer): decode_body(EpochBody, frame.body).name}
    return {(Kind.ROSTER, voter.number): voter.name for voter in decode_body(RosterBody, frame.body).voters}
