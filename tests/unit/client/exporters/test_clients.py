"""Tests of the metrics that the statistics of producers and readers define for all exporters."""

from __future__ import annotations

from collections.abc import Iterator

from tutti.exporters.clients import METRICS


def test_each_metric_has_a_sentence_and_a_unit() -> None:
    def units() -> Iterator[str]:
        for metric in METRICS:
            assert metric.about.endswith(".")
            yield metric.unit

    assert set(units()) == {"", "records", "bytes", "seconds"}
