"""Name registry: returns the names of topics, producers and gateways for the numbers in frames.

A number belongs permanently to one name, even after a FORGET has removed the producer from the received-table. Therefore repeated
reads of a range return the same names (C8).
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
    """The log no longer contains the name, because the number was registered and deleted before the current start of the log."""


class NameRegistry:
    """Looks up names and caches them. Not thread-safe: callers must hold a lock.

    The argument `kind` of a lookup is the kind of the frames that register such names: TOPIC (topics), EPOCH (producers) or ROSTER
    (gateways).
    """

    def __init__(self, catalog: Catalog, lock: AbstractContextManager[None]) -> None:
        """Create a registry for the log of `catalog`. The registry acquires `lock` for each access to the catalog."""
        self._catalog = catalog
        self._lock = lock
        self._known: Names = {}
        self._loaded_upto = 0  # position up to which all readable registrations are in the cache
        self._numbers: dict[int, int] = {}  # maps the first position of a segment to the next producer number at this position
        self._begin: Snapshot | None = None  # cached snapshot at the start of the log

    def of(self, kind: Kind, number: int, upto: ReadLimit) -> str:
        """Return the name for a number; empty for 0.

        Raises:
            Damaged: the log has no readable frame or snapshot with the name.
            NameForgotten: the log no longer has the name, because all records with this number were trimmed.
            OffsetOutOfRange: the name was not found, and a trim after the reader was opened may have removed it.
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
        """Return the numbers of those topics among `names` that are registered in the log.

        Raises:
            Damaged: a topic was not found, and frames that may register it are unreadable.
        """
        damage = self._load(upto) if self._loaded_upto < upto.position else None
        found = {name: number for (kind, number), name in self._known.items() if kind == Kind.TOPIC}
        if damage is not None and not found.keys() >= set(names):
            raise damage
        return frozenset(found[name] for name in names if name in found)

    def _load(self, upto: ReadLimit) -> Damaged | None:
        """Load the registrations that were decided after the last call. The first call, and a call after a trim, load a snapshot.

        Return the first corruption after the newest snapshot, or None. The next call reads the corrupt frames again.
        """
        self._limit_cache()
        with self._lock:
            begin = self._catalog.start.first
        for trimmed in [first for first in self._numbers if first < begin]:
            del self._numbers[trimmed]
        if not self._loaded_upto or self._loaded_upto < begin - 1:
            self._load_snapshot(upto)
        damage = self._load_frames(upto)
        # If a snapshot after the corruption exists, it also contains the names that the corrupt frames register.
        while damage is not None and self._load_snapshot(upto):
            damage = self._load_frames(upto)
        return damage

    def _load_snapshot(self, upto: ReadLimit) -> bool:
        """Load the names in the newest snapshot. Return False if the cache already has all names in this snapshot."""
        with self._lock:
            state = newest_snapshot(self._catalog.directory, upto.position).state
        if state.position <= self._loaded_upto:
            return False
        self._known.update(_known_to(state))
        self._loaded_upto = state.position
        return True

    def _load_frames(self, upto: ReadLimit) -> Damaged | None:
        """Load registrations from all readable frames. Return the first corruption; the next call starts at its position."""
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
            except Damaged as error:  # the file was removed after the segments were listed
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
            # The frames after a corrupt or missing part are also loaded, because each registration is independent of the others.
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
        """Load the names that the frames of `rows` register, even after a corrupt frame. Return the first corruption, or None."""
        damage: Damaged | None = None
        for row in rows:
            try:
                self._known.update(_registered_by(view.frame(row)))
            except Damaged as error:
                damage = damage or error
        return damage

    def _search(self, kind: Kind, number: int, upto: ReadLimit, damage: Damaged | None) -> str:
        """Search all segments for a name that is not cached. The segment that most likely registers the name comes first.

        If that segment is corrupt, the snapshot of another segment may contain the name.

        Args:
            damage: the first known corruption, whose position is reported if the search fails.
        """
        self._limit_cache()
        forgotten = self._forgotten(kind, number)
        # A search for a deleted producer is useless, because no later EPOCH registers the same number.
        if forgotten and kind == Kind.EPOCH:
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
            raise trimmed_error(self._catalog.start)  # a trim after the opening of the catalog may have removed the name
        raise Damaged(
            f"the log in {self._catalog.directory} does not hold the name of {_KIND_NAMES[kind]} number {number}: "
            f"see `tutti log verify {self._catalog.directory}`",
            0 if damage is None else damage.position,
        )

    def _forgotten(self, kind: Kind, number: int) -> NameForgotten | None:
        """Return the error for a number that was registered and deleted before the start of the log, or None for other numbers."""
        first = self._catalog.start.first
        if self._begin is None or self._begin.position != first:
            self._begin = self._snapshot(first)
        if self._begin is None:
            return None  # without the snapshot it is unknown whether the name is lost, and a repair can restore the snapshot
        state = self._begin.state
        below, named = {
            Kind.TOPIC: (state.next_topic, state.topics.keys()),
            Kind.EPOCH: (state.next_producer, state.producers.keys()),
            Kind.ROSTER: (state.next_gateway, state.roster.keys()),
        }[kind]
        if number >= below or number in named:
            return None
        # All records with this number were trimmed, because the number was deleted before the start of the log.
        return NameForgotten(str(trimmed_error(self._catalog.start)))

    def _segments_by_likelihood(self, kind: Kind, number: int) -> Iterator[int]:
        """Yield all segments, beginning with the segment that most likely registers the number.

        Producer numbers grow in log order, and the snapshot of each segment's start contains the next number. Therefore a binary
        search over the snapshots finds the segment that registers a producer.
        """
        firsts = self._catalog.firsts
        low, high = 0, len(firsts)
        while low < high and kind == Kind.EPOCH:
            middle = (low + high) // 2
            if self._next_number(firsts[: middle + 1]) <= number:
                low = middle + 1
            else:
                high = middle
        high = max(high, 1)  # the snapshot of the first segment contains the names that were registered before this segment
        yield from reversed(firsts[:high])
        yield from reversed(firsts[high:])

    def _next_number(self, firsts: Sequence[int]) -> int:
        """Return the next producer number in the newest valid snapshot of these segment starts; 0 if no snapshot is valid."""
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
    """Select the rows that a lookup of `number` loads: for a producer, the rows of neighbouring numbers; otherwise all rows.

    Later lookups often need the names of neighbouring numbers. A segment can register too many producers to load all of them.
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
