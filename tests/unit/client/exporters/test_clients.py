"""Tests of the metrics that the statistics of producers and readers define for all exporters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tutti.errors import UsageError
from tutti.exporters.clients import METRICS, Clients


def test_each_metric_has_a_sentence_and_a_unit() -> None:
    def units() -> Iterator[str]:
        for metric in METRICS:
            assert metric.about.endswith(".")
            yield metric.unit

    assert set(units()) == {"", "records", "bytes", "seconds"}


def test_only_a_client_has_metrics() -> None:
    wrong: Any = 5
    with pytest.raises(UsageError, match="only a producer or a reader has metrics, not 5"):
        Clients().add(wrong, None)
