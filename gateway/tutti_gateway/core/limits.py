"""Bounds of the gateway (design, section 11); `relations.py` asserts how they fit together. Those of the library: `tutti.limits`.

Above a limit: back-pressure to the sender, or a clear refusal; never silent loss, never unbounded memory. Units are last in names.
"""

from __future__ import annotations

from tutti.limits import BODY_BYTES_MAX, DISK_LOW_BYTES, FRAMES_A_MESSAGE_MAX, KIB, MIB, RAW_BYTES_MAX, UNDECIDED_FRAMES_MAX

# Frames and batches. What a form itself fixes stands where the form is: tutti.data imports nothing of this. Bounds below rest on
# two of those: PROGRESS_BYTES_MAX (frame.py, 256) and the header are within what FRAME_BYTES_MAX adds to a body; with
# NAME_BYTES_MAX (names.py, 249) they make a frame that is no batch about 1 KiB, a producer PRODUCER_BYTES, a topic TOPIC_BYTES.
FETCH_BYTES = 1 * MIB  # of one answer to a Fetch, one frame at least
SNAPSHOT_BYTES_MAX = 256 * MIB  # of a state that another gateway takes over, in pieces of FETCH_BYTES
EPOCH_MAX = 2**32 - 1  # what a frame's field holds

# Client port
SESSIONS_MAX = 4096
SESSIONS_MOST = 16_384  # that a configuration may ask for
UNDECIDED_BYTES_LEAST = 4 * MIB  # that a configuration may ask for; a connection's window is no larger
UNDECIDED_BYTES_MAX = 64 * MIB  # ordered or forwarded and not decided: above it the client port is not drained
UNDECIDED_BYTES_MOST = 512 * MIB  # that a configuration may ask for
BATCH_ROOM_FRAMES = 28_672  # undecided frames among which one more batch is ordered
REQUEST_ROOM_FRAMES = 32_768  # and one more frame that somebody asked for, or that can wait
REQUESTS_A_SESSION_MAX = 1024

# Between gateways
JOINED_BODY_BYTES_MAX = 8 * KIB  # larger bodies travel as parts of their own, uncopied
MESH_HIGH_WATER_MARK = 4096  # messages that wait for one connection; above it they are lost, and repair heals that
MESH_QUEUE_BYTES_MAX = 256 * MIB  # of these; large bodies are not copied, all connections have the same
MESH_ASSEMBLY_BYTES_MAX = 256 * MIB  # of messages that are not all there, of all connections; above it who has most is cut off
MESH_CONNECTIONS_MAX = 512  # that came in, met or not; one more takes the place of who said nothing yet
MESH_DRAIN_MESSAGES_MAX, MESH_DRAIN_BYTES_MAX = 256, 8 * MIB  # taken before the stack's actions are carried out
MESH_RECONNECT_MS_MIN, MESH_RECONNECT_MS_MAX, MESH_CONNECT_MS_MAX = 20, 500, 1_000
MESH_RENEW_US = 3_000_000  # a connection that was down for so long is made from the beginning
MESH_BEAT_MS = 1_000  # whole seconds, as the kernel counts: so often an idle connection's other end is asked whether it is there
MESH_BEATS_SILENT_MAX = 3  # one that does not answer so many is broken, and made anew
MESH_STRANGERS_MAX = 256  # connections that introduced themselves, at once; the one silent for longest makes room
REFUSAL_BYTES_MAX = 4 * KIB  # of why a gateway is not taken
MESH_ANSWERS_BYTES_MAX = (
    16 * MIB
)  # of answers that wait, of all connections that came in; of one, too: above it nothing is read of it
REFUSALS_A_LOOK_MAX = 64  # of one gateway; more wait until the next turn
GUEST_SILENT_US = 60_000_000  # a gateway that this one was not told of is not connected to any more
TWIN_SILENT_US = 2_000_000  # a gateway's messages are taken from another process of its name after so long without any of the first
TROUBLES_MAX = 256  # different ones that are remembered meanwhile
MESH_EVENTS_A_TURN_MAX = 64  # connections that are looked at before messages have their turn: a handshake with keys takes 0.2 ms
MULTICAST_DATAGRAM_BYTES = 1400  # fits an Ethernet frame with some tunnel around it
MULTICAST_DATAGRAM_BYTES_MIN, MULTICAST_DATAGRAM_BYTES_MAX = 512, 65_507
MULTICAST_BYTES_A_SECOND = 100 * MIB
MULTICAST_BURST_BYTES_MIN, MULTICAST_BURST_BYTES_MAX = 64 * KIB, 1 * MIB  # that leave at once; an eighth of what kernels hold
MULTICAST_RUN_BYTES = 256 * KIB  # frames that go as one message, one at least: what is lost with one fragment
MULTICAST_PAYLOAD_BYTES_MAX = 1 * MIB  # a larger message goes over the mesh
MULTICAST_QUEUE_BYTES_MAX = 32 * MIB  # datagrams that wait for their pace; above it messages go over the mesh
MULTICAST_RECEIVE_BYTES, MULTICAST_SEND_BYTES = 8 * MIB, 2 * MIB  # asked of the kernel for what was not taken yet, or not sent
MULTICAST_DATAGRAMS_A_TURN_MAX = 4096  # or runs of them that the kernel joined
MULTICAST_WINDOW = 4096  # messages of one sender that may come in any order
MULTICAST_ASSEMBLY_MESSAGES_MAX = 256  # of one sender that wait for fragments
MULTICAST_ASSEMBLY_BYTES_MAX, MULTICAST_ASSEMBLY_US_MAX = 16 * MIB, 1_000_000
MULTICAST_BEACON_US = 200_000  # a gateway says this often whom it hears
MULTICAST_SILENT_US = 1_000_000  # who was not heard for so long gets all over the mesh
MULTICAST_LOOK_US = 20_000  # at least, between looks at whom the mesh let in
MULTICAST_RETRY_US = 1_000  # before a datagram is sent again that the kernel had no room for
MULTICAST_TRY_US = 5_000_000  # a gateway that is connected and was never heard is told of after so long

# Tables
PRODUCERS_MAX = 10_000
PRODUCERS_MOST = 200_000  # that a configuration may ask for
TOPICS_MOST = 200_000  # that a configuration may ask for
READERS_MAX = 10_000
EPOCHS_AHEAD_MAX = 2  # above the current one: a client fenced by a FORGET is told floor + 1 and tries the one above that
WAITING_EPOCHS_MAX = 1024  # EPOCHs that wait for earlier frames of their producer

# Core: forward-table and hold-back
FORWARDED_MORE_BYTES_MAX = 64 * MIB  # of batches that came in here and wait for room among the undecided; above it: refused for now
FORWARDED_FRAMES_MAX = 131_072
REQUESTS_MAX = 16_384  # epochs, topics, offset commits that wait for the log at one gateway
HELD_FRAMES_MAX = 65_536  # positions held back at a member until those before them come
HELD_MORE_BYTES_MAX = 64 * MIB  # of them, over what may be undecided: the last batch, and frames that are none

# Time, microseconds
HEARTBEAT_US = 200_000
CONFIRM_LATE_US = 2_000  # until who has no part in a run hears of its decision, if nothing is ordered meanwhile
ATOMIC_PERIOD_HEARTBEATS = 10
CLOCK_LEAP_US = 60_000_000  # further ahead at once, the only clock that a gateway has is not believed,
CLOCK_LEAP_LASTS_US = 600_000_000  # until the leap has lasted for so long
CLOCK_BACK_US_MAX = 60_000_000  # a wall clock set back by more was wrong before; by less, the time stands still meanwhile
CLOCK_APART_US = 10_000_000  # a gateway whose clock is so far from the group's logs a warning
TIMER_NEAR_US = 2_000  # a timer so near is set later when nothing is due then any more, in place of a step for nothing
DROPPED_TELL_US = 10_000_000  # messages that are not taken are told of so often, for each kind and sender
DROPPED_KINDS_MAX = 4096  # kinds and senders that this is remembered of
VIEW_RUNS_MAX = 256  # runs of frames of one view that a member remembers, to find where logs differ
BOOT_HEARTBEATS = 5  # missed ones that make a suspect; more where round trips are long
BOOT_HEARTBEATS_MAX = 60  # however long round trips are
ROUND_TRIP_US_MAX = 5_000_000  # a longer one tells of a process or a network that stood still
ROUND_TRIP_STEP_US = 500_000  # that one measurement adds at most
DISTANCE_US_MIN = 2_000  # one way to another gateway: what a step, a timer and a local network take
VERIFY_HEARTBEATS = 1  # that a suspect has to answer a probe, beside its round trip
BATCH_HEARTBEATS = 1  # joins, leaves and boots that come so close together make one view
REJOIN_HEARTBEATS = 5  # before a booted gateway is taken in again; doubled with each time, up to the next
REJOIN_HEARTBEATS_MAX = 300
REJOIN_BOOTS_MAX = 16  # that are counted
REJOIN_FORGIVEN_FACTOR = 10  # times what it had to wait: who stayed so long is like any other again
CANDIDATE_HEARTBEATS = 2  # that each rank of the succession waits longer before it proposes
RETRY_HEARTBEATS_MAX = 8  # random, before a candidate that failed tries again
READY_HEARTBEATS = 5  # that a learner counts as caught up after it was
LEFT_HEARTBEATS = 10  # that a gateway which has left waits to hear that the group goes on without it
LEAVE_HEARTBEATS = 50  # that an orderly leave waits for the others
HEARTBEATS_A_TURN = 16  # peers that a member of a large group tells in one heartbeat, beside its coordinator
CANDIDATE_BEHIND_FRAMES = 8192  # who is so far behind proposes after all others
ROSTER_CHANGES_MAX = 16  # that wait at one gateway
ROSTER_WAIT_HEARTBEATS = 300
FORCE_HEARTBEATS = 50  # without hearing a majority before a roster may be forced
WINDOW_MORE_FRAMES = 2 * FRAMES_A_MESSAGE_MAX  # that a learner holds, undecided for itself, over what a coordinator orders
VIEW_ROOM_FRAMES = 64  # and behind that: a forced ROSTER, and the VIEW frames of views that end before they decide anything
MARK_FRAMES = 64  # so many synced frames at least have a mark with the next write
# Above a watermark: what was decided since the mark before, too.
TAIL_FRAMES_MAX = 2 * (UNDECIDED_FRAMES_MAX + WINDOW_MORE_FRAMES + VIEW_ROOM_FRAMES) + MARK_FRAMES
PAUSE_HEARTBEATS = 15  # without a view that decides: what clients send is kept; after it, refused
MEND_WAIT_HEARTBEATS = 25  # before all gateways are asked again for what none of them gave
LOW_HEARTBEATS = 3  # a member's word that its disk is low holds so long; it is said again in each
READ_INDEX_HEARTBEATS = 10  # that a question waits for a majority to confirm the frontier, and two round trips
RESEND_HEARTBEATS = 3  # an origin sends again what was neither ordered nor answered for so long
FORGET_LOOK_US = 60_000_000  # idle producers without a name are looked for this often
STAGED_IDLE_FACTOR = 24  # and after so many times that if it has batches that wait for a TXN: micro-batches may be long
MARK_IDLE_US = 10_000  # after which a mark names what was synced
MARK_LATE_US = 3_000  # of it, that the mark waits for later syncs while frames are written
INDEX_LATE_US = 5_000  # rows of what is decided wait so long for more, while frames are written
INDEX_FRAMES = 64  # but no longer than until they are so many
IDENTITY_FRESH_US = 1_000_000  # a copy of a running gateway's files is told when it is put back if it is so much older,
IDENTITY_FRESH_BUSY_US = 10_000_000  # or so much, where the disk has no rest (five syncs a second and more)
IDENTITY_REST_US = 200_000  # without a sync: a rest, in which that is noted; sooner it would be in the way of what comes next

# What a message of another gateway may hold; numbers of gateways are u16 in frames, positions and view ids i64 in columns
GATEWAY_MAX = 0xFFFF
ID_BYTES = 16  # uuids of logs, incarnations of disks, instances of producers
PORT_MAX = 65_535
ADDRESS_CHARACTERS_MAX = 512  # HOST:P; a host name has 253
POSITION_MAX = 2**63 - 1
VIEW_MAX = 2**63 - 1
VIEWS_AHEAD_MAX = 2**32  # counters above what is promised here that are believed: five views a second take 27 years
FETCHED_FRAMES_MAX = FETCH_BYTES // 96 + 1  # of one answer to a Fetch: headers alone
CODE_CHARACTERS_MAX = 64
REASON_CHARACTERS_MAX = 64 * KIB  # one that names all gateways of a roster included
SPACE_CHARACTERS_MAX = 1000  # of why a disk runs low: it goes along in votes, and into an ABORT

# Repair; times in distances (one way, to a typical member)
REPAIR_DISTANCE_US_MAX = HEARTBEAT_US  # a further member is waited for no longer
REPAIR_ASK_AFTER = 1  # C1: before anybody asks for what it misses
REPAIR_ASK_SPREAD = 1  # C2: and spread over so long, times the binary logarithm of how many may miss it too
REPAIR_ANSWER_SPREAD = 1  # D2: answers are, with those who may have it
REPAIR_ROUND_DISTANCES = 3  # from a request to its repair, and some; also the hold-down
REPAIR_BACKOFF_MAX = 3  # doublings
REPAIR_LATE_HEARTBEATS = 2  # before a decided position is read from the log for somebody who asked
REPAIR_RANGES_MAX = 64  # of one request, the lowest ones
REPAIR_RANGES_KEPT_MAX = 1024  # of each kind that a member remembers: missing, asked for, held down
REPAIR_MESSAGE_BYTES = 1 * MIB  # of one repair, one frame at least
REPAIR_TO_ALL_BYTES = 4 * KIB  # a repair up to this goes to all, and is its own claim: a claim costs as many messages
REPAIR_READS_MAX = 4  # of the log, at a time
REPAIR_ASKS_A_SECOND, REPAIR_ASKS_BURST = 256, 64  # requests that one member multicasts
REPAIR_BYTES_A_SECOND, REPAIR_BYTES_BURST = 64 * MIB, 64 * MIB  # that one member sends to repair

# Lanes of unordered sends
LANES_MAX = 1024  # disks of origins, ever
LANE_FRAMES_MAX = 8192  # of one origin that are undecided or wait; above it: refused for now
LANE_BYTES_MAX = 4 * MIB  # and their bytes, and the last batch
LANE_ENDS_HEARTBEATS = 5  # how far lanes are decided is told so often
LANE_WAIT_HEARTBEATS = 11  # that an attempt waits to hear it of its members
LANE_BEHIND_MAX = 32_768  # frames that a gateway may lack to be a member of an attempt
LANE_REPEAT_HEARTBEATS = 3  # that an origin repeats its last decision
LANE_READS_MAX = 64  # of the log for others, at a time
LANES_READ_MAX = 64  # whose readers are kept
LANES_OPEN_MAX = 96  # that are kept open for writing; each takes about six descriptors
LANES_DAMAGED_KEPT_MAX = 4  # whole lanes as they were before they were learned again, those of the last start not counted

# Log
SEGMENT_BYTES_MIN = 32 * MIB
LANE_SEGMENT_BYTES = 32 * MIB
LANE_SEGMENT_BYTES_FIRST = MIB  # doubled with each: there may be many lanes, and each has one segment at least
FRAME_BYTES_MAX = BODY_BYTES_MAX + KIB
SCRUB_FRAMES = 256  # that are looked at in one piece, and FETCH_BYTES of them; how far the end of what is lost is looked for
SCRUB_WAIT_US = 250_000  # between two pieces: 4 MiB a second at most, of a disk that has nothing else to do
SCRUB_REST_US = 3_600_000_000  # between two rounds
SUSPECTS_MAX = 64  # positions that could not be read and are to be looked at
DAMAGED_KEPT_MAX = 8  # copies of segments as they were before they were written over
RETENTION_LOOK_US = 1_000_000  # what may go by retention is looked for so often
RETENTION_LAG_FACTOR = 2  # over what is kept: then it goes although a voter does not hold it
RETENTION_READERS_MAX = 16  # named readers that retention waits for
TRIM_PLACES_MAX = 64  # segments that one trim takes

# Reads
STREAMS_MAX = 64
FOLLOWERS_MAX = 256
READ_INDEX_US_MAX = 2_000_000  # that the reads process waits for its gateway to confirm the frontier
TICKETS_BYTES_MAX = 64 * MIB  # of all tickets of one answer, each of which has these names again
TOPICS_A_READ_MAX = TOPICS_MOST
TICKS_AN_ANSWER_MAX = 100_000
LOG_NAME_CHARACTERS_MAX = 64  # a log's uuid as hex has 32
READ_BATCHES_A_STREAM = 3  # one in gRPC, one on its way there, one that is made
READ_BUFFERS_BYTES = 128 * MIB  # what joined batches of streams that are not read may take together: with more, they are smaller
READ_MAKING_BYTES = 2 * RAW_BYTES_MAX  # that making one batch may take: a frame decompressed, and its columns
READ_HELD_BYTES_MAX = 640 * MIB  # of all batches, however compressed they were; above it no other is made
QUERIES_MAX = 1000  # runs of queries that a gateway remembers
QUERY_KEPT_US = 24 * 3600 * 1_000_000  # that have been silent for no longer
CALLS_MAX = 256  # actions and plans in progress, long polls too: each has a thread
BUSY_WAIT_US_MAX = 5_000_000  # for a place among the streams; as many wait at most as have one
FOLLOW_BEAT_US = 1_000_000  # a follower hears something this often
FOLLOW_GAP_US = 2_000  # and not more often than this: what commits meanwhile goes together
WATCH_POLL_US = 500_000  # the frontier is looked at this often though nobody told that it moved; so are callers that went away
STATUS_FRESH_US = 250_000  # an answer of the gateway serves this long
STATUS_WAIT_US_MAX = 1_000_000
LOCATIONS_FRESH_US = 10_000_000  # where other gateways serve reads is asked of them again after so long
STATUS_BYTES_MAX = 192 * KIB  # of that answer, as it goes over the socket, which takes little more at once
STATUS_PLAIN_BYTES_MAX = 32 * KIB  # a longer one is packed: that of all lanes and gateways that there may be is
ERROR_TEXT_BYTES_MAX = 1000  # of an error's sentence as it is sent
METRIC_SERIES_MAX = 1000  # of one metric that has a series for each topic or reader
HTTP_CONNECTIONS_MAX = 128  # for one more the one that is idle for longest is closed
HTTP_HEADER_BYTES_MAX = 16 * KIB
HTTP_REQUEST_US_MAX = 10_000_000  # from the connection, or the end of an answer, to the end of the next answer
BROWSE_RECORDS, BROWSE_RECORDS_MAX = 50, 200  # of one page of records
BROWSE_BYTES_MAX = MIB  # of batches that one page looks into, one at least
BROWSE_ROWS_MAX, BROWSE_STEP_ROWS_MAX = 1_000_000, 250_000  # of the index, on a page and in one step back; a segment's more fit
BROWSE_STEP_OFFSETS = 4096  # of the first step back; doubled while too little is found
BROWSE_PIECE_BYTES = 64 * KIB  # of batches that are looked into together
BROWSE_CUT_BYTES, BROWSE_CUT_BYTES_MAX = 2 * KIB, 256 * KIB  # of a key or value that is shown
BROWSE_SHOWN_BYTES_MAX = 2 * MIB  # of all of them on one page: fewer records are asked for to see more of each
BROWSERS_MAX = 2  # pages of records that are made at a time: nobody who browses takes the processor from who reads
BROWSE_WAIT_US_MAX = 2_000_000  # for one of those places
TOPICS_SHOWN_MAX = 1000  # of one answer, by name
HISTORY_SECONDS, HISTORY_MINUTES = 900, 1440  # that a gateway's figures are remembered, one point each
HISTORY_EVENTS_MAX = 200  # changes of view and state that are remembered
HISTORY_TEXT_CHARACTERS_MAX = 300  # of why one came
READS_MEMORY_BYTES_MAX = 1024 * MIB  # private memory of the reads process; above it it ends and is started again
READS_STOP_US_MAX = 2_000_000  # for streams to end

# Node: the socket thread, the disk thread, the process
DRAIN_MESSAGES_MAX = 256  # taken from the client port before the stack is stepped
CLIENT_CONNECTIONS_MAX = SESSIONS_MOST + 512  # that came in
CLIENT_ASSEMBLY_BYTES_MAX = 512 * MIB  # of messages that are not all there
DRAIN_BYTES_MAX = 2 * MIB  # so that the disk has work while the rest is looked at; less makes smaller rounds, which cost more
SEND_HIGH_WATER_MARK = 4096  # answers that wait for one client
CLIENT_HELD_BACK_BYTES = MIB  # of them, above which nothing is read of it
CLIENT_ANSWERS_BYTES_MAX = 128 * MIB  # of those of all clients; above it who has most is cut off
CONNECTION_BEAT_MS = 1_000  # a gateway says so often that a connection stands, however much its client waits for
CONNECTION_SILENT_MS_MAX = 15_000  # a connection whose other end was not heard for so long is closed; what waits is not heard
INFLATED_BYTES_A_TURN_MAX = 128 * MIB  # decompressed for one client before others have their turn
MAILBOX_ITEMS_A_TURN_MAX = 4096  # that a thread of the node takes from its mailbox before it works on them
MAILBOX_LAZY_ITEMS_MAX = 64  # that wait for the end of a nap of such a thread
LOOKUP_ITEMS_A_TURN_MAX = 1024
SYNC_BYTES_MAX = 16 * MIB  # written before one sync
LOOKUPS_MAX = 4096  # duplicates whose offsets are being looked up; above it the client port is not drained
PRODUCERS_AN_ANSWER_MAX = 10_000
TABLES_A_SESSION_BYTES = 16 * MIB  # of received-tables that one client gets at once; they wait until they are read
TABLES_A_SESSION_BYTES_A_SECOND = 256 * KIB  # and so much more as time goes on
FENCE_TRIES_MAX = 8  # epochs that a fence tries when others begin epochs at the same time
SESSION_IDLE_US = 3_600_000_000  # a client that said nothing for so long says Hello again
SESSION_EVICT_US = 30_000_000  # when all sessions are taken, one that was idle for so long makes room
PORT_WAIT_US = 2_000_000  # a port that a killed gateway held is free again well within it
PORT_LOOK_US = 20_000
SPACE_LOOK_US = 250_000  # the disk's free space is looked at this often
DISK_FULL_WAIT_US = 200_000  # before a write that found no room is tried again
NODE_MEMORY_BYTES_MAX = 1024 * MIB  # resident; above it every client connection is closed and what they queued is dropped
NODE_BASE_BYTES = 128 * MIB  # of a gateway that holds nothing
SESSION_BYTES = 32 * KIB  # of one client's connection; measured: 30 KiB
PRODUCER_BYTES = 3 * KIB  # of one in all tables and a snapshot, with the longest name and progress; measured: 2.7 KiB
TOPIC_BYTES = 5 * KIB // 2  # likewise; measured: 2.2 KiB
TRIM_IDLE_US = 5_000_000  # after so long without a message memory is given back
DISK_STOP_US_MAX = 10_000_000  # for a thread that uses the disk to end; a disk that hangs is left behind
LINGER_MS_MAX = 1_000  # for the last answers to leave
SWITCH_INTERVAL_US = 100  # Python's own is 5 ms, longer than ten commits
MALLOC_MMAP_BYTES = 64 * MIB
MALLOC_TRIM_BYTES = 256 * MIB
MALLOC_TOP_PAD_BYTES = 16 * MIB
MALLOC_ARENAS_MAX = 2
READS_RESTART_US_MIN = 100_000  # before the reads process is started again; doubled up to the next
READS_RESTART_US_MAX = 5_000_000
READS_PROBE_US = 20_000  # the reads process is looked for this often while it starts
READS_LOOK_US = 5_000_000  # and this often later on
READS_ANSWER_US_MAX = 1_000_000  # for it to say anything on a port
READS_SILENT_US_MAX = 60_000_000  # one that said nothing for so long hangs, and is ended
WAIT_TOLD_S = 5  # a gateway that waits for others for so long logs it
READS_END_US_MAX = 5_000_000  # for the reads process to end when told to

# A recorded run
RECORD_RUN_BYTES_MAX = 512 * MIB  # of one run's file; the record ends there, and the gateway goes on
RECORD_KEPT_BYTES_MAX = 2048 * MIB  # of all runs of one gateway in a directory: the oldest are removed when one begins
RECORD_FREE_BYTES_MIN = 2 * DISK_LOW_BYTES  # left free on its disk, which may be the log's
RECORD_BLOCK_BYTES, RECORD_BLOCK_BYTES_MAX = 256 * KIB, 256 * MIB  # compressed together; of one step that is larger: a whole state
RECORD_WAITING_BYTES_MAX = 256 * MIB  # not yet written; above it the record ends
RECORD_FLUSH_US = 250_000  # what a kill loses of the record

# Commands
PRODUCE_BATCHES_MAX = 64  # that wait for their receipts; each holds a block of the input, so that this bounds memory too
PRODUCE_RECORDS_MAX = 16_384  # of one batch
PRODUCE_ABORTS_MAX = 10  # in a row, without a record committed between them


def node_bytes(sessions: int, producers: int, topics: int, undecided_bytes: int) -> int:
    """Memory that a gateway with these bounds needs when it has reached all of them, about."""
    tables = sessions * SESSION_BYTES + producers * PRODUCER_BYTES + topics * TOPIC_BYTES
    return NODE_BASE_BYTES + INFLATED_BYTES_A_TURN_MAX + undecided_bytes + FORWARDED_MORE_BYTES_MAX + tables
