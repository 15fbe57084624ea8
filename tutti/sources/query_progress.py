"""What queries and named readers have processed: asked of gateways, and told to them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tutti.data.query_info import QueryInfo
from tutti.sources.flight import Reads

_SLACK_S, _SLACK_S_MIN = 5.0, 1.0  # beyond what a gateway waits


class Progress(Reads):
    """Gateways, asked how far queries are. Finds them and raises as `Reads` does."""

    def passed(self, reader: str, offset: int, timeout: float = 0.0, patience: float | None = None) -> int:
        """What a named reader, or the query of that name, saved last, -1 if nothing; once that is `offset` or more, or after
        `timeout` seconds (30 at most). A gateway is looked for `patience` seconds.
        """
        asked = {"reader": reader, "offset": offset, "timeout_ms": int(timeout * 1000)}
        slack = _SLACK_S if patience is None else min(_SLACK_S, max(patience, _SLACK_S_MIN))
        told = self._act("passed", asked, timeout + slack, patience)["offset"]
        return -1 if told is None else int(told)

    def report(
        self,
        run: str,
        offset: int,
        *,
        name: str = "",
        label: str = "",
        topics: Sequence[str] | None = None,
        lag_ms: int = 0,
        back: bool = False,
        patience: float | None = None,
    ) -> str:
        """Tell how far a run of a query is; why that cannot be kept in the log under its name, empty when it is.

        Below what was kept before it is only taken to go `back`.
        """
        asked = {"run": run, "offset": offset, "name": name, "label": label, "topics": topics, "lag_ms": lag_ms, "back": back}
        return str(self._act("report", asked, _SLACK_S, patience)["trouble"])

    def queries(self, patience: float | None = None) -> list[QueryInfo]:
        """The runs of queries that told the gateway that answers how far they are."""
        return msgspec.convert(self._act("queries", {}, patience=patience), list[QueryInfo])
