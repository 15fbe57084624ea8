"""HTTP beside the gateways: posts into the log, reads out of it (docs/http.md)."""
