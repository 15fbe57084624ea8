"""*membership*: heartbeats, election of the coordinator, and roster changes (protocol/membership). See NOTES.md."""
