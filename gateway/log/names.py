"""What the numbers in frames stand for: topics, producers and gateways.

A number stands for one name for ever, also when a FORGET has taken the producer out of the received-table since: the same range
reads the same at any time (C8).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gateway.data.bodies import EpochBody, RosterBody, TopicBody, decode_body
from gateway.data.frame import Frame, Kind
from gateway.data.state import LogState
from gateway.errors import Damaged
from gateway.log.catalog import Catalog, Upto
from gateway.log.snapshot import read_snapshot

NAMES_MAX = 100_000  # kept per kind; beyond that all are looked up again
_WHAT = {Kind.TOPIC: "topic", Kind.EPOCH: "producer", Kind.ROSTER: "gateway"}


class Names:
    """Looks names up and remembers them. Not thread-safe: its user holds a lock."""

    def __init__(self, catalog: Catalog, state: Callable[[], LogState]) -> None:
        """Names of the log of `catalog`; `state` gives the LogState at the frontier."""
        self._catalog = catalog
        self._state = state
        self._known: dict[Kind, dict[int, str]] = {kind: {} for kind in _WHAT}

    def of(self, kind: Kind, number: int, upto: Upto) -> str:
        """Name of a topic (kind TOPIC), producer (EPOCH) or gateway (ROSTER): of what a frame of that kind registers.

        Raises:
            Damaged: the log up to there does not say it.
        """
        if not number:
            return ""
        known = self._known[kind]
        name = known.get(number)
        if name is None:
            name = _named(self._state(), kind, number) or self._search(kind, number, upto)
            if len(known) >= NAMES_MAX:
                known.clear()
            known[number] = name
        return name

    def _search(self, kind: Kind, number: int, upto: Upto) -> str:
        """Go back through the log: snapshots at the starts of segments know what was known there."""
        for at in reversed(range(len(self._catalog.firsts))):
            view = self._catalog.view(at)
            for rows in self._catalog.rows(at, upto):
                for index in np.flatnonzero(rows["kind"] == kind):
                    name = _registered(view.frame(rows[index]), number)
                    if name:
                        return name
            snapshot = read_snapshot(self._catalog.directory, view.first)
            name = _named(snapshot.state, kind, number) if snapshot is not None else ""
            if name:
                return name
        raise Damaged(f"the log in {self._catalog.directory} does not say which {_WHAT[kind]} number {number} is")


def _named(state: LogState, kind: Kind, number: int) -> str:
    if kind == Kind.TOPIC:
        return state.topics[number].name if number in state.topics else ""
    if kind == Kind.EPOCH:
        return state.producers[number].name if number in state.producers else ""
    return state.roster[number].name if number in state.roster else ""


def _registered(frame: Frame, number: int) -> str:
    if frame.kind == Kind.TOPIC:
        return decode_body(TopicBody, frame.body).name if frame.topic == number else ""
    if frame.kind == Kind.EPOCH:
        return decode_body(EpochBody, frame.body).name if frame.producer == number else ""
    return next((voter.name for voter in decode_body(RosterBody, frame.body).voters if voter.number == number), "")
