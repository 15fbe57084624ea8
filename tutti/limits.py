"""Bounds of the library, and of messages and files: producers, readers, spools, archives and Spark (design, section 11).

The bounds of the gateways are in `tutti_gateway.core.limits`. `limit_relations.py` asserts the relations between all bounds. Above
a limit, the sender gets back-pressure or an error. No limit causes silent data loss or unlimited memory use. The name of a limit
ends with its unit.
"""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

# Frames and batches. A limit that a format fixes (PROGRESS_BYTES_MAX, NAME_BYTES_MAX) is defined beside that format in tutti.data.
# The gateway's limit FRAME_BYTES_MAX is the sum of body, PROGRESS_BYTES_MAX (256 bytes) and frame header.
# NAME_BYTES_MAX (249 bytes) bounds a frame without a batch to about 1 KiB.
# The gateway's limits PRODUCER_BYTES and TOPIC_BYTES each include the bytes of one name.
BODY_BYTES_MAX = 8 * MIB  # encoded body of a frame
RAW_BYTES_MAX = 32 * MIB  # size of a batch after decompression
RECORD_BYTES_MAX = 4 * MIB  # size of value and key of one record
FRAMES_A_MESSAGE_MAX = 1024  # frames that a client submits in one message
MESSAGE_BYTES_MAX = 16 * MIB  # size of one part of a ZMTP message; a message may have twice this size in all

# Client port
WINDOW_BYTES = 16 * MIB  # bytes in flight on a connection; more than a connection transfers during one round of the protocol
UNDECIDED_FRAMES_MAX = 65_536  # frames that wait for a decision; an ABORT follows its batch within this many frames

# Between gateways
MESH_ACCEPTS_A_TURN_MAX = 64  # connections that a port accepts before it serves the other ports
INTRODUCTION_BYTES_MAX = 64 * KIB  # largest message of an unauthenticated peer; the largest group's roster fits
WARNING_REPEAT_US = 60_000_000  # interval at which the log repeats a warning about the same problem with a peer
KEYS_CHECK_US = 1_000_000  # interval of the checks for changes of a key file or token file
KEYS_UNCHANGED_US = 900_000  # time without a change before a changed key file is read, about one check interval
TOKENS_MAX = 1024  # number of tokens in one token file
TOKEN_CHARACTERS_MAX = 256  # length of a token that a client presents
QUOTA_MAX = 10**12  # records or bytes a second that a quota of a token may allow
RIGHT_PATTERNS_MAX = 64  # patterns of a token, for each kind of right

# Tables
TOPICS_MAX = 10_000  # topics in one log
STAGED_BATCHES_MAX = 16_384  # staged batches that wait for a TXN; also the largest number of batches in one TXN
DELETE_PRODUCERS_MAX = 1000  # number of producers in one FORGET frame

# Time, microseconds
TICK_INTERVAL_US = 1_000_000  # interval between TICK frames
ROSTER_MAX = 63  # voting members
IDLE_PRODUCER_US = 3_600_000_000  # the log deletes the state of an unnamed producer after this idle time

# Log
SEGMENT_BYTES = 128 * MIB  # maximum size of a segment file
PARALLEL_SYNCS_MAX = 8  # lanes that are synced at the same time
PREPARED_SEGMENTS = 2  # zero-filled segment files that a gateway keeps ready
RESERVED_BYTES = 16 * MIB  # size of the reserve file, which a gateway releases on a full disk
DISK_LOW_BYTES = 256 * MIB  # free space below which the gateway refuses new messages
SNAPSHOT_FRAMES = 32_768  # decided frames between two snapshots, which bound the time that a start takes
SEGMENTS_MAPPED_MAX = 16  # segments that one reader keeps mapped
NAMES_KEPT_MAX = 200_000  # names of topics and producers that one reader caches; a full cache is cleared
FINDINGS_MAX = 1000  # findings of one `verify`, for each kind

# Reads
LONG_POLL_US_MAX = 30_000_000  # longest wait of a gateway for a new record, before it answers a long poll
BEHIND_WAIT_US_MAX = 2_000_000  # time that a lagging gateway waits for the frontier that a reader has seen, before it refuses
SPLITS_MAX = 10_000  # partitions of one range
SPLIT_BYTES = 64 * MIB  # size of a partition, if the reader does not give one
PLAN_SEGMENTS_MAX = 16  # number of segments from which the planner splits a range at segment boundaries
PLAN_SEGMENTS_A_PART_MIN = 2  # least segments per partition; with fewer, the planner splits within segments
# number of segments whose file sizes the planner reads; the planner estimates the sizes of the other segments
PLAN_SEGMENTS_WEIGHED_MAX = 256
TICKET_BYTES_MAX = 8 * MIB  # size of a Flight ticket; most of a large ticket is topic names
TICKET_TOPICS_BYTES_MAX = TICKET_BYTES_MAX - 64 * KIB
TOPICS_A_REPORT_MAX = 1000  # topics that a query reports for display
READ_BATCH_ROWS_MAX = 65_536  # small frames are merged up to this size; frames are never split
READ_BATCH_BYTES_MIN, READ_BATCH_BYTES_MAX = 128 * KIB, 4 * MIB
READ_FIRST_BYTES = (256 * KIB, MIB)  # sizes of the first batches of a scan; many readers stop after the first record
READ_FIRST_POSITIONS = 16  # number of disk positions that the first batches wait for, because frames of one topic may be far apart

# Node: the socket thread, the disk thread, the process
HANDSHAKE_MS_MAX = 10_000  # time that a connection has for its ZMTP and CURVE handshakes
POLL_US_MAX = 500_000  # longest sleep of a gateway thread
STOP_US_MAX = 30_000_000  # time for work in progress when a gateway or a producer stops
OPEN_FILES = 65_536  # descriptors requested from the system, up to the hard limit of the process
LOG_WAIT_MS_MAX = 250  # longest wait for the reader of a full log pipe or terminal; after this wait, log lines are lost
# size of one share of the descriptors that connections leave free: 64 descriptors, or an eighth of all if that is less
SPARE_FILES, SPARE_FILES_PART = 64, 8
FILES_WAIT_US_MAX, FILES_RETRY_US = 15_000_000, 10_000  # longest wait of the log for a free descriptor, and its retry interval
# allocator settings of producers: size below which memory comes from the heap, and free memory that the heap keeps
CLIENT_MMAP_BYTES, CLIENT_TRIM_BYTES = 8 * MIB, 64 * MIB

# Client
ADDRESSES_MAX = 64  # gateways in one url
# target size of an open batch of a producer; batches of half this size take 25 % more CPU time (records of 100 B)
BATCH_BYTES = 512 * KIB
BATCH_BYTES_MAX = 4 * MIB
# the records of one batch of a producer with a quota: what the quota allows in this time, so that outcomes come steadily
QUOTA_BATCH_US = 100_000
BUFFER_BYTES = 32 * MIB  # bytes of one producer's records without an outcome
BUFFER_BYTES_MIN = 64 * KIB
SUBMIT_BYTES = MIB  # small frames that a client sends in one message
ABSENT_COLUMNS_KEPT = 8  # number of cached null columns; `send_batch` uses them for columns that a record batch lacks
ABSENT_RECORDS_MAX = 65_536  # longest cached null column, in records
IO_THREADS_MAX = 1  # I/O threads of a process, shared by its producers; more threads wait for the GIL instead of working
CLIENT_WINDOW_FRAMES = 4096  # frames in flight on a connection
LANE_WINDOW_BYTES = MIB  # unordered bytes of one client in flight; small, because a gateway serves several clients
ANSWER_BYTES_MAX = 16 * MIB  # size of one message from a gateway
CONNECT_TIMEOUT_US = 10_000_000  # time for a producer, a reader or a tool to connect
ADDRESS_TIMEOUT_US = 2_000_000  # time for one connection attempt to one address
HEAD_START_US = 500_000  # time for one attempt while other addresses are untried; then the client tries the next one
SILENT_ADDRESS_US = 30_000_000  # time after a silent attempt at an address in which new clients of the process try it last
PROBE_TIMEOUT_US = 500_000  # timeout of the probe that detects a different protocol on a port
PROBE_BYTES_MAX = 512  # number of bytes that the probe reads
ANSWERS_A_TURN_MAX = 1024  # messages that a connection receives before its producer sends again
DELIVERY_TIMEOUT_US = 60_000_000  # time from `send()` to an outcome
REQUEST_TIMEOUT_US = 10_000_000  # time for one request, including the search for a gateway
# time without an answer to sent frames, after which a client sends Hello as a probe; doubles with each probe
SILENCE_US_MIN, SILENCE_US_MAX = 1_000_000, 8_000_000
CLIENT_KEEPALIVE_MS = 500  # interval of a client's keepalive pings; the socket thread of the gateway answers them
CLIENT_SILENCE_MS_MAX = 2_000  # time without received data after which a client drops a connection
FLIGHT_KEEPALIVE_MS = 12_000  # keepalive interval of a reader that waits for the rest of an answer
FLIGHT_SILENCE_MS_MAX = 5_000  # time limit for the answer to a keepalive; long, because the reads process has a low CPU priority
RETRY_US_MIN, RETRY_US_MAX = 20_000, 1_000_000  # delay before a rejected batch is sent again; doubles with each attempt
TOPICS_AHEAD = 64  # number of queued batches whose topic numbers a producer requests together
EPOCH_TRIES_MAX = 16  # epochs that a starting producer requests while other instances with its name take epochs
SPOOL_BYTES = 1024 * MIB  # size of a producer's spool on its own disk
SPOOL_BYTES_MIN = 16 * MIB
SPOOL_SEGMENT_BYTES = 64 * MIB  # target size of a spool segment; an eighth of the spool if that is less
SPOOL_GROUP_BYTES = 8 * MIB  # bytes after which a write group of a spool ends; one sync covers one group
SPOOL_GROUP_BATCHES = 1024  # batches after which a write group of a spool ends; one sync covers one group
SPOOL_RESERVE_BYTES = 64 * KIB  # size of a spool's reserve file, whose space spool.json gets on a full disk
SPOOL_RETRY_US = 1_000_000  # interval of the attempts to write to a full disk
SPOOL_WATCHED_MAX = 65_536  # spooled batches with callbacks: `on_delivery`, or `await` and callbacks of a receipt
FAILURES_KEPT_MAX = 64  # failures that a producer keeps, to raise the first one at the end of its `with` block
ASYNC_OVERFLOW_BYTES = 256 * MIB  # bytes of records above a full buffer that an AsyncProducer accepts
ASYNC_RECORDS_A_TURN = 1000  # records that an AsyncReader returns in one pass of the event loop
EXIT_FLUSH_US = 2_000_000  # time in which open producers can deliver their records when the interpreter exits
READ_RETRY_US = 60_000_000  # time that a reader tries to connect to a gateway before it fails
LANES_POLL_US_MIN, LANES_POLL_US_MAX = 20_000, 250_000  # interval of a reader's polls of all lanes; doubles while no record arrives
# interval of the log lines that a client is still waiting; doubles during an outage
WAIT_LOG_US_MIN, WAIT_LOG_US_MAX = 5_000_000, 60_000_000
STALL_POLL_US = 1_000_000  # interval at which a producer checks whether its records get outcomes
# longest long poll of a reader; Python handles signals such as Ctrl-C only when the poll has ended
ANSWER_WAIT_US_MAX = 1_000_000
STREAM_US_MAX = 60_000_000  # time after which a reader ends a stream and opens the next one at the same offset
LOCAL_FILES_RETRY_US = 30_000_000  # time after which a reader tries unreadable files of a local gateway again

# Archive
ARCHIVE_RANGE_TICKS, ARCHIVE_TICKS_MAX = 600, 100_000  # ticks in an archive range: default and maximum
ARCHIVE_RANGE_BYTES = 128 * MIB  # encoded size of a range, which ends before a batch that would exceed this size
ARCHIVE_RANGE_BYTES_MIN, ARCHIVE_RANGE_BYTES_MAX = MIB, 256 * MIB
ARCHIVE_RAW_BYTES_MAX = 512 * MIB  # decompressed size of a range; the archiver keeps one range in memory
ARCHIVE_GROUP_BYTES = 16 * MIB  # size of a row group; a reader keeps one row group of each file of a range in memory
ARCHIVE_FILES_MAX = 256  # files of a range; topics beyond this number share one file
ARCHIVE_RANGES_MAX = 1_000_000  # number of ranges in one archive
ARCHIVE_MANIFEST_BYTES_MAX = 16 * MIB  # size of the manifest of one range
ARCHIVE_MANIFESTS_KEPT = 256  # manifests that a reader caches
ARCHIVE_STEP_BYTES = MIB  # bytes between two syncs of an archive file; small, because a long sync delays the syncs of a gateway
ARCHIVE_TRIES = 5  # attempts of one request to a remote file system
ARCHIVE_RETRY_US_MIN, ARCHIVE_RETRY_US_MAX = 100_000, 30_000_000  # delay before the next attempt; doubles with each attempt
ARCHIVE_COMMIT_US = 1_000_000  # interval at which an archiver commits its offset to the log
ARCHIVE_POLL_US = 1_000_000  # interval at which an archiver checks whether a range is complete
ARCHIVE_LIST_US = 1_000_000  # shortest interval at which a reader lists new ranges of the archive
ARCHIVE_ORPHAN_US = 24 * 3600 * 1_000_000  # age from which a file that no manifest names counts as an orphan
ARCHIVES_OPEN_MAX = 8  # archives that a Spark worker keeps open

# Metrics endpoint of a connector or of the archiver
METRICS_CONNECTIONS_MAX = 32  # at this limit, a new connection closes a waiting one, of the network with the most waiting ones
METRICS_US_MAX = 10_000_000  # time for a request and its answer, and idle time between requests of a connection
METRICS_HEAD_BYTES_MAX = 16 * KIB  # size of a request head

# Spark
SPARK_POLL_US = 5_000_000  # duration of a long poll of the frontier by a stream reader
SPARK_PLAN_AGE_US_MAX = 60_000_000  # age of a plan from which a task checks for records that the plan lacks
SPARK_RELEASE_US = 15_000_000  # time that a new lockstep run waits for the processes of the previous run to end
SPARK_REPORT_US = 100_000  # shortest interval at which a query reports its progress
SPARK_ALIVE_US = 1_000_000  # longest interval between progress reports; a query without progress repeats its last report
# longest time that records wait for `minRecordsPerTrigger`; Spark's Kafka source has the same default
SPARK_TRIGGER_DELAY_MS = 900_000
SPARK_FRONTIER_SAMPLES_MAX = 4096  # samples (time, frontier) of a query, which give the age of its waiting records
SPARK_DIRECTORIES_MAX = 8  # sets of data directories that a Spark worker keeps open
SPARK_SPLIT_BYTES = 256 * MIB  # target size of one partition of a range; one Spark task takes 50 ms of CPU time, whatever its size
SPARK_SPLIT_BYTES_MIN = 16 * MIB  # smallest partition size when a range is split to use all processors
SPARK_SMALL_RECORDS = 16  # maximum records of a range that is one partition without planning, which saves a round trip
BACKFILL_SLICE_RECORDS = 10_000_000  # records that a backfill adds to a table in one transaction
