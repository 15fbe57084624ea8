"""`tutti queries`: lists the positions of Spark queries and named readers, collected from all gateways of the group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import click
import msgspec

from tutti.errors import TuttiError
from tutti.reading.range_bounds import time_text
from tutti_gateway.cli.common.gateways import await_gateway
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
    """List Spark queries and named readers with position and lag.

    \b
    name         name under which the position is in the log; for a Spark query, its queryName
    state        running, or silent (no report for 5 s or more); empty for a named reader that sends no reports
    offset       all records below this offset are processed
    lag_records  number of records above the offset, in all topics
    lag_ms       time since the query found its first unprocessed record; it continues to grow while the query is silent
    topics       topics that the query reads; all if the query selects none
    query        script, host and process id of the Spark driver (`label` in JSON)
    gateway      gateway to which the driver reports
    seen         time of the last report, UTC, by the gateway's clock
    trouble      reason why the position could not be saved in the log

    The command asks all gateways, because a query reports to only one gateway. Gateways drop a silent query after a day, or when
    another query with the same name starts. The position in the log stays.
    """
    from tutti.io.admin import AdminClient
    from tutti.sources.query_progress import QueryProgress
    from tutti.sources.source import wait_for_log

    await_gateway(url)
    with QueryProgress(url) as gateways, AdminClient(url) as control:
        log_state = wait_for_log(gateways)
        frontier, saved = log_state.offset, gateways.readers(linearizable=not log_state.stale)
        reported = _reported(control.status()["gateways"])
    found = [
        *reported,
        *({"name": name} | _reader_fields(offset, frontier) for name, offset in saved.items() if not _is_reported(name, reported)),
    ]
    found.sort(key=lambda query: (query["name"] == "", str(query["name"]), str(query["label"])))
    if as_json:
        print_json(found)
        return
    rows = [{**query, "topics": _topics(query), "query": query["label"]} for query in found]
    print_table(_COLUMNS, [[row[name] for name in _COLUMNS] for row in rows], empty="no queries and no named readers")


def _is_reported(name: str, reported: Iterable[Mapping[str, object]]) -> bool:
    return any(query["name"] == name for query in reported)


def _topics(query: Mapping[str, object]) -> object:
    names = query["topics"]
    return ",".join(names) if isinstance(names, list) else "all" if query["label"] else None


def _reader_fields(offset: int, frontier: int) -> dict[str, object]:
    """Return the fields of a named reader that sends no reports: its position in the log, and its lag."""
    fields = {"offset": offset, "lag_records": max(0, frontier - offset)}
    return dict.fromkeys(("label", "state", "topics", "lag_ms", "gateway", "since", "seen", "run", "trouble"), None) | fields


def _reported(gateways: Mapping[str, str]) -> list[dict[str, object]]:
    """Return the latest report of each query. Ask all `gateways` (name -> URL), and print a note for each that does not answer."""
    from tutti.data.query_info import without_ended

    newest: dict[str, tuple[QueryInfo, str]] = {}
    with ThreadPoolExecutor(max(1, len(gateways))) as pool:
        for gateway, answer in zip(gateways, pool.map(_queries_or_error, gateways.values()), strict=True):
            if isinstance(answer, str):
                note(f"{gateway} did not answer: {answer}")
                continue
            for query in answer:
                if query.run not in newest or query.seen_us > newest[query.run][0].seen_us:
                    newest[query.run] = query, gateway
    return [_line(*newest[query.run]) for query in without_ended(query for query, _ in newest.values())]


def queries_at(url: str) -> list[QueryInfo]:
    """Return the Spark queries that report to the gateway at `url`.

    Raises:
        TuttiError: the gateway does not answer in time, or its release does not know the request.
    """
    from tutti.sources.query_progress import QueryProgress

    with QueryProgress(url, timeout=ANSWER_S_MAX) as client:
        return client.queries(patience=0.0)  # ask only this gateway, without failover


def _queries_or_error(url: str) -> list[QueryInfo] | str:
    try:
        return queries_at(url)
    except TuttiError as error:
        return str(error)


def _line(query: QueryInfo, gateway: str) -> dict[str, object]:
    fields = msgspec.structs.asdict(query)
    since_us, seen_us = fields.pop("since_us"), fields.pop("seen_us")
    return fields | {"gateway": gateway, "since": time_text(since_us), "seen": time_text(seen_us)}
