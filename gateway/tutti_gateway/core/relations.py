"""The relations between bounds, asserted in every process that uses one of them: `tutti_gateway.core` imports this."""

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
    2 * common_limits.ROSTER_MAX < limits.MESH_STRANGERS_MAX,
    "every gateway can be connected, once more before its old connection is given up",
)
invariant(
    2 * limits.MESH_STRANGERS_MAX <= limits.MESH_CONNECTIONS_MAX,
    "who introduced itself is never the one that makes room for who did not",
)
invariant(
    limits.UNDECIDED_BYTES_MAX + limits.FORWARDED_MORE_BYTES_MAX <= limits.MESH_QUEUE_BYTES_MAX,
    "what is under way can wait to be sent",
)
invariant(
    common_limits.ROSTER_MAX * (2 * limits.ADDRESS_CHARACTERS_MAX) <= common_limits.INTRODUCTION_BYTES_MAX,
    "an introduction may name the largest group",
)
invariant(2 * limits.FRAME_BYTES_MAX <= limits.SEGMENT_BYTES_MIN, "a segment holds at least two of the largest frames")
invariant(limits.SEGMENT_BYTES_MIN <= limits.LANE_SEGMENT_BYTES, "so does that of a lane")
invariant(common_limits.ROSTER_MAX < limits.LANES_OPEN_MAX, "the lanes of all gateways of a group stay open")
invariant(common_limits.RECORD_BYTES_MAX < common_limits.BODY_BYTES_MAX, "a record fits into a body")
invariant(
    common_limits.BODY_BYTES_MAX <= common_limits.RAW_BYTES_MAX, "a body that is not compressed is within the decompressed limit"
)
invariant(
    common_limits.WINDOW_BYTES <= limits.FORWARDED_MORE_BYTES_MAX,
    "what a connection has in flight finds room, however little may be undecided",
)
invariant(
    limits.UNDECIDED_BYTES_MAX <= limits.UNDECIDED_BYTES_MOST, "what may be undecided by default is what a configuration may say"
)
invariant(
    max(
        limits.node_bytes(limits.SESSIONS_MAX, limits.PRODUCERS_MAX, common_limits.TOPICS_MAX, limits.UNDECIDED_BYTES_MOST),
        limits.node_bytes(limits.SESSIONS_MOST, limits.PRODUCERS_MAX, common_limits.TOPICS_MAX, limits.UNDECIDED_BYTES_LEAST),
        limits.node_bytes(1, limits.PRODUCERS_MOST, 1, limits.UNDECIDED_BYTES_LEAST),
        limits.node_bytes(1, 1, limits.TOPICS_MOST, limits.UNDECIDED_BYTES_LEAST),
    )
    <= limits.NODE_MEMORY_BYTES_MAX,
    "no bound alone makes a gateway close its connections; the configuration looks at them together",
)
invariant(
    common_limits.SILENCE_US_MAX < limits.SESSION_EVICT_US, "a client that waits for an answer is never taken for an idle one"
)
invariant(common_limits.FRAMES_A_MESSAGE_MAX <= limits.BATCH_ROOM_FRAMES, "a message fits into the window of undecided frames")
invariant(limits.BATCH_ROOM_FRAMES < limits.REQUEST_ROOM_FRAMES, "batches leave room for what is asked for")
invariant(
    limits.BATCH_ROOM_FRAMES + limits.REQUEST_ROOM_FRAMES < common_limits.UNDECIDED_FRAMES_MAX,
    "every undecided batch may get an ABORT, and views their VIEW frames",
)
invariant(
    limits.FRAME_BYTES_MAX + limits.DRAIN_BYTES_MAX + common_limits.MESSAGE_BYTES_MAX <= limits.FORWARDED_MORE_BYTES_MAX,
    "what one drain submits too many waits, and is not refused, however little may be undecided",
)
invariant(
    2 * common_limits.UNDECIDED_FRAMES_MAX <= limits.FORWARDED_FRAMES_MAX, "the forward-table holds more than what may be undecided"
)
invariant(
    limits.UNDECIDED_BYTES_MAX + common_limits.RESERVED_BYTES <= common_limits.DISK_LOW_BYTES,
    "what is undecided when the disk runs low can be written",
)
invariant(
    common_limits.UNDECIDED_FRAMES_MAX <= limits.HELD_FRAMES_MAX,
    "a member can hold back all that its coordinator may have undecided",
)
invariant(
    limits.FRAME_BYTES_MAX + limits.REQUEST_ROOM_FRAMES * common_limits.KIB <= limits.HELD_MORE_BYTES_MAX,
    "a member can hold back what the coordinator orders beyond the bytes of batches, at about 1 KiB each",
)
invariant(limits.VIEW_ROOM_FRAMES > 0, "a view can begin behind a log that leaves a learner no room")
invariant(2 * limits.SPACE_CHARACTERS_MAX < limits.REASON_CHARACTERS_MAX, "why a disk runs low can be told, and passed on")
invariant(common_limits.ROSTER_MAX * 2 * NAME_BYTES_MAX < limits.REASON_CHARACTERS_MAX, "all names of a roster fit into a reason")
invariant(
    limits.REJOIN_HEARTBEATS << (limits.REJOIN_BOOTS_MAX - 1) >= limits.REJOIN_HEARTBEATS_MAX,
    "boots are counted until the wait is the longest",
)
invariant(limits.MESH_CONNECT_MS_MAX * 1000 < limits.MESH_RENEW_US, "a connection has time to be made before it is given up")
invariant(
    2 * limits.MULTICAST_RUN_BYTES <= limits.MULTICAST_PAYLOAD_BYTES_MAX < limits.FRAME_BYTES_MAX,
    "runs are multicast, not the largest frames",
)
invariant(
    limits.MULTICAST_PAYLOAD_BYTES_MAX // (limits.MULTICAST_DATAGRAM_BYTES_MIN - common_limits.KIB // 8) < 2**16,
    "a fragment's place fits its field",
)
invariant(
    2 * limits.MULTICAST_PAYLOAD_BYTES_MAX < limits.MULTICAST_ASSEMBLY_BYTES_MAX, "a message can be put together while others wait"
)
invariant(4 * limits.MULTICAST_BEACON_US < limits.MULTICAST_SILENT_US, "a few lost beacons make nobody deaf")
invariant(common_limits.ROSTER_MAX <= limits.GATEWAY_MAX, "every gateway of a roster has a number")
invariant(
    limits.DISTANCE_US_MIN < limits.REPAIR_DISTANCE_US_MAX <= limits.HEARTBEAT_US, "what is repaired is asked for within heartbeats"
)
invariant(
    2 * limits.REPAIR_RANGES_MAX < limits.REPAIR_RANGES_KEPT_MAX,
    "a request fits among what is remembered, cut in two wherever it can be",
)
invariant(limits.FRAME_BYTES_MAX <= limits.REPAIR_BYTES_BURST, "the largest frame can be repaired")
invariant(limits.REPAIR_TO_ALL_BYTES < limits.REPAIR_MESSAGE_BYTES, "what goes to all is small")
invariant(limits.REPAIR_MESSAGE_BYTES + limits.FRAME_BYTES_MAX <= common_limits.MESSAGE_BYTES_MAX, "a repair fits into a message")
invariant(
    2 * limits.LANE_ENDS_HEARTBEATS < limits.LANE_WAIT_HEARTBEATS,
    "one lost word on how far lanes are leaves nobody out of an attempt",
)
invariant(limits.LANE_FRAMES_MAX < limits.LANE_BEHIND_MAX, "a member that votes is not taken for one that is behind")
invariant(
    4 * common_limits.LANE_WINDOW_BYTES <= limits.LANE_BYTES_MAX,
    "some clients fill their windows before an origin refuses any for now",
)
invariant(
    limits.RESEND_HEARTBEATS <= limits.LANE_REPEAT_HEARTBEATS,
    "what a decision lets a member ask for is answered while it is repeated",
)
invariant(
    10 * limits.CONFIRM_LATE_US <= limits.HEARTBEAT_US, "who is told late of a decision is told long before the next heartbeat"
)
invariant(limits.LOW_HEARTBEATS >= 2, "one lost heartbeat does not make a low disk look good")
invariant(
    common_limits.ROSTER_MAX <= (limits.BOOT_HEARTBEATS - 1) * limits.HEARTBEATS_A_TURN,
    "in the largest group too everybody is heard within the boot time",
)
invariant(limits.RESEND_HEARTBEATS < limits.ATOMIC_PERIOD_HEARTBEATS, "a lost message is sent again before anybody is booted")
invariant(
    max(limits.PRODUCERS_MOST * common_limits.KIB, limits.TOPICS_MOST * common_limits.KIB // 2)
    <= limits.SNAPSHOT_BYTES_MAX
    < limits.NODE_MEMORY_BYTES_MAX,
    "whatever a log says of producers and topics can be taken over",
)
invariant(common_limits.FORGET_PRODUCERS_MAX * 16 <= common_limits.BODY_BYTES_MAX, "a FORGET fits into a frame")
invariant(common_limits.TICK_INTERVAL_US >= limits.HEARTBEAT_US, "a tick is not asked for more often than the clock is looked at")
invariant(
    (limits.STREAMS_MAX + limits.FOLLOWERS_MAX) * limits.READ_BATCHES_A_STREAM * common_limits.READ_BATCH_BYTES_MIN
    <= limits.READ_BUFFERS_BYTES,
    "all streams together can keep to what their joined batches may take",
)
invariant(
    list(common_limits.READ_FIRST_BYTES) == sorted(common_limits.READ_FIRST_BYTES)
    and common_limits.READ_FIRST_BYTES[-1] <= common_limits.READ_BATCH_BYTES_MAX,
    "the batches of a scan grow",
)
invariant(
    limits.READ_BUFFERS_BYTES + limits.READ_MAKING_BYTES <= limits.READ_HELD_BYTES_MAX,
    "streams of small frames wait for turns, never for room",
)
invariant(
    limits.READ_HELD_BYTES_MAX + 256 * common_limits.MIB <= limits.READS_MEMORY_BYTES_MAX,
    "what is read alone never ends the reads process",
)
invariant(limits.FOLLOW_GAP_US < limits.FOLLOW_BEAT_US, "a follower's beat is slower than its pace")
invariant(common_limits.RESERVED_BYTES < common_limits.DISK_LOW_BYTES, "new messages are refused before the reserve is needed")
invariant(2 * limits.RECORD_RUN_BYTES_MAX <= limits.RECORD_KEPT_BYTES_MAX, "a run that is recorded leaves the one before it")
invariant(limits.RECORD_FREE_BYTES_MIN > common_limits.DISK_LOW_BYTES, "a record ends before the log takes nothing more")
invariant(limits.UNDECIDED_BYTES_LEAST <= common_limits.WINDOW_BYTES, "no configuration makes windows larger than they are")
invariant(common_limits.RAW_BYTES_MAX <= limits.INFLATED_BYTES_A_TURN_MAX, "the largest batch may be decompressed in one turn")
invariant(common_limits.BATCH_BYTES_MAX < common_limits.CLIENT_MMAP_BYTES, "a full batch of send() lives on the heap")
invariant(limits.TWIN_SILENT_US < limits.GUEST_SILENT_US, "who is connected to for what it says itself is who talks")
invariant(
    1000 * common_limits.LOG_WAIT_MS_MAX <= common_limits.POLL_US_MAX,
    "a log that nobody reads holds a thread up no longer than its sleep",
)
invariant(common_limits.POLL_US_MAX < common_limits.STOP_US_MAX, "a thread hears of the stop before its time is over")
invariant(
    3 * (limits.READS_LOOK_US + 2 * limits.READS_ANSWER_US_MAX) < limits.READS_SILENT_US_MAX,
    "a few lost answers do not end the reads process",
)
invariant(limits.READS_STOP_US_MAX < limits.READS_END_US_MAX, "the reads process has the time that it takes to end its streams")
invariant(common_limits.BATCH_BYTES_MAX < common_limits.BODY_BYTES_MAX, "a batch that is full still fits into a body")
invariant(
    common_limits.BUFFER_BYTES_MIN <= common_limits.BATCH_BYTES <= common_limits.BATCH_BYTES_MAX <= common_limits.BUFFER_BYTES,
    "a producer's buffer holds full batches",
)
invariant(
    common_limits.SUBMIT_BYTES + common_limits.BODY_BYTES_MAX < common_limits.MESSAGE_BYTES_MAX,
    "a client's message is one that a gateway takes",
)
invariant(
    common_limits.ADDRESS_TIMEOUT_US < common_limits.CONNECT_TIMEOUT_US < common_limits.DELIVERY_TIMEOUT_US,
    "a client has time for several addresses",
)
invariant(common_limits.SILENCE_US_MAX < common_limits.DELIVERY_TIMEOUT_US, "a client asks for lost answers before it gives up")
invariant(
    max(common_limits.STREAM_US_MAX // 2, common_limits.BEHIND_WAIT_US_MAX + limits.BUSY_WAIT_US_MAX)
    < 3 * 1000 * common_limits.FLIGHT_BEAT_MS,
    "a gateway says something before a reader has asked it three times whether it is there, which gRPC takes for a flood",
)
invariant(
    2 * limits.CONNECTION_BEAT_MS <= common_limits.LINK_SILENT_MS_MAX,
    "a client that its gateway does not read from yet still hears it",
)
invariant(common_limits.SPARK_POLL_US <= common_limits.LONG_POLL_US_MAX, "a gateway waits as long as a stream reader asks it to")
invariant(common_limits.SPARK_POLL_US < common_limits.READ_RETRY_US, "a poll that waits is no silence")
invariant(
    common_limits.SPARK_SMALL_RECORDS * common_limits.RECORD_BYTES_MAX <= common_limits.SPLIT_BYTES,
    "a range that is not planned is no more than one part of a plan",
)
invariant(2 * limits.MARK_LATE_US < limits.MARK_IDLE_US, "a mark that waits for later syncs comes in time without them")
invariant(
    common_limits.SPARK_SPLIT_BYTES_MIN < common_limits.SPARK_SPLIT_BYTES, "parts are cut smaller for processors, not for size"
)
