"""The driver of a gateway: owns the sockets, the disk and the clock, and steps the stack with their events (see NOTES.md)."""
