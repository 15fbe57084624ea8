"""Query progress: requests to gateways that read or report how far queries and named readers have processed the log."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tutti.data.query_info import QueryInfo
from tutti.sources.flight import FlightSource

_SLACK_S, _SLACK_S_MIN = 5.0, 1.0  # time for an answer to arrive, in addition to the requested wait, and its lower bound


class QueryProgress(FlightSource):
    """Requests about query progress. Finds gateways and raises errors as `FlightSource` does."""

    def passed(self, reader: str, offset: int, timeout: float = 0.0, patience: float | None = None) -> int:
        """Return the committed offset of a named reader or query; -1 if it never committed one.

        The call waits up to `timeout` seconds (at most 30) until the committed offset reaches `offset`. The search for a gateway
        takes at most `patience` seconds.
        """
        body = {"reader": reader, "offset": offset, "timeout_ms": int(timeout * 1000)}
        slack = _SLACK_S if patience is None else min(_SLACK_S, max(patience, _SLACK_S_MIN))
        saved = self._request("passed", body, timeout + slack, patience)["offset"]
        return -1 if saved is None else int(saved)

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
        """Report the progress of a query run to the group, which stores it under the query's name.

        Return the reason why the log cannot store the offset, or "" if it is stored. An offset below the stored offset is stored
        only with `back`.
        """
        body = {"run": run, "offset": offset, "name": name, "label": label, "topics": topics, "lag_ms": lag_ms, "back": back}
        return str(self._request("report", body, _SLACK_S, patience)["trouble"])

    def queries(self, patience: float | None = None) -> list[QueryInfo]:
        """Return the query runs that have reported their progress to the answering gateway."""
        return msgspec.convert(self._request("queries", {}, patience=patience), list[QueryInfo])
