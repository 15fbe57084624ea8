"""`tutti queries`: how far Spark's queries and named readers are, as all gateways of the group know it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import click
import msgspec

from tutti.errors import TuttiError
from tutti.reading.positions import time_text
from tutti_gateway.cli.common.options import json_option, url_option
from tutti_gateway.cli.common.output import note, print_json, print_table

if TYPE_CHECKING:
    from tutti.data.query_info import QueryInfo

ANSWER_S_MAX = 2.0
_COLUMNS = ("name", "state", "offset", "lag_records", "lag_ms", "topics", "query", "gateway", "seen", "trouble")


@click.command()
@url_option
@json_option
def queries(url: str, as_json: bool) -> None:
    """Spark queries and named readers with position and lag.

    \b
    name         under which the position is kept in the log; a query gets one by the option queryName
    state        of a query: running, or silent for 5 s or more; empty for what only has a position in the log
    offset       what lies below it is processed
    lag_records  how many records lie above, of all topics
    lag_ms       for how long the query has known the first of them; of a silent one, and how long it has been silent
    topics       that the query reads; all where none are named
    query        what runs it, and where: script, host and process id of Spark's driver (in JSON label)
    gateway      that it tells, which is where its driver asks for what is new
    seen         when it told last, UTC, by the clock of that gateway
    trouble      why its position is not kept under its name

    All gateways of the group are asked, as a query tells one of them alone. A silent one is forgotten after a day, or when its name
    runs again; a position stays.
    """
    from tutti.io.admin import Control
    from tutti.sources.query_progress import Progress
    from tutti.sources.source import begun

    with Progress(url) as gateways, Control(url) as control:
        known = begun(gateways)
        frontier, saved = known.offset, gateways.readers(linearizable=not known.stale)
        told = _told(control.status()["gateways"])
    found = [*told, *({"name": name} | _saved(offset, frontier) for name, offset in saved.items() if not _named(name, told))]
    found.sort(key=lambda query: (query["name"] == "", str(query["name"]), str(query["label"])))
    if as_json:
        print_json(found)
        return
    rows = [{**query, "topics": _topics(query), "query": query["label"]} for query in found]
    print_table(_COLUMNS, [[row[name] for name in _COLUMNS] for row in rows], empty="no queries and no named readers")


def _named(name: str, told: Iterable[Mapping[str, object]]) -> bool:
    return any(query["name"] == name for query in told)


def _topics(query: Mapping[str, object]) -> object:
    names = query["topics"]
    return ",".join(names) if isinstance(names, list) else "all" if query["label"] else None


def _saved(offset: int, frontier: int) -> dict[str, object]:
    """What only the log tells of."""
    known = {"offset": offset, "lag_records": max(0, frontier - offset)}
    return dict.fromkeys(("label", "state", "topics", "lag_ms", "gateway", "since", "seen", "run", "trouble"), None) | known


def _told(gateways: Mapping[str, str]) -> list[dict[str, object]]:
    """What queries told any of the gateways (name to url), each by its last word. Gateways that do not answer are noted."""
    from tutti.data.query_info import without_ended

    newest: dict[str, tuple[QueryInfo, str]] = {}
    with ThreadPoolExecutor(max(1, len(gateways))) as pool:
        for gateway, answer in zip(gateways, pool.map(_ask, gateways.values()), strict=True):
            if isinstance(answer, str):
                note(f"{gateway} was not heard: {answer}")
                continue
            for query in answer:
                if query.run not in newest or query.seen_us > newest[query.run][0].seen_us:
                    newest[query.run] = query, gateway
    return [_line(*newest[query.run]) for query in without_ended(query for query, _ in newest.values())]


def told_there(url: str) -> list[QueryInfo]:
    """What queries told the gateway at `url`.

    Raises:
        TuttiError: it does not answer at once, or knows of no queries.
    """
    from tutti.sources.query_progress import Progress

    with Progress(url, timeout=ANSWER_S_MAX) as asked:
        return asked.queries(patience=0.0)  # no other one in its place


def _ask(url: str) -> list[QueryInfo] | str:
    try:
        return told_there(url)
    except TuttiError as error:
        return str(error)


def _line(query: QueryInfo, gateway: str) -> dict[str, object]:
    fields = msgspec.structs.asdict(query)
    since_us, seen_us = fields.pop("since_us"), fields.pop("seen_us")
    return fields | {"gateway": gateway, "since": time_text(since_us), "seen": time_text(seen_us)}
