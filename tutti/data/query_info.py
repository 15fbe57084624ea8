"""Progress reports of streaming queries. Queries send the reports to gateways, and gateways return them to clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

RUNNING, SILENT = "running", "silent"


class QueryInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The last progress report of one query run.

    Attributes:
        name: name under which the log stores the query's offset; empty for a nameless query.
        run: id of the query run.
        label: description of the query and its host, for users.
        topics: topics that the query reads, or None for all.
        offset: the query has processed all records below this offset.
        lag_records: number of records at or above `offset`.
        lag_ms: age of the oldest unprocessed record at the last report, plus, for a silent query, the time since that report.
        state: "running", or "silent" if the query has not reported for some time.
        since_us, seen_us: times of the first and the last report (us since 1970, gateway's clock).
        trouble: reason why the log does not store `offset` under `name`; empty if the log stores it.
    """

    name: str
    run: str
    label: str
    topics: Sequence[str] | None
    offset: int
    lag_records: int
    lag_ms: int
    state: str
    since_us: int
    seen_us: int
    trouble: str


def without_ended(runs: Iterable[QueryInfo]) -> list[QueryInfo]:
    """Return the runs that have not ended. A silent run counts as ended if a newer run has the same name."""
    runs = sorted(runs, key=lambda one: one.since_us)
    newest = {one.name: one.run for one in runs}
    return [one for one in runs if one.state == RUNNING or not one.name or one.run == newest[one.name]]
