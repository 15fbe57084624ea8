"""What the numbers in frames stand for: topics, producers and gateways.

A number stands for one name for ever, also when a FORGET has taken the producer out of the received-table since: the same range
reads the same at any time (C8).
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from gateway.core import limits
from gateway.data.bodies import EpochBody, RosterBody, TopicBody, decode_body
from gateway.data.frame import Frame, Kind
from gateway.data.state import LogState
from gateway.errors import Damaged
from gateway.log.catalog import Catalog, Upto
from gateway.log.index import Rows
from gateway.log.snapshot import newest_snapshot, read_snapshot

_WHAT = {Kind.TOPIC: "topic", Kind.EPOCH: "producer", Kind.ROSTER: "gateway"}
_KINDS = np.array(list(_WHAT), dtype=np.uint8)

Known = dict[tuple[int, int], str]


class Names:
    """Looks names up and remembers them. A name is asked for by the kind of frame that registers it: TOPIC, EPOCH (producers) or
    ROSTER (gateways). Not thread-safe: its user holds a lock.
    """

    def __init__(self, catalog: Catalog) -> None:
        """Names of the log of `catalog`."""
        self._catalog = catalog
        self._known: Known = {}
        self._learned = 0  # up to this position

    def of(self, kind: Kind, number: int, upto: Upto) -> str:
        """The name that a number stands for; empty for 0.

        Raises:
            Damaged: the log up to there does not say it.
        """
        if not number:
            return ""
        name = self._known.get((kind, number))
        if name is None and self._learned < upto.position:
            self._learn(upto)
            name = self._known.get((kind, number))
        if name is None:
            name = self._known[kind, number] = self._search(kind, number, upto)
        return name

    def topics(self, upto: Upto) -> dict[int, str]:
        """All topics, by number."""
        if self._learned < upto.position:
            self._learn(upto)
        return {number: name for (kind, number), name in self._known.items() if kind == Kind.TOPIC}

    def _learn(self, upto: Upto) -> None:
        """Take in what was registered since the last look; at the first, since the newest snapshot."""
        if len(self._known) > limits.NAMES_KEPT_MAX:
            self._known.clear()
            self._learned = 0
        if not self._learned:
            state = newest_snapshot(self._catalog.directory, upto.position).state
            self._known.update(_known_to(state))
            self._learned = state.position
        at = max(bisect_right(self._catalog.firsts, self._learned + 1) - 1, 0)
        while at < len(self._catalog.firsts) and self._learned < upto.position:
            for rows in self._catalog.good_rows(at, upto)[0]:
                some = rows[max(self._learned + 1 - int(rows["position"][0]), 0) :]
                if len(some):
                    self._known.update(self._registered(at, some))
                    self._learned = int(some["position"][-1])
            at += 1

    def _registered(self, at: int, rows: Rows) -> Known:
        """Names that the frames of `rows`, of one segment, register."""
        view, found = self._catalog.view(at), {}
        for index in np.flatnonzero(np.isin(rows["kind"], _KINDS)):
            found.update(_registered_by(view.frame(rows[index])))
        return found

    def _search(self, kind: Kind, number: int, upto: Upto) -> str:
        """Go back through the log: the snapshots at the starts of segments know what was known there."""
        for at in reversed(range(len(self._catalog.firsts))):
            snapshot = read_snapshot(self._catalog.directory, self._catalog.firsts[at])
            found = _known_to(snapshot.state) if snapshot is not None else {}
            for rows in self._catalog.good_rows(at, upto)[0]:
                found |= self._registered(at, rows)
            if (kind, number) in found:
                return found[kind, number]
        raise Damaged(
            f"the log in {self._catalog.directory} does not say which {_WHAT[kind]} number {number} is: "
            f"see `tutti log verify {self._catalog.directory}`"
        )


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
