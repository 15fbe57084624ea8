"""Every bound of the connectors from and to Kafka. Bytes, seconds, records."""

from __future__ import annotations

from tutti import limits

# Both directions
KAFKA_S = 10.0  # for Kafka, or a gateway, to answer a question
MADE_S, MADE_AGAIN_S = 3.0, 0.05  # until every broker knows a topic that was made, and between two questions
RETRY_S_MIN, RETRY_S_MAX = limits.RETRY_US_MIN / 1e6, limits.RETRY_US_MAX / 1e6  # before something begins again; doubled
LOOK_S = 0.5  # between two looks at how much there is to bring across
SAME_LINE_S, LINES_MAX = 600.0, 1000  # the same line of Kafka's client is told again after so long; so many are remembered

# From Kafka
MESSAGES_A_TURN = 10_000  # taken from Kafka's client at once; a partition that waits for room has so many at most beside its buffer
TURN_S = 0.02  # for so long a turn waits for messages: Kafka's client gives what it has when it is over
OPENERS = 4  # threads that open and close producers
LEADER_LOOK_S = 0.1  # between two looks whether a partition that was just made has a leader
DELIVERY_S = 30.0  # then a frame's outcome is looked for by a new epoch
HANDOVER_S = 5.0  # at most, to deliver what is on its way of partitions that another instance gets
CHECK_S = 1.0  # between two looks whether topics are those that they were
REPORT_S = 5.0  # between two commits of Kafka's own offsets, which others read the lag from
FENCED_S_MIN, FENCED_S_MAX = 5.0, 60.0  # before who was fenced begins again: by then Kafka has told whoever lost it
BUFFER_BYTES_ALL = 256 * limits.MIB  # of all producers, as long as each has its least
BUFFER_BYTES_MIN, BUFFER_BYTES_MAX = limits.MIB, 16 * limits.MIB  # of one
FRAME_BYTES = 512 * limits.KIB  # what one frame is meant to have; a record more fits in any case
RECORD_BYTES_MAX = limits.RECORD_BYTES_MAX  # key, value and headers
RECORD_OVERHEAD_BYTES, HEADER_OVERHEAD_BYTES = 32, 16  # at least what columns take for one beside its bytes

# To Kafka
TRANSACTION_RECORDS, TRANSACTION_RECORDS_MAX = 10_000, 100_000  # as long as nothing else is configured, and at most
TRANSACTION_BYTES, TRANSACTION_BYTES_MAX = 4 * limits.MIB, 256 * limits.MIB  # the same; one record more
TRANSACTION_MS, TRANSACTION_MS_MAX = 50, 10_000  # the same, of time from its first record on
MESSAGE_BYTES_MAX = 16 * limits.MIB  # that Kafka's client takes: more than any record has, so that the broker alone decides
BATCH_OVERHEAD_BYTES = 512  # at most what a batch of one record without headers has beside it
COMMIT_S = 1.0  # of each wait for a transaction: then it is looked whether the connector is to end
TELL_S = 5.0  # a transaction that waits for Kafka is told of after so long
END_S = 10.0  # for the last transaction when it is to end
AWAY_S_MAX = 10.0  # between two tries while Kafka or the gateways are away, at most
IDLE_S = 5.0  # a place that moved without records is told to Kafka after so long
POSITION_LOOK_BACK = 64  # messages at the end of the position's topic that are read first; sixteen times as many if it is not there
POSITION_SEGMENT_BYTES = 16 * limits.MIB  # of its topic: compaction leaves the open one as it is
TARGETS_MAX = 10_000  # topics of Kafka that are known to be there
