"""*repair*: what is lost comes again from the nearest that has it (design, section 4, layer 1). See NOTES.md."""
