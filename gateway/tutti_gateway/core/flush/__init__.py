"""*flush*: how a view begins (design, section 5). See NOTES.md."""
