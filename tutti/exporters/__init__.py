"""Exporters: metrics of producers and readers for Prometheus and OpenTelemetry. The client does not depend on this package."""
