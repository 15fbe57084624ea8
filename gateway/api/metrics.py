"""Metrics in Prometheus' form, made from the gateway's status and this process's figures at each scrape.

Nothing is counted here: gateways and streams count for themselves, and this file gives their figures stable names. A figure that
the status does not hold is left out, so that a scrape always says what is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import Metric

from gateway.core import limits

US = 1_000_000
STATES = ("primary", "minority", "joining", "leaving", "halted")
CONTENT_TYPE = CONTENT_TYPE_LATEST

Status = Mapping[str, Any]


class Figure(NamedTuple):
    """One number of the status: where it stands (keys, dotted), the metric's name, its help, and what it is divided by."""

    path: str
    name: str
    help: str
    divisor: int = 1


GAUGES = (
    Figure("frontier", "tutti_frontier_offset", "Offset that the next committed record gets"),
    Figure("position", "tutti_frontier_position", "Last decided position of the ordered stream"),
    Figure("start", "tutti_log_start_offset", "First offset that the log still holds"),
    Figure("tick.number", "tutti_tick_number", "Number of the last tick"),
    Figure("tick.time_us", "tutti_tick_timestamp_seconds", "Time of the last tick, since 1970", US),
    Figure("started_us", "tutti_start_time_seconds", "When the gateway started, since 1970", US),
    Figure("sessions", "tutti_sessions", "Clients that are connected"),
    Figure("producers", "tutti_producers", "Producers in the received-table"),
    Figure("topics", "tutti_topics", "Topics of the log"),
    Figure("readers", "tutti_readers", "Named readers that saved an offset"),
    Figure("undecided.frames", "tutti_undecided_frames", "Frames being made durable, not decided yet"),
    Figure("undecided.bytes", "tutti_undecided_bytes", "Bytes being made durable, not decided yet"),
    Figure("disk.free_bytes", "tutti_disk_free_bytes", "Free space of the log's file system"),
    Figure("disk.low", "tutti_disk_low", "1 when new messages are refused for want of space"),
    Figure("retention.held_bytes", "tutti_retention_held_bytes", "What retention would remove and a named reader has not read"),
    Figure("memory.resident_bytes", "tutti_memory_resident_bytes", "Resident memory of the gateway's process"),
)
COUNTERS = (
    Figure("ingest.frames", "tutti_ingest_frames", "Frames taken from clients"),
    Figure("ingest.records", "tutti_ingest_records", "Records taken from clients"),
    Figure("ingest.bytes", "tutti_ingest_bytes", "Bytes of bodies taken from clients"),
    Figure("committed.frames", "tutti_committed_frames", "Frames of clients that committed in the order"),
    Figure("committed.records", "tutti_committed_records", "Records of clients that committed in the order"),
    Figure("unordered.frames", "tutti_unordered_committed_frames", "Frames of clients that committed in the lanes"),
    Figure("unordered.records", "tutti_unordered_committed_records", "Records of clients that committed in the lanes"),
    Figure("duplicates", "tutti_duplicates", "Frames that had committed before and were answered again"),
    Figure("requests", "tutti_requests", "Requests of clients other than frames"),
    Figure("messages_malformed", "tutti_malformed_messages", "Messages that were no message of the protocol"),
    Figure("sends_dropped", "tutti_dropped_sends", "Answers dropped because the client did not take them"),
    Figure("connections_refused", "tutti_refused_connections", "Connections of clients that found no place, or no descriptor"),
    Figure("steps", "tutti_steps", "Steps of the group stack"),
    Figure("repair.requests", "tutti_repair_requests", "Requests to other gateways for ordered frames that did not come"),
    Figure("repair.repairs", "tutti_repairs", "Messages with ordered frames that other gateways had missed"),
    Figure("repair.repaired_frames", "tutti_repaired_frames", "Frames in them, once for each gateway that they went to"),
    Figure("repair.refused", "tutti_repair_refusals", "Requests and repairs that did not leave: there were too many"),
    Figure("repair.discarded_frames", "tutti_group_discarded_frames", "Ordered frames thrown away: damaged, unchained, too many"),
    Figure("repair.dropped_messages", "tutti_group_dropped_messages", "Messages of other gateways not taken: the log says why"),
    Figure("disk.syncs", "tutti_disk_syncs", "fdatasync calls of the log"),
    Figure("disk.bytes", "tutti_disk_written_bytes", "Bytes written to the log"),
    Figure("disk.lanes.syncs", "tutti_disk_lanes_syncs", "Syncs of lanes, one for all that were written at a time"),
    Figure("disk.lanes.bytes", "tutti_disk_lanes_written_bytes", "Bytes written to the lanes"),
    Figure("disk.damage.found", "tutti_disk_damage_found", "How often a part of the log was found that could not be read"),
    Figure(
        "disk.damage.mended_frames",
        "tutti_disk_mended_frames",
        "Frames that other gateways gave back and that were written in place",
    ),
    Figure("transport.malformed", "tutti_group_malformed_messages", "What came to the group port and was no message of a gateway"),
    Figure("transport.not_taken", "tutti_group_untaken_messages", "Messages on the group port of who was not let in"),
    Figure("transport.door.turned_away", "tutti_group_turned_away", "Connections to the group port without a listed key"),
    Figure("reads_process.starts", "tutti_reads_starts", "Starts of the reads process"),
)
LINKS = (
    Figure("up", "tutti_link_up", "1 while the connection to another gateway stands"),
    Figure("connects", "tutti_link_connects", "How often it was made"),
    Figure("sent", "tutti_link_sent_messages", "Messages sent to another gateway"),
    Figure("sent_bytes", "tutti_link_sent_bytes", "Bytes of them"),
    Figure("lost", "tutti_link_lost_messages", "Messages to another gateway that found no connection or no room"),
    Figure("received", "tutti_link_received_messages", "Messages received of another gateway over the mesh"),
    Figure("received_bytes", "tutti_link_received_bytes", "Bytes of them"),
)
HISTOGRAMS = (
    Figure("commit_us", "tutti_commit_duration_seconds", "From a frame's arrival to its receipt", US),
    Figure(
        "unordered.commit_us",
        "tutti_unordered_commit_duration_seconds",
        "From an unordered frame's arrival at the gateway whose lane takes it to its receipt",
        US,
    ),
    Figure("disk.sync_us", "tutti_disk_sync_duration_seconds", "Duration of one fdatasync", US),
    Figure("disk.lanes.sync_us", "tutti_disk_lanes_sync_duration_seconds", "Duration of one sync of lanes", US),
    Figure("disk.frames_per_sync", "tutti_disk_sync_frames", "Frames that one fdatasync made durable"),
)


def exposition(status: Status | None, reads: Status, topics: Mapping[str, int], lags: Mapping[str, int]) -> bytes:
    """The text of a scrape.

    Args:
        status: the gateway's status, None when it does not answer.
        reads: this process's figures (`Pages.reads`).
        topics: records by topic.
        lags: records that each named reader has not saved yet.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Scrape(status, reads, topics, lags))
    return generate_latest(registry)


class _Scrape:
    """The collector of one scrape."""

    def __init__(self, status: Status | None, reads: Status, topics: Mapping[str, int], lags: Mapping[str, int]) -> None:
        self._status = status or {}
        self._up = status is not None
        self._reads = reads
        self._topics = topics
        self._lags = lags

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("tutti_up", "1 when the gateway answers the reads process", value=self._up)
        if self._up:
            yield from self._gateway()
        yield from self._process()
        yield from self._log()

    def _gateway(self) -> Iterator[Metric]:
        status = self._status
        info = GaugeMetricFamily("tutti_info", "Which gateway this is", labels=("gateway", "group", "log", "version"))
        info.add_metric([str(status.get(name, "")) for name in ("gateway", "group", "log", "version")], 1)
        yield info
        state = GaugeMetricFamily("tutti_state", "1 for the gateway's state, 0 for the others", labels=("state",))
        for name in STATES:
            state.add_metric([name], status.get("state") == name)
        yield state
        yield GaugeMetricFamily(
            "tutti_view_members", "Members of the view", value=len((status.get("view") or {}).get("members", ()))
        )
        text = "Gateways of the group that this one does not hear"
        yield GaugeMetricFamily("tutti_members_silent", text, value=len(status.get("silent", ())))
        text = "Decided positions that a gateway of the group lacks, as far as this one hears"
        yield labelled(GaugeMetricFamily, "tutti_member_lag_positions", text, "member", status.get("lag"))
        yield GaugeMetricFamily("tutti_disk_failed", "1 after a write or sync failed", value=bool(find(status, "disk.failed")))
        yield from self._damage()
        for figure in GAUGES:
            value = find(status, figure.path)
            if value is not None:
                yield GaugeMetricFamily(figure.name, figure.help, value=value / figure.divisor)
        for figure in COUNTERS:
            value = find(status, figure.path)
            if value is not None:
                yield CounterMetricFamily(figure.name, figure.help, value=value / figure.divisor)
        for figure in HISTOGRAMS:
            value = find(status, figure.path)
            if value is not None:
                yield histogram(figure, value)
        yield labelled(CounterMetricFamily, "tutti_refused", "Frames refused, by reason", "code", status.get("refused"))
        yield labelled(GaugeMetricFamily, "tutti_queue_length", "What waits, by queue", "queue", status.get("queues"))
        yield from self._links()

    def _damage(self) -> Iterator[Metric]:
        """What of the log and of the lanes cannot be read here, and which lanes take nothing more."""
        lost = find(self._status, "disk.damage.lost") or ()
        text = "Positions of the log that cannot be read here at present"
        yield GaugeMetricFamily("tutti_disk_lost_positions", text, value=lost[-1] - lost[0] + 1 if lost else 0)
        lanes = [lane for lane in find(self._status, "lanes") or () if isinstance(lane, Mapping)]
        for what, text in (
            ("damaged", "Lanes of which something cannot be read here"),
            ("halted", "Lanes that can take nothing more here"),
        ):
            yield GaugeMetricFamily(f"tutti_lanes_{what}", text, value=sum(bool(lane.get(what)) for lane in lanes))

    def _links(self) -> Iterator[Metric]:
        """What goes between this gateway and each of the others."""
        peers = [peer for peer in find(self._status, "transport.peers") or () if isinstance(peer, Mapping) and "name" in peer]
        for figure in LINKS:
            family = GaugeMetricFamily if figure.path == "up" else CounterMetricFamily
            values = {str(peer["name"]): peer[figure.path] for peer in peers if figure.path in peer}
            yield labelled(family, figure.name, figure.help, "peer", values)
        heard = find(self._status, "transport.multicast.peers") or {}
        lost = {name: told["lost"] for name, told in heard.items()}
        text = "Messages that another gateway multicast and that did not come whole"
        yield labelled(CounterMetricFamily, "tutti_multicast_lost_messages", text, "peer", lost)

    def _process(self) -> Iterator[Metric]:
        reads = self._reads
        yield labelled(GaugeMetricFamily, "tutti_reads_calls", "Calls of the reads port in progress", "kind", reads["calls"])
        text = "Calls refused because all places were taken, and batches that found no room"
        yield labelled(CounterMetricFamily, "tutti_reads_busy", text, "kind", reads["busy"])
        for name, text in (
            ("opened", "Streams opened"),
            ("failed", "Streams that ended with an error"),
            ("records", "Records read"),
            ("bytes", "Bytes of record batches read"),
            ("batches", "Record batches read"),
        ):
            yield CounterMetricFamily(f"tutti_reads_{name}", text, value=reads["streams"][name])
        yield GaugeMetricFamily(
            "tutti_reads_memory_private_bytes",
            "Memory of the reads process that no file backs",
            value=reads["memory"]["private_bytes"],
        )
        yield GaugeMetricFamily(
            "tutti_reads_memory_batches_bytes",
            "Memory of batches that are made or not sent yet",
            value=reads["memory"]["batches_bytes"],
        )

    def _log(self) -> Iterator[Metric]:
        yield labelled(CounterMetricFamily, "tutti_topic_records", "Committed records by topic", "topic", self._topics)
        yield labelled(GaugeMetricFamily, "tutti_reader_lag_records", "Records above a named reader's offset", "reader", self._lags)


def find(status: Status, path: str) -> Any:
    """What stands at the dotted keys of `path`, None if nothing does."""
    value: Any = status
    for key in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def labelled(
    family: type[CounterMetricFamily | GaugeMetricFamily], name: str, text: str, label: str, values: Status | None
) -> Metric:
    """A metric with a series for each of `values`."""
    made = family(name, text, labels=(label,))
    for key in sorted(values or {})[: limits.METRIC_SERIES_MAX]:
        made.add_metric([key], (values or {})[key])
    return made


def histogram(figure: Figure, value: Status) -> Metric:
    """A histogram from `{"bounds", "counts", "sum"}`; one count more than bounds."""
    reached, buckets = 0, []
    bounds = [str(bound / figure.divisor) for bound in value["bounds"]]
    for bound, count in zip([*bounds, "+Inf"], value["counts"], strict=True):
        reached += count
        buckets.append((bound, reached))
    return HistogramMetricFamily(figure.name, figure.help, buckets=buckets, sum_value=value["sum"] / figure.divisor)
