"""Generates docs/reference/metrics.md from the catalogue of metrics."""

from __future__ import annotations

from tutti_gateway.cli.reference.api import MADE
from tutti_gateway.reads.admin.metric_catalog import METRIC_GROUPS

_INTRODUCTION = """\
Each gateway serves its metrics on the admin port, `http://HOST:P+3/metrics`, in Prometheus text format:

    scrape_configs:
      - job_name: tutti
        static_configs: [{targets: ["jfk:7403", "lga:7403", "ewr:7403"]}]

A gateway with a certificate serves `https`, and a gateway with tokens requires a token. Any valid token may read `/metrics`,
whatever its rights. Create a token for Prometheus alone; because each token needs a right, let it read a topic that does not exist:

    (umask 077; tutti tokens new prometheus --read no-such-topic > prometheus.token)

    scrape_configs:
      - job_name: tutti
        scheme: https
        tls_config: {ca_file: /etc/prometheus/ca.pem}
        authorization: {credentials_file: /etc/prometheus/prometheus.token}
        static_configs: [{targets: ["jfk:7403", "lga:7403", "ewr:7403"]}]

`ca.pem` is the certificate of the authority that issued the gateways' certificates. Each target must be a name or address that the
certificate of its gateway covers. The user of Prometheus must be able to read both files. With `open_metrics = true` in
`[security]`, `/metrics` needs no token, so omit `authorization`.

- Metric names are stable: a released name keeps its meaning and is not removed. Units are part of the names (`_seconds`,
  `_bytes`). The name of a counter ends with `_total`; a counter restarts from 0 when its process restarts. Histograms have
  `_bucket`, `_sum` and `_count`.
- An unknown value is omitted. If the gateway process does not answer, `tutti_up` is 0, and only the values of the reads process
  are present. A metric with a label for a topic, reader or query has at most 1000 series, the first ones by name.
- Each stage of a record has its metrics. The gateway accepts the record (`tutti_ingest_*`), and the group orders and writes it
  (`tutti_undecided_*`). The gateway makes the record durable and votes for it (`tutti_vote_duration_seconds`, which includes
  `tutti_disk_sync_duration_seconds`). Then the record is decided (`tutti_decide_duration_seconds`) and read (`tutti_reads_*`).
  `tutti_commit_duration_seconds` covers all stages up to the receipt.
- [docker/grafana/tutti.json](../../docker/grafana/tutti.json) is a dashboard, and
  [docker/prometheus/alerts.yml](../../docker/prometheus/alerts.yml) has alert rules.
  [operations.md](../how-to/operations.md#alerts) explains each alert and its remedy.
"""


def metrics_page() -> str:
    """Return the text of metrics.md: a table of all metrics with their types, labels and meanings."""
    parts = [f"# Metrics\n\n{MADE}\n{_INTRODUCTION}"]
    for title, figures in METRIC_GROUPS.items():
        rows = [f"| `{figure.shown}` | {figure.kind} | {', '.join(figure.labels)} | {figure.help} |" for figure in figures]
        parts.append("\n".join([f"## {title}\n", "| metric | type | labels | |", "|---|---|---|---|", *rows, ""]))
    return "\n".join(parts)
