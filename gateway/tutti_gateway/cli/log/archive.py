"""`tutti archive`: copies the log to an archive of Parquet files, and lists and verifies archives."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import click

from tutti.reading.range_bounds import time_text
from tutti_gateway.cli.common.names import complete_directory
from tutti_gateway.cli.common.options import json_option
from tutti_gateway.cli.common.output import count_text, note, print_json, print_table, progress

if TYPE_CHECKING:  # the commands import these when they run, so that `tutti --help` stays fast
    from tutti.archive.archiver import Archiver, Settings
    from tutti.archive.catalog import Archive

_NICE = 10
_COLUMNS = ("first", "end", "records", "ticks", "files", "bytes", "topics")


@click.group()
def archive() -> None:
    """Copy the log to Parquet files, or list or verify an archive."""


@archive.command()
@click.option(
    "--config",
    "path",
    required=True,
    metavar="FILE",
    help="The archiver's TOML file; `tutti config init --kind archive` writes one.",
)
@click.option("--once", is_flag=True, help="Archive the ranges that are closed now, and end.")
@json_option
def run(path: str, once: bool, as_json: bool) -> int:
    """Archive each range of the log as soon as the range is closed.

    Each archived range has a manifest, so a restarted archiver continues after the last archived range. After each range, the
    archiver commits the offset of its named reader (key `name`). If [retention] keep_for lists this reader, gateways delete only
    archived records. When the archiver is ready, it prints one line of JSON to standard output; logs go to standard error. After
    SIGTERM or Ctrl-C, the archiver finishes the current range and ends.
    """
    from tutti.archive.archiver import Archiver, Settings
    from tutti.archive.catalog import Archive
    from tutti.archive.config import load_archiving
    from tutti.archive.metrics import Metrics
    from tutti.runtime.worker_command import run as run_worker
    from tutti.sources.archiver_input import GatewayLog

    config = load_archiving(path)
    if config.priority == "idle":
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # os.nice() alone would let the archiver delay commits
    else:
        os.nice(_NICE)
    log = GatewayLog(config.gateways)
    archived = Archive(config.archive, log.frontier().log, make=True)
    settings = Settings(config.name, config.ranges.ticks, config.ranges.bytes, config.lost == "skip")
    archiver = Archiver(log, archived, settings)
    if not once:
        ready_fields = {"name": config.name, "archive": archived.where, "log": archived.log, "offset": archived.end}
        return run_worker(archiver, ready_fields, config.metrics, Metrics(archiver), insecure=config.insecure, file=path)
    began = time.monotonic()
    archiver.run_once()
    seconds = round(time.monotonic() - began, 3)
    if as_json:
        added = {"ranges": archiver.ranges, "records": archiver.records, "bytes": archiver.bytes, "seconds": seconds}
        print_json(
            {
                "archive": archived.where,
                "log": archived.log,
                "first": archived.first,
                "end": archived.end,
                "frontier": archiver.frontier,
                **added,
            }
        )
    else:
        note(once_text(archiver, archived, settings, path))
    return 0


def once_text(archiver: Archiver, archived: Archive, settings: Settings, path: str) -> str:
    """Return the result of a run with --once: the new records, the range of the archive, and the records that it lacks."""
    from tutti.toml.units import SIZE_UNITS, quantity_text

    where, first, end = archived.where, archived.first, archived.end
    if archiver.records:
        result = f"{count_text(archiver.records, 'record')} added to {where}, which now has [{first}, {end})"
    elif archived.spans:
        newest = time_text(archived.manifest(archived.spans[-1]).time_max)
        result = f"nothing new since offset {end} (newest archived record: {newest}): {where} has [{first}, {end})"
    else:
        result = f"nothing archived yet: {where} has no records"
    if archiver.frontier <= end:
        return f"{result}, up to the end of the log" if end else f"{result}, because the log has none"
    size = quantity_text(settings.bytes, SIZE_UNITS)
    return (
        f"{result}; an open range of the log has {count_text(archiver.frontier - end, 'more record')}: a range ends at each tick "
        f"that is a multiple of {settings.ticks}, or at {size} (ticks and bytes in [ranges] of {path})"
    )


@archive.command("list")
@click.argument("archive", shell_complete=complete_directory)
@json_option
def list_ranges(archive: str, as_json: bool) -> None:
    """List the ranges of an archive.

    ARCHIVE is a directory or a URL. The list has the records, ticks, files, bytes and topics of each range.
    """
    from tutti.archive.catalog import Archive

    archived = Archive(archive)
    lines = []
    for span in archived.spans:
        manifest = archived.manifest(span)
        names = ",".join(sorted({name for file in manifest.files for name in file.topics}))
        ticks = f"{manifest.tick_first}-{manifest.tick_last}"
        lines.append([span.first, span.end, span.end - span.first, ticks, len(manifest.files), manifest.bytes, names])
    if as_json:
        ranges = [dict(zip(_COLUMNS, line, strict=True)) for line in lines]
        print_json({"archive": archived.where, "log": archived.log, "first": archived.first, "end": archived.end, "ranges": ranges})
        return
    print_table(_COLUMNS, lines, empty="no range yet")
    note(f"{archived.where}: log {archived.log}, [{archived.first}, {archived.end}) without a gap")


@archive.command()
@click.argument("archive", shell_complete=complete_directory)
@click.option(
    "--remove-orphans",
    is_flag=True,
    help="Remove each file that belongs to no range, if it is over a day old and a range holds its records.",
)
@json_option
def verify(archive: str, remove_orphans: bool, as_json: bool) -> int:
    """Read and check a whole archive.

    The command checks the SHA-256 of each file, each record, the digest of each range, and that no range is missing. The exit code
    is 4 if anything is corrupt or missing. A killed archiver may leave files that belong to no range, which are harmless. The
    command keeps such a file if no range holds its records, because it may be their only copy.
    """
    from tutti.archive.catalog import Archive
    from tutti.archive.verify import verify as check

    archived = Archive(archive)
    with progress("verify", sum(span.end - span.first for span in archived.spans)) as meter:
        found = check(archived, meter.advance)
    if remove_orphans:
        for path in found.orphans:
            archived.store.remove(path)
    if as_json:
        print_json(
            {
                "archive": archived.where,
                "log": archived.log,
                "first": archived.first,
                "end": archived.end,
                "ok": found.good,
                **found._asdict(),
            }
        )
        return 0 if found.good else 4
    for problem in found.wrong:
        print(problem)
    for first, end in found.holes:
        print(f"records {first} to {end - 1} are missing in {archived.where}: no range has them")
    if found.orphans:
        done = "removed" if remove_orphans else "--remove-orphans removes them"
        print(f"{count_text(len(found.orphans), 'file')} in no range: {done}")
    state = "good" if found.good else "corrupt"
    records, files = count_text(found.records, "record"), count_text(found.files, "file")
    print(
        f"{archived.where}: {state}: {records} of [{archived.first}, {archived.end}) in {files}, {found.bytes} bytes, were checked"
    )
    return 0 if found.good else 4
