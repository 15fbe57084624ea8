"""Catalogue of the metrics of a gateway: name, meaning, and path of the value in `metrics.document`.

A released metric name never changes, because dashboards depend on the names (`tests/unit/reads/metrics.txt` lists them).
`python -m tutti_gateway.cli.reference` generates docs/reference/metrics.md from this module.
"""

from __future__ import annotations

from typing import NamedTuple

GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"
MS, US = 1000, 1_000_000


class MetricSpec(NamedTuple):
    """One metric.

    Attributes:
        path: dotted path in the document, to the value or, if the metric has labels, to a table of values.
        name: metric name without the suffixes that Prometheus adds (`_total`, `_bucket`, ...).
        kind: gauge, counter or histogram.
        help: description of the metric.
        labels: names of the labels; the keys of the table are their values.
        divisor: converts the value to the unit of the name.
    """

    path: str
    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    divisor: int = 1

    @property
    def shown(self) -> str:
        """The name with the suffix of a scrape."""
        return f"{self.name}_total" if self.kind == COUNTER else self.name


METRIC_GROUPS: dict[str, tuple[MetricSpec, ...]] = {
    "The gateway": (
        MetricSpec("up", "tutti_up", GAUGE, "1 when the gateway answers the reads process"),
        MetricSpec(
            "made.info",
            "tutti_info",
            GAUGE,
            "1, with the gateway's name, group, log and version as labels",
            ("gateway", "group", "log", "version"),
        ),
        MetricSpec("made.state", "tutti_state", GAUGE, "1 for the gateway's state, 0 for the others", ("state",)),
        MetricSpec("made.ready", "tutti_ready", GAUGE, "1 while the gateway accepts records, as /readyz reports"),
        MetricSpec("started_us", "tutti_start_time_seconds", GAUGE, "Start time of the gateway, seconds since 1970", divisor=US),
        MetricSpec("memory.resident_bytes", "tutti_memory_resident_bytes", GAUGE, "Resident memory of the gateway's process"),
        MetricSpec("reads_process.starts", "tutti_reads_starts", COUNTER, "Starts of the reads process"),
        MetricSpec("queues", "tutti_queue_length", GAUGE, "Items that wait in a queue, by queue", ("queue",)),
    ),
    "View and members": (
        MetricSpec(
            "made.view_number",
            "tutti_view_number",
            GAUGE,
            "Counter of the installed view, without the number of the coordinator that began the view",
        ),
        MetricSpec("made.view_members", "tutti_view_members", GAUGE, "Members of the view"),
        MetricSpec("made.coordinator", "tutti_coordinator", GAUGE, "1 while this gateway coordinates the view"),
        MetricSpec("views", "tutti_view_changes", COUNTER, "Views installed since the start"),
        MetricSpec("made.voters", "tutti_voters", GAUGE, "Gateways with a vote"),
        MetricSpec(
            "made.silent", "tutti_members_silent", GAUGE, "Gateways of the group from which this gateway receives no messages"
        ),
        MetricSpec(
            "lag",
            "tutti_member_lag_positions",
            GAUGE,
            "Decided positions that a member lacks, as last reported to this gateway",
            ("member",),
        ),
        MetricSpec(
            "made.round_trip",
            "tutti_member_round_trip_seconds",
            GAUGE,
            "Measured round trip to another gateway",
            ("member",),
            divisor=US,
        ),
    ),
    "Ingest": (
        MetricSpec("sessions", "tutti_sessions", GAUGE, "Client sessions"),
        MetricSpec("ingest.frames", "tutti_ingest_frames", COUNTER, "Frames accepted from clients"),
        MetricSpec(
            "ingest.frames_alone",
            "tutti_ingest_frames_alone",
            COUNTER,
            "Frames accepted from clients that were one plain batch in a message, which takes the least time",
        ),
        MetricSpec("ingest.records", "tutti_ingest_records", COUNTER, "Records accepted from clients"),
        MetricSpec("ingest.bytes", "tutti_ingest_bytes", COUNTER, "Bytes of messages with batches received from clients"),
        MetricSpec("duplicates", "tutti_duplicates", COUNTER, "Duplicate frames, answered with the offset of the committed frame"),
        MetricSpec("requests", "tutti_requests", COUNTER, "Control requests of clients"),
        MetricSpec("messages_malformed", "tutti_malformed_messages", COUNTER, "Messages of clients that violate the protocol"),
        MetricSpec("sends_dropped", "tutti_dropped_sends", COUNTER, "Replies dropped because the client's queue was full"),
        MetricSpec(
            "connections_refused",
            "tutti_refused_connections",
            COUNTER,
            "Client connections refused at the connection limit, or for lack of file descriptors",
        ),
        MetricSpec(
            "tokens.refused", "tutti_tokens_refused", COUNTER, "Requests refused because of their token, by reason", ("code",)
        ),
        MetricSpec(
            "tokens.quotas.throttled_us",
            "tutti_tokens_throttled_seconds",
            COUNTER,
            "Time in which batches waited for the quota of their token, by name of the token",
            ("token",),
            divisor=US,
        ),
        MetricSpec(
            "tokens.quotas.waiting_bytes",
            "tutti_tokens_waiting_bytes",
            GAUGE,
            "Memory of the batches that wait for the quota of their token",
        ),
        MetricSpec("tokens.trouble", "tutti_tokens_trouble", GAUGE, "1 while the token file cannot be read"),
        MetricSpec(
            "security.certificate.expires_us",
            "tutti_certificate_expiry_timestamp_seconds",
            GAUGE,
            "End of validity of the gateway's certificate, seconds since 1970",
            divisor=US,
        ),
        MetricSpec("refused", "tutti_refused", COUNTER, "Frames refused, by reason", ("code",)),
    ),
    "Order, votes and decisions": (
        MetricSpec("frontier", "tutti_frontier_offset", GAUGE, "Offset of the next committed record"),
        MetricSpec("position", "tutti_frontier_position", GAUGE, "Last decided position of the ordered stream"),
        MetricSpec("start", "tutti_log_start_offset", GAUGE, "First available offset of the log"),
        MetricSpec("tick.number", "tutti_tick_number", GAUGE, "Number of the last tick"),
        MetricSpec("tick.time_us", "tutti_tick_timestamp_seconds", GAUGE, "Time of the last tick, seconds since 1970", divisor=US),
        MetricSpec(
            "clock.ahead_us",
            "tutti_clock_ahead_seconds",
            GAUGE,
            "Time by which the host's clock is ahead of the group's clock",
            divisor=US,
        ),
        MetricSpec("producers", "tutti_producers", GAUGE, "Producers with state in the log"),
        MetricSpec("topics", "tutti_topics", GAUGE, "Topics of the log"),
        MetricSpec("readers", "tutti_readers", GAUGE, "Named readers with a committed offset"),
        MetricSpec("undecided.frames", "tutti_undecided_frames", GAUGE, "Frames that are not decided yet"),
        MetricSpec("undecided.bytes", "tutti_undecided_bytes", GAUGE, "Bytes of the frames that are not decided yet"),
        MetricSpec("committed.frames", "tutti_committed_frames", COUNTER, "Committed frames of clients in the ordered log"),
        MetricSpec("committed.records", "tutti_committed_records", COUNTER, "Committed records of clients in the ordered log"),
        MetricSpec("steps", "tutti_steps", COUNTER, "Steps of the protocol stack"),
        MetricSpec(
            "commit_us", "tutti_commit_duration_seconds", HISTOGRAM, "Time from a frame's arrival to its receipt", divisor=US
        ),
        MetricSpec(
            "vote_us",
            "tutti_vote_duration_seconds",
            HISTOGRAM,
            "Time from queueing a frame for the disk of this gateway to the vote of this gateway, including the sync",
            divisor=US,
        ),
        MetricSpec(
            "decide_us",
            "tutti_decide_duration_seconds",
            HISTOGRAM,
            "Time from this gateway's vote for a frame to the decision, including up to 2 ms until the decision arrives",
            divisor=US,
        ),
    ),
    "Disk": (
        MetricSpec("disk.free_bytes", "tutti_disk_free_bytes", GAUGE, "Free space of the log's file system"),
        MetricSpec("disk.low", "tutti_disk_low", GAUGE, "1 while the gateway refuses records because free disk space is low"),
        MetricSpec("disk.syncs", "tutti_disk_syncs", COUNTER, "fdatasync calls of the log"),
        MetricSpec("disk.inline.syncs", "tutti_disk_inline_syncs", COUNTER, "fdatasync calls of the log in the socket thread"),
        MetricSpec(
            "disk.inline.takeovers",
            "tutti_disk_inline_takeovers",
            COUNTER,
            "Syncs in the socket thread that lasted too long, so that another thread took over its work",
        ),
        MetricSpec("disk.bytes", "tutti_disk_written_bytes", COUNTER, "Bytes written to the log"),
        MetricSpec("disk.damage.found", "tutti_disk_damage_found", COUNTER, "Unreadable parts of the log that were found"),
        MetricSpec(
            "disk.damage.mended_frames",
            "tutti_disk_mended_frames",
            COUNTER,
            "Corrupt frames repaired with copies from other gateways",
        ),
        MetricSpec("disk.sync_us", "tutti_disk_sync_duration_seconds", HISTOGRAM, "Duration of one fdatasync", divisor=US),
        MetricSpec("disk.frames_per_sync", "tutti_disk_sync_frames", HISTOGRAM, "Frames made durable by one fdatasync"),
        MetricSpec(
            "retention.held_bytes",
            "tutti_retention_held_bytes",
            GAUGE,
            "Bytes that retention would remove but a named reader has not read",
        ),
        MetricSpec("made.disk_failed", "tutti_disk_failed", GAUGE, "1 after a write or sync failed"),
        MetricSpec("made.lost_positions", "tutti_disk_lost_positions", GAUGE, "Positions of the log that this gateway cannot read"),
    ),
    "Repair": (
        MetricSpec("repair.requests", "tutti_repair_requests", COUNTER, "Requests to other gateways for missing ordered frames"),
        MetricSpec("repair.repairs", "tutti_repairs", COUNTER, "Messages to other gateways with ordered frames that they missed"),
        MetricSpec(
            "repair.repaired_frames",
            "tutti_repaired_frames",
            COUNTER,
            "Frames sent to other gateways that missed them, counted once per receiver",
        ),
        MetricSpec(
            "repair.refused", "tutti_repair_refusals", COUNTER, "Repair requests and repairs not sent because of their limit"
        ),
        MetricSpec(
            "repair.in_sequence_frames",
            "tutti_group_in_sequence_frames",
            COUNTER,
            "Ordered frames that were appended as they arrived, because no earlier frame was missing",
        ),
        MetricSpec(
            "repair.discarded_frames",
            "tutti_group_discarded_frames",
            COUNTER,
            "Ordered frames discarded because they are corrupt, not contiguous, or above the limit",
        ),
        MetricSpec(
            "repair.dropped_messages",
            "tutti_group_dropped_messages",
            COUNTER,
            "Messages of other gateways dropped by the protocol; the log has the reason",
        ),
    ),
    "Connections to other gateways": (
        MetricSpec(
            "transport.malformed",
            "tutti_group_malformed_messages",
            COUNTER,
            "Messages at the group port that violate the protocol",
        ),
        MetricSpec(
            "transport.not_taken",
            "tutti_group_untaken_messages",
            COUNTER,
            "Messages at the group port from unauthenticated senders",
        ),
        MetricSpec(
            "transport.door.turned_away", "tutti_group_turned_away", COUNTER, "Connections to the group port with an unknown key"
        ),
        MetricSpec("links.up", "tutti_link_up", GAUGE, "1 while the connection to another gateway is open", ("peer",)),
        MetricSpec("links.connects", "tutti_link_connects", COUNTER, "Connections made to another gateway", ("peer",)),
        MetricSpec("links.sent", "tutti_link_sent_messages", COUNTER, "Messages sent to another gateway", ("peer",)),
        MetricSpec("links.sent_bytes", "tutti_link_sent_bytes", COUNTER, "Bytes sent to another gateway", ("peer",)),
        MetricSpec(
            "links.lost",
            "tutti_link_lost_messages",
            COUNTER,
            "Messages to another gateway dropped because there was no connection, or the queue was full",
            ("peer",),
        ),
        MetricSpec(
            "links.received",
            "tutti_link_received_messages",
            COUNTER,
            "Messages received from another gateway over the mesh",
            ("peer",),
        ),
        MetricSpec(
            "links.received_bytes",
            "tutti_link_received_bytes",
            COUNTER,
            "Bytes received from another gateway over the mesh",
            ("peer",),
        ),
        MetricSpec(
            "made.multicast_lost",
            "tutti_multicast_lost_messages",
            COUNTER,
            "Multicast messages of another gateway that did not arrive completely",
            ("peer",),
        ),
    ),
    "Lanes of unordered sends": (
        MetricSpec("unordered.frames", "tutti_unordered_committed_frames", COUNTER, "Committed frames of clients in the lanes"),
        MetricSpec("unordered.records", "tutti_unordered_committed_records", COUNTER, "Committed records of clients in the lanes"),
        MetricSpec("disk.lanes.syncs", "tutti_disk_lanes_syncs", COUNTER, "Rounds of parallel syncs of the lanes"),
        MetricSpec("disk.lanes.bytes", "tutti_disk_lanes_written_bytes", COUNTER, "Bytes written to the lanes"),
        MetricSpec(
            "unordered.commit_us",
            "tutti_unordered_commit_duration_seconds",
            HISTOGRAM,
            "Time from an unordered frame's arrival at the gateway that owns the lane to its receipt",
            divisor=US,
        ),
        MetricSpec(
            "disk.lanes.sync_us",
            "tutti_disk_lanes_sync_duration_seconds",
            HISTOGRAM,
            "Duration of one round of parallel syncs of the lanes",
            divisor=US,
        ),
        MetricSpec("made.lanes_damaged", "tutti_lanes_damaged", GAUGE, "Lanes with data that this gateway cannot read"),
        MetricSpec("made.lanes_halted", "tutti_lanes_halted", GAUGE, "Lanes of this gateway that accept no more records"),
    ),
    "Reads": (
        MetricSpec("reads.calls", "tutti_reads_calls", GAUGE, "Calls in progress at the reads port", ("kind",)),
        MetricSpec(
            "reads.busy",
            "tutti_reads_busy",
            COUNTER,
            "Calls refused at their concurrency limit, and batches refused at the memory budget (`room`)",
            ("kind",),
        ),
        MetricSpec("reads.streams.opened", "tutti_reads_opened", COUNTER, "Streams opened"),
        MetricSpec("reads.streams.failed", "tutti_reads_failed", COUNTER, "Streams that ended with an error"),
        MetricSpec("reads.streams.records", "tutti_reads_records", COUNTER, "Records read"),
        MetricSpec("reads.streams.bytes", "tutti_reads_bytes", COUNTER, "Bytes of record batches read"),
        MetricSpec("reads.streams.batches", "tutti_reads_batches", COUNTER, "Record batches read"),
        MetricSpec(
            "reads.streams.batch_us",
            "tutti_reads_batch_duration_seconds",
            HISTOGRAM,
            "Time to build one record batch of a stream from the log files",
            divisor=US,
        ),
        MetricSpec(
            "reads.actions.act_us",
            "tutti_reads_action_duration_seconds",
            HISTOGRAM,
            "Duration of an action of the reads port that does not wait: plan, topics, offset_for_time, ...",
            divisor=US,
        ),
        MetricSpec(
            "reads.admin.turned_away",
            "tutti_admin_turned_away",
            COUNTER,
            "Connections to the admin port closed without a page, by the HTTP status of the refusal, or `crowded`",
            ("why",),
        ),
        MetricSpec(
            "reads.memory.private_bytes",
            "tutti_reads_memory_private_bytes",
            GAUGE,
            "Anonymous memory of the reads process",
        ),
        MetricSpec(
            "reads.memory.batches_bytes",
            "tutti_reads_memory_batches_bytes",
            GAUGE,
            "Memory of batches that are being made or not sent yet",
        ),
    ),
    "Topics, readers and Spark": (
        MetricSpec("topics_held.records", "tutti_topic_records", COUNTER, "Committed records by topic", ("topic",)),
        MetricSpec(
            "topics_held.bytes", "tutti_topic_bytes", COUNTER, "Bytes of committed batches on the wire, by topic", ("topic",)
        ),
        MetricSpec(
            "reader_lags", "tutti_reader_lag_records", GAUGE, "Committed records after a named reader's offset", ("reader",)
        ),
        MetricSpec(
            "query_lags.records",
            "tutti_query_lag_records",
            GAUGE,
            "Committed records that a Spark query has not processed, for queries that report to this gateway",
            ("query",),
        ),
        MetricSpec(
            "query_lags.ms",
            "tutti_query_lag_seconds",
            GAUGE,
            "Age of the oldest record that a Spark query has not processed; the age grows while a lagging query sends no reports",
            ("query",),
            divisor=MS,
        ),
    ),
}
METRICS = tuple(figure for group in METRIC_GROUPS.values() for figure in group)
