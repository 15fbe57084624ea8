"""Limits of the Kafka connectors. Bytes, seconds, records."""

from __future__ import annotations

from tutti import limits

# Both directions
KAFKA_S = 10.0  # time limit of a request to Kafka or a gateway
TOPIC_KNOWN_S, TOPIC_KNOWN_POLL_S = 3.0, 0.05  # time until every broker knows a new topic, and interval between requests
RETRY_S_MIN, RETRY_S_MAX = limits.RETRY_US_MIN / 1e6, limits.RETRY_US_MAX / 1e6  # delay before a restart; doubles
LAG_UPDATE_S = 0.5  # interval between updates of the lag
REPEATED_LINE_S, LINES_MAX = 600.0, 1000  # interval between equal log lines of Kafka's client, and number of remembered lines

# From Kafka
MESSAGES_A_POLL = 10_000  # messages received in one poll; a partition with a full producer buffer queues at most this number
POLL_S = 0.02  # longest wait of one poll; afterwards Kafka's client returns the messages that it has
OPENERS = 4  # threads that open and close producers
LEADER_POLL_S = 0.1  # interval between checks for the leader of a new partition
DELIVERY_S = 30.0  # delivery timeout of a frame; afterwards a new epoch of the producer determines the frame's outcome
HANDOVER_S = 5.0  # longest time to deliver records of partitions that move to another instance
CHECK_S = 1.0  # interval between checks that the topics are unchanged
REPORT_S = 5.0  # interval between commits of offsets to Kafka, from which other tools compute the lag
FENCED_S_MIN, FENCED_S_MAX = 5.0, 60.0  # delay before a fenced instance restarts; by then Kafka has reassigned its partitions
BUFFER_BYTES_ALL = 256 * limits.MIB  # buffers of all producers together, while each has at least its minimum
BUFFER_BYTES_MIN, BUFFER_BYTES_MAX = limits.MIB, 16 * limits.MIB  # buffer of one producer
FRAME_BYTES = 512 * limits.KIB  # target size of one frame; one more record always fits
RECORD_BYTES_MAX = limits.RECORD_BYTES_MAX  # size of key, value and headers
RECORD_OVERHEAD_BYTES, HEADER_OVERHEAD_BYTES = 32, 16  # lower bound of the column overhead for one record or header

# To Kafka
TRANSACTION_RECORDS, TRANSACTION_RECORDS_MAX = 10_000, 100_000  # records in one transaction: default and maximum
TRANSACTION_BYTES, TRANSACTION_BYTES_MAX = 4 * limits.MIB, 256 * limits.MIB  # size of one transaction; one more record always fits
TRANSACTION_MS, TRANSACTION_MS_MAX = 50, 10_000  # age of an open transaction's first record: default and maximum
MESSAGE_BYTES_MAX = 16 * limits.MIB  # limit of Kafka's client; larger than any record, so that only the broker's limit applies
BATCH_OVERHEAD_BYTES = 512  # upper bound of a batch's overhead for one record without headers
COMMIT_S = 1.0  # length of one wait for a commit; afterwards the stop flag is checked
WAIT_LOG_S = 5.0  # a transaction that waits for Kafka is logged after this time
END_S = 10.0  # time for the last transaction at the end
UNREACHABLE_RETRY_S_MAX = 10.0  # longest time between two attempts while Kafka or the gateways are unreachable
IDLE_S = 5.0  # a position that moved without records is committed after this time
# messages read first from the end of the position topic; the number grows by a factor of 16 until the position is found
POSITION_SEARCH_MESSAGES = 64
# segment size of the position topic; small, because compaction does not process the open segment
POSITION_SEGMENT_BYTES = 16 * limits.MIB
TARGETS_MAX = 10_000  # number of cached topics that are known to exist in Kafka
