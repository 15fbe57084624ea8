"""kafka-in: from Kafka to the log."""
