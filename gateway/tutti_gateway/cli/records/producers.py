"""`tutti producers`: who has sent, how far it is, and ending or forgetting it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from tutti.common.address import Address, parse_url
from tutti.errors import TuttiError, Unavailable
from tutti.reading.positions import time_text
from tutti_gateway.cli.common.options import group_url_option, json_option, needed_url, url_option
from tutti_gateway.cli.common.output import note, print_json, print_table

ANSWER_S_MAX = 4.0  # of the gateways that are asked to confirm their frontier: 2 s each

#: As the table calls them, and as they are called in JSON.
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
    """List, fence or forget producers.

    Without a command they are listed.
    """
    if context.invoked_subcommand is None:
        context.invoke(list_producers, url=needed_url(context, url), as_json=as_json)


@producers.command("list")
@url_option
@json_option
def list_producers(url: str, as_json: bool) -> None:
    """Producers with epoch, sequence, progress and when they were last seen.

    \b
    name       a ~ in front: it was given at random, and is forgotten when idle for an hour
    epoch      one more each time that the producer is started, and after each abort
    sequence   how many records it has committed, over all epochs
    progress   what it committed with the last of them: how far its source is read (progress_base64 if it is no text)
    aborted    yes: an abort ended the epoch, and no other has begun yet (in JSON: closed)
    last_seen  the log's last tick before it sent last, UTC: it sent then or later; a log without new records has no ticks

    Only the ordered log is counted: of a producer that sent nothing but unordered records the name and the epoch are known.
    A warning says where the gateway could not confirm with a majority that nothing is missing.
    """
    from tutti.io.admin import Control

    addresses, doubt = _confirmed(url)
    with Control(addresses) as control:
        found = [_producer(producer) for producer in control.producers()]
        if not found and not control.welcome().log:
            from tutti.sources.source import NOT_FOUNDED

            raise Unavailable(f"no log has begun at {control.address}: {NOT_FOUNDED}")
        state = control.welcome().state
        if not doubt and control.address != addresses[0]:
            doubt = f"{addresses[0]} confirmed its frontier, and another gateway answered"
        if doubt or state != "primary":
            why = f" ({doubt})" if doubt else ""
            note(f"{control.address} is {state}{why}: this is what it knew last, and others may know more")
    if as_json:
        print_json(found)
    else:
        print_table(
            list(_COLUMNS), [[_cell(producer, name) for name in _COLUMNS.values()] for producer in found], empty="no producers"
        )


def _confirmed(url: str) -> tuple[tuple[Address, ...], str]:
    """The gateways to ask, first one that confirmed its frontier with a majority just now; and why that is in doubt, if it is."""
    from tutti.sources.flight import Reads

    with Reads(url, timeout=ANSWER_S_MAX) as reads:
        try:
            stale = reads.frontier(patience=0.0).stale
        except TuttiError as error:
            return tuple(parse_url(url)), f"it is not known whether it lags: {error}"
        return reads.addresses, "it cannot confirm its frontier with a majority" if stale else ""


def _cell(producer: Mapping[str, object], name: str) -> object:
    return producer.get(name, producer.get(f"{name}_base64"))


def _producer(producer: Mapping[str, Any]) -> dict[str, object]:
    """The time as text; none before the first tick."""
    fields = dict(producer)
    seen_us = fields.pop("last_seen_us")
    return fields | {"last_seen": time_text(seen_us) if seen_us else None}


@producers.command()
@click.argument("name")
@url_option
def fence(name: str, url: str) -> None:
    """End the current epoch of the producer NAME: whoever sends under it now gets an error."""
    from tutti.io.admin import Control

    with Control(url) as control:
        control.fence(name)
    note(f"producer {name} is fenced")


@producers.command()
@click.argument("names", nargs=-1, required=True)
@url_option
def forget(names: tuple[str, ...], url: str) -> None:
    """Forget producers: what they sent before is no longer known as theirs, and a late copy is refused."""
    from tutti.io.admin import Control

    with Control(url) as control:
        control.forget(list(names))
    note(f"forgotten: {', '.join(names)}")
