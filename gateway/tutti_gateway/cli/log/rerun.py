"""`tutti log rerun`: feeds a recording of `tutti serve --record` to the protocol again, and compares the actions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tutti.reading.range_bounds import time_text
from tutti_gateway.cli.common.options import json_option
from tutti_gateway.cli.common.output import count_text, note, print_json, progress

if TYPE_CHECKING:
    from tutti_gateway.node.replay.rerun import Difference, ReplayResult


@click.command()
@click.argument("file")
@json_option
def rerun(file: str, as_json: bool) -> int:
    """Run the protocol again with recorded events; compare its actions.

    FILE is a recording of `tutti serve --record`. The command feeds each recorded event to a new protocol instance, whose actions
    must equal the recorded actions. At the first difference, the command shows both versions and ends with exit code 1. If a kill
    truncated the recording, the command uses all complete events.
    """
    from tutti_gateway.node.replay.rerun import replay_run as run_again
    from tutti_gateway.node.status.status import release

    with progress("rerun", None, unit="bytes") as meter:
        found = run_again(file, meter.reach)
    this_release = release()
    if as_json:
        print_json(_fields(found, this_release))
    else:
        _print(found, this_release)
    return 1 if found.difference else 0


def _fields(found: ReplayResult, this_release: str) -> dict[str, object]:
    """Return the result as JSON fields, whose names are stable."""
    difference = found.difference
    return {
        "identical": difference is None,
        "events": found.events,
        "gateway": found.header.gateway,
        "release": found.header.release,
        "release_here": this_release,
        "started": time_text(found.header.started_us),
        "first": time_text(found.first_us) if found.first_us else None,
        "last": time_text(found.last_us) if found.last_us else None,
        "torn": found.torn,
        "closed": found.closed or None,
        "raised": found.raised or None,
        "difference": None if difference is None else _difference(difference),
    }


def _difference(difference: Difference) -> dict[str, object]:
    return {
        "event": difference.number,
        "time": time_text(difference.wall_us),
        "happened": difference.event,
        "recorded": list(difference.recorded),
        "again": list(difference.again),
    }


def _print(found: ReplayResult, this_release: str) -> None:
    header = found.header
    note(f"gateway {header.gateway}, release {header.release}, from {time_text(header.started_us)}")
    if header.release != this_release:
        note(f"this is release {this_release}: different answers may be intended")
    difference = found.difference
    if difference is not None:
        print(f"DIFFERENCE at event {difference.number}, {time_text(difference.wall_us)}: {difference.event}")
        _print_both(difference)
        return
    print(f"{count_text(found.events, 'event')}, identical")
    if found.raised:
        print(f"the protocol stack ended, in both runs: {found.raised}")
    if found.torn:
        last = f"; its last event is at {time_text(found.last_us)}" if found.events else ""
        print(f"the recording is truncated, as after a kill{last}")
    else:
        print(f"the recording ends because {found.closed}")


def _print_both(difference: Difference) -> None:
    """Print both answers as a diff: `-` recorded, `+` now."""
    from difflib import ndiff

    for line in ndiff(difference.recorded, difference.again):
        if not line.startswith("?"):
            print(f"  {line}")
