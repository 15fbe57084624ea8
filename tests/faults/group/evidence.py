"""What each gateway's directory holds, read as anybody would: by the client's files and the tools of the log."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gateway.client.files import Files
from gateway.log.tools import digest, verify
from tests.faults.group.checker import Log, Record
from tests.faults.group.journal import BLOCK, COLUMNS, digest_of, parse_value


def read_log(gateway: str, directory: Path, ends: Iterable[int] = ()) -> Log:
    """The committed records of a directory whose gateway is down, with the sums of each block.

    Args:
        gateway: its name, for findings.
        directory: its data.
        ends: where readers stopped within a block; these parts are summed up too.
    """
    with Files(str(directory)) as files:
        frontier = files.frontier()
        log = Log(gateway, frontier.start)
        rows: list[tuple[Any, ...]] = []
        stops = set(ends) | {frontier.offset}
        begun = frontier.start
        for batch in files.scan(frontier.start, frontier.offset, columns=COLUMNS):
            for row in zip(*(batch.column(name).to_pylist() for name in COLUMNS), strict=True):
                producer, use, place = parse_value(row[3] or b"")
                log.records.append(Record(row[0], row[7], row[8], use if producer == row[7] else 0, place))
                rows.append(row)
                end = row[0] + 1
                if end % BLOCK == 0 or end in stops:
                    log.blocks[begun, end] = digest_of(rows)
                if end % BLOCK == 0:
                    rows, begun = [], end
    log.damage = [str(finding) for finding in verify(directory).damage]
    return log


def differing_digests(directories: dict[str, Path], logs: Iterable[Log]) -> list[str]:
    """C8, by the tool: the records that all hold have one digest on all."""
    low, high = max(log.start for log in logs), min(log.end for log in logs)
    if low >= high:
        return []
    told = {name: digest(path, low, high).sha256 for name, path in directories.items()}
    return [] if len(set(told.values())) == 1 else [f"C8: digests of records {low} to {high} differ: {told}"]
