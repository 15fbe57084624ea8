"""*atomic*: two-phase commit of the ordered stream (protocol/atomic). See NOTES.md."""
