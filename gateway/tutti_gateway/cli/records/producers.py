"""`tutti producers`: lists producers, fences one, or deletes producer state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from tutti.common.gateway_url import Address, parse_url
from tutti.errors import TuttiError, Unavailable
from tutti.reading.range_bounds import time_text
from tutti_gateway.cli.common.gateways import await_gateway, change_client
from tutti_gateway.cli.common.names import complete_producer
from tutti_gateway.cli.common.options import group_url_option, json_option, resolve_url, url_option
from tutti_gateway.cli.common.output import note, print_json, print_table

ANSWER_S_MAX = 4.0  # time limit for confirming the frontier, which is enough to try two gateways

#: Maps each column of the table to the JSON field that the column shows.
_COLUMNS = {
    "name": "name",
    "epoch": "epoch",
    "sequence": "sequence",
    "progress": "progress",
    "aborted": "closed",
    "last_seen": "last_seen",
}


@click.group(invoke_without_command=True)
@group_url_option
@json_option
@click.pass_context
def producers(context: click.Context, url: str | None, as_json: bool) -> None:
    """List producers, fence one, or delete the state of producers.

    Without a subcommand, list them.
    """
    if context.invoked_subcommand is None:
        context.invoke(list_producers, url=resolve_url(context, url), as_json=as_json)


@producers.command("list")
@url_option
@json_option
def list_producers(url: str, as_json: bool) -> None:
    """List producers with epoch, sequence, progress and last seen.

    \b
    name       a leading ~ marks a random name; the group deletes its state after an idle hour
    epoch      increases at each start of the producer, and after each abort
    sequence   number of committed records, over all epochs
    progress   progress committed with the last record: the position in its source (progress_base64 if it is not text)
    aborted    yes: an abort ended the epoch, and no new epoch has started (in JSON: closed)
    last_seen  tick before the last record, UTC: the producer sent at this time or later; a log without new records has no ticks

    The list covers the ordered log only: for a producer of unordered records, it shows only the name and the epoch. The command
    warns if the gateway cannot confirm with a majority that the list is complete.
    """
    from tutti.io.admin import AdminClient

    await_gateway(url)
    addresses, warning = _confirmed(url)
    with AdminClient(addresses) as control:
        found = [_producer(producer) for producer in control.producers()]
        if not found and not control.welcome().log:
            from tutti.sources.source import NOT_FOUNDED

            raise Unavailable(f"no log has begun at {control.address}: {NOT_FOUNDED}")
        state = control.welcome().state
        if not warning and control.address != addresses[0]:
            warning = f"{addresses[0]} confirmed its frontier, but another gateway answered"
        if warning or state != "primary":
            reason = f" ({warning})" if warning else ""
            note(f"{control.address} is {state}{reason}: the list may be out of date; other gateways may have newer data")
    if as_json:
        print_json(found)
    else:
        print_table(
            list(_COLUMNS), [[_cell(producer, name) for name in _COLUMNS.values()] for producer in found], empty="no producers"
        )


def _confirmed(url: str) -> tuple[tuple[Address, ...], str]:
    """Return the gateways to ask, in order, and a warning, or "" as the warning if the first gateway has confirmed its frontier."""
    from tutti.sources.flight import FlightSource

    with FlightSource(url, timeout=ANSWER_S_MAX) as reads:
        try:
            stale = reads.frontier(patience=0.0).stale
        except TuttiError as error:
            return tuple(parse_url(url)), f"it is unknown whether the gateway lags: {error}"
        return reads.addresses, "it cannot confirm its frontier with a majority" if stale else ""


def _cell(producer: Mapping[str, object], name: str) -> object:
    return producer.get(name, producer.get(f"{name}_base64"))


def _producer(producer: Mapping[str, Any]) -> dict[str, object]:
    """Return the fields of a producer, with `last_seen` as text, or None if the log has no tick yet."""
    fields = dict(producer)
    seen_us = fields.pop("last_seen_us")
    return fields | {"last_seen": time_text(seen_us) if seen_us else None}


@producers.command()
@click.argument("name", shell_complete=complete_producer)
@url_option
def fence(name: str, url: str) -> None:
    """End the current epoch of the producer NAME.

    A running process of the producer can then no longer send.
    """
    with change_client(url) as (control, _):
        control.fence(name)
    note(f"producer {name} is fenced")


@producers.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete_producer)
@url_option
def forget(names: tuple[str, ...], url: str) -> None:
    """Delete the state of producers, so that `resume()` returns nothing.

    The committed records of the producers stay in the log. The group rejects late copies of their batches.
    """
    with change_client(url) as (control, _):
        control.forget(list(names))
    note(f"deleted the state of: {', '.join(names)}")
