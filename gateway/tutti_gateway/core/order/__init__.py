"""*order*: one place for every message, first in first out per producer (design, section 4, layer 3). See NOTES.md."""
