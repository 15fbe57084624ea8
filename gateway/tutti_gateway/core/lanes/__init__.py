"""*unordered*: sends without the sequencer; each origin commits its own lane (design, section 7). See NOTES.md."""
