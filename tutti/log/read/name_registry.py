"""What the numbers in frames stand for: topics, producers and gateways.

A number stands for one name for ever, also when a FORGET has taken the producer out of the received-table since: the same range
reads the same at any time (C8).
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
from tutti.log.read.catalog import Catalog, trimmed
from tutti.log.read.segment_view import Upto, View

_WHAT = {Kind.TOPIC: "topic", Kind.EPOCH: "producer", Kind.ROSTER: "gateway"}
_KINDS = np.array(list(_WHAT), dtype=np.uint8)

_TOGETHER = 1024  # producers whose names are looked up at once

Known = dict[tuple[int, int], str]


class Forgotten(OffsetOutOfRange):
    """The log gave a number to what it had forgotten again before the place where it begins now: nothing in it says the name."""


class Names:
    """Looks names up and remembers them. A name is asked for by the kind of frame that registers it: TOPIC, EPOCH (producers) or
    ROSTER (gateways). Not thread-safe: its user holds a lock.
    """

    def __init__(self, catalog: Catalog, looking: AbstractContextManager[None]) -> None:
        """Names of the log of `catalog`, which is looked at, and no more than that, within `looking`."""
        self._catalog = catalog
        self._looking = looking
        self._known: Known = {}
        self._learned = 0  # up to this position
        self._numbers: dict[int, int] = {}  # by a segment's first position: the next producer's number there
        self._begin: Snapshot | None = None  # with which the log began when it was last looked at

    def of(self, kind: Kind, number: int, upto: Upto) -> str:
        """The name that a number stands for; empty for 0.

        Raises:
            Damaged: the log up to there does not say it.
            Forgotten: it never will any more.
            OffsetOutOfRange: it was trimmed meanwhile.
        """
        if not number:
            return ""
        damage: Damaged | None = None
        name = self._known.get((kind, number))
        if name is None and self._learned < upto.position:
            damage = self._learn(upto)
            name = self._known.get((kind, number))
        return self._search(kind, number, upto, damage) if name is None else name

    def topics(self, names: Collection[str], upto: Upto) -> frozenset[int]:
        """Numbers of those of the topics that the log knows.

        Raises:
            Damaged: one is not known, and what may register it cannot be read.
        """
        damage = self._learn(upto) if self._learned < upto.position else None
        found = {name: number for (kind, number), name in self._known.items() if kind == Kind.TOPIC}
        if damage is not None and not found.keys() >= set(names):
            raise damage
        return frozenset(found[name] for name in names if name in found)

    def _learn(self, upto: Upto) -> Damaged | None:
        """Take in what was registered since the last look; since the newest snapshot at the first, and where it was trimmed.

        What cannot be read, and no snapshot says, is told, and is looked at again the next time.
        """
        self._make_room()
        with self._looking:
            begin = self._catalog.start.first
        for gone in [first for first in self._numbers if first < begin]:
            del self._numbers[gone]
        if not self._learned or self._learned < begin - 1:
            self._skip(upto)
        damage = self._go_on(upto)
        while damage is not None and self._skip(upto):
            damage = self._go_on(upto)
        return damage

    def _skip(self, upto: Upto) -> bool:
        """Take what the newest snapshot says; whether that is more than is known."""
        with self._looking:
            state = newest_snapshot(self._catalog.directory, upto.position).state
        if state.position <= self._learned:
            return False
        self._known.update(_known_to(state))
        self._learned = state.position
        return True

    def _go_on(self, upto: Upto) -> Damaged | None:
        """Take in what frames register, all that can be read; what was learned ends before the first that cannot, which is told."""
        damage: Damaged | None = None
        position = self._learned + 1
        with self._looking:
            first = self._catalog.holding_position(position)
            if not first and (first := self._catalog.after(0)):
                damage = segment_missing(self._catalog.directory, position, first)
        while first and position <= upto.position:
            wrong: Damaged | None = None
            try:
                view, parts, behind = self._rows(first, upto)
            except Damaged as error:  # its file went meanwhile
                parts, behind = [], error
            for rows in parts:
                some = rows[max(position - int(rows["position"][0]), 0) :]
                if len(some):
                    new = self._take(view, some[np.isin(some["kind"], _KINDS)])
                    wrong = wrong or new
                    position = int(some["position"][-1]) + 1
            with self._looking:
                following, last = self._catalog.after(first), self._catalog.last_of(first, upto)
            if behind is None and position <= last:
                behind = segment_missing(self._catalog.directory, position, following)
            if damage is None:
                damage = wrong or behind
                self._learned = position - 1 if wrong is None else wrong.position - 1
            first, position = following, max(position, following)
        return damage

    def _make_room(self) -> None:
        if len(self._known) > limits.NAMES_KEPT_MAX:
            self._known.clear()
            self._learned = 0  # what is in use is learned anew when it is asked for

    def _rows(self, first: int, upto: Upto) -> tuple[View, list[Rows], Damaged | None]:
        with self._looking:
            return self._catalog.view(first), *self._catalog.good_rows(first, upto)

    def _take(self, view: View, rows: Rows) -> Damaged | None:
        """Take in the names that the frames of `rows` register; the first that is damaged, which hides no other's name, and whose
        own may stand elsewhere too.
        """
        damage: Damaged | None = None
        for row in rows:
            try:
                self._known.update(_registered_by(view.frame(row)))
            except Damaged as error:
                damage = damage or error
        return damage

    def _search(self, kind: Kind, number: int, upto: Upto, damage: Damaged | None) -> str:
        """Look for what is not in use any more: first where it was registered, then, as that may be damaged, everywhere else.
        `damage`: the first that was met on the way here, which hides it if nothing says it.
        """
        self._make_room()
        forgotten = self._forgotten(kind, number)
        if forgotten and kind == Kind.EPOCH:  # a producer's number is registered by nothing that follows
            raise forgotten
        for first in self._places(kind, number):
            view, parts, _ = self._rows(first, upto)
            for rows in parts:
                self._take(view, _around(rows[rows["kind"] == kind], kind, number))
            name = self._known.get((kind, number)) or self._known_at_start(first).get((kind, number))
            if name is not None:
                self._known[kind, number] = name
                return name
        if forgotten:
            raise forgotten
        if self._catalog.shortened:
            raise trimmed(self._catalog.start)  # where it was registered, or the snapshot that named it, went meanwhile
        raise Damaged(
            f"the log in {self._catalog.directory} does not say which {_WHAT[kind]} number {number} is: "
            f"see `tutti log verify {self._catalog.directory}`",
            0 if damage is None else damage.position,
        )

    def _forgotten(self, kind: Kind, number: int) -> Forgotten | None:
        """Whether a number was given before the place where the log begins, and stood for nothing any more there."""
        first = self._catalog.start.first
        if self._begin is None or self._begin.position != first:
            self._begin = self._snapshot(first)
        if self._begin is None:
            return None  # not known: so it may be damaged, and mended
        state = self._begin.state
        below, named = {
            Kind.TOPIC: (state.next_topic, state.topics.keys()),
            Kind.EPOCH: (state.next_producer, state.producers.keys()),
            Kind.ROSTER: (state.next_gateway, state.roster.keys()),
        }[kind]
        if number >= below or number in named:
            return None
        return Forgotten(str(trimmed(self._catalog.start)))  # the ordered records of that number lay below

    def _places(self, kind: Kind, number: int) -> Iterator[int]:
        """All segments, the likeliest first. Producers get their numbers in order, and each snapshot at the start of a segment says
        which is the next: so a few of them tell where a producer was registered.
        """
        firsts = self._catalog.firsts
        low, high = 0, len(firsts)
        while low < high and kind == Kind.EPOCH:
            middle = (low + high) // 2
            if self._next_number(firsts[: middle + 1]) <= number:
                low = middle + 1
            else:
                high = middle
        high = max(high, 1)  # one that was registered before the begin is named by the snapshot there
        yield from reversed(firsts[:high])
        yield from reversed(firsts[high:])

    def _next_number(self, firsts: Sequence[int]) -> int:
        """The next producer's number at the start of the last of these segments, or where that is not said, of one before it."""
        for first in reversed(firsts):
            if first not in self._numbers:
                snapshot = self._snapshot(first)
                if snapshot is None:
                    continue
                self._numbers[first] = snapshot.state.next_producer
            return self._numbers[first]
        return 0

    def _known_at_start(self, first: int) -> Known:
        snapshot = self._snapshot(first)
        return {} if snapshot is None else _known_to(snapshot.state)

    def _snapshot(self, first: int) -> Snapshot | None:
        return read_snapshot(self._catalog.directory, first)


def _around(rows: Rows, kind: Kind, number: int) -> Rows:
    """The rows that register a name, with its neighbours, which are asked for next: a segment may hold very many producers."""
    if kind != Kind.EPOCH:
        return rows
    low = number - number % _TOGETHER
    return rows[(rows["producer"] >= low) & (rows["producer"] < low + _TOGETHER)]


def _known_to(state: LogState) -> Known:
    found: Known = {(Kind.TOPIC, number): topic.name for number, topic in state.topics.items()}
    found |= {(Kind.EPOCH, number): producer.name for number, producer in state.producers.items()}
    return found | {(Kind.ROSTER, number): voter.name for number, voter in state.roster.items()}


def _registered_by(frame: Frame) -> Known:
    if frame.kind == Kind.TOPIC:
        return {(Kind.TOPIC, frame.topic): decode_body(TopicBody, frame.body).name}
    if frame.kind == Kind.EPOCH:
        return {(Kind.EPOCH, frame.producer): decode_body(EpochBody, frame.body).name}
    return {(Kind.ROSTER, voter.number): voter.name for voter in decode_body(RosterBody, frame.body).voters}
