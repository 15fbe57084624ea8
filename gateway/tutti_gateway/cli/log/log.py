"""`tutti log`: verifies, inspects and hashes the log in a data directory, and repairs the log of a halted gateway."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from tutti.errors import Damaged, DirectoryRefused
from tutti.reading.range_bounds import time_text
from tutti_gateway.cli.common.names import complete_directory
from tutti_gateway.cli.common.options import json_option
from tutti_gateway.cli.common.output import bytes_text, count_text, note, print_json, print_table, progress
from tutti_gateway.cli.log.rerun import rerun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tutti_gateway.log.tools.inspect import FrameInfo
    from tutti_gateway.log.tools.repair import Repair
    from tutti_gateway.log.tools.verify import Finding, LaneVerified, Verified

_COLUMNS = ("position", "offset", "kind", "fate", "view", "producer", "epoch", "sequence", "count", "topic", "size", "detail")


@click.group()
def log() -> None:
    """Verify, inspect, hash or repair a log, or rerun a recording."""


log.add_command(rerun)


@log.command()
@click.argument("directory", shell_complete=complete_directory)
@json_option
def verify(directory: str, as_json: bool) -> None:
    """Check every frame of a log and of its lanes.

    DIRECTORY is the data directory of a gateway. The command checks the header and the body of each frame, the chain of header
    checksums, and the indexes and snapshots. The exit code is 4 if anything is corrupt. To check one lane alone, give the directory
    of the lane, DIRECTORY/lanes/NAME.
    """
    from tutti_gateway.log.tools.verify import lane_of, verify_lanes
    from tutti_gateway.log.tools.verify import verify as check

    with progress("verify", None, unit="bytes") as meter:
        report = check(directory, meter.reach)
        lanes = verify_lanes(directory, meter.reach)
    if as_json:
        print_json(_verified(report, lanes))
    else:
        _print_verified(report, lanes)
    if report.damage:
        lane = lane_of(directory)
        advice = (
            "in a group, the running gateway fetches it from another gateway; otherwise restore the file from a copy, or list "
            f"the loss with tutti log repair {directory}"
            if lane is None
            else _advice(*lane, report.damage)
        )
        raise Damaged(f"{directory} is corrupt in {_locations_text(report.damage)}: {advice}")
    for one in lanes:
        if one.damage:
            raise Damaged(f"lane {one.lane} is corrupt in {_locations_text(one.damage)}: {_advice(one.path, one.own, one.damage)}")
    for one in lanes:
        if one.refused:
            raise DirectoryRefused(f"lane {one.lane} was not checked: {one.refused}")


def _locations_text(damage: Sequence[Finding]) -> str:
    return f"{count_text(len(damage), 'place')}, first {_location(damage[0])}"


def _advice(path: str, own: bool, damage: Sequence[Finding]) -> str:
    """Return the remedy for corruption in the lane at `path`. `own` is True if this gateway began the lane."""
    from tutti.data.lane_name import NEW_LANE_REMEDY
    from tutti.log.files.lane_paths import SUSPECT

    if all(finding.derived for finding in damage):
        return "no record is lost; stop the gateway and remove the named files, which reads do not need"
    if not any(finding.position for finding in damage):
        if own:
            return f"stop the gateway and restore the lane from a copy, or {NEW_LANE_REMEDY}"
        return "the next start quarantines the lane and copies it again from the other gateways"
    halted = (
        f". If that start reports that the lane takes no more records, the lane cannot be repaired: {NEW_LANE_REMEDY}"
        if own
        else ""
    )
    return (
        f"stop the gateway and create an empty file {SUSPECT} in {path}: the next start checks the whole lane at once, and fetches "
        f"lost records from another gateway that has them; without the file, the repair happens later in the background{halted}"
    )


@log.command()
@click.argument("directory", shell_complete=complete_directory)
@click.option("--start", type=click.IntRange(min=1), default=1, show_default=True, help="First position.")
@click.option("--end", type=click.IntRange(min=1), help="Last position. [default: the last one in the log]")
@json_option
def inspect(directory: str, start: int, end: int | None, as_json: bool) -> None:
    """List the decided and the undecided frames of a log.

    DIRECTORY is the data directory of a gateway. With --json, the command prints one line of JSON for each frame.
    """
    from tutti_gateway.log.tools.inspect import inspect as frames

    found = frames(directory, start, end)
    if as_json:
        for frame in found:
            print_json(_frame(frame))
        return
    rows = ([fields[name] for name in _COLUMNS] for fields in map(_row, found))
    print_table(_COLUMNS, rows, empty=f"no frames in {directory} from position {start} on")


@log.command()
@click.argument("directory", shell_complete=complete_directory)
@click.option("--start", type=click.IntRange(min=0), help="First offset. [default: the first one in the log]")
@click.option("--end", type=click.IntRange(min=0), help="Offset after the last record. [default: the frontier]")
@json_option
def digest(directory: str, start: int | None, end: int | None, as_json: bool) -> None:
    """Print a SHA-256 over the committed records of a log.

    DIRECTORY is the data directory of a gateway. The hash covers the records themselves, independent of batching and compression.
    The hash is equal on every gateway that holds the range.
    """
    from tutti_gateway.log.tools.digest import digest as digest_of

    done = 0

    def reach(records: int, total: int) -> None:
        nonlocal done
        done = records
        meter.reach(records, total)

    with progress("digest", None) as meter:
        try:
            found = digest_of(directory, start, end, reach)
        except Damaged as error:
            raise Damaged(f"{error}; the first {count_text(done, 'record')} of the range are readable") from error
    if as_json:
        print_json(found._asdict())
    else:
        print(found.sha256)
        note(f"records [{found.start}, {found.end}) of {_log_named(found.log, found.lane)}")


@log.command()
@click.argument("directory", shell_complete=complete_directory)
@click.option(
    "--accept-loss-from",
    type=click.IntRange(min=0),
    metavar="OFFSET",
    help="Truncate the log at OFFSET: this gateway loses the record at OFFSET and all later records.",
)
@json_option
def repair(directory: str, accept_loss_from: int | None, as_json: bool) -> int:
    """Show, and truncate on request, a halted gateway's corrupt log.

    DIRECTORY is the data directory of the gateway. Without --accept-loss-from, the command repairs only what it can rebuild from
    the rest of the log without losing a record: segment headers, indexes and snapshots. The command keeps a copy of all data that
    it replaces. The exit code is 4 if records cannot be served.
    """
    from tutti_gateway.log.tools.repair import repair as repair_log

    report = repair_log(directory, accept_loss_from)
    if as_json:
        print_json(_repaired(report))
    else:
        _print_repaired(directory, report)
    return 4 if report.offset >= 0 and not report.truncated else 0


@log.command()
@click.argument("directory", shell_complete=complete_directory)
def moved(directory: str) -> None:
    """Confirm that a stopped gateway's DIRECTORY was moved completely.

    A copied directory may be older than the original, and then lacks promises that the gateway made in the protocol. Therefore a
    gateway that starts on a copy has no vote. A moved directory is complete, so confirm the move before the first start. Never
    confirm a copy if the gateway ran after the copy was made, because acknowledged records may be lost.
    """
    from tutti.log.files.data_directory import declare_moved as confirm_move

    if confirm_move(directory):
        note(f"{directory} now counts as the original: never start a gateway on the directory that it was copied from")
    else:
        note(f"{directory} was not moved: there is nothing to do")


def _repaired(report: Repair) -> dict[str, object]:
    """Return the repair report as JSON fields, whose names are stable."""
    return {
        "ok": report.truncated or report.offset < 0,
        "damage": [finding._asdict() for finding in report.damage],
        "offset": report.offset if report.offset >= 0 else None,
        "lost": report.lost,
        "frames_behind": report.frames_after,
        "cut": report.truncated,
        "kept": report.kept_in or None,
        "others_vote": report.others_vote,
        "renewed": report.renewed or None,
    }


def _print_repaired(directory: str, report: Repair) -> None:
    for finding in report.damage:
        print(f"CORRUPT: {_location(finding)}: {finding.what}")
    if not report.damage:
        print("good: no corruption")
        return
    if report.kept_in:
        print(f"the removed data is kept in {report.kept_in}")
    if report.offset < 0:
        print("no record is lost: the corrupt parts are rebuilt from the rest of the log")
    elif report.truncated:
        print(f"truncated: {_lost(report)} {_are(report.lost)} lost; the gateway can be started")
        if report.renewed:
            print(report.renewed)
    else:
        print(f"{_lost(report)} cannot be served, nor can {count_text(report.frames_after, 'frame')} after the corruption")
        if report.others_vote:
            print(
                "the log names other voters: if they run, start this gateway, and it copies the records; "
                "if they are lost for good, it cannot continue after a truncation: "
                f"save the readable records with tutti replay --path {directory} --end {report.offset}"
            )
        print(f"restore the file from a copy, or accept the loss: tutti log repair {directory} --accept-loss-from {report.offset}")


def _lost(report: Repair) -> str:
    return f"{count_text(report.lost, 'committed record')} from offset {report.offset}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _verified(report: Verified, lanes: Sequence[LaneVerified] = ()) -> dict[str, object]:
    """Return the verification report of a log and its lanes as JSON fields."""
    return {
        **_report(report),
        "ok": not report.damage and not any(lane.damage or lane.refused for lane in lanes),
        "lanes": [_lane(lane) for lane in lanes],
    }


def _lane(lane: LaneVerified) -> dict[str, object]:
    return {
        "lane": lane.lane,
        "own": lane.own,
        **({} if lane.report is None else _report(lane.report)),
        "ok": not lane.damage and not lane.refused,
        "damage": [finding._asdict() for finding in lane.damage],
        "refused": lane.refused or None,
    }


def _report(report: Verified) -> dict[str, object]:
    frontier = report.frontier
    return {
        "ok": not report.damage,
        "log": report.log,
        "lane": report.lane,
        "gateway": report.gateway,
        "frontier": {"position": frontier.position, "offset": frontier.offset, "live": frontier.live},
        "durable": report.durable,
        "end": report.end,
        "segments": report.segments,
        "frames": report.frames,
        "records": report.records,
        "bytes": report.bytes,
        "damage": [finding._asdict() for finding in report.damage],
        "notes": [finding._asdict() for finding in report.notes],
    }


def _print_verified(report: Verified, lanes: Sequence[LaneVerified] = ()) -> None:
    state = "running" if report.frontier.live else "not running"
    print(f"{_log_named(report.log, report.lane)} of gateway {report.gateway}, which is {state}")
    _print_report(report)
    for lane in lanes:
        print(f"lane {lane.lane}{', owned by this gateway' if lane.own else ''}")
        if lane.report is not None:
            _print_report(lane.report)
        else:
            for finding in lane.damage:
                print(f"CORRUPT: {_location(finding)}: {finding.what}")
        if lane.refused:
            print(f"not checked: {lane.refused}")
    if not report.damage and not any(lane.damage or lane.refused for lane in lanes):
        print("good: no corruption")


def _log_named(log: str, lane: str) -> str:
    """Return a text with the uuid of a log, or with the name of a lane and the uuid of the group's ordered log."""
    named = f"log {log or 'not started'}"
    return f"lane {lane} of {named}" if lane else named


def _print_report(report: Verified) -> None:
    counts = (
        count_text(report.segments, "segment"),
        count_text(report.frames, "frame"),
        count_text(report.records, "committed record"),
    )
    print(", ".join([*counts, bytes_text(report.bytes)]))
    print(f"decided up to position {report.frontier.position}, offset {report.frontier.offset}; written up to {report.end}")
    for finding in report.notes:
        print(f"note: {_location(finding)}: {finding.what}")
    for finding in report.damage:
        print(f"CORRUPT: {_location(finding)}: {finding.what}")


def _location(finding: Finding) -> str:
    offset = f", offset {finding.offset}" if finding.offset >= 0 else ""
    return f"position {finding.position}{offset}, {finding.file} byte {finding.byte}"


def _frame(frame: FrameInfo) -> dict[str, object]:
    """Return a frame as JSON fields, with times as text, and with the content of a control frame as an object (`detail`)."""
    import orjson

    from tutti.reading.json_lines import bytes_field

    fields: dict[str, object] = dict(asdict(frame))
    fields["min_timestamp"] = time_text(frame.min_timestamp) if frame.count else None
    fields["max_timestamp"] = time_text(frame.max_timestamp) if frame.count else None
    name, value = bytes_field("progress", frame.progress)
    fields = {name if key == "progress" else key: value if key == "progress" else field for key, field in fields.items()}
    fields["detail"] = orjson.loads(frame.detail) if frame.detail else None
    return fields


def _row(frame: FrameInfo) -> dict[str, object]:
    fields: dict[str, object] = dict(asdict(frame))
    return fields | {
        "sequence": frame.first_sequence,
        "offset": frame.offset if frame.offset >= 0 else None,
        "detail": frame.detail or None,
    }
