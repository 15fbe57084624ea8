"""What each gateway's directory holds, read as anybody would: by the client's files and the tools of the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.faults.group.checker import Log, Record
from tests.faults.group.journal import BESIDE, BLOCK, COLUMNS, digest_of, parse_value
from tests.faults.group.lane_checker import Copy
from tutti.data.lane_name import LaneName
from tutti.data.scan_request import ScanRequest
from tutti.errors import TuttiError
from tutti.log.read.lane_reader import LaneReader
from tutti.log.read.reader import LogReader
from tutti.log.read.scan import scan
from tutti.sources.files import FileSource
from tutti_gateway.log.tools.digest import digest
from tutti_gateway.log.tools.inspect import inspect
from tutti_gateway.log.tools.verify import LaneVerified, verify, verify_lanes


def read_log(gateway: str, directory: Path, ends: Iterable[int] = ()) -> Log:
    """The committed records of a directory whose gateway is down, with the sums of each block.

    Args:
        gateway: its name, for findings.
        directory: its data.
        ends: where readers stopped within a block; these parts are summed up too.
    """
    with FileSource(str(directory)) as files:
        frontier = files.frontier()
        log = Log(gateway, frontier.start)
        request = ScanRequest(frontier.start, frontier.offset, columns=COLUMNS)
        _fill(log, (found.batch for found in files.scan(request)), {*ends, frontier.offset})
    log.damage = [str(finding) for finding in verify(directory).damage]
    return log


def read_lanes(gateway: str, directory: Path, ends: Mapping[str, Iterable[int]]) -> list[Copy]:
    """Every lane in a directory whose gateway is down, as `read_log`; `ends` by lane. What is damaged is read as far as it goes."""
    with closing(LogReader(directory)) as ordered:
        return [_read_lane(gateway, ordered, found, ends.get(found.lane, ())) for found in verify_lanes(directory)]


def _read_lane(gateway: str, ordered: LogReader, found: LaneVerified, ends: Iterable[int]) -> Copy:
    damage = [str(finding) for finding in found.damage] + ([found.refused] if found.refused else [])
    copy = Copy(gateway, 0, lane=found.lane, origin=found.own and not damage, damage=damage)
    lane = LaneName.parse(found.lane)
    assert lane is not None
    try:
        with closing(LaneReader(ordered, lane)) as reader:
            frontier, copy.start = reader.frontier(), reader.start
            _fill(copy, scan(reader, copy.start, frontier.offset, columns=COLUMNS), {*ends, frontier.offset}, BESIDE)
        pending = inspect(found.path, frontier.position + 1)
        copy.doubt = sum(frame.count for frame in pending if frame.fate == "pending")
    except TuttiError as error:
        copy.damage = damage or [str(error)]
    return copy


def _fill(log: Log, batches: Iterable[pa.RecordBatch], stops: set[int], before: str = "") -> None:
    """Take the records in; `before` stands before the name of the producer in what each says of itself."""
    rows: list[tuple[Any, ...]] = []
    begun = log.start
    for batch in batches:
        for row in zip(*(batch.column(name).to_pylist() for name in COLUMNS), strict=True):
            producer, use, place = parse_value(row[3] or b"")
            name = before + row[7]
            log.records.append(Record(row[0], name, row[8], use if producer == name else 0, place))
            rows.append(row)
            end = row[0] + 1
            if end % BLOCK == 0 or end in stops:
                log.blocks[begun, end] = digest_of(rows)
            if end % BLOCK == 0:
                rows, begun = [], end


def differing_digests(directories: dict[str, Path], logs: Iterable[Log]) -> list[str]:
    """C8, by the tool: the records that all hold have one digest on all."""
    low, high = max(log.start for log in logs), min(log.end for log in logs)
    if low >= high:
        return []
    told = {name: digest(path, low, high).sha256 for name, path in directories.items()}
    return [] if len(set(told.values())) == 1 else [f"C8: digests of records {low} to {high} differ: {told}"]
