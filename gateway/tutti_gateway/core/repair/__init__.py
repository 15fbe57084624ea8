"""*repair*: a member fetches lost messages from the nearest member that holds them (protocol/repair). See NOTES.md."""
