"""docs/reference/metrics.md: every metric, made from the table that a scrape is made from."""

from __future__ import annotations

from tutti_gateway.cli.reference.api import MADE
from tutti_gateway.reads.admin.metric_catalog import GROUPS

_INTRODUCTION = """\
Each gateway serves them at its admin port, `http://HOST:P+3/metrics`, in Prometheus' text form:

    scrape_configs:
      - job_name: tutti
        static_configs: [{targets: ["jfk:7403", "lga:7403", "ewr:7403"]}]

- Names are a contract: one that was released keeps its meaning, and is not taken away. Units stand in the names (`_seconds`,
  `_bytes`), counters end with `_total` and begin anew with the process that counts; histograms have `_bucket`, `_sum` and `_count`.
- A page is made at each scrape, from what the gateway counts anyway; a figure that is not known is left out. Where the gateway does
  not answer `tutti_up` is 0, and what the reads process knows itself is there still. Of a metric with a series for each topic,
  reader or query there are 1000 series at most, the first by name.
- A record passes: taken in (`tutti_ingest_*`), ordered and written (`tutti_undecided_*`), durable and voted for here
  (`tutti_vote_duration_seconds`, of which `tutti_disk_sync_duration_seconds` is a part), decided
  (`tutti_decide_duration_seconds`), read (`tutti_reads_*`). `tutti_commit_duration_seconds` is all of it up to the receipt.
- [docker/grafana/tutti.json](../../docker/grafana/tutti.json) is a dashboard,
  [docker/prometheus/alerts.yml](../../docker/prometheus/alerts.yml) has the rules to be woken by; what each means and what to do:
  [operations.md](../how-to/operations.md#alerts).
"""


def metrics_page() -> str:
    """All metrics with their types, labels and meanings."""
    parts = [f"# Metrics\n\n{MADE}\n{_INTRODUCTION}"]
    for title, figures in GROUPS.items():
        rows = [f"| `{figure.shown}` | {figure.kind} | {', '.join(figure.labels)} | {figure.help} |" for figure in figures]
        parts.append("\n".join([f"## {title}\n", "| metric | type | labels | |", "|---|---|---|---|", *rows, ""]))
    return "\n".join(parts)
