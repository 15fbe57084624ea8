"""Metrics in Prometheus' form, made from the gateway's status and this process's figures at each scrape.

Nothing is counted here: gateways and streams count for themselves, and `figures.py` gives their figures stable names. A figure that
the status does not hold is left out, so that a scrape always says what is known.
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
from tutti_gateway.reads.admin.metric_catalog import COUNTER, FIGURES, HISTOGRAM, Figure

STATES = ("primary", "minority", "joining", "leaving", "halted")
CONTENT_TYPE = CONTENT_TYPE_LATEST
_INFO = ("gateway", "group", "log", "version")

Status = Mapping[str, Any]


class Known(NamedTuple):
    """What the log says, and who reads it told.

    Attributes:
        topics: records and bytes by topic.
        readers: records that each named reader has not saved yet.
        queries: of each query of Spark, records that it has not processed, and for how many ms.
    """

    topics: Mapping[str, tuple[int, int]] = {}
    readers: Mapping[str, int] = {}
    queries: Mapping[str, tuple[int, int]] = {}


def exposition(status: Status | None, reads: Status, known: Known) -> bytes:
    """The text of a scrape.

    Args:
        status: the gateway's status, None when it does not answer.
        reads: this process's figures (`Pages.reads`).
        known: what the log says.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Scrape(document(status, reads, known)))
    return generate_latest(registry)


def document(status: Status | None, reads: Status, known: Known) -> Status:
    """Everything that figures are taken from: the status, what is made of it, and what else is known."""
    return {
        **(status or {}),
        "up": status is not None,
        "made": {} if status is None else _made(status),
        "links": {} if status is None else _links(status),
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


def _made(status: Status) -> Status:
    """What the status holds in another form."""
    view = find(status, "view") or {}
    members = [member for member in find(status, "members") or () if isinstance(member, Mapping)]
    lost = find(status, "disk.damage.lost") or ()
    lanes = [lane for lane in find(status, "lanes") or () if isinstance(lane, Mapping)]
    return {
        "info": {tuple(str(status.get(name, "")) for name in _INFO): 1},
        "state": {name: status.get("state") == name for name in STATES},
        "ready": status.get("state") == "primary" and not status.get("reason"),
        "view_number": counter_of(view.get("id", 0)),
        "view_members": len(view.get("members", ())),
        "coordinator": bool(view.get("coordinator")) and view.get("coordinator") == status.get("gateway"),
        "voters": sum(bool(member.get("voter")) for member in members),
        "silent": len(status.get("silent", ())),
        "round_trip": {member["name"]: member["round_trip_us"] for member in members if member.get("round_trip_us")},
        "multicast_lost": {name: told["lost"] for name, told in (find(status, "transport.multicast.peers") or {}).items()},
        "disk_failed": bool(find(status, "disk.failed")),
        "lost_positions": lost[-1] - lost[0] + 1 if lost else 0,
        "lanes_damaged": sum(bool(lane.get("damaged")) for lane in lanes),
        "lanes_halted": sum(bool(lane.get("halted")) for lane in lanes),
    }


def _links(status: Status) -> Status:
    """Of each figure of the links to other gateways a table by their names."""
    tables: dict[str, dict[str, Any]] = {}
    for peer in find(status, "transport.peers") or ():
        if isinstance(peer, Mapping) and "name" in peer:
            for name, value in peer.items():
                tables.setdefault(name, {})[str(peer["name"])] = value
    return tables


def _tokens(gateway: Status, reads: Status) -> Status:
    """Return who was rejected for a token, and whether its file cannot be read; nothing where neither asks for tokens.

    The gateway counts those that the reads process rejected, too.
    """
    if not (gateway or reads):
        return {}
    trouble = bool(gateway.get("trouble") or reads.get("trouble"))
    return {"refused": gateway["refused"], "trouble": trouble} if "refused" in gateway else {"trouble": trouble}


class _Scrape:
    """The collector of one scrape."""

    def __init__(self, told: Status) -> None:
        self._told = told

    def collect(self) -> Iterator[Metric]:
        for figure in FIGURES:
            value = find(self._told, figure.path)
            if value is not None and (figure.kind != HISTOGRAM or isinstance(value, Mapping)):
                yield _histogram(figure, value) if figure.kind == HISTOGRAM else _metric(figure, value)


def find(status: Status, path: str) -> Any:
    """What stands at the dotted keys of `path`, None if nothing does."""
    value: Any = status
    for key in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def _metric(figure: Figure, value: Any) -> Metric:
    """A gauge or counter; with labels a series for each key of `value`."""
    made = (CounterMetricFamily if figure.kind == COUNTER else GaugeMetricFamily)(figure.name, figure.help, labels=figure.labels)
    table = value if figure.labels else {(): value}
    for key in sorted(table)[: limits.METRIC_SERIES_MAX]:
        made.add_metric([key] if isinstance(key, str) else key, table[key] / figure.divisor)
    return made


def _histogram(figure: Figure, value: Status) -> Metric:
    """A histogram from `{"bounds", "counts", "sum"}`; one count more than bounds."""
    reached, buckets = 0, []
    bounds = [str(bound / figure.divisor) for bound in value["bounds"]]
    for bound, count in zip([*bounds, "+Inf"], value["counts"], strict=True):
        reached += count
        buckets.append((bound, reached))
    return HistogramMetricFamily(figure.name, figure.help, buckets=buckets, sum_value=value["sum"] / figure.divisor)
