"""HTTP beside the gateways: posts into the log, reads out of it (docs/how-to/http.md)."""
