"""Metrics in the Prometheus text format, computed at each scrape from the gateway's status and this process's counters.

This module counts nothing itself: `metric_catalog.py` maps counters of the status to stable metric names. A scrape omits a metric
whose value is not in the status.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric

from tutti.data.view_id import counter_of
from tutti_gateway.core import limits
from tutti_gateway.reads.admin.metric_catalog import COUNTER, HISTOGRAM, METRICS, MetricSpec

STATES = ("primary", "minority", "joining", "leaving", "halted")
CONTENT_TYPE = CONTENT_TYPE_LATEST
_INFO = ("gateway", "group", "log", "version")

Status = Mapping[str, Any]


class LogFigures(NamedTuple):
    """Values for metrics that come from the log and from the reports of Spark queries.

    Attributes:
        topics: records and bytes by topic.
        readers: committed records after the offset of each named reader.
        queries: for each Spark query, the number of unprocessed records and the age of the oldest, ms.
    """

    topics: Mapping[str, tuple[int, int]] = {}
    readers: Mapping[str, int] = {}
    queries: Mapping[str, tuple[int, int]] = {}


def exposition(status: Status | None, reads: Status, known: LogFigures) -> bytes:
    """Return the text of a scrape.

    Args:
        status: the gateway's status, None if the gateway does not answer.
        reads: this process's counters (`Pages.reads`).
        known: values from the log and from Spark queries.
    """
    # With `auto_describe`, `register` would collect all metrics once more for each scrape.
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Scrape(document(status, reads, known)))
    return generate_latest(registry)


def document(status: Status | None, reads: Status, known: LogFigures) -> Status:
    """Return the document to which the metric paths refer: the status, values derived from the status, and counters of reads."""
    return {
        **(status or {}),
        "up": status is not None,
        "made": {} if status is None else _derived(status),
        "links": {} if status is None else _connections(status),
        "tokens": _tokens(find(status or {}, "security") or {}, find(reads, "security") or {}),
        "reads": reads,
        "topics_held": {
            "records": {name: records for name, (records, _) in known.topics.items()},
            "bytes": {name: size for name, (_, size) in known.topics.items()},
        },
        "reader_lags": known.readers,
        "query_lags": {
            "records": {name: records for name, (records, _) in known.queries.items()},
            "ms": {name: ms for name, (_, ms) in known.queries.items()},
        },
    }


def _derived(status: Status) -> Status:
    """Return the values that metrics need but the status does not contain directly."""
    view = find(status, "view") or {}
    members = [member for member in find(status, "members") or () if isinstance(member, Mapping)]
    lost = find(status, "disk.damage.lost") or ()
    lanes = [lane for lane in find(status, "lanes") or () if isinstance(lane, Mapping)]
    return {
        "info": {tuple(str(status.get(name, "")) for name in _INFO): 1},
        # Each state has a series with 0 or 1, so that an alert finds its series before the state first occurs.
        "state": {name: status.get("state") == name for name in STATES},
        "ready": status.get("state") == "primary" and not status.get("reason"),
        # A view id also contains the number of its coordinator in its low bits, so its counter is extracted for the graph.
        "view_number": counter_of(view.get("id", 0)),
        "view_members": len(view.get("members", ())),
        "coordinator": bool(view.get("coordinator")) and view.get("coordinator") == status.get("gateway"),
        "voters": sum(bool(member.get("voter")) for member in members),
        "silent": len(status.get("silent", ())),
        "round_trip": {member["name"]: member["round_trip_us"] for member in members if member.get("round_trip_us")},
        "multicast_lost": {name: peer["lost"] for name, peer in (find(status, "transport.multicast.peers") or {}).items()},
        "disk_failed": bool(find(status, "disk.failed")),
        "lost_positions": lost[-1] - lost[0] + 1 if lost else 0,
        "lanes_damaged": sum(bool(lane.get("damaged")) for lane in lanes),
        "lanes_halted": sum(bool(lane.get("halted")) for lane in lanes),
    }


def _connections(status: Status) -> Status:
    """Return a table by gateway name for each counter of the connections to other gateways."""
    tables: dict[str, dict[str, Any]] = {}
    for peer in find(status, "transport.peers") or ():
        if isinstance(peer, Mapping) and "name" in peer:
            for name, value in peer.items():
                tables.setdefault(name, {})[str(peer["name"])] = value
    return tables


def _tokens(gateway: Status, reads: Status) -> Status:
    """Return the numbers of rejected callers, by reason, the use of quotas, and whether the token file is unreadable; empty
    without tokens.

    The gateway's counters include the callers that the reads process has rejected.
    """
    if not ("refused" in gateway or reads):
        return {}
    trouble = bool(find(gateway, "problems.tokens") or reads.get("trouble"))
    return {"refused": gateway.get("refused"), "quotas": gateway.get("quotas"), "trouble": trouble}


class _Scrape:
    """Collector of one scrape."""

    def __init__(self, document: Status) -> None:
        self._document = document

    def collect(self) -> Iterator[Metric]:
        for figure in METRICS:
            value = find(self._document, figure.path)
            if value is not None and (figure.kind != HISTOGRAM or isinstance(value, Mapping)):
                yield _histogram(figure, value) if figure.kind == HISTOGRAM else _metric(figure, value)


def find(status: Status, path: str) -> Any:
    """Return the value at the dotted keys of `path`, or None."""
    value: Any = status
    for key in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def _metric(figure: MetricSpec, value: Any) -> Metric:
    """Return a gauge or counter. With labels, `value` is a table, and the metric has a series for each key of this table."""
    made = (CounterMetricFamily if figure.kind == COUNTER else GaugeMetricFamily)(figure.name, figure.help, labels=figure.labels)
    table = value if figure.labels else {(): value}
    # The keys are sorted, so that above the limit every scrape has the same series.
    for key in sorted(table)[: limits.METRIC_SERIES_MAX]:
        made.add_metric([key] if isinstance(key, str) else key, table[key] / figure.divisor)
    return made


def _histogram(figure: MetricSpec, value: Status) -> Metric:
    """Return a histogram from `{"bounds", "counts", "sum"}`, which has one count more than bounds."""
    reached, buckets = 0, []
    bounds = [str(bound / figure.divisor) for bound in value["bounds"]]
    for bound, count in zip([*bounds, "+Inf"], value["counts"], strict=True):
        # Prometheus expects cumulative buckets, whereas the status counts each bucket alone.
        reached += count
        buckets.append((bound, reached))
    return HistogramMetricFamily(figure.name, figure.help, buckets=buckets, sum_value=value["sum"] / figure.divisor)
