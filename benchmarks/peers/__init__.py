"""Tutti side by side with its peers: Kafka, NATS JetStream and JGroups, real ones, on this machine in one run."""
