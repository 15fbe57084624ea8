"""`tutti status`, `tutti topics`, `tutti offsets`: what a gateway says of itself and of what it holds."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click
import msgspec

from tutti.errors import TuttiError
from tutti.reading.positions import time_text
from tutti_gateway.cli.common.options import TIME, NumberRange, json_option, url_option
from tutti_gateway.cli.common.output import on_terminal, print_fields, print_json, print_table

if TYPE_CHECKING:
    from tutti.sources.source import Topic

_TOPIC_COLUMNS = ("name", "records", "bytes", "first_offset", "last_offset", "first_time", "last_time")


@click.command()
@url_option
@click.option("--watch", "watched", is_flag=True, help="Show every gateway until interrupted; with --json a line a change.")
@click.option(
    "--interval",
    "interval_s",
    type=NumberRange(min=0.1, max=3600),
    default=1.0,
    show_default=True,
    help="Seconds between two looks of --watch.",
)
@json_option
def status(url: str, watched: bool, interval_s: float, as_json: bool) -> None:
    """What a gateway says of itself.

    Of the first gateway of the URL that answers: gateway, pid, group, log, state (primary, minority, joining, leaving, halted),
    view, frontier, start, lag, and the queries of Spark that tell this gateway how far they are (`tutti queries` asks all). With
    --watch all of them, those too that the URL does not name: state, view, frontier (the next offset), lag (decided positions that
    it lacks), of one that does not answer when it did last (heard), and what is wrong.

    Where standard output is no terminal the status is one line of JSON also without --json; --watch writes a line for each gateway
    that changed, with tabs between the fields.
    """
    if watched:
        from tutti_gateway.cli.group.watch import watch

        watch(url, interval_s, as_json)
        return
    from tutti.io.admin import Control

    with Control(url) as control:
        told = control.status()
    told["queries"] = _queries(told["url"])
    if as_json or not on_terminal():
        print_json(told)
    else:
        print_fields(told)


def _queries(url: str) -> list[dict[str, object]] | None:
    """Queries that tell this gateway, or None where its reads port does not answer."""
    from tutti_gateway.cli.group.queries import told_there

    try:
        return [msgspec.structs.asdict(query) for query in told_there(url)]
    except TuttiError:
        return None


@click.command()
@url_option
@json_option
def topics(url: str, as_json: bool) -> None:
    """Topics with their counts, bytes, first and last offset and time.

    Records and bytes are those that were ever committed, bytes as they were sent: whole batches with keys, headers and their form,
    compressed where they are. The first offset is that of the first record which retention has left.
    Only the ordered log is counted: a topic that only unordered records were sent to is shown without records. A warning says where
    no gateway could confirm with a majority that nothing is missing.
    """
    from tutti.sources.flight import Reads
    from tutti.sources.source import begun

    with Reads(url) as reads:
        begun(reads)
        found = [_topic(topic) for topic in reads.topics()]
    if as_json:
        print_json(found)
    else:
        print_table(_TOPIC_COLUMNS, [[topic[name] for name in _TOPIC_COLUMNS] for topic in found], empty="no topics")


def _topic(topic: Topic) -> dict[str, object]:
    """Times as text, and nothing where the log holds no record of the topic, yet or any more."""
    some = topic.first_offset >= 0
    return {
        "name": topic.name,
        "records": topic.records,
        "bytes": topic.bytes,
        "first_offset": topic.first_offset if some else None,
        "last_offset": topic.last_offset if some else None,
        "first_time": time_text(topic.first_time_us) if some else None,
        "last_time": time_text(topic.last_time_us) if some else None,
    }


@click.command()
@url_option
@click.option("--time", type=TIME, required=True, help="ISO 8601 with a zone.")
@json_option
def offsets(url: str, time: datetime, as_json: bool) -> None:
    """The offset of a time.

    It is the offset of the first record at or after it; the frontier when there is none yet.
    """
    from tutti.sources.flight import Reads
    from tutti.sources.source import begun

    with Reads(url) as reads:
        begun(reads)
        offset = reads.offset_for_time(time)
    if as_json:
        print_json({"time": time.isoformat(), "offset": offset})
    else:
        print(offset)
