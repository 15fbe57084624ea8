"""kafka-out: from the log to Kafka."""
