"""What queries say of themselves, as gateways tell it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

RUNNING, SILENT = "running", "silent"


class QueryInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a query, as it told a gateway last.

    Attributes:
        name: under which its position is kept in the log; empty for one that has none.
        run: of this run alone.
        label: what it is and where it runs, for people.
        topics: that it reads, None for all.
        offset: what lies below it is processed.
        lag_records: how many records lie above.
        lag_ms: for how long the first of them has been known to it, as it told last; of a silent one, and the time since.
        state: running, or silent: it has not told anything for a while.
        since_us, seen_us: when it told first and last (us since 1970, by the gateway's clock).
        trouble: why its position is not kept under its name; empty when it is.
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


def without_ended(told: Iterable[QueryInfo]) -> list[QueryInfo]:
    """The runs without those that are over: silent, and their name runs again since."""
    runs = sorted(told, key=lambda one: one.since_us)
    newest = {one.name: one.run for one in runs}
    return [one for one in runs if one.state == RUNNING or not one.name or one.run == newest[one.name]]
