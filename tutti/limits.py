"""Bounds of the library and of what travels or lies on disk: producers, readers, spools, archives, Spark (design, section 11).

The group's own bounds are in `tutti_gateway.core.limits`, whose `relations.py` asserts how all of them fit together.
Above a limit: back-pressure to the sender, or a clear refusal; never silent loss, never unbounded memory. Units are last in names.
"""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

# Frames and batches. What a form itself fixes stands where the form is: tutti.data imports nothing of this. Bounds below rest on
# two of those: PROGRESS_BYTES_MAX (frame.py, 256) and the header are within what FRAME_BYTES_MAX adds to a body; with
# NAME_BYTES_MAX (names.py, 249) they make a frame that is no batch about 1 KiB, a producer PRODUCER_BYTES, a topic TOPIC_BYTES.
BODY_BYTES_MAX = 8 * MIB  # one frame's body as it travels
RAW_BYTES_MAX = 32 * MIB  # one batch decompressed
RECORD_BYTES_MAX = 4 * MIB  # one record's value and key
FRAMES_A_MESSAGE_MAX = 1024
MESSAGE_BYTES_MAX = 16 * MIB

# Client port
WINDOW_BYTES = 16 * MIB  # in flight per connection: what passes while one batch goes all the way round, and some more
UNDECIDED_FRAMES_MAX = 65_536  # of every kind: an ABORT stands no further behind the batch that it voids

# Between gateways
MESH_ACCEPTS_A_TURN_MAX = 64  # connections that a port takes before it looks at others
INTRODUCTION_BYTES_MAX = 64 * KIB  # one that names all members of the largest group; nothing larger is kept of a stranger
TROUBLE_TELL_US = 60_000_000  # the same trouble with a peer is told again after so long
KEYS_LOOK_US = 1_000_000  # whether a file of keys or tokens changed is looked at this often
KEYS_STILL_US = 900_000  # one that changed is read when it has stood still for so long: about one look
TOKENS_MAX = 1024  # that a file of tokens lists
TOKEN_CHARACTERS_MAX = 256  # of one that somebody shows
RIGHT_PATTERNS_MAX = 64  # of a token, of each kind

# Tables
TOPICS_MAX = 10_000
STAGED_BATCHES_MAX = 16_384  # that wait for a TXN, in all; so many has a TXN at most
FORGET_PRODUCERS_MAX = 1000  # by one FORGET

# Time, microseconds
TICK_INTERVAL_US = 1_000_000
ROSTER_MAX = 63  # gateways that a roster names
IDLE_PRODUCER_US = 3_600_000_000  # a producer without a name is forgotten after an hour

# Log
SEGMENT_BYTES = 128 * MIB
SYNCS_TOGETHER_MAX = 8  # of lanes, at a time
PREPARED_SEGMENTS = 2
RESERVED_BYTES = 16 * MIB
DISK_LOW_BYTES = 256 * MIB  # below it new messages are refused
SNAPSHOT_FRAMES = 32_768  # decided frames after which a further snapshot is written: bounds the time that a start takes
SEGMENTS_MAPPED_MAX = 16  # by one reader; one that is needed again is mapped again
NAMES_KEPT_MAX = 200_000  # of topics and producers, by one reader; beyond that they are learned anew
FINDINGS_MAX = 1000  # of one verify, of each kind

# Reads
LONG_POLL_US_MAX = 30_000_000
BEHIND_WAIT_US_MAX = 2_000_000
SPLITS_MAX = 10_000
SPLIT_BYTES = 64 * MIB  # of a range, when the reader does not say
PLAN_SEGMENTS_MAX = 16  # a range over so many segments or more is cut between them
PLAN_SEGMENTS_A_PART_MIN = 2  # or not, where parts would have fewer: they would be of very different sizes
PLAN_SEGMENTS_WEIGHED_MAX = 256  # whose files are looked at, about; others weigh as much as these
TICKET_BYTES_MAX = 8 * MIB  # of a question about reads; nearly all of it is names of topics
TICKET_TOPICS_BYTES_MAX = TICKET_BYTES_MAX - 64 * KIB
TOPICS_A_REPORT_MAX = 1000  # that a query says it reads, for people
READ_BATCH_ROWS_MAX = 65_536  # small frames are joined up to this, frames are never cut for it
READ_BATCH_BYTES_MIN, READ_BATCH_BYTES_MAX = 128 * KIB, 4 * MIB
READ_FIRST_BYTES = (256 * KIB, MIB)  # of the first batches of a scan: many readers want one place
READ_FIRST_PLACES = 16  # of the disk that each of them waits for: frames of one topic may lie far from each other

# Node: the socket thread, the disk thread, the process
HANDSHAKE_MS_MAX = 10_000  # for a connection to be set up: ZMTP's handshake, and with keys CURVE's
POLL_US_MAX = 500_000  # no thread of the node sleeps longer
STOP_US_MAX = 30_000_000  # for what is under way when the gateway is told to stop
OPEN_FILES = 65_536  # asked of the system, as far as it allows
LOG_WAIT_MS_MAX = 250  # for who reads the pipe or terminal that a process logs to; then lines are lost until there is room in it
SPARE_FILES, SPARE_FILES_PART = 64, 8  # that connections leave to the rest, of each kind; this part of all descriptors at most
FILES_WAIT_US_MAX, FILES_LOOK_US = 15_000_000, 10_000  # that the log waits for a descriptor, asking so often
CLIENT_MMAP_BYTES, CLIENT_TRIM_BYTES = 8 * MIB, 64 * MIB  # in a process with producers: batches live on the heap, so much is kept

# Client
ADDRESSES_MAX = 64  # gateways named in one url
BATCH_BYTES = 512 * KIB  # an open batch of a producer is closed when it has so many: a fifth less CPU for 100 B than half of it
BATCH_BYTES_MAX = 4 * MIB
BUFFER_BYTES = 32 * MIB  # a producer's records without an outcome
BUFFER_BYTES_MIN = 64 * KIB
SUBMIT_BYTES = MIB  # of small frames that a client puts into one message
ABSENT_COLUMNS_KEPT = 8  # columns of nulls in place of those that a record batch does not have
ABSENT_RECORDS_MAX = 65_536  # that one kept is long
IO_THREADS_MAX = 4  # of a process, which all its producers share
CLIENT_WINDOW_FRAMES = 4096  # in flight per connection, however small
LANE_WINDOW_BYTES = MIB  # of unordered batches of one client: an origin has room for some clients
ANSWER_BYTES_MAX = 16 * MIB  # one message from a gateway
CONNECT_TIMEOUT_US = 10_000_000  # for a producer, a reader or a tool to reach any gateway
ADDRESS_TIMEOUT_US = 2_000_000  # for one address, in its turn
PEEK_TIMEOUT_US = 500_000  # to see what else speaks on a port
PEEK_BYTES_MAX = 512  # of what it says
ANSWERS_A_TURN_MAX = 1024  # that a producer takes in before it sends again
DELIVERY_TIMEOUT_US = 60_000_000  # from send() to an outcome
REQUEST_TIMEOUT_US = 10_000_000
SILENCE_US_MIN, SILENCE_US_MAX = 1_000_000, 8_000_000  # a client whose frames go unanswered for so long asks with Hello; doubled
LINK_BEAT_MS = 500  # a client asks so often whether its connection stands; the gateway's socket thread answers each turn
LINK_SILENT_MS_MAX = 2_000  # one that nothing came by for so long is left
FLIGHT_BEAT_MS = 12_000  # likewise of a reader in the middle of an answer
FLIGHT_SILENT_MS_MAX = 5_000  # that process has the least of a busy machine
RETRY_US_MIN, RETRY_US_MAX = 20_000, 1_000_000  # before what a gateway could not take is sent again; doubled
TOPICS_AHEAD = 64  # queued batches whose topics a producer asks for at once: fewer than REQUESTS_A_SESSION_MAX
EPOCH_TRIES_MAX = 16  # epochs that a starting producer tries when others of its name start at the same time
SPOOL_BYTES = 1024 * MIB  # of a producer's spool on its own disk
SPOOL_BYTES_MIN = 16 * MIB
SPOOL_SEGMENT_BYTES = 64 * MIB  # of its files, about; an eighth of the spool if that is less
SPOOL_GROUP_BYTES = 8 * MIB  # that are written and synced together
SPOOL_GROUP_BATCHES = 1024
SPOOL_RESERVE_BYTES = 64 * KIB  # set aside on the disk, so that a full one does not keep what the spool says of itself
SPOOL_RETRY_US = 1_000_000  # before a disk that was full is tried again
SPOOL_WATCHED_MAX = 65_536  # batches in a spool that have an on_delivery to be called
FAILURES_KEPT_MAX = 64  # failed batches that a producer remembers for the end of its `with`
EXIT_FLUSH_US = 2_000_000  # an interpreter that ends waits so long for what a forgotten producer still holds
READ_RETRY_US = 60_000_000  # a reader looks for a gateway so long before it gives up
LANES_LOOK_US_MIN, LANES_LOOK_US_MAX = 20_000, 250_000  # between two looks of who follows all lanes, doubled while nothing comes
ANSWER_WAIT_US_MAX = 1_000_000  # that a reader lets a gateway wait with its answer: no signal is heard meanwhile, as of Ctrl-C
STREAM_US_MAX = 60_000_000  # one stream of a reader; it opens another where that one ended
NEARBY_AGAIN_US = 30_000_000  # files of a gateway on this host that could not be read are looked at again after so long

# Archive
ARCHIVE_RANGE_TICKS, ARCHIVE_TICKS_MAX = 600, 100_000  # a range of the archive ends at each so-many-th tick
ARCHIVE_RANGE_BYTES = 128 * MIB  # or before the batch with which it would have more than this, as the log holds it
ARCHIVE_RANGE_BYTES_MIN, ARCHIVE_RANGE_BYTES_MAX = MIB, 256 * MIB
ARCHIVE_RAW_BYTES_MAX = 512 * MIB  # decompressed; it is in memory as a whole
ARCHIVE_GROUP_BYTES = 16 * MIB  # of a row group; a reader holds one of each file of a range
ARCHIVE_FILES_MAX = 256  # of one range; topics beyond that share one
ARCHIVE_RANGES_MAX = 1_000_000  # of one archive
ARCHIVE_MANIFEST_BYTES_MAX = 16 * MIB
ARCHIVE_MANIFESTS_KEPT = 256  # by a reader
ARCHIVE_STEP_BYTES = MIB  # between two syncs of a file that is written, so that a gateway's own syncs find room between them
ARCHIVE_TRIES = 5  # of one question to a file system that is not this machine's
ARCHIVE_RETRY_US_MIN, ARCHIVE_RETRY_US_MAX = 100_000, 30_000_000  # before it is asked again; doubled
ARCHIVE_COMMIT_US = 1_000_000  # between two times that its reader says in the log how far it is
ARCHIVE_POLL_US = 1_000_000  # an archiver's look whether a range has closed
ARCHIVE_LOOK_US = 1_000_000  # a reader lists what was archived since no more often
ARCHIVE_ORPHAN_US = 24 * 3600 * 1_000_000  # a file that no range names may be one that is about to be named, until it is older
ARCHIVES_OPEN_MAX = 8  # that a worker of Spark keeps

# Beside the gateways: the page of metrics of a connector, or of the archiver
METRICS_CONNECTIONS_MAX = 32  # for one more the one that is idle for longest is closed
METRICS_US_MAX = 10_000_000  # for a request and its answer, and between two on one connection
METRICS_HEAD_BYTES_MAX = 16 * KIB  # of a request

# Spark
SPARK_POLL_US = 5_000_000  # a stream reader's long poll of the frontier
SPARK_PLAN_OLD_US = 60_000_000  # a task that begins so long after its range was planned asks whether the log has more by now
SPARK_PARTING_US = 15_000_000  # until sources of a run in lockstep that ended are gone
SPARK_REPORT_US = 100_000  # between two words of a query on what it has processed, at least
SPARK_ALIVE_US = 1_000_000  # and at most: one that has nothing new says that it is there
SPARK_TRIGGER_DELAY_MS = 900_000  # for which records are held back until there are enough, as Kafka's source does
SPARK_MOMENTS_MAX = 4096  # moments at which the frontier moved, to tell how long records have been waiting
SPARK_DIRECTORIES_MAX = 8  # sets of data directories that a worker keeps open
SPARK_SPLIT_BYTES = 256 * MIB  # of a range, about; a task of Spark costs 50 ms of CPU, whatever it reads
SPARK_SPLIT_BYTES_MIN = 16 * MIB  # a range is cut for each processor as long as parts have this
SPARK_SMALL_RECORDS = 16  # a range up to this is one partition, whatever it weighs, and saves the round trip of a plan
BACKFILL_SLICE_RECORDS = 10_000_000  # that one transaction of a table takes
