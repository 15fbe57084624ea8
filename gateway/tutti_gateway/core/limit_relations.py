"""Assertions about relations between limits. Every process that uses a limit runs them, because `tutti_gateway.core` imports this
module.
"""

from __future__ import annotations

from tutti import limits as common_limits
from tutti.data.names import NAME_BYTES_MAX
from tutti.errors import invariant
from tutti_gateway.core import limits

invariant(limits.FRAME_BYTES_MAX <= common_limits.MESSAGE_BYTES_MAX, "a frame fits into a message")
invariant(
    common_limits.FILES_WAIT_US_MAX > common_limits.HANDSHAKE_MS_MAX * 1000, "the log waits until silent connections have ended"
)
invariant(
    2 * common_limits.ROSTER_MAX < limits.MESH_INTRODUCED_MAX,
    "every gateway can have a new connection while its old one still exists",
)
invariant(
    2 * limits.MESH_INTRODUCED_MAX <= limits.MESH_CONNECTIONS_MAX,
    "a new connection never replaces an introduced one",
)
invariant(
    limits.UNDECIDED_BYTES_MAX + limits.FORWARDED_MORE_BYTES_MAX <= limits.MESH_QUEUE_BYTES_MAX,
    "all undecided and forwarded bytes fit into the mesh queues",
)
invariant(
    common_limits.ROSTER_MAX * (2 * limits.ADDRESS_CHARACTERS_MAX) <= common_limits.INTRODUCTION_BYTES_MAX,
    "an introduction may name the largest group",
)
invariant(2 * limits.FRAME_BYTES_MAX <= limits.SEGMENT_BYTES_MIN, "a segment holds at least two of the largest frames")
invariant(limits.SEGMENT_BYTES_MIN <= limits.LANE_SEGMENT_BYTES, "a segment of a lane holds at least two of the largest frames")
invariant(common_limits.ROSTER_MAX < limits.LANES_OPEN_MAX, "the lanes of all gateways of a group stay open")
invariant(common_limits.RECORD_BYTES_MAX < common_limits.BODY_BYTES_MAX, "a record fits into a body")
invariant(common_limits.BODY_BYTES_MAX <= common_limits.RAW_BYTES_MAX, "an uncompressed body is within the decompressed limit")
invariant(
    common_limits.WINDOW_BYTES <= limits.FORWARDED_MORE_BYTES_MAX,
    "the window of a connection fits into the forward-table with the smallest undecided limit",
)
invariant(
    limits.UNDECIDED_BYTES_MAX <= limits.UNDECIDED_BYTES_CONFIG_MAX,
    "the default undecided limit is one that a configuration may set",
)
invariant(
    max(
        limits.node_bytes(limits.SESSIONS_MAX, limits.PRODUCERS_MAX, common_limits.TOPICS_MAX, limits.UNDECIDED_BYTES_CONFIG_MAX),
        limits.node_bytes(
            limits.SESSIONS_CONFIG_MAX, limits.PRODUCERS_MAX, common_limits.TOPICS_MAX, limits.UNDECIDED_BYTES_CONFIG_MIN
        ),
        limits.node_bytes(1, limits.PRODUCERS_CONFIG_MAX, 1, limits.UNDECIDED_BYTES_CONFIG_MIN),
        limits.node_bytes(1, 1, limits.TOPICS_CONFIG_MAX, limits.UNDECIDED_BYTES_CONFIG_MIN),
    )
    <= limits.NODE_MEMORY_BYTES_MAX,
    "no single limit makes a gateway close its connections; the configuration checks them together",
)
invariant(
    common_limits.QUOTA_BATCH_US <= limits.QUOTA_BURST_US,
    "the batches of a client with a quota fit into the burst, so an idle client's first batch does not wait",
)
invariant(
    2 * limits.QUOTA_BATCH_US_MAX <= common_limits.DELIVERY_TIMEOUT_US,
    "two large batches pass a quota before a client gives up",
)
invariant(
    limits.QUOTA_WINDOW_BYTES < limits.QUOTA_TOKEN_BYTES_MAX < limits.QUOTA_BYTES_MAX,
    "one token with a quota leaves memory for the batches of others",
)
invariant(common_limits.SILENCE_US_MAX < limits.SESSION_EVICT_US, "a client that waits for an answer never counts as idle")
invariant(
    common_limits.FRAMES_A_MESSAGE_MAX <= limits.BATCH_UNDECIDED_FRAMES_MAX, "a message fits into the window of undecided frames"
)
invariant(limits.BATCH_UNDECIDED_FRAMES_MAX < limits.REQUEST_UNDECIDED_FRAMES_MAX, "batches leave space for requests")
invariant(
    limits.BATCH_UNDECIDED_FRAMES_MAX + limits.REQUEST_UNDECIDED_FRAMES_MAX < common_limits.UNDECIDED_FRAMES_MAX,
    "every undecided batch may get an ABORT, and views their VIEW frames",
)
invariant(
    limits.FRAME_BYTES_MAX + limits.DRAIN_BYTES_MAX + common_limits.MESSAGE_BYTES_MAX <= limits.FORWARDED_MORE_BYTES_MAX,
    "the excess of one drain waits and is not refused, with the smallest undecided limit",
)
invariant(
    2 * common_limits.UNDECIDED_FRAMES_MAX <= limits.FORWARDED_FRAMES_MAX,
    "the forward-table holds more frames than may be undecided",
)
invariant(
    limits.UNDECIDED_BYTES_MAX + common_limits.RESERVED_BYTES <= common_limits.DISK_LOW_BYTES,
    "all undecided frames can be written when the disk runs low",
)
invariant(
    common_limits.UNDECIDED_FRAMES_MAX <= limits.BUFFERED_FRAMES_MAX,
    "a member can buffer all frames that its coordinator may have undecided",
)
invariant(
    limits.FRAME_BYTES_MAX + limits.REQUEST_UNDECIDED_FRAMES_MAX * common_limits.KIB <= limits.BUFFERED_MORE_BYTES_MAX,
    "a member can buffer all other frames of its coordinator, at about 1 KiB each",
)
invariant(limits.VIEW_RESERVE_FRAMES > 0, "a view can begin after a log that fills the window of a learner")
invariant(2 * limits.SPACE_CHARACTERS_MAX < limits.REASON_CHARACTERS_MAX, "the reason of a low disk fits into a NO and an ABORT")
invariant(common_limits.ROSTER_MAX * 2 * NAME_BYTES_MAX < limits.REASON_CHARACTERS_MAX, "all names of a roster fit into a reason")
invariant(
    limits.REJOIN_HEARTBEATS << (limits.REJOIN_BOOTS_MAX - 1) >= limits.REJOIN_HEARTBEATS_MAX,
    "boots are counted until the wait reaches its maximum",
)
invariant(limits.MESH_CONNECT_MS_MAX * 1000 < limits.MESH_RENEW_US, "a connection attempt ends before the connection is renewed")
invariant(
    2 * limits.MULTICAST_RUN_BYTES <= limits.MULTICAST_PAYLOAD_BYTES_MAX < limits.FRAME_BYTES_MAX,
    "runs of frames are multicast, the largest frames are not",
)
invariant(
    limits.MULTICAST_PAYLOAD_BYTES_MAX // (limits.MULTICAST_DATAGRAM_BYTES_MIN - common_limits.KIB // 8) < 2**16,
    "the number of a fragment fits into its field",
)
invariant(
    2 * limits.MULTICAST_PAYLOAD_BYTES_MAX < limits.MULTICAST_ASSEMBLY_BYTES_MAX, "one message can be assembled while others wait"
)
invariant(4 * limits.MULTICAST_BEACON_US < limits.MULTICAST_SILENT_US, "a few lost beacons do not end multicast to a gateway")
invariant(common_limits.ROSTER_MAX <= limits.GATEWAY_MAX, "every gateway of a roster has a number")
invariant(
    limits.DISTANCE_US_MIN < limits.REPAIR_DISTANCE_US_MAX <= limits.HEARTBEAT_US, "a repair is requested within one heartbeat"
)
invariant(
    2 * limits.REPAIR_RANGES_MAX < limits.REPAIR_RANGES_KEPT_MAX,
    "the ranges of one request, each split in two, fit into the range limit",
)
invariant(limits.FRAME_BYTES_MAX <= limits.REPAIR_BYTES_BURST, "the largest frame can be repaired")
invariant(limits.REPAIR_TO_ALL_BYTES < limits.REPAIR_MESSAGE_BYTES, "repairs to all members are small")
invariant(limits.REPAIR_MESSAGE_BYTES + limits.FRAME_BYTES_MAX <= common_limits.MESSAGE_BYTES_MAX, "a repair fits into a message")
invariant(
    2 * limits.LANE_ENDS_HEARTBEATS < limits.LANE_WAIT_HEARTBEATS,
    "one lost report of lane ends leaves no member out of an attempt",
)
invariant(limits.LANE_FRAMES_MAX < limits.LANE_LAG_FRAMES_MAX, "a member that votes never counts as lagging")
invariant(
    4 * common_limits.LANE_WINDOW_BYTES <= limits.LANE_BYTES_MAX,
    "several clients can fill their windows before an origin refuses batches",
)
invariant(
    limits.RESEND_HEARTBEATS <= limits.LANE_REPEAT_HEARTBEATS,
    "a member can request the frames of a decision while the decision is repeated",
)
invariant(10 * limits.CONFIRM_LATE_US <= limits.HEARTBEAT_US, "a delayed CONFIRM leaves long before the next heartbeat")
invariant(limits.LOW_HEARTBEATS >= 2, "one lost heartbeat does not hide a low disk")
invariant(
    common_limits.ROSTER_MAX <= (limits.BOOT_HEARTBEATS - 1) * limits.HEARTBEATS_A_TURN,
    "every member of the largest group is heard within the boot period",
)
invariant(limits.RESEND_HEARTBEATS < limits.ATOMIC_PERIOD_HEARTBEATS, "a lost message is sent again before a member is booted")
invariant(
    max(limits.PRODUCERS_CONFIG_MAX * common_limits.KIB, limits.TOPICS_CONFIG_MAX * common_limits.KIB // 2)
    <= limits.SNAPSHOT_BYTES_MAX
    < limits.NODE_MEMORY_BYTES_MAX,
    "a snapshot holds all producers and topics of a log",
)
invariant(common_limits.DELETE_PRODUCERS_MAX * 16 <= common_limits.BODY_BYTES_MAX, "a FORGET fits into a frame")
invariant(common_limits.TICK_INTERVAL_US >= limits.HEARTBEAT_US, "a tick is not due more often than the clock is read")
invariant(
    (limits.STREAMS_MAX + limits.FOLLOWERS_MAX) * limits.READ_BATCHES_A_STREAM * common_limits.READ_BATCH_BYTES_MIN
    <= limits.READ_BUFFERS_BYTES,
    "the smallest joined batches of all streams fit into their memory limit",
)
invariant(
    list(common_limits.READ_FIRST_BYTES) == sorted(common_limits.READ_FIRST_BYTES)
    and common_limits.READ_FIRST_BYTES[-1] <= common_limits.READ_BATCH_BYTES_MAX,
    "the batches of a scan grow",
)
invariant(
    limits.READ_BUFFERS_BYTES + limits.READ_MAKING_BYTES <= limits.READ_HELD_BYTES_MAX,
    "streams of small frames never wait for memory",
)
invariant(
    limits.READ_HELD_BYTES_MAX + 256 * common_limits.MIB <= limits.READS_MEMORY_BYTES_MAX,
    "batches alone never exceed the memory limit of the reads process",
)
invariant(limits.FOLLOW_GAP_US < limits.FOLLOW_BEAT_US, "a follower's heartbeat is slower than its shortest interval")
invariant(common_limits.RESERVED_BYTES < common_limits.DISK_LOW_BYTES, "new messages are refused before the reserve is needed")
invariant(2 * limits.RECORD_RUN_BYTES_MAX <= limits.RECORD_KEPT_BYTES_MAX, "a recorded run does not delete the run before it")
invariant(limits.RECORD_FREE_BYTES_MIN > common_limits.DISK_LOW_BYTES, "recording ends before the log refuses new messages")
invariant(
    limits.UNDECIDED_BYTES_CONFIG_MIN <= common_limits.WINDOW_BYTES,
    "no configuration makes the window of a connection larger than its default",
)
invariant(common_limits.RAW_BYTES_MAX <= limits.INFLATED_BYTES_A_TURN_MAX, "the largest batch may be decompressed in one turn")
invariant(common_limits.BATCH_BYTES_MAX < common_limits.CLIENT_MMAP_BYTES, "a full batch of send() is allocated on the heap")
invariant(limits.DUPLICATE_SILENT_US < limits.GUEST_SILENT_US, "a guest stays connected longer than a duplicate process is refused")
invariant(
    1000 * common_limits.LOG_WAIT_MS_MAX <= common_limits.POLL_US_MAX,
    "a slow reader of the log blocks a thread no longer than its poll interval",
)
invariant(common_limits.POLL_US_MAX < common_limits.STOP_US_MAX, "a thread notices the stop signal before its time is over")
invariant(
    3 * (limits.READS_CHECK_US + 2 * limits.READS_ANSWER_US_MAX) < limits.READS_SILENT_US_MAX,
    "a few lost answers do not end the reads process",
)
invariant(limits.READS_STOP_US_MAX < limits.READS_END_US_MAX, "the reads process has enough time to end its streams")
invariant(common_limits.BATCH_BYTES_MAX < common_limits.BODY_BYTES_MAX, "a full batch fits into a body")
invariant(
    common_limits.BUFFER_BYTES_MIN <= common_limits.BATCH_BYTES <= common_limits.BATCH_BYTES_MAX <= common_limits.BUFFER_BYTES,
    "a producer's buffer holds full batches",
)
invariant(
    common_limits.SUBMIT_BYTES + common_limits.BODY_BYTES_MAX < common_limits.MESSAGE_BYTES_MAX,
    "a client's message is within the gateway's message limit",
)
invariant(
    common_limits.HEAD_START_US
    < common_limits.ADDRESS_TIMEOUT_US
    < common_limits.CONNECT_TIMEOUT_US
    < common_limits.DELIVERY_TIMEOUT_US,
    "a client has time for several addresses",
)
invariant(common_limits.SILENCE_US_MAX < common_limits.DELIVERY_TIMEOUT_US, "a client asks for lost answers before it gives up")
invariant(
    max(common_limits.STREAM_US_MAX // 2, common_limits.BEHIND_WAIT_US_MAX + limits.BUSY_WAIT_US_MAX)
    < 3 * 1000 * common_limits.FLIGHT_KEEPALIVE_MS,
    "a gateway sends something before a reader pings it three times, which gRPC treats as a flood",
)
invariant(
    2 * limits.CONNECTION_BEAT_MS <= common_limits.CLIENT_SILENCE_MS_MAX,
    "a client gets keepalives before its gateway first reads from it",
)
invariant(common_limits.SPARK_POLL_US <= common_limits.LONG_POLL_US_MAX, "a gateway waits as long as a stream reader asks it to")
invariant(common_limits.SPARK_POLL_US < common_limits.READ_RETRY_US, "a waiting poll does not count as silence")
invariant(
    common_limits.SPARK_SMALL_RECORDS * common_limits.RECORD_BYTES_MAX <= common_limits.SPLIT_BYTES,
    "an unplanned range is at most one part of a plan",
)
invariant(2 * limits.MARK_LATE_US < limits.MARK_IDLE_US, "a mark that waits for later syncs is written in time without them")
invariant(
    common_limits.SPARK_SPLIT_BYTES_MIN < common_limits.SPARK_SPLIT_BYTES,
    "parts are made smaller to use all processors, not to limit their size",
)
