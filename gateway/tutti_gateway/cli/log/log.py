"""`tutti log`: a data directory, looked at with its gateway up or down, and mended when a gateway halted over it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from tutti.errors import Damaged, DirectoryRefused
from tutti.reading.positions import time_text
from tutti_gateway.cli.common.options import json_option
from tutti_gateway.cli.common.output import bytes_text, counted, note, print_json, print_table, progress
from tutti_gateway.cli.log.rerun import rerun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tutti_gateway.log.tools.inspect import FrameInfo
    from tutti_gateway.log.tools.repair import Repair
    from tutti_gateway.log.tools.verify import Finding, LaneVerified, Verified

_COLUMNS = ("position", "offset", "kind", "fate", "view", "producer", "epoch", "sequence", "count", "topic", "size", "detail")


@click.group()
def log() -> None:
    """Look into a data directory or a recorded run, or repair."""


log.add_command(rerun)


@log.command()
@click.argument("directory")
@json_option
def verify(directory: str, as_json: bool) -> None:
    """Check every frame of DIRECTORY, and of the lanes in it.

    Its header, its place in the chain, its body, and what was derived from it: indexes and snapshots. Exit code 4 if anything is
    damaged. The directory of one lane (DIRECTORY/lanes/NAME) is checked alone.
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
            "in a group the gateway fetches it from another one while it runs; alone, bring the file back from a copy, or see "
            f"what is lost by tutti log repair {directory}"
            if lane is None
            else _advice(*lane, report.damage)
        )
        raise Damaged(f"{directory} is damaged in {_places(report.damage)}: {advice}")
    for one in lanes:
        if one.damage:
            raise Damaged(f"lane {one.lane} is damaged in {_places(one.damage)}: {_advice(one.path, one.own, one.damage)}")
    for one in lanes:
        if one.refused:
            raise DirectoryRefused(f"lane {one.lane} was not looked at: {one.refused}")


def _places(damage: Sequence[Finding]) -> str:
    return f"{counted(len(damage), 'place')}, first {_place(damage[0])}"


def _advice(path: str, own: bool, damage: Sequence[Finding]) -> str:
    """What to do about damage in a lane, which is not repaired as a log is: whoever else has it serves it, or gives it back."""
    from tutti.data.lane_name import NEW_LANE
    from tutti.log.files.lane_paths import SUSPECT

    if all(finding.derived for finding in damage):
        return "no record is lost; with the gateway down remove what is named, which reads do without"
    if not any(finding.position for finding in damage):
        if own:
            return f"restore it from a copy with the gateway down, or {NEW_LANE}"
        return "the next start sets it aside and learns it again from the other gateways"
    halted = f". Where that start tells that the lane takes nothing more, nothing mends it: {NEW_LANE}" if own else ""
    return (
        f"with the gateway down put an empty file {SUSPECT} into {path}: the next start looks at all of the lane at once, and what "
        f"is lost is fetched from another gateway that has it and written in place; without it that comes about in time{halted}"
    )


@log.command()
@click.argument("directory")
@click.option("--start", type=click.IntRange(min=1), default=1, show_default=True, help="First position.")
@click.option("--end", type=click.IntRange(min=1), help="Last position. [the last one there is]")
@json_option
def inspect(directory: str, start: int, end: int | None, as_json: bool) -> None:
    """List the frames of DIRECTORY, decided and pending. With --json one line of JSON a frame."""
    from tutti_gateway.log.tools.inspect import inspect as frames

    found = frames(directory, start, end)
    if as_json:
        for frame in found:
            print_json(_frame(frame))
        return
    rows = ([fields[name] for name in _COLUMNS] for fields in map(_row, found))
    print_table(_COLUMNS, rows, empty=f"no frames in {directory} from position {start} on")


@log.command()
@click.argument("directory")
@click.option("--start", type=click.IntRange(min=0), help="First offset. [the first one there is]")
@click.option("--end", type=click.IntRange(min=0), help="The offset to stop before. [the frontier]")
@json_option
def digest(directory: str, start: int | None, end: int | None, as_json: bool) -> None:
    """SHA-256 over the committed records of DIRECTORY.

    Of a canonical form that depends neither on batches nor on compression: equal on every gateway that holds the range.
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
            raise Damaged(f"{error}; the first {counted(done, 'record')} of the range can be read") from error
    if as_json:
        print_json(found._asdict())
    else:
        print(found.sha256)
        note(f"records [{found.start}, {found.end}) of {_log_named(found.log, found.lane)}")


@log.command()
@click.argument("directory")
@click.option(
    "--accept-loss-from",
    type=click.IntRange(min=0),
    metavar="OFFSET",
    help="Cut the log there: this record and all behind it are lost on this gateway.",
)
@json_option
def repair(directory: str, accept_loss_from: int | None, as_json: bool) -> int:
    """Show what a halted gateway named, and cut when told to.

    Without --accept-loss-from only what loses no record is mended: segment headers that follow from the rest, indexes, snapshots.
    What stood there before is kept aside. Exit code 4 if records cannot be served.
    """
    from tutti_gateway.log.tools.repair import repair as mend

    report = mend(directory, accept_loss_from)
    if as_json:
        print_json(_repaired(report))
    else:
        _print_repaired(directory, report)
    return 4 if report.offset >= 0 and not report.cut else 0


@log.command()
@click.argument("directory")
def moved(directory: str) -> None:
    """Say that DIRECTORY was moved here, whole, while its gateway was down.

    A copy of a member's directory may lack what the original promised since, so that a gateway which starts on one learns, without
    a vote. One of which nothing is left behind that may run lacks nothing: say so before the first start here. Never say it of a
    copy after whose making the gateway ran: what was acknowledged since may be lost.
    """
    from tutti.log.files.data_directory import moved as settle

    if settle(directory):
        note(f"{directory} is taken for the original from now on: let nothing run on the one that it was copied from")
    else:
        note(f"{directory} stands where it stood: nothing is to be done")


def _repaired(report: Repair) -> dict[str, object]:
    """For JSON."""
    return {
        "ok": report.cut or report.offset < 0,
        "damage": [finding._asdict() for finding in report.damage],
        "offset": report.offset if report.offset >= 0 else None,
        "lost": report.lost,
        "frames_behind": report.frames_behind,
        "cut": report.cut,
        "kept": report.kept or None,
        "others_vote": report.others_vote,
        "renewed": report.renewed or None,
    }


def _print_repaired(directory: str, report: Repair) -> None:
    for finding in report.damage:
        print(f"DAMAGE: {_place(finding)}: {finding.what}")
    if not report.damage:
        print("good: no damage")
        return
    if report.kept:
        print(f"what was taken away is kept in {report.kept}")
    if report.offset < 0:
        print("no record is lost: what was wrong is made again from the rest of the log")
    elif report.cut:
        print(f"cut: {_lost(report)} {_are(report.lost)} gone; the gateway can be started")
        if report.renewed:
            print(report.renewed)
    else:
        goes = "goes" if report.frames_behind == 1 else "go"
        print(f"{_lost(report)} cannot be served; {counted(report.frames_behind, 'frame')} behind the damage {goes} too")
        if report.others_vote:
            print(
                "its log names others that vote: where they run, start it, and it learns from them; where they are gone for good, "
                f"it cannot go on after a cut: save what can be read, tutti replay --path {directory} --end {report.offset}"
            )
        print(f"restore the file from a copy, or give them up: tutti log repair {directory} --accept-loss-from {report.offset}")


def _lost(report: Repair) -> str:
    return f"{counted(report.lost, 'committed record')} from offset {report.offset} on"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _verified(report: Verified, lanes: Sequence[LaneVerified] = ()) -> dict[str, object]:
    """For JSON."""
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
        print(f"lane {lane.lane}{', the own one' if lane.own else ''}")
        if lane.report is not None:
            _print_report(lane.report)
        else:
            for finding in lane.damage:
                print(f"DAMAGE: {_place(finding)}: {finding.what}")
        if lane.refused:
            print(f"not looked at: {lane.refused}")
    if not report.damage and not any(lane.damage or lane.refused for lane in lanes):
        print("good: no damage")


def _log_named(log: str, lane: str) -> str:
    """A log as it is told to people; that of a lane by the lane, and the ordered one beside which it stands."""
    named = f"log {log or 'not begun'}"
    return f"lane {lane} of {named}" if lane else named


def _print_report(report: Verified) -> None:
    held = counted(report.segments, "segment"), counted(report.frames, "frame"), counted(report.records, "committed record")
    print(", ".join([*held, bytes_text(report.bytes)]))
    print(f"decided up to position {report.frontier.position}, offset {report.frontier.offset}; written up to {report.end}")
    for finding in report.notes:
        print(f"note: {_place(finding)}: {finding.what}")
    for finding in report.damage:
        print(f"DAMAGE: {_place(finding)}: {finding.what}")


def _place(finding: Finding) -> str:
    offset = f", offset {finding.offset}" if finding.offset >= 0 else ""
    return f"position {finding.position}{offset}, {finding.file} byte {finding.byte}"


def _frame(frame: FrameInfo) -> dict[str, object]:
    """For JSON: times as text, the body of what is no batch as an object."""
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
