"""The driver: it owns the client socket, the disk and the clock, and steps the stack with what they bring (see NOTES.md)."""
