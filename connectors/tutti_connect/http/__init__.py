"""HTTP connector: posts records to the log, and serves reads of the log (docs/how-to/http.md)."""
