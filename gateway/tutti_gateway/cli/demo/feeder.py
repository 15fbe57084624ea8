"""One airport's producer: replays its departures in the order of their schedule, as a host at that airport would.

Run as `python -m tutti_gateway.cli.demo.feeder`, one process an airport. The year passes at a pace; due records are sent one by one
and waited for; then the airport tells the others how far it is (`board`), and none runs ahead by more than the skew.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tutti.errors import TuttiError
from tutti_gateway.cli.demo.board import FINISHED, Board
from tutti_gateway.cli.demo.departures import AIRPORTS

#: Airports advance by at most the skew in a slot and a round of commits, so this bounds how fast the year can pass.
SLOT_S = 0.02
_BEGIN_WAIT_S = 0.01


class Pace(NamedTuple):
    """How the year passes: minutes of it a second, and how far an airport may be ahead of another, in minutes of it."""

    minutes_a_second: float
    skew_minutes: int


class Feeder:
    """Sends one airport's departures and keeps what each one's commit took."""

    def __init__(self, airport: str, table: pa.Table, board: Board, pace: Pace) -> None:
        """`table`: minutes and values of the departures in their order."""
        self._airport, self._board, self._pace = airport, board, pace
        self._minutes = table["minutes"].to_numpy()
        self._values: list[Any] = table["value"].to_pylist()
        #: For each departure: when it was sent and when it was committed, on the monotonic clock, us.
        self.times_us = np.zeros((len(self._values), 2), dtype=np.int64)
        self._failed: Exception | None = None

    def run(self, send: Callable[..., object], flush: Callable[[], object]) -> None:
        """Send everything at the pace; `send` and `flush` are a producer's.

        Raises:
            TuttiError: a departure was not committed.
        """
        while not self._board.begun_us:
            time.sleep(_BEGIN_WAIT_S)
        begun_s = self._board.begun_us / 1e6
        sent = 0
        while sent < len(self._values):
            now = int((time.monotonic() - begun_s) * self._pace.minutes_a_second)
            until = min(now, self._board.committed_elsewhere(self._airport) + self._pace.skew_minutes)
            end = int(np.searchsorted(self._minutes, until, side="right"))
            for number in range(sent, end):
                self.times_us[number, 0] = time.monotonic_ns() // 1000
                send(self._values[number], on_delivery=partial(self._committed, number))
            if end > sent:
                flush()
                sent = end
            if self._failed is not None:
                raise self._failed
            self._board.publish(self._airport, until)
            time.sleep(SLOT_S)
        self._board.publish(self._airport, FINISHED)

    def _committed(self, number: int, error: Exception | None, _receipt: object) -> None:
        self.times_us[number, 1] = time.monotonic_ns() // 1000
        if error is not None and self._failed is None:
            self._failed = error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one airport's producer; 0 when everything was committed."""
    parser = argparse.ArgumentParser(prog="feeder", description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--airport", required=True, choices=AIRPORTS)
    parser.add_argument("--input", required=True, type=Path, help="Arrow file with the departures: minutes, value")
    parser.add_argument("--board", required=True, type=Path)
    parser.add_argument("--times", required=True, type=Path, help="where the times of each commit are written (.npy)")
    parser.add_argument("--minutes-a-second", required=True, type=float)
    parser.add_argument("--skew-minutes", required=True, type=int)
    asked = parser.parse_args(arguments)
    from tutti.producer import Producer

    with pa.memory_map(str(asked.input)) as file:
        table = pa.ipc.open_file(file).read_all()
    pace = Pace(asked.minutes_a_second, asked.skew_minutes)
    with Board(asked.board) as board:
        feeder = Feeder(asked.airport, table, board, pace)
        try:
            with Producer(asked.url, producer=asked.airport) as producer:
                feeder.run(partial(producer.send, asked.topic, key=asked.airport.encode()), producer.flush)
        except TuttiError as error:
            print(f"error: {asked.airport}: {error}", file=sys.stderr)
            return error.exit_code
    np.save(asked.times, feeder.times_us)
    return 0


if __name__ == "__main__":
    sys.exit(main())
