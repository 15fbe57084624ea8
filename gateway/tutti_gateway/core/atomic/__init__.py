"""*atomic*: two-phase commit of every place, vote after persisted (design, section 4, layer 4). See NOTES.md."""
