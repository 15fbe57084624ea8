"""*unordered*: sends without the coordinator; each origin commits its own lane (protocol/lanes). See NOTES.md."""
