"""*repair*: lost messages are fetched from the nearest member that holds them (protocol/repair). See NOTES.md."""
