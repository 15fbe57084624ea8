"""Limits of the gateway (protocol/lifecycle, L6). `limit_relations.py` asserts the relations between these limits.

`tutti.limits` has the limits of the client library. Above a limit, the sender gets back-pressure or a clear refusal, so that memory
is bounded and no record is lost silently. The last part of a limit's name is its unit.
"""

from __future__ import annotations

from tutti.limits import BODY_BYTES_MAX, DISK_LOW_BYTES, FRAMES_A_MESSAGE_MAX, KIB, MIB, RAW_BYTES_MAX, UNDECIDED_FRAMES_MAX

# Frames and batches
# Constants of a file format are defined with the format, because `tutti.data` must not import this package.
# FRAME_BYTES_MAX is a body plus 1 KiB for the header and the progress (PROGRESS_BYTES_MAX in frame.py: 256).
# NAME_BYTES_MAX (names.py, 249) determines PRODUCER_BYTES, TOPIC_BYTES, and the size of a frame other than a batch (1 KiB).
FETCH_BYTES = 1 * MIB  # bytes of frames in one answer to Fetch; a single larger frame is allowed
# size of the largest snapshot that a gateway sends to another one, in chunks of at most FETCH_BYTES
SNAPSHOT_BYTES_MAX = 256 * MIB
EPOCH_MAX = 2**32 - 1  # largest epoch: the field of a frame has 32 bits

# Client port
SESSIONS_MAX = 4096
SESSIONS_CONFIG_MAX = 16_384  # largest SESSIONS_MAX that a configuration may set
UNDECIDED_BYTES_CONFIG_MIN = 4 * MIB  # smallest UNDECIDED_BYTES_MAX that a configuration may set
UNDECIDED_BYTES_MAX = 64 * MIB  # bytes of undecided batches; above this limit, the gateway stops reading from clients
UNDECIDED_BYTES_CONFIG_MAX = 512 * MIB  # largest UNDECIDED_BYTES_MAX that a configuration may set
BATCH_UNDECIDED_FRAMES_MAX = 28_672  # number of undecided frames at which the coordinator stops ordering batches
REQUEST_UNDECIDED_FRAMES_MAX = 32_768  # number of undecided frames at which the coordinator stops ordering requests and ticks
REQUESTS_A_SESSION_MAX = 1024

# Quotas of tokens
QUOTA_BURST_US = 100_000  # burst of an idle client: what the client's quota allows in this time
# longest wait that one batch causes; without this limit, a batch above a small quota would commit after its client has given up
QUOTA_BATCH_US_MAX = 30_000_000
QUOTA_WINDOW_BYTES = 512 * KIB  # window of a client with a quota: one full batch, because the gateway stores waiting batches
# memory of the batches that wait for the quota of one token, and of all tokens; above a limit, the port does not read these clients
QUOTA_TOKEN_BYTES_MAX, QUOTA_BYTES_MAX = 32 * MIB, 64 * MIB
QUOTA_FRAME_BYTES = KIB  # memory of a waiting batch in addition to its size

# Between gateways
JOINED_BODY_BYTES_MAX = 8 * KIB  # size above which a body becomes a separate message part, which avoids a copy
MESH_HIGH_WATER_MARK = 4096  # messages queued for one connection; further messages are dropped, and repair fetches them
# bytes of messages in the queues of all connections; a large body counts once, because the queues share one copy
MESH_QUEUE_BYTES_MAX = 256 * MIB
# bytes of incomplete messages on all connections; above this limit the largest sender is disconnected
MESH_ASSEMBLY_BYTES_MAX = 256 * MIB
MESH_CONNECTIONS_MAX = 512  # accepted connections; a new connection above this limit replaces one that has sent nothing
# messages that the gateway reads in one turn, before it executes the actions of the stack
MESH_DRAIN_MESSAGES_MAX, MESH_DRAIN_BYTES_MAX = 256, 8 * MIB
MESH_RECONNECT_MS_MIN, MESH_RECONNECT_MS_MAX, MESH_CONNECT_MS_MAX = 20, 500, 1_000
MESH_RENEW_US = 3_000_000  # time after which the gateway replaces a connection that stays broken
MESH_BEAT_MS = 1_000  # interval of keepalive probes on an idle connection; the kernel counts whole seconds
MESH_BEATS_SILENT_MAX = 3  # unanswered probes after which a connection counts as broken and is replaced
# connections of gateways that have sent their name; a new connection above this limit replaces the longest silent one
MESH_INTRODUCED_MAX = 256
REFUSAL_BYTES_MAX = 4 * KIB  # length of the reason why a gateway is rejected
# bytes of answers queued on all accepted connections; a connection with more queued bytes is not read
MESH_ANSWERS_BYTES_MAX = 16 * MIB
REFUSALS_A_CHECK_MAX = 64  # refusals by another gateway that one check reads and reports; later refusals wait for the next check
GUEST_SILENT_US = 60_000_000  # silence after which a gateway that is in no configuration is disconnected
DUPLICATE_SILENT_US = 2_000_000  # silence of a gateway's process after which a second process may use the same name
CONNECTION_PROBLEMS_MAX = 256  # connection problems that the gateway remembers, so that it does not log one again at once
MESH_EVENTS_A_TURN_MAX = 64  # socket events that are handled before messages are read again; a handshake takes 0.2 ms
MULTICAST_DATAGRAM_BYTES = 1400  # size of a datagram, which fits into an Ethernet frame even with the header of a tunnel
MULTICAST_DATAGRAM_BYTES_MIN, MULTICAST_DATAGRAM_BYTES_MAX = 512, 65_507
MULTICAST_BYTES_A_SECOND = 100 * MIB
# bytes that a gateway sends without a pause: an eighth of the kernel's receive buffer, within these two bounds
MULTICAST_BURST_BYTES_MIN, MULTICAST_BURST_BYTES_MAX = 64 * KIB, 1 * MIB
MULTICAST_RUN_BYTES = 256 * KIB  # size of the frames in one message; small, because one lost datagram loses the whole message
MULTICAST_PAYLOAD_BYTES_MAX = 1 * MIB  # size above which a message is sent over the mesh
# bytes of datagrams that wait for their send time; above this limit, messages are sent over the mesh
MULTICAST_QUEUE_BYTES_MAX = 32 * MIB
MULTICAST_RECEIVE_BYTES, MULTICAST_SEND_BYTES = 8 * MIB, 2 * MIB  # size of the kernel's receive buffer and send buffer
MULTICAST_DATAGRAMS_A_TURN_MAX = 4096  # datagrams, or runs of datagrams that the kernel has joined, that are read in one turn
MULTICAST_WINDOW = 4096  # messages of one sender that the receiver accepts out of order
MULTICAST_ASSEMBLY_MESSAGES_MAX = 256  # incomplete messages of one sender that wait for their missing fragments
MULTICAST_ASSEMBLY_BYTES_MAX, MULTICAST_ASSEMBLY_US_MAX = 16 * MIB, 1_000_000
MULTICAST_BEACON_US = 200_000  # interval of beacons, which list the gateways whose multicast the sender receives
MULTICAST_SILENT_US = 1_000_000  # silence after which a gateway gets all messages over the mesh
MULTICAST_CHECK_US = 20_000  # shortest interval between checks of which processes have introduced themselves over the mesh
MULTICAST_RETRY_US = 1_000  # pause before a gateway sends a datagram again that did not fit into the kernel's buffer
MULTICAST_TRY_US = 5_000_000  # time after which a gateway logs a warning about a connected peer whose multicast never arrived

# Tables
PRODUCERS_MAX = 10_000
PRODUCERS_CONFIG_MAX = 200_000  # largest PRODUCERS_MAX that a configuration may set
TOPICS_CONFIG_MAX = 200_000  # largest number of topics that a configuration may set
READERS_MAX = 10_000
EPOCHS_AHEAD_MAX = 2  # largest step from the current epoch to a requested one; a client that a FORGET fenced requests floor + 2
WAITING_EPOCHS_MAX = 1024  # EPOCH requests that wait for earlier frames of the same producer

# Core: forward-table and hold-back
# bytes of batches that wait at the origin for space in the undecided window; further batches are refused with `retry`
FORWARDED_MORE_BYTES_MAX = 64 * MIB
FORWARDED_FRAMES_MAX = 131_072
REQUESTS_MAX = 16_384  # epoch, topic and offset requests that wait for the log at one gateway
BUFFERED_FRAMES_MAX = 65_536  # frames that a member buffers until earlier positions arrive
BUFFERED_MORE_BYTES_MAX = 64 * MIB  # bytes of frames that a member may buffer in addition to UNDECIDED_BYTES_MAX

# Time, microseconds
HEARTBEAT_US = 200_000
CONFIRM_LATE_US = 2_000  # longest delay of a CONFIRM to a member whose clients do not wait for the decision
ATOMIC_PERIOD_HEARTBEATS = 10
CLOCK_LEAP_US = 60_000_000  # size above which a gateway without other clocks ignores a forward leap of its clock
CLOCK_LEAP_LASTS_US = 600_000_000  # time after which a gateway accepts the time of a clock that has leapt forward
# size above which a gateway follows its clock back; after a smaller step back, its time stands still until the clock catches up
CLOCK_BACK_US_MAX = 60_000_000
CLOCK_APART_US = 10_000_000  # difference from the group's clock above which a gateway logs a warning
TIMER_NEAR_US = 2_000  # remaining time below which a timer that is no longer needed is postponed, which saves an empty step
DROPPED_LOG_INTERVAL_US = 10_000_000  # interval between log lines about dropped messages of one kind and sender
DROPPED_KINDS_MAX = 4096  # pairs of message kind and sender for which dropped messages are counted separately
VIEW_RUNS_MAX = 256  # runs of frames of one view that a member remembers, to find where two logs differ
BOOT_HEARTBEATS = 5  # missed heartbeats after which a peer is suspected; more if round trips are long
BOOT_HEARTBEATS_MAX = 60  # missed heartbeats after which a peer is suspected even if round trips are very long
ROUND_TRIP_US_MAX = 5_000_000  # longest round trip that counts; after a longer one, a process or the network was probably paused
ROUND_TRIP_STEP_US = 500_000  # time by which a measured round trip may exceed twice the estimate; a longer one is shortened
DISTANCE_US_MIN = 2_000  # smallest one-way distance: the time of a step, a timer and a local network
VERIFY_HEARTBEATS = 1  # heartbeats, in addition to its round trip, in which a suspect must answer a probe
BATCH_HEARTBEATS = 1  # heartbeats within which joins, leaves and boots share one view
REJOIN_HEARTBEATS = 5  # heartbeats before a booted gateway may return; doubled with each boot, up to the next limit
REJOIN_HEARTBEATS_MAX = 300
REJOIN_BOOTS_MAX = 16  # boots of one gateway after which its wait no longer doubles
REJOIN_FORGIVEN_FACTOR = 10  # multiple of its last wait after which the boots of a gateway no longer count
CANDIDATE_HEARTBEATS = 2  # heartbeats by which a candidate waits longer than the candidate before it in the succession list
RETRY_HEARTBEATS_MAX = 8  # longest random wait of a failed candidate before its next attempt; long round trips are added
READY_HEARTBEATS = 5  # heartbeats for which a learner that has caught up still counts as caught up
LEFT_HEARTBEATS = 10  # heartbeats for which a stopping gateway waits until the others form a view without it
LEAVE_HEARTBEATS = 50  # heartbeats after which an orderly stop ends even with work in progress
HEARTBEATS_A_TURN = 16  # peers to which a member of a large group sends each heartbeat, in addition to its coordinator
CANDIDATE_LAG_FRAMES = 8192  # missing frames above which a candidate proposes only after all others
ROSTER_CHANGES_MAX = 16  # roster changes that wait at one gateway
ROSTER_WAIT_HEARTBEATS = 300
FORCE_HEARTBEATS = 50  # heartbeats without a majority before an operator may force a roster
WINDOW_MORE_FRAMES = 2 * FRAMES_A_MESSAGE_MAX  # undecided frames that a learner may hold beyond the coordinator's limit
VIEW_RESERVE_FRAMES = 64  # undecided frames beyond the learner's limit, for a forced ROSTER and the VIEWs of views that ended early
MARK_FRAMES = 64  # synced frames after which the next write contains a mark
# frames after the last watermark on the disk: decided frames of one full window, and undecided frames of another one
TAIL_FRAMES_MAX = 2 * (UNDECIDED_FRAMES_MAX + WINDOW_MORE_FRAMES + VIEW_RESERVE_FRAMES) + MARK_FRAMES
PAUSE_HEARTBEATS = 15  # heartbeats for which client messages are kept while no view decides; later messages are refused
REPAIR_WAIT_HEARTBEATS = 25  # pause after no gateway could send lost frames; then each gateway gets the request again
LOW_HEARTBEATS = 3  # heartbeats after which a member's report of a low disk expires, unless the member repeats it
READ_INDEX_HEARTBEATS = 10  # heartbeats, in addition to two round trips, that a read-index request waits for a majority
RESEND_HEARTBEATS = 3  # heartbeats after which an unanswered batch or request is sent again
IDLE_PRODUCER_CHECK_US = 60_000_000  # interval of the search for idle producers without a name
STAGED_IDLE_FACTOR = 24  # factor of the idle time for producers with staged batches, because a micro-batch may take a long time
MARK_IDLE_US = 10_000  # idle time after which the disk writes a mark with the synced position
MARK_LATE_US = 3_000  # time for which a mark waits for later syncs while frames are written
INDEX_LATE_US = 5_000  # time for which index rows of decided frames wait for more rows while frames are written
INDEX_FRAMES = 64  # number of waiting index rows at which they are written without further delay
# interval of writes of the identity file, which reveals a restored copy of a running gateway's files if the copy is older than this
IDENTITY_FRESH_US = 1_000_000
IDENTITY_FRESH_BUSY_US = 10_000_000  # interval of writes of the identity file on a disk that is never idle (five syncs a second)
IDENTITY_IDLE_US = 200_000  # time without a sync after which the identity file is written, so that its write delays no other

# Limits of fields in messages from other gateways. Gateway numbers are u16 in frames; positions and view ids are i64 in columns.
GATEWAY_MAX = 0xFFFF
ID_BYTES = 16  # size of a uuid: logs, incarnations of disks, instances of producers
PORT_MAX = 65_535
ADDRESS_CHARACTERS_MAX = 512  # HOST:PORT; a host name has at most 253 characters
POSITION_MAX = 2**63 - 1
VIEW_MAX = 2**63 - 1
VIEWS_AHEAD_MAX = 2**32  # largest step from the promised view counter to that in a message: 27 years at five views a second
FETCHED_FRAMES_MAX = FETCH_BYTES // 96 + 1  # number of frames in one answer to Fetch if all of them have empty bodies
CODE_CHARACTERS_MAX = 64
REASON_CHARACTERS_MAX = 64 * KIB  # a reason may name all gateways of a roster
SPACE_CHARACTERS_MAX = 1000  # length of the text that explains why a disk is low; votes and ABORT frames contain this text

# Repair. The unit of several waits is the distance: the one-way delay to the median member.
REPAIR_DISTANCE_US_MAX = HEARTBEAT_US  # largest distance that counts
REPAIR_ASK_AFTER = 1  # number of distances in the fixed part of the wait before a request (C1 in the paper)
# number of distances in the random part of that wait, times log2 of the number of members that may miss the frames too (C2)
REPAIR_ASK_SPREAD = 1
# number of distances in the random wait before a repair, times log2 of the number of members that may send the repair (D2)
REPAIR_ANSWER_SPREAD = 1
# number of distances between two requests for a range, enough for the repair to arrive; also the hold-down time
REPAIR_ROUND_DISTANCES = 3
REPAIR_BACKOFF_MAX = 3  # largest number of times that the wait before a request is doubled
REPAIR_LATE_HEARTBEATS = 2  # heartbeats before a member reads its log for a requested position that is already decided
REPAIR_RANGES_MAX = 64  # ranges in one request, lowest first
REPAIR_RANGES_KEPT_MAX = 1024  # ranges that a member stores of each kind: missing, requested, or under repair
REPAIR_MESSAGE_BYTES = 1 * MIB  # size of one repair message; a single larger frame is allowed
# a repair up to this size goes to all members and needs no claim, because a claim costs as many messages
REPAIR_TO_ALL_BYTES = 4 * KIB
REPAIR_READS_MAX = 4  # concurrent reads of the log for repairs
REPAIR_ASKS_A_SECOND, REPAIR_ASKS_BURST = 256, 64  # requests that one member sends to all
REPAIR_BYTES_A_SECOND, REPAIR_BYTES_BURST = 64 * MIB, 64 * MIB  # repair bytes that one member sends

# Lanes of unordered sends
LANES_MAX = 1024  # lanes that one member stores; each disk that an origin has used has its own lane
LANE_FRAMES_MAX = 8192  # undecided batches of one origin; further batches are refused with `retry`
LANE_BYTES_MAX = 4 * MIB  # bytes of one origin's undecided batches; the last batch may exceed this limit
LANE_ENDS_HEARTBEATS = 5  # heartbeats between two reports of the decided end of each lane
LANE_WAIT_HEARTBEATS = 11  # heartbeats for which a new attempt waits until its members have reported their decided ends
LANE_LAG_FRAMES_MAX = 32_768  # frames that a gateway's copy of a lane may lack when the gateway joins an attempt
LANE_REPEAT_HEARTBEATS = 3  # heartbeats for which an origin repeats its last decision
LANE_READS_MAX = 64  # concurrent reads of lane logs for other gateways
LANES_READ_MAX = 64  # lanes whose log readers stay open
LANES_OPEN_MAX = 96  # lanes that stay open for writing; each takes about six file descriptors
LANES_QUARANTINED_MAX = 4  # number of quarantined lanes that are kept: the newest ones, and all lanes of the current start

# Log
SEGMENT_BYTES_MIN = 32 * MIB
FIRST_SEGMENT_BYTES_MIN = MIB  # smallest first segment that a configuration may set
LANE_SEGMENT_BYTES = 32 * MIB
# size of a lane's first segment, which is small because there may be many lanes; each next segment is twice as large as the last
LANE_SEGMENT_BYTES_FIRST = MIB
FRAME_BYTES_MAX = BODY_BYTES_MAX + KIB
# frames that one scrub step checks, up to FETCH_BYTES; the search for the end of a corrupt range also checks as many at a time
SCRUB_FRAMES = 256
SCRUB_WAIT_US = 250_000  # pause between two scrub steps, so that the scrubber reads at most 4 MiB a second
SCRUB_PAUSE_US = 3_600_000_000  # pause between two scrub rounds
SUSPECT_POSITIONS_MAX = 64  # positions that could not be read and wait for a check by the scrubber
SEGMENTS_QUARANTINED_MAX = 8  # copies of corrupt segments that a repair keeps
RETENTION_CHECK_US = 1_000_000  # interval of retention checks
# multiple of the configured size above which retention trims even frames that a voter does not hold yet
RETENTION_LAG_FACTOR = 2
RETENTION_READERS_MAX = 16  # named readers whose committed offsets can block retention
TRIM_STARTS_MAX = 64  # segments that one trim proposal names

# Reads
STREAMS_MAX = 64
FOLLOWERS_MAX = 256
READ_INDEX_US_MAX = 2_000_000  # time for which the reads process waits until its gateway has confirmed the frontier
TICKETS_BYTES_MAX = 64 * MIB  # bytes of all tickets in one answer; each ticket repeats the requested topic names
TOPICS_A_READ_MAX = TOPICS_CONFIG_MAX
TICKS_AN_ANSWER_MAX = 100_000
LOG_NAME_CHARACTERS_MAX = 64  # the uuid of a log has 32 hex characters
READ_BATCHES_A_STREAM = 3  # batches of one stream in memory: one in gRPC, one ready for gRPC, one in preparation
# memory of batches in streams whose clients do not read; above this limit, streams send smaller batches
READ_BUFFERS_BYTES = 128 * MIB
READ_MAKING_BYTES = 2 * RAW_BYTES_MAX  # memory for one batch in preparation: a decompressed frame and its columns
READ_HELD_BYTES_MAX = 640 * MIB  # memory of all batches, compressed or not; above this limit no further batch is prepared
QUERIES_MAX = 1000  # query runs that a gateway stores
QUERY_KEPT_US = 24 * 3600 * 1_000_000  # silence after which a gateway deletes a query run
CALLS_MAX = 256  # actions, plans and long polls in progress; each has a thread
BUSY_WAIT_US_MAX = 5_000_000  # time for which a request waits for a free stream; the limit of streams also limits waiting requests
FOLLOW_BEAT_US = 1_000_000  # longest interval between messages to a follower
FOLLOW_GAP_US = 2_000  # shortest interval between messages to a follower; all commits in one interval share a message
WATCH_POLL_US = 500_000  # interval at which a waiting call checks the frontier without a notification, and whether it was closed
STATUS_FRESH_US = 250_000  # time for which the reads process reuses the gateway's status
STATUS_WAIT_US_MAX = 1_000_000
LOCATIONS_FRESH_US = 10_000_000  # time for which the reads process reuses the read addresses of other gateways
STATUS_BYTES_MAX = 192 * KIB  # size of a status document; the status socket accepts little more in one message
# size above which a status document is compressed, because with many lanes and gateways it would not fit into one message
STATUS_PLAIN_BYTES_MAX = 32 * KIB
ERROR_TEXT_BYTES_MAX = 1000  # length of an error message on the wire
METRIC_SERIES_MAX = 1000  # time series of one metric, if the metric has one for each topic or reader
HTTP_CONNECTIONS_MAX = 128  # open HTTP connections; a new connection above this limit closes the longest idle one
HTTP_HEADER_BYTES_MAX = 16 * KIB
HTTP_REQUEST_US_MAX = 10_000_000  # time for a request and its answer, counted from the connection or from the previous answer
BROWSE_RECORDS, BROWSE_RECORDS_MAX = 50, 200  # records on one page of the log browser: default and maximum
BROWSE_BYTES_MAX = MIB  # bytes of batches that the log browser reads for one page; a single larger batch is allowed
# index rows that the log browser reads for one page, and for one step back in the log; a segment has fewer rows than that
BROWSE_ROWS_MAX, BROWSE_STEP_ROWS_MAX = 1_000_000, 250_000
BROWSE_STEP_OFFSETS = 4096  # number of offsets in the browser's first step back; doubled while too few records are found
BROWSE_PIECE_BYTES = 64 * KIB  # bytes of batches that are decoded together
BROWSE_CUT_BYTES, BROWSE_CUT_BYTES_MAX = 2 * KIB, 256 * KIB  # bytes of a key or value that the log browser shows
BROWSE_SHOWN_BYTES_MAX = 2 * MIB  # bytes of all keys and values on one page; a page with fewer records shows more of each
BROWSERS_MAX = 2  # pages of the log browser in preparation at a time, so that browsing never slows readers
BROWSE_WAIT_US_MAX = 2_000_000  # time for which a request for a page waits while other pages are in preparation
TOPICS_SHOWN_MAX = 1000  # topics in one answer, in the order of their names
HISTORY_SECONDS, HISTORY_MINUTES = 900, 1440  # points in a metric's history: one for each second, and one for each minute
HISTORY_EVENTS_MAX = 200  # number of changes of view and state that a gateway keeps
HISTORY_TEXT_CHARACTERS_MAX = 300  # length of the text that explains a change of view or state
READS_MEMORY_BYTES_MAX = 1024 * MIB  # private memory above which the reads process ends and is started again
READS_STOP_US_MAX = 2_000_000  # time for open streams to end

# Limits of the node: of the socket thread, the disk threads and the whole process
DRAIN_MESSAGES_MAX = 256  # messages read from the client port before the stack takes a step
CLIENT_CONNECTIONS_MAX = SESSIONS_CONFIG_MAX + 512  # accepted connections
CLIENT_ASSEMBLY_BYTES_MAX = 512 * MIB  # bytes of incomplete messages
# While frames are undecided, messages of clients wait for the decision, at most for this time, so that more of them share the next
# group of frames. This does not apply above this number of undecided bytes, because large groups are efficient already.
HOLD_US, HOLD_BYTES_MAX = 2_000, 128 * KIB
# bytes read from clients before a step; the disk writes them while the next ones are read, and smaller steps are less efficient
DRAIN_BYTES_MAX = 2 * MIB
SEND_HIGH_WATER_MARK = 4096  # answers queued for one client
CLIENT_HELD_BACK_BYTES = MIB  # bytes of answers queued for one client; above this limit, the gateway stops reading from it
# bytes of answers queued for all clients; above this limit, the client with the most queued bytes is disconnected
CLIENT_ANSWERS_BYTES_MAX = 128 * MIB
CONNECTION_BEAT_MS = 1_000  # interval of the gateway's keepalives, whether or not the client waits for an answer
CONNECTION_SILENT_MS_MAX = 15_000  # silence after which a connection is closed; queued messages do not end the silence
INFLATED_BYTES_A_TURN_MAX = 128 * MIB  # bytes decompressed for one client before the next client has its turn
MAILBOX_DRAIN_ITEMS_MAX = 4096  # items that a node thread takes from its mailbox at once
MAILBOX_LAZY_ITEMS_MAX = 64  # number of queued items at which a sleeping node thread is woken early
LOOKUP_DRAIN_ITEMS_MAX = 1024
SYNC_BYTES_MAX = 16 * MIB  # bytes written before one sync
LOOKUPS_MAX = 4096  # duplicates whose offsets are being read; above this limit, the gateway stops reading from clients
PRODUCERS_AN_ANSWER_MAX = 10_000
# bytes of producer tables that one client gets in a burst; further answers wait until the client has read these
TABLES_A_SESSION_BYTES = 16 * MIB
TABLES_A_SESSION_BYTES_A_SECOND = 256 * KIB  # rate at which a client's budget for producer tables refills
FENCE_TRIES_MAX = 8  # epochs that one fence request tries, because other clients may begin epochs at the same time
SESSION_IDLE_US = 3_600_000_000  # silence after which a client must send Hello again
SESSION_EVICT_US = 30_000_000  # idle time after which a session may be replaced by a new one, if no session is free
PORT_WAIT_US = 2_000_000  # time for which a starting gateway waits until the port of a killed gateway is free
PORT_CHECK_US = 20_000
SPACE_CHECK_US = 250_000  # interval of checks of the free disk space
DISK_FULL_WAIT_US = 200_000  # pause before the disk thread repeats a write that failed because the disk was full
# resident memory of a gateway; above this limit, it closes all client connections and drops their queues
NODE_MEMORY_BYTES_MAX = 1024 * MIB
NODE_BASE_BYTES = 128 * MIB  # memory of an idle gateway
SESSION_BYTES = 32 * KIB  # memory of one client connection; measured: 30 KiB
# memory of one producer with the longest name and progress, in all tables and a snapshot; measured: 2.7 KiB
PRODUCER_BYTES = 3 * KIB
TOPIC_BYTES = 5 * KIB // 2  # memory of one topic in all tables and a snapshot; measured: 2.2 KiB
TRIM_IDLE_US = 5_000_000  # time without messages after which free memory is returned to the system
DISK_STOP_US_MAX = 10_000_000  # time for which a stopping process waits for a disk thread, because a disk may hang
INLINE_FRAMES_MAX, INLINE_BYTES_MAX = 2, 16 * KIB  # largest group of frames that the socket thread writes and syncs itself
INLINE_FAST_US = 2_000  # duration of a sync up to which the disk is fast enough for syncs in the socket thread
# number of consecutive fast syncs before the socket thread does the next one; with one slow sync in 100, it does half of the syncs
INLINE_FAST_SYNCS = 64
INLINE_US_MAX = 20_000  # duration of a sync in the socket thread after which the disk thread takes the loop over
LINGER_MS_MAX = 1_000  # time to send the last answers
SWITCH_INTERVAL_US = 100  # interval of Python's thread switches; its default of 5 ms is longer than ten commits take
MALLOC_MMAP_BYTES = 64 * MIB
MALLOC_TRIM_BYTES = 256 * MIB
MALLOC_TOP_PAD_BYTES = 16 * MIB
MALLOC_ARENAS_MAX = 2
READS_RESTART_US_MIN = 100_000  # pause before the reads process is started again; doubled up to the next limit
READS_RESTART_US_MAX = 5_000_000
READS_PROBE_US = 20_000  # interval of probes while the reads process starts
READS_CHECK_US = 5_000_000  # interval of probes of a running reads process
READS_ANSWER_US_MAX = 1_000_000  # time for the reads process to answer a probe of one of its ports
READS_SILENT_US_MAX = 60_000_000  # silence after which the reads process counts as hanging and is killed
WAIT_LOG_S = 5  # time without a change after which a gateway logs what it waits for
READS_END_US_MAX = 5_000_000  # time for the reads process to end after its stop signal

# A recorded run
RECORD_RUN_BYTES_MAX = 512 * MIB  # file size at which the recording of a run ends, although the gateway continues
# size of all recorded runs of a gateway in a directory; the oldest runs are deleted when a run begins
RECORD_KEPT_BYTES_MAX = 2048 * MIB
RECORD_FREE_BYTES_MIN = 2 * DISK_LOW_BYTES  # free space that recording leaves on its disk, which may also hold the log
# bytes that the recording compresses together; the larger limit is for a step that contains a whole snapshot
RECORD_BLOCK_BYTES, RECORD_BLOCK_BYTES_MAX = 256 * KIB, 256 * MIB
RECORD_WAITING_BYTES_MAX = 256 * MIB  # recorded bytes that wait for the disk; above this limit, the recording ends
RECORD_FLUSH_US = 250_000  # interval at which a recording is flushed; a killed process loses at most the last interval

# Commands
PRODUCE_BATCHES_MAX = 64  # batches that wait for receipts; each holds a block of the input, so this limit also bounds memory
PRODUCE_RECORDS_MAX = 16_384  # records in one batch of `tutti produce`
PRODUCE_ABORTS_MAX = 10  # consecutive aborts, without a committed record between them, after which `tutti produce` fails


def node_bytes(sessions: int, producers: int, topics: int, undecided_bytes: int) -> int:
    """Return the approximate memory of a gateway that reaches all of these limits."""
    tables = sessions * SESSION_BYTES + producers * PRODUCER_BYTES + topics * TOPIC_BYTES
    return NODE_BASE_BYTES + INFLATED_BYTES_A_TURN_MAX + undecided_bytes + FORWARDED_MORE_BYTES_MAX + tables
