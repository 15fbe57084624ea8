"""What the demo checks at its end, from the log files and the results alone, with every gateway down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from tutti_gateway.cli.demo.departures import Departures

if TYPE_CHECKING:
    from tutti_gateway.log.tools.verify import Verified

Id = tuple[int, int, int, str, int, str]


class Check(NamedTuple):
    """One promise: what it says, whether it held, and what was counted."""

    promise: str
    held: bool
    counted: str


def departure_id(value: bytes) -> Id:
    """What names a departure: date, carrier, flight, origin."""
    fields = orjson.loads(value)
    return (fields["year"], fields["month"], fields["day"], fields["carrier"], fields["flight"], fields["origin"])


def check_records(batches: Iterable[pa.RecordBatch], expected: Sequence[Departures], closing: bytes) -> list[Check]:
    """The committed records (columns key, value) against what was to be sent: each once, each airport in its order.

    `closing` is the value of the one record that is no departure.
    """
    found: dict[str, list[bytes]] = {departures.airport: [] for departures in expected}
    strangers = closings = 0
    for batch in batches:
        keys: list[Any] = batch.column("key").to_pylist()
        values: list[Any] = batch.column("value").to_pylist()
        for key, value in zip(keys, values, strict=True):
            if value == closing:
                closings += 1
            elif key is None or key.decode() not in found:
                strangers += 1
            else:
                found[key.decode()].append(value)
    wanted = {departures.airport: departures.rows() for departures in expected}
    ids = Counter(departure_id(value) for values in found.values() for value in values)
    wanted_ids = {departure_id(value) for values in wanted.values() for value in values}
    twice = sum(count - 1 for count in ids.values())
    missing, unknown = len(wanted_ids - ids.keys()), len(ids.keys() - wanted_ids) + strangers + abs(closings - 1)
    counted = f"{len(ids):,} of {len(wanted_ids):,} ids, {twice} twice, {missing} missing, {unknown} unknown"
    order = [airport for airport in wanted if found[airport] == wanted[airport]]
    return [
        Check("each departure exactly once", not (twice or missing or unknown), counted),
        Check(
            "each airport in its order, byte for byte",
            order == list(wanted),
            f"{', '.join(order) or 'none'} of {', '.join(wanted)}",
        ),
    ]


def check_same(digests: Mapping[str, tuple[int, str]]) -> list[Check]:
    """That every gateway (name -> next offset, digest of its records) has the same log; nothing to check for one alone."""
    if len(digests) < 2:
        return []
    counted = ", ".join(f"{name} {sha256[:12]} of {end:,} records" for name, (end, sha256) in digests.items())
    return [Check("the same log on every gateway", len(set(digests.values())) == 1, counted)]


def check_logs(reports: Mapping[str, Verified]) -> Check:
    """That nothing in the logs (gateway -> what was found) is damaged."""
    counted = ", ".join(f"{name} {report.frames:,} frames, {len(report.damage)} damaged" for name, report in reports.items())
    return Check("every frame of every log is whole and in its place", not any(each.damage for each in reports.values()), counted)


def check_results(live: Path, replay: Path, departures: int) -> list[Check]:
    """The sorted rows of the live job and of the replay from the log files: the same bytes, and every departure counted in them."""
    live_rows, replay_rows = live.read_bytes(), replay.read_bytes()
    counted = sum(orjson.loads(line)["departures"] for line in live_rows.splitlines())
    rows = live_rows.count(b"\n")
    return [
        Check(
            "live result equals the batch replay byte for byte",
            live_rows == replay_rows and rows > 0,
            f"{rows:,} rows, {len(live_rows):,} bytes",
        ),
        Check("each departure counted once by the live job", counted == departures, f"{counted:,} of {departures:,}"),
    ]


class Speed(NamedTuple):
    """Records, the seconds from the first send to the last commit, and percentiles of what a commit took, ms."""

    records: int
    seconds: float
    p50_ms: float
    p99_ms: float
    max_ms: float

    @property
    def records_a_second(self) -> float:
        """Records a second."""
        return self.records / self.seconds if self.seconds else 0.0


def speed(times_us: npt.NDArray[np.int64]) -> Speed:
    """From the times (sent, committed) of all records, us."""
    latencies_ms = (times_us[:, 1] - times_us[:, 0]) / 1000
    p50, p99, most = (float(np.percentile(latencies_ms, part)) for part in (50, 99, 100))
    return Speed(len(times_us), float(times_us[:, 1].max() - times_us[:, 0].min()) / 1e6, p50, p99, most)


def load_times(directory: Path) -> npt.NDArray[np.int64]:
    """The times that the producers left, in the order of sending."""
    times: npt.NDArray[np.int64] = np.concatenate([np.load(file) for file in sorted(directory.glob("*.npy"))])
    return times[np.argsort(times[:, 0], kind="stable")]


def rows_of(results: Path) -> list[dict[str, Any]]:
    """The rows of a result."""
    return [orjson.loads(line) for line in results.read_bytes().splitlines()]
