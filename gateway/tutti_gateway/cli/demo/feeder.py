"""One airport's producer: sends the departures of the airport in the order of their scheduled times.

Each airport has its own process, `python -m tutti_gateway.cli.demo.feeder`. Simulated time passes at a fixed rate. The producer
sends the departures that are due, waits for their commits, and publishes its progress (`shared_progress.py`). An airport that is
too far ahead of the others waits for them.
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
from tutti_gateway.cli.demo.departures import AIRPORTS
from tutti_gateway.cli.demo.shared_progress import FINISHED, SharedProgress

#: Pause after each round of sends and commits, seconds. The pause limits the simulated speed, because the number of departures in
#: a round is limited, too.
SLOT_S = 0.02
_START_POLL_S = 0.01


class Pace(NamedTuple):
    """Speed of the replay: simulated minutes a second, and the maximum lead of one airport over another in simulated minutes."""

    minutes_a_second: float
    skew_minutes: int


class Feeder:
    """Sends the departures of one airport, and measures when each is sent and committed."""

    def __init__(self, airport: str, table: pa.Table, shared_progress: SharedProgress, pace: Pace) -> None:
        """Prepare to send `table`, which has the columns `minutes` and `value`, and is sorted by `minutes`."""
        self._airport, self._shared_progress, self._pace = airport, shared_progress, pace
        self._minutes = table["minutes"].to_numpy()
        self._values: list[Any] = table["value"].to_pylist()
        #: One row for each departure: the times of sending and of commit on the monotonic clock, in us.
        self.times_us = np.zeros((len(self._values), 2), dtype=np.int64)
        self._failed: Exception | None = None

    def run(self, send: Callable[..., object], flush: Callable[[], object]) -> None:
        """Send all departures with a producer's methods `send` and `flush`, and wait for their commits.

        Raises:
            TuttiError: the producer reports that a departure failed.
        """
        while not self._shared_progress.started_us:
            time.sleep(_START_POLL_S)
        started_s = self._shared_progress.started_us / 1e6
        sent = 0
        while sent < len(self._values):
            now = int((time.monotonic() - started_s) * self._pace.minutes_a_second)
            until = min(now, self._shared_progress.committed_elsewhere(self._airport) + self._pace.skew_minutes)
            end = int(np.searchsorted(self._minutes, until, side="right"))
            for number in range(sent, end):
                self.times_us[number, 0] = time.monotonic_ns() // 1000
                send(self._values[number], on_delivery=partial(self._committed, number))
            if end > sent:
                flush()
                sent = end
            if self._failed is not None:
                raise self._failed
            self._shared_progress.publish(self._airport, until)
            time.sleep(SLOT_S)
        self._shared_progress.publish(self._airport, FINISHED)

    def _committed(self, number: int, error: Exception | None, _receipt: object) -> None:
        self.times_us[number, 1] = time.monotonic_ns() // 1000
        if error is not None and self._failed is None:
            self._failed = error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the producer of one airport. Return exit code 0 if all departures of the airport were committed."""
    parser = argparse.ArgumentParser(prog="feeder", description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--airport", required=True, choices=AIRPORTS)
    parser.add_argument("--input", required=True, type=Path, help="Arrow file with the departures: minutes, value")
    parser.add_argument("--board", required=True, type=Path)
    parser.add_argument("--times", required=True, type=Path, help="file for the commit times (.npy)")
    parser.add_argument("--minutes-a-second", required=True, type=float)
    parser.add_argument("--skew-minutes", required=True, type=int)
    options = parser.parse_args(arguments)
    from tutti.producer import Producer

    with pa.memory_map(str(options.input)) as file:
        table = pa.ipc.open_file(file).read_all()
    pace = Pace(options.minutes_a_second, options.skew_minutes)
    with SharedProgress(options.board) as shared_progress:
        feeder = Feeder(options.airport, table, shared_progress, pace)
        try:
            with Producer(options.url, producer=options.airport) as producer:
                feeder.run(partial(producer.send, options.topic, key=options.airport.encode()), producer.flush)
        except TuttiError as error:
            print(f"error: {options.airport}: {error}", file=sys.stderr)
            return error.exit_code
    np.save(options.times, feeder.times_us)
    return 0


if __name__ == "__main__":
    sys.exit(main())
