"""Final checks of the demo, which read the log files and the results after all gateways have stopped."""

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
    """Result of one check: the guarantee as text, whether it holds, and the counts that support the result."""

    promise: str
    held: bool
    counted: str


def departure_id(value: bytes) -> Id:
    """Return the fields that identify a departure: date, carrier, flight number, and airport of origin."""
    fields = orjson.loads(value)
    return (fields["year"], fields["month"], fields["day"], fields["carrier"], fields["flight"], fields["origin"])


def check_records(batches: Iterable[pa.RecordBatch], expected: Sequence[Departures], closing: bytes) -> list[Check]:
    """Check that the committed records contain each departure of the input once, and each airport's departures in order.

    Args:
        batches: the committed records, with the columns key and value.
        expected: the input.
        closing: value of the single record that is not a departure and ends the input.
    """
    found: dict[str, list[bytes]] = {departures.airport: [] for departures in expected}
    unexpected = closings = 0
    for batch in batches:
        keys: list[Any] = batch.column("key").to_pylist()
        values: list[Any] = batch.column("value").to_pylist()
        for key, value in zip(keys, values, strict=True):
            if value == closing:
                closings += 1
            elif key is None or key.decode() not in found:
                unexpected += 1
            else:
                found[key.decode()].append(value)
    wanted = {departures.airport: departures.rows() for departures in expected}
    ids = Counter(departure_id(value) for values in found.values() for value in values)
    wanted_ids = {departure_id(value) for values in wanted.values() for value in values}
    duplicates = sum(count - 1 for count in ids.values())
    missing, unknown = len(wanted_ids - ids.keys()), len(ids.keys() - wanted_ids) + unexpected + abs(closings - 1)
    counted = f"{len(ids):,} of {len(wanted_ids):,} ids, {duplicates} twice, {missing} missing, {unknown} unknown"
    order = [airport for airport in wanted if found[airport] == wanted[airport]]
    return [
        Check("each departure exactly once", not (duplicates or missing or unknown), counted),
        Check(
            "each airport in its order, byte for byte",
            order == list(wanted),
            f"{', '.join(order) or 'none'} of {', '.join(wanted)}",
        ),
    ]


def check_same(digests: Mapping[str, tuple[int, str]]) -> list[Check]:
    """Check that the logs of all gateways are equal. `digests` maps each gateway's name to its next offset and log digest."""
    if len(digests) < 2:
        return []
    counted = ", ".join(f"{name} {sha256[:12]} of {end:,} records" for name, (end, sha256) in digests.items())
    return [Check("the same log on every gateway", len(set(digests.values())) == 1, counted)]


def check_logs(reports: Mapping[str, Verified]) -> Check:
    """Check that no gateway's log is corrupt. `reports` maps each gateway's name to the verification report of its log."""
    counted = ", ".join(f"{name} {report.frames:,} frames, {len(report.damage)} corrupt" for name, report in reports.items())
    return Check(
        "every frame of every log is complete and at its position", not any(each.damage for each in reports.values()), counted
    )


def check_results(live: Path, replay: Path, departures: int) -> list[Check]:
    """Check that the result files of the live job and of the replay are equal byte for byte, and count every departure."""
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
    """Speed of a run: number of records, seconds from the first send to the last commit, and commit latencies."""

    records: int
    seconds: float
    p50_ms: float
    p99_ms: float
    max_ms: float

    @property
    def records_a_second(self) -> float:
        """Return the mean number of records committed a second."""
        return self.records / self.seconds if self.seconds else 0.0


def speed(times_us: npt.NDArray[np.int64]) -> Speed:
    """Compute the speed of a run. `times_us` has one row for each record: the times of sending and of commit, in us."""
    latencies_ms = (times_us[:, 1] - times_us[:, 0]) / 1000
    p50, p99, most = (float(np.percentile(latencies_ms, part)) for part in (50, 99, 100))
    return Speed(len(times_us), float(times_us[:, 1].max() - times_us[:, 0].min()) / 1e6, p50, p99, most)


def load_times(directory: Path) -> npt.NDArray[np.int64]:
    """Return the times of sending and commit that the producers saved, sorted by the time of sending."""
    times: npt.NDArray[np.int64] = np.concatenate([np.load(file) for file in sorted(directory.glob("*.npy"))])
    return times[np.argsort(times[:, 0], kind="stable")]


def rows_of(results: Path) -> list[dict[str, Any]]:
    """Return the rows of a result file."""
    return [orjson.loads(line) for line in results.read_bytes().splitlines()]
