"""Generator of docs/reference/metrics.md, from the metric catalogue."""

from __future__ import annotations

from tutti_gateway.cli.reference.api import MADE
from tutti_gateway.reads.admin.metric_catalog import METRIC_GROUPS

_INTRODUCTION = """\
Each gateway serves its metrics on the admin port, `http://HOST:P+3/metrics`, in Prometheus text format:

    scrape_configs:
      - job_name: tutti
        static_configs: [{targets: ["jfk:7403", "lga:7403", "ewr:7403"]}]

- Metric names are a contract: a released name keeps its meaning and is not removed. Units are part of the names (`_seconds`,
  `_bytes`). Counters end with `_total` and restart from 0 with the process that counts. Histograms have `_bucket`, `_sum` and
  `_count`.
- Each scrape computes the page from counters that the gateway keeps. An unknown value is omitted. If the gateway does not answer,
  `tutti_up` is 0, and the values of the reads process are still present. A metric with a series for each topic, reader or query
  has at most 1000 series, the first by name.
- The stages of a record: accepted (`tutti_ingest_*`), ordered and written (`tutti_undecided_*`), durable and voted for here
  (`tutti_vote_duration_seconds`, which includes `tutti_disk_sync_duration_seconds`), decided (`tutti_decide_duration_seconds`),
  read (`tutti_reads_*`). `tutti_commit_duration_seconds` covers all stages up to the receipt.
- [docker/grafana/tutti.json](../../docker/grafana/tutti.json) is a dashboard,
  [docker/prometheus/alerts.yml](../../docker/prometheus/alerts.yml) has the alert rules; meaning and remedy of each:
  [operations.md](../how-to/operations.md#alerts).
"""


def metrics_page() -> str:
    """Return the page: all metrics with their types, labels and meanings."""
    parts = [f"# Metrics\n\n{MADE}\n{_INTRODUCTION}"]
    for title, figures in METRIC_GROUPS.items():
        rows = [f"| `{figure.shown}` | {figure.kind} | {', '.join(figure.labels)} | {figure.help} |" for figure in figures]
        parts.append("\n".join([f"## {title}\n", "| metric | type | labels | |", "|---|---|---|---|", *rows, ""]))
    return "\n".join(parts)
