"""Every metric of a gateway: its name, which is a contract, what it means, and where its value stands (`metrics.document`).

`python -m tutti_gateway.cli.reference` makes docs/reference/metrics.md of it; a released name stays (`tests/unit/api/metrics.txt`).
"""

from __future__ import annotations

from typing import NamedTuple

GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"
MS, US = 1000, 1_000_000


class Figure(NamedTuple):
    """One metric.

    Attributes:
        path: where its value stands, keys with dots between; with labels, a table of values.
        name: without what Prometheus adds (`_total`, `_bucket`, ...).
        kind: gauge, counter or histogram.
        help: what it is, in one sentence.
        labels: names of the labels; the table's keys are their values.
        divisor: what the value is divided by to be in the unit of the name.
    """

    path: str
    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    divisor: int = 1

    @property
    def shown(self) -> str:
        """The name as a scrape and a query have it."""
        return f"{self.name}_total" if self.kind == COUNTER else self.name


GROUPS: dict[str, tuple[Figure, ...]] = {
    "The gateway": (
        Figure("up", "tutti_up", GAUGE, "1 when the gateway answers the reads process"),
        Figure("made.info", "tutti_info", GAUGE, "Which gateway this is", ("gateway", "group", "log", "version")),
        Figure("made.state", "tutti_state", GAUGE, "1 for the gateway's state, 0 for the others", ("state",)),
        Figure("made.ready", "tutti_ready", GAUGE, "1 while the gateway takes records, as /readyz says"),
        Figure("started_us", "tutti_start_time_seconds", GAUGE, "When the gateway started, since 1970", divisor=US),
        Figure("memory.resident_bytes", "tutti_memory_resident_bytes", GAUGE, "Resident memory of the gateway's process"),
        Figure("reads_process.starts", "tutti_reads_starts", COUNTER, "Starts of the reads process"),
        Figure("queues", "tutti_queue_length", GAUGE, "What waits, by queue", ("queue",)),
    ),
    "View and members": (
        Figure(
            "made.view_number",
            "tutti_view_number",
            GAUGE,
            "Number of the view that is installed; the coordinator that began it is not part of it",
        ),
        Figure("made.view_members", "tutti_view_members", GAUGE, "Members of the view"),
        Figure("made.coordinator", "tutti_coordinator", GAUGE, "1 while this gateway coordinates the view"),
        Figure("views", "tutti_view_changes", COUNTER, "Views installed since the start"),
        Figure("made.voters", "tutti_voters", GAUGE, "Gateways with a vote"),
        Figure("made.silent", "tutti_members_silent", GAUGE, "Gateways of the group that this one does not hear"),
        Figure(
            "lag",
            "tutti_member_lag_positions",
            GAUGE,
            "Decided positions that a gateway of the group lacks, as far as this one hears",
            ("member",),
        ),
        Figure(
            "made.round_trip",
            "tutti_member_round_trip_seconds",
            GAUGE,
            "Measured round trip to another gateway",
            ("member",),
            divisor=US,
        ),
    ),
    "Ingest": (
        Figure("sessions", "tutti_sessions", GAUGE, "Clients that are connected"),
        Figure("ingest.frames", "tutti_ingest_frames", COUNTER, "Frames taken from clients"),
        Figure("ingest.records", "tutti_ingest_records", COUNTER, "Records taken from clients"),
        Figure("ingest.bytes", "tutti_ingest_bytes", COUNTER, "Bytes of bodies taken from clients"),
        Figure("duplicates", "tutti_duplicates", COUNTER, "Frames that had committed before and were answered again"),
        Figure("requests", "tutti_requests", COUNTER, "Requests of clients other than frames"),
        Figure("messages_malformed", "tutti_malformed_messages", COUNTER, "Messages that were no message of the protocol"),
        Figure("sends_dropped", "tutti_dropped_sends", COUNTER, "Answers dropped because the client did not take them"),
        Figure(
            "connections_refused",
            "tutti_refused_connections",
            COUNTER,
            "Connections of clients that found no place, or no descriptor",
        ),
        Figure("tokens.refused", "tutti_tokens_refused", COUNTER, "Requests refused for their token, by reason", ("code",)),
        Figure("tokens.trouble", "tutti_tokens_trouble", GAUGE, "1 while the file of tokens cannot be read"),
        Figure("refused", "tutti_refused", COUNTER, "Frames refused, by reason", ("code",)),
    ),
    "Order, votes and decisions": (
        Figure("frontier", "tutti_frontier_offset", GAUGE, "Offset that the next committed record gets"),
        Figure("position", "tutti_frontier_position", GAUGE, "Last decided position of the ordered stream"),
        Figure("start", "tutti_log_start_offset", GAUGE, "First offset that the log still holds"),
        Figure("tick.number", "tutti_tick_number", GAUGE, "Number of the last tick"),
        Figure("tick.time_us", "tutti_tick_timestamp_seconds", GAUGE, "Time of the last tick, since 1970", divisor=US),
        Figure("clock.ahead_us", "tutti_clock_ahead_seconds", GAUGE, "How far the host's clock is ahead of the group", divisor=US),
        Figure("producers", "tutti_producers", GAUGE, "Producers in the received-table"),
        Figure("topics", "tutti_topics", GAUGE, "Topics of the log"),
        Figure("readers", "tutti_readers", GAUGE, "Named readers that saved an offset"),
        Figure("undecided.frames", "tutti_undecided_frames", GAUGE, "Frames being made durable, not decided yet"),
        Figure("undecided.bytes", "tutti_undecided_bytes", GAUGE, "Bytes being made durable, not decided yet"),
        Figure("committed.frames", "tutti_committed_frames", COUNTER, "Frames of clients that committed in the order"),
        Figure("committed.records", "tutti_committed_records", COUNTER, "Records of clients that committed in the order"),
        Figure("steps", "tutti_steps", COUNTER, "Steps of the group stack"),
        Figure("commit_us", "tutti_commit_duration_seconds", HISTOGRAM, "From a frame's arrival to its receipt", divisor=US),
        Figure(
            "vote_us",
            "tutti_vote_duration_seconds",
            HISTOGRAM,
            "From a frame's arrival at this gateway's disk to its vote, with the frame durable here",
            divisor=US,
        ),
        Figure(
            "decide_us",
            "tutti_decide_duration_seconds",
            HISTOGRAM,
            "From this gateway's vote for a frame to its decision: what the others take longer, and 2 ms at most until it is told",
            divisor=US,
        ),
    ),
    "Disk": (
        Figure("disk.free_bytes", "tutti_disk_free_bytes", GAUGE, "Free space of the log's file system"),
        Figure("disk.low", "tutti_disk_low", GAUGE, "1 when new messages are refused for want of space"),
        Figure("disk.syncs", "tutti_disk_syncs", COUNTER, "fdatasync calls of the log"),
        Figure("disk.bytes", "tutti_disk_written_bytes", COUNTER, "Bytes written to the log"),
        Figure(
            "disk.damage.found", "tutti_disk_damage_found", COUNTER, "How often a part of the log was found that could not be read"
        ),
        Figure(
            "disk.damage.mended_frames",
            "tutti_disk_mended_frames",
            COUNTER,
            "Frames that other gateways gave back and that were written in place",
        ),
        Figure("disk.sync_us", "tutti_disk_sync_duration_seconds", HISTOGRAM, "Duration of one fdatasync", divisor=US),
        Figure("disk.frames_per_sync", "tutti_disk_sync_frames", HISTOGRAM, "Frames that one fdatasync made durable"),
        Figure(
            "retention.held_bytes",
            "tutti_retention_held_bytes",
            GAUGE,
            "What retention would remove and a named reader has not read",
        ),
        Figure("made.disk_failed", "tutti_disk_failed", GAUGE, "1 after a write or sync failed"),
        Figure(
            "made.lost_positions", "tutti_disk_lost_positions", GAUGE, "Positions of the log that cannot be read here at present"
        ),
    ),
    "Repair": (
        Figure(
            "repair.requests", "tutti_repair_requests", COUNTER, "Requests to other gateways for ordered frames that did not come"
        ),
        Figure("repair.repairs", "tutti_repairs", COUNTER, "Messages with ordered frames that other gateways had missed"),
        Figure(
            "repair.repaired_frames", "tutti_repaired_frames", COUNTER, "Frames in them, once for each gateway that they went to"
        ),
        Figure("repair.refused", "tutti_repair_refusals", COUNTER, "Requests and repairs that did not leave: there were too many"),
        Figure(
            "repair.discarded_frames",
            "tutti_group_discarded_frames",
            COUNTER,
            "Ordered frames thrown away: damaged, unchained, too many",
        ),
        Figure(
            "repair.dropped_messages",
            "tutti_group_dropped_messages",
            COUNTER,
            "Messages of other gateways not taken: the log says why",
        ),
    ),
    "Links to other gateways": (
        Figure(
            "transport.malformed",
            "tutti_group_malformed_messages",
            COUNTER,
            "What came to the group port and was no message of a gateway",
        ),
        Figure("transport.not_taken", "tutti_group_untaken_messages", COUNTER, "Messages on the group port of who was not let in"),
        Figure(
            "transport.door.turned_away", "tutti_group_turned_away", COUNTER, "Connections to the group port without a listed key"
        ),
        Figure("links.up", "tutti_link_up", GAUGE, "1 while the connection to another gateway stands", ("peer",)),
        Figure("links.connects", "tutti_link_connects", COUNTER, "How often it was made", ("peer",)),
        Figure("links.sent", "tutti_link_sent_messages", COUNTER, "Messages sent to another gateway", ("peer",)),
        Figure("links.sent_bytes", "tutti_link_sent_bytes", COUNTER, "Bytes of them", ("peer",)),
        Figure(
            "links.lost",
            "tutti_link_lost_messages",
            COUNTER,
            "Messages to another gateway that found no connection or no room",
            ("peer",),
        ),
        Figure(
            "links.received",
            "tutti_link_received_messages",
            COUNTER,
            "Messages received of another gateway over the mesh",
            ("peer",),
        ),
        Figure("links.received_bytes", "tutti_link_received_bytes", COUNTER, "Bytes of them", ("peer",)),
        Figure(
            "made.multicast_lost",
            "tutti_multicast_lost_messages",
            COUNTER,
            "Messages that another gateway multicast and that did not come whole",
            ("peer",),
        ),
    ),
    "Lanes of unordered sends": (
        Figure("unordered.frames", "tutti_unordered_committed_frames", COUNTER, "Frames of clients that committed in the lanes"),
        Figure("unordered.records", "tutti_unordered_committed_records", COUNTER, "Records of clients that committed in the lanes"),
        Figure("disk.lanes.syncs", "tutti_disk_lanes_syncs", COUNTER, "Syncs of lanes, one for all that were written at a time"),
        Figure("disk.lanes.bytes", "tutti_disk_lanes_written_bytes", COUNTER, "Bytes written to the lanes"),
        Figure(
            "unordered.commit_us",
            "tutti_unordered_commit_duration_seconds",
            HISTOGRAM,
            "From an unordered frame's arrival at the gateway whose lane takes it to its receipt",
            divisor=US,
        ),
        Figure(
            "disk.lanes.sync_us", "tutti_disk_lanes_sync_duration_seconds", HISTOGRAM, "Duration of one sync of lanes", divisor=US
        ),
        Figure("made.lanes_damaged", "tutti_lanes_damaged", GAUGE, "Lanes of which something cannot be read here"),
        Figure("made.lanes_halted", "tutti_lanes_halted", GAUGE, "Lanes that can take nothing more here"),
    ),
    "Reads": (
        Figure("reads.calls", "tutti_reads_calls", GAUGE, "Calls of the reads port in progress", ("kind",)),
        Figure(
            "reads.busy",
            "tutti_reads_busy",
            COUNTER,
            "Calls refused because all places were taken, and batches that found no room",
            ("kind",),
        ),
        Figure("reads.streams.opened", "tutti_reads_opened", COUNTER, "Streams opened"),
        Figure("reads.streams.failed", "tutti_reads_failed", COUNTER, "Streams that ended with an error"),
        Figure("reads.streams.records", "tutti_reads_records", COUNTER, "Records read"),
        Figure("reads.streams.bytes", "tutti_reads_bytes", COUNTER, "Bytes of record batches read"),
        Figure("reads.streams.batches", "tutti_reads_batches", COUNTER, "Record batches read"),
        Figure(
            "reads.streams.batch_us",
            "tutti_reads_batch_duration_seconds",
            HISTOGRAM,
            "Making one record batch of a stream, from the files to what is sent",
            divisor=US,
        ),
        Figure(
            "reads.actions.act_us",
            "tutti_reads_action_duration_seconds",
            HISTOGRAM,
            "One action of the reads port that waits for nothing: plan, topics, offset_for_time, ...",
            divisor=US,
        ),
        Figure(
            "reads.admin.turned_away",
            "tutti_admin_turned_away",
            COUNTER,
            "Connections to the admin port closed without a page: by the status of the refusal, or crowded",
            ("why",),
        ),
        Figure(
            "reads.memory.private_bytes",
            "tutti_reads_memory_private_bytes",
            GAUGE,
            "Memory of the reads process that no file backs",
        ),
        Figure(
            "reads.memory.batches_bytes",
            "tutti_reads_memory_batches_bytes",
            GAUGE,
            "Memory of batches that are made or not sent yet",
        ),
    ),
    "Topics, readers and Spark": (
        Figure("topics_held.records", "tutti_topic_records", COUNTER, "Committed records by topic", ("topic",)),
        Figure("topics_held.bytes", "tutti_topic_bytes", COUNTER, "Bytes of their batches, as they were sent", ("topic",)),
        Figure("reader_lags", "tutti_reader_lag_records", GAUGE, "Records above a named reader's offset", ("reader",)),
        Figure(
            "query_lags.records",
            "tutti_query_lag_records",
            GAUGE,
            "Records above what a Spark query that tells this gateway has processed",
            ("query",),
        ),
        Figure(
            "query_lags.ms",
            "tutti_query_lag_seconds",
            GAUGE,
            "How long the oldest of them has been waiting; grows while one that is behind tells this gateway nothing",
            ("query",),
            divisor=MS,
        ),
    ),
}
FIGURES = tuple(figure for group in GROUPS.values() for figure in group)
