"""`tutti status` and `tutti offsets`: show the state of a gateway, and the offset at a time."""

from __future__ import annotations

from datetime import datetime

import click
import msgspec

from tutti.errors import TuttiError
from tutti_gateway.cli.common.gateways import await_gateway
from tutti_gateway.cli.common.options import TIME, NumberRange, json_option, url_option
from tutti_gateway.cli.common.output import on_terminal, print_fields, print_json


@click.command()
@url_option
@click.option("--watch", "watched", is_flag=True, help="Show all gateways until Ctrl-C; with --json, one line for each change.")
@click.option(
    "--interval",
    "interval_s",
    type=NumberRange(min=0.1, max=3600),
    default=1.0,
    show_default=True,
    help="Seconds between two polls of --watch.",
)
@json_option
def status(url: str, watched: bool, interval_s: float, as_json: bool) -> None:
    """Show the state, view, frontier and lag of a gateway.

    The command shows the status of the first gateway in URL that answers: its name, process id, group, log, state (primary,
    minority, joining, leaving or halted), view, frontier, start and lag, and the Spark queries that report to this gateway.
    (`tutti queries` asks all gateways.)

    With --watch, the command shows a table of all gateways of the group. In this table, frontier is the next offset, and lag is the
    number of decided positions that the gateway lacks. For a gateway that does not answer now, heard is the time since its last
    answer. If a gateway has a problem, the column reason describes the problem.

    If standard output is not a terminal, the status is one line of JSON even without --json. With --watch, the command then writes
    one line for each change of a gateway, with tabs between the fields.
    """
    if watched:
        from tutti_gateway.cli.group.watch import watch

        watch(url, interval_s, as_json)
        return
    from tutti.io.admin import AdminClient

    await_gateway(url)
    with AdminClient(url) as control:
        report = control.status()
    report["queries"] = _queries(report["url"])
    if as_json or not on_terminal():
        print_json(report)
    else:
        print_fields(report)


def _queries(url: str) -> list[dict[str, object]] | None:
    """Return the Spark queries that report to the gateway at `url`, or None if the gateway's reads port does not answer."""
    from tutti_gateway.cli.group.queries import queries_at

    try:
        return [msgspec.structs.asdict(query) for query in queries_at(url)]
    except TuttiError:
        return None


@click.command()
@url_option
@click.option("--time", type=TIME, required=True, help="Time in ISO 8601 with a time zone.")
@json_option
def offsets(url: str, time: datetime, as_json: bool) -> None:
    """Show the offset of the first record at or after a time.

    If the log has no such record yet, show the frontier.
    """
    from tutti.sources.flight import FlightSource
    from tutti.sources.source import wait_for_log

    await_gateway(url)
    with FlightSource(url) as reads:
        wait_for_log(reads)
        offset = reads.offset_for_time(time)
    if as_json:
        print_json({"time": time.isoformat(), "offset": offset})
    else:
        print(offset)
