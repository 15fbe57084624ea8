"""Limits of the Kafka connectors. Bytes, seconds, records."""

from __future__ import annotations

from tutti import limits

# Both directions
KAFKA_S = 10.0  # time limit of a request to Kafka or a gateway
TOPIC_KNOWN_S, TOPIC_KNOWN_POLL_S = 3.0, 0.05  # time to wait until every broker knows a new topic, and interval of the checks
RETRY_S_MIN, RETRY_S_MAX = limits.RETRY_US_MIN / 1e6, limits.RETRY_US_MAX / 1e6  # delay before a restart; doubles
LAG_UPDATE_S = 0.5  # interval between updates of the lag
REPEATED_LINE_S, LINES_MAX = 600.0, 1000  # interval between equal log lines of Kafka's client, and number of lines kept to compare

# From Kafka
MESSAGES_A_POLL = 10_000  # number of messages of one poll, and of messages that wait for a full producer buffer
POLL_S = 0.02  # longest wait of one poll; afterwards Kafka's client returns the messages that it has
OPENERS = 4  # threads that open and close producers
LEADER_POLL_S = 0.1  # interval between checks for the leader of a new partition
DELIVERY_S = 30.0  # delivery timeout of a frame; afterwards a new epoch of the producer determines the frame's outcome
HANDOVER_S = 5.0  # time to deliver records in flight before a partition moves to another instance
CHECK_S = 1.0  # interval between checks that no topic was recreated
REPORT_S = 5.0  # interval between commits of offsets to Kafka's group, for lag monitors
FENCED_S_MIN, FENCED_S_MAX = 5.0, 60.0  # delay before a fenced partition restarts, so that Kafka can first reassign it
BUFFER_BYTES_ALL = 256 * limits.MIB  # buffers of all producers together; many producers use more, because each has the minimum
BUFFER_BYTES_MIN, BUFFER_BYTES_MAX = limits.MIB, 16 * limits.MIB  # buffer of one producer
FRAME_BYTES = 512 * limits.KIB  # largest size of a frame with more than one record
RECORD_BYTES_MAX = limits.RECORD_BYTES_MAX  # size of key, value and headers
RECORD_OVERHEAD_BYTES, HEADER_OVERHEAD_BYTES = 32, 16  # size of one record or header in a frame, besides its contents

# To Kafka
TRANSACTION_RECORDS, TRANSACTION_RECORDS_MAX = 10_000, 100_000  # records in one transaction: default and maximum
TRANSACTION_BYTES, TRANSACTION_BYTES_MAX = 4 * limits.MIB, 256 * limits.MIB  # size of a transaction with more than one record
TRANSACTION_MS, TRANSACTION_MS_MAX = 50, 10_000  # age of an open transaction's first record: default and maximum
MESSAGE_BYTES_MAX = 16 * limits.MIB  # message limit of Kafka's client, above any record, so that only the broker's limit applies
BATCH_OVERHEAD_BYTES = 512  # largest size of a Kafka batch with one record, without the record's key, value and headers
COMMIT_S = 1.0  # longest wait for a commit before the connector checks whether it must stop
WAIT_LOG_S = 5.0  # a log line reports a transaction that has waited for Kafka for this time
END_S = 10.0  # time to complete the last transaction after SIGTERM
UNREACHABLE_RETRY_S_MAX = 10.0  # longest time between two attempts while Kafka or the gateways are unreachable
IDLE_S = 5.0  # interval between commits of the position while the log grows only in other topics
# first number of messages to read from the end of the position topic; it grows 16-fold until they contain the position
POSITION_SEARCH_MESSAGES = 64
# segment size of the position topic; small, because Kafka compacts closed segments only
POSITION_SEGMENT_BYTES = 16 * limits.MIB
TARGETS_MAX = 10_000  # number of topics of Kafka that the connector remembers as existing
